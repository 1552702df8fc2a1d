"""How a week's slots crowd: how many fall in each minute, which are the fullest, who is in them.

Counted are slots as they are planned: jitter spreads starts, and blackouts thin them, on top.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from cron_leader.core.model import Job
from cron_leader.core.schedule import Schedule

_WEEK, _MINUTE, _TICK = timedelta(weeks=1), timedelta(minutes=1), timedelta.resolution
_DAYS = ("Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun")
_RAMP = " .:-=+*#%@"
"""From an hour without a slot to the fullest; ASCII, for any terminal and any log."""
_SHOWN = 3
_NAMED = 5


@dataclass(frozen=True, slots=True)
class Minute:
    """One minute of the week, and the jobs with a slot in it, as they are configured."""

    at: datetime
    slots: int
    jobs: tuple[str, ...]

    def fact(self) -> Mapping[str, object]:
        return {"at": self.at, "slots": self.slots, "jobs": list(self.jobs)}


@dataclass(frozen=True, slots=True)
class Herd:
    """The slots of (since, since + a week] by minute, in UTC.

    left_out: jobs with more than a slot a minute: they fall in all of them, and are not counted.
    """

    since: datetime
    minutes: Counter[datetime]
    left_out: int

    @property
    def most(self) -> int:
        """Slots in the fullest minute; 0 if there are none at all."""
        return max(self.minutes.values(), default=0)

    def fullest(self, jobs: Sequence[Job]) -> list[Minute]:
        """The fullest minutes, a few; of equals, the soonest first."""
        ranked = sorted(self.minutes.items(), key=lambda item: (-item[1], item[0]))
        return [Minute(at, slots, _within(jobs, at)) for at, slots in ranked[:_SHOWN]]

    def hours(self) -> Mapping[str, list[int]]:
        """By day of the week: the fullest minute of each hour."""
        found = {day: [0] * 24 for day in _DAYS}
        for at, slots in self.minutes.items():
            of_day = found[_DAYS[at.weekday()]]
            of_day[at.hour] = max(of_day[at.hour], slots)
        return found

    def fact(self, jobs: Sequence[Job], at_once: int) -> Mapping[str, object]:
        """at_once: runs that a node has at once."""
        return {
            "since": self.since,
            "most": self.most,
            "max_parallel": at_once,
            "left_out": self.left_out,
            "fullest": [minute.fact() for minute in self.fullest(jobs)],
            "hours": self.hours(),
        }

    def lines(self, jobs: Sequence[Job], at_once: int) -> Iterator[str]:
        """The histogram as text."""
        rest = f", {self.left_out} faster than that left out" if self.left_out else ""
        yield (
            f"slots per minute of a week (UTC{rest}): at most {self.most}; a node runs "
            f"{at_once} at once"
        )
        for minute in self.fullest(jobs):
            more = len(minute.jobs) - _NAMED
            names = ", ".join(minute.jobs[:_NAMED]) + (f", +{more}" if more > 0 else "")
            day = _DAYS[minute.at.weekday()]
            yield f"  {minute.slots:>5}  {day} {minute.at:%Y-%m-%d %H:%M}  {names}"
        if self.minutes:
            yield f"         0h    6h    12h   18h     each hour's fullest minute, @ is {self.most}"
            for day, hours in self.hours().items():
                yield f"    {day}  {''.join(_mark(slots, self.most) for slots in hours)}".rstrip()


def herd_of(jobs: Iterable[Job], now: datetime) -> Herd:
    """The slots of the week from now on."""
    minutes: Counter[datetime] = Counter()
    left_out = 0
    for schedule, count in Counter(job.schedule for job in jobs).items():
        if schedule.count(now, now + _WEEK) > _WEEK // _MINUTE:
            left_out += count
            continue
        for at in _slots(schedule, now, now + _WEEK):
            minutes[at.replace(second=0, microsecond=0)] += count
    return Herd(now, minutes, left_out)


def _within(jobs: Iterable[Job], minute: datetime) -> tuple[str, ...]:
    before, end = minute - _TICK, minute + _MINUTE
    firsts = ((job.name, job.schedule.next_after(before)) for job in jobs)
    return tuple(name for name, at in firsts if at is not None and at < end)


def _mark(slots: int, most: int) -> str:
    return _RAMP[-(-slots * (len(_RAMP) - 1) // most)]


def _slots(schedule: Schedule, after: datetime, until: datetime) -> Iterator[datetime]:
    at = schedule.next_after(after)
    while at is not None and at <= until:
        yield at
        at = schedule.next_after(at)
