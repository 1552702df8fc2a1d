"""Orders to the jobs: read from what is written, carried out and answered in one transaction."""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace
from datetime import timedelta

import pytest

from cron_leader.core.model import (
    Applied,
    Asked,
    Backfill,
    Claim,
    CommandResult,
    Done,
    DueRow,
    Entry,
    Errand,
    Order,
    Origin,
    Pause,
    Reason,
    Refused,
    Resume,
    SlotKey,
    State,
    Taken,
    Trigger,
)
from cron_leader.ledger.orders import args_of
from cron_leader.ledger.views import CommandRow
from tests.ledger.kit import ELECTION, T0, Killed, Lab, Leader, at, dying_after, settlement, slot

MANUAL = SlotKey("job", at(5), "order-1")
TRIGGER = Errand(
    "order-1",
    CommandResult.TRIGGERED,
    "job",
    slots=(Entry(MANUAL, State.DUE, origin=Origin.MANUAL, next_at=at(6)),),
    anew=True,
)
WAITS = DueRow(MANUAL, 0, Origin.MANUAL, at(6))

ORDERS: tuple[tuple[str, Asked], ...] = (
    ("trigger", Trigger("order-1", "job", T0)),
    ("pause", Pause("order-1", "job", 90.0)),
    ("pause", Pause("order-1", None)),
    ("resume", Resume("order-1", "job")),
    ("resume", Resume("order-1", None)),
    ("backfill", Backfill("order-1", "job", T0, at(60), 2.5)),
)


def written(kind: str, args: str) -> CommandRow:
    return CommandRow("order-1", kind, ELECTION, args, "op@host", "rest", T0)


async def brought(leader: Leader) -> tuple[Order | Asked, ...]:
    answer = await leader.ledger.heartbeat(leader.term, at(1), at(1))
    assert isinstance(answer, Applied)
    return answer.orders


async def carry_out(leader: Leader, errand: Errand, seconds: float = 6) -> Done | Refused:
    return await leader.ledger.carry_out(leader.term, errand, at(seconds))


def given(lab: Lab, asked: Asked) -> CommandRow:
    kind = type(asked).__name__.lower()
    return lab.give(written(kind, args_of(asked)))


# ------------------------------------------------------------------ read


@pytest.mark.parametrize(("kind", "asked"), ORDERS, ids=str)
async def test_an_order_is_read_as_it_was_written(lab: Lab, kind: str, asked: Asked) -> None:
    leader = await lab.leader(past=settlement())
    lab.give(written(kind, args_of(asked)))
    assert await brought(leader) == (asked,)


@pytest.mark.parametrize(
    ("kind", "args"),
    [
        ("trigger", {}),
        ("trigger", {"job": 5}),
        ("pause", {"job": "job"}),
        ("pause", {"job": "job", "for_s": 0}),
        ("pause", {"job": "job", "for_s": -1}),
        ("pause", {"job": "job", "for_s": 1e12}),
        ("resume", {}),
        ("backfill", {"job": "job", "first": "today", "until": "2026-12-02", "rate": 1}),
        ("backfill", {"job": "job", "first": "2026-12-01", "until": "2026-12-02", "rate": 1}),
        ("backfill", {"job": "job", "rate": 1}),
        ("backfill", {"job": "job", "first": T0.isoformat(), "until": 5, "rate": 1}),
        ("backfill", {"job": "job", "first": T0.isoformat(), "until": T0.isoformat(), "rate": 0}),
    ],
    ids=str,
)
async def test_an_order_that_cannot_be_read_is_brought_as_such(
    lab: Lab, kind: str, args: object
) -> None:
    leader = await lab.leader(past=settlement())
    lab.give(written(kind, json.dumps(args)))
    assert await brought(leader) == (Order("order-1", None),)


RUNS = {"trigger", "backfill"}


@pytest.mark.parametrize(("kind", "asked"), ORDERS, ids=str)
@pytest.mark.parametrize(("skip", "sweep"), [(True, True), (True, False), (False, True)])
async def test_in_a_ledger_that_went_back_an_order_that_may_have_run_is_answered_not_carried_out(
    lab: Lab, kind: str, asked: Asked, *, skip: bool, sweep: bool
) -> None:
    lab.give(written(kind, args_of(asked)))
    leader = await lab.leader(past=replace(settlement(), skip=skip, sweep=sweep))
    dropped = skip and kind in RUNS
    assert await brought(leader) == (() if dropped else (asked,))
    (command,) = lab.read().commands()
    assert command.result == (CommandResult.ROLLBACK if dropped else None)


# ------------------------------------------------------------------ trigger


