"""What becomes of slots that fall due beside a run of their own job, or in a full node."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Collection
from datetime import timedelta

import pytest

from cron_leader.core import messages as m
from cron_leader.core import waiting
from cron_leader.core.dispatch import Pool
from cron_leader.core.model import (
    Applied,
    Catchup,
    Delivery,
    DueRow,
    Origin,
    Overlap,
    Reason,
    Run,
    SlotKey,
    State,
    WhenFull,
)
from tests.core.course import Course
from tests.core.driver import T0, Driver, job, patient, result
from tests.core.test_dispatch import at, due, states

HOUR = 3600


def beside(**options: object) -> tuple[Driver, Run]:
    """A job of one slot a second whose first run goes, and does not end by itself."""
    d = Driver([job(**options)]).lead()
    return d, d.fly()


def next_slot(d: Driver) -> m.Take:
    d.after(1)
    take = d.asked(m.Take)
    d.renew()
    return take


def slots(take: m.Take) -> list[float]:
    """Of a batch's claims: seconds since T0."""
    return [(c.slot.scheduled_for - T0).total_seconds() for c in take.batch.claims]


def start(d: Driver, take: m.Take) -> list[Run]:
    """Grant a batch, and bring its runs under way."""
    d.grant(take)
    runs = [e.run for e in d.all(m.Prepare)]
    for run in runs:
        d.step(m.Prepared(run.run_id))
        d.step(m.Started(run.run_id, d.wall))
    return runs


# ------------------------------------------------------------------ queue


def test_a_queue_runs_every_slot_one_after_the_other_in_order() -> None:
    d, run = beside(overlap=Overlap.QUEUE)
    for second in (2, 3):
        d.after(1)
        take = d.asked(m.Take)
        assert states(take) == [(second, "due", None)]
        d.grant(take)
    ran = []
    for _ in range(2):
        d.step(m.RunEnded(run.run_id, result()))
        take = d.asked(m.Take)
        ran += slots(take)
        d.record(m.WriteFinish(run.term, d.asked(m.WriteFinish).finish, once=False))
        (run,) = start(d, take)
    assert ran == [2, 3]


def test_a_queue_is_bounded_and_says_what_it_refused() -> None:
    d, _ = beside(overlap=Overlap.QUEUE, queue_limit=1)
    d.grant(next_slot(d))
    take = next_slot(d)
    assert states(take) == [(3, "skipped", "limit")]
    d.grant(take)
    assert d.told("slot.skipped")["reason"] == Reason.LIMIT


def test_a_slot_that_waits_no_longer_leaves_its_room_to_the_next_one() -> None:
    d, run = beside(overlap=Overlap.QUEUE, queue_limit=1)
    for second in (2, 3, 4):
        take = next_slot(d)
        assert states(take) == [(second, "due", None)]
        d.grant(take)
        d.step(m.RunEnded(run.run_id, result()))
        take = d.asked(m.Take)
        assert slots(take) == [second]
        d.record(d.asked(m.WriteFinish))
        (run,) = start(d, take)


def test_what_is_on_its_way_to_the_ledger_counts_as_waiting() -> None:
    d, _ = beside(overlap=Overlap.QUEUE, queue_limit=1)
    assert states(next_slot(d)) == [(2, "due", None)]  # not answered yet
    assert states(next_slot(d)) == [(3, "skipped", "limit")]


def test_a_new_slot_of_a_queue_does_not_overtake_one_that_waits() -> None:
    d = Driver([job(overlap=Overlap.QUEUE)])
    d.lead(rows=(DueRow(SlotKey("beat", T0), 1, Origin.SCHEDULE, at(1.5)),))
    assert states(next_slot(d)) == [(1, "due", None)]


def test_a_queue_may_have_several_runs_at_once() -> None:
    d, _ = beside(overlap=Overlap.QUEUE, max_parallel=2)
    take = next_slot(d)
    assert slots(take) == [2]
    start(d, take)
    assert states(next_slot(d)) == [(3, "due", None)]


# ------------------------------------------------------------------ allow


