"""Several leaders of one ledger at once: what an old one sends late, and what refuses it."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Awaitable, Callable
from typing import cast
from unittest.mock import ANY

import psycopg
import pytest

from cron_leader import fencing
from cron_leader.clock import SystemClock
from cron_leader.core import messages as m
from cron_leader.core.model import (
    Applied,
    Claim,
    CommandResult,
    DueRow,
    Entry,
    Origin,
    Refused,
    Run,
    State,
    Taken,
)
from cron_leader.errors import LedgerUnusable
from cron_leader.ledger import open_ledger, postgres
from cron_leader.scribe import Scribe
from tests.etcd_kit import Emitted, Recorder
from tests.ledger.kit import (
    ELECTION,
    T0,
    Door,
    Killed,
    Lab,
    Leader,
    at,
    cut_once,
    dying_after,
    finish,
    nothing,
    order,
    settlement,
    slot,
    soon,
    until_blocked,
)

RUN = Claim(slot(), "run-1")
WAITING = Claim(slot(5), "run-5", seen=0)
PAST = settlement(entries=(Entry(slot(5), State.DUE),))
ORDER = order(100)

Send = Callable[[Leader], Awaitable[object]]
WRITES: dict[str, Send] = {
    "claim": lambda old: old.take(Claim(slot(9), "late"), WAITING, to=at(99)),
    "finish": lambda old: old.finish(RUN),
    "put_back": lambda old: old.put_back(RUN),
    "heartbeat": lambda old: old.ledger.heartbeat(old.term, at(99), at(99)),
    "command": lambda old: old.ledger.answer_order(
        old.term, ORDER.id, CommandResult.STEPPING_DOWN, at(99)
    ),
    "settle": lambda old: old.settle(settlement(entries=(Entry(slot(9), State.DUE),))),
    "close_term": lambda old: old.ledger.close_term(old.term, "late", at(99)),
}


def everything(lab: Lab) -> object:
    reader = lab.read()
    return (
        *(reader.slots(), reader.attempts(), reader.terms(), reader.gaps(), reader.jobs()),
        reader.commands(),
    )


# ------------------------------------------------------------------ after the raise


@pytest.mark.parametrize("what", WRITES)
async def test_no_write_of_an_older_term_commits_after_a_raise(lab: Lab, what: str) -> None:
    old = await lab.leader("a", PAST)
    await old.take(RUN)
    lab.give(ORDER)
    new = await lab.leader("b")
    before = everything(lab)
    answer = await WRITES[what](old)
    assert answer == Refused(what, new.fence)
    assert everything(lab) == before
    (refusal,) = lab.read().refusals()
    assert (refusal.what, refusal.fence, refusal.high, refusal.node) == (
        what, old.fence, new.fence, "a",
    )  # fmt: skip
    assert refusal.outcome == ("succeeded" if what == "finish" else None)


@pytest.mark.parametrize("what", WRITES)
async def test_without_the_guard_the_same_write_commits(
    lab: Lab, what: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The canary: it is the guard that refuses, nothing else."""
    old = await lab.leader("a", PAST)
    await old.take(RUN)
    lab.give(ORDER)
    new = await lab.leader("b")
    before = everything(lab)
    monkeypatch.setattr(fencing, "SQLITE_GUARD", "SELECT :fence AS fence, :nonce AS nonce")
    monkeypatch.setattr(fencing, "POSTGRES_GUARD", "SELECT clock_timestamp() AS ledger_now")
    answer = await WRITES[what](old.step_by_step())
    assert answer != Refused(what, new.fence)
    assert what == "settle" or everything(lab) != before


async def test_a_term_of_the_same_fence_with_another_nonce_is_refused(lab: Lab) -> None:
    leader = await lab.leader("a", settlement())
    c = leader.candidate
    leader.candidate = type(c)(ELECTION, "restored", c.node, c.lease, c.revision, c.cluster)
    assert await leader.take(RUN) == Refused("claim", leader.fence)


