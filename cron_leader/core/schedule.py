"""When a job is due: cron in a time zone, a fixed period, or once. All instants are aware UTC.

Clock changes follow Debian cron. A cron job whose minute or hour starts with `*` follows elapsed
time: it fires at each instant whose local time matches, in both halves of an autumn hour, and at
none that spring left out. Any other job has fixed times: one left out by spring fires at the
instant the clock jumped, once (several times in one gap are one slot), and none fires twice in
autumn. Expressions with seconds follow elapsed time. `DstGap` and `DstFold` choose otherwise.
cronsim's iterator is not used for this: it misses slots where clocks move by half an hour
(Australia/Lord_Howe) and steps into the past when started inside a repeated hour.

Not promised: the same slots on two nodes whose time zone data differ.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from difflib import get_close_matches
from enum import StrEnum
from functools import lru_cache
from heapq import merge
from itertools import groupby
from typing import Protocol
from zoneinfo import ZoneInfo, available_timezones

from cron_leader.core.cron import HORIZON_YEARS, CronFields, ScheduleError, read_cron, spread

__all__ = [
    "EPOCH",
    "At",
    "Bounded",
    "Cron",
    "DstFold",
    "DstGap",
    "Every",
    "Schedule",
    "ScheduleError",
    "Union",
    "clock_changes",
    "instant_of",
    "parse_cron",
    "zone_named",
    "zone_of",
]

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


class DstGap(StrEnum):
    """What becomes of times that a clock set forward jumps over."""

    RUN = "run"
    SKIP = "skip"


class DstFold(StrEnum):
    """How often times fire that a clock set back shows twice."""

    ONCE = "once"
    TWICE = "twice"


@dataclass(frozen=True, slots=True)
class Cron:
    """A cron expression on the local time of a zone; raises ScheduleError.

    dst_gap, dst_fold: None is as Debian cron does: skip and twice where the expression follows
    elapsed time, else run and once. RUN fires at the instant the clock jumped, once.
    """

    expression: str
    zone: str = "UTC"
    dst_gap: DstGap | None = None
    dst_fold: DstFold | None = None
    _fields: CronFields = field(init=False, repr=False, compare=False)
    _clock: _Clock = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        fields = read_cron(self.expression)
        gap, fold = self.dst_gap, self.dst_fold
        runs = not fields.elapsed if gap is None else gap is DstGap.RUN
        twice = fields.elapsed if fold is None else fold is DstFold.TWICE
        object.__setattr__(self, "_fields", fields)
        object.__setattr__(self, "_clock", _clock(self.zone, runs, twice))

    @property
    def digest(self) -> str:
        gap = "" if self._clock.gap_runs is not self._fields.elapsed else f" gap {self.dst_gap}"
        fold = "" if self._clock.twice is self._fields.elapsed else f" fold {self.dst_fold}"
        return f"cron {self._fields.text} {self.zone}{gap}{fold}"

    @property
    def elapsed(self) -> bool:
        """Whether it follows elapsed time; else its times are fixed."""
        return self._fields.elapsed

    @property
    def each_hour(self) -> bool:
        """Whether it fires in each hour of the days that match."""
        return len({minute // 60 for minute in self._fields.minutes}) == 24

    def next_after(self, t: datetime) -> datetime | None:
        return _next_after(self._fields, self._clock, t.astimezone(UTC))

    def prev_before(self, t: datetime) -> datetime | None:
        return _prev_before(self._fields, self._clock, t.astimezone(UTC))

    def count(self, after: datetime, upto: datetime) -> int:
        return _count(self._fields, self._clock, after.astimezone(UTC), upto.astimezone(UTC))


def parse_cron(
    expression: str,
    zone: str = "UTC",
    *,
    seed: str = "",
    dst_gap: DstGap | None = None,
    dst_fold: DstFold | None = None,
) -> Cron:
    """A Cron with its blanks tidied and its `H` drawn by the seed, the fleet's and job's names.

    Raises ScheduleError naming the field and the reason.
    """
    return _shared(" ".join(spread(expression, seed).split()), zone, dst_gap, dst_fold)


@lru_cache(maxsize=8192)
def _shared(expression: str, zone: str, dst_gap: DstGap | None, dst_fold: DstFold | None) -> Cron:
    """One Cron for all jobs that have it."""
    return Cron(expression, zone, dst_gap, dst_fold)


@dataclass(frozen=True, slots=True)
class Union:
    """The slots of several schedules (at least one): an instant that two of them have is one."""

    members: tuple[Schedule, ...]

    @property
    def digest(self) -> str:
        return " | ".join(sorted({member.digest for member in self.members}))

    def next_after(self, t: datetime) -> datetime | None:
        found = (member.next_after(t) for member in self.members)
        return min((at for at in found if at is not None), default=None)

    def prev_before(self, t: datetime) -> datetime | None:
        found = (member.prev_before(t) for member in self.members)
        return max((at for at in found if at is not None), default=None)

    def count(self, after: datetime, upto: datetime) -> int:
        """Counts the densest member as a whole; goes through the others' slots one by one."""
        *others, densest = sorted(self.members, key=lambda member: member.count(after, upto))
        slots = (at for at, _ in groupby(merge(*(_slots(one, after, upto) for one in others))))
        alone = sum(densest.next_after(at - _TICK) != at for at in slots)
        return densest.count(after, upto) + alone


