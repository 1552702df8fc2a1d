"""Fence targets: other databases in which a leader raises its fence, before its gate opens.

Each has a fence table of its own (`cron-leader fence ddl --target NAME`). Once a newer leader's
gate is open, no write of an older term that runs the guard there commits: as in the ledger.

Not promised: that what is written there and the ledger are one transaction; nor anything of a
target that lost its last commits. Nothing but the raise is written there by a leader.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Mapping, Sequence
from datetime import datetime
from typing import Any, Protocol, TypeVar

from cron_leader.config import FenceTarget
from cron_leader.core.model import Candidate, Refused
from cron_leader.errors import CronLeaderError, LedgerUncertain, LedgerUnusable
from cron_leader.ledger.sql import Value

T = TypeVar("T")
Held = tuple[int, str]
"""A fence and its nonce."""

RAISE = """
INSERT INTO cron_leader_fence AS f (election, fence, nonce, node, raised_at)
VALUES (:election, :fence, :nonce, :node, :now)
ON CONFLICT (election) DO UPDATE SET fence = excluded.fence, nonce = excluded.nonce,
    node = excluded.node, raised_at = excluded.raised_at
WHERE f.fence < excluded.fence
"""
HELD = "SELECT fence, nonce FROM cron_leader_fence WHERE election = :election"
PROBE = "SELECT 1 FROM cron_leader_fence LIMIT 1"


class Target(Protocol):
    """One of them. Methods raise LedgerUncertain or LedgerUnusable; a raise may be sent again."""

    async def probe(self) -> None:
        """One read of its fence table."""

    async def raise_fence(
        self, params: Mapping[str, Value], waiting: Callable[[], None]
    ) -> Held | None:
        """What stands there afterwards. waiting: called when a lock is waited for."""

    async def close(self) -> None: ...


class Targets:
    """All targets of a fleet. With none it asks nobody, and every answer is yes.

    Raises LedgerUncertain or LedgerUnusable with the target's name; never a permanent one, for a
    node goes on trying while a target is away.
    """

    def __init__(self, targets: Sequence[FenceTarget] = ()) -> None:
        self._targets = {target.name: open_target(target.url) for target in targets}

    async def probe(self) -> None:
        """Whether all of them answer."""
        await self._all(lambda target: target.probe())

    async def raise_fence(
        self, candidate: Candidate, fence: int, now: datetime, *, waiting: Callable[[], None]
    ) -> Refused | None:
        """Raise the fence that the ledger gave in all of them; Refused where one shows another."""
        params: Mapping[str, Value] = {
            "election": candidate.election,
            "fence": fence,
            "nonce": candidate.nonce,
            "node": candidate.node,
            "now": now,
        }
        found = await self._all(lambda target: target.raise_fence(params, waiting))
        for name, held in found.items():
            if held != (fence, candidate.nonce):
                return _refused(name, fence, held and held[0])
        return None

    async def close(self) -> None:
        await self._all(lambda target: target.close())

    async def _all(self, ask: Callable[[Target], Coroutine[Any, Any, T]]) -> dict[str, T]:
        """Every target's answer, all asked at once; none is under way when this raises."""
        answers = await asyncio.gather(
            *(_named(name, ask(target)) for name, target in self._targets.items()),
            return_exceptions=True,
        )
        for answer in answers:
            if isinstance(answer, BaseException):
                raise answer
        return dict(zip(self._targets, answers, strict=True))  # type: ignore[arg-type]


def open_target(url: str) -> Target:
    """The target of `sqlite:///path` or `postgresql://...`; nothing is opened yet."""
    if url.startswith("sqlite:"):
        from cron_leader.ledger.sqlite_target import SqliteTarget

        return SqliteTarget(url)
    from cron_leader.ledger.pg_target import PostgresTarget

    return PostgresTarget(url)


def no_table(where: str) -> LedgerUnusable:
    cure = "run the SQL that `cron-leader fence ddl --target NAME` prints there"
    return LedgerUnusable(f"ledger {where}: it has no fence table: {cure}")


async def _named(name: str, asked: Coroutine[Any, Any, T]) -> T:
    try:
        return await asked
    except (LedgerUncertain, LedgerUnusable) as error:
        raise _in_words(name, error) from error


def _in_words(name: str, error: LedgerUncertain | LedgerUnusable) -> CronLeaderError:
    """The back ends speak of the ledger; this is a target."""
    said = str(error).removeprefix("ledger ").replace("[ledger] url", "its url")
    text = f"fence target {name}, {said}"
    if isinstance(error, LedgerUnusable):
        return LedgerUnusable(text, permanent=False)
    return type(error)(text)


def _refused(name: str, fence: int, high: int | None) -> Refused:
    text = (
        f"fence target {name} shows fence {high}, and ours is {fence}: a newer leader raised it, "
        "or another ledger did. If no newer leader is alive, delete the election's row of "
        "cron_leader_fence there"
    )
    return Refused("raise", high, text=text)
