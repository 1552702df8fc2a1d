"""When a job is due: cron in a time zone, a fixed period, or once. All instants are aware UTC.

Clock changes follow Debian cron. A cron job whose minute or hour starts with `*` follows elapsed
time: it fires at each instant whose local time matches, in both halves of an autumn hour, and at
none that spring left out. Any other job has fixed times: one left out by spring fires at the
instant the clock jumped, once (several times in one gap are one slot), and none fires twice in
autumn. cronsim's iterator is not used for this: it misses slots where clocks move by half an hour
(Australia/Lord_Howe) and steps into the past when started inside a repeated hour.

Not promised: the same slots on two nodes whose time zone data differ.
"""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from difflib import get_close_matches
from functools import lru_cache
from typing import Protocol
from zoneinfo import ZoneInfo, available_timezones

from cron_leader.core.cron import HORIZON_YEARS, CronFields, ScheduleError, read_cron

__all__ = ["EPOCH", "At", "Cron", "Every", "Schedule", "ScheduleError", "parse_cron"]

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
SHORTEST_PERIOD = timedelta(milliseconds=100)

_TICK = timedelta.resolution
_SECOND = timedelta(seconds=1)
_WEEK = timedelta(weeks=1)
_HORIZON = timedelta(days=366 * HORIZON_YEARS)


class Schedule(Protocol):
    """A set of slots: strictly ordered instants, the same whoever asks and whenever."""

    @property
    def digest(self) -> str:
        """Identifies the slots: stable over restarts and releases, equal for equal schedules."""

    def next_after(self, t: datetime) -> datetime | None:
        """The first slot strictly after t; None if there is none (within 50 years, for cron)."""

    def prev_before(self, t: datetime) -> datetime | None:
        """The last slot strictly before t; None if there is none."""

    def count(self, after: datetime, upto: datetime) -> int:
        """How many slots lie in (after, upto], without going through them one by one."""


