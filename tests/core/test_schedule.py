"""When slots fall: the handed cases, tables of the odd ones, and Debian cron played by minutes."""

from __future__ import annotations

import random
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from datetime import UTC, date, datetime, timedelta
from itertools import islice, pairwise, takewhile
from pathlib import Path
from zoneinfo import ZoneInfo

import pytest

from cron_leader.core.schedule import (
    EPOCH,
    At,
    Bounded,
    Cron,
    DstFold,
    DstGap,
    Every,
    Schedule,
    ScheduleError,
    Union,
    clock_changes,
    parse_cron,
    zone_of,
)

CASES = Path(__file__).with_name("cases")
MINUTE = timedelta(minutes=1)
TICK = timedelta.resolution


def utc(text: str) -> datetime:
    return datetime.fromisoformat(text).astimezone(UTC)


def fires(schedule: Schedule, after: datetime) -> Iterable[datetime]:
    at = schedule.next_after(after)
    while at is not None:
        yield at
        at = schedule.next_after(at)


def check_fires(expression: str, zone: str, after: str, expected: str) -> None:
    """Forwards, backwards and counted."""
    schedule = parse_cron(expression, zone)
    times = [utc(text) for text in expected.split()]
    assert list(islice(fires(schedule, utc(after)), len(times))) == times
    assert [schedule.prev_before(later) for _, later in pairwise(times)] == times[:-1]
    assert schedule.prev_before(times[0] + TICK) == times[0]
    assert schedule.count(utc(after), times[-1]) == len(times)
    assert {at.tzinfo for at in islice(fires(schedule, utc(after)), len(times))} == {UTC}


def rows(table: str) -> list[list[str]]:
    return [[cell.strip() for cell in line.split("|")] for line in table.splitlines() if line]


def handed() -> list[list[str]]:
    lines = (CASES / "cron.tsv").read_text().splitlines()
    return [line.split("\t")[1:] for line in lines if not line.startswith("#")]


@pytest.mark.parametrize(("expression", "zone", "after", "expected"), handed())
def test_a_handed_case_fires_as_debian_cron(
    expression: str, zone: str, after: str, expected: str
) -> None:
    check_fires(expression, zone, after, expected)


