"""Orders to the jobs: decided once, carried out one at a time, and never too old to run."""

from __future__ import annotations

from datetime import timedelta

import pytest

from cron_leader.core import messages as m
from cron_leader.core.model import (
    Applied,
    Asked,
    Backfill,
    Claim,
    CommandResult,
    Done,
    DueRow,
    Errand,
    Origin,
    Past,
    Pause,
    Refused,
    Resume,
    SlotKey,
    Taken,
    Trigger,
)
from cron_leader.core.orders import MOST_KNOWN, MOST_SLOTS, UNTIL_RESUMED, Desk, errand_of
from cron_leader.core.schedule import At
from cron_leader.core.standing import EndReason
from tests.core.driver import T0, Driver, job

NOW = T0 + timedelta(minutes=10)
JOBS = {"beat": job("beat", 60), "late": job("late", schedule=At(T0))}


def trigger(number: int = 1, name: str = "beat") -> Trigger:
    return Trigger(f"c{number}", name, T0 + timedelta(milliseconds=number))


def errand(order: Asked) -> Errand:
    return errand_of(order, JOBS, NOW, NOW)


def row(order: Trigger) -> DueRow:
    return DueRow(SlotKey(order.job, order.at, order.command_id), 0, Origin.MANUAL, T0)


def read(d: Driver, order: Asked) -> Driver:
    d.step(m.Ordered(d.nonce, order))
    return d


def done(d: Driver, order: Asked, *rows: DueRow, changed: bool = True) -> Driver:
    d.step(m.ErrandDone(d.nonce, order.command_id, Done(changed, rows)))
    return d


# ------------------------------------------------------------------ the errand


def test_a_trigger_is_one_slot_of_the_time_it_was_asked_for_and_due_now() -> None:
    told = errand(trigger())
    (slot,) = told.slots
    assert (told.result, told.anew) == (CommandResult.TRIGGERED, True)
    assert slot.slot == SlotKey("beat", trigger().at, "c1")
    assert (slot.next_at, slot.origin) == (NOW, Origin.MANUAL)


def test_a_pause_ends_when_it_says_or_when_it_is_resumed() -> None:
    assert errand(Pause("c", "beat", 60)).paused_until == NOW + timedelta(minutes=1)
    assert errand(Pause("c", None)) == Errand("c", CommandResult.PAUSED, None, UNTIL_RESUMED)
    assert errand(Resume("c", "beat")) == Errand("c", CommandResult.RESUMED, "beat", NOW)


def test_a_backfill_takes_the_slots_from_its_first_instant_to_before_its_last_at_its_pace() -> None:
    told = errand(Backfill("c", "beat", T0, T0 + timedelta(minutes=3), 2))
    assert [(e.slot.scheduled_for - T0, e.next_at) for e in told.slots] == [
        (timedelta(minutes=n), NOW + timedelta(seconds=n / 2)) for n in range(3)
    ]
    assert not told.anew


def test_a_backfill_leaves_to_the_schedule_what_is_not_in_the_ledger_yet() -> None:
    order = Backfill("c", "beat", T0, NOW + timedelta(days=1), 1)
    told = errand_of(order, JOBS, NOW, NOW - timedelta(minutes=1))
    assert told.slots[-1].slot.scheduled_for == NOW - timedelta(minutes=1)


def test_a_backfill_of_a_schedule_that_has_ended_is_what_there_was() -> None:
    told = errand(Backfill("c", "late", T0 - timedelta(days=1), NOW, 1))
    assert [e.slot.scheduled_for for e in told.slots] == [T0]


@pytest.mark.parametrize(("more", "refused"), [(0, False), (1, True)])
def test_a_backfill_of_too_many_slots_is_refused(more: int, refused: bool) -> None:
    first = NOW - timedelta(minutes=MOST_SLOTS + more)
    told = errand(Backfill("c", "beat", first, NOW, 1))
    assert (told.result is CommandResult.TOO_MANY) == refused
    assert len(told.slots) == (0 if refused else MOST_SLOTS)


@pytest.mark.parametrize(
    "order",
    [trigger(name="x"), Pause("c1", "x"), Resume("c1", "x"), Backfill("c1", "x", T0, NOW, 1)],
    ids=str,
)
def test_an_order_to_a_job_that_is_not_there_is_told_so(order: Asked) -> None:
    assert errand(order) == Errand("c1", CommandResult.NO_SUCH_JOB)


def test_a_desk_remembers_so_many_orders_and_no_more() -> None:
    desk = Desk()
    for number in range(MOST_KNOWN + 1):
        order = trigger(number)
        assert desk.put(order)
        assert desk.next() is order
        desk.done(order.command_id)
    assert desk.put(trigger(1))
    assert desk.next() is None
    desk.put(trigger(0))
    assert desk.next() == trigger(0)


# ------------------------------------------------------------------ the leader


