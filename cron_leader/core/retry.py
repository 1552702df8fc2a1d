"""Whether a failed attempt is tried again, and when: exponential backoff, as data.

A run is tried again for how it ended by itself, never because somebody ended it. Not decided here:
what becomes of a run whose leader was lost (the sweep, by the job's delivery), though that attempt
counts; the row of an attempt that waits (dispatch).
"""

from __future__ import annotations

import hashlib
from collections import deque
from datetime import datetime, timedelta
from math import ldexp

from cron_leader.core.model import Job, PythonSpec, Result, Run

HOUR_NS = 3_600 * 1_000_000_000


def retry_at(run: Run, result: Result) -> datetime | None:
    """When the attempt after this one may start; None: there is none.

    Always after the end of this one, and not later than `start_within` after the slot. Attempts
    that were put back, before anything ran, are none of its `retries`.
    """
    job = run.job
    if run.tries > job.retries or not _is_worth_it(job, result):
        return None
    at = result.finished_at + timedelta(seconds=delay_s(run))
    limit_s = None if run.slot.command_id else job.start_within_s
    if limit_s is not None and at - run.slot.scheduled_for > timedelta(seconds=limit_s):
        return None
    return at


def delay_s(run: Run) -> float:
    """The wait after an attempt: `backoff`, doubled by each, up to `backoff_max`; of that at least
    one half, the rest drawn by a hash of job, slot and attempt, the same on each node.
    """
    job, doublings = run.job, min(run.tries - 1, 64)
    most = min(ldexp(job.backoff_s, doublings), job.backoff_max_s)
    drawn = f"{job.name} {run.slot.scheduled_for.isoformat()} {run.attempt}"
    part = int.from_bytes(hashlib.sha256(drawn.encode()).digest()[:8], "big") / (1 << 64)
    return most * (1 + part) / 2


def _is_worth_it(job: Job, result: Result) -> bool:
    if isinstance(job.spec, PythonSpec):
        return not job.retry_on or any(raised(name, result.error) for name in job.retry_on)
    return not job.retry_exit_codes or result.exit_code in job.retry_exit_codes


def raised(name: str, error: str | None) -> bool:
    """Whether a traceback ends in an exception of this name, with or without its module.

    By name: of a base class nothing is known here.
    """
    last = (error or "").rpartition("Traceback (most recent call last):")[2]
    found = (line.partition(":")[0] for line in last.splitlines() if line[:1].strip())
    return any(of == name or of.endswith(f".{name}") for of in found)


class Budget:
    """Each job's retries within the last hour, of one term: at most its `retry_budget`."""

    def __init__(self) -> None:
        self._spent: dict[str, deque[int]] = {}

    def take(self, job: Job, now_ns: int) -> bool:
        """One retry more, on the boot clock; False: the budget is spent."""
        if job.retry_budget is None:
            return True
        spent = self._spent.setdefault(job.name, deque())
        while spent and spent[0] <= now_ns - HOUR_NS:
            spent.popleft()
        if len(spent) >= job.retry_budget:
            return False
        spent.append(now_ns)
        return True