@dataclass(frozen=True, slots=True)
class Bounded:
    """The slots of a schedule from `start` (inclusive) to `end` (exclusive); None: no bound."""

    schedule: Schedule
    start: datetime | None = None
    end: datetime | None = None

    def __post_init__(self) -> None:
        for name in ("start", "end"):
            at = getattr(self, name)
            object.__setattr__(self, name, at and _utc(at, name))
        if self.start and self.end and self.start >= self.end:
            raise ScheduleError("end must be later than start")
        if self._is_empty():
            raise ScheduleError("never fires: there is no slot from start to end")

    @property
    def digest(self) -> str:
        bounds = {"from": self.start, "to": self.end}
        said = (f" {word} {at.isoformat()}" for word, at in bounds.items() if at)
        return self.schedule.digest + "".join(said)

    def next_after(self, t: datetime) -> datetime | None:
        if self.start and t < self.start:
            t = self.start - _TICK
        at = self.schedule.next_after(t)
        return None if at is None or (self.end and at >= self.end) else at

    def prev_before(self, t: datetime) -> datetime | None:
        at = self.schedule.prev_before(min(t, self.end) if self.end else t)
        return None if at is None or (self.start and at < self.start) else at

    def count(self, after: datetime, upto: datetime) -> int:
        if self.start:
            after = max(after, self.start - _TICK)
        if self.end:
            upto = min(upto, self.end - _TICK)
        return self.schedule.count(after, upto) if after < upto else 0

    def _is_empty(self) -> bool:
        # Asked at a bound: at the calendar's ends a zone's clock may show no time.
        if self.end:
            return self.prev_before(self.end) is None
        return self.start is not None and self.next_after(self.start - _TICK) is None


def clock_changes(zone: str, after: datetime, upto: datetime) -> tuple[datetime, ...]:
    """The instants in (after, upto] at which a zone's offset changes, ascending."""
    return _changes_between(zone_named(zone), after, upto)


def zone_of(schedule: Schedule) -> str:
    """The zone in which people read its times; of several, the first one's."""
    match schedule:
        case Cron(zone=zone):
            return zone
        case Bounded(schedule=inner) | Union(members=(inner, *_)):
            return zone_of(inner)
        case _:
            return "UTC"


def _slots(schedule: Schedule, after: datetime, upto: datetime) -> Iterator[datetime]:
    """The slots in (after, upto], ascending."""
    at = schedule.next_after(after)
    while at is not None and at <= upto:
        yield at
        at = schedule.next_after(at)


