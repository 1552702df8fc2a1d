"""What retention deletes: the oldest rows that may go, in batches, each a guarded write of its own.

Never deleted: unfinished slots, unanswered orders, and each election's newest term row. That row
says up to when the election has planned, so that a slot whose row is gone is not run again.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import StrEnum

from cron_leader.core.model import Applied, Term
from cron_leader.ledger.sql import Dialect, Params, Value, queries, to_time_or_none
from cron_leader.ledger.writes import Rows, Step, Write

BATCH = 100
"""Rows deleted in the first transaction of a round (and with slots their attempts)."""

LEAST, MOST = 50, 500
"""Rows of a transaction, however long they take."""

LONG_S, SHORT_S = 0.015, 0.005
"""A transaction that took longer is followed by one of half the rows, a shorter one by a larger: a
claim waits for all of it on SQLite, and behind its part of the log on Postgres."""

JOBS = 10
"""Jobs whose rows are counted in one read."""

_ANY_TIME = datetime(1970, 1, 1, tzinfo=UTC)

Key = tuple[Value, ...]


class Kept(StrEnum):
    """What grows by itself. The attempts of a slot go with it."""

    SLOTS = "slots"
    GAPS = "gaps"
    TERMS = "terms"
    REFUSALS = "refusals"
    COMMANDS = "commands"
    NOTICES = "notices"
    JOBS = "jobs"
    """Retired ones of which nothing else is left: last, therefore."""


@dataclass(frozen=True, slots=True)
class Surplus:
    """A job, and the newest of its slots beyond those that stay; upto None: it has no more."""

    job: str
    upto: datetime | None


@dataclass(frozen=True, slots=True)
class Page:
    """Which of the rows that may go are next. rows: at most so many. since: of slots, none that is
    older; what was deleted is not waded through again."""

    rows: int = BATCH
    since: Value = _ANY_TIME

    def after(self, kept: Kept, keys: Sequence[Key], took_s: float) -> Page:
        """The page after these keys were deleted, which took so long."""
        rows = self.rows
        if took_s > LONG_S:
            rows = max(LEAST, rows // 2)
        elif took_s < SHORT_S:
            rows = min(MOST, rows + rows // 2)
        return Page(rows, keys[-1][1] if kept is Kept.SLOTS else self.since)


FIRST = Page()


def expired(
    election: str,
    kept: Kept,
    before: datetime,
    surplus: Surplus | None = None,
    *,
    page: Page = FIRST,
) -> tuple[str, Params]:
    """The query (and its parameters) for the oldest keys that may go: final before `before`.

    surplus: only slots, of this job, up to its bound.
    """
    params: dict[str, Value] = {
        "election": election,
        "before": before,
        "rows": page.rows,
        "since": page.since,
    }
    if surplus is None:
        return f"expired_{kept}", params
    return "expired_slots_of_job", params | {"job": surplus.job, "upto": surplus.upto}


def keys_of(kept: Kept, rows: Rows) -> tuple[Key, ...]:
    """As trim() takes them: the values as the database gave them."""
    columns = _trims(kept)[-1][1]
    return tuple(tuple(row[name] for name in columns) for row in rows)


def surplus(election: str, after: str, keep: int) -> tuple[str, Params]:
    """The query for the next jobs by name after `after`, and what each has beyond `keep` slots."""
    return "surplus", {"election": election, "after": after, "keep": keep, "jobs": JOBS}


def surplus_of(rows: Rows) -> tuple[Surplus, ...]:
    return tuple(Surplus(row["job"], to_time_or_none(row["upto"])) for row in rows)


def trim(term: Term, kept: Kept, keys: Sequence[Key], now: datetime) -> Write[Applied]:
    """Delete these rows; sent again, it finds them gone."""
    params: Params = {"election": term.election, "fence": term.fence}
    rows = tuple(keys)
    steps = tuple(Step(name, params, rows) for name, _ in _trims(kept))
    return Write("retention", term, now, steps, lambda _, ledger_now: Applied(True, ledger_now))


def _trims(kept: Kept) -> tuple[tuple[str, tuple[str, ...]], ...]:
    """The statements that delete it, and their columns; its own is the last."""
    names = (("trim_attempts",) if kept is Kept.SLOTS else ()) + (f"trim_{kept}",)
    return tuple((name, queries(Dialect.SQLITE)[name].columns) for name in names)