# expression | zone | after | expected
TABLE = """
    0 0 29 2 *         | UTC | 2023-01-01T00:00Z | 2024-02-29T00:00Z 2028-02-29T00:00Z
    0 0 29 2 *         | UTC | 1896-03-01T00:00Z | 1904-02-29T00:00Z
    0 0 29 2 */7       | UTC | 2088-03-01T00:00Z | 2128-02-29T00:00Z
    59 23 31 12 *      | UTC | 2099-12-31T23:58:59.999999Z | 2099-12-31T23:59Z 2100-12-31T23:59Z
    0 0 31 * *         | UTC | 2025-01-31T00:00Z | 2025-03-31T00:00Z 2025-05-31T00:00Z 2025-07-31T00:00Z 2025-08-31T00:00Z
    0 0 L * *          | UTC | 2024-01-31T00:00Z | 2024-02-29T00:00Z 2024-03-31T00:00Z 2024-04-30T00:00Z
    0 0 LW * *         | UTC | 2025-05-01T00:00Z | 2025-05-30T00:00Z 2025-06-30T00:00Z 2025-07-31T00:00Z 2025-08-29T00:00Z
    0 0 * * 5L         | UTC | 2025-01-01T00:00Z | 2025-01-31T00:00Z 2025-02-28T00:00Z 2025-03-28T00:00Z
    0 0 * * 7#1        | UTC | 2025-01-01T00:00Z | 2025-01-05T00:00Z 2025-02-02T00:00Z
    0 0 13 * 5         | UTC | 2025-06-01T00:00Z | 2025-06-06T00:00Z 2025-06-13T00:00Z 2025-06-20T00:00Z 2025-06-27T00:00Z 2025-07-04T00:00Z 2025-07-11T00:00Z 2025-07-13T00:00Z
    0 0 */13 * 5       | UTC | 2025-06-01T00:00Z | 2025-06-27T00:00Z 2025-08-01T00:00Z
    0 0 1-31/2 * 5     | UTC | 2025-06-04T00:00Z | 2025-06-05T00:00Z 2025-06-06T00:00Z 2025-06-07T00:00Z 2025-06-09T00:00Z
    0 0 1 * sat-sun    | UTC | 2025-06-28T00:00Z | 2025-06-29T00:00Z 2025-07-01T00:00Z 2025-07-05T00:00Z 2025-07-06T00:00Z
    */7 * * * *        | UTC | 2025-06-01T00:49Z | 2025-06-01T00:56Z 2025-06-01T01:00Z 2025-06-01T01:07Z
    30 9 * * *         | Asia/Kathmandu   | 2025-06-01T00:00Z | 2025-06-01T03:45Z 2025-06-02T03:45Z
    30 9 * * *         | UTC | 0001-01-01T09:30Z | 0001-01-02T09:30Z

    30 2 * * *         | Europe/Warsaw    | 2017-10-29T02:10+01:00 | 2017-10-30T02:30+01:00
    30 2 * * *         | Europe/Warsaw    | 2017-10-29T02:30+02:00 | 2017-10-30T02:30+01:00
    30 2-3 * * *       | Europe/Warsaw    | 2017-10-29T02:30+02:00 | 2017-10-29T03:30+01:00
    0,30 2 * * *       | Europe/Warsaw    | 2017-03-26T00:00+01:00 | 2017-03-26T03:00+02:00 2017-03-27T02:00+02:00
    0,30 2,3 * * *     | Europe/Warsaw    | 2017-03-26T00:00+01:00 | 2017-03-26T03:00+02:00 2017-03-26T03:30+02:00
    */30 2 * * *       | Europe/Warsaw    | 2017-03-25T02:30+01:00 | 2017-03-27T02:00+02:00
    */30 2 * * *       | Europe/Warsaw    | 2017-10-28T23:00+02:00 | 2017-10-29T02:00+02:00 2017-10-29T02:30+02:00 2017-10-29T02:00+01:00 2017-10-29T02:30+01:00 2017-10-30T02:00+01:00
    15 * * * *         | Europe/Warsaw    | 2017-10-29T02:15+02:00 | 2017-10-29T02:15+01:00 2017-10-29T03:15+01:00
    @daily             | Asia/Beirut      | 2022-03-26T12:00+02:00 | 2022-03-27T01:00+03:00 2022-03-28T00:00+03:00
    @daily             | America/Havana   | 2025-11-01T12:00-04:00 | 2025-11-02T00:00-04:00 2025-11-03T00:00-05:00
    */20 0 4 11 *      | America/Sao_Paulo | 2018-11-03T12:00-03:00 | 2019-11-04T00:00-03:00 2019-11-04T00:20-03:00 2019-11-04T00:40-03:00
    0 0,1 4 11 *       | America/Sao_Paulo | 2018-11-03T12:00-03:00 | 2018-11-04T01:00-02:00 2019-11-04T00:00-03:00
    */15 2 * * *       | Australia/Lord_Howe | 2025-10-05T00:00+10:30 | 2025-10-05T02:30+11:00 2025-10-05T02:45+11:00 2025-10-06T02:00+11:00
    */15 3 * * *       | Australia/Lord_Howe | 2025-10-05T00:00+10:30 | 2025-10-05T03:00+11:00 2025-10-05T03:15+11:00
    10 2 * * *         | Australia/Lord_Howe | 2025-10-05T00:00+10:30 | 2025-10-05T02:30+11:00 2025-10-06T02:10+11:00
    */15 1 * * *       | Australia/Lord_Howe | 2025-04-06T01:20+11:00 | 2025-04-06T01:30+11:00 2025-04-06T01:45+11:00 2025-04-06T01:30+10:30 2025-04-06T01:45+10:30 2025-04-07T01:00+10:30
    45 1 * * *         | Australia/Lord_Howe | 2025-04-06T01:20+11:00 | 2025-04-06T01:45+11:00 2025-04-07T01:45+10:30
    0 12 * * *         | Pacific/Apia     | 2011-12-29T11:00-10:00 | 2011-12-29T12:00-10:00 2011-12-31T00:00+14:00 2011-12-31T12:00+14:00
    0 */12 * * *       | Pacific/Apia     | 2011-12-29T11:00-10:00 | 2011-12-29T12:00-10:00 2011-12-31T00:00+14:00
    0 0 30 12 *        | Pacific/Apia     | 2011-01-01T00:00-10:00 | 2011-12-31T00:00+14:00 2012-12-30T00:00+14:00
    * 2 * 3 sun#2      | America/New_York | 2005-03-13T02:58-05:00 | 2005-03-13T02:59-05:00 2006-03-12T02:00-05:00
    30 0 7 1 *         | Africa/Monrovia  | 1971-12-01T00:00Z | 1972-01-07T00:44:30Z 1973-01-07T00:30Z
    * * * * *          | Africa/Monrovia  | 1972-01-07T00:42:31Z | 1972-01-07T00:43:30Z 1972-01-07T00:45Z
"""  # noqa: E501  a table