def test_a_triggered_slot_is_claimed_and_run_at_once_in_a_row_of_its_own() -> None:
    d = read(Driver(jobs=[job("beat", 3600)]).lead(), trigger())
    assert d.asked(m.CarryOut).errand.result is CommandResult.TRIGGERED
    done(d, trigger(), row(trigger()))
    (claim,) = d.asked(m.Take).batch.claims
    assert claim == Claim(row(trigger()).slot, claim.run_id, 0)
    d.grant(d.asked(m.Take))
    assert d.asked(m.Prepare).run.slot.command_id == "c1"


def test_orders_are_carried_out_one_at_a_time_and_each_once_however_often_they_come() -> None:
    d = read(Driver().lead(), trigger(1))
    d.asked(m.CarryOut)
    for order in (trigger(1), trigger(2)):
        assert not read(d, order).all(m.CarryOut)
    done(d, trigger(1))
    assert d.asked(m.CarryOut).errand.command_id == "c2"
    assert not read(d, trigger(1)).all(m.CarryOut)
    assert not done(d, trigger(2)).all(m.CarryOut)


def test_an_order_is_not_looked_at_before_the_past_is_settled_or_after_the_term() -> None:
    d = Driver()
    d.settle()
    assert read(d, trigger()).effects == []
    d.step(m.Settled(d.nonce, ()))
    read(d, trigger())
    d.step(m.KeyDeleted(d.nonce))
    assert done(d, trigger(), row(trigger())).effects == []


def test_an_errand_that_is_refused_ends_the_term() -> None:
    d = read(Driver().lead(), trigger())
    d.step(m.ErrandDone(d.nonce, "c1", Refused("command", 9)))
    assert d.told("term.ended")["reason"] == EndReason.REFUSED


def test_the_next_term_carries_out_what_the_last_one_could_not() -> None:
    d = read(Driver().lead(), trigger())
    d.step(m.KeyDeleted(d.nonce))
    d.step(m.Left(d.nonce))
    d.step(m.LedgerReached())
    d.nonce = d.asked(m.Join).nonce
    d.renew()
    d.step(m.WatchOpened(d.nonce))
    d.step(m.Elected(d.nonce, 8, 99))
    d.step(m.Raised(d.nonce, 8))
    d.step(m.PastRead(d.nonce, Past(T0, {})))
    d.step(m.Settled(d.nonce, ()))
    assert read(d, trigger()).asked(m.CarryOut).errand.command_id == "c1"


def test_a_manual_slot_waits_for_the_run_of_its_job_that_goes_on() -> None:
    d = Driver(jobs=[job("beat", 5)]).lead()
    run = d.fly(5)
    read(d, trigger())
    assert not done(d, trigger(), row(trigger())).all(m.Take)
    d.land(run)
    assert [c.slot.command_id for c in d.asked(m.Take).batch.claims] == ["c1"]


def test_a_manual_slot_is_never_too_late() -> None:
    d = read(Driver(jobs=[job("beat", 3600, start_within_s=1)]).lead(), trigger())
    d.after(5)
    done(d, trigger(), row(trigger()))
    assert d.asked(m.Take).batch.claims


def test_a_manual_slot_that_was_put_back_is_manual_still() -> None:
    d = Driver(jobs=[job("beat", 3600, start_within_s=1)]).lead()
    read(d, trigger())
    done(d, trigger(), row(trigger()))
    take = d.asked(m.Take)
    d.step(m.WatchBroken(d.nonce, "silent"))
    (claim,) = take.batch.claims
    d.step(m.BatchAnswered(d.nonce, take.batch, Taken({claim.run_id: 1})))
    d.asked(m.WritePutBack)
    d.step(m.PutBackAnswered(d.nonce, claim.run_id, Applied()))
    d.step(m.WatchOpened(d.nonce))
    d.renew()
    d.after(3)
    assert [c.seen for c in d.asked(m.Take).batch.claims] == [1]


def test_what_is_asked_for_is_paced_by_its_own_time() -> None:
    d = read(Driver(jobs=[job("beat", 3600)]).lead(), trigger())
    slot = SlotKey("beat", T0, "c1")
    done(d, trigger(), DueRow(slot, 0, Origin.MANUAL, T0 + timedelta(seconds=2)))
    assert not d.all(m.Take)
    assert d.node.wake_wall() == T0 + timedelta(seconds=2)


def test_a_slot_that_a_pause_has_skipped_is_told_and_the_next_one_is_claimed() -> None:
    d = Driver().lead()
    d.after(1)
    take = d.asked(m.Take)
    paused = frozenset(claim.run_id for claim in take.batch.claims)
    d.step(m.BatchAnswered(d.nonce, take.batch, Taken({}, paused)))
    assert d.told("slot.skipped") == {
        "job": "beat",
        "scheduled_for": T0 + timedelta(seconds=1),
        "reason": "paused",
    }
    d.after(1)
    assert d.asked(m.Take).batch.claims
