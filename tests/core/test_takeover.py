"""What a takeover tells of the past it settled."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

from cron_leader.core import messages as m
from cron_leader.core.dispatch import MOST_TOLD
from cron_leader.core.model import Catchup, JobRecord, Past, Reason, Rollback, SlotKey, State
from cron_leader.core.schedule import Every
from cron_leader.core.takeover import settle
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


# ------------------------------------------------------------------ a ledger that went back


def _lost(seconds: float, *, skip: bool, found: float = 1) -> Past:
    """Restored to `seconds` before now; a raise found that `found` seconds before now."""
    at = T0 - timedelta(seconds=found)
    return replace(_past([job("a")], seconds), went_back_at=at, skip=skip)


def test_skip_misses_all_up_to_the_moment_the_loss_was_found_and_runs_what_came_after() -> None:
    d = Driver([job("a")])
    settled = d.settle(_lost(4, skip=True)).settlement
    assert settled.skip
    assert [(e.slot, e.state, e.reason) for e in settled.entries] == [
        (SlotKey("a", T0 - timedelta(seconds=n)), State.MISSED, Reason.ROLLBACK) for n in (3, 2, 1)
    ] + [(SlotKey("a", T0), State.DUE, None)]


def test_skip_never_looks_beyond_now() -> None:
    d = Driver([job("a")])
    settled = d.settle(_lost(2, skip=True, found=-3)).settlement
    assert {e.reason for e in settled.entries} == {Reason.ROLLBACK}
    assert settled.planned_to == T0


def test_refire_catches_up_as_if_nothing_had_run() -> None:
    d = Driver([job("a")])
    settled = d.settle(_lost(3, skip=False)).settlement
    assert not settled.skip
    assert settled.entries == Driver([job("a")]).settle(_past([job("a")], 3)).settlement.entries


def test_the_answer_is_told_with_what_the_ledger_shows() -> None:
    for skip, answer in ((True, Rollback.SKIP), (False, Rollback.REFIRE)):
        d = Driver([job("a")])
        past = _lost(3, skip=skip)
        d.settle(past)
        assert d.told("ledger.went_back") == {"answer": answer, "planned_to": past.planned_to}


def test_a_planner_whose_clock_was_ahead_does_not_hide_the_loss() -> None:
    d = Driver([job("a")])
    settled = d.settle(_lost(3, skip=True, found=4)).settlement
    assert d.told("ledger.went_back")
    assert settled.skip
    assert Reason.ROLLBACK not in {e.reason for e in settled.entries}  # none in between


def test_an_empty_ledger_that_went_back_starts_at_now() -> None:
    d = Driver([job("a")])
    settled = d.settle(Past(None, {}, T0, skip=True)).settlement
    assert settled.skip
    assert settled.entries == ()


def test_jobs_that_share_a_policy_are_settled_as_each_alone() -> None:
    every = Every(timedelta(minutes=1))
    jobs = [
        job(f"{name}{n}", schedule=every, **policy)
        for n in range(2)
        for name, policy in (
            ("latest", {}),
            ("all", {"catchup": Catchup.ALL, "catchup_limit": 4}),
            ("few", {"catchup": Catchup.ALL, "catchup_limit": 2}),
            ("none", {"catchup": Catchup.NONE}),
            ("late", {"start_within_s": 90.0}),
        )
    ]
    together = settle({j.name: j for j in jobs}, _past(jobs, 1800), T0)
    for one in jobs:
        alone = settle({one.name: one}, _past([one], 1800), T0)
        assert [e for e in together.entries if e.slot.job == one.name] == [*alone.entries]
        assert [g for g in together.gaps if g.job == one.name] == [*alone.gaps]