@pytest.mark.parametrize(
    ("expression", "zone", "after", "expected"),
    rows(TABLE),
)
def test_an_odd_case_fires_as_debian_cron(
    expression: str, zone: str, after: str, expected: str
) -> None:
    check_fires(expression, zone, after, expected)


# ------------------------------------------------------------------ drawn at random

AROUND = timedelta(hours=26)


@dataclass(frozen=True)
class Drawn:
    """A random expression, and what it says, found without reading it."""

    text: str
    minutes: frozenset[int]
    hours: frozenset[int]
    days: frozenset[int]
    weekdays: frozenset[int]

    def matches(self, local: datetime) -> bool:
        return (
            local.minute in self.minutes
            and local.hour in self.hours
            and self.falls_on(local.date())
        )

    def falls_on(self, day: date) -> bool:
        in_month, in_week = day.day in self.days, day.isoweekday() % 7 in self.weekdays
        _, _, days, _, weekdays = self.text.split()
        starred = days.startswith("*") or weekdays.startswith("*")
        return in_month and in_week if starred else in_month or in_week


def draw_field(rng: random.Random, numbers: range) -> tuple[str, frozenset[int]]:
    low, high = sorted(rng.choices(numbers, k=2))
    step = rng.randint(2, 5)
    choices = [
        (str(low), frozenset({low})),
        (f"{low}-{high}/{step}", frozenset(range(low, high + 1, step))),
        (f"{high},{low}", frozenset({low, high})),
    ]
    if numbers in (range(60), range(24)):
        choices += [("*", frozenset(numbers)), (f"*/{step}", frozenset(numbers[::step]))]
    return rng.choice(choices)


def draw(rng: random.Random, around: datetime) -> Drawn:
    """Hours mostly at night, when clocks change; days mostly those about `around`."""
    minute, minutes = draw_field(rng, range(60))
    hour, hours = draw_field(rng, rng.choice([range(24), range(4), range(4)]))
    day, days = rng.choice([
        ("*", frozenset(range(1, 32))),
        ("*/3", frozenset(range(1, 32, 3))),
        ("*/2", frozenset(range(1, 32, 2))),
        (str(around.day), frozenset({around.day})),
    ])  # fmt: skip
    weekday, weekdays = rng.choice([
        ("*", frozenset(range(7))),
        ("0,4-6", frozenset({0, 4, 5, 6})),
        ("*/2", frozenset({0, 2, 4, 6})),
    ])  # fmt: skip
    return Drawn(f"{minute} {hour} {day} * {weekday}", minutes, hours, days, weekdays)


@pytest.mark.parametrize("gap", DstGap)
@pytest.mark.parametrize("fold", DstFold)
@pytest.mark.parametrize("expression", ["30 2 * * *", "*/20 2 * * *", "10,40 * * * *"])
def test_a_day_on_which_the_clock_jumps_has_as_many_slots_as_it_fires(
    expression: str, gap: DstGap, fold: DstFold
) -> None:
    schedule = parse_cron(expression, "Europe/Warsaw", dst_gap=gap, dst_fold=fold)
    for day in (utc("2017-03-25T23:00Z"), utc("2017-10-28T22:00Z")):
        end = day + timedelta(hours=26)
        assert schedule.count(day, end) == len(list(takewhile(end.__ge__, fires(schedule, day))))


