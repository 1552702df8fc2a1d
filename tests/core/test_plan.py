"""What becomes of a stretch of slots, and whose turn it is."""

from __future__ import annotations

import random
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import cast

import pytest

from cron_leader.core.model import Catchup, CommandSpec, Entry, Job, Reason, SlotKey, State
from cron_leader.core.plan import (
    LONGEST_LISTED,
    Agenda,
    Backlog,
    backlog,
    is_punctual,
    start_of,
)
from cron_leader.core.schedule import At, Every, Schedule, parse_cron

NOON = datetime(2026, 6, 1, 12, tzinfo=UTC)
MINUTE = timedelta(minutes=1)
SECOND = timedelta(seconds=1)
TICK = timedelta.resolution
EACH_MINUTE = parse_cron("* * * * *")


def a_job(
    schedule: Schedule = EACH_MINUTE,
    catchup: Catchup = Catchup.LATEST,
    *,
    name: str = "j",
    limit: int = 100,
    start_within_s: float | None = None,
) -> Job:
    return Job(
        name=name,
        schedule=schedule,
        spec=CommandSpec(("true",)),
        catchup=catchup,
        catchup_limit=limit,
        start_within_s=start_within_s,
    )


def at_noon(job: Job, minutes: float, *, on_time: timedelta = timedelta(0)) -> Backlog:
    """The backlog at noon of a job last seen to `minutes` before."""
    return backlog(job, NOON - minutes * MINUTE, NOON, on_time=on_time)


def due(found: Backlog) -> list[int]:
    """Minutes before noon."""
    return [int((NOON - at) / MINUTE) for at in found.due]


def missed(found: Backlog) -> list[tuple[int, str]]:
    assert all(entry.state is State.MISSED for entry in found.entries)
    return [
        (int((NOON - entry.slot.scheduled_for) / MINUTE), str(entry.reason))
        for entry in found.entries
    ]


def gaps(found: Backlog) -> list[tuple[int, int, int, str]]:
    return [
        (int((NOON - gap.first) / MINUTE), int((NOON - gap.last) / MINUTE), gap.slots, gap.reason)
        for gap in found.gaps
    ]


# ------------------------------------------------------------------ catch-up


def test_a_slot_at_its_time_is_due_under_every_policy() -> None:
    for catchup in Catchup:
        assert at_noon(a_job(catchup=catchup), 1) == Backlog(due=(NOON,))


def test_latest_keeps_the_newest_and_coalesces_the_others() -> None:
    found = at_noon(a_job(), 4)
    assert due(found) == [0]
    assert missed(found) == [(3, "coalesced"), (2, "coalesced"), (1, "coalesced")]


def test_all_keeps_every_slot_in_order() -> None:
    assert due(at_noon(a_job(catchup=Catchup.ALL), 4)) == [3, 2, 1, 0]


def test_all_keeps_the_newest_up_to_its_limit() -> None:
    found = at_noon(a_job(catchup=Catchup.ALL, limit=2), 4)
    assert due(found) == [1, 0]
    assert missed(found) == [(3, "limit"), (2, "limit")]


def test_a_limit_of_nothing_misses_everything() -> None:
    found = at_noon(a_job(catchup=Catchup.ALL, limit=0), 2)
    assert due(found) == []
    assert missed(found) == [(1, "limit"), (0, "limit")]


def test_none_misses_what_had_no_leader() -> None:
    found = at_noon(a_job(catchup=Catchup.NONE), 3)
    assert due(found) == [0]
    assert missed(found) == [(2, "no_leader"), (1, "no_leader")]


def test_none_forgives_a_late_tick_as_far_as_on_time_says() -> None:
    job = a_job(catchup=Catchup.NONE)
    since = NOON - MINUTE
    assert backlog(job, since, NOON + SECOND, on_time=SECOND).due == (NOON,)
    assert backlog(job, since, NOON + SECOND + TICK, on_time=SECOND).due == ()
    assert backlog(job, since, NOON + TICK, on_time=timedelta(0)).due == ()
    assert at_noon(a_job(Every(SECOND / 2), Catchup.NONE), 1, on_time=SECOND).due == (
        NOON - SECOND,
        NOON - SECOND / 2,
        NOON,
    )


# ------------------------------------------------------------------ start_within


def test_a_slot_is_late_once_it_is_older_than_start_within() -> None:
    job = a_job(start_within_s=60)
    assert backlog(job, NOON - TICK, NOON + MINUTE - TICK, on_time=SECOND).due == (NOON,)
    job = a_job(At(NOON), start_within_s=60)
    assert backlog(job, NOON - TICK, NOON + MINUTE, on_time=SECOND).due == (NOON,)
    late = backlog(job, NOON - TICK, NOON + MINUTE + TICK, on_time=SECOND)
    assert late == Backlog(entries=(Entry(SlotKey("j", NOON), State.MISSED, Reason.LATE),))


