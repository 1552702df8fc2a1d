"""Slots about clock changes are those of Debian cron, and of whoever was told otherwise: each is
played by minutes, over expressions drawn at random."""

from __future__ import annotations

import random
from datetime import UTC, datetime, timedelta
from functools import cache
from importlib import resources
from itertools import islice
from pathlib import Path
from struct import unpack
from zoneinfo import TZPATH, ZoneInfo, available_timezones

import pytest

from cron_leader.core.schedule import DstFold, DstGap, clock_changes, parse_cron
from tests.core.test_schedule import (
    AROUND,
    MINUTE,
    TICK,
    Drawn,
    check_against,
    draw,
    fires,
    utc,
)

CHANGES = {
    "Europe/Warsaw": ("2017-03-26T01:00Z", "2017-10-29T01:00Z"),
    "America/New_York": ("2026-03-08T07:00Z", "2026-11-01T06:00Z"),
    "America/Sao_Paulo": ("2018-11-04T03:00Z", "2018-02-18T02:00Z"),
    "America/Boa_Vista": ("2000-10-08T04:00Z", "2000-10-15T03:00Z"),
    "America/Goose_Bay": ("2010-11-07T03:01Z",),
    "America/Havana": ("2025-03-09T05:00Z", "2025-11-02T05:00Z"),
    "America/Caracas": ("2007-12-09T07:00Z",),
    "America/Scoresbysund": ("2024-03-31T01:00Z",),
    "Asia/Beirut": ("2022-03-26T22:00Z", "2022-10-29T21:00Z"),
    "Asia/Pyongyang": ("2018-05-04T15:00Z",),
    "Africa/Freetown": (
        "1939-09-01T01:00Z",
        "1939-09-05T00:40Z",
    ),
    "Africa/Casablanca": ("2025-02-23T02:00Z", "2025-04-06T02:00Z"),
    "Antarctica/Troll": ("2025-03-30T01:00Z", "2025-10-26T01:00Z"),
    "Australia/Lord_Howe": ("2025-10-04T15:30Z", "2025-04-05T15:00Z"),
    "Pacific/Apia": ("2011-12-30T10:00Z",),
    "UTC": ("2024-02-29T12:00Z",),
}


@cache
def clock_around(zone: str, change: str) -> list[tuple[datetime, datetime]]:
    return clock_of(zone, utc(change), AROUND)