def test_allow_starts_a_slot_beside_the_previous_run() -> None:
    d, _ = beside(overlap=Overlap.ALLOW)
    assert slots(next_slot(d)) == [2]


def test_allow_is_bounded_by_the_jobs_own_max_parallel() -> None:
    d, run = beside(overlap=Overlap.ALLOW, max_parallel=1)
    assert states(next_slot(d)) == [(2, "skipped", "limit")]
    d.land(run)
    assert slots(next_slot(d)) == [3]


# ------------------------------------------------------------------ replace


def test_replace_ends_the_old_run_with_its_grace_once_the_new_slot_is_in_the_ledger() -> None:
    d, old = beside(overlap=Overlap.REPLACE, grace_s=7)
    take = next_slot(d)
    assert not d.all(m.Kill)
    assert states(take) == [(2, "due", None)]
    d.grant(take)
    assert d.asked(m.Kill) == m.Kill(old.run_id, 7)
    d.step(m.RunEnded(old.run_id, result("killed by SIGTERM")))
    finish = d.asked(m.WriteFinish).finish
    assert (finish.state, finish.reason) == (State.CANCELLED, Reason.OVERLAP)
    assert slots(d.asked(m.Take)) == [2]


def test_a_replaced_run_is_not_run_again_though_at_least_once() -> None:
    d, old = beside(overlap=Overlap.REPLACE, delivery=Delivery.AT_LEAST_ONCE)
    d.grant(next_slot(d))
    assert d.land(old, result("killed by SIGTERM")).finish.state is State.CANCELLED


def test_of_the_slots_that_wait_to_replace_a_run_the_newest_does() -> None:
    d, old = beside(overlap=Overlap.REPLACE)
    d.grant(next_slot(d))
    d.grant(next_slot(d))
    take = d.asked(m.Take)
    assert states(take) == [(2, "skipped", "overlap")]
    assert not d.all(m.Kill)  # told once
    d.step(m.RunEnded(old.run_id, result("killed by SIGTERM")))
    assert slots(d.asked(m.Take)) == [3]


def test_a_replaced_run_whose_go_was_taken_back_is_skipped_and_not_run_after_the_newer_one() -> (
    None
):
    d = Driver([job(overlap=Overlap.REPLACE)]).lead()
    d.grant(next_slot(d))
    old = d.asked(m.Prepare).run
    d.step(m.Prepared(old.run_id))
    d.grant(next_slot(d))
    assert d.asked(m.Kill).run_id == old.run_id
    d.step(m.NotStarted(old.run_id, "dropped"))
    d.step(m.PutBackAnswered(d.nonce, old.run_id, Applied()))
    take = d.asked(m.Take)
    assert states(take) == [(1, State.SKIPPED, Reason.OVERLAP)]
    assert slots(take) == [2]
    d.land(start(d, take)[0])
    assert slots(next_slot(d)) == [3]


def test_a_claim_on_its_way_is_replaced_once_it_runs() -> None:
    d = Driver([job(overlap=Overlap.REPLACE)]).lead()
    first = next_slot(d)
    d.grant(next_slot(d))
    assert not d.all(m.Kill)
    d.grant(first)
    run = d.asked(m.Prepare).run
    d.step(m.Prepared(run.run_id))
    assert d.asked(m.Kill).run_id == run.run_id


def test_an_older_slot_waits_and_replaces_nothing() -> None:
    d = Driver([job(every_s=3600, overlap=Overlap.REPLACE)])
    d.lead(rows=(due("beat", 0, Origin.SCHEDULE), due("beat", -60, Origin.CATCHUP)))
    (run,) = start(d, d.asked(m.Take))
    assert run.slot.scheduled_for == T0
    d.after(1)
    assert not d.all(m.Kill)
    d.step(m.RunEnded(run.run_id, result()))
    assert slots(d.asked(m.Take)) == [-60]


def test_what_an_operator_asked_for_is_not_replaced_while_it_waits() -> None:
    d, old = beside(overlap=Overlap.REPLACE)
    manual = DueRow(SlotKey("beat", at(1), "c"), 0, Origin.MANUAL, at(1))
    d.node._dispatch.order([manual])
    d.step()
    d.grant(next_slot(d))
    assert d.asked(m.Kill).run_id == old.run_id
    d.step(m.RunEnded(old.run_id, result("killed by SIGTERM")))
    assert d.asked(m.Take).batch.claims[0].slot == manual.slot