async def test_a_trigger_writes_a_row_of_its_own_and_its_answer_and_a_resend_says_the_same(
    lab: Lab,
) -> None:
    leader = await lab.leader(past=settlement())
    given(lab, Trigger("order-1", "job", at(5)))
    for _ in range(2):
        assert await carry_out(leader, TRIGGER) == Done(True, (WAITS,))
    row, (command,) = lab.slot(MANUAL), lab.read().commands()
    assert row is not None
    assert (row.state, row.origin, row.attempt, row.fence) == ("due", "manual", 0, leader.fence)
    assert (command.result, command.done_by_fence) == ("triggered", leader.fence)
    assert await brought(leader) == ()


async def test_an_order_carried_out_by_one_leader_is_left_alone_by_the_next(lab: Lab) -> None:
    old = await lab.leader(past=settlement())
    given(lab, Trigger("order-1", "job", at(5)))
    await carry_out(old, TRIGGER)
    await old.take(Claim(MANUAL, "run-1", 0))
    new = await lab.leader("b", past=settlement())
    assert await carry_out(new, TRIGGER) == Done(False)
    assert {s.command_id: s.state for s in lab.read().slots()} == {"order-1": "abandoned"}


async def test_what_a_dead_leader_was_asked_for_waits_with_its_successor(lab: Lab) -> None:
    old = await lab.leader(past=settlement())
    given(lab, Trigger("order-1", "job", at(5)))
    await carry_out(old, TRIGGER)
    new = await lab.leader("b")
    assert await new.settle(settlement()) == (WAITS,)


async def test_a_deposed_leader_carries_out_nothing_and_the_next_one_does(lab: Lab) -> None:
    old = await lab.leader(past=settlement())
    given(lab, Trigger("order-1", "job", at(5)))
    new = await lab.leader("b", past=settlement())
    assert await carry_out(old, TRIGGER) == Refused("command", new.fence)
    assert lab.read().slots() == ()
    assert await carry_out(new, TRIGGER) == Done(True, (WAITS,))


