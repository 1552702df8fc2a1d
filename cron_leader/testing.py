"""For users' tests: when a `@job` function falls due, and what it does then, without waiting.

    assert slots(send_digest, "2026-03-28T00:00Z", "2026-03-30T00:00Z") == [...]

    clock = FakeClock("2026-03-28T00:00Z", send_digest)
    ticks = clock.run(timedelta(days=2))

No etcd, no ledger, no process: schedules are read as a node reads them, and functions are called in
this one. Not promised here: overlap, catch-up, timeouts and retries, which need a fleet.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from heapq import merge
from pathlib import Path

from cron_leader.config import build_jobs
from cron_leader.core.model import Job, PythonSpec
from cron_leader.jobs import Tick, definitions, resolve

__all__ = ["FakeClock", "slots"]

Function = Callable[[Tick], object]
Time = datetime | str
"""Aware, or as RFC 3339 text with its offset."""


def slots(
    function: Function, after: Time, until: Time, *, fleet: str = "default"
) -> list[datetime]:
    """The slots of a `@job` function in (after, until], ascending, in UTC.

    fleet: its name, which counts if the schedule has an `H`. Raises ConfigError if the options are
    wrong, LookupError for a function that is no job, ValueError for a time without an offset.
    """
    return list(_slots(_job_of(function, fleet), _utc(after), _utc(until)))


class FakeClock:
    """A clock that moves when it is told to, and the `@job` functions that it makes due."""

    def __init__(self, start: Time, *functions: Function, fleet: str = "default") -> None:
        """Raises as `slots` does."""
        self.now = _utc(start)
        self._jobs = tuple(_job_of(function, fleet) for function in functions)

    def advance(self, by: timedelta) -> list[Tick]:
        """Move on, and give a tick for each slot passed or reached: soonest first, none twice.

        What falls due at one instant comes in the order in which the functions were given. Raises
        ValueError if `by` is negative.
        """
        if by < timedelta(0):
            raise ValueError(f"advance by {by}: the clock only goes forward")
        after, self.now = self.now, self.now + by
        ticks = (_ticks(job, after, self.now) for job in self._jobs)
        return list(merge(*ticks, key=lambda tick: tick.scheduled_for))

    def run(self, by: timedelta) -> list[Tick]:
        """Move on, and call each function with each of its ticks, one after the other.

        Async functions are run to their end, so this is not for use inside a running loop. What a
        function raises comes through.
        """
        ticks = self.advance(by)
        functions = {job.name: _function(job) for job in self._jobs}
        for tick in ticks:
            outcome = functions[tick.job](tick)
            if inspect.iscoroutine(outcome):
                asyncio.run(outcome)
        return ticks


def _job_of(function: Function, fleet: str) -> Job:
    name = getattr(function, "__name__", repr(function))
    target = f"{function.__module__}:{name}"
    tables = [table for table in definitions() if table["python"] == target]
    if not tables:
        raise LookupError(f"{name} is no job: mark it with @job")
    (job,) = build_jobs(tables, where="@job", base=Path(), fleet=fleet)
    return job


def _function(job: Job) -> Function:
    assert isinstance(job.spec, PythonSpec)
    return resolve(job.spec.target)


def _slots(job: Job, after: datetime, until: datetime) -> Iterator[datetime]:
    at = job.schedule.next_after(after)
    while at is not None and at <= until:
        yield at
        at = job.schedule.next_after(at)


def _ticks(job: Job, after: datetime, until: datetime) -> Iterator[Tick]:
    for at in _slots(job, after, until):
        deadline = at + timedelta(seconds=job.timeout_s)
        yield Tick.for_test(job=job.name, scheduled_for=at, run_deadline=deadline)


def _utc(time: Time) -> datetime:
    at = datetime.fromisoformat(time) if isinstance(time, str) else time
    if at.tzinfo is None:
        raise ValueError(f"{time}: an offset is missing, as in 2026-12-01T09:00:00Z")
    return at.astimezone(UTC)
