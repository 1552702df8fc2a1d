"""The wall timer: never early, hardly late, and woken by a step of the clock."""

from __future__ import annotations

import asyncio
import errno
import os
import statistics
import sys
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta

import pytest

from cron_leader import clock
from cron_leader.clock import SystemClock, WallTimer

PATIENCE_S = 10.0
LINUX = sys.platform.startswith("linux")
wall = SystemClock().wall


@pytest.fixture(params=["timerfd", "loop"])
def platform(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Both timers, wherever the tests run."""
    kind: str = request.param
    if kind == "loop":
        monkeypatch.setattr(clock.sys, "platform", "darwin")
    elif not LINUX:
        pytest.skip("timerfd is Linux's")
    return kind


class Watcher:
    """A timer, and when it called."""

    def __init__(self) -> None:
        self.fired: asyncio.Queue[datetime] = asyncio.Queue()
        self.stepped: asyncio.Queue[datetime] = asyncio.Queue()
        self.timer = WallTimer(
            asyncio.get_running_loop(),
            on_fire=lambda: self.fired.put_nowait(wall()),
            on_step=lambda: self.stepped.put_nowait(wall()),
        )


@pytest.fixture
async def watcher(platform: str) -> Iterator[Watcher]:
    it = Watcher()
    yield it
    it.timer.close()


async def next_of(queue: asyncio.Queue[datetime]) -> datetime:
    async with asyncio.timeout(PATIENCE_S):
        return await queue.get()


async def test_it_fires_at_its_time_never_before_and_hardly_after(watcher: Watcher) -> None:
    late_ms = []
    for _ in range(25):
        at = wall() + timedelta(milliseconds=15.3)
        watcher.timer.set(at)
        late_ms.append((await next_of(watcher.fired) - at) / timedelta(milliseconds=1))
    assert min(late_ms) >= 0
    assert statistics.median(late_ms) < 5


@pytest.mark.parametrize("at", [datetime(1970, 1, 1, tzinfo=UTC), datetime(2001, 2, 3, tzinfo=UTC)])
async def test_the_past_is_now(watcher: Watcher, at: datetime) -> None:
    watcher.timer.set(at)
    await next_of(watcher.fired)


async def test_it_fires_once_at_the_time_set_last(watcher: Watcher) -> None:
    watcher.timer.set(wall() + timedelta(milliseconds=5))
    at = wall() + timedelta(milliseconds=60)
    watcher.timer.set(at)
    assert await next_of(watcher.fired) >= at
    watcher.timer.set(None)
    assert watcher.fired.empty()


async def test_unset_or_closed_it_calls_nobody(watcher: Watcher) -> None:
    other = Watcher()
    for timer in (watcher.timer, other.timer):
        timer.set(wall() + timedelta(milliseconds=5))
    watcher.timer.set(None)
    other.timer.close()
    other.timer.close()
    other.timer.set(wall())
    proof = Watcher()
    proof.timer.set(wall() + timedelta(milliseconds=30))
    await next_of(proof.fired)
    proof.timer.close()
    assert watcher.fired.empty()
    assert other.fired.empty()


async def test_a_callback_may_set_it_again(platform: str) -> None:
    times: list[datetime] = []
    done = asyncio.Event()

    def fire() -> None:
        times.append(wall())
        timer.set(wall() + timedelta(milliseconds=5))
        if len(times) == 3:
            done.set()

    timer = WallTimer(asyncio.get_running_loop(), on_fire=fire, on_step=lambda: None)
    timer.set(wall())
    async with asyncio.timeout(PATIENCE_S):
        await done.wait()
    timer.close()
    assert times == sorted(times)


async def test_no_descriptor_is_left_behind(platform: str) -> None:
    before = len(os.listdir("/dev/fd"))
    for _ in range(20):
        Watcher().timer.close()
    assert len(os.listdir("/dev/fd")) == before


def set_the_clock(watcher: Watcher, platform: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Really where we may, and then to what it shows; else as if."""
    if platform == "loop":
        monkeypatch.setattr(clock, "_offset_ns", lambda: 0)
        return
    try:
        time.clock_settime_ns(time.CLOCK_REALTIME, time.time_ns())
    except PermissionError:
        with monkeypatch.context() as patch:
            patch.setattr(clock.os, "read", _cancelled)
            watcher.timer._timer._readable()


def _cancelled(fd: int, size: int) -> bytes:
    raise OSError(errno.ECANCELED, "the clock was set")


async def test_setting_the_clock_is_told_within_a_second(
    watcher: Watcher, platform: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    watcher.timer.set(wall() + timedelta(hours=1))
    began = time.monotonic()
    set_the_clock(watcher, platform, monkeypatch)
    await next_of(watcher.stepped)
    assert time.monotonic() - began < 1.5
    assert watcher.fired.empty()


async def test_after_a_step_it_still_fires(
    watcher: Watcher, platform: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    set_the_clock(watcher, platform, monkeypatch)
    await next_of(watcher.stepped)
    at = wall() + timedelta(milliseconds=20)
    watcher.timer.set(at)
    assert await next_of(watcher.fired) >= at
