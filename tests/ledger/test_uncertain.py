"""A COMMIT whose answer never came: the same request is sent again, and all is as if it had.

Both ends of it: the connection breaks when everything ahead of COMMIT has been sent, or when COMMIT
has been carried out and its answer is on the way.
"""

from __future__ import annotations

import asyncio
import signal
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from itertools import count

import psycopg
import pytest

from cron_leader.clock import SystemClock
from cron_leader.core import messages as m
from cron_leader.core.model import Applied, Claim, Entry, Refused, State, Taken
from cron_leader.errors import LedgerNotCommitted, LedgerUncertain
from cron_leader.ledger import open_ledger
from cron_leader.ledger.migrate import migration_sql
from cron_leader.scribe import Scribe
from tests import pg_kit
from tests.etcd_kit import Emitted, Recorder
from tests.ledger.conftest import EMPTY
from tests.ledger.kit import (
    T0,
    Lab,
    Leader,
    at,
    batch,
    cut_once,
    finish,
    nothing,
    settlement,
    slot,
    soon,
)
from tests.pg_kit import Postgres

RUN = Claim(slot(), "run-1")
WAITING = Claim(slot(5), "run-5", seen=0)
PAST = settlement(entries=(Entry(slot(5), State.DUE), Entry(slot(6), State.DUE)))

Send = Callable[[Leader], Awaitable[object]]
RAISE: Send = lambda new: new.ledger.raise_fence(new.candidate, T0, waiting=nothing)  # noqa: E731
SETTLE: Send = lambda new: new.settle(PAST)  # noqa: E731
TAKE: Send = lambda one: one.take(RUN)  # noqa: E731

SENT: dict[str, tuple[tuple[Send, ...], Send]] = {
    "raise": ((), RAISE),
    "settle": ((RAISE,), SETTLE),
    "take": ((RAISE, SETTLE), lambda one: one.take(RUN, to=at(9))),
    "take-what-waits": ((RAISE, SETTLE), lambda one: one.take(RUN, WAITING, to=at(9))),
    "finish": ((RAISE, SETTLE, TAKE), lambda one: one.finish(RUN)),
    "put_back": ((RAISE, SETTLE, TAKE), lambda one: one.put_back(RUN)),
    "heartbeat": ((RAISE, SETTLE), lambda one: one.ledger.heartbeat(one.term, at(9), at(9))),
    "close_term": ((RAISE, SETTLE), lambda one: one.ledger.close_term(one.term, "drained", at(9))),
}
"""What has gone before, undisturbed, and what is cut off."""

SIDES = pytest.mark.parametrize(
    "arrives", [False, True], ids=["ahead-of-it", "ahead-of-its-answer"]
)


def everything(url: str) -> dict[str, list[str]]:
    """All rows of the ledger."""
    with psycopg.connect(url, autocommit=True) as db:
        names = db.execute("SELECT tablename FROM pg_tables WHERE tablename LIKE 'cron\\_leader%'")
        return {name: _rows(db, name) for (name,) in names.fetchall()}


def _rows(db: psycopg.Connection, name: str) -> list[str]:
    found = db.execute(f"SELECT to_jsonb(t)::text AS row FROM {name} AS t ORDER BY row".encode())
    return [row for (row,) in found.fetchall()]


@asynccontextmanager
async def cut_off(lab: Lab, leader: Leader, *, arrives: bool) -> AsyncIterator[Leader]:
    """The same leader behind a connection that breaks once."""
    async with cut_once(lab.url, arrives=arrives) as url:
        ledger = open_ledger(url)
        try:
            yield Leader(ledger, leader.candidate)
        finally:
            await ledger.close()


async def lose(send: Send, cut: Leader) -> None:
    """Sent, and neither known to be done nor known not to be."""
    with pytest.raises(LedgerUncertain) as lost:
        await soon(send(cut))
    assert not isinstance(lost.value, LedgerNotCommitted)


async def _played(
    server: Postgres, what: str, arrives: bool | None
) -> tuple[object, dict[str, list[str]]]:
    """The answer in the end, and what the ledger holds then. arrives None: nothing is cut."""
    server.run(EMPTY, database="ready")
    before, send = SENT[what]
    async with AsyncExitStack() as stack:
        lab = Lab(server.url("ready"), stack)
        leader = Leader(await lab.ledger(), lab.candidate("a"))
        for step in before:
            await step(leader)
        if arrives is None:
            return _plain(await send(leader)), everything(lab.url)
        held = everything(lab.url)
        async with cut_off(lab, leader, arrives=arrives) as cut:
            await lose(send, cut)
            assert (everything(lab.url) != held) == arrives
            answer = await soon(send(cut))
        return _plain(answer), everything(lab.url)


def _plain(answer: object) -> object:
    return replace(answer, ledger_now=None) if isinstance(answer, Applied) else answer