def test_the_slots_of_one_backfill_replace_none_of_their_own() -> None:
    d = Driver([job(every_s=3600, overlap=Overlap.REPLACE)]).lead()
    asked = [DueRow(SlotKey("beat", at(n), "c"), 0, Origin.MANUAL, at(0)) for n in (-2, -1)]
    d.node._dispatch.order(asked)
    d.step()
    take = d.asked(m.Take)
    assert slots(take) == [-2]
    d.grant(take)
    run = d.asked(m.Prepare).run
    d.step(m.Prepared(run.run_id))
    assert not d.all(m.Kill)
    d.land(run)
    assert slots(d.asked(m.Take)) == [-1]


def test_a_backfilled_run_is_replaced_by_a_slot_of_the_schedule_and_by_another_order() -> None:
    for newer in ("", "other"):
        d = Driver([job(every_s=3600, overlap=Overlap.REPLACE)]).lead()
        d.node._dispatch.order([DueRow(SlotKey("beat", at(-2), "c"), 0, Origin.MANUAL, at(0))])
        d.step()
        (run,) = start(d, d.asked(m.Take))
        assert not d.all(m.Kill)
        d.node._dispatch.order([DueRow(SlotKey("beat", at(-1), newer), 0, Origin.MANUAL, at(0))])
        d.step()
        assert d.asked(m.Kill).run_id == run.run_id


# ------------------------------------------------------------------ a full node


@pytest.mark.parametrize("when_full", WhenFull)
def test_a_run_that_fills_the_node_is_replaced(when_full: WhenFull) -> None:
    hung = job(overlap=Overlap.REPLACE, when_full=when_full)
    d = Driver([hung], patient(pool=Pool(1, 10.0))).lead()
    old = d.fly()
    d.grant(next_slot(d))
    assert d.asked(m.Kill).run_id == old.run_id
    d.step(m.RunEnded(old.run_id, result("killed by SIGTERM")))
    assert slots(d.asked(m.Take)) == [2]


def test_a_run_is_replaced_though_another_job_waits_first_for_its_room() -> None:
    jobs = [job("a", overlap=Overlap.REPLACE), job("b", every_s=HOUR)]
    d = Driver(jobs, patient(pool=Pool(1, 10.0)))
    old = d.lead().fly()
    d.node._dispatch.order([due("b", 0, Origin.SCHEDULE)])
    d.grant(next_slot(d))
    assert d.asked(m.Kill).run_id == old.run_id
    d.step(m.RunEnded(old.run_id, result("killed by SIGTERM")))
    assert [claim.slot.job for claim in d.asked(m.Take).batch.claims] == ["b"]


def test_a_full_node_wakes_for_the_jittered_slot_that_replaces_a_run() -> None:
    hung = job(overlap=Overlap.REPLACE, every_s=2, jitter_s=1)
    d = Driver([hung], patient(pool=Pool(1, 10.0)))
    d.lead(rows=(due("beat", 0, Origin.SCHEDULE),))
    (old,) = start(d, d.asked(m.Take))
    d.renew()
    d.after(2)
    d.grant(d.asked(m.Take))
    wake = d.node.wake_wall()
    assert wake is not None
    assert at(2) < wake < at(3)
    d.renew()
    d.after((wake - d.wall).total_seconds())
    assert d.asked(m.Kill).run_id == old.run_id


def test_a_full_node_skips_a_slot_whose_job_says_so() -> None:
    jobs = [job("a", when_full=WhenFull.SKIP), job("b", when_full=WhenFull.SKIP)]
    d = Driver(jobs, patient(pool=Pool(1, 10.0))).lead()
    take = next_slot(d)
    assert slots(take) == [1]
    assert states(take) == [(1, "skipped", "limit")]


