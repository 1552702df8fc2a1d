"""When a job is not to run, and what becomes of its slots then."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, date, datetime, time, timedelta
from itertools import pairwise

import pytest

from cron_leader.core.blackout import (
    After,
    Blackout,
    Freeze,
    Hours,
    Stretch,
    next_outside,
    stretches,
)
from cron_leader.core.cron import read_cron
from cron_leader.core.model import (
    Catchup,
    CommandSpec,
    DueRow,
    Job,
    Origin,
    Past,
    Reason,
    SlotKey,
    State,
)
from cron_leader.core.plan import Backlog, backlog, held_to, policy_of, start_of
from cron_leader.core.schedule import At, Every, Schedule, ScheduleError, parse_cron
from cron_leader.core.takeover import settle

HOUR, MINUTE, TICK = timedelta(hours=1), timedelta(minutes=1), timedelta.resolution


def on(weekdays: str) -> Callable[[date], bool]:
    """As the configuration reads days."""
    return read_cron(f"0 0 * * {weekdays}").falls_on


WEEKDAYS, EVERY_DAY, SUNDAY = on("mon-fri"), on("*"), on("sun")
OFFICE = Blackout((Hours(WEEKDAYS, time(9), time(17), "Europe/Warsaw"),))
NIGHTS = Blackout((Hours(EVERY_DAY, time(22), time(6)),))


def utc(text: str) -> datetime:
    return datetime.fromisoformat(text).replace(tzinfo=UTC)


def a_job(blackout: Blackout | None, schedule: Schedule | None = None, **options: object) -> Job:
    made = Job("j", schedule or parse_cron("*/10 * * * *"), CommandSpec(("true",)))
    return replace(made, blackout=blackout, **options)  # type: ignore[arg-type]


# ------------------------------------------------------------------ windows

IN_OFFICE = """
2026-06-01 06:59:59 -              Monday, 08:59:59 in Warsaw
2026-06-01 07:00:00 06-01 15:00    the first instant is in it
2026-06-01 14:59:59 06-01 15:00
2026-06-01 15:00:00 -              the last one is not
2026-12-01 08:00:00 12-01 16:00    winter: an hour later
2026-06-06 10:00:00 -              Saturday
"""


@pytest.mark.parametrize("row", IN_OFFICE.strip().splitlines())
def test_hours_are_those_of_the_zone(row: str) -> None:
    at, end = utc(row[:19]), row[20:31].strip()
    assert OFFICE.until(at) == (None if end == "-" else utc(f"2026-{end}"))


def test_a_window_that_ends_no_later_than_it_begins_ends_the_next_day() -> None:
    for at in ("2026-06-01 22:00", "2026-06-02 00:00", "2026-06-02 05:59"):
        assert NIGHTS.until(utc(at)) == utc("2026-06-02 06:00")
    assert NIGHTS.until(utc("2026-06-02 06:00")) is None
    friday_night = Blackout((Hours(WEEKDAYS, time(22), time(6)),))
    assert friday_night.until(utc("2026-06-06 05:00")) == utc("2026-06-06 06:00")
    assert friday_night.until(utc("2026-06-07 05:00")) is None


def test_days_that_touch_are_one_blackout() -> None:
    weekend = Blackout((Hours(on("sat,sun")),))
    assert weekend.until(utc("2026-06-06 00:00")) == utc("2026-06-08 00:00")
    holiday = Hours(lambda day: day == date(2026, 6, 8))
    both = Blackout((*weekend.windows, holiday))
    assert both.until(utc("2026-06-06 12:00")) == utc("2026-06-09 00:00")


def test_a_window_of_a_day_whose_first_hour_is_jumped_over_begins_at_the_jump() -> None:
    """Beirut's clock goes from 24:00 to 01:00; the whole Sunday is 23 hours."""
    sunday = Blackout((Hours(SUNDAY, zone="Asia/Beirut"),))
    assert sunday.clear_to(utc("2026-03-28 12:00")) == utc("2026-03-28 22:00")
    assert sunday.until(utc("2026-03-28 22:00")) == utc("2026-03-29 21:00")


def test_a_clock_set_back_over_midnight_does_not_end_the_new_day() -> None:
    """St. John's, 2010-11-07: 00:01 was followed by 23:01 of the day before."""
    sunday = Blackout((Hours(SUNDAY, zone="America/St_Johns"),))
    assert sunday.until(utc("2010-11-07 02:45")) == utc("2010-11-08 03:30")


