"""What users' own tests stand on: `slots` and `FakeClock`."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from cron_leader import Tick, job
from cron_leader.errors import ConfigError
from cron_leader.testing import FakeClock, slots

SEEN: list[Tick] = []


@job(cron="30 2 * * *", timezone="Europe/Warsaw", timeout="5m")
def nightly(tick: Tick) -> None:
    SEEN.append(tick)


@job(every="6h")
async def quarterly(tick: Tick) -> None:
    SEEN.append(tick)


@job(cron="H H * * *")
def spread(tick: Tick) -> None:
    raise RuntimeError(tick.job)


@job(cron="61 * * * *")
def broken(tick: Tick) -> None: ...


def plain(tick: Tick) -> None: ...


def utc(*parts: int) -> datetime:
    return datetime(*parts, tzinfo=UTC)  # type: ignore[misc, arg-type]


def test_the_slots_of_a_function_over_a_change_of_the_clock() -> None:
    assert slots(nightly, "2026-03-28T12:00Z", utc(2026, 3, 30, 0, 30)) == [
        utc(2026, 3, 29, 1),
        utc(2026, 3, 30, 0, 30),
    ]


def test_the_fleet_counts_where_the_schedule_has_a_hash() -> None:
    here, there = (
        slots(spread, "2026-01-01T00:00Z", "2026-01-02T00:00Z", fleet=fleet)
        for fleet in ("default", "other")
    )
    assert len(here) == len(there) == 1
    assert here != there


def test_however_a_clock_is_advanced_each_slot_comes_once_and_in_order() -> None:
    whole = FakeClock("2026-01-01T00:00Z", nightly, quarterly).advance(timedelta(days=2))
    clock = FakeClock("2026-01-01T00:00Z", nightly, quarterly)
    steps = [tick for _ in range(24) for tick in clock.advance(timedelta(hours=2))]
    told = [(tick.job, tick.scheduled_for) for tick in whole]
    assert told == [(tick.job, tick.scheduled_for) for tick in steps]
    assert [name for name, _ in told].count("quarterly") == 8
    assert [at for _, at in told] == sorted(at for _, at in told)
    assert clock.now == utc(2026, 1, 3)


def test_running_calls_functions_of_both_kinds_with_their_ticks() -> None:
    SEEN.clear()
    ticks = FakeClock("2026-01-01T01:00Z", quarterly, nightly).run(timedelta(hours=5))
    assert ticks == SEEN
    assert [tick.job for tick in ticks] == ["nightly", "quarterly"]
    assert ticks[0].run_deadline - ticks[0].scheduled_for == timedelta(minutes=5)


def test_what_a_function_raises_comes_through() -> None:
    with pytest.raises(RuntimeError, match="spread"):
        FakeClock("2026-01-01T00:00Z", spread).run(timedelta(days=1))


def test_wrong_use_is_refused_and_says_why() -> None:
    with pytest.raises(LookupError, match="plain is no job: mark it with @job"):
        FakeClock("2026-01-01T00:00Z", plain)
    with pytest.raises(ConfigError, match="61 is not in 0-59"):
        slots(broken, "2026-01-01T00:00Z", "2026-01-02T00:00Z")
    with pytest.raises(ValueError, match="an offset is missing"):
        slots(nightly, "2026-01-01T00:00", "2026-01-02T00:00Z")
    with pytest.raises(ValueError, match="only goes forward"):
        FakeClock("2026-01-01T00:00Z").advance(-timedelta(seconds=1))
