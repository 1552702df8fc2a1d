"""Upkeep of the ledger by whoever leads: retention, a bounded batch at a time.

What is promised: a batch is one short transaction under the fence, of fewer rows after one that
took long, and between two the ledger is left to the claims for three times as long as a batch took.
It ends with the term, or with its gate, at the next batch; a deposed leader deletes nothing. Not
promised: when a row that may go does go.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime, timedelta

from cron_leader.clock import Clock
from cron_leader.core.model import Refused, Term
from cron_leader.errors import LedgerUncertain, LedgerUnusable
from cron_leader.events import Emit
from cron_leader.ledger import Ledger
from cron_leader.ledger.retention import FIRST, Kept, Surplus

LOOK_S = 5.0
"""How often a node looks whether it leads."""

ROUND_S = 900.0
"""From the end of one round to the next."""

PAUSE_S = 0.05
"""The least between two batches, and between two reads that found nothing to delete."""

SHARE = 3
"""How many times as long as a batch took the ledger is left alone after it."""

YOUNGEST = timedelta(hours=1)
"""Nothing younger goes, however many rows a job has: a late copy of a claim must find its row."""


@dataclass(frozen=True, slots=True)
class Policy:
    """age None: rows stay whatever their age. keep 0: a job's slots stay however many there are."""

    age: timedelta | None
    keep: int

    @classmethod
    def of(cls, age_ns: int | None, keep: int) -> Policy:
        return cls(None if age_ns is None else timedelta(microseconds=age_ns // 1000), keep)

    def __bool__(self) -> bool:
        return self.age is not None or self.keep > 0


class _OverError(Exception):
    """The term is over, or its gate is shut."""


class Upkeep:
    """Run beside the daemon's loop for as long as it lives; does nothing while others lead."""

    def __init__(
        self,
        ledger: Ledger,
        policy: Policy,
        *,
        leading: Callable[[], Term | None],
        clock: Clock,
        emit: Emit,
    ) -> None:
        """leading: the term whose gate is open now; None: there is none."""
        self._ledger, self._policy, self._leading = ledger, policy, leading
        self._clock, self._emit = clock, emit

    async def run(self) -> None:
        """For ever; returns at once if nothing is ever to be deleted."""
        while self._policy:
            done = await self.round()
            await asyncio.sleep(ROUND_S if done else LOOK_S)

    async def round(self) -> bool:
        """Delete all that may go; whether it came to its end."""
        if (term := self._leading()) is None:
            return False
        try:
            await self._by_age(term)
            await self._by_number(term)
        except (_OverError, LedgerUncertain, LedgerUnusable):
            return False  # what fails here fails the heartbeat too, which says so
        return True

    async def _by_age(self, term: Term) -> None:
        if self._policy.age is None:
            return
        before = self._clock.wall() - self._policy.age
        for kept in Kept:
            await self._empty(term, kept, before)

    async def _by_number(self, term: Term) -> None:
        after, keep = "", self._policy.keep
        before = self._clock.wall() - YOUNGEST
        while keep and (jobs := await self._ledger.surplus(term.election, after, keep)):
            for job in jobs:
                if job.upto is not None:
                    await self._empty(term, Kept.SLOTS, before, job)
            after = jobs[-1].job
            await self._pause(term, 0)

    async def _empty(
        self, term: Term, kept: Kept, before: datetime, surplus: Surplus | None = None
    ) -> None:
        """Batch after batch until nothing is left of it."""
        page = FIRST
        while keys := await self._ledger.expired(term.election, kept, before, surplus, page=page):
            began_ns = self._clock.boot_ns()
            self._check(term)
            answer = await self._ledger.trim(term, kept, keys, self._clock.wall())
            if isinstance(answer, Refused):
                self._emit("ledger.refused", what=answer.what, high=answer.high, fence=term.fence)
                raise _OverError
            took_ns = self._clock.boot_ns() - began_ns
            page = page.after(kept, keys, took_ns / 1e9)
            await self._pause(term, took_ns)

    async def _pause(self, term: Term, took_ns: int) -> None:
        await asyncio.sleep(max(PAUSE_S, SHARE * took_ns / 1e9))
        self._check(term)

    def _check(self, term: Term) -> None:
        if self._leading() != term:
            raise _OverError