def test_start_within_never_looks_back_before_since() -> None:
    job = a_job(At(NOON), start_within_s=60)
    assert backlog(job, NOON, NOON + MINUTE, on_time=SECOND) == Backlog()
    assert backlog(job, NOON, NOON + MINUTE + TICK, on_time=SECOND) == Backlog()


@pytest.mark.parametrize(
    ("catchup", "limit", "left", "reason"),
    [
        (Catchup.LATEST, 100, [0], "coalesced"),
        (Catchup.ALL, 1, [0], "limit"),
        (Catchup.NONE, 100, [0], "no_leader"),
    ],
)
def test_lateness_is_asked_before_the_policy(
    catchup: Catchup, limit: int, left: list[int], reason: str
) -> None:
    found = at_noon(a_job(catchup=catchup, limit=limit, start_within_s=90), 4)
    assert due(found) == left
    assert missed(found) == [(3, "late"), (2, "late"), (1, reason)]


def test_when_all_is_late_nothing_is_due() -> None:
    found = backlog(
        a_job(parse_cron("0 * * * *"), start_within_s=60),
        NOON - 3 * 60 * MINUTE,
        NOON + 2 * MINUTE,
        on_time=SECOND,
    )
    assert due(found) == []
    assert missed(found) == [(120, "late"), (60, "late"), (0, "late")]


def test_a_boundless_start_within_is_no_limit() -> None:
    assert due(at_noon(a_job(catchup=Catchup.ALL, start_within_s=1e15), 3)) == [2, 1, 0]


# ------------------------------------------------------------------ gaps


def test_more_than_ten_missed_slots_are_one_gap_for_each_reason() -> None:
    found = at_noon(a_job(), LONGEST_LISTED + 1)
    assert len(found.entries) == LONGEST_LISTED
    assert found.gaps == ()
    found = at_noon(a_job(), LONGEST_LISTED + 2)
    assert found.entries == ()
    assert gaps(found) == [(11, 1, 11, "coalesced")]
    found = at_noon(a_job(start_within_s=20 * 60), 60)
    assert due(found) == [0]
    assert gaps(found) == [(59, 21, 39, "late"), (20, 1, 20, "coalesced")]


def test_a_gap_and_entries_stand_side_by_side() -> None:
    found = at_noon(a_job(start_within_s=5 * 60), 60)
    assert gaps(found) == [(59, 6, 54, "late")]
    assert missed(found) == [(minutes, "coalesced") for minutes in (5, 4, 3, 2, 1)]


@dataclass(frozen=True)
class Counting:
    """A schedule that counts how often it is asked."""

    inner: Schedule
    asked: list[str]

    @property
    def digest(self) -> str:
        return self.inner.digest

    def next_after(self, t: datetime) -> datetime | None:
        self.asked.append("next_after")
        return self.inner.next_after(t)

    def prev_before(self, t: datetime) -> datetime | None:
        self.asked.append("prev_before")
        return self.inner.prev_before(t)

    def count(self, after: datetime, upto: datetime) -> int:
        self.asked.append("count")
        return self.inner.count(after, upto)


@pytest.mark.parametrize("catchup", Catchup)
@pytest.mark.parametrize("schedule", [Every(SECOND / 10), EACH_MINUTE])
def test_a_week_of_missed_slots_is_not_gone_through(schedule: Schedule, catchup: Catchup) -> None:
    counting = Counting(schedule, [])
    job = a_job(counting, catchup, limit=3, start_within_s=3600)
    found = backlog(job, NOON - timedelta(weeks=1), NOON, on_time=timedelta(0))
    assert len(counting.asked) < 20
    slots = len(found.due) + len(found.entries) + sum(gap.slots for gap in found.gaps)
    assert slots == schedule.count(NOON - timedelta(weeks=1), NOON)


# ------------------------------------------------------------------ nothing to do


def test_no_time_no_slots() -> None:
    for catchup in Catchup:
        job = a_job(catchup=catchup, start_within_s=5)
        assert at_noon(job, 0) == Backlog()
        assert at_noon(job, -60) == Backlog()


@pytest.mark.parametrize("late_s", [0, 1, 2, 3])
@pytest.mark.parametrize("start_within_s", [None, 0.0, 1.0])
@pytest.mark.parametrize("catchup", Catchup)
def test_a_slot_that_is_punctual_is_due_by_every_policy(
    late_s: int, start_within_s: float | None, catchup: Catchup
) -> None:
    job = a_job(catchup=catchup, start_within_s=start_within_s)
    now = NOON + late_s * SECOND
    if is_punctual(job, NOON, now, 2 * SECOND):
        found = backlog(job, NOON - MINUTE, now, on_time=2 * SECOND)
        assert found == Backlog((NOON,))
    else:
        assert late_s > (2 if start_within_s is None else start_within_s)


