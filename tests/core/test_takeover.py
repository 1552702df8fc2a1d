"""What a takeover tells of the past it settled."""

from __future__ import annotations

from datetime import timedelta

from cron_leader.core import messages as m
from cron_leader.core.dispatch import MOST_TOLD
from cron_leader.core.model import JobRecord, Past
from tests.core.driver import T0, Driver, job


def _past(jobs: list, seconds: float) -> Past:  # type: ignore[type-arg]
    since = T0 - timedelta(seconds=seconds)
    records = {j.name: JobRecord(j.name, since, since, j.schedule.digest) for j in jobs}
    return Past(since, records)


def test_missed_slots_of_the_past_are_told_once_they_are_recorded() -> None:
    jobs = [job("a"), job("b", every_s=0.1)]
    d = Driver(jobs)
    d.settle(_past(jobs, 3))
    assert d.quiet("slot.missed")
    d.step(m.Settled(d.nonce, ()))
    told = [e.fields for e in d.all(m.Emit) if e.event == "slot.missed"]
    assert [(f["job"], f.get("slots", 1)) for f in told] == [("a", 1), ("a", 1), ("b", 29)]


def test_a_flood_of_missed_slots_is_told_as_a_sum_beyond_a_bound() -> None:
    jobs = [job(f"j{n}") for n in range(MOST_TOLD)]
    d = Driver(jobs)
    d.settle(_past(jobs, 4))
    d.step(m.Settled(d.nonce, ()))
    told = [e.fields for e in d.all(m.Emit) if e.event == "slot.missed"]
    assert len(told) == MOST_TOLD + 1
    assert told[-1] == {"slots": 2 * MOST_TOLD}