def test_a_time_that_every_spring_leaves_out_never_fires_if_gaps_are_skipped() -> None:
    schedule = parse_cron("30 2 * 3 sun#2", "America/New_York", dst_gap=DstGap.SKIP)
    assert schedule.next_after(utc("2010-01-01T00:00Z")) is None
    assert schedule.prev_before(utc("2070-01-01T00:00Z")) is None


# expression | zone | after | expected
SECONDS = """
    */20 * * * * *    | UTC           | 2026-01-01T00:00:39.5Z | 2026-01-01T00:00:40Z 2026-01-01T00:01:00Z 2026-01-01T00:01:20Z
    30 0 12 * * *     | UTC           | 2026-01-01T12:00:29Z   | 2026-01-01T12:00:30Z 2026-01-02T12:00:30Z
    15,45 59 23 * * * | UTC           | 2026-12-31T23:59:15Z   | 2026-12-31T23:59:45Z 2027-01-01T23:59:15Z
    0 30 2 * * *      | Europe/Warsaw | 2017-03-25T12:00Z      | 2017-03-26T01:00Z 2017-03-27T00:30Z
    5 30 2 * * *      | Europe/Warsaw | 2017-03-25T12:00Z      | 2017-03-27T00:30:05Z 2017-03-28T00:30:05Z
    5 30 2 * * *      | Europe/Warsaw | 2017-10-28T12:00Z      | 2017-10-29T00:30:05Z 2017-10-29T01:30:05Z
"""  # noqa: E501  a table


@pytest.mark.parametrize(("expression", "zone", "after", "expected"), rows(SECONDS))
def test_six_fields_follow_the_clock_to_the_second(
    expression: str, zone: str, after: str, expected: str
) -> None:
    check_fires(expression, zone, after, expected)


# ------------------------------------------------------------------ several, from, to


def check_listed(schedule: Schedule, slots: list[datetime], begin: datetime, end: datetime) -> None:
    """In (begin, end) the schedule has just these slots, forwards, backwards and counted."""
    assert [at for at in islice(fires(schedule, begin), len(slots) + 1) if at < end] == slots
    for n, at in enumerate(slots):
        assert schedule.count(begin, at) == n + 1
        assert schedule.count(at, end - TICK) == len(slots) - n - 1
        assert schedule.prev_before(at + TICK) == at
    assert schedule.count(begin, end - TICK) == len(slots)


def test_the_slots_of_several_schedules_are_each_ones_and_no_instant_is_two() -> None:
    members = (
        parse_cron("*/20 * * * *"),
        parse_cron("0 */2 * * *"),
        parse_cron("10,20 3 * * *", "Asia/Tokyo"),
        At(utc("2026-01-02T00:01Z")),
    )
    begin, end = utc("2026-01-01T00:00Z"), utc("2026-01-03T00:00Z")
    listed = {at for member in members for at in islice(fires(member, begin), 200) if at < end}
    check_listed(Union(members), sorted(listed), begin, end)


def test_the_digest_of_several_does_not_depend_on_their_order() -> None:
    one, other = parse_cron("@daily"), parse_cron("@hourly")
    assert Union((one, other)).digest == "cron 0 * * * * UTC | cron 0 0 * * * UTC"
    assert Union((one, other)).digest == Union((other, one, one)).digest


def test_a_gap_that_runs_beside_elapsed_time_is_one_slot_both_ways() -> None:
    schedule = parse_cron("10,50 2 * * *", "Europe/Warsaw", dst_fold=DstFold.TWICE)
    jump, next_day = utc("2017-03-26T01:00Z"), utc("2017-03-27T00:10Z")
    assert schedule.next_after(utc("2017-03-25T01:50Z")) == jump
    assert schedule.next_after(jump) == next_day
    assert schedule.prev_before(next_day) == jump
    assert schedule.prev_before(jump) == utc("2017-03-25T01:50Z")
    assert schedule.count(utc("2017-03-25T01:50Z"), next_day) == 2