def test_a_schedule_without_slots_has_no_backlog() -> None:
    assert at_noon(a_job(At(NOON + MINUTE)), 60) == Backlog()
    assert at_noon(a_job(At(NOON - 61 * MINUTE)), 60) == Backlog()


# ------------------------------------------------------------------ against slot by slot


class Asked(list[datetime]):
    """A schedule of one slot a minute, and the instants it was asked about."""

    def next_after(self, t: datetime) -> datetime | None:
        self.append(t)
        return EACH_MINUTE.next_after(t)


def test_the_usual_slot_alone_and_on_time_costs_one_look_at_its_schedule() -> None:
    asked = Asked()
    job = a_job(cast(Schedule, asked))
    agenda = Agenda([job], {"j": NOON - MINUTE})
    asked.clear()
    assert agenda.pop_due(NOON + TICK) == [(job, NOON - MINUTE, NOON)]
    assert asked == [NOON]
    assert is_punctual(job, NOON, NOON + TICK, SECOND)


def by_the_slot(
    job: Job, since: datetime, now: datetime, on_time: timedelta
) -> dict[datetime, str]:
    """What each slot becomes, decided one at a time."""
    slots, at = [], job.schedule.next_after(since)
    while at is not None and at <= now:
        slots.append(at)
        at = job.schedule.next_after(at)
    verdicts = {}
    for newer, at in enumerate(reversed(slots)):
        age = now - at
        if job.start_within_s is not None and age > timedelta(seconds=job.start_within_s):
            verdicts[at] = "late"
        elif job.catchup is Catchup.LATEST:
            verdicts[at] = "coalesced" if newer else "due"
        elif job.catchup is Catchup.ALL:
            verdicts[at] = "due" if newer < job.catchup_limit else "limit"
        else:
            verdicts[at] = "due" if age <= on_time else "no_leader"
    return dict(reversed(verdicts.items()))


def test_every_slot_gets_the_verdict_it_would_get_alone() -> None:
    rng = random.Random(3)
    schedules = [Every(7 * SECOND), Every(2 * SECOND), EACH_MINUTE, parse_cron("*/7 * * * *")]
    for _ in range(240):
        job = a_job(
            rng.choice(schedules),
            rng.choice(list(Catchup)),
            limit=rng.choice([1, 2, 5, 1000]),
            start_within_s=rng.choice([None, 0, 5, 60.5, 9999]),
        )
        now = NOON + rng.choice([0, 1, rng.random()]) * 60 * SECOND
        stretch = rng.random() * rng.choice([3 * SECOND, MINUTE, 15 * MINUTE])
        since, on_time = now - stretch, rng.choice([0, 1, 30]) * SECOND
        found = backlog(job, since, now, on_time=on_time)
        alone = by_the_slot(job, since, now, on_time)
        assert list(found.due) == [at for at, verdict in alone.items() if verdict == "due"]
        for reason in Reason:
            check_reason(found, reason, [at for at, verdict in alone.items() if verdict == reason])


def check_reason(found: Backlog, reason: Reason, slots: list[datetime]) -> None:
    listed = [entry.slot.scheduled_for for entry in found.entries if entry.reason is reason]
    covered = [(gap.first, gap.last, gap.slots) for gap in found.gaps if gap.reason is reason]
    if len(slots) > LONGEST_LISTED:
        assert (listed, covered) == ([], [(slots[0], slots[-1], len(slots))])
    else:
        assert (listed, covered) == (slots, [])


# ------------------------------------------------------------------ the agenda


def due_of(agenda: Agenda, now: datetime) -> list[tuple[Job, datetime]]:
    """Each job that has its turn, and since when; the one slot of it is the one that there is."""
    turns = agenda.pop_due(now)
    for job, since, only in turns:
        slots = slots_of(job, since, now)
        assert slots == [only] if only is not None else len(slots) > 1
    return [(job, since) for job, since, _ in turns]


def slots_of(job: Job, since: datetime, now: datetime) -> list[datetime]:
    return list(by_the_slot(job, since, now, SECOND))


def test_an_agenda_names_the_soonest_slot() -> None:
    jobs = [a_job(name="hourly", schedule=parse_cron("0 * * * *")), a_job(name="each-minute")]
    agenda = Agenda(jobs, {"hourly": NOON, "each-minute": NOON})
    assert agenda.next_time() == NOON + MINUTE
    assert due_of(agenda, NOON + MINUTE - TICK) == []
    assert due_of(agenda, NOON + MINUTE) == [(jobs[1], NOON)]
    assert agenda.next_time() == NOON + 2 * MINUTE


def test_an_empty_agenda_has_no_next_time() -> None:
    agenda = Agenda((), {})
    assert agenda.next_time() is None
    assert due_of(agenda, NOON) == []