async def test_elections_do_not_refuse_each_other(lab: Lab) -> None:
    leader = await lab.leader("a", settlement())
    other = lab.candidate("b")
    other = type(other)("default/1", "n", "b", 1, other.revision + 50, other.cluster)
    await leader.ledger.raise_fence(other, T0, waiting=nothing)
    assert await leader.take(RUN) == Taken({"run-1": 1})


async def test_concurrent_copies_of_one_claim_are_one_run(lab: Lab) -> None:
    leader = await lab.leader("a", settlement())
    answers = await soon(asyncio.gather(*(leader.take(RUN) for _ in range(6))))
    assert answers == [Taken({"run-1": 1})] * 6
    assert len(lab.read().attempts()) == 1


async def test_concurrent_copies_of_one_settlement_are_one(lab: Lab) -> None:
    leader = await lab.leader("a")
    answers = await soon(asyncio.gather(*(leader.settle(PAST) for _ in range(4))))
    assert answers == [(DueRow(slot(5), 0, Origin.SCHEDULE, None),)] * 4


async def test_only_the_own_term_row_makes_a_settlement_a_copy(lab: Lab) -> None:
    """Any other constraint is an error, and nothing is written."""
    leader = await lab.leader("a")
    nameless = Entry(slot(job=cast(str, None)), State.DUE)
    with pytest.raises(LedgerUnusable):
        await leader.settle(settlement(entries=(nameless,)))
    assert lab.read().terms() == ()


# ------------------------------------------------------------------ overlapping transactions

DUE = tuple(Entry(slot(n), State.DUE, next_at=T0) for n in (3, 4))
CLAIMS = [Claim(entry.slot, f"run-{entry.slot.scheduled_for}", 0) for entry in DUE]


async def leave(*_: object, **__: object) -> None:
    """End nobody."""


