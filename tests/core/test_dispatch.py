"""From a due slot to a recorded end: claims, overlap, the pool, put-backs, waiting rows."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime, timedelta

import pytest

from cron_leader.core import messages as m
from cron_leader.core.blackout import Blackout, Freeze
from cron_leader.core.dispatch import Pool
from cron_leader.core.model import (
    Applied,
    Catchup,
    Delivery,
    DueRow,
    Isolation,
    OnLostLeadership,
    Origin,
    Past,
    Reason,
    Refused,
    SlotKey,
    State,
    Taken,
)
from cron_leader.core.plan import start_of
from cron_leader.core.standing import EndReason
from tests.core.driver import T0, Driver, S, job, patient, result


def at(seconds: float) -> datetime:
    return T0 + timedelta(seconds=seconds)


def due(name: str, seconds: float, origin: Origin = Origin.CATCHUP, attempt: int = 0) -> DueRow:
    return DueRow(SlotKey(name, at(seconds)), attempt, origin, T0)


def states(take: m.Take) -> list[tuple[float, str, str | None]]:
    """(seconds since T0, state, reason) of each entry of a batch."""
    return [
        ((e.slot.scheduled_for - T0).total_seconds(), e.state, e.reason) for e in take.batch.entries
    ]


# ------------------------------------------------------------------ the usual way


def test_a_slot_is_claimed_at_its_time_and_not_before() -> None:
    d = Driver().lead()
    assert d.node.wake_wall() == at(1)
    d.after(0.999)
    assert not d.all(m.Take)
    d.after(0.001)
    take = d.asked(m.Take)
    assert [c.slot.scheduled_for for c in take.batch.claims] == [at(1)]
    assert take.batch.planned_to == at(1)


def test_the_attempt_is_the_one_that_the_ledger_says() -> None:
    d = Driver().lead(rows=(due("beat", -5, attempt=1),))
    take = d.asked(m.Take)
    (claim,) = take.batch.claims
    d.step(m.BatchAnswered(d.nonce, take.batch, Taken({claim.run_id: 3})))
    assert (claim.seen, d.asked(m.Prepare).run.attempt) == (1, 3)


def test_a_heartbeat_names_the_runs_under_way() -> None:
    """From "go" to the end; what is only claimed may never start."""
    d = Driver([job(every_s=1.5)]).lead()

    def named() -> tuple[object, ...]:
        beat = d.asked(m.Heartbeat)
        d.step(m.HeartbeatAnswered(d.nonce, Applied(), d.wall))
        return beat.runs

    d.after(1.2)
    assert named() == ()
    run = d.fly(0.3)
    d.after(0.8)
    assert named() == (run,)
    d.land(run)
    d.after(1)
    assert named() == ()


def test_slots_due_at_one_instant_are_claimed_in_one_batch() -> None:
    d = Driver([job("a"), job("b"), job("c")]).lead()
    d.after(1)
    take = d.asked(m.Take)
    assert [c.slot.job for c in take.batch.claims] == ["a", "b", "c"]
    assert len({c.run_id for c in take.batch.claims}) == 3


def test_a_run_starts_only_by_way_of_claim_registration_and_go() -> None:
    d = Driver().lead()
    d.after(1)
    assert not d.all(m.Prepare)
    d.grant(d.asked(m.Take))
    run = d.asked(m.Prepare).run
    assert (run.attempt, run.term.fence) == (1, 7)
    d.step(m.Prepared(run.run_id))
    assert d.asked(m.Go).deadline_ns == d.node.gate.deadline_ns
    d.after(0.002, m.Started(run.run_id, at(1.002)))
    assert d.told("run.started")["late_ms"] == 2


@pytest.mark.parametrize(
    ("how", "state"),
    [
        (result(), State.SUCCEEDED),
        (result("exit code 3"), State.FAILED),
        (result("timed out", timed_out=True), State.TIMED_OUT),
        (replace(result("after its commit"), committed=True), State.SUCCEEDED),
    ],
)
def test_the_end_of_a_run_is_recorded(how: object, state: State) -> None:
    d = Driver().lead()
    run = d.fly()
    written = d.land(run, how)  # type: ignore[arg-type]
    assert (written.finish.state, written.finish.attempt_state) == (state, state)
    assert not written.once
    assert d.told("run.finished")["outcome"] == state


def test_only_the_last_line_of_an_error_goes_to_the_log() -> None:
    d = Driver().lead()
    run = d.fly()
    d.land(run, result("Traceback\n  ...\nValueError: no"))
    assert d.told("run.finished")["error"] == "ValueError: no"


@pytest.mark.parametrize("text", ["", "\n"])
def test_an_error_without_a_word_is_an_error_all_the_same(text: str) -> None:
    """What `sys.exit("")` in a job leaves; it must cost one run, not the node."""
    d = Driver().lead()
    run = d.fly()
    assert d.land(run, result(text)).finish.state is State.FAILED
    assert d.told("run.finished")["error"] == ""


# ------------------------------------------------------------------ overlap and the pool


def test_a_slot_due_while_the_previous_run_goes_is_skipped_and_not_piled_up() -> None:
    d = Driver().lead()
    run = d.fly()
    d.after(1)
    take = d.asked(m.Take)
    assert not take.batch.claims
    assert states(take) == [(2, "skipped", "overlap")]
    d.step(m.BatchAnswered(d.nonce, take.batch, Taken({})))
    assert d.told("slot.skipped")["reason"] == Reason.OVERLAP
    d.record(d.land(run))
    d.after(1)
    assert len(d.asked(m.Take).batch.claims) == 1


def test_a_run_whose_end_is_being_written_is_no_overlap() -> None:
    d = Driver().lead()
    d.land(d.fly())
    d.after(1)
    assert len(d.asked(m.Take).batch.claims) == 1


def test_a_full_pool_makes_a_slot_wait_in_the_ledger() -> None:
    d = Driver([job("a", every_s=60), job("b", every_s=60)], patient(pool=Pool(1, 10.0)))
    d.wall = at(59)
    d.lead()
    d.after(1)
    take = d.asked(m.Take)
    assert [c.slot.job for c in take.batch.claims] == ["a"]
    assert states(take) == [(60, "due", None)]
    d.grant(take)
    run = d.asked(m.Prepare).run
    assert d.node.wake_wall() == at(120)  # a full pool sets no alarm for what waits
    d.step(m.Prepared(run.run_id))
    d.step(m.Started(run.run_id, d.wall))
    d.step(m.RunEnded(run.run_id, result()))
    claim = d.asked(m.Take).batch.claims[0]
    assert (claim.slot.job, claim.seen) == ("b", 0)


def test_a_slot_with_jitter_is_due_in_the_ledger_until_its_own_time() -> None:
    jittered = job("a", every_s=60, jitter_s=2)
    start = start_of(jittered, at(60))
    d = Driver([jittered], patient())
    d.wall = at(59)
    d.lead()
    d.after(1)
    take = d.asked(m.Take)
    assert not take.batch.claims
    assert [(e.state, e.next_at) for e in take.batch.entries] == [(State.DUE, start)]
    d.grant(take)
    assert d.node.wake_wall() == start
    d.after((start - d.wall).total_seconds())
    (claim,) = d.asked(m.Take).batch.claims
    assert (claim.slot, claim.seen) == (SlotKey("a", at(60)), 0)


def test_a_slot_with_jitter_whose_previous_run_goes_at_its_own_time_is_skipped() -> None:
    rows = (due("a", -120, Origin.SCHEDULE), due("a", -60, Origin.SCHEDULE))
    d = Driver([job("a", every_s=3600, jitter_s=1)]).lead(rows=rows)
    take = d.asked(m.Take)
    assert [c.slot.scheduled_for for c in take.batch.claims] == [at(-120)]
    assert states(take) == [(-60, "skipped", "overlap")]


# ------------------------------------------------------------------ blackouts


def test_a_row_that_waits_starts_when_the_blackout_is_over() -> None:
    frozen = Blackout((Freeze(at(1), at(5)),))
    rows = (due("a", -60, Origin.CATCHUP),)
    d = Driver([job("a", every_s=3600, blackout=frozen)]).lead(rows=rows)
    assert [c.slot.scheduled_for for c in d.asked(m.Take).batch.claims] == [at(-60)]
    d = Driver([job("a", every_s=3600, blackout=frozen)])
    d.wall = at(2)
    d.lead(rows=rows)
    assert not d.all(m.Take)
    assert d.node.wake_wall() == at(5)
    d.after(3)
    assert [c.slot.scheduled_for for c in d.asked(m.Take).batch.claims] == [at(-60)]


def test_slots_in_a_blackout_are_skipped_and_told() -> None:
    frozen = Blackout((Freeze(at(0), at(60)),))
    d = Driver([job("a", every_s=0.25, blackout=frozen)]).lead()
    d.after(0.25)
    take = d.asked(m.Take)
    assert (take.batch.claims, states(take)) == ((), [(0.25, "skipped", "blackout")])
    d.grant(take)
    d.after(3)
    take = d.asked(m.Take)
    assert [(gap.slots, gap.state) for gap in take.batch.gaps] == [(12, State.SKIPPED)]
    d.grant(take)
    told = [emit.fields for emit in d.all(m.Emit) if emit.event == "slot.skipped"]
    assert [(fields["slots"], fields["reason"]) for fields in told] == [(12, "blackout")]


# ------------------------------------------------------------------ claims that lead to no run


def test_a_claim_not_won_starts_nothing_and_the_node_stays_leader() -> None:
    d = Driver().lead()
    d.after(1)
    d.step(m.BatchAnswered(d.nonce, d.asked(m.Take).batch, Taken({})))
    assert not d.all(m.Prepare)
    assert d.quiet("term.ended")
    d.after(1)
    assert len(d.asked(m.Take).batch.claims) == 1


def test_a_refused_claim_ends_the_term() -> None:
    d = Driver().lead()
    d.after(1)
    d.step(m.BatchAnswered(d.nonce, d.asked(m.Take).batch, Refused("claim", 9)))
    assert d.told("ledger.refused") == {"what": "claim", "high": 9, "fence": 7}
    assert d.told("term.ended")["reason"] == EndReason.REFUSED


def test_a_claim_answered_with_the_gate_shut_is_put_back_and_taken_again() -> None:
    d = Driver([job(every_s=60)])
    d.wall = at(59)
    d.lead()
    d.after(1)
    take = d.asked(m.Take)
    d.step(m.WatchBroken(d.nonce, "silent"))
    d.grant(take)
    assert not d.all(m.Prepare)
    back = d.asked(m.WritePutBack).put_back
    assert (back.attempt, back.run_id) == (1, take.batch.claims[0].run_id)
    d.step(m.PutBackAnswered(d.nonce, back.run_id, Applied()))
    d.step(m.WatchOpened(d.nonce))
    assert not d.all(m.Take)
    assert d.node.wake_wall() == at(61)
    d.after(1)
    claim = d.asked(m.Take).batch.claims[0]
    assert claim.seen == 1
    assert claim.run_id != back.run_id


def test_an_inline_run_goes_when_it_is_claimed_for_there_is_nothing_to_prepare() -> None:
    d = Driver([job(isolation=Isolation.INLINE)]).lead()
    d.after(1)
    d.grant(d.asked(m.Take))
    go = d.asked(m.Go)
    assert (go.deadline_ns, d.all(m.Prepare)) == (d.node.gate.deadline_ns, [])
    d.step(m.Started(go.run.run_id, d.wall))
    assert d.told("run.started")["late_ms"] == 0
    d.record(d.land(go.run))


def test_an_inline_run_claimed_with_the_gate_shut_is_put_back() -> None:
    d = Driver([job(isolation=Isolation.INLINE)]).lead()
    d.after(1)
    take = d.asked(m.Take)
    d.step(m.WatchBroken(d.nonce, "silent"))
    d.grant(take)
    assert not d.all(m.Go)
    assert d.asked(m.WritePutBack).put_back.run_id == take.batch.claims[0].run_id


def test_a_put_back_that_changed_nothing_is_not_claimed_again() -> None:
    d = Driver([job(every_s=60)])
    d.wall = at(59)
    d.lead()
    d.after(1)
    d.grant(d.asked(m.Take))
    run = d.asked(m.Prepare).run
    d.step(m.NotStarted(run.run_id, "fork failed"))
    d.step(m.PutBackAnswered(d.nonce, run.run_id, Applied(changed=False)))
    d.after(2)
    assert not d.all(m.Take)


def test_a_refused_put_back_ends_the_term() -> None:
    d = Driver().lead()
    d.after(1)
    d.grant(d.asked(m.Take))
    run = d.asked(m.Prepare).run
    d.step(m.NotStarted(run.run_id, "fork failed"))
    d.step(m.PutBackAnswered(d.nonce, run.run_id, Refused("put_back", 9)))
    assert d.told("term.ended")["reason"] == EndReason.REFUSED


def test_the_gate_is_asked_again_between_claim_and_exec() -> None:
    d = Driver().lead()
    d.after(1)
    d.grant(d.asked(m.Take))
    run = d.asked(m.Prepare).run
    d.step(m.WatchBroken(d.nonce, "silent"))
    d.step(m.Prepared(run.run_id))
    assert not d.all(m.Go)
    d.asked(m.Drop)
    d.step(m.NotStarted(run.run_id, "dropped"))
    d.asked(m.WritePutBack)


def test_reports_of_runs_nobody_knows_change_nothing() -> None:
    d = Driver().lead()
    for event in (
        m.Prepared("x"),
        m.Started("x", T0),
        m.NotStarted("x", ""),
        m.RunEnded("x", result()),
        m.FinishAnswered(d.nonce, "x", Applied()),
        m.PutBackAnswered(d.nonce, "x", Applied()),
    ):
        assert d.step(event) == []


# ------------------------------------------------------------------ the term ends in mid-flight


def test_a_lost_term_kills_its_runs_at_once_and_leaves_the_rows_to_the_sweep() -> None:
    d = Driver([job(grace_s=10)]).lead()
    run = d.fly()
    d.step(m.KeyDeleted(d.nonce))
    assert d.asked(m.Kill) == m.Kill(run.run_id, 0)
    d.step(m.RunEnded(run.run_id, result("killed by SIGKILL")))
    assert not d.all(m.WriteFinish)
    told = d.told("run.finished")
    assert (told["outcome"], told["reason"]) == (State.ABANDONED, Reason.LOST_LEADERSHIP)


def test_a_run_that_may_finish_outlives_its_term_and_is_recorded_once() -> None:
    d = Driver([job(on_lost_leadership=OnLostLeadership.FINISH)]).lead()
    run = d.fly()
    d.step(m.KeyDeleted(d.nonce))
    assert not d.all(m.Kill)
    written = d.land(run)
    assert written.once
    assert written.term is run.term
    d.record(written, Refused("finish", 9))
    assert d.told("ledger.refused")["fence"] == 7


@pytest.mark.parametrize("begun", [False, True])
def test_a_go_that_may_not_have_been_obeyed_yet_is_taken_back_at_the_terms_end(
    begun: bool,
) -> None:
    d = Driver([job(on_lost_leadership=OnLostLeadership.FINISH)]).lead()
    d.after(1)
    d.grant(d.asked(m.Take))
    run = d.asked(m.Prepare).run
    d.step(m.Prepared(run.run_id))
    d.step(m.KeyDeleted(d.nonce))
    assert d.asked(m.Drop).run_id == run.run_id
    if begun:
        d.step(m.Started(run.run_id, d.wall))
        assert d.land(run).once
    else:
        d.step(m.NotStarted(run.run_id, "dropped"))
        assert not d.all(m.WritePutBack)


def test_a_refused_finish_of_an_older_term_never_ends_a_newer_one() -> None:
    d = Driver([job(on_lost_leadership=OnLostLeadership.FINISH)]).lead()
    run = d.fly()
    d.step(m.KeyDeleted(d.nonce))
    d.step(m.Left(d.nonce))
    d.step(m.LedgerReached())
    old, d.nonce = d.nonce, d.asked(m.Join).nonce
    d.renew()
    d.step(m.WatchOpened(d.nonce))
    d.step(m.Elected(d.nonce, 12, 99))
    d.step(m.Raised(d.nonce, 12))
    d.step(m.PastRead(d.nonce, Past(None, {})))
    d.step(m.Settled(d.nonce, ()))
    d.after(1)
    assert len(d.asked(m.Take).batch.claims) == 1  # runs of older terms are no overlap
    written = d.land(run)
    d.step(m.FinishAnswered(old, written.finish.run_id, Refused("finish", 12)))
    assert d.quiet("term.ended")


def test_a_refused_finish_of_this_term_ends_it() -> None:
    d = Driver().lead()
    d.record(d.land(d.fly()), Refused("finish", 9))
    assert d.told("term.ended")["reason"] == EndReason.REFUSED


def test_a_term_that_ends_drops_what_was_not_started_yet() -> None:
    d = Driver().lead()
    d.after(1)
    take = d.asked(m.Take)
    d.grant(take)
    run = d.asked(m.Prepare).run
    d.step(m.KeyDeleted(d.nonce))
    assert d.asked(m.Drop).run_id == run.run_id
    assert not d.all(m.Leave)
    assert d.step(m.Prepared(run.run_id)) == []  # it crossed the drop
    d.step(m.NotStarted(run.run_id, "dropped"))
    assert not d.all(m.WritePutBack)
    d.asked(m.Leave)


def test_a_term_that_ends_forgets_claims_and_put_backs_on_their_way() -> None:
    d = Driver([job("a"), job("b")]).lead()
    d.after(1)
    take = d.asked(m.Take)
    d.step(m.KeyDeleted(d.nonce))
    d.asked(m.Leave)
    d.grant(take)
    assert not d.all(m.Prepare)


def test_a_run_between_go_and_start_is_killed_with_its_term() -> None:
    d = Driver().lead()
    d.after(1)
    d.grant(d.asked(m.Take))
    run = d.asked(m.Prepare).run
    d.step(m.Prepared(run.run_id))
    d.step(m.KeyDeleted(d.nonce))
    assert d.asked(m.Kill).run_id == run.run_id
    d.step(m.NotStarted(run.run_id, "late"))
    d.asked(m.Leave)


# ------------------------------------------------------------------ stopping


def test_a_run_cut_short_by_a_shutdown_is_cancelled() -> None:
    d = Driver(limits=patient(drain_s=0)).lead()
    run = d.fly()
    d.step(m.StopAsked(15))
    d.asked(m.Kill)
    finish = d.land(run, result("killed by SIGTERM")).finish
    assert (finish.state, finish.reason) == (State.CANCELLED, Reason.SHUTDOWN)


def test_with_at_least_once_a_run_cut_short_is_left_due_for_the_next_leader() -> None:
    d = Driver([job(delivery=Delivery.AT_LEAST_ONCE)], patient(drain_s=0)).lead()
    run = d.fly()
    d.step(m.StopAsked(15))
    finish = d.land(run, result("killed by SIGTERM")).finish
    assert (finish.state, finish.attempt_state) == (State.DUE, State.CANCELLED)
    assert finish.reason is None


def test_a_run_that_succeeds_while_being_stopped_has_succeeded() -> None:
    d = Driver(limits=patient(drain_s=0)).lead()
    run = d.fly()
    d.step(m.StopAsked(15))
    assert d.land(run).finish.state is State.SUCCEEDED


def test_a_stop_drops_what_was_prepared_and_puts_it_back() -> None:
    d = Driver().lead()
    d.after(1)
    d.grant(d.asked(m.Take))
    run = d.asked(m.Prepare).run
    d.step(m.StopAsked(15))
    d.asked(m.Drop)
    d.step(m.NotStarted(run.run_id, "dropped"))
    d.asked(m.WritePutBack)
    assert not d.all(m.CloseTerm)
    d.step(m.PutBackAnswered(d.nonce, run.run_id, Applied()))
    d.asked(m.CloseTerm)


def test_the_drain_also_ends_a_run_told_to_go_that_has_not_begun() -> None:
    """A python job may hang while it is imported."""
    d = Driver(limits=patient(drain_s=3)).lead()
    d.after(1)
    d.grant(d.asked(m.Take))
    run = d.asked(m.Prepare).run
    d.step(m.Prepared(run.run_id))
    d.step(m.StopAsked(15))
    assert not d.all(m.Kill)
    assert not d.all(m.WritePutBack)  # it may have begun
    d.after(3)
    assert d.asked(m.Kill).run_id == run.run_id


def test_losing_the_supervisor_drops_what_was_prepared() -> None:
    d = Driver().lead()
    d.after(1)
    d.grant(d.asked(m.Take))
    run = d.asked(m.Prepare).run
    d.step(m.SupervisorGone())
    assert run.run_id in {e.run_id for e in d.all(m.Drop)}


# ------------------------------------------------------------------ waiting rows and catch-up


def test_rows_of_the_past_are_started_at_the_catch_up_rate() -> None:
    jobs = [job(name, every_s=3600) for name in ("a", "b", "c")]
    rows = tuple(due(j.name, -60) for j in jobs)
    d = Driver(jobs, patient(pool=Pool(64, 2.0))).lead(rows=rows)
    assert [c.slot.job for c in d.asked(m.Take).batch.claims] == ["a"]
    d.step()
    assert not d.all(m.Take)
    assert d.node.wake_boot_ns() == d.boot_ns + S // 2
    assert d.node.wake_wall() == at(3600)  # by that clock nothing of the past is waited for
    d.after(0.5)
    assert [c.slot.job for c in d.asked(m.Take).batch.claims] == ["b"]


def test_a_slot_that_waited_for_its_own_time_does_not_queue_behind_the_backlog() -> None:
    jobs = [job(name, every_s=3600) for name in ("a", "b", "c")]
    rows = (due("a", -60), due("b", -60), DueRow(SlotKey("c", T0), 0, Origin.SCHEDULE, T0))
    d = Driver(jobs, patient(pool=Pool(64, 2.0))).lead(rows=rows)
    assert {c.slot.job for c in d.asked(m.Take).batch.claims} == {"a", "c"}


def test_a_backlog_does_not_keep_the_node_awake_after_the_clock_was_set_back() -> None:
    jobs = [job(name, every_s=3600) for name in ("a", "b")]
    d = Driver(jobs).lead(rows=(due("a", -60), due("b", -60)))
    d.grant(d.asked(m.Take))
    d.wall = at(-600)
    d.step()
    d.renew()
    d.step(m.Verified(d.nonce, d.boot_ns))
    d.told("gate.opened")
    d.after(0.5)
    assert not d.all(m.Take)
    wake_ns = d.node.wake_boot_ns()
    assert wake_ns is not None
    assert wake_ns > d.boot_ns
    assert d.node.wake_wall() == T0  # as its row says


def test_two_waiting_slots_of_one_job_run_one_after_the_other() -> None:
    rows = (due("a", -120, Origin.SCHEDULE), due("a", -60, Origin.SCHEDULE))
    d = Driver([job("a", every_s=3600)]).lead(rows=rows)
    take = d.asked(m.Take)
    assert [c.slot.scheduled_for for c in take.batch.claims] == [at(-120)]
    d.grant(take)
    run = d.asked(m.Prepare).run
    d.step(m.Prepared(run.run_id))
    d.step(m.Started(run.run_id, d.wall))
    d.step(m.RunEnded(run.run_id, result()))
    assert [c.slot.scheduled_for for c in d.asked(m.Take).batch.claims] == [at(-60)]


def test_a_waiting_row_keeps_its_attempt() -> None:
    d = Driver([job("a", every_s=3600)]).lead(rows=(due("a", -60, attempt=2),))
    take = d.asked(m.Take)
    assert take.batch.claims[0].seen == 2
    d.grant(take)
    assert d.asked(m.Prepare).run.attempt == 3


def test_a_waiting_row_of_a_job_that_left_the_configuration_is_skipped() -> None:
    d = Driver([job("a", every_s=3600)]).lead(rows=(due("gone", -60),))
    assert states(d.asked(m.Take)) == [(-60, "skipped", "no_handler")]


def test_a_waiting_row_past_start_within_is_missed() -> None:
    jobs = [
        job("a", every_s=3600, start_within_s=30.0),
        job("b", every_s=3600, start_within_s=90.0),
    ]
    d = Driver(jobs).lead(rows=(due("a", -60), due("b", -60)))
    take = d.asked(m.Take)
    assert states(take) == [(-60, "missed", "late")]
    assert [c.slot.job for c in take.batch.claims] == ["b"]
    d.grant(take)
    assert d.told("slot.missed")["job"] == "a"


def test_a_retry_past_start_within_leaves_its_slot_failed_and_says_so() -> None:
    """It was tried: it is not missed, and a backfill is not to run it again."""
    late = job(every_s=3600, start_within_s=30.0)
    d = Driver([late]).lead(rows=(due("beat", -60, attempt=2),))
    take = d.asked(m.Take)
    assert states(take) == [(-60, "failed", "late")]
    d.grant(take)
    assert d.told("slot.failed") == {
        "job": "beat",
        "scheduled_for": at(-60),
        "attempt": 2,
        "reason": Reason.LATE,
    }


def test_a_put_back_is_no_try_of_a_slot_that_comes_too_late() -> None:
    late = job(every_s=3600, start_within_s=30.0)
    row = replace(due("beat", -60, attempt=1), put_backs=1)
    assert states(Driver([late]).lead(rows=(row,)).asked(m.Take)) == [(-60, "missed", "late")]


@pytest.mark.parametrize(("attempt", "event"), [(0, "slot.skipped"), (1, "slot.failed")])
def test_what_a_pause_ends_in_the_claim_has_failed_if_it_was_tried(
    attempt: int, event: str
) -> None:
    d = Driver([job(every_s=3600)]).lead(rows=(due("beat", 0, attempt=attempt),))
    take = d.asked(m.Take)
    (claim,) = take.batch.claims
    d.step(m.BatchAnswered(d.nonce, take.batch, Taken({}, frozenset({claim.run_id}))))
    assert d.told(event)["reason"] == Reason.PAUSED


def test_a_gate_shut_for_a_while_makes_older_slots_missed_and_the_newest_run() -> None:
    d = Driver().lead()
    d.step(m.WatchBroken(d.nonce, "silent"))
    d.after(3.5)
    assert not d.all(m.Take)
    d.step(m.WatchOpened(d.nonce))
    take = d.asked(m.Take)
    assert states(take) == [(1, "missed", "coalesced"), (2, "missed", "coalesced")]
    assert [c.slot.scheduled_for for c in take.batch.claims] == [at(3)]


def test_with_catchup_all_the_late_slots_wait_their_turn() -> None:
    d = Driver([job(catchup=Catchup.ALL)]).lead()
    d.step(m.WatchBroken(d.nonce, "silent"))
    d.after(3.5)
    d.step(m.WatchOpened(d.nonce))
    take = d.asked(m.Take)
    assert states(take) == [(1, "due", None), (2, "due", None)]
    assert {e.origin for e in take.batch.entries} == {Origin.CATCHUP}
    assert [c.slot.scheduled_for for c in take.batch.claims] == [at(3)]


def test_a_long_stretch_of_missed_slots_is_one_gap() -> None:
    d = Driver([job(every_s=0.1)]).lead()
    d.step(m.WatchBroken(d.nonce, "silent"))
    d.after(5)
    d.step(m.WatchOpened(d.nonce))
    take = d.asked(m.Take)
    assert [g.slots for g in take.batch.gaps] == [49]
    d.grant(take)
    assert d.told("slot.missed")["slots"] == 49


def test_a_clock_set_back_fires_no_slot_a_second_time() -> None:
    d = Driver([job(every_s=60)])
    d.wall = at(59)
    d.lead()
    d.after(1)
    d.record(_through(d))
    d.wall = at(30)
    d.renew()
    d.step(m.Verified(d.nonce, d.boot_ns))
    for _ in range(6):
        d.after(5)
        d.renew()
        assert not d.all(m.Take)
    assert d.node.wake_wall() == at(120)


def _through(d: Driver) -> m.WriteFinish:
    d.grant(d.asked(m.Take))
    run = d.asked(m.Prepare).run
    d.step(m.Prepared(run.run_id))
    d.step(m.Started(run.run_id, d.wall))
    return d.land(run)


# ------------------------------------------------------------------ planned_to


def test_planned_to_never_passes_a_slot_whose_claim_has_no_answer_yet() -> None:
    d = Driver([job(every_s=2)]).lead()
    d.after(1)
    assert d.asked(m.Heartbeat).planned_to == at(1)
    d.step(m.HeartbeatAnswered(d.nonce, Applied(), d.wall))
    d.after(1)
    take = d.asked(m.Take)
    assert take.batch.planned_to == at(2)
    assert d.asked(m.Heartbeat).planned_to == at(1)
    d.step(m.HeartbeatAnswered(d.nonce, Applied(), d.wall))
    d.after(1)
    assert d.asked(m.Heartbeat).planned_to == at(1)
    d.grant(take)
    d.step(m.HeartbeatAnswered(d.nonce, Applied(), d.wall))
    d.after(1)
    assert d.asked(m.Heartbeat).planned_to == at(3) or d.all(m.Take)


def test_a_second_batch_does_not_claim_to_have_planned_past_the_first() -> None:
    d = Driver([job("a"), job("b", every_s=2)]).lead()
    d.after(1)
    d.after(1)
    assert d.asked(m.Take).batch.planned_to == T0


# ------------------------------------------------------------------ takeover


def test_the_takeover_writes_what_the_past_owes() -> None:
    from cron_leader.core.model import JobRecord

    digest = job().schedule.digest
    known = {
        "beat": JobRecord("beat", at(-100), at(-100), digest),
        "left": JobRecord("left", at(-100), at(-100), digest),
        "long gone": JobRecord("long gone", at(-100), at(-100), digest, at(-50)),
    }
    d = Driver([job(), job("new")])
    d.settle(Past(at(-5), known))
    settlement = d.asked(m.Settle).settlement
    assert [(e.slot.job, e.state, e.reason) for e in settlement.entries] == [
        ("beat", "missed", "coalesced"),
        ("beat", "missed", "coalesced"),
        ("beat", "missed", "coalesced"),
        ("beat", "missed", "coalesced"),
        ("beat", "due", None),
    ]
    assert settlement.retired == ("left",)
    assert settlement.retired_at == at(-5), "nobody who leads knows its later slots"
    assert settlement.planned_to == T0
    assert {r.job: r.effective_from for r in settlement.jobs} == {"new": T0}


def test_a_changed_or_returning_job_starts_at_now() -> None:
    from cron_leader.core.model import JobRecord

    digest = job().schedule.digest
    known = {
        "changed": JobRecord("changed", at(-100), at(-100), "other"),
        "back": JobRecord("back", at(-100), at(-100), digest, at(-50)),
    }
    d = Driver([job("changed"), job("back")])
    d.settle(Past(at(-5), known))
    settlement = d.asked(m.Settle).settlement
    assert not settlement.entries
    assert {(r.effective_from, r.first_seen, r.retired_at) for r in settlement.jobs} == {
        (T0, at(-100), None)
    }


def test_planned_to_never_falls_though_the_new_leaders_clock_is_behind() -> None:
    d = Driver([job(every_s=60)])
    d.lead(Past(at(300), {}))
    assert d.node.wake_wall() == at(360)


def test_only_at_least_once_jobs_are_swept_back_to_due() -> None:
    d = Driver([job("a", delivery=Delivery.AT_LEAST_ONCE), job("b")])
    d.settle()
    assert d.asked(m.Settle).settlement.at_least_once == {"a"}
