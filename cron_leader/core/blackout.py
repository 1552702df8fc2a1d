"""When a job is not to run: freezes, hours of the week, stretches after a cron time, holidays.

A slot in a blackout is `skipped`; what starts late (catch-up, retries) waits for its end. Windows
are half-open, [from, to). Days and hours are local: a window opens and closes when the clock first
shows its time, or jumps over it.

Not decided here: what becomes of a slot (plan), when a waiting run may go (dispatch).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import date, datetime, time, timedelta
from typing import Protocol
from zoneinfo import ZoneInfo

from cron_leader.core.schedule import Cron, Schedule, ScheduleError, instant_of, zone_named

_DAY = timedelta(days=1)
_TICK = timedelta.resolution
_AHEAD_DAYS = 400
"""How far a search for the next window looks at once: in a year each holiday comes by."""
_MOST_JOINED = 1000
"""Windows that are taken for one blackout; beyond, it is told as several."""
_LOOK_AHEAD = timedelta(days=5 * 366)
"""A schedule with no slot outside of its blackouts for so long has none."""


class Window(Protocol):
    """A set of stretches of time, the same whoever asks and whenever."""

    def until(self, at: datetime) -> datetime | None:
        """The end of the stretch that an instant lies in; None if it lies in none."""

    def clear_to(self, at: datetime) -> datetime | None:
        """An instant after `at` before which none begins; None if none begins ever after."""


@dataclass(frozen=True, slots=True)
class Freeze:
    """One stretch."""

    start: datetime
    end: datetime

    def __post_init__(self) -> None:
        if self.start >= self.end:
            raise ScheduleError("to must be later than from")

    def until(self, at: datetime) -> datetime | None:
        return self.end if self.start <= at < self.end else None

    def clear_to(self, at: datetime) -> datetime | None:
        return self.start if at < self.start else None


@dataclass(frozen=True, slots=True)
class After:
    """So long after each slot of a schedule."""

    schedule: Cron
    duration: timedelta

    def until(self, at: datetime) -> datetime | None:
        start = self.schedule.prev_before(at + _TICK)
        return start + self.duration if start and at < start + self.duration else None

    def clear_to(self, at: datetime) -> datetime | None:
        return self.schedule.next_after(at)


@dataclass(frozen=True, slots=True)
class Hours:
    """From one time of day to another on some days; to the next day's if that is not later.

    Midnight to midnight is the whole day. days: whether a date is one of them.
    """

    days: Callable[[date], bool]
    opens: time = time.min
    closes: time = time.min
    zone: str = "UTC"

    def __post_init__(self) -> None:
        zone_named(self.zone)

    def until(self, at: datetime) -> datetime | None:
        today = at.astimezone(ZoneInfo(self.zone)).date()
        # Yesterday's may go on; where the clock is set back over midnight, tomorrow's has begun.
        stretches = [self._on(today + n * _DAY) for n in (-1, 0, 1)]
        return max((end for start, end in stretches if start <= at < end), default=None)

    def clear_to(self, at: datetime) -> datetime | None:
        day = at.astimezone(ZoneInfo(self.zone)).date()
        for _ in range(_AHEAD_DAYS):
            if self.days(day) and (start := self._on(day)[0]) > at:
                return start
            day += _DAY
        return at + (_AHEAD_DAYS - 2) * _DAY

    def _on(self, day: date) -> tuple[datetime, datetime]:
        """The window that a day has, from and to the same instant if it has none."""
        zone = ZoneInfo(self.zone)
        start = instant_of(zone, datetime.combine(day, self.opens))
        if not self.days(day):
            return start, start
        last = day if self.opens < self.closes else day + _DAY
        return start, instant_of(zone, datetime.combine(last, self.closes))


@dataclass(frozen=True, slots=True)
class Blackout:
    """All windows of a job; where they overlap or touch, they are one."""

    windows: tuple[Window, ...]

    def until(self, at: datetime) -> datetime | None:
        """When the blackout that an instant lies in is over; None if it lies in none."""
        end = None
        for _ in range(_MOST_JOINED):
            ends = [to for window in self.windows if (to := window.until(end or at))]
            if not ends:
                break
            end = max(ends)
        return end

    def clear_to(self, at: datetime) -> datetime | None:
        """As a Window's."""
        ends = [to for window in self.windows if (to := window.clear_to(at))]
        return min(ends, default=None)


@dataclass(frozen=True, slots=True)
class Stretch:
    """A part of (after, upto] that is in a blackout as a whole, or not at all."""

    after: datetime
    upto: datetime
    dark: bool


def stretches(blackout: Blackout | None, after: datetime, upto: datetime) -> Iterator[Stretch]:
    """(after, upto] in parts, ascending; one part if there is no blackout."""
    while after < upto:
        at = after + _TICK  # the first instant that counts
        end = blackout.until(at) if blackout else None
        edge = end if end or not blackout else blackout.clear_to(at)
        last = upto if edge is None else min(edge - _TICK, upto)
        yield Stretch(after, last, end is not None)
        after = last


def next_outside(schedule: Schedule, blackout: Blackout | None, t: datetime) -> datetime | None:
    """The first slot strictly after t in no blackout; None also if there is none for five years."""
    at = schedule.next_after(t)
    while blackout and at is not None and (until := blackout.until(at)):
        at = schedule.next_after(until - _TICK) if until < t + _LOOK_AHEAD else None
    return at
