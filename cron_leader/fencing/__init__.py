"""The fence as SQL: what makes a database refuse the write of a deposed leader.

A transaction that runs the guard after its last write, and commits only if it passed, cannot
commit once a newer leader has raised the fence of its election (`cron_leader_fence`). Locked last,
the guard keeps a successor waiting for the length of a COMMIT, not of the transaction.

Not promised: anything about writes that do not run the guard, or about another database.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from cron_leader.errors import CronLeaderError

if TYPE_CHECKING:
    from cron_leader.fencing.upsert import fenced_upsert

__all__ = ["GUARD", "FenceMisuse", "StaleFence", "application_name", "fenced_upsert"]


class StaleFence(CronLeaderError):
    """A newer leader has raised the fence, or the run is over: nothing was committed."""


class FenceMisuse(CronLeaderError):
    """The kit was used in a way that cannot be fenced; the text says what, and the cure."""


def __getattr__(name: str) -> object:
    if name == "fenced_upsert":
        from cron_leader.fencing import upsert

        return upsert.fenced_upsert
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


REFUSED = "CL001"
"""SQLSTATE of the guard's no on Postgres; the error's detail is the fence found ("" if none)."""

GUARD = "SELECT cron_leader_guard(:election, :fence, :nonce)"
"""For a session of the user's own on Postgres, last before its COMMIT; takes `tick.guard`. Refused:
an error with SQLSTATE REFUSED, and the transaction can only be rolled back."""

POSTGRES_GUARD = (
    "SELECT cron_leader_guard(%(election)s, %(fence)s, %(nonce)s), clock_timestamp() AS ledger_now"
)
"""The last statement before COMMIT, at READ COMMITTED. The function is made by the migrations."""

POSTGRES_EXCLUSIVE = "SELECT pg_advisory_xact_lock(hashtextextended('cron_leader:' || %s, 0))"
"""Taken by a raise: it waits for guards under way, and new guards wait for it."""

SQLITE_GUARD = "SELECT fence, nonce FROM cron_leader_fence WHERE election = :election"
"""Read after BEGIN IMMEDIATE: from then on nobody else writes, so before the writes is as good."""


def application_name(election: str, fence: int) -> str:
    """What a term's transactions call themselves, so that a successor can tell them (63 bytes)."""
    return f"cron_leader:{election}:{fence}"
