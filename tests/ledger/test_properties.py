"""P1, P3 and P4 under any order of what leaders and users send: resent, late, and out of turn.

A leader that has crashed is one that sends nothing more; a lost answer is what is sent again.
"""

from __future__ import annotations

import asyncio
import os
import sqlite3
import tempfile
from contextlib import AsyncExitStack, closing
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import psycopg
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from cron_leader import fencing
from cron_leader.core.model import Claim, Entry, Finish, Refused, SlotKey, State, Taken
from cron_leader.fencing import StaleFence
from cron_leader.fencing.transaction import Opener
from tests.fencing.kit import connect, ticket
from tests.ledger.conftest import EMPTY, MAJORS, _needed
from tests.ledger.kit import T0, Lab, Leader, finish, put_back, settlement, slot
from tests.pg_kit import Postgres

SLOTS = 3
DONE = {"succeeded", "failed", "abandoned", "skipped", "missed", "cancelled"}

_slots = st.integers(0, SLOTS - 1)
ACTIONS = st.one_of(
    st.tuples(st.just("raise")),
    st.tuples(st.just("claim"), st.integers(0, 2), _slots, st.sampled_from([None, 0, 1, 2])),
    st.tuples(st.just("finish"), st.integers(0, 2), st.sampled_from([State.SUCCEEDED, State.DUE])),
    st.tuples(st.just("put_back"), st.integers(0, 2)),
    st.tuples(st.just("heartbeat"), st.integers(0, 2)),
    st.tuples(st.just("user"), st.integers(0, 2)),
    st.tuples(st.just("tick"), st.integers(0, 2), st.booleans()),
    st.tuples(st.just("resend"), st.integers(0, 7)),
)

_always = settings(
    deadline=None,
    derandomize="CI" in os.environ,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)

OLD_OWNER: list[Any] = [
    ("claim", 0, 0, None),
    ("raise",),
    ("user", 1),
    ("heartbeat", 1),
    ("claim", 1, 1, None),
    ("finish", 0, State.SUCCEEDED),
    ("claim", 0, 0, 1),
    ("finish", 1, State.SUCCEEDED),
    ("resend", 0),
    ("user", 0),
]
"""At-least-once: the successor runs the slot again, and the old owner's late finish is refused."""


OWN_RUN: list[Any] = [
    ("claim", 0, 0, None),
    ("tick", 0, False),
    ("tick", 0, True),
    ("finish", 0, State.DUE),
    ("tick", 0, False),
    ("claim", 0, 1, None),
    ("finish", 0, State.DUE),
    ("tick", 0, False),
    ("claim", 0, 1, 1),
    ("tick", 1, True),
    ("tick", 0, True),
]
"""A run writes until its success, or its end, is recorded; then no more under the same fence."""


@dataclass
class World:
    """Leaders by age, all that was ever sent, and what the ledger has accepted."""

    lab: Lab
    leaders: list[Leader] = field(default_factory=list)
    sent: list[tuple[Leader, str, object]] = field(default_factory=list)
    runs: dict[tuple[SlotKey, int], str] = field(default_factory=dict)
    finals: dict[SlotKey, str] = field(default_factory=dict)
    known: set[SlotKey] = field(default_factory=set)
    won: list[tuple[Leader, Claim, int]] = field(default_factory=list)
    effects: int = 0

    async def act(self, action: tuple[Any, ...]) -> None:
        match action:
            case ("raise",):
                await self._rise()
            case ("claim", age, number, seen):
                claim = Claim(slot(number), f"run-{len(self.sent)}", seen)
                await self.send(self._leader(age), "take", claim)
            case ("finish", which, state) if self.won:
                leader, claim, attempt = self.won[-1 - which % len(self.won)]
                await self.send(leader, "finish", _finish(claim, attempt, state))
            case ("put_back", which) if self.won:
                leader, claim, attempt = self.won[-1 - which % len(self.won)]
                await self.send(leader, "put_back", put_back(claim, attempt))
            case ("heartbeat", age):
                await self.send(self._leader(age), "heartbeat", T0)
            case ("user", age):
                leader = self._leader(age)
                accepted = await asyncio.to_thread(_user_write, self.lab.url, leader)
                assert accepted == (leader is self.leaders[-1])
            case ("tick", which, final) if self.won:
                await self._tick(*self.won[-1 - which % len(self.won)], final=final)
            case ("resend", which) if self.sent:
                await self.send(*self.sent[-1 - which % len(self.sent)])
        self.check()

    async def _tick(self, leader: Leader, claim: Claim, attempt: int, *, final: bool) -> None:
        """A run's own transaction: accepted while its leader is the newest and its run goes on."""
        row = self.lab.slot(claim.slot)
        assert row is not None
        goes_on = (row.state, row.attempt, row.run_id) == ("running", attempt, claim.run_id)
        held = replace(ticket(self.lab, leader, claim), attempt=attempt)
        accepted = await asyncio.to_thread(_kit_write, Opener(held), final)
        assert accepted == (goes_on and leader is self.leaders[-1])
        self.effects += accepted
        if accepted and final:
            assert self.lab.states()[claim.slot] == "succeeded"

    async def _rise(self) -> None:
        leader = await self.lab.leader(f"n{len(self.leaders)}")
        self.leaders.append(leader)
        due = (Entry(slot(len(self.leaders) % SLOTS), State.DUE),)
        await self.send(leader, "settle", settlement(entries=due, again=("job",)))

    def _leader(self, age: int) -> Leader:
        return self.leaders[-1 - age % len(self.leaders)]

    async def send(self, leader: Leader, what: str, value: object) -> None:
        """P1: whoever is not the newest is refused."""
        self.sent.append((leader, what, value))
        if what == "take":
            answer = await leader.take(value)  # type: ignore[arg-type]
        elif what == "heartbeat":
            answer = await leader.ledger.heartbeat(leader.term, T0, T0)
        else:
            answer = await getattr(leader.ledger, what)(leader.term, value)
        assert isinstance(answer, Refused) == (leader is not self.leaders[-1])
        if isinstance(answer, Taken) and answer.attempts:
            assert isinstance(value, Claim)
            self.won.append((leader, value, answer.attempts[value.run_id]))

    def check(self) -> None:
        """P3: one run an attempt, for ever; what is final stays; running rows are the newest's.
        P4: a slot that was ever explained stays so.
        """
        reader = self.lab.read()
        for row in reader.attempts():
            key = (SlotKey(row.job, row.scheduled_for, row.command_id), row.attempt)
            assert self.runs.setdefault(key, row.run_id) == row.run_id
        states = self.lab.states()
        assert self.known <= states.keys()
        self.known |= states.keys()
        for key, state in states.items():
            if state in DONE:
                assert self.finals.setdefault(key, state) == state
            assert key not in self.finals or self.finals[key] == state
        with closing(connect(self.lab.url)) as db:
            assert db.execute("SELECT count(*) FROM kit_effects").fetchone()[0] == self.effects
        for row in reader.slots():
            assert row.state in DONE or row.fence == self.leaders[-1].fence


