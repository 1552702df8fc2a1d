"""Whether, when and how often a failed attempt is tried again."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from cron_leader.core import messages as m
from cron_leader.core.model import (
    BACKOFF_MAX_S,
    Applied,
    DueRow,
    Job,
    Origin,
    PythonSpec,
    Reason,
    Result,
    Run,
    SlotKey,
    State,
    Term,
)
from cron_leader.core.retry import HOUR_NS, Budget, delay_s, raised, retry_at
from tests.core.driver import T0, Driver, job, patient, result
from tests.core.test_dispatch import at

TERM = Term("fleet/0", 7, "n", "a", 1, T0)
FAILED = result("exit code 1")


def attempt(number: int, of: Job, *, command_id: str = "", seconds: float = 0) -> Run:
    return Run("r", SlotKey(of.name, at(seconds), command_id), number, TERM, of)


# ------------------------------------------------------------------ whether


def test_a_job_has_as_many_attempts_as_retries_and_one() -> None:
    trying = job(retries=2)
    tried = [retry_at(attempt(n, trying), FAILED) is not None for n in (1, 2, 3)]
    assert tried == [True, True, False]
    assert retry_at(attempt(1, job()), FAILED) is None


def test_a_program_is_tried_again_for_the_given_exit_codes_only() -> None:
    picky = job(retries=1, retry_exit_codes=(75, 143))
    for code, again in ((75, True), (1, False), (None, False)):
        ended = replace(FAILED, exit_code=code)
        assert (retry_at(attempt(1, picky), ended) is not None) is again


def test_a_function_is_tried_again_for_the_given_exceptions_only() -> None:
    picky = replace(job(retries=1, retry_on=("OSError", "a.b.Busy")), spec=PythonSpec("a:b"))
    for error, again in (("OSError: no", True), ("a.b.Busy", True), ("KeyError: 1", False)):
        assert (retry_at(attempt(1, picky), result(error)) is not None) is again
    any_of_them = replace(picky, retry_on=())
    assert retry_at(attempt(1, any_of_them), result("KeyError: 1")) is not None


CAUSED = """Traceback (most recent call last):
  File "a.py", line 1, in f
KeyError: 1

During handling of the above exception, another exception occurred:

Traceback (most recent call last):
  File "a.py", line 2, in f
    raise Busy