@dataclass(frozen=True, slots=True, eq=False)
class _Clock:
    """A zone's clock, and what its changes do to slots; equal only to itself.

    gap_runs: times jumped over fire at the instant of the jump; twice: repeated times fire twice.
    """

    zone: ZoneInfo
    gap_runs: bool
    twice: bool


@lru_cache(maxsize=4096)
def _clock(zone: str, gap_runs: bool, twice: bool) -> _Clock:
    return _Clock(zone_named(zone), gap_runs, twice)


# Answers are remembered: jobs by the thousand share few schedules, and a leader asks all of them
# about the same instants. They depend on nothing else, so none goes stale.


@lru_cache(maxsize=8192)
def _next_after(fields: CronFields, clock: _Clock, t: datetime) -> datetime | None:
    try:
        return (_elapsed_after if clock.twice else _fixed_after)(fields, clock, t)
    except OverflowError:  # the calendar's end
        return None


@lru_cache(maxsize=8192)
def _prev_before(fields: CronFields, clock: _Clock, t: datetime) -> datetime | None:
    try:
        return (_elapsed_before if clock.twice else _fixed_before)(fields, clock, t)
    except OverflowError:
        return None


@lru_cache(maxsize=8192)
def _count(fields: CronFields, clock: _Clock, after: datetime, upto: datetime) -> int:
    first, last = _next_after(fields, clock, after), _prev_before(fields, clock, upto + _TICK)
    if first is None or last is None or last < first:
        return 0
    count = _elapsed_count if clock.twice else _fixed_count
    return 1 + count(fields, clock, first, last)


# ------------------------------------------------------------------ fixed times


def _fixed_after(fields: CronFields, clock: _Clock, t: datetime) -> datetime | None:
    # `instant_of` never falls as local times rise, so the first one that passes t is the next slot.
    local = fields.after(_local(clock.zone, t))
    while (at := instant_of(clock.zone, local)) <= t or not _fires(clock, local, at):
        if at - t > _HORIZON:  # a time that every spring leaves out
            return None
        local = fields.after(local)
    return at


def _fixed_before(fields: CronFields, clock: _Clock, t: datetime) -> datetime | None:
    # In the second half of a repeated hour, times still to come on the clock have had their slot:
    # start from what the clock would show, had it not been set back.
    first_half = t.astimezone(clock.zone).replace(fold=0)
    local = fields.before(_shifted(t, _utcoffset(first_half)))
    while (at := instant_of(clock.zone, local)) >= t or not _fires(clock, local, at):
        if t - at > _HORIZON:
            return None
        local = fields.before(local)
    return at


def _fires(clock: _Clock, local: datetime, at: datetime) -> bool:
    """Whether a local time that came, or was jumped over, at an instant fires."""
    return clock.gap_runs or _local(clock.zone, at) == local


def _fixed_count(fields: CronFields, clock: _Clock, first: datetime, last: datetime) -> int:
    """How many slots lie in (first, last], both being slots."""
    count = fields.count(_local(clock.zone, first), _local(clock.zone, last))
    for change in _changes_between(clock.zone, first, last):
        resumed = _local(clock.zone, change)
        stopped = _local(clock.zone, change - _TICK)
        if resumed <= stopped:
            continue
        if clock.gap_runs:  # the times of one gap are one slot
            count -= max(0, fields.count(stopped, resumed) - 1)
        else:
            count -= fields.count(stopped, resumed - _TICK)
    return count


def instant_of(zone: ZoneInfo, local: datetime) -> datetime:
    """When the clock first showed a local time, or jumped over it."""
    at = local.replace(tzinfo=zone).astimezone(UTC)
    if _local(zone, at) == local:
        return at
    # In a gap fold=0 counts with the offset before it, fold=1 with the one after it.
    earlier = local.replace(tzinfo=zone, fold=1).astimezone(UTC)
    return next(iter(_changes_between(zone, earlier, at)))