def test_what_a_lint_asks_of_an_expression() -> None:
    expressions = ("30 * * * *", "*/5 2 * * *", "30 2 * * *", "0 0-23 * * *")
    asked = [(one.elapsed, one.each_hour) for one in map(parse_cron, expressions)]
    assert asked == [(True, True), (True, False), (False, False), (False, True)]


def test_the_changes_of_a_clock_are_those_of_its_zone() -> None:
    year = utc("2026-01-01T00:00Z"), utc("2027-01-01T00:00Z")
    changes = utc("2026-03-29T01:00Z"), utc("2026-10-25T01:00Z")
    assert clock_changes("Europe/Warsaw", *year) == changes
    assert clock_changes("UTC", *year) == ()


def test_times_are_read_in_the_first_zone_that_is_named() -> None:
    cron = parse_cron("@daily", "Asia/Tokyo")
    several = Union((cron, At(EPOCH)))
    assert [zone_of(s) for s in (cron, Bounded(several, EPOCH), At(EPOCH))] == [
        "Asia/Tokyo",
        "Asia/Tokyo",
        "UTC",
    ]


def test_several_that_are_over_are_over() -> None:
    at = utc("2026-01-01T00:00Z")
    assert Union((At(at), At(at))).next_after(at) is None
    assert Union((At(at), At(at))).prev_before(at) is None
    assert Union((At(at), At(at))).count(at - TICK, at) == 1


def test_a_bounded_schedule_has_its_start_and_not_its_end() -> None:
    start, end = utc("2026-01-01T06:00Z"), utc("2026-01-01T09:00Z")
    schedule = Bounded(parse_cron("@hourly"), start, end)
    expected = [start, start + timedelta(hours=1), start + timedelta(hours=2)]
    check_listed(schedule, expected, utc("2025-12-01T00:00Z"), utc("2026-12-01T00:00Z"))
    assert schedule.prev_before(start) is None
    assert schedule.next_after(expected[-1]) is None
    assert schedule.count(end, end + timedelta(days=1)) == 0
    assert schedule.digest == (
        "cron 0 * * * * UTC from 2026-01-01T06:00:00+00:00 to 2026-01-01T09:00:00+00:00"
    )


def test_a_schedule_may_have_one_bound_only() -> None:
    noon = utc("2026-01-01T12:00Z")
    later, earlier = Bounded(parse_cron("@hourly"), noon), Bounded(parse_cron("@hourly"), end=noon)
    assert later.next_after(EPOCH) == noon
    assert earlier.prev_before(noon + timedelta(days=9)) == noon - timedelta(hours=1)
    assert later.count(EPOCH, noon) == 1
    assert earlier.count(noon - timedelta(hours=3), noon) == 2


@pytest.mark.parametrize(
    ("start", "end", "why"),
    [
        ("2026-01-02T00:00Z", "2026-01-02T00:00Z", "end must be later than start"),
        ("2026-01-01T00:01Z", "2026-01-01T00:59Z", "never fires"),
    ],
)
def test_bounds_that_leave_nothing_are_refused(start: str, end: str, why: str) -> None:
    with pytest.raises(ScheduleError, match=why):
        Bounded(parse_cron("@hourly"), utc(start), utc(end))


@pytest.mark.parametrize("zone", ["America/Sao_Paulo", "UTC", "Asia/Tokyo"])
@pytest.mark.parametrize("expression", ["30 2 * * *", "*/5 * * * *"])
def test_a_schedule_may_only_end_wherever_its_clock_is(expression: str, zone: str) -> None:
    endless, end = parse_cron(expression, zone), utc("2027-01-01T00:00Z")
    assert Bounded(endless, end=end).prev_before(end) == endless.prev_before(end)


