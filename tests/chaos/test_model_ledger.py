"""The model ledger answers as the SQLite one does, whatever is asked of it in whatever order."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from chaos.gen import Draws
from chaos.worlds.sim.ledger import ModelLedger
from cron_leader.core.model import (
    Batch,
    Candidate,
    Claim,
    Entry,
    Finish,
    JobRecord,
    Origin,
    PutBack,
    Reason,
    Refused,
    Result,
    Settlement,
    SlotKey,
    State,
    Term,
)
from cron_leader.ledger import Ledger, open_ledger

T0 = datetime(2026, 12, 1, tzinfo=UTC)
JOBS = ("a", "b", "c")


class Both:
    """One random conversation, held with both ledgers at once."""

    def __init__(self, seed: int, real: Ledger) -> None:
        self.draws, self.real, self.model = Draws(seed), real, ModelLedger()
        self.terms: list[Term] = []
        self.runs: list[tuple[SlotKey, int, str]] = []
        self.now = T0

    async def step(self) -> None:
        self.now += timedelta(milliseconds=self.draws.between(1, 900))
        if not self.terms or self.draws.percent(8):
            await self.raise_()
            return
        # Mostly the newest term speaks, now and then a deposed one.
        term = self.terms[-1] if self.draws.percent(85) else self.draws.one(self.terms)
        asked = (self.take, self.take, self.finish, self.finish, self.put_back, self.beat)
        await self.draws.one((*asked, self.settle))(term)

    def same(self, real: object, model: object) -> None:
        if isinstance(real, Refused) and isinstance(model, Refused):
            assert (real.what, real.high) == (model.what, model.high)
        else:
            assert real == model

    async def raise_(self) -> None:
        revision = self.draws.between(1, 4) + (self.terms[-1].fence if self.terms else 0)
        if self.terms and self.draws.percent(20):
            revision -= 6
        candidate = Candidate("x", self.draws.hex(), "n", 1, revision, 9)
        real = await self.real.raise_fence(candidate, self.now, waiting=lambda: None)
        self.same(real, self.model.raise_fence(candidate))
        if isinstance(real, int):
            self.terms.append(Term("x", real, candidate.nonce, "n", 1, self.now))
            await self.settle(self.terms[-1])

    async def settle(self, term: Term) -> None:
        past = await self.real.read_past(term)
        assert past.planned_to == self.model.read_past(term).planned_to
        assert dict(past.jobs) == dict(self.model.read_past(term).jobs)
        jobs = tuple(JobRecord(job, T0, T0, "d") for job in JOBS if job not in past.jobs)
        planned_to = max(self.now, past.planned_to or self.now)
        again = frozenset({"a"})
        entries = (self.entry(), self.entry())
        past_ = Settlement(self.now, planned_to, jobs, (), entries, (), again)
        self.same(await self.real.settle(term, past_), self.model.settle(term, past_))

    def slot(self) -> SlotKey:
        return SlotKey(self.draws.one(JOBS), T0 + timedelta(seconds=self.draws.below(12)))

    def entry(self) -> Entry:
        slot, seen = self.slot(), self.draws.one((None, 0, 1))
        if self.draws.percent(50):
            return Entry(slot, State.SKIPPED, Reason.OVERLAP, seen=seen)
        return Entry(slot, State.DUE, origin=Origin.CATCHUP, next_at=self.now)

    async def take(self, term: Term) -> None:
        slots = {self.slot() for _ in range(3)}
        one, *claimed = sorted(slots)
        claims = tuple(
            Claim(slot, self.draws.hex(), self.draws.one((None, 0, 1, 2))) for slot in claimed
        )
        self.runs += [(c.slot, (c.seen or 0) + 1, c.run_id) for c in claims]
        entry = Entry(one, State.SKIPPED, Reason.OVERLAP)
        batch = Batch(claims, (entry,), self.now, self.now)
        self.same(await self.real.take(term, batch), self.model.take(term, batch))

    async def finish(self, term: Term) -> None:
        if not self.runs:
            return
        slot, attempt, run_id = self.draws.one(self.runs)
        state = self.draws.one((State.SUCCEEDED, State.FAILED, State.DUE))
        ended = State.CANCELLED if state is State.DUE else state
        result = Result(0, False, None, None, self.now, 5)
        end = Finish(slot, attempt, run_id, state, ended, None, result)
        self.same(await self.real.finish(term, end), self.model.finish(term, end))

    async def put_back(self, term: Term) -> None:
        if not self.runs:
            return
        back = PutBack(*self.draws.one(self.runs), now=self.now)
        self.same(await self.real.put_back(term, back), self.model.put_back(term, back))

    async def beat(self, term: Term) -> None:
        known = T0 if self.draws.percent(80) else self.now + timedelta(seconds=5)
        planned_to = max(known, self.now)
        real = await self.real.heartbeat(term, planned_to, self.now, known=known)
        self.same(real, self.model.heartbeat(term, planned_to, known, None))


@pytest.mark.parametrize("seed", range(6))
async def test_the_model_answers_as_the_sqlite_ledger_does(seed: int, tmp_path: Path) -> None:
    real = open_ledger(f"sqlite:///{tmp_path}/ledger.db")
    await real.open(fleet="x", shards=1, migrate=True)
    try:
        both = Both(seed, real)
        for _ in range(60):
            await both.step()
    finally:
        await real.close()
