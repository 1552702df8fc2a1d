"""What a takeover tells of the past it settled."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from unittest import mock

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cron_leader.core import messages as m
from cron_leader.core import slices
from cron_leader.core.blackout import Blackout, Freeze
from cron_leader.core.dispatch import MOST_TOLD
from cron_leader.core.model import (
    Catchup,
    DueRow,
    Job,
    JobRecord,
    Origin,
    Past,
    Reason,
    Rollback,
    SlotKey,
    State,
)
from cron_leader.core.schedule import Every
from cron_leader.core.slices import SLICE
from cron_leader.core.standing import Phase
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


@pytest.mark.parametrize("unfinished", [True, False])
def test_a_takeover_sweeps_where_older_terms_left_something_unfinished(unfinished: bool) -> None:
    past = replace(_past([job("a")], 3), unfinished=unfinished)
    assert settle({"a": job("a")}, past, T0).sweep is unfinished


# ------------------------------------------------------------------ in slices


def _finish(d: Driver, kind: type) -> int:
    """Step on until it is asked for, at the same instant: how many steps that took."""
    for steps in range(100):
        if d.all(kind):
            return steps
        assert d.node.wake_boot_ns() == d.boot_ns, "the next slice is asked for at once"
        d.slice()
    raise AssertionError("no end")


def _many() -> tuple[list[Job], Past]:
    """More than two slices of jobs; some are new, some have another schedule than they had."""
    policies = [Catchup.ALL, Catchup.LATEST, Catchup.NONE]
    jobs = [
        job(f"j{n}", every_s=1 + n % 3, catchup=policies[n % 3], priority=n % 2)
        for n in range(2 * SLICE + 1)
    ]
    past = _past(jobs[: 2 * SLICE], 20)
    records = {
        name: replace(record, digest="other") if n % 7 == 0 else record
        for n, (name, record) in enumerate(past.jobs.items())
    }
    gone = JobRecord("gone", T0, T0, "digest")
    return jobs, replace(past, jobs={**records, "gone": gone})


def test_a_settlement_in_slices_is_the_one_made_at_once() -> None:
    jobs, past = _many()
    d = Driver(jobs)
    d.raise_()
    d.slice(m.PastRead(d.nonce, past))
    assert _finish(d, m.Settle) == 1, "of three slices two come with the answer"
    assert d.asked(m.Settle).settlement == settle({j.name: j for j in jobs}, past, T0)


@settings(max_examples=30, deadline=None)
@given(st.integers(1, 20), st.integers(1, 20), st.integers(0, 20))
def test_whatever_the_slices_a_leader_settles_plans_and_claims_the_same(
    jobs: int, size: int, waiting: int
) -> None:
    """Everything it does until its first claims, but for how many steps it takes."""
    named = [
        job(f"j{n}", every_s=1 + n % 5, priority=n % 3, group="ab"[n % 2]) for n in range(jobs)
    ]
    rows = tuple(
        DueRow(SlotKey(f"j{n % jobs}", T0 - timedelta(seconds=n)), 0, Origin.CATCHUP, T0)
        for n in range(waiting)
    )

    def effects(slice_size: int) -> list[m.Effect]:
        with mock.patch.object(slices, "SLICE", slice_size):
            d = Driver(named)
            d.raise_()
            return d.step(m.PastRead(d.nonce, _past(named, 9))) + d.step(m.Settled(d.nonce, rows))

    assert effects(size) == effects(10_000)


def test_a_term_that_ends_between_two_slices_settles_nothing() -> None:
    jobs, past = _many()
    d = Driver(jobs)
    d.raise_()
    d.slice(m.PastRead(d.nonce, past))
    assert not d.all(m.Settle)
    d.slice(m.KeyDeleted(d.nonce))
    assert d.told("term.ended")["reason"] == "key_deleted"
    assert not d.all(m.Settle)
    assert not d.slice()


def test_a_leader_whose_waiting_rows_are_many_plans_once_it_has_seen_them_all() -> None:
    d = Driver([job("a")])
    d.settle()
    rows = [
        DueRow(SlotKey("a", T0 - timedelta(seconds=n)), 0, Origin.CATCHUP, T0)
        for n in range(3 * SLICE)
    ]
    d.slice(m.Settled(d.nonce, tuple(rows)))
    assert d.node.phase is Phase.SETTLING
    assert d.node.closed(d.boot_ns) is not None
    assert _finish(d, m.Record) == 2
    (claim,) = d.asked(m.Take).batch.claims
    assert claim.slot == rows[-1].slot, "the oldest"


@pytest.mark.parametrize("known", ["other", None], ids=["changed", "new"])
def test_a_schedule_counts_from_where_its_first_leader_plans(known: str | None) -> None:
    """The leader before had a faster clock, and planned 3 s further: by another schedule."""
    ahead, records = T0 + timedelta(seconds=3), {}
    if known is not None:
        records["a"] = JobRecord("a", T0 - timedelta(days=1), T0 - timedelta(days=1), known)
    settled = settle({"a": job("a")}, Past(ahead, records), T0)
    (record,) = settled.jobs
    assert settled.planned_to == record.effective_from == ahead


# ------------------------------------------------------------------ pauses and blackouts


def _paused(of: Job, seconds: float, pause: tuple[float, float]) -> Past:
    past = _past([of], seconds)
    start, end = (T0 - timedelta(seconds=before) for before in pause)
    record = replace(past.jobs[of.name], paused_from=start, paused_until=end)
    return replace(past, jobs={of.name: record})


def _ago(*seconds: float) -> list[SlotKey]:
    return [SlotKey("a", T0 - timedelta(seconds=n)) for n in seconds]


def test_paused_time_is_not_missed_time() -> None:
    """Slots 9 to 1 s and 0 s ago; paused from 7 s ago until 4 s ago, which is not part of it."""
    settled = settle({"a": job("a")}, _paused(job("a"), 10, (7, 4)), T0)
    by_reason = {
        reason: [e.slot for e in settled.entries if e.reason is reason]
        for reason in (Reason.COALESCED, Reason.PAUSED, None)
    }
    assert by_reason[Reason.PAUSED] == _ago(7, 6, 5)
    assert by_reason[Reason.COALESCED] == _ago(9, 8, 4, 3, 2, 1)
    assert by_reason[None] == _ago(0)
    assert {e.state for e in settled.entries if e.reason is Reason.PAUSED} == {State.SKIPPED}


@pytest.mark.parametrize("catchup", list(Catchup))
def test_no_slot_of_a_pause_that_goes_on_is_caught_up_or_missed(catchup: Catchup) -> None:
    of = job("a", catchup=catchup, start_within_s=2.0)
    settled = settle({"a": of}, _paused(of, 9.5, (9.5, -60)), T0)
    assert {(e.state, e.reason) for e in settled.entries} == {(State.SKIPPED, Reason.PAUSED)}
    assert len(settled.entries) == 10


def test_the_latest_slot_that_is_caught_up_is_the_one_before_the_pause() -> None:
    settled = settle({"a": job("a")}, _paused(job("a"), 4.5, (2, -1)), T0)
    assert [(e.slot, e.state) for e in settled.entries if e.reason is not Reason.PAUSED] == [
        (_ago(4)[0], State.MISSED),
        (_ago(3)[0], State.DUE),
    ]


def test_a_long_pause_is_one_gap_of_skipped_slots() -> None:
    settled = settle({"a": job("a")}, _paused(job("a"), 100, (90, 10)), T0)
    (paused,) = [gap for gap in settled.gaps if gap.reason is Reason.PAUSED]
    first, last = (key.scheduled_for for key in _ago(90, 11))
    assert (paused.first, paused.last, paused.slots) == (first, last, 80)
    assert paused.state is State.SKIPPED


def test_a_blackout_within_a_pause_is_told_as_one() -> None:
    start = T0 - timedelta(seconds=3)
    of = job("a", blackout=Blackout((Freeze(start, start + timedelta(seconds=2)),)))
    settled = settle({"a": of}, _paused(of, 5.5, (5, -1)), T0)
    assert [(e.slot, e.reason) for e in sorted(settled.entries, key=lambda e: e.slot)] == [
        *((slot, Reason.PAUSED) for slot in _ago(5, 4)),
        *((slot, Reason.BLACKOUT) for slot in _ago(3, 2)),
        *((slot, Reason.PAUSED) for slot in _ago(1, 0)),
    ]


def test_a_pause_that_was_over_before_changes_nothing() -> None:
    of = job("a")
    assert settle({"a": of}, _paused(of, 5, (60, 30)), T0) == settle({"a": of}, _past([of], 5), T0)


def test_skipped_slots_of_the_past_are_told_as_where_somebody_leads() -> None:
    of = job("a")
    d = Driver([of])
    d.settle(_paused(of, 30, (25, 2)))
    d.step(m.Settled(d.nonce, ()))
    told = [e.fields for e in d.all(m.Emit) if e.event == "slot.skipped"]
    assert [(f["job"], f["slots"], f["reason"]) for f in told] == [("a", 23, Reason.PAUSED)]


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


# ------------------------------------------------------------------ a job under another name


def _renamed(*others: Job, **options: object) -> tuple[dict[str, Job], Past]:
    """A job that the ledger knows as "old", three seconds behind; other jobs beside it."""
    jobs = [job("new", renamed_from="old", **options), *others]
    return {j.name: j for j in jobs}, _past([job("old")], 3)


def test_a_renamed_job_goes_on_where_it_was() -> None:
    jobs, past = _renamed(catchup=Catchup.ALL)
    settled = settle(jobs, past, T0)
    assert settled.renamed == (("new", "old"),)
    assert (settled.jobs, settled.retired) == ((), ())
    assert {entry.slot.job for entry in settled.entries} == {"new"}
    assert len(settled.entries) == 3


def test_a_renamed_job_with_another_schedule_counts_from_now_and_keeps_its_first_sight() -> None:
    jobs, past = _renamed(every_s=0.5)
    settled = settle(jobs, past, T0)
    digest = jobs["new"].schedule.digest
    first_seen = past.jobs["old"].first_seen
    assert settled.renamed == (("new", "old"),)
    assert settled.jobs == (JobRecord("new", first_seen, T0, digest),)
    assert not settled.entries


def test_a_former_name_means_nothing_once_the_ledger_knows_the_new_one() -> None:
    jobs, past = _renamed()
    known = replace(past.jobs["old"], job="new")
    settled = settle(jobs, replace(past, jobs={**past.jobs, "new": known}), T0)
    assert (settled.renamed, settled.retired) == ((), ("old",))


def test_a_former_name_that_nobody_had_is_a_new_job() -> None:
    jobs, _ = _renamed()
    settled = settle(jobs, Past(T0, {}), T0)
    assert settled.renamed == ()
    assert [record.job for record in settled.jobs] == ["new"]


def test_a_job_that_still_goes_by_the_former_name_keeps_what_is_its_own() -> None:
    jobs, past = _renamed(job("old"))
    settled = settle(jobs, past, T0)
    assert (settled.renamed, settled.retired) == ((), ())
    assert [record.job for record in settled.jobs] == ["new"]


def test_one_history_goes_to_one_job_only() -> None:
    jobs, past = _renamed(job("newer", renamed_from="old"))
    settled = settle(jobs, past, T0)
    assert settled.renamed == (("new", "old"),)
    assert [record.job for record in settled.jobs] == ["newer"]