def clock_of(zone: str, change: datetime, around: timedelta) -> list[tuple[datetime, datetime]]:
    """Each UTC minute about a change, and what a clock on the wall shows then."""
    start, tz = change - around, ZoneInfo(zone)
    instants = [start + n * MINUTE for n in range(2 * around // MINUTE)]
    return [(at, at.astimezone(tz).replace(tzinfo=None)) for at in instants]


def debian_cron(drawn: Drawn, clock: list[tuple[datetime, datetime]]) -> list[datetime]:
    """What a daemon that looks at the clock each minute, as Debian's does, runs."""
    minute, hour, *_ = drawn.text.split()
    if minute.startswith("*") or hour.startswith("*"):
        return [at for at, local in clock if drawn.matches(local)]
    runs, seen = [], clock[0][1] - MINUTE
    for at, local in clock:
        due = False
        while seen < local:  # one minute each turn, or all those that were jumped over
            seen += MINUTE
            due |= drawn.matches(seen)
        if due:
            runs.append(at)
    return runs


@pytest.mark.parametrize(
    ("zone", "change"), [(zone, at) for zone, changes in CHANGES.items() for at in changes]
)
def test_slots_around_a_clock_change_are_those_debian_cron_runs(zone: str, change: str) -> None:
    rng = random.Random(f"{zone} {change}")
    clock = clock_around(zone, change)
    for _ in range(4):
        drawn = draw(rng, clock[len(clock) // 2][1])
        check_against(parse_cron(drawn.text, zone), debian_cron(drawn, clock), clock, rng)


def clock_watcher(
    drawn: Drawn, clock: list[tuple[datetime, datetime]], gap: DstGap, fold: DstFold
) -> list[datetime]:
    """What one runs who looks at the clock each minute and was told how to take its changes."""
    runs, before, latest = [], clock[0][1] - MINUTE, clock[0][1] - MINUTE
    for at, local in clock:
        due = drawn.matches(local) and (fold is DstFold.TWICE or local > latest)
        while gap is DstGap.RUN and (before := before + MINUTE) < local:
            due |= drawn.matches(before) and (fold is DstFold.TWICE or before > latest)
        before, latest = local, max(latest, local)
        if due:
            runs.append(at)
    return runs


@pytest.mark.parametrize("gap", DstGap)
@pytest.mark.parametrize("fold", DstFold)
@pytest.mark.parametrize("zone", CHANGES)
def test_clock_changes_are_taken_as_told(zone: str, gap: DstGap, fold: DstFold) -> None:
    rng = random.Random(f"{zone} {gap} {fold}")
    for change in CHANGES[zone]:
        clock = clock_around(zone, change)
        for _ in range(2):
            drawn = draw(rng, clock[len(clock) // 2][1])
            schedule = parse_cron(drawn.text, zone, dst_gap=gap, dst_fold=fold)
            check_against(schedule, clock_watcher(drawn, clock, gap, fold), clock, rng)


# ------------------------------------------------------------------ all there are


def each_kind_of_change() -> dict[tuple[int, int], tuple[str, datetime]]:
    """All that clocks have done since 1970 and will do by rules of today, in any zone: by how many
    seconds they are set, and at which second of the local day; with one zone and time of each."""
    kinds: dict[tuple[int, int], tuple[str, datetime]] = {}
    known, rules = set(), {}
    for zone in sorted(available_timezones() - {"localtime"}):
        data = zone_data(zone)
        if data in known:
            continue
        known.add(data)
        changes, rule = changes_in(data)
        rules.setdefault(rule, zone)
        for at, before, after in changes:
            if at >= 0 and (after - before) % 60 == 0:  # not Monrovia's, of 1972: played by minutes
                kinds.setdefault((after - before, (at + before) % 86400), (zone, instant(at)))
    for zone in rules.values():
        for change in clock_changes(zone, utc("2099-01-01T00:00Z"), utc("2100-01-01T00:00Z")):
            at, tick = int(change.timestamp()), timedelta(microseconds=1)
            before, after = (offset_s(zone, when) for when in (change - tick, change))
            kinds.setdefault((after - before, (at + before) % 86400), (zone, change))
    return kinds


def instant(seconds: int) -> datetime:
    return datetime.fromtimestamp(seconds, UTC)


def offset_s(zone: str, at: datetime) -> int:
    offset = at.astimezone(ZoneInfo(zone)).utcoffset()
    assert offset is not None
    return int(offset.total_seconds())


def zone_data(zone: str) -> bytes:
    files = (Path(folder) / zone for folder in TZPATH)
    found = next((file for file in files if file.is_file()), None)
    return (found or resources.files("tzdata") / "zoneinfo" / zone).read_bytes()


def changes_in(data: bytes) -> tuple[list[tuple[int, int, int]], bytes]:
    """The times of a TZif file (RFC 8536, 64 bits) with the offsets before and after, and its rule
    for what comes later."""
    _, _, start = _header(data, 0, 5)
    (times, types, names, leaps, standards, universals), at, _ = _header(data, start, 9)
    whens = unpack(f">{times}q", data[at : at + 8 * times])
    which = data[at + 8 * times : at + 9 * times]
    at += 9 * times
    offsets = [unpack(">l", data[at + 6 * n : at + 6 * n + 4])[0] for n in range(types)]
    rule = data[at + 6 * types + names + 12 * leaps + standards + universals :].strip()
    of = [offsets[n] for n in which]
    return [(t, a, b) for t, a, b in zip(whens[1:], of, of[1:], strict=False) if a != b], rule


def _header(data: bytes, at: int, per_time: int) -> tuple[tuple[int, ...], int, int]:
    """The counts of a block, where its data begins, and where the next block does."""
    universals, standards, leaps, times, types, names = unpack(">20x6l", data[at : at + 44])
    size = times * per_time + types * 6 + names + leaps * (per_time + 3)
    counts = (times, types, names, leaps, standards, universals)
    return counts, at + 44, at + 44 + size + standards + universals


def test_each_kind_of_change_that_any_zone_has_is_taken_as_debian_cron_does() -> None:
    kinds = each_kind_of_change()
    assert len(kinds) > 50
    for (_, second), (zone, change) in kinds.items():
        rng = random.Random(f"{zone} {change}")
        clock = clock_of(zone, change, timedelta(hours=5))
        hour, minute = divmod(second // 60, 60)
        every_day, never = frozenset(range(1, 32)), frozenset(range(7))
        met = Drawn(
            f"{minute} {hour} * * *", frozenset({minute}), frozenset({hour}), every_day, never
        )
        for drawn in (met, draw(rng, clock[len(clock) // 2][1])):
            schedule, runs = parse_cron(drawn.text, zone), debian_cron(drawn, clock)
            begin, end = clock[0][0] - TICK, clock[-1][0]
            label = (zone, change, drawn.text)
            slots = [at for at in islice(fires(schedule, begin), len(runs) + 1) if at <= end]
            assert slots == runs, label
            backwards = [schedule.prev_before(at) for at in [*runs[1:], end + TICK]]
            assert backwards == runs or not runs, label
            assert schedule.count(begin, end) == len(runs), label