def test_a_freeze_is_from_an_instant_to_another() -> None:
    freeze = Freeze(utc("2026-12-20"), utc("2027-01-02"))
    assert freeze.until(utc("2026-12-20")) == freeze.end
    assert freeze.until(utc("2027-01-02")) is None
    assert freeze.clear_to(utc("2026-12-19")) == freeze.start
    assert freeze.clear_to(utc("2027-01-02")) is None
    with pytest.raises(ScheduleError, match="to must be later than from"):
        Freeze(freeze.end, freeze.start)


def test_a_cron_window_lasts_its_duration_after_each_of_its_times() -> None:
    after = After(parse_cron("0 2 * * *"), timedelta(minutes=90))
    assert after.until(utc("2026-06-01 02:00")) == utc("2026-06-01 03:30")
    assert after.until(utc("2026-06-01 03:30")) is None
    assert after.clear_to(utc("2026-06-01 02:00")) == utc("2026-06-02 02:00")


def test_a_day_that_never_comes_is_looked_for_within_a_bound() -> None:
    never = Hours(lambda _: False)
    found = never.clear_to(utc("2026-06-01"))
    assert found is not None
    assert found > utc("2027-06-01")
    (part,) = stretches(Blackout((never,)), utc("2026-06-01"), utc("2027-06-01"))
    assert not part.dark


def test_an_unknown_zone_is_refused() -> None:
    with pytest.raises(ScheduleError, match="did you mean 'Europe/Warsaw'"):
        Hours(WEEKDAYS, zone="Europe/Warsav")


def test_stretches_tile_the_time_and_agree_with_the_windows() -> None:
    after, upto = utc("2026-10-23 12:00"), utc("2026-10-27 13:00")
    both = Blackout((*OFFICE.windows, *NIGHTS.windows, After(parse_cron("0 18 * * *"), HOUR)))
    parts = list(stretches(both, after, upto))
    assert (parts[0].after, parts[-1].upto) == (after, upto)
    assert all(a.upto == b.after for a, b in pairwise(parts))
    at = after + TICK
    while at <= upto:
        (part,) = (p for p in parts if p.after < at <= p.upto)
        assert part.dark == (both.until(at) is not None)
        at += 30 * MINUTE
    assert list(stretches(None, after, upto)) == [Stretch(after, upto, dark=False)]
    assert list(stretches(both, upto, after)) == []


def test_a_blackout_without_end_is_told_in_parts() -> None:
    always = Blackout((Hours(EVERY_DAY),))
    end = always.until(utc("2026-06-01"))
    assert end is not None
    assert end > utc("2028-06-01")
    assert next_outside(Every(HOUR), always, utc("2026-06-01")) is None


def test_the_next_slot_outside_is_after_the_blackout() -> None:
    each = parse_cron("30 * * * *")
    assert next_outside(each, OFFICE, utc("2026-06-01 06:40")) == utc("2026-06-01 15:30")
    assert next_outside(each, None, utc("2026-06-01 06:40")) == utc("2026-06-01 07:30")
    assert next_outside(At(utc("2026-06-01 08:00")), OFFICE, utc("2026-06-01")) is None


# ------------------------------------------------------------------ slots


def told(found: Backlog) -> list[tuple[str, str, str]]:
    return [
        (f"{e.slot.scheduled_for:%d %H:%M}", str(e.state), str(e.reason)) for e in found.entries
    ]


def of(job: Job, since: str, now: str) -> Backlog:
    return backlog(job, utc(since), utc(now), on_time=timedelta(0))


def test_a_slot_in_a_blackout_is_skipped_and_one_at_its_end_runs() -> None:
    job = a_job(NIGHTS)
    assert told(of(job, "2026-06-01 21:59", "2026-06-01 22:00")) == [
        ("01 22:00", "skipped", "blackout")
    ]
    assert of(job, "2026-06-02 05:59", "2026-06-02 06:00").due == (utc("2026-06-02 06:00"),)