async def test_an_errand_cut_at_any_statement_is_nothing_or_whole(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    leader = await lab.leader(past=settlement())
    row, killed = given(lab, Trigger("order-1", "job", at(5))), 0
    while True:
        with dying_after(killed, monkeypatch):
            try:
                done = await carry_out(leader, TRIGGER)
                break
            except Killed:
                killed += 1
        assert (lab.read().commands(), lab.read().slots()) == ((row,), ())
    assert killed >= 3
    assert done == Done(True, (WAITS,))


async def test_an_order_that_nobody_wrote_is_not_carried_out(lab: Lab) -> None:
    leader = await lab.leader(past=settlement())
    assert await carry_out(leader, TRIGGER) == Done(False)
    pause = Errand("order-1", CommandResult.PAUSED, None, at(60))
    assert await carry_out(leader, pause) == Done(False)
    assert lab.read().slots() == ()
    assert lab.read().jobs()[0].paused_until is None


async def test_two_copies_at_once_are_one(lab: Lab) -> None:
    leader = await lab.leader(past=settlement())
    twin = Leader(await lab.ledger(), leader.candidate)
    given(lab, Trigger("order-1", "job", at(5)))
    answers = await asyncio.gather(carry_out(leader, TRIGGER), carry_out(twin, TRIGGER))
    assert answers == [Done(True, (WAITS,))] * 2
    assert len(lab.read().slots()) == 1


# ------------------------------------------------------------------ pause and resume


async def paused(lab: Lab, leader: Leader, job: str | None = "job") -> None:
    """From 6 s to 60 s."""
    given(lab, Pause("order-1", job, 54))
    errand = Errand("order-1", CommandResult.PAUSED, job, at(60))
    assert await carry_out(leader, errand) == Done(True)


@pytest.mark.parametrize("job", ["job", None])
async def test_a_pause_says_until_when_and_why_and_a_resume_ends_it(
    lab: Lab, job: str | None
) -> None:
    leader = await lab.leader(past=settlement())
    await paused(lab, leader, job)
    (row,) = lab.read().jobs()
    assert (row.paused_from, row.paused_until, row.paused_why) == (at(6), at(60), "rest")
    lab.give(CommandRow("order-2", "resume", ELECTION, "{}", "op@host", None, T0))
    assert await carry_out(
        leader, Errand("order-2", CommandResult.RESUMED, job, at(30)), 30
    ) == Done(True)
    (row,) = lab.read().jobs()
    assert (row.paused_from, row.paused_until) == (at(6), at(30))


async def test_a_new_leader_is_told_when_a_job_was_paused(lab: Lab) -> None:
    leader = await lab.leader(past=settlement())
    await paused(lab, leader)
    successor = await lab.leader("b")
    record = (await successor.ledger.read_past(successor.term)).jobs["job"]
    assert (record.paused_from, record.paused_until) == (at(6), at(60))


async def test_a_pause_of_another_job_is_none_of_this_one(lab: Lab) -> None:
    leader = await lab.leader(past=settlement())
    await paused(lab, leader, "other")
    assert lab.read().jobs()[0].paused_until is None


async def test_a_pause_on_top_of_a_pause_goes_on_from_its_beginning(lab: Lab) -> None:
    leader = await lab.leader(past=settlement())
    await paused(lab, leader)
    lab.give(CommandRow("order-2", "pause", ELECTION, "{}", "op@host", "more", T0))
    await carry_out(leader, Errand("order-2", CommandResult.PAUSED, "job", at(90)), 30)
    (row,) = lab.read().jobs()
    assert (row.paused_from, row.paused_until, row.paused_why) == (at(6), at(90), "more")


async def test_a_late_copy_of_a_pause_does_not_undo_its_resume(lab: Lab) -> None:
    leader = await lab.leader(past=settlement())
    await paused(lab, leader)
    lab.give(CommandRow("order-2", "resume", ELECTION, "{}", "op@host", None, T0))
    await carry_out(leader, Errand("order-2", CommandResult.RESUMED, "job", at(30)), 30)
    late = Errand("order-1", CommandResult.PAUSED, "job", at(60))
    assert await carry_out(leader, late) == Done(True)
    assert lab.read().jobs()[0].paused_until == at(30)


@pytest.mark.parametrize("seen", [None, 0])
@pytest.mark.parametrize("seconds", [6, 59, 60])
async def test_a_slot_of_the_pause_is_never_caught_up_and_one_after_it_runs(
    lab: Lab, seen: int | None, seconds: int
) -> None:
    key = slot(seconds)
    due = () if seen is None else (Entry(key, State.DUE),)
    leader = await lab.leader(past=settlement(entries=due))
    await paused(lab, leader)
    taken = await leader.take(Claim(key, "run-1", seen), now=at(61))
    row = lab.slot(key)
    assert row is not None
    if seconds == 60:
        assert taken == Taken({"run-1": 1})
    else:
        assert taken == Taken({}, frozenset({"run-1"}))
        assert (row.state, row.reason) == ("skipped", "paused")


async def test_an_operators_word_runs_though_the_job_is_paused(lab: Lab) -> None:
    leader = await lab.leader(past=settlement())
    await paused(lab, leader)
    lab.give(CommandRow("order-2", "trigger", ELECTION, "{}", "op@host", None, T0))
    key = SlotKey("job", at(7), "order-2")
    entry = Entry(key, State.DUE, origin=Origin.MANUAL, next_at=at(7))
    await carry_out(leader, Errand("order-2", CommandResult.TRIGGERED, "job", slots=(entry,)))
    assert await leader.take(Claim(key, "run-1", 0), now=at(8)) == Taken({"run-1": 1})


# ------------------------------------------------------------------ backfill


def backfill(*seconds: int) -> Errand:
    entries = tuple(
        Entry(
            SlotKey("job", at(s), "order-1"),
            State.DUE,
            origin=Origin.MANUAL,
            next_at=T0 + timedelta(minutes=s),
        )
        for s in seconds
    )
    return Errand("order-1", CommandResult.BACKFILLING, "job", slots=entries)


async def test_a_backfill_runs_what_never_ran_and_leaves_alone_what_did(lab: Lab) -> None:
    past = settlement(
        entries=(
            Entry(slot(1), State.MISSED, Reason.COALESCED),
            Entry(slot(2), State.SKIPPED, Reason.OVERLAP),
            Entry(slot(3), State.DUE),
        )
    )
    leader = await lab.leader(past=past)
    await leader.take(Claim(slot(4), "run-1"))
    given(lab, Backfill("order-1", "job", at(1), at(6), 1))
    done = await carry_out(leader, backfill(1, 2, 3, 4, 5))
    assert isinstance(done, Done)
    assert [row.slot.scheduled_for for row in done.rows] == [at(1), at(2), at(5)]
    row = lab.slot(slot(1))
    assert row is not None
    assert (row.state, row.reason) == ("missed", "coalesced")


async def test_a_second_backfill_finds_what_the_first_has_written(lab: Lab) -> None:
    leader = await lab.leader(past=settlement())
    given(lab, Backfill("order-1", "job", at(1), at(2), 1))
    await carry_out(leader, backfill(1))
    lab.give(CommandRow("order-2", "backfill", ELECTION, "{}", "op@host", None, T0))
    entry = Entry(SlotKey("job", at(1), "order-2"), State.DUE, origin=Origin.MANUAL)
    again = Errand("order-2", CommandResult.BACKFILLING, "job", slots=(entry,))
    assert await carry_out(leader, again) == Done(True)


async def test_an_order_without_slots_is_answered_all_the_same(lab: Lab) -> None:
    leader = await lab.leader(past=settlement())
    given(lab, Backfill("order-1", "job", at(1), at(2), 1))
    for _ in range(2):
        assert await carry_out(leader, Errand("order-1", CommandResult.NO_SUCH_JOB)) == Done(True)
    assert lab.read().commands()[0].result == "no such job"