def check_against(
    schedule: Cron,
    runs: list[datetime],
    clock: list[tuple[datetime, datetime]],
    rng: random.Random,
) -> None:
    label = schedule.digest
    begin, end = clock[0][0] - TICK, clock[-1][0]
    slots = [at for at in islice(fires(schedule, begin), len(runs) + 1) if at <= end]
    assert slots == runs, label
    moments = [begin + rng.random() * (end - begin) for _ in range(4)]
    moments += [begin + AROUND + rng.uniform(-2, 2) * 60 * MINUTE for _ in range(4)]
    for at in sorted(moments + [slot + d for slot in runs[::19] for d in (-TICK, 0 * TICK, TICK)]):
        after, before = bisect_right(runs, at), bisect_left(runs, at)
        if after < len(runs):
            assert schedule.next_after(at) == runs[after], (label, at)
        if before:
            assert schedule.prev_before(at) == runs[before - 1], (label, at)
        assert schedule.count(begin, at) == after, (label, at)
        assert schedule.count(at, end) == len(runs) - after, (label, at)


def test_days_over_years_are_those_of_the_calendar() -> None:
    rng = random.Random(8)
    begin = datetime(1999, 12, 31, tzinfo=UTC)
    days = [begin + timedelta(days=n) for n in range(1500)]
    for _ in range(6):
        drawn = draw(rng, rng.choice(days))
        daily = replace(drawn, text="0 0 " + drawn.text.split(maxsplit=2)[2])
        expected = [day for day in days if daily.falls_on(day.date())]
        schedule = parse_cron(daily.text)
        assert list(islice(fires(schedule, begin - TICK), len(expected))) == expected
        assert schedule.count(begin - TICK, days[-1]) == len(expected)


def test_in_the_second_half_of_a_repeated_hour_all_its_fixed_times_have_gone() -> None:
    schedule = parse_cron("10,50 2 * * *", "Europe/Warsaw")
    second_half = utc("2017-10-29T02:30+01:00")
    assert schedule.prev_before(second_half) == utc("2017-10-29T02:50+02:00")
    assert schedule.next_after(second_half) == utc("2017-10-30T02:10+01:00")


# ------------------------------------------------------------------ where there are no more slots


@pytest.mark.parametrize("expression", ["* * * * *", "0 12 * * *"])
@pytest.mark.parametrize("zone", ["UTC", "Europe/Warsaw"])
def test_at_the_ends_of_the_calendar_there_are_no_more_slots(expression: str, zone: str) -> None:
    schedule = parse_cron(expression, zone)
    assert schedule.next_after(datetime.max.replace(tzinfo=UTC)) is None
    assert schedule.prev_before(datetime.min.replace(tzinfo=UTC)) is None
    assert schedule.count(datetime(9998, 1, 1, tzinfo=UTC), datetime(9997, 1, 1, tzinfo=UTC)) == 0


def test_a_time_that_every_spring_leaves_out_has_no_more_slots() -> None:
    schedule = parse_cron("* 2 * 3 sun#2", "America/New_York")
    assert schedule.next_after(utc("2026-01-01T00:00Z")) is None
    assert schedule.prev_before(utc("2070-01-01T00:00Z")) is None
    assert schedule.count(utc("2026-01-01T00:00Z"), utc("2060-01-01T00:00Z")) == 0


# ------------------------------------------------------------------ every, at


# period in us | t | before | after
PERIODS = """
    1000000      | 2026-01-01T00:00Z           | 2025-12-31T23:59:59Z        | 2026-01-01T00:00:01Z
    100000       | 2026-01-01T00:00:00.149999Z | 2026-01-01T00:00:00.100Z    | 2026-01-01T00:00:00.200Z
    333333       | 1970-01-01T00:00:01Z        | 1970-01-01T00:00:00.999999Z | 1970-01-01T00:00:01.333332Z
    604800000000 | 1969-12-31T00:00Z           | 1969-12-25T00:00Z           | 1970-01-01T00:00Z
    18000000000  | 1970-01-01T00:00Z           | 1969-12-31T19:00Z           | 1970-01-01T05:00Z
"""  # noqa: E501  a table


