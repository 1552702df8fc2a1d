"""What a new leader writes about the past: the takeover transaction, computed from what it read.

Every slot in (planned_to, now] becomes `due`, `missed`, or part of a gap, by its job's catch-up
policy. A job first seen now, one whose schedule changed, and one that returns from retirement start
at now: nothing is invented for the past. In a ledger that went back, with `skip`, all of it is
missed: it may have been run in the part that was lost. The time of a pause is not missed: its slots
are skipped, and none of them is caught up.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import replace
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

_ON_TIME = timedelta(0)


def settle(jobs: Mapping[str, Job], past: Past, now: datetime) -> Settlement:
    """The whole settlement at `now`; the same arguments give the same settlement."""
    records = {name: _record(job, past.jobs.get(name), now) for name, job in jobs.items()}
    lost_to = past.went_back_at if past.skip else None
    entries: list[Entry] = []
    gaps: list[Gap] = []
    found: dict[Hashable, Backlog] = {}  # a hundred thousand jobs share few schedules
    for name, job in jobs.items():
        since = max(past.planned_to or now, records[name].effective_from)
        pause = _pause(records[name])
        key = (policy_of(job), since, pause)
        if (missed := found.get(key)) is None:
            missed = backlog(job, since, now, on_time=_ON_TIME, lost_to=lost_to, pause=pause)
            found[key] = missed
        else:
            missed = renamed(missed, name)
        entries += missed.entries
        entries += [_due(job, at, now) for at in missed.due]
        gaps += missed.gaps
    return Settlement(
        now=now,
        planned_to=max(now, past.planned_to or now),
        jobs=tuple(r for name, r in records.items() if r is not past.jobs.get(name)),
        retired=tuple(
            sorted(n for n, r in past.jobs.items() if n not in jobs and r.retired_at is None)
        ),
        entries=tuple(entries),
        gaps=tuple(gaps),
        at_least_once=frozenset(
            n for n, job in jobs.items() if job.delivery is Delivery.AT_LEAST_ONCE
        ),
        skip=lost_to is not None,
        sweep=past.unfinished,
    )


def _record(job: Job, known: JobRecord | None, now: datetime) -> JobRecord:
    digest = job.schedule.digest
    if known is None:
        return JobRecord(job.name, now, now, digest)
    if known.retired_at is not None or known.digest != digest:
        return replace(known, effective_from=now, digest=digest, retired_at=None)
    return known


def _pause(record: JobRecord) -> Pause | None:
    if record.paused_from is None or record.paused_until is None:
        return None
    return record.paused_from, record.paused_until


def _due(job: Job, at: datetime, now: datetime) -> Entry:
    """Not before its own time, which may be still to come."""
    next_at = max(now, start_of(job, at))
    return Entry(SlotKey(job.name, at), State.DUE, origin=Origin.CATCHUP, next_at=next_at)