def test_the_newest_slot_outside_of_the_blackout_is_caught_up() -> None:
    found = of(a_job(NIGHTS), "2026-06-01 21:30", "2026-06-01 22:10")
    assert found.due == (utc("2026-06-01 21:50"),)
    assert told(found) == [
        ("01 21:40", "missed", "coalesced"),
        ("01 22:00", "skipped", "blackout"),
        ("01 22:10", "skipped", "blackout"),
    ]


def test_gaps_do_not_reach_over_the_end_of_a_blackout() -> None:
    found = of(a_job(NIGHTS), "2026-06-01 12:00", "2026-06-02 12:00")
    assert [(f"{g.first:%H:%M}", f"{g.last:%H:%M}", g.slots, str(g.state)) for g in found.gaps] == [
        ("12:10", "21:50", 59, "missed"),
        ("22:00", "05:50", 48, "skipped"),
        ("06:00", "11:50", 36, "missed"),
    ]
    assert found.gaps[1].reason is Reason.BLACKOUT
    assert found.due == (utc("2026-06-02 12:00"),)


@pytest.mark.parametrize("catchup", list(Catchup))
@pytest.mark.parametrize("start_within_s", [None, 7200.0])
def test_every_slot_of_a_stretch_is_due_or_recorded_once(
    catchup: Catchup, start_within_s: float | None
) -> None:
    job = a_job(OFFICE, catchup=catchup, catchup_limit=20, start_within_s=start_within_s)
    since, now = utc("2026-06-05 02:00"), utc("2026-06-08 09:10")
    lost_to = utc("2026-06-05 10:00")
    found = backlog(job, since, now, on_time=HOUR, lost_to=lost_to)
    singles = [*found.due, *(entry.slot.scheduled_for for entry in found.entries)]
    assert len(set(singles)) == len(singles)
    gaps = sorted(found.gaps, key=lambda gap: gap.first)
    assert all(a.last < b.first for a, b in pairwise(gaps))
    assert not any(gap.first <= at <= gap.last for gap in gaps for at in singles)
    total = len(singles) + sum(gap.slots for gap in gaps)
    assert total == job.schedule.count(since, now)
    assert not any(OFFICE.until(at) for at in found.due)
    for gap in gaps:
        assert (gap.state is State.SKIPPED) == (OFFICE.until(gap.first) is not None)


def test_blackouts_are_part_of_the_policy() -> None:
    assert policy_of(a_job(NIGHTS)) != policy_of(a_job(OFFICE))


def test_jobs_of_one_policy_share_a_takeover_and_keep_their_states() -> None:
    jobs = {name: replace(a_job(NIGHTS), name=name) for name in ("a", "b")}
    first = settle(jobs, Past(None, {}), utc("2026-06-01 12:00"))
    known = {record.job: record for record in first.jobs}
    past = Past(utc("2026-06-01 21:55"), known)
    settled = settle(jobs, past, utc("2026-06-02 05:55"))
    assert [(gap.job, gap.slots, gap.state) for gap in settled.gaps] == [
        ("a", 48, State.SKIPPED),
        ("b", 48, State.SKIPPED),
    ]
    few = settle(jobs, past, utc("2026-06-01 22:05")).entries
    assert [(entry.slot.job, entry.state) for entry in few] == [
        ("a", State.SKIPPED),
        ("b", State.SKIPPED),
    ]


def test_jitter_does_not_reach_into_a_blackout() -> None:
    job = a_job(NIGHTS, schedule=Every(HOUR), jitter_s=3600.0)
    five_to = a_job(NIGHTS, schedule=parse_cron("55 * * * *"), jitter_s=3600.0)
    for day in range(1, 29):
        at = utc(f"2026-06-{day:02} 21:55")
        assert at <= start_of(five_to, at) < at + 5 * MINUTE
        assert start_of(job, at.replace(hour=20)) < at.replace(hour=21)


def test_what_waits_is_held_to_the_end_of_the_blackout_unless_an_operator_asked() -> None:
    job, now = a_job(NIGHTS), utc("2026-06-01 23:00")
    row = DueRow(SlotKey("j", utc("2026-06-01 21:50")), 0, Origin.CATCHUP, None)
    assert held_to(job, row, now) == utc("2026-06-02 06:00")
    assert held_to(job, row, utc("2026-06-02 06:00")) is None
    assert held_to(a_job(None), row, now) is None
    assert held_to(job, replace(row, origin=Origin.MANUAL), now) is None