@dataclass(frozen=True, slots=True)
class Every:
    """One slot each `period` (>= 100 ms, whole microseconds), counted from `anchor` both ways."""

    period: timedelta
    anchor: datetime = EPOCH

    def __post_init__(self) -> None:
        if self.period < SHORTEST_PERIOD:
            raise ScheduleError(f"every {self.period}: shorter than 100ms")
        object.__setattr__(self, "anchor", _utc(self.anchor, "anchor"))

    @property
    def digest(self) -> str:
        return f"every {self.period // _TICK}us from {self.anchor.isoformat()}"

    def next_after(self, t: datetime) -> datetime | None:
        return self._slot((t - self.anchor) // self.period + 1)

    def prev_before(self, t: datetime) -> datetime | None:
        return self._slot(-((self.anchor - t) // self.period) - 1)

    def count(self, after: datetime, upto: datetime) -> int:
        first, last = (after - self.anchor) // self.period, (upto - self.anchor) // self.period
        return max(0, last - first)

    def _slot(self, number: int) -> datetime | None:
        try:
            return self.anchor + number * self.period
        except OverflowError:
            return None


@dataclass(frozen=True, slots=True)
class At:
    """One slot, once."""

    when: datetime

    def __post_init__(self) -> None:
        object.__setattr__(self, "when", _utc(self.when, "at"))

    @property
    def digest(self) -> str:
        return f"at {self.when.isoformat()}"

    def next_after(self, t: datetime) -> datetime | None:
        return self.when if self.when > t else None

    def prev_before(self, t: datetime) -> datetime | None:
        return self.when if self.when < t else None

    def count(self, after: datetime, upto: datetime) -> int:
        return int(after < self.when <= upto)


@dataclass(frozen=True, slots=True)
class Cron:
    """A five-field cron expression on the local time of a zone; raises ScheduleError."""

    expression: str
    zone: str = "UTC"
    _fields: CronFields = field(init=False, repr=False, compare=False)
    _zone: ZoneInfo = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_fields", read_cron(self.expression))
        object.__setattr__(self, "_zone", _find_zone(self.zone))

    @property
    def digest(self) -> str:
        return f"cron {self._fields.text} {self.zone}"

    def next_after(self, t: datetime) -> datetime | None:
        return _next_after(self._fields, self._zone, t.astimezone(UTC))

    def prev_before(self, t: datetime) -> datetime | None:
        return _prev_before(self._fields, self._zone, t.astimezone(UTC))

    def count(self, after: datetime, upto: datetime) -> int:
        return _count(self._fields, self._zone, after.astimezone(UTC), upto.astimezone(UTC))


def parse_cron(expression: str, zone: str = "UTC") -> Cron:
    """A Cron with its blanks tidied; raises ScheduleError naming the field and the reason."""
    return Cron(" ".join(expression.split()), zone)


# Answers are remembered: jobs by the thousand share few schedules, and a leader asks all of them
# about the same instants. They depend on nothing else, so none goes stale.


@lru_cache(maxsize=8192)
def _next_after(fields: CronFields, zone: ZoneInfo, t: datetime) -> datetime | None:
    try:
        return (_elapsed_after if fields.elapsed else _fixed_after)(fields, zone, t)
    except OverflowError:  # the calendar's end
        return None


@lru_cache(maxsize=8192)
def _prev_before(fields: CronFields, zone: ZoneInfo, t: datetime) -> datetime | None:
    try:
        return (_elapsed_before if fields.elapsed else _fixed_before)(fields, zone, t)
    except OverflowError:
        return None


@lru_cache(maxsize=8192)
def _count(fields: CronFields, zone: ZoneInfo, after: datetime, upto: datetime) -> int:
    first, last = _next_after(fields, zone, after), _prev_before(fields, zone, upto + _TICK)
    if first is None or last is None or last < first:
        return 0
    count = _elapsed_count if fields.elapsed else _fixed_count
    return 1 + count(fields, zone, first, last)


# ------------------------------------------------------------------ fixed times


def _fixed_after(fields: CronFields, zone: ZoneInfo, t: datetime) -> datetime:
    # `_instant` never falls as local times rise, so the first one that passes t is the next slot.
    local = fields.after(_local(zone, t))
    while (at := _instant(zone, local)) <= t:
        local = fields.after(local)
    return at


def _fixed_before(fields: CronFields, zone: ZoneInfo, t: datetime) -> datetime:
    # In the second half of a repeated hour, times still to come on the clock have had their slot:
    # start from what the clock would show, had it not been set back.
    first_half = t.astimezone(zone).replace(fold=0)
    local = fields.before(_shifted(t, _utcoffset(first_half)))
    while (at := _instant(zone, local)) >= t:
        local = fields.before(local)
    return at


def _fixed_count(fields: CronFields, zone: ZoneInfo, first: datetime, last: datetime) -> int:
    """How many slots lie in (first, last], both being slots."""
    count = fields.count(_local(zone, first), _local(zone, last))
    for change in _changes_between(zone, first, last):
        resumed = _local(zone, change)
        stopped = _local(zone, change - _TICK)
        if resumed > stopped:  # the times of one gap are one slot
            count -= max(0, fields.count(stopped, resumed) - 1)
    return count


def _instant(zone: ZoneInfo, local: datetime) -> datetime:
    """When the clock first showed a local time, or jumped over it."""
    at = local.replace(tzinfo=zone).astimezone(UTC)
    if _local(zone, at) == local:
        return at
    # In a gap fold=0 counts with the offset before it, fold=1 with the one after it.
    earlier = local.replace(tzinfo=zone, fold=1).astimezone(UTC)
    return next(iter(_changes_between(zone, earlier, at)))


# ------------------------------------------------------------------ elapsed time


def _elapsed_after(fields: CronFields, zone: ZoneInfo, t: datetime) -> datetime | None:
    # From one change of the offset to the next, local time is UTC plus a constant.
    start, end = t + _TICK, t + _HORIZON
    while start < end:
        offset = _offset(zone, start)
        at = _unshifted(fields.after(_shifted(start, offset) - _TICK), offset)
        change = next(iter(_changes_between(zone, start, at)), None)
        if change is None:
            return at
        start = change
    return None


def _elapsed_before(fields: CronFields, zone: ZoneInfo, t: datetime) -> datetime | None:
    start, end = t - _TICK, t - _HORIZON
    while start > end:
        offset = _offset(zone, start)
        at = _unshifted(fields.before(_shifted(start, offset) + _TICK), offset)
        change = next(reversed(_changes_between(zone, at, start)), None)
        if change is None:
            return at
        start = change - _TICK
    return None


def _elapsed_count(fields: CronFields, zone: ZoneInfo, first: datetime, last: datetime) -> int:
    """How many slots lie in (first, last], both being slots."""
    count, after = 0, first
    for end in (*_changes_between(zone, first, last), last + _TICK):
        offset = _offset(zone, after + _TICK)
        count += fields.count(_shifted(after, offset), _shifted(end - _TICK, offset))
        after = end - _TICK
    return count


# ------------------------------------------------------------------ zones

_STRIDE = timedelta(days=3)
"""Clocks go back and forth again within 7 days (Asia/Gaza, 2040), but never within 3."""
_STRIDES = 120
_BLOCK = _STRIDES * _STRIDE


def _find_zone(name: str) -> ZoneInfo:
    try:
        return ZoneInfo(name)
    except (KeyError, ValueError, OSError):  # not there, not a key, a folder
        known = {zone.lower(): zone for zone in available_timezones()}
        near = get_close_matches(name.lower(), known, n=1)
        cure = f"; did you mean {known[near[0]]!r}?" if near else ""
        if name.isupper() and len(name) <= 4:  # CEST is not nearly EST: nothing is guessed
            cure = "; write a zone such as 'Europe/Warsaw'"
        raise ScheduleError(f"zone {name!r}: there is no such time zone{cure}") from None


def _changes_between(zone: ZoneInfo, after: datetime, upto: datetime) -> tuple[datetime, ...]:
    """The instants in (after, upto] at which the zone's offset changes, ascending."""
    blocks = range((after - EPOCH) // _BLOCK, (upto - EPOCH) // _BLOCK + 1)
    return tuple(at for block in blocks for at in _changes(zone, block) if after < at <= upto)


@lru_cache(maxsize=4096)
def _changes(zone: ZoneInfo, block: int) -> tuple[datetime, ...]:
    """The changes within one block of days; zoneinfo does not list them, so they are sought."""
    try:
        start = EPOCH + block * _BLOCK
        starts = [start + n * _STRIDE for n in range(_STRIDES)]
        return tuple(
            _change(zone, at) for at in starts if _offset(zone, at) != _offset(zone, at + _STRIDE)
        )
    except OverflowError:  # the block with an end of the calendar in it
        return ()


def _change(zone: ZoneInfo, start: datetime) -> datetime:
    """The first second after `start` with another offset; there is one within a stride."""
    before = _offset(zone, start)
    later = bisect_left(
        range(1, _STRIDE // _SECOND),
        True,
        key=lambda seconds: _offset(zone, start + seconds * _SECOND) != before,
    )
    return start + (later + 1) * _SECOND


def _offset(zone: ZoneInfo, at: datetime) -> timedelta:
    return _utcoffset(at.astimezone(zone))


def _utcoffset(aware: datetime) -> timedelta:
    offset = aware.utcoffset()
    assert offset is not None
    return offset


def _local(zone: ZoneInfo, at: datetime) -> datetime:
    return at.astimezone(zone).replace(tzinfo=None)


def _shifted(at: datetime, offset: timedelta) -> datetime:
    return (at + offset).replace(tzinfo=None)


def _unshifted(local: datetime, offset: timedelta) -> datetime:
    return local.replace(tzinfo=UTC) - offset


def _utc(at: datetime, what: str) -> datetime:
    if at.tzinfo is None:
        raise ScheduleError(f"{what} {at}: an offset is missing, as in 2026-12-01T09:00:00Z")
    return at.astimezone(UTC)