def test_rows_that_wait_for_a_full_node_are_bounded_by_job() -> None:
    jobs = [job("long", every_s=3600), job("b", queue_limit=2)]
    d = Driver(jobs, patient(pool=Pool(1, 10.0)))
    d.lead(rows=(due("long", 0, Origin.SCHEDULE),))
    start(d, d.asked(m.Take))
    found = []
    for _ in range(4):
        take = next_slot(d)
        found += states(take)
        d.grant(take)
    assert found == [
        (1, "due", None),
        (2, "due", None),
        (3, "skipped", "limit"),
        (4, "skipped", "limit"),
    ]


def test_rows_that_wait_on_one_node_are_bounded_in_all(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(waiting, "MOST_WAITING", 2)
    d = Driver([job(name) for name in "abcd"], patient(pool=Pool(1, 10.0))).lead()
    found = Counter((state, reason) for _, state, reason in states(next_slot(d)))
    assert found == {("due", None): 2, ("skipped", "limit"): 1}


def test_a_slot_goes_before_catch_up_of_its_job_which_runs_behind_it_and_not_beside() -> None:
    jobs = [job(), job("ahead", 3600)]
    d = Driver(jobs, patient(pool=Pool(64, 0.5))).lead(rows=(due("ahead", -20), due("beat", -10)))
    d.grant(d.asked(m.Take))
    run = d.fly()
    assert run.slot == SlotKey("beat", at(1))
    assert states(next_slot(d)) == [(2, State.SKIPPED, Reason.OVERLAP)]
    d.after(0.5)  # the pace of the one ahead is over
    assert not d.all(m.Take)
    d.land(run)
    assert slots(d.asked(m.Take)) == [-10]


def test_catch_up_that_waits_already_bounds_what_is_caught_up() -> None:
    d = Driver([job(catchup=Catchup.ALL, catchup_limit=2)], patient(pool=Pool(1, 10.0)))
    d.lead(rows=(due("beat", -3), due("beat", -2), due("beat", -1)))
    start(d, d.asked(m.Take))  # two still wait
    d.step(m.WatchBroken(d.nonce, "silent"))
    d.after(4.5)
    d.step(m.WatchOpened(d.nonce))
    assert states(d.asked(m.Take))[2:] == [(3, "missed", "limit"), (4, "skipped", "overlap")]


# ------------------------------------------------------------------ over any course of events


@pytest.mark.parametrize("seed", range(4))
def test_bounds_hold_and_no_slot_is_left_over_any_course_of_events(seed: int) -> None:
    """Runs end at any time, in any order; then all end, and nothing waits any more."""
    chance = random.Random(seed)
    jobs = [
        job("skip"),
        job("queue", overlap=Overlap.QUEUE, queue_limit=3),
        job("wide", overlap=Overlap.QUEUE, max_parallel=2, queue_limit=5),
        job("replace", overlap=Overlap.REPLACE),
        job("allow", overlap=Overlap.ALLOW, max_parallel=2),
    ]
    most = {"skip": 1, "queue": 1, "wide": 2, "replace": 1, "allow": 2}
    d = Driver(jobs, patient(pool=Pool(4, 10.0))).lead()

    def bound(going: Collection[Run]) -> None:
        by_job = Counter(run.slot.job for run in going)
        assert len(going) <= 4
        assert all(by_job[name] <= most_of for name, most_of in most.items())

    course = Course(d, bound)
    for _ in range(60):
        d.after(chance.choice((0.25, 0.5, 1)))
        course.answer()
        d.renew()
        course.answer()
        for _ in range(chance.randrange(3)):
            if course.going:
                course.end(chance.choice(list(course.going)))
    planned = d.wall.replace(microsecond=0)
    while course.going:
        course.end(chance.choice(list(course.going)))
    assert all(len(batch.claims) <= 4 for batch in course.batches)
    seen = Counter(claim.slot for batch in course.batches for claim in batch.claims)
    entries = [entry for batch in course.batches for entry in batch.entries]
    seen.update(entry.slot for entry in entries if entry.state is State.SKIPPED)
    due_slots = int((planned - T0) / timedelta(seconds=1)) * len(jobs)
    assert len(seen) == due_slots
    assert set(seen.values()) == {1}
