"""Expressions read a second time, by nothing of ours, and played on the clock of a wall: about its
changes, by seconds where an expression has them, with all that a field may hold."""

from __future__ import annotations

import random
from collections.abc import Iterator
from datetime import date, datetime, timedelta
from functools import cache
from zoneinfo import ZoneInfo

import pytest

from cron_leader.core.schedule import Cron, DstFold, DstGap, ScheduleError, parse_cron
from tests.core.test_schedule import MINUTE, TICK, utc

SECOND, DAY = timedelta(seconds=1), timedelta(days=1)
# fmt: off
MONTHS = ["JAN", "FEB", "MAR", "APR", "MAY", "JUN", "JUL", "AUG", "SEP", "OCT", "NOV", "DEC"]
# fmt: on
DAYS = ["SUN", "MON", "TUE", "WED", "THU", "FRI", "SAT"]
Clock = list[tuple[datetime, datetime]]
"""Instants, and what the clock shows then."""


# ------------------------------------------------------------------ what an expression says


def number(text: str) -> int:
    if text in MONTHS:
        return MONTHS.index(text) + 1
    return DAYS.index(text) if text in DAYS else int(text)


def numbers(item: str, low: int, high: int) -> set[int]:
    body, stepped, step = item.partition("/")
    first, ranged, last = body.partition("-")
    start = low if body == "*" else number(first)
    stop = number(last) if ranged else high if body == "*" or stepped else start
    stop = 7 if last == "SUN" and stop < start else stop
    return set(range(start, stop + 1, int(step or 1)))


def is_day(item: str, day: date) -> bool:
    """Whether an item of day-of-month means a day."""
    last = (day.replace(day=28) + 4 * DAY).replace(day=1) - DAY
    match item:
        case "L":
            return day == last
        case "LW":
            return day == last - max(0, last.weekday() - 4) * DAY
        case _:
            return day.day in numbers(item, 1, 31)


def is_weekday(item: str, day: date) -> bool:
    """Whether an item of day-of-week means a day."""
    if "#" in item:
        name, _, nth = item.partition("#")
        return is_weekday(name, day) and (day.day + 6) // 7 == int(nth)
    if item.endswith("L"):
        return is_weekday(item[:-1], day) and (day + 7 * DAY).month != day.month
    return day.isoweekday() % 7 in {each % 7 for each in numbers(item, 0, 6)}