@pytest.mark.parametrize(("period_us", "t", "before", "after"), rows(PERIODS))
def test_a_period_counts_from_the_epoch(period_us: str, t: str, before: str, after: str) -> None:
    schedule = Every(timedelta(microseconds=int(period_us)))
    assert schedule.prev_before(utc(t)) == utc(before)
    assert schedule.next_after(utc(t)) == utc(after)
    assert schedule.count(utc(before), utc(after)) == len(
        [at for at in islice(fires(schedule, utc(before)), 3) if at <= utc(after)]
    )


def test_a_period_counts_from_its_anchor_both_ways() -> None:
    schedule = Every(
        timedelta(hours=1), anchor=datetime(2026, 1, 1, 1, 30, tzinfo=ZoneInfo("Asia/Tokyo"))
    )
    assert schedule.next_after(EPOCH) == EPOCH + timedelta(minutes=30)
    assert schedule.next_after(utc("2026-06-01T00:30Z")) == utc("2026-06-01T01:30Z")
    assert schedule.anchor.tzinfo is UTC


def test_six_million_slots_of_a_period_are_counted_at_once() -> None:
    schedule = Every(timedelta(milliseconds=100))
    assert schedule.count(EPOCH, EPOCH + timedelta(weeks=1)) == 6_048_000
    assert schedule.count(EPOCH + timedelta(weeks=1), EPOCH) == 0


def test_a_period_ends_with_the_calendar() -> None:
    schedule = Every(timedelta(days=365_000))
    assert schedule.next_after(utc("9970-01-01T00:00Z")) is None
    assert schedule.prev_before(EPOCH + TICK) == EPOCH
    assert Every(timedelta(days=999_999)).prev_before(EPOCH) is None


def test_a_period_under_100_ms_is_refused() -> None:
    with pytest.raises(ScheduleError, match="shorter than 100ms"):
        Every(timedelta(microseconds=99_999))


def test_a_time_fires_once() -> None:
    schedule = At(datetime(2026, 12, 1, 10, tzinfo=ZoneInfo("Europe/Paris")))
    when = utc("2026-12-01T09:00Z")
    assert schedule.next_after(when - TICK) == when
    assert schedule.next_after(when) is None
    assert schedule.prev_before(when + TICK) == when
    assert schedule.prev_before(when) is None
    assert [schedule.count(when - TICK, when), schedule.count(when, when + TICK)] == [1, 0]


@pytest.mark.parametrize("build", [lambda t: At(t), lambda t: Every(timedelta(hours=1), anchor=t)])
def test_a_time_without_an_offset_is_refused(build: Callable[[datetime], Schedule]) -> None:
    with pytest.raises(ScheduleError, match="an offset is missing"):
        build(datetime(2026, 12, 1, 9))  # noqa: DTZ001


# ------------------------------------------------------------------ digests, sharing


@pytest.mark.parametrize(
    ("schedule", "digest"),
    [
        (parse_cron("@daily"), "cron 0 0 * * * UTC"),
        (parse_cron("*/05 9 * jan mon-fri", "Asia/Tokyo"), "cron */5 9 * 1 1-5 Asia/Tokyo"),
        (parse_cron("@daily", dst_gap=DstGap.RUN, dst_fold=DstFold.ONCE), "cron 0 0 * * * UTC"),
        (
            parse_cron("@daily", dst_gap=DstGap.SKIP, dst_fold=DstFold.TWICE),
            "cron 0 0 * * * UTC gap skip fold twice",
        ),
        (parse_cron("@hourly", dst_gap=DstGap.SKIP), "cron 0 * * * * UTC"),
        (Every(timedelta(seconds=1.5)), "every 1500000us from 1970-01-01T00:00:00+00:00"),
        (At(datetime(2026, 12, 1, 9, tzinfo=UTC)), "at 2026-12-01T09:00:00+00:00"),
    ],
)
def test_a_digest_is_a_contract(schedule: Schedule, digest: str) -> None:
    assert schedule.digest == digest


def test_equal_expressions_are_equal_and_share_what_was_read() -> None:
    one, other = Cron("0 9 * * *", "Europe/Warsaw"), Cron("0 9 * * *", "Europe/Warsaw")
    assert one == other
    assert hash(one) == hash(other)
    assert one._fields is other._fields
    assert one._clock is other._clock
