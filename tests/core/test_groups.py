"""Whose turn it is: priorities, groups that share a node, and pools of groups."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Collection
from datetime import timedelta

import pytest

from cron_leader.core import messages as m
from cron_leader.core.dispatch import Pool
from cron_leader.core.model import DueRow, Job, Origin, Overlap, Run, SlotKey, WhenFull
from cron_leader.core.waiting import Lane
from tests.core.course import Course
from tests.core.driver import Driver, S, job, patient, result
from tests.core.test_dispatch import at, due, states
from tests.core.test_overlap import next_slot, start

HOUR = 3600


def pool(max_parallel: int = 64, **groups: int) -> Pool:
    return Pool(max_parallel, 10.0, groups)


def waits(name: str, seconds: float = 0) -> DueRow:
    return due(name, seconds, Origin.SCHEDULE)


def claimed(take: m.Take) -> list[str]:
    return [claim.slot.job for claim in take.batch.claims]


def served(d: Driver, most: int = 20) -> list[str]:
    """The jobs that start one after the other, each when the one before has ended."""
    found: list[str] = []
    while takes := d.all(m.Take):
        (take,) = takes
        assert len(found) < most
        found += claimed(take)
        (run,) = start(d, take)
        written = d.land(run)
        takes = d.all(m.Take)
        d.record(written)
        d.effects += takes
    return found


# ------------------------------------------------------------------ pools of groups


def test_a_slot_waits_while_its_group_is_full_and_other_groups_go_on() -> None:
    d = Driver([job("a", group="x"), job("b", group="x"), job("c")], patient(pool=pool(x=1))).lead()
    take = next_slot(d)
    assert (claimed(take), states(take)) == (["a", "c"], [(1, "due", None)])
    run, _ = start(d, take)
    d.step()
    assert not d.all(m.Take)
    d.land(run)
    assert claimed(d.asked(m.Take)) == ["b"]


def test_a_slot_whose_group_is_full_is_skipped_if_its_job_says_so() -> None:
    jobs = [job(name, group="x", when_full=WhenFull.SKIP) for name in "ab"]
    take = next_slot(Driver(jobs, patient(pool=pool(x=1))).lead())
    assert (claimed(take), states(take)) == (["a"], [(1, "skipped", "limit")])


def test_what_waits_for_its_group_sets_no_alarm() -> None:
    jobs = [job(name, every_s=HOUR, group="x") for name in "ab"]
    d = Driver(jobs, patient(pool=pool(x=1))).lead(rows=(waits("a"), waits("b")))
    take = d.asked(m.Take)
    assert claimed(take) == ["a"]
    assert d.node.wake_wall() == at(HOUR)
    (run,) = start(d, take)
    d.land(run)
    assert claimed(d.asked(m.Take)) == ["b"]


def test_catch_up_that_waits_for_its_group_sets_no_alarm() -> None:
    jobs = [job(name, every_s=HOUR, group="x") for name in "ab"]
    d = Driver(jobs, patient(pool=pool(x=1))).lead(rows=(due("a", -9), due("b", -9)))
    start(d, d.asked(m.Take))
    d.after(0.25)
    wake_ns = d.node.wake_boot_ns()
    assert wake_ns is not None
    assert wake_ns > d.boot_ns
    assert d.node.wake_wall() == at(HOUR)


def test_a_run_is_replaced_though_its_group_has_no_room_beside_it() -> None:
    d = Driver([job("a", group="x", overlap=Overlap.REPLACE)], patient(pool=pool(x=1))).lead()
    old = d.fly()
    d.grant(next_slot(d))
    assert d.asked(m.Kill).run_id == old.run_id


# ------------------------------------------------------------------ priority


def test_rows_that_wait_have_their_turn_by_priority() -> None:
    jobs = [job(name, every_s=HOUR, priority=n) for name, n in (("a", 0), ("b", 9), ("c", -1))]
    d = Driver(jobs, patient(pool=pool(1))).lead(rows=tuple(waits(one.name) for one in jobs))
    assert served(d) == ["b", "a", "c"]


def test_catch_up_has_its_turn_by_priority() -> None:
    jobs = [job("a", every_s=HOUR), job("b", every_s=HOUR, priority=1)]
    d = Driver(jobs).lead(rows=(due("a", -9), due("b", -5)))
    assert claimed(d.asked(m.Take)) == ["b"]
    d.after(0.1)
    assert claimed(d.asked(m.Take)) == ["a"]


@pytest.mark.parametrize(
    ("row", "first"),
    [
        (waits("same"), "same"),
        (waits("low"), "new"),
        (waits("high"), "high"),
        (due("same", 0), "new"),
        (due("high", 0), "high"),
    ],
)
def test_a_new_slot_takes_no_room_from_what_waits_at_its_priority_or_above(
    row: DueRow, first: str
) -> None:
    others = [job(n, every_s=HOUR, priority=p) for n, p in (("low", 0), ("same", 1), ("high", 2))]
    busy = job("busy", every_s=HOUR)
    jobs = [job("new", priority=1, every_s=5), busy, *others]
    d = Driver(jobs, patient(pool=pool(1)))
    d.lead(rows=(waits("busy", -1), DueRow(row.slot, 0, row.origin, at(1))))
    take = d.asked(m.Take)
    assert claimed(take) == ["busy"]
    (run,) = start(d, take)
    d.after(4)
    d.renew()
    d.boot_ns, d.wall = d.boot_ns + S, at(5)
    d.step(m.RunEnded(run.run_id, result()))
    assert claimed(d.asked(m.Take)) == [first]


def test_new_slots_of_one_instant_share_the_room_by_priority_and_then_by_group() -> None:
    jobs = [job(f"x{n}", group="x") for n in range(3)]
    jobs += [job("y", group="y"), job("low", priority=-1), job("high", priority=1)]
    take = next_slot(Driver(jobs, patient(pool=pool(3))).lead())
    assert claimed(take) == ["high", "x0", "y"]


# ------------------------------------------------------------------ groups in rotation


def test_groups_of_one_priority_have_their_turn_in_rotation() -> None:
    jobs = [job(name, every_s=HOUR, group=name[0]) for name in ("x1", "x2", "x3", "y1", "z1", "z2")]
    d = Driver(jobs, patient(pool=pool(1))).lead(rows=tuple(waits(one.name) for one in jobs))
    assert served(d) == ["x1", "y1", "z1", "x2", "z2", "x3"]


def test_a_row_of_a_job_that_is_gone_waits_for_no_group() -> None:
    d = Driver([job("a", group="x")], patient(pool=pool(x=1))).lead(rows=(waits("gone"),))
    assert states(d.asked(m.Take)) == [(0, "skipped", "no_handler")]


def test_a_row_does_not_start_before_its_time_when_the_clock_was_set_back() -> None:
    lane = Lane({})
    lane.add(DueRow(SlotKey("a", at(5)), 0, Origin.SCHEDULE, at(5)))
    assert lane.turn(at(5), lambda _: True) == (0, "")
    assert lane.turn(at(4), lambda _: True) is None
    assert lane.next_time(lambda _: True) == at(5)


@pytest.mark.parametrize("seed", range(5))
def test_no_group_of_the_highest_priority_is_passed_over_twice_by_another(seed: int) -> None:
    """Rows come at any time, groups fill and empty: between two turns of a group that waits and
    has room all along, no other has two."""
    chance = random.Random(seed)
    jobs = {f"{g}{p}": job(f"{g}{p}", group=g, priority=p) for g in "wxyz" for p in (0, 1)}
    lane, since = Lane(jobs), Counter[tuple[str, str]]()
    held: dict[str, Counter[str]] = {"0": Counter(), "1": Counter()}
    full: set[str] = set()

    def free(row: DueRow) -> bool:
        return jobs[row.slot.job].group not in full

    for n in range(600):
        for name in chance.choices(list(jobs), k=chance.choice((0, 1, 3))):
            lane.add(DueRow(SlotKey(name, at(n)), 0, Origin.SCHEDULE, None))
            held[name[1]][name[0]] += 1
        full ^= {chance.choice("wxyz")} if chance.random() < 0.3 else set()
        since = Counter({pair: k for pair, k in since.items() if pair[0] not in full})
        turn = lane.turn(at(n), free)
        open_ = {p: {g for g, k in held[p].items() if k and g not in full} for p in "10"}
        best = next((p for p in "10" if open_[p]), None)
        assert (turn is None) == (best is None)
        if turn is None or best is None:
            continue
        row = lane.pop(*turn)
        group, priority = jobs[row.slot.job].group, row.slot.job[1]
        assert priority == best
        assert group in open_[best]
        held[priority][group] -= 1
        if priority == "1":
            since.update((other, group) for other in open_["1"] - {group})
            since = Counter({pair: k for pair, k in since.items() if pair[0] != group})
            assert all(k <= 1 for k in since.values())


# ------------------------------------------------------------------ over any course of events


def jobs_of_tenants(chance: random.Random) -> list[Job]:
    overlaps = (Overlap.SKIP, Overlap.QUEUE, Overlap.REPLACE, Overlap.ALLOW)
    return [
        job(
            f"{group}{n}",
            group=group,
            priority=chance.choice((0, 0, 5)),
            overlap=chance.choice(overlaps),
            when_full=chance.choice(list(WhenFull)),
            queue_limit=4,
        )
        for group in ("x", "y", "z", "")
        for n in range(4)
    ]


@pytest.mark.parametrize("seed", range(3))
def test_no_pool_is_ever_passed_and_nothing_waits_for_ever(seed: int) -> None:
    """Runs end at any time, in any order; then all end, each making room for what waits."""
    chance = random.Random(seed)
    most = {"x": 1, "y": 3}
    jobs = jobs_of_tenants(chance)
    d = Driver(jobs, patient(pool=pool(6, **most))).lead()

    def bound(going: Collection[Run]) -> None:
        by_group = Counter(run.job.group for run in going)
        assert len(going) <= 6
        assert all(by_group[group] <= most_of for group, most_of in most.items())

    course = Course(d, bound)
    for _ in range(40):
        d.boot_ns += S
        d.wall += timedelta(seconds=1)
        d.step()
        course.answer()
        d.renew()
        course.answer()
        for run_id in chance.sample(
            list(course.going), min(len(course.going), chance.randrange(4))
        ):
            if run_id in course.going:
                course.end(run_id)
    while course.going:
        course.end(chance.choice(list(course.going)))
    started = {claim.slot for batch in course.batches for claim in batch.claims}
    entries = [entry for batch in course.batches for entry in batch.entries]
    waited = {entry.slot for entry in entries if entry.state == "due"}
    closed = {entry.slot for entry in entries if entry.state != "due"}
    assert started <= course.ended
    assert waited <= course.ended | closed