class Said:
    """What six fields, or five, mean on a clock."""

    def __init__(self, text: str) -> None:
        fields = text.upper().split()
        second, minute, hour, self.day, month, self.weekday = ["0", *fields][-6:]
        bounds = ((second, 0, 59), (minute, 0, 59), (hour, 0, 23), (month, 1, 12))
        self.seconds, self.minutes, self.hours, self.months = (
            set[int]().union(*(numbers(item, *most) for item in field.split(",")))
            for field, *most in bounds
        )
        self.elapsed = self.seconds != {0} or minute[0] == "*" or hour[0] == "*"
        self.starred = self.day[0] == "*" or self.weekday[0] == "*"
        self.is_on = cache(self._is_on)

    def _is_on(self, day: date) -> bool:
        month = any(is_day(item, day) for item in self.day.split(","))
        week = any(is_weekday(item, day) for item in self.weekday.split(","))
        return day.month in self.months and (month and week if self.starred else month or week)

    def has(self, local: datetime) -> bool:
        time = local.second in self.seconds and local.minute in self.minutes
        return time and local.hour in self.hours and self.is_on(local.date())

    def played(self, clock: Clock, gap: DstGap | None, fold: DstFold | None) -> Iterator[datetime]:
        """When somebody runs it who looks at the clock at these instants."""
        again = self.elapsed if fold is None else fold is DstFold.TWICE
        jumps = not self.elapsed if gap is None else gap is DstGap.RUN
        look = clock[1][0] - clock[0][0]
        before = latest = clock[0][1] - look
        for at, local in clock:
            missed = range(1, (local - before) // look) if jumps else ()
            shown = [local, *(before + n * look for n in missed)]
            if any(self.has(one) and (again or one > latest) for one in shown):
                yield at
            before, latest = local, max(latest, local)


# ------------------------------------------------------------------ drawn at random

CHANGES = {
    "Australia/Lord_Howe": ("2025-10-04T15:30Z", "2025-04-05T15:00Z"),
    "America/Sao_Paulo": ("2018-11-04T03:00Z", "2018-02-18T02:00Z"),
    "America/Goose_Bay": ("2010-11-07T03:01Z",),
    "America/Nuuk": ("2026-03-29T01:00Z", "2026-10-25T01:00Z"),
    "Africa/Cairo": ("2026-04-23T22:00Z", "2026-10-29T21:00Z"),
    "Africa/Casablanca": ("2026-02-15T02:00Z", "2026-03-22T02:00Z"),
    "Antarctica/Troll": ("2026-03-29T01:00Z", "2026-10-25T01:00Z"),
    "Asia/Beirut": ("2026-03-28T22:00Z", "2026-10-24T21:00Z"),
    "Asia/Kathmandu": ("2024-02-28T18:15Z",),
    "Europe/Dublin": ("2026-03-29T01:00Z", "2026-10-25T01:00Z"),
    "UTC": ("2100-03-01T00:00Z",),
}
# fmt: off
DAYS_OF_WEEK = [
    "*", "*", "*/2", "*/3", "6-7", "sat-sun", "SAT-sUn", "0-7", "1-7/2", "1-5", "sun-tue",
    "5L", "friL", "sunL", "5#3", "fri#5", "7#1", "5L,1#1,3",
]
DAYS_OF_MONTH = ["*", "*", "*/2", "*/3", "*,5", "L", "LW", "L,1-5", "29", "28-31", "1-31/2", "1,15"]
# fmt: on
LEAP_YEARS = [date(year, 1, 1) + n * DAY for year in range(2000, 2028, 4) for n in range(366)]
"""Those in which each date falls on each weekday."""


@cache
def clock_about(zone: str, change: str, look: timedelta) -> Clock:
    """Looked at 400 times before a change, and as often from then on."""
    instants = [utc(change) + n * look for n in range(-400, 400)]
    return [(at, at.astimezone(ZoneInfo(zone)).replace(tzinfo=None)) for at in instants]


def field(rng: random.Random, high: int, near: int, *, starred: bool) -> str:
    low, top = sorted((near, rng.randint(0, high)))
    if starred:
        return rng.choice(["*", f"*/{rng.choice([2, 5, 7, 20, 90])}", f"*,{top}"])
    ranges = (
        f"{low}-{top}",
        f"{low}-{top}/{rng.choice([1, 3, 7])}",
        f"{low}/{rng.choice([4, 11])}",
    )
    return rng.choice([f"0{near}", f"{top},{low}", *ranges, f"{near}-{near}/5"])


def draw(rng: random.Random, near: datetime) -> str:
    """Times mostly those about the change; days with all that the two fields may hold."""
    second = rng.choice([None, None, "0", "*/60", field(rng, 59, 30, starred=rng.random() < 0.3)])
    month = rng.choice(["*", "*", str(near.month), MONTHS[near.month - 1].lower(), "*/3"])
    minute = field(rng, 59, near.minute, starred=rng.random() < 0.3)
    hour = field(rng, 23, near.hour, starred=rng.random() < 0.2)
    day, weekday = rng.choice(["*", rng.choice(DAYS_OF_MONTH)]), rng.choice(DAYS_OF_WEEK)
    fields = (second, minute, hour, day, month, weekday)
    return rng.choice([" ", "\t"]).join(part for part in fields if part)


def check(cron: Cron, runs: list[datetime], begin: datetime, end: datetime) -> None:
    """Forwards, backwards and counted."""
    forwards, at = [], cron.next_after(begin)
    while at is not None and at <= end:
        forwards.append(at)
        at = cron.next_after(at)
    backwards, at = [], cron.prev_before(end + TICK)
    while at is not None and at > begin:
        backwards.append(at)
        at = cron.prev_before(at)
    label = f"{cron!r} after {begin}"
    assert forwards == runs, label
    assert backwards[::-1] == runs, label
    assert cron.count(begin, end) == len(runs), label


@pytest.mark.parametrize("zone", CHANGES)
def test_slots_are_those_of_one_who_reads_the_fields_and_watches_the_clock(zone: str) -> None:
    rng = random.Random(zone)
    for change in 16 * CHANGES[zone]:
        stops = clock_about(zone, change, MINUTE)[399][1]
        near = stops + rng.randint(-70, 70) * MINUTE  # also those that it jumps over
        said = Said(text := draw(rng, near))
        clock = clock_about(zone, change, MINUTE if said.seconds == {0} else SECOND)
        gap, fold = rng.choice([None, *DstGap]), rng.choice([None, *DstFold])
        try:
            cron = parse_cron(text, zone, dst_gap=gap, dst_fold=fold)
        except ScheduleError:
            assert not any(map(said.is_on, LEAP_YEARS)), text
            continue
        check(cron, list(said.played(clock, gap, fold)), clock[0][0] - TICK, clock[-1][0])
