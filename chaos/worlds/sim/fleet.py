"""What a fleet of the sim is configured to do, drawn from its seed: jobs of all policies.

Two configurations, the second a release later: one job with another schedule, one gone, one new.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from datetime import timedelta

from chaos.gen import Draws
from cron_leader.core.dispatch import Pool
from cron_leader.core.model import (
    Catchup,
    CommandSpec,
    Delivery,
    Job,
    OnLostLeadership,
    Overlap,
    Rollback,
    WhenFull,
)
from cron_leader.core.schedule import Every

PERIODS_S = (3, 5, 11, 17, 29, 13, 7, 23, 19, 31)
PACES = (1, 2, 3, 4, 6)
"""By how much the periods are drawn out: busy fleets and calm ones."""
STREAM = 2
_TRUE = CommandSpec(("true",))

Jobs = Mapping[str, Job]


class Fleet:
    """jobs: by release; rollback: what nodes are told to do with a ledger that went back."""

    def __init__(self, seed: int, count: int) -> None:
        draws = Draws(seed, STREAM)
        pace = draws.one(PACES)
        jobs = [_job(n, pace, draws) for n in range(count)]
        self.jobs: tuple[Jobs, Jobs] = _named(jobs), _named(_next_release(jobs))
        self.period_s = pace * min(PERIODS_S[:count])
        self.rollback = draws.one(tuple(Rollback))
        groups = {"eu": 2, "us": 1} if draws.percent(30) else {}
        self.pool = Pool(3 if draws.percent(20) else 8, 10.0, groups)

    def every(self) -> tuple[Job, ...]:
        """The jobs of both releases; of one in both, both."""
        return tuple(job for jobs in self.jobs for job in jobs.values())


def _named(jobs: list[Job]) -> Jobs:
    return {job.name: job for job in jobs}


def _next_release(jobs: list[Job]) -> list[Job]:
    if len(jobs) < 4:
        return jobs
    changed = replace(jobs[1], schedule=Every(timedelta(seconds=7)))
    new = replace(jobs[3], name="job-new")
    return [jobs[0], changed, jobs[2], new, *jobs[4:]]


def _job(n: int, pace: int, draws: Draws) -> Job:
    """The first of the periods is of no group and never full: it shows progress."""
    job = Job(
        f"job-{n}",
        Every(timedelta(seconds=pace * PERIODS_S[n % 10])),
        _TRUE,
        catchup=(Catchup.LATEST, Catchup.ALL, Catchup.NONE)[n % 3],
        delivery=(Delivery.AT_MOST_ONCE, Delivery.AT_LEAST_ONCE)[n % 2],
        on_lost_leadership=OnLostLeadership.FINISH if n == 6 else OnLostLeadership.KILL,
        jitter_s=2.0 if n == 4 else 0.0,
        start_within_s=8.0 if n == 8 else None,
    )
    if draws.percent(40):
        return job
    overlap = draws.one((Overlap.SKIP, *Overlap))
    several = overlap in (Overlap.QUEUE, Overlap.ALLOW) and draws.percent(40)
    return replace(
        job,
        overlap=overlap,
        max_parallel=2 if several else None,
        retries=draws.one((0, 1, 3)),
        backoff_s=float(draws.between(1, 4)),
        group=draws.one(("", "eu", "us")),
        priority=draws.one((0, 0, 5)),
        when_full=draws.one(tuple(WhenFull)),
    )