async def test_a_write_waiting_before_its_guard_is_refused_by_the_raise_that_passes_it(
    pglab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The stale insert of a slot nobody wrote: no row of it exists that could refuse."""
    old, door = (await pglab.leader("a", settlement())).step_by_step(), Door()
    with monkeypatch.context() as patched:
        patched.setattr(postgres, "_transact", door.transact)
        late = asyncio.create_task(old.take(RUN))
        await soon(door.reached.wait())
    new = await pglab.leader("b")
    settling = asyncio.create_task(new.settle(settlement()))
    door.opened.set()
    assert await soon(late) == Refused("claim", new.fence)
    assert await soon(settling) == ()
    assert pglab.states() == {}


HOLDS = {
    "finish": "UPDATE cron_leader_attempt SET",
    "claim": "UPDATE cron_leader_term SET planned_to",
}
"""A write of the older term that holds slots, and what it wants next."""


@pytest.mark.parametrize("holds", HOLDS)
async def test_a_takeover_and_a_late_write_of_the_older_term_never_wait_for_each_other(
    pglab: Lab, monkeypatch: pytest.MonkeyPatch, holds: str
) -> None:
    """Each stepped by hand to where the other's rows are next: they lock in one order, so there is
    no deadlock for Postgres to find, a second later. Nobody is ended here who waits."""
    old, door = await pglab.leader("a", settlement(entries=DUE)), Door(HOLDS[holds])
    await old.take(RUN)
    late = old.finish(RUN) if holds == "finish" else old.take(*CLAIMS, to=at(9))
    with monkeypatch.context() as patched:
        patched.setattr(postgres, "_transact", door.transact)
        writing = asyncio.create_task(late)
        await soon(door.reached.wait())
    new = await pglab.leader("b")
    monkeypatch.setattr(postgres.PostgresLedger, "_end_older", leave)
    settling = asyncio.create_task(new.settle(settlement()))
    await until_blocked(pglab.url, beside=settling)
    door.opened.set()
    ends = await soon(asyncio.gather(writing, settling, return_exceptions=True))
    assert [type(end) for end in ends] == [Refused, tuple], ends
    assert pglab.states()[RUN.slot] == "abandoned"


async def test_a_claim_that_has_written_is_refused_by_the_raise_that_its_guard_waits_for(
    pglab: Lab,
) -> None:
    """The claim is one statement: it is stopped in the middle by the lock that a raise holds."""
    old = await pglab.leader("a", settlement())
    async with await psycopg.AsyncConnection.connect(pglab.url) as raising:
        await raising.execute(fencing.POSTGRES_EXCLUSIVE, (ELECTION,))
        late = asyncio.create_task(old.take(RUN, to=at(9)))
        await until_blocked(pglab.url, beside=late)
        await raising.execute("UPDATE cron_leader_fence SET fence = fence + 1, nonce = 'newer'")
        await raising.commit()
    assert await soon(late) == Refused("claim", old.fence + 1)
    assert pglab.states() == {}
    assert [term.planned_to for term in pglab.read().terms()] == [T0]


async def test_claims_are_read_committed_whatever_the_databases_default(pglab: Lab) -> None:
    """At another isolation a heartbeat between two looks at the term's row would fail them."""
    leader = await pglab.leader("a", settlement())
    serializable = "options=-c%20default_transaction_isolation%3Dserializable"
    same = Leader(open_ledger(f"{pglab.url}?{serializable}"), leader.candidate)
    claims = [Claim(slot(number), f"run-{number}") for number in range(2)]
    taken = [await same.take(claim) for claim in claims]
    newer = await pglab.leader("b")
    assert await same.take(RUN) == Refused("claim", newer.fence)
    await same.ledger.close()
    assert taken == [Taken({claim.run_id: 1}) for claim in claims]


@pytest.mark.parametrize("where", ["url", "environment"])
async def test_a_claim_is_utf8_whatever_the_client_encoding(
    pglab: Lab, where: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    leader = await pglab.leader("a", settlement())
    if where == "environment":
        monkeypatch.setenv("PGCLIENTENCODING", "latin1")
    url = pglab.url if where == "environment" else f"{pglab.url}?client_encoding=latin1"
    same = Leader(open_ledger(url), leader.candidate)
    claims = [Claim(slot(job=name), f"run-{name}") for name in ("jöb", "日次")]
    taken = await same.take(*claims)
    await same.ledger.close()
    assert taken == Taken({claim.run_id: 1 for claim in claims})
    monkeypatch.undo()
    assert pglab.states() == {claim.slot: "running" for claim in claims}


async def test_times_are_read_whatever_the_roles_datestyle(pglab: Lab) -> None:
    pglab.url += "?options=-c%20datestyle%3DGerman"
    leader = await pglab.leader("a", settlement())
    assert await leader.take(RUN) == Taken({RUN.run_id: 1})
    assert isinstance(await leader.ledger.heartbeat(leader.term, at(1), at(1)), Applied)
    assert (await leader.ledger.look_back(ELECTION)).planned_to == at(1)
    assert [term.planned_to for term in pglab.read().terms()] == [at(1)]


async def test_a_claim_outlasts_a_statement_timeout_that_its_role_has(pglab: Lab) -> None:
    leader = await pglab.leader("a", settlement())
    hasty = "options=-c%20statement_timeout%3D300"
    same = Leader(open_ledger(f"{pglab.url}?{hasty}"), leader.candidate)
    async with await psycopg.AsyncConnection.connect(pglab.url) as held:
        await held.execute(fencing.POSTGRES_EXCLUSIVE, (ELECTION,))
        claiming = asyncio.create_task(same.take(RUN))
        await until_blocked(pglab.url, for_ms=350, beside=claiming)
        await held.rollback()
    taken = await soon(claiming)
    await same.ledger.close()
    assert taken == Taken({RUN.run_id: 1})


async def test_a_raise_waits_for_a_write_past_its_guard_and_says_so(pglab: Lab) -> None:
    old = await pglab.leader("a", settlement())
    said = asyncio.Event()
    c = pglab.candidate("b")
    ledger = await pglab.ledger()
    async with await psycopg.AsyncConnection.connect(pglab.url) as held:
        guard = "SELECT cron_leader_guard(%s, %s, %s)"
        await held.execute(guard, (ELECTION, old.fence, old.candidate.nonce))
        raising = asyncio.create_task(ledger.raise_fence(c, T0, waiting=said.set))
        await soon(said.wait())
        assert not raising.done()
        await held.commit()
    assert await soon(raising) == c.revision


async def test_an_attempt_that_a_frozen_run_holds_does_not_hold_up_the_heartbeat(
    pglab: Lab,
) -> None:
    """tick.transaction() locks the row of its attempt, and may be frozen before its COMMIT."""
    leader = await pglab.leader("a", settlement())
    claims = [Claim(slot(n), f"run-{n}", None) for n in range(2)]
    await leader.take(*claims)
    runs = [Run(c.run_id, c.slot, 1, leader.term, ANY) for c in claims]
    with psycopg.connect(pglab.url) as held:
        held.execute("UPDATE cron_leader_attempt SET error = 'x' WHERE run_id = 'run-0'")
        beat = leader.ledger.heartbeat(leader.term, at(3), at(9), runs=runs)
        assert await soon(beat) == Applied(ledger_now=ANY)
        held.rollback()
    beats = {a.run_id: a.heartbeat_at for a in pglab.read().attempts()}
    assert beats == {"run-0": None, "run-1": at(9)}


async def test_a_guard_holds_the_fence_row_and_the_lock_of_its_election(pglab: Lab) -> None:
    """The row against anybody's UPDATE; the advisory lock against starving the raise."""
    old = await pglab.leader("a", settlement())
    with psycopg.connect(pglab.url) as held, psycopg.connect(pglab.url, autocommit=True) as other:
        guard = "SELECT cron_leader_guard(%s, %s, %s)"
        held.execute(guard, (ELECTION, old.fence, old.candidate.nonce))
        other.execute("SET lock_timeout = '50ms'")
        with pytest.raises(psycopg.errors.LockNotAvailable):
            other.execute("UPDATE cron_leader_fence SET fence = fence + 1")
        with pytest.raises(psycopg.errors.LockNotAvailable):
            other.execute(fencing.POSTGRES_EXCLUSIVE, (ELECTION,))


async def test_a_raise_on_sqlite_waits_for_the_write_lock_and_says_so(
    lab: Lab,
) -> None:
    if not lab.is_sqlite:
        return
    said = asyncio.Event()
    c = lab.candidate("b")
    ledger = await lab.ledger()
    held = sqlite3.connect(lab.url.removeprefix("sqlite:///"), isolation_level=None)
    held.execute("BEGIN IMMEDIATE")
    raising = asyncio.create_task(ledger.raise_fence(c, T0, waiting=said.set))
    await soon(said.wait())
    assert not raising.done()
    held.execute("COMMIT")
    held.close()
    assert await soon(raising) == c.revision


async def test_a_raise_that_is_given_up_leaves_the_ledger_usable(pglab: Lab) -> None:
    old = await pglab.leader("a", settlement())
    said = asyncio.Event()
    ledger = await pglab.ledger()
    async with await psycopg.AsyncConnection.connect(pglab.url) as held:
        guard = "SELECT cron_leader_guard(%s, %s, %s)"
        await held.execute(guard, (ELECTION, old.fence, old.candidate.nonce))
        candidate = pglab.candidate("b")
        raising = asyncio.create_task(ledger.raise_fence(candidate, T0, waiting=said.set))
        await soon(said.wait())
        raising.cancel()
        with pytest.raises(asyncio.CancelledError):
            await raising
        assert (await ledger.identity()).fleet == "default"


# ------------------------------------------------------------------ dying in mid-transaction


async def test_a_leader_killed_at_any_statement_of_its_settlement_loses_and_doubles_nothing(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    past = settlement(
        entries=(Entry(slot(20), State.DUE), Entry(slot(21), State.MISSED)),
        retired=("gone",),
        again=("again",),
    )
    old = await lab.leader("a", settlement(jobs=("job", "again", "gone")))
    await old.take(RUN, Claim(slot(1, "again"), "run-2"))
    await old.take(entries=(Entry(slot(2), State.DUE),))
    before, killed = lab.states(), 0
    while True:
        leader = await lab.leader(f"n{killed}")
        with dying_after(killed, monkeypatch):
            try:
                waiting = await leader.settle(past)
                break
            except Killed:
                killed += 1
        assert lab.states() == before, f"after {killed} statements something has committed"
    assert killed >= 8
    assert isinstance(waiting, tuple)
    assert {row.slot for row in waiting} == {slot(1, "again"), slot(2), slot(20)}
    assert lab.states() == {
        slot(): "abandoned", slot(1, "again"): "due", slot(2): "due",
        slot(20): "due", slot(21): "missed",
    }  # fmt: skip
    assert len(lab.read().terms()) == 2


@pytest.mark.parametrize("what", ["claim", "finish", "put_back"])
async def test_a_write_cut_at_any_statement_is_whole_when_sent_again(
    lab: Lab, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    leader = await lab.leader("a", PAST)
    await leader.take(RUN)
    before, killed = everything(lab), 0
    while True:
        with dying_after(killed, monkeypatch):
            try:
                answer = await WRITES[what](leader)
                break
            except Killed:
                killed += 1
        assert everything(lab) == before
    assert killed >= 3
    assert not isinstance(answer, Refused)
    after = everything(lab)
    assert after != before
    assert await WRITES[what](leader) == answer or what != "claim"
    assert everything(lab) == after


# ------------------------------------------------------------------ what a takeover goes by


async def in_line(lab: Lab) -> Leader:
    """A successor that has made ready, and has not raised."""
    successor = Leader(await lab.ledger(), lab.candidate("b"))
    await successor.ledger.rehearse(ELECTION)
    return successor


async def test_a_slot_taken_while_the_successor_stood_in_line_is_swept(lab: Lab) -> None:
    old = await lab.leader(past=settlement())
    await old.take(Claim(slot(), "before"))
    successor = await in_line(lab)
    await old.take(Claim(slot(1), "since"))
    await successor.rise()
    await successor.settle(settlement(now=at(60)))
    assert lab.states() == {slot(): "abandoned", slot(1): "abandoned"}


async def test_a_slot_that_ended_while_the_successor_stood_in_line_is_not_run_again(
    lab: Lab,
) -> None:
    old = await lab.leader(past=settlement())
    await old.take(Claim(slot(), "run"))
    successor = await in_line(lab)
    await old.finish(Claim(slot(), "run"))
    await successor.rise()
    assert await successor.settle(settlement(now=at(60), again=("job",))) == ()
    assert lab.states() == {slot(): "succeeded"}


async def test_an_abandoned_attempt_ended_when_it_was_last_seen_alive(lab: Lab) -> None:
    old = await lab.leader(past=settlement())
    seen, unseen = Claim(slot(), "seen"), Claim(slot(1), "unseen")
    await old.take(seen, unseen)
    flying = Run("seen", seen.slot, 1, old.term, ANY)
    await old.ledger.heartbeat(old.term, at(3), at(3), runs=(flying,))
    await (await lab.leader("b")).settle(settlement(now=at(60)))
    ended = {a.run_id: (a.state, a.finished_at) for a in lab.read().attempts()}
    assert ended == {"seen": ("abandoned", at(3)), "unseen": ("abandoned", T0)}


# ------------------------------------------------------------------ a COMMIT cut off


@pytest.mark.parametrize("arrives", [False, True], ids=["ahead-of-it", "ahead-of-its-answer"])
async def test_a_finish_whose_commit_was_cut_off_is_sent_again_until_it_stands(
    pglab: Lab, arrives: bool
) -> None:
    old = await pglab.leader(past=settlement())
    await old.take(RUN)
    async with cut_once(pglab.url, arrives=arrives) as url:
        ledger, posted, emit = open_ledger(url), Recorder(), Emitted()
        try:
            scribe = Scribe(ledger, post=posted, clock=SystemClock(), emit=emit)
            await soon(scribe.perform(m.WriteFinish(old.term, finish(RUN), once=False)))
        finally:
            await ledger.close()
    (answered,) = posted.of(m.FinishAnswered)
    assert isinstance(answered.answer, Applied)
    assert answered.answer.changed
    assert pglab.states() == {RUN.slot: "succeeded"}
    assert "ledger.uncertain" in emit.names()
    assert [a.state for a in pglab.read().attempts()] == ["succeeded"]
