"""Do etcd's history and the ledger's still belong together?

etcd counts revisions up, and the ledger's fences are made of them: an etcd that is behind the fence
was restored or rebuilt. The other way round, etcd remembers the fence raised last: a ledger that
shows less went back. Both are for a person to mend; until then a node stays out of line (a ledger
that went back is admitted where `ledger_rollback` says so). Not found
here: an etcd restored and then written to until its revision has passed the fence; for the same
cluster id that is harmless, its fences go on upwards.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

from cron_leader.core.model import Mark, Rollback
from cron_leader.etcd.keys import Seat


def remembered(kvs: Sequence[Any], seat: Seat) -> int:
    """The fence in the record of the last raise; 0 if there is none of this ledger."""
    try:
        return int(_record(kvs, seat)["fence"])
    except (ValueError, TypeError, KeyError):
        return 0


def timeline(kvs: Sequence[Any], seat: Seat) -> str | None:
    """The database's timeline in that record: it counts up with each fail-over; None: no record."""
    said = _record(kvs, seat).get("timeline")
    return said if isinstance(said, str) else None


def known(kvs: Sequence[Any], seat: Seat) -> datetime | None:
    """The planned_to that the leader had been acknowledged when its ledger went away; None: it
    did not."""
    try:
        at = datetime.fromisoformat(_record(kvs, seat)["planned_to"])
    except (ValueError, TypeError, KeyError):
        return None
    return at if at.tzinfo is not None else None


def _record(kvs: Sequence[Any], seat: Seat) -> Mapping[str, Any]:
    """What the last raise of this ledger left; empty if nothing, or somebody else's words."""
    for kv in kvs:
        try:
            record = json.loads(kv.value)
            if record["ledger_id"] == seat.ledger_id:
                return dict(record)
        except (ValueError, TypeError, KeyError):
            pass
    return {}


def mismatch(mark: Mark | None, header: Any, least: int, seat: Seat) -> str | None:
    """What is wrong and what mends it, in one line; None if the histories fit.

    Order of reading: `least` from etcd, `mark` from the ledger, `header` from etcd. Only so is a
    newer leader's raise, written meanwhile, not taken for a step back.
    """
    fence = mark.fence if mark else 0
    if fence < least and seat.rollback is Rollback.REFUSE:
        return (
            f"the ledger's fence is {fence or 'not there'}, but etcd remembers fence {least} "
            "raised in it: the ledger went back (restored, or failed over to a copy that lagged); "
            "bring the newer one back, or go on without what it lost: "
            '[ledger] ledger_rollback = "skip" or "refire"'
        )
    if mark is None:
        return None
    revision, cluster = header.revision, f"{header.cluster_id:x}"
    if mark.cluster not in (None, cluster):
        fact = f"was raised under etcd cluster {mark.cluster}, this is cluster {cluster}"
    elif mark.offset + revision < mark.fence:
        fact = f"is ahead of this etcd (cluster {cluster})"
    else:
        return None
    return (
        f"the ledger's fence {mark.fence} {fact} at revision {revision}, offset {mark.offset}: "
        "etcd was restored or rebuilt; once no node of its past leads, run "
        "`cron-leader fence rebase`"
    )
