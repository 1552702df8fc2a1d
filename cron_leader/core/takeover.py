"""What a new leader writes about the past: the takeover transaction, computed from what it read.

Every slot in (planned_to, now] becomes `due`, `missed`, or part of a gap, by its job's catch-up
policy. A job first seen now, one whose schedule changed, and one that returns from retirement start
at now, or at planned_to where that is later: nothing is invented for the past. In a ledger that
went back, with `skip`, all of it is missed: it may have been run in the part that was lost. The
time of a pause is not missed: its slots are skipped, and none of them is caught up. A job that was
renamed goes on under its new name.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta

from cron_leader.core.model import (
    Delivery,
    Entry,
    Gap,
    Job,
    JobRecord,
    Origin,
    Past,
    Settlement,
    SlotKey,
    State,
)
from cron_leader.core.plan import Backlog, Pause, backlog, policy_of, renamed, start_of
from cron_leader.core.slices import Slicer, Slices, whole

_ON_TIME = timedelta(0)


def settle(jobs: Mapping[str, Job], past: Past, now: datetime) -> Settlement:
    """The whole settlement at `now`; the same arguments give the same settlement."""
    return whole(settling(jobs, past, now))


def settling(jobs: Mapping[str, Job], past: Past, now: datetime) -> Slices[Settlement]:
    """The same in slices, for many jobs take a second."""
    draft, slicer = _Draft(past, now, jobs), Slicer()
    for job in jobs.values():
        if slicer.full():
            yield
        draft.look_at(job)
    return draft.settlement()


@dataclass(slots=True)
class _Draft:
    """A settlement in the making. found: a hundred thousand jobs share few schedules.
    renamed: from the former name to the job's."""

    past: Past
    now: datetime
    configured: Mapping[str, Job]
    jobs: list[JobRecord] = field(default_factory=list)
    renamed: dict[str, str] = field(default_factory=dict)
    entries: list[Entry] = field(default_factory=list)
    gaps: list[Gap] = field(default_factory=list)
    at_least_once: set[str] = field(default_factory=set)
    found: dict[Hashable, Backlog] = field(default_factory=dict)
    pauses: dict[str, Pause] = field(default_factory=dict)

    @property
    def planned_to(self) -> datetime:
        """From here on this term plans: later than now where the last leader's clock was ahead."""
        return max(self.now, self.past.planned_to or self.now)

    @property
    def lost_to(self) -> datetime | None:
        return self.past.went_back_at if self.past.skip else None

    def look_at(self, job: Job) -> None:
        known = self.past.jobs.get(job.name) or self._known_before(job)
        record = _record(job, known, self.now, self.planned_to)
        if record is not known:
            self.jobs.append(record)
        if job.delivery is Delivery.AT_LEAST_ONCE:
            self.at_least_once.add(job.name)
        missed = self._backlog(job, record)
        self.entries += missed.entries
        self.entries += [_due(job, at, self.now) for at in missed.due]
        self.gaps += missed.gaps

    def _known_before(self, job: Job) -> JobRecord | None:
        """The record of a job that the ledger knows by its former name only."""
        known = self.past.jobs.get(job.renamed_from) if job.renamed_from else None
        if known is None or known.job in self.configured or known.job in self.renamed:
            return None
        self.renamed[known.job] = job.name
        return replace(known, job=job.name)

    def _backlog(self, job: Job, record: JobRecord) -> Backlog:
        since = max(self.past.planned_to or self.now, record.effective_from)
        if (pause := _pause(record)) is not None and pause[1] > self.planned_to:
            self.pauses[job.name] = pause
        key = (policy_of(job), since, pause)
        if (missed := self.found.get(key)) is not None:
            return renamed(missed, job.name)
        missed = self.found[key] = backlog(
            job, since, self.now, on_time=_ON_TIME, lost_to=self.lost_to, pause=pause
        )
        return missed

    def settlement(self) -> Settlement:
        there = self.configured.keys() | self.renamed.keys()
        gone = (n for n, r in self.past.jobs.items() if n not in there and r.retired_at is None)
        return Settlement(
            now=self.now,
            planned_to=self.planned_to,
            jobs=tuple(self.jobs),
            retired=tuple(sorted(gone)),
            entries=tuple(self.entries),
            gaps=tuple(self.gaps),
            at_least_once=frozenset(self.at_least_once),
            skip=self.lost_to is not None,
            sweep=self.past.unfinished,
            retired_at=self.past.planned_to,
            pauses=self.pauses,
            renamed=tuple((name, former) for former, name in self.renamed.items()),
        )


def _record(job: Job, known: JobRecord | None, now: datetime, planned_to: datetime) -> JobRecord:
    """A new schedule counts from where this term plans: no slot of it before that is owed."""
    digest = job.schedule.digest
    if known is None:
        return JobRecord(job.name, now, planned_to, digest)
    if known.retired_at is not None or known.digest != digest:
        return replace(known, effective_from=planned_to, digest=digest, retired_at=None)
    return known


def _pause(record: JobRecord) -> Pause | None:
    if record.paused_from is None or record.paused_until is None:
        return None
    return record.paused_from, record.paused_until


def _due(job: Job, at: datetime, now: datetime) -> Entry:
    """Not before its own time, which may be still to come."""
    next_at = max(now, start_of(job, at))
    return Entry(SlotKey(job.name, at), State.DUE, origin=Origin.CATCHUP, next_at=next_at)
