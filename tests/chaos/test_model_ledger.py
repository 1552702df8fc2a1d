"""The model ledger answers as the SQLite one does, whatever is asked of it in whatever order."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from chaos.gen import Draws
from chaos.worlds.sim.ledger import Command, ModelLedger
from cron_leader.core.model import (
    Asked,
    Backfill,
    Batch,
    Candidate,
    Claim,
    CommandKind,
    CommandResult,
    Entry,
    Finish,
    JobRecord,
    Order,
    Origin,
    Pause,
    PutBack,
    Reason,
    Refused,
    Result,
    Resume,
    Rollback,
    Settlement,
    SlotKey,
    State,
    Term,
    Trigger,
)
from cron_leader.core.orders import errand_of
from cron_leader.ledger import Ledger, open_ledger
from cron_leader.ledger.orders import args_of
from cron_leader.ledger.views import CommandRow, Reader, open_reader
from tests.core.driver import job as a_job

T0 = datetime(2026, 12, 1, tzinfo=UTC)
JOBS = ("a", "b", "c")
KINDS = {
    Trigger: CommandKind.TRIGGER,
    Pause: CommandKind.PAUSE,
    Resume: CommandKind.RESUME,
    Backfill: CommandKind.BACKFILL,
}


class Both:
    """One random conversation, held with both ledgers at once."""

    def __init__(self, seed: int, real: Ledger, operator: Reader) -> None:
        self.draws, self.real, self.model = Draws(seed), real, ModelLedger()
        self.operator = operator
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
        orders = (self.order, self.errand, self.errand, self.rebase)
        await self.draws.one((*asked, *orders, self.settle))(term)

    def same(self, real: object, model: object) -> None:
        if isinstance(real, Refused) and isinstance(model, Refused):
            assert (real.what, real.high) == (model.what, model.high)
        else:
            assert real == model

    async def raise_(self) -> None:
        revision = self.draws.between(1, 4) + (self.terms[-1].fence if self.terms else 0)
        if self.terms and self.draws.percent(20):
            revision -= 6
        least = revision + self.draws.between(-9, 1) if self.draws.percent(30) else 0
        rollback = self.draws.one(tuple(Rollback))
        nonce = self.draws.hex()
        candidate = Candidate("x", nonce, "n", 1, revision, 9, max(least, 0), rollback)
        real = await self.real.raise_fence(candidate, self.now, waiting=lambda: None)
        self.same(real, self.model.raise_fence(candidate, self.now))
        if isinstance(real, int):
            self.terms.append(Term("x", real, candidate.nonce, "n", 1, self.now))
            await self.settle(self.terms[-1])

    async def settle(self, term: Term) -> None:
        past, shown = await self.real.read_past(term), self.model.read_past(term)
        assert (past.planned_to, dict(past.jobs)) == (shown.planned_to, dict(shown.jobs))
        assert past.went_back_at == shown.went_back_at
        assert past.skip == shown.skip or past.went_back_at is None
        assert past.unfinished == shown.unfinished or term is not self.terms[-1]
        jobs = tuple(JobRecord(job, T0, T0, "d") for job in JOBS if job not in past.jobs)
        planned_to = max(self.now, past.planned_to or self.now)
        again = frozenset({"a"})
        entries = (self.entry(), self.entry())
        skip = past.went_back_at is not None and past.skip
        past_ = Settlement(
            self.now, planned_to, jobs, (), entries, (), again, skip, past.unfinished
        )
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
        state = self.draws.one((State.SUCCEEDED, State.FAILED, State.DUE, State.RETRYING))
        ended = {State.DUE: State.CANCELLED, State.RETRYING: State.FAILED}.get(state, state)
        result = Result(0, False, None, None, self.now, 5)
        end = Finish(slot, attempt, run_id, state, ended, None, result, self.now)
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

    def ask(self, order: Asked | Order) -> None:
        """As an operator's command does."""
        self.model.commands[order.command_id] = Command(order, self.now)
        kind, args = CommandKind.STEP_DOWN, f'{{"fence": {self.terms[-1].fence}, "for_s": 0}}'
        if not isinstance(order, Order):
            kind, args = KINDS[type(order)], args_of(order)
        self.operator.order(CommandRow(order.command_id, kind, "x", args, "me", "", self.now))

    async def order(self, term: Term) -> None:
        """A step-down, answered twice."""
        command_id = self.draws.hex()
        self.ask(Order(command_id, self.terms[-1].fence, 0))
        for result in (CommandResult.STEPPING_DOWN, CommandResult.NOT_LEADING):
            real = await self.real.answer_order(term, command_id, result, self.now)
            self.same(real, self.model.answer_order(term, command_id, result))

    async def errand(self, term: Term) -> None:
        command_id, job = self.draws.hex(), self.draws.one(JOBS)
        pause, first = Pause(command_id, job, 1.0), self.slot().scheduled_for
        until = first + timedelta(seconds=3)
        asked: tuple[Asked, ...] = (
            Trigger(command_id, job, self.now),
            pause,
            Resume(command_id, None),
            Backfill(command_id, job, first, until, 5.0),
        )
        order = self.draws.one(asked)
        self.ask(order)
        errand = errand_of(order, {name: a_job(name) for name in JOBS}, self.now, self.now)
        for _ in range(2):
            real = await self.real.carry_out(term, errand, self.now)
            self.same(real, self.model.carry_out(term, errand, self.now))

    async def rebase(self, _: Term) -> None:
        if self.draws.percent(20):
            self.operator.rebase("x")
            self.model.rebase()


@pytest.mark.parametrize("seed", range(6))
async def test_the_model_answers_as_the_sqlite_ledger_does(seed: int, tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/ledger.db"
    real = open_ledger(url)
    await real.open(fleet="x", shards=1, migrate=True)
    try:
        with open_reader(url) as operator:
            both = Both(seed, real, operator)
            for _ in range(60):
                await both.step()
    finally:
        await real.close()