a.b.Busy: too many
of them
"""


@pytest.mark.parametrize(
    ("name", "error", "found"),
    [
        ("Busy", CAUSED, True),
        ("a.b.Busy", CAUSED, True),
        ("b.Busy", CAUSED, True),
        ("usy", CAUSED, False),
        ("KeyError", CAUSED, False),
        ("raise Busy", CAUSED, False),
        ("ValueError", "ValueError", True),
        ("ValueError", None, False),
        ("ValueError", "", False),
    ],
)
def test_an_exception_is_known_by_the_end_of_its_traceback(
    name: str, error: str | None, found: bool
) -> None:
    assert raised(name, error) is found


def test_no_retry_starts_later_than_start_within_but_for_an_operators_order() -> None:
    late = job(retries=1, backoff_s=10.0, start_within_s=5.0)
    assert retry_at(attempt(1, late), FAILED) is None
    assert retry_at(attempt(1, late, command_id="c"), FAILED) is not None
    in_time = job(retries=1, backoff_s=10.0, start_within_s=10.0)
    assert retry_at(attempt(1, in_time), FAILED) is not None


# ------------------------------------------------------------------ when


def test_each_wait_lies_in_the_upper_half_of_a_doubled_backoff_up_to_its_bound() -> None:
    chance = random.Random(5)
    for _ in range(200):
        backoff_s = chance.uniform(0.01, 60)
        of = job(retries=1000, backoff_s=backoff_s, backoff_max_s=chance.uniform(backoff_s, 600))
        waits = [delay_s(attempt(n, of, seconds=chance.randrange(10**6))) for n in range(1, 12)]
        for n, wait_s in enumerate(waits):
            most = min(of.backoff_s * 2**n, of.backoff_max_s)
            assert most / 2 <= wait_s <= most
        doubling = [s for n, s in enumerate(waits) if of.backoff_s * 2**n <= of.backoff_max_s]
        assert doubling == sorted(doubling)


def test_a_retry_comes_after_the_end_of_its_attempt_and_is_the_same_on_each_node() -> None:
    of, ended, times = job(retries=50), FAILED, []
    for number in range(1, 50):
        times.append(retry_at(attempt(number, of), ended))
        assert times[-1] == retry_at(attempt(number, job(retries=50)), ended)
        assert times[-1] is not None
        ended = replace(FAILED, finished_at=times[-1])
    assert times == sorted(set(times), key=lambda t: t or T0)


def test_the_waits_of_different_slots_differ() -> None:
    assert len({delay_s(attempt(1, job(), seconds=n)) for n in range(100)}) == 100


def test_a_thousandth_attempt_waits_no_longer_than_the_bound() -> None:
    assert delay_s(attempt(1001, job(retries=1000))) <= BACKOFF_MAX_S


# ------------------------------------------------------------------ the budget


def test_a_budget_is_for_an_hour_and_for_one_job() -> None:
    budget, of = Budget(), job("a", retry_budget=2)
    assert [budget.take(of, now_ns) for now_ns in (0, 1, 2)] == [True, True, False]
    assert budget.take(job("b", retry_budget=2), 2)
    assert budget.take(job("c"), 2)
    assert not budget.take(of, HOUR_NS - 1)
    assert budget.take(of, HOUR_NS)
    assert not budget.take(of, HOUR_NS)


# ------------------------------------------------------------------ in a node


def flight(**options: object) -> tuple[Driver, Run]:
    d = Driver([job(every_s=3600, **options)])
    d.wall = at(3599)
    d.lead()
    return d, d.fly()


def ended(d: Driver, error: str = "exit code 1") -> Result:
    return replace(result(error), finished_at=d.wall)


def test_a_failed_run_is_retrying_and_its_next_attempt_is_claimed_at_its_time() -> None:
    d, run = flight(retries=1, backoff_s=1.0)
    written = d.land(run, ended(d))
    finish = written.finish
    assert (finish.state, finish.attempt_state) == (State.RETRYING, State.FAILED)
    assert finish.next_at is not None
    assert d.told("run.finished")["outcome"] == State.FAILED
    d.record(written)
    assert not d.all(m.Take)
    assert d.node.wake_wall() == finish.next_at
    d.after((finish.next_at - d.wall).total_seconds())
    take = d.asked(m.Take)
    (claim,) = take.batch.claims
    assert (claim.slot, claim.seen) == (run.slot, 1)
    d.grant(take)
    run = d.asked(m.Prepare).run
    assert run.attempt == 2
    d.step(m.Prepared(run.run_id))
    d.step(m.Started(run.run_id, d.wall))
    assert d.land(run, ended(d)).finish.state is State.FAILED


def test_a_retry_is_not_claimed_before_the_ledger_has_recorded_the_failure() -> None:
    d, run = flight(retries=1, backoff_s=1.0)
    d.land(run, ended(d))
    d.after(1.5)
    assert not d.all(m.Take)


def test_an_attempt_that_was_put_back_uses_up_no_retry() -> None:
    d = Driver([job(every_s=60, retries=1)])
    d.wall = at(59)
    d.lead()
    d.after(1)
    d.grant(d.asked(m.Take))
    for _ in range(3):
        run_id = d.asked(m.Prepare).run.run_id
        d.step(m.NotStarted(run_id, "the gate closed"))
        d.step(m.PutBackAnswered(d.nonce, run_id, Applied()))
        d.after(1)
        d.grant(d.asked(m.Take))
    run = d.asked(m.Prepare).run
    assert (run.attempt, run.tries) == (4, 1)
    d.step(m.Prepared(run.run_id))
    d.step(m.Started(run.run_id, d.wall))
    written = d.land(run, ended(d))
    assert written.finish.state is State.RETRYING
    d.record(written)
    d.after(2)
    d.grant(d.asked(m.Take))
    last = d.asked(m.Prepare).run
    assert (last.attempt, last.tries) == (5, 2)
    d.step(m.Prepared(last.run_id))
    d.step(m.Started(last.run_id, d.wall))
    assert d.land(last, ended(d)).finish.state is State.FAILED


def test_a_new_leader_does_not_count_what_was_put_back_under_an_older_one() -> None:
    of = job(every_s=60, retries=1)
    d = Driver([of])
    row = DueRow(SlotKey("beat", T0), 3, Origin.SCHEDULE, T0, put_backs=3)
    d.lead(rows=(row,))
    d.grant(d.asked(m.Take))
    run = d.asked(m.Prepare).run
    assert (run.attempt, run.tries) == (4, 1)
    assert retry_at(run, result("exit code 1")) is not None


def test_an_end_that_changed_nothing_is_not_tried_again() -> None:
    """A function's own transaction has recorded a success before it failed."""
    d, run = flight(retries=1)
    d.record(d.land(run, ended(d)), Applied(changed=False))
    d.after(2)
    assert not d.all(m.Take)


def test_a_run_that_timed_out_is_tried_again_and_one_that_succeeded_is_not() -> None:
    d, run = flight(retries=1)
    assert d.land(run, result("timed out", timed_out=True)).finish.state is State.RETRYING
    d, run = flight(retries=1)
    assert d.land(run).finish.state is State.SUCCEEDED


def test_a_run_that_was_stopped_is_not_tried_again() -> None:
    d = Driver([job(retries=1)], patient(drain_s=0)).lead()
    run = d.fly()
    d.step(m.StopAsked(15))
    finish = d.land(run, ended(d, "killed by SIGTERM")).finish
    assert (finish.state, finish.reason) == (State.CANCELLED, Reason.SHUTDOWN)


def test_a_term_that_ended_leaves_the_retry_to_its_successor() -> None:
    d, run = flight(retries=1)
    written = d.land(run, ended(d))
    assert written.finish.state is State.RETRYING
    d.step(m.KeyDeleted(d.nonce))
    d.record(written)
    assert not d.node._dispatch.flights
    d.after(2)
    assert not d.all(m.Take)


def test_a_spent_budget_makes_a_failure_the_last() -> None:
    d = Driver([job(retries=5, retry_budget=1)]).lead()
    run = d.fly()
    assert d.land(run, ended(d)).finish.state is State.RETRYING
    d.after(1)
    d.grant(d.all(m.Take)[0])
    run = d.all(m.Prepare)[0].run
    d.step(m.Prepared(run.run_id))
    d.step(m.Started(run.run_id, d.wall))
    assert d.land(run, ended(d)).finish.state is State.FAILED


def test_a_retry_of_what_an_operator_asked_for_is_manual_too() -> None:
    d = Driver([job(every_s=3600, retries=1)])
    d.lead(rows=(DueRow(SlotKey("beat", T0, "c"), 0, Origin.MANUAL, T0),))
    d.grant(d.asked(m.Take))
    run = d.asked(m.Prepare).run
    d.step(m.Prepared(run.run_id))
    d.step(m.Started(run.run_id, d.wall))
    d.record(d.land(run, ended(d)))
    d.after(2)
    assert d.asked(m.Take).batch.claims[0].slot == run.slot