def _user_write(url: str, leader: Leader) -> bool:
    """A transaction of the user's own, by hand: work, then the guard, then COMMIT."""
    term = leader.term
    held = {"election": term.election, "fence": term.fence, "nonce": term.nonce}
    work = "UPDATE cron_leader_job SET paused_why = paused_why WHERE job = 'job'"
    if url.startswith("sqlite"):
        with closing(sqlite3.connect(url.removeprefix("sqlite:///"), isolation_level=None)) as db:
            db.execute("BEGIN IMMEDIATE")
            db.execute(work)
            found = db.execute(fencing.SQLITE_GUARD, held).fetchone()
            accepted = found == (term.fence, term.nonce)
            db.execute("COMMIT" if accepted else "ROLLBACK")
            return accepted
    with psycopg.connect(url) as conn:
        conn.execute(work)
        try:
            conn.execute(fencing.POSTGRES_GUARD, held)
        except psycopg.Error as error:
            if error.sqlstate != fencing.REFUSED:
                raise
            conn.rollback()
            return False
        return True


def _kit_write(open_: Opener, final: bool) -> bool:
    """The kit's transaction; whether it committed."""
    try:
        with open_(final=final, isolation="read committed") as db:
            db.execute("INSERT INTO kit_effects VALUES (1)")
    except StaleFence:
        return False
    return True


def _finish(claim: Claim, attempt: int, state: State) -> Finish:
    attempt_state = State.CANCELLED if state is State.DUE else state
    return finish(claim, attempt, state, attempt_state=attempt_state)


async def _play(url: str, actions: list[Any]) -> None:
    async with AsyncExitStack() as stack:
        world = World(Lab(url, stack))
        await world.lab.ledger()  # which is made now, and the user's table in it
        with closing(connect(url)) as db:
            db.execute("DROP TABLE IF EXISTS kit_effects")
            db.execute("CREATE TABLE kit_effects (n integer)")
        for action in [("raise",), *actions]:
            await world.act(action)


@settings(_always, max_examples=20)
@example(OLD_OWNER)
@example(OWN_RUN)
@given(st.lists(ACTIONS, min_size=4, max_size=14))
def test_any_order_of_leaders_keeps_the_promises_on_sqlite(actions: list[Any]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        asyncio.run(_play(f"sqlite:///{folder}/x.db", actions))


@pytest.mark.parametrize("major", MAJORS)
@settings(_always, max_examples=4)
@example(actions=OLD_OWNER)
@example(actions=OWN_RUN)
@given(actions=st.lists(ACTIONS, min_size=4, max_size=12))
def test_any_order_of_leaders_keeps_the_promises_on_postgres(
    servers: dict[int, Postgres],
    major: int,
    actions: list[Any],
) -> None:
    if major not in servers:
        _needed(f"Postgres {major}")
    servers[major].run(EMPTY, database="ready")
    with servers[major].database("ready") as url:
        asyncio.run(_play(url, actions))


def test_a_ledger_without_its_guard_breaks_the_promises(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The canary: the property can fail."""
    monkeypatch.setattr(fencing, "SQLITE_GUARD", "SELECT :fence AS fence, :nonce AS nonce")
    with pytest.raises(AssertionError):
        asyncio.run(_play(f"sqlite:///{tmp_path}/x.db", [("raise",), ("claim", 1, 0, None)]))
