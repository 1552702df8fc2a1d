"""Slots about clock changes are those of Debian cron, and of whoever was told otherwise: each is
played by minutes, over expressions drawn at random."""

from __future__ import annotations

import random
from datetime import datetime
from functools import cache
from zoneinfo import ZoneInfo

import pytest

from cron_leader.core.schedule import DstFold, DstGap, parse_cron
from tests.core.test_schedule import AROUND, MINUTE, Drawn, check_against, draw, utc

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
    """Each UTC minute about a change, and what a clock on the wall shows then."""
    start, tz = utc(change) - AROUND, ZoneInfo(zone)
    instants = [start + n * MINUTE for n in range(2 * AROUND // MINUTE)]
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
