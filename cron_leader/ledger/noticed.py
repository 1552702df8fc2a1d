"""cron_leader_notice: what has been told, so that over any change of leader it is told once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from cron_leader.core.model import Applied, Term
from cron_leader.ledger.sql import Params, to_time
from cron_leader.ledger.writes import Rows, Step, Write

MOST_FAILING = 1_000


@dataclass(frozen=True, slots=True)
class Failed:
    """A slot that failed, its job not having succeeded since."""

    job: str
    scheduled_for: datetime
    attempt: int
    state: str
    reason: str | None
    node: str
    finished_at: datetime


def put_notice(term: Term, key: str, now: datetime) -> Write[Applied]:
    """Take the key, before anything is sent; changed: it is ours. A resend says the same."""
    params: Params = {"election": term.election, "fence": term.fence, "now": now, "key": key}
    steps = (Step("put_notice", params), Step("notice_is_ours", params))
    return Write("notice", term, now, steps, lambda rows, _: Applied(changed=bool(rows)))


def failing(election: str, since: datetime) -> tuple[str, Params]:
    """The query for the failed slots later than `since`."""
    return "failing", {"election": election, "since": since, "rows": MOST_FAILING}


def failing_of(rows: Rows) -> Sequence[Failed]:
    """Oldest first."""
    return [
        Failed(
            row["job"],
            to_time(row["scheduled_for"]),
            row["attempt"],
            row["state"],
            row["reason"],
            row["node"],
            to_time(row["finished_at"]),
        )
        for row in reversed(rows)
    ]