# ------------------------------------------------------------------ elapsed time


def _elapsed_after(fields: CronFields, clock: _Clock, t: datetime) -> datetime | None:
    # From one change of the offset to the next, local time is UTC plus a constant.
    zone, start, end = clock.zone, t + _TICK, t + _HORIZON
    while start < end:
        if clock.gap_runs and _has_gap(fields, zone, start):
            return start
        offset = _offset(zone, start)
        at = _unshifted(fields.after(_shifted(start, offset) - _TICK), offset)
        change = next(iter(_changes_between(zone, start, at)), None)
        if change is None:
            return at
        start = change
    return None


def _elapsed_before(fields: CronFields, clock: _Clock, t: datetime) -> datetime | None:
    zone, start, end = clock.zone, t - _TICK, t - _HORIZON
    while start > end:
        offset = _offset(zone, start)
        at = _unshifted(fields.before(_shifted(start, offset) + _TICK), offset)
        change = next(reversed(_changes_between(zone, at, start)), None)
        if change is None:
            return at
        if clock.gap_runs and _has_gap(fields, zone, change):
            return change
        start = change - _TICK
    return None


def _elapsed_count(fields: CronFields, clock: _Clock, first: datetime, last: datetime) -> int:
    """How many slots lie in (first, last], both being slots."""
    zone, count, after = clock.zone, 0, first
    changes = _changes_between(zone, first, last)
    for end in (*changes, last + _TICK):
        offset = _offset(zone, after + _TICK)
        count += fields.count(_shifted(after, offset), _shifted(end - _TICK, offset))
        after = end - _TICK
    return count + (sum(_only_gap(fields, zone, at) for at in changes) if clock.gap_runs else 0)


def _has_gap(fields: CronFields, zone: ZoneInfo, at: datetime) -> bool:
    """Whether the clock jumps at an instant, over times that match."""
    stopped, resumed = _local(zone, at - _TICK), _local(zone, at)
    return resumed > stopped + _TICK and fields.count(stopped, resumed - _TICK) > 0


def _only_gap(fields: CronFields, zone: ZoneInfo, at: datetime) -> bool:
    """Whether the clock jumps over times that match, to one that does not."""
    resumed = _local(zone, at)
    return _has_gap(fields, zone, at) and not fields.count(resumed - _TICK, resumed)


# ------------------------------------------------------------------ zones

_STRIDE = timedelta(days=3)
"""Clocks go back and forth again within 7 days (Asia/Gaza, 2040), but never within 3."""
_STRIDES = 120
_LONGEST_ZONE = 40
_SUCH_AS = "write a zone such as 'Europe/Warsaw'"
_BLOCK = _STRIDES * _STRIDE


def zone_named(name: str) -> ZoneInfo:
    """The zone of that name; ScheduleError with the nearest one if there is none."""
    if why := _differs(name):
        raise ScheduleError(f"zone {name!r}: {why}")
    try:
        return ZoneInfo(name)
    except (KeyError, ValueError, OSError):  # not there, not a key, a folder
        known = {zone.lower(): zone for zone in available_timezones() if not _differs(zone)}
        near = get_close_matches(name.lower()[:_LONGEST_ZONE], known, n=1)
        cure = f"; did you mean {known[near[0]]!r}?" if near else ""
        if name.isupper() and len(name) <= 4:  # CEST is not nearly EST: nothing is guessed
            cure = f"; {_SUCH_AS}"
        raise ScheduleError(f"zone {name!r}: there is no such time zone{cure}") from None


def _differs(name: str) -> str:
    """Why the nodes of a fleet may not agree on the times of a zone; empty if they do."""
    folder, _, rest = name.partition("/")
    match folder:
        case "localtime" | "posixrules":
            return f"each machine has its own; {_SUCH_AS}"
        case "posix" | "right" if rest:  # right: with leap seconds, which would put slots 27 s off
            return f"not on each machine; write {rest!r}"
        case _:
            return ""


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