def test_jobs_due_together_come_by_their_slots_then_as_configured() -> None:
    hourly = parse_cron("0 * * * *")
    jobs = [a_job(hourly, name="z"), a_job(hourly, name="a"), a_job(At(NOON - SECOND), name="m")]
    agenda = Agenda(jobs, dict.fromkeys("zam", NOON - MINUTE))
    assert [job.name for job, _ in due_of(agenda, NOON)] == ["m", "z", "a"]


def test_each_job_goes_on_from_its_own_mark() -> None:
    jobs = [a_job(name="a"), a_job(name="b")]
    agenda = Agenda(jobs, {"a": NOON - 5 * MINUTE, "b": NOON + 5 * MINUTE})
    assert due_of(agenda, NOON) == [(jobs[0], NOON - 5 * MINUTE)]
    assert due_of(agenda, NOON + 6 * MINUTE) == [(jobs[0], NOON), (jobs[1], NOON + 5 * MINUTE)]


def test_a_job_whose_schedule_has_ended_leaves() -> None:
    past, coming = a_job(At(NOON), name="past"), a_job(At(NOON + SECOND), name="coming")
    agenda = Agenda([past, coming], {"past": NOON, "coming": NOON})
    assert agenda.next_time() == NOON + SECOND
    assert due_of(agenda, NOON + MINUTE) == [(coming, NOON)]
    assert agenda.next_time() is None
    assert due_of(agenda, NOON + 2 * MINUTE) == []


def test_a_clock_set_back_finds_nothing_until_it_has_caught_up() -> None:
    job = a_job()
    agenda = Agenda([job], {"j": NOON})
    assert due_of(agenda, NOON + 90 * SECOND) == [(job, NOON)]
    assert due_of(agenda, NOON + 60 * SECOND) == []
    assert due_of(agenda, NOON - 60 * MINUTE) == []
    assert due_of(agenda, NOON + 119 * SECOND) == []
    assert due_of(agenda, NOON + 120 * SECOND) == [(job, NOON + 90 * SECOND)]


def test_slots_are_handed_out_once_each_however_time_is_split() -> None:
    rng = random.Random(4)
    jobs = [
        a_job(EACH_MINUTE, name="cron"),
        a_job(Every(7 * SECOND), name="every"),
        a_job(At(NOON + 5 * MINUTE), name="at"),
    ]
    end = NOON + 10 * MINUTE
    for turns in (0, 1, 5, 50):
        times = sorted(NOON + rng.random() * (end - NOON) for _ in range(turns))
        times = [at - rng.choice([0, 0, 90]) * SECOND for at in times]  # a clock set back
        agenda = Agenda(jobs, dict.fromkeys(("cron", "every", "at"), NOON))
        handed: dict[str, list[datetime]] = {job.name: [] for job in jobs}
        for now in [*times, end]:
            for job, since in due_of(agenda, now):
                handed[job.name] += slots_of(job, since, now)
        assert handed == {job.name: slots_of(job, NOON, end) for job in jobs}


def test_with_no_policy_to_cut_it_the_plan_is_the_same_however_time_is_split() -> None:
    job = replace(a_job(Every(7 * SECOND), Catchup.ALL), catchup_limit=10_000)
    whole = backlog(job, NOON, NOON + 10 * MINUTE, on_time=SECOND).due
    agenda, found = Agenda([job], {"j": NOON}), []
    for seconds in range(0, 601, 3):
        now = NOON + seconds * SECOND
        for popped, since in due_of(agenda, now):
            found += backlog(popped, since, now, on_time=SECOND).due
    assert tuple(found) == whole


# ------------------------------------------------------------------ jitter


def test_jitter_is_the_same_whenever_asked_and_stays_below_it_and_the_next_slot() -> None:
    schedule = Every(timedelta(minutes=1))
    for jitter_s in (30.0, 600.0):
        job = Job("a", schedule, CommandSpec(("true",)), jitter_s=jitter_s)
        slots = [datetime(2026, 1, 1, 0, minute, tzinfo=UTC) for minute in range(60)]
        late = [start_of(job, at) - at for at in slots]
        assert late == [start_of(job, at) - at for at in slots]
        most = timedelta(seconds=min(jitter_s, 60))
        assert timedelta(0) <= min(late) < most / 5
        assert most * 4 / 5 < max(late) < most


def test_jitter_differs_between_jobs_and_none_is_on_time() -> None:
    at = datetime(2026, 1, 1, tzinfo=UTC)
    once = Job("a", At(at), CommandSpec(("true",)), jitter_s=60.0)
    assert at < start_of(once, at) < at + timedelta(minutes=1)
    assert start_of(once, at) != start_of(replace(once, name="b"), at)
    assert start_of(replace(once, jitter_s=0.0), at) == at
