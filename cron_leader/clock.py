"""Two clocks that never mix: the wall schedules, the boot-time clock leases; and a wall timer.

`boot_ns` runs on through suspend (CLOCK_BOOTTIME; CLOCK_MONOTONIC where there is none, macOS).
"""

from __future__ import annotations

import errno
import os
import sys
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    import asyncio

_BOOT = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class Clock(Protocol):
    """What code that needs the time is given."""

    def wall(self) -> datetime:
        """The wall clock, aware UTC, microseconds."""

    def boot_ns(self) -> int:
        """Nanoseconds since boot; never steps, counts suspend."""


class SystemClock:
    """The machine's clocks."""

    def wall(self) -> datetime:
        return _EPOCH + timedelta(microseconds=time.time_ns() // 1000)

    def boot_ns(self) -> int:
        return time.clock_gettime_ns(_BOOT)


_PHASE_NS = int.from_bytes(os.urandom(8), "big")


def next_beat(now_ns: int, period_ns: int, phase_ns: int = _PHASE_NS) -> int:
    """The first instant after now_ns, at most a period away, at which this process does whatever it
    does at that period: what is idle wakes once for all of it. phase_ns: which instants those are
    is drawn per process, so that many on one machine do not wake together."""
    return now_ns + period_ns - (now_ns - phase_ns) % period_ns


class WallTimer:
    """Calls on_fire once the wall clock has reached the time set, and never before.

    on_step is called when the wall clock was set: at once on Linux, within a second elsewhere;
    whoever plans by the clock looks at it again. One time at a time; both run as loop callbacks.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        on_fire: Callable[[], None],
        on_step: Callable[[], None],
    ) -> None:
        self._on_fire = on_fire
        self._on_step = on_step
        self._at_ns: int | None = None
        self._open = True
        timer = _TimerFd if sys.platform.startswith("linux") else _LoopTimer
        self._timer: _TimerFd | _LoopTimer = timer(loop, self._woke)

    def set(self, at: datetime | None) -> None:
        """Fire at this time, instead of the one set before; None: not at all. The past is now."""
        self._at_ns = None if at is None else (at - _EPOCH) // _MICROSECOND * 1000
        self._timer.arm(self._at_ns)

    def close(self) -> None:
        """Nothing is called any more. Idempotent."""
        self._open = False
        self._timer.close()

    def _woke(self, stepped: bool) -> None:
        if not self._open:
            return
        due = self._at_ns is not None and time.time_ns() >= self._at_ns
        if due:
            self._at_ns = None
        self._timer.arm(self._at_ns)
        if stepped:
            self._on_step()
        if due and self._open:
            self._on_fire()


_MICROSECOND = timedelta(microseconds=1)
_NEVER_NS = 1 << 62  # the year 2116: armed all the same, for a step of the clock must wake us


class _TimerFd:
    """A timerfd on CLOCK_REALTIME that a step of the clock cancels (timerfd_create(2))."""

    def __init__(self, loop: asyncio.AbstractEventLoop, woke: Callable[[bool], None]) -> None:
        import ctypes  # os.timerfd_create is there from Python 3.13 on only

        self._libc = ctypes.CDLL(None, use_errno=True)
        self._spec = (ctypes.c_long * 4)()  # interval, value: seconds and nanoseconds each
        self._errno = ctypes.get_errno
        self._loop = loop
        self._woke = woke
        self._fd: int = self._libc.timerfd_create(time.CLOCK_REALTIME, os.O_NONBLOCK | os.O_CLOEXEC)
        if self._fd < 0:
            raise OSError(self._errno(), "timerfd_create")
        loop.add_reader(self._fd, self._readable)
        self.arm(None)

    def arm(self, at_ns: int | None) -> None:
        if self._fd < 0:
            return
        at_ns = _NEVER_NS if at_ns is None else max(at_ns, 1)  # zero would disarm it
        self._spec[2:] = list(divmod(at_ns, 1_000_000_000))
        absolute_and_cancelled_on_set = 1 | 2
        while self._libc.timerfd_settime(self._fd, absolute_and_cancelled_on_set, self._spec, None):
            if self._errno() != errno.ECANCELED:
                raise OSError(self._errno(), "timerfd_settime")
            self._loop.call_soon(self._woke, True)  # stepped since the last look; arm it again

    def close(self) -> None:
        if self._fd >= 0:
            self._loop.remove_reader(self._fd)
            os.close(self._fd)
            self._fd = -1

    def _readable(self) -> None:
        try:
            os.read(self._fd, 8)
            self._woke(False)
        except BlockingIOError:
            pass  # armed anew since
        except OSError as error:
            if error.errno != errno.ECANCELED:
                raise
            self._woke(True)


class _LoopTimer:
    """Where there is no timerfd: a loop timer that looks at the clocks at least once a second."""

    CHUNK_S = 1.0
    LAST_S = 0.002
    """A loop timer is up to a millisecond late: the last stretch is looked at again."""
    STEP_NS = 50_000_000

    def __init__(self, loop: asyncio.AbstractEventLoop, woke: Callable[[bool], None]) -> None:
        self._loop = loop
        self._woke = woke
        self._at_ns: int | None = None
        self._offset_ns = _offset_ns()
        self._handle = loop.call_later(self.CHUNK_S, self._look)

    def arm(self, at_ns: int | None) -> None:
        self._at_ns = at_ns
        self._again()

    def close(self) -> None:
        self._handle.cancel()

    def _again(self) -> None:
        self._handle.cancel()
        left_s = self.CHUNK_S
        if self._at_ns is not None:
            left_s = min(left_s, (self._at_ns - time.time_ns()) / 1e9)
        if left_s > self.LAST_S:
            left_s -= self.LAST_S
        self._handle = self._loop.call_later(max(left_s, 0.0), self._look)

    def _look(self) -> None:
        offset_ns = _offset_ns()
        stepped = abs(offset_ns - self._offset_ns) > self.STEP_NS
        self._offset_ns = offset_ns  # slewing adds up, and is no step
        if stepped or (self._at_ns is not None and time.time_ns() >= self._at_ns):
            self._woke(stepped)
        else:
            self._again()


def _offset_ns() -> int:
    return time.time_ns() - time.clock_gettime_ns(_BOOT)
