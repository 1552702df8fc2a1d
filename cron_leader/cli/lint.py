"""What `check --strict` finds in schedules that are allowed and may not be meant, and what
`check --against` finds changed. Pure but for the ledger's reader that it is given."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum
from itertools import islice, pairwise

from cron_leader.cli.herd import Herd
from cron_leader.config import Config
from cron_leader.core.blackout import next_outside
from cron_leader.core.cron import read_cron
from cron_leader.core.model import Job, Overlap, State
from cron_leader.core.schedule import (
    Bounded,
    Cron,
    DstFold,
    DstGap,
    Schedule,
    Union,
    clock_changes,
)
from cron_leader.ledger.views import Reader, Wanted

YEARS_AHEAD = 5
MOST_SLOTS = 20_000
"""Of one job over a horizon; one with more is compared up to that one."""

_TICK = timedelta.resolution
_YEAR = timedelta(days=365)
_AROUND = timedelta(hours=4)
_SAMPLES = 20
_SUGGESTED = 3


class Lint(StrEnum):
    """What may be wrong with a schedule."""

    NEVER = "never"
    GAP = "gap"
    FOLD = "fold"
    HERD = "herd"
    OVERLAP = "overlap"


@dataclass(frozen=True, slots=True)
class Finding:
    """job: None if it is about several."""

    kind: Lint
    job: str | None
    text: str

    def fact(self) -> Mapping[str, object]:
        return {"kind": self.kind, "job": self.job, "text": self.text}


def findings(config: Config, herd: Herd) -> list[Finding]:
    """All that can be said without a ledger; in the order of the jobs, herds last. herd: of the
    jobs, from now on."""
    found = [finding for job in config.jobs for finding in _of_job(job, herd.since)]
    return found + _herds(config, herd)


def _of_job(job: Job, now: datetime) -> Iterator[Finding]:
    at = next_outside(job.schedule, job.blackout, now)
    if at is None or at > now + YEARS_AHEAD * _YEAR:
        text = f"does not fire in the next {YEARS_AHEAD} years"
        yield Finding(Lint.NEVER, job.name, text)
        return
    for cron in dict.fromkeys(_crons(job.schedule)):
        yield from _of_changes(job, cron, now)


def _crons(schedule: Schedule) -> Iterator[Cron]:
    match schedule:
        case Cron():
            yield schedule
        case Bounded(schedule=inner):
            yield from _crons(inner)
        case Union(members=members):
            for member in members:
                yield from _crons(member)


def _of_changes(job: Job, cron: Cron, now: datetime) -> Iterator[Finding]:
    """The first gap and the first fold of a year whose answer was left to the default."""
    changes = clock_changes(cron.zone, now, now + _YEAR)
    gap = next((at for at in changes if _meets_gap(cron, at) and _fires_at(job, at)), None)
    if gap is not None:
        text = f'"{cron.expression}": at {gap.isoformat()} the clock jumps over its time and it '
        yield Finding(Lint.GAP, job.name, text + 'runs at once; say dst_gap = "run" or "skip"')
    fold = next((at for at in changes if _meets_fold(job, cron, at)), None)
    if fold is not None:
        text = f'"{cron.expression}": at {fold.isoformat()} the clock is set back and it fires '
        yield Finding(Lint.FOLD, job.name, text + 'twice; say dst_fold = "twice" or "once"')


def _meets_gap(cron: Cron, change: datetime) -> bool:
    if cron.elapsed or cron.dst_gap is not None:
        return False
    skipping = Cron(cron.expression, cron.zone, DstGap.SKIP, cron.dst_fold)
    return cron.count(change - _TICK, change) > skipping.count(change - _TICK, change)


def _meets_fold(job: Job, cron: Cron, change: datetime) -> bool:
    """Of those that follow elapsed time; but one that fires each hour is meant to go on."""
    if not cron.elapsed or cron.each_hour or cron.dst_fold is not None:
        return False
    once = Cron(cron.expression, cron.zone, cron.dst_gap, DstFold.ONCE)
    span = (change - _AROUND, change + _AROUND)
    second = (at for at in _slots(cron, change - _TICK, change + _AROUND) if not _has(once, at))
    return cron.count(*span) > once.count(*span) and any(_fires_at(job, at) for at in second)


def _has(schedule: Schedule, at: datetime) -> bool:
    return schedule.next_after(at - _TICK) == at


def _fires_at(job: Job, at: datetime) -> bool:
    """Whether a time of one of its expressions is one of its own: within its bounds, in no
    blackout."""
    return next_outside(job.schedule, job.blackout, at - _TICK) == at


# ------------------------------------------------------------------ herds


def _herds(config: Config, herd: Herd) -> list[Finding]:
    """The fullest minute of the week, if it has more slots than a node runs at once."""
    most = config.run.max_parallel
    if herd.most <= most:
        return []
    fullest, *_ = herd.fullest(config.jobs)
    text = f"{fullest.slots} slots fall at {fullest.at.isoformat()}, and a node runs {most} at once"
    return [Finding(Lint.HERD, None, text + "; " + _spreading(config.jobs, fullest.at))]


def _spreading(jobs: Sequence[Job], at: datetime) -> str:
    """What to write instead, in the first few of them."""
    written = (
        f'"{job.name}": cron = "{spread}"'
        for job in jobs
        for cron in _crons(job.schedule)
        if cron.next_after(at - _TICK) == at and (spread := _spread(cron.expression))
    )
    if shown := list(islice(written, _SUGGESTED)):
        return f"spread them with H, as in {'; '.join(shown)}"
    return "spread them with H, or raise max_parallel"


def _spread(expression: str) -> str | None:
    """The same with H for its minute, and for its second if it has one; None if the minute is not
    one number."""
    fields = read_cron(expression).text if expression.startswith("@") else expression
    *second, minute, hour, day, month, weekday = fields.split()
    if not minute.isdecimal():
        return None
    second = ["H" if each.isdecimal() else each for each in second]
    return " ".join([*second, "H", hour, day, month, weekday])


# ------------------------------------------------------------------ overlaps


_OVERLAPPING = {
    Overlap.SKIP: "some will be skipped",
    Overlap.QUEUE: "they queue up",
    Overlap.REPLACE: "some will be ended early",
    Overlap.ALLOW: "some will be skipped",
}


def overlaps(config: Config, reader: Reader, now: datetime) -> list[Finding]:
    """Jobs whose usual run lasts longer than the time between two slots, or so many as may go at
    once. Raises as a Reader."""
    found = []
    for job in config.jobs:
        places = _places(job)
        interval = _shortest_interval(job.schedule, now) if places else None
        usual = _usual_s(reader, job.name) if interval else None
        if places and interval and usual and usual > places * interval.total_seconds():
            text = f"its runs last {usual:.1f}s (median), its slots come each {interval}"
            text += f", {places} may go at once" if places > 1 else ""
            found.append(Finding(Lint.OVERLAP, job.name, f"{text}: {_OVERLAPPING[job.overlap]}"))
    return found


def _places(job: Job) -> int | None:
    """How many of its runs may go at once; None: any number, as it says itself."""
    return job.max_parallel or (None if job.overlap is Overlap.ALLOW else 1)


def _shortest_interval(schedule: Schedule, now: datetime) -> timedelta | None:
    """Between the next few slots; None if there is at most one."""
    slots = list(islice(_slots(schedule, now, None), 10))
    return min((later - at for at, later in pairwise(slots)), default=None)


def _usual_s(reader: Reader, job: str) -> float | None:
    wanted = Wanted(job=job, states=(State.SUCCEEDED,))
    rows = reader.history(wanted, limit=_SAMPLES)
    spans = [
        (row.finished_at - row.started_at).total_seconds()
        for row in rows
        if row.started_at and row.finished_at
    ]
    return statistics.median(spans) if spans else None


# ------------------------------------------------------------------ against another configuration


@dataclass(frozen=True, slots=True)
class Change:
    """How the slots of one job differ. moved: pairs of old and new, in order."""

    job: str
    gained: tuple[datetime, ...]
    lost: tuple[datetime, ...]
    moved: tuple[tuple[datetime, datetime], ...]

    def fact(self) -> Mapping[str, object]:
        return {
            "job": self.job,
            "gained": list(self.gained),
            "lost": list(self.lost),
            "moved": [list(pair) for pair in self.moved],
        }


def changes(old: Config, new: Config, now: datetime, horizon: timedelta) -> list[Change]:
    """The jobs whose slots in (now, now + horizon] differ, by name; a renamed one by its new name.

    Of a job in both, old slots that are gone and new ones are paired in order as moved; what is
    left over is gained or lost. A job is compared as far as MOST_SLOTS of both reach.
    """
    renamed = {job.renamed_from: job.name for job in new.jobs}
    before = {renamed.get(job.name, job.name): job for job in old.jobs}
    after = {job.name: job for job in new.jobs}
    until = now + horizon
    compared = (
        _change(name, before.get(name), after.get(name), (now, until))
        for name in sorted(before.keys() | after.keys())
    )
    return [change for change in compared if change.gained or change.lost or change.moved]


def _change(
    name: str, before: Job | None, after: Job | None, span: tuple[datetime, datetime]
) -> Change:
    if before and after and _fires_alike(before, after):
        return Change(name, (), (), ())
    old, new = _both_reach(
        *(
            list(islice(_fires(job, *span), MOST_SLOTS + 1)) if job else []
            for job in (before, after)
        )
    )
    lost, gained = sorted(set(old) - set(new)), sorted(set(new) - set(old))
    moved = tuple(zip(lost, gained, strict=False))
    return Change(name, tuple(gained[len(moved) :]), tuple(lost[len(moved) :]), moved)


def _both_reach(old: list[datetime], new: list[datetime]) -> Iterator[list[datetime]]:
    """The two up to where the first of them was cut off: beyond, the other would look alone."""
    cut = min((slots[-1] for slots in (old, new) if len(slots) > MOST_SLOTS), default=None)
    for slots in (old, new):
        yield slots if cut is None else [at for at in slots if at < cut]


def _fires_alike(before: Job, after: Job) -> bool:
    same = before.schedule.digest == after.schedule.digest
    return same and before.blackout is None and after.blackout is None


def _fires(job: Job, after: datetime, until: datetime) -> Iterator[datetime]:
    """Its slots that lie in no blackout."""
    at = next_outside(job.schedule, job.blackout, after)
    while at is not None and at <= until:
        yield at
        at = next_outside(job.schedule, job.blackout, at)


def _slots(schedule: Schedule, after: datetime, until: datetime | None) -> Iterator[datetime]:
    at = schedule.next_after(after)
    while at is not None and (until is None or at <= until):
        yield at
        at = schedule.next_after(at)
