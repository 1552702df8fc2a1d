"""Two clocks that never mix: the wall schedules, the boot-time clock leases.

`boot_ns` runs on through suspend (CLOCK_BOOTTIME; CLOCK_MONOTONIC where there is none, macOS).
"""

from __future__ import annotations

import time
from datetime import UTC, datetime, timedelta
from typing import Protocol

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