@SIDES
@pytest.mark.parametrize("what", SENT)
async def test_what_was_cut_off_at_its_commit_and_sent_again_is_as_if_it_had_not_been(
    server: Postgres, what: str, arrives: bool
) -> None:
    undisturbed = await _played(server, what, None)
    assert not isinstance(undisturbed[0], Refused)
    assert await _played(server, what, arrives) == undisturbed


@SIDES
async def test_a_claim_cut_off_and_sent_again_after_a_successor_rose_starts_no_second_run(
    pglab: Lab, arrives: bool
) -> None:
    old = await pglab.leader("a", settlement())
    async with cut_off(pglab, old, arrives=arrives) as cut:
        await lose(TAKE, cut)
        successor = await pglab.leader("b", settlement(now=at(1)))
        theirs = await successor.take(replace(RUN, run_id="run-2"))
        assert isinstance(await soon(TAKE(cut)), Refused)
    assert theirs == Taken({} if arrives else {"run-2": 1})
    assert pglab.states() == {RUN.slot: "abandoned" if arrives else "running"}
    (attempt,) = pglab.read().attempts()
    assert attempt.run_id == ("run-1" if arrives else "run-2")


async def test_a_pause_between_two_copies_of_a_claim_does_not_undo_the_run(lab: Lab) -> None:
    leader = await lab.leader("a", settlement())
    taken = await leader.take(RUN)
    lab.sql("UPDATE cron_leader_job SET paused_until = '2999-01-01T00:00:00.000000Z'")
    assert await leader.take(RUN) == taken == Taken({"run-1": 1})
    paused = replace(RUN, slot=slot(1), run_id="run-2")
    skipped = await leader.take(paused)
    assert await leader.take(paused) == skipped == Taken({}, frozenset({"run-2"}))
    assert lab.states() == {RUN.slot: "running", paused.slot: "skipped"}


# ------------------------------------------------------------------ the server restarts


class Traffic:
    """A leader that claims and finishes slot after slot, through a scribe."""

    def __init__(self, leader: Leader) -> None:
        self.emit, self.posted, self.done = Emitted(), Recorder(), 0
        self._term = leader.term
        self._scribe = Scribe(leader.ledger, post=self.posted, clock=SystemClock(), emit=self.emit)
        self._numbers = count()
        self._ends = False

    async def run(self) -> None:
        while not self._ends:
            claim = Claim(slot(number := next(self._numbers)), f"run-{number}")
            await self._scribe.perform(m.Take(self._term, batch(claim)))
            await self._scribe.perform(m.WriteFinish(self._term, finish(claim), once=False))
            self.done += 1

    async def more(self, slots: int) -> None:
        """Until that many more are done."""
        enough = self.done + slots
        while self.done < enough:  # noqa: ASYNC110
            await asyncio.sleep(0.01)

    def end(self) -> None:
        self._ends = True


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGQUIT], ids=["fast", "immediate"])
async def test_a_server_restarted_in_mid_traffic_loses_no_finish_and_runs_no_slot_twice(
    server: Postgres, how: signal.Signals
) -> None:
    folder = pg_kit.installed()[server.version]
    with pg_kit.postgres(folder) as first:
        first.run(migration_sql(first.url()))
        async with AsyncExitStack() as stack:
            leader = await Lab(first.url(), stack).leader("a", settlement())
            traffic = Traffic(leader)
            working = [asyncio.create_task(traffic.run()) for _ in range(3)]
            await soon(traffic.more(10))
            await asyncio.to_thread(stack.enter_context, pg_kit.restarted(first, how))
            await soon(traffic.more(10))
            traffic.end()
            await soon(asyncio.gather(*working))
            _check(traffic, attempts(first.url()))


def attempts(url: str) -> list[tuple[str, int, str, str]]:
    """run_id, attempt, state of the attempt, state of the slot: of every attempt."""
    with psycopg.connect(url) as db:
        return db.execute(
            "SELECT a.run_id, a.attempt, a.state, s.state FROM cron_leader_attempt AS a "
            "JOIN cron_leader_slot AS s USING (job, scheduled_for, command_id)"
        ).fetchall()


def _check(traffic: Traffic, found: list[tuple[str, int, str, str]]) -> None:
    assert sorted(found) == sorted(
        (f"run-{number}", 1, "succeeded", "succeeded") for number in range(traffic.done)
    )
    answers = traffic.posted.of(m.BatchAnswered)
    assert all(a.answer == Taken({a.batch.claims[0].run_id: 1}) for a in answers)
    assert len(answers) == traffic.done
    finished = traffic.posted.of(m.FinishAnswered)
    assert all(isinstance(f.answer, Applied) and f.answer.changed for f in finished)
    assert {"ledger.unreachable", "ledger.back"} <= set(traffic.emit.names())
