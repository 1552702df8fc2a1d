"""A planned handover: an operator's order ends a term without a signal, and the node comes back."""

from __future__ import annotations

import pytest

from cron_leader.core import messages as m
from cron_leader.core.gate import CloseReason
from cron_leader.core.model import Applied, CommandResult, Delivery, Past, Refused, State
from cron_leader.core.standing import EndReason, Phase
from tests.core.driver import Driver, S, job, patient, result

AWAY_S = 60


def order(d: Driver, *, command: str = "c1", fence: int | None = 7, for_s: float = AWAY_S) -> None:
    d.step(m.StepDown(d.nonce, command, fence, int(for_s * S)))


def answered(d: Driver, *, command: str = "c1", changed: bool = True) -> None:
    d.step(m.OrderAnswered(d.nonce, command, Applied(changed)))


def told_to_go(d: Driver, for_s: float = AWAY_S) -> Driver:
    """An order given, answered and written."""
    order(d, for_s=for_s)
    answered(d)
    return d


def gone(d: Driver) -> None:
    """From the end of the last run to the line left."""
    assert d.asked(m.CloseTerm).reason == EndReason.RESIGNED
    d.step(m.TermClosed(d.nonce, 7, Applied()))
    d.asked(m.Leave)
    d.step(m.Left(d.nonce))


def test_an_order_is_answered_under_the_fence_before_it_is_obeyed() -> None:
    d = Driver().lead()
    order(d)
    asked = d.asked(m.AnswerOrder)
    assert (asked.term, asked.command_id) == (d.node.term, "c1")
    assert asked.result is CommandResult.STEPPING_DOWN
    assert d.node.closed(d.boot_ns) is None
    answered(d)
    assert d.told("gate.closed")["reason"] == CloseReason.STOPPING


def test_the_node_resigns_once_its_runs_have_ended_and_stays_away_as_long_as_told() -> None:
    d = Driver().lead()
    run = d.fly()
    told_to_go(d)
    assert d.quiet("node.stopping")
    assert not d.all(m.Kill)
    assert not d.all(m.CloseTerm)
    d.record(d.land(run))
    assert d.asked(m.CloseTerm).reason == EndReason.RESIGNED
    d.step(m.TermClosed(d.nonce, 7, None))
    ended = d.told("term.ended")
    assert (ended["reason"], ended["command"]) == (EndReason.RESIGNED, "c1")
    d.step(m.Left(d.nonce))
    assert not d.all(m.Exit)
    assert (d.node.phase, d.node.wake_boot_ns()) == (Phase.OUT, d.boot_ns + AWAY_S * S)
    d.after(AWAY_S - 1)
    assert not d.all(m.Probe)
    d.after(1)
    d.asked(m.Probe)


def test_it_leads_again_as_if_nothing_had_been() -> None:
    d = told_to_go(Driver().lead(), for_s=0)
    gone(d)
    assert d.asked(m.Probe) == m.Probe()  # at once: at the end of the line
    d.step(m.LedgerReached())
    d.nonce = d.asked(m.Join).nonce
    d.renew()
    d.step(m.WatchOpened(d.nonce))
    d.step(m.Elected(d.nonce, 9, 99))
    d.step(m.Raised(d.nonce, 9))
    d.step(m.PastRead(d.nonce, Past(None, {})))
    d.step(m.Settled(d.nonce, ()))
    d.told("gate.opened")
    assert not d.all(m.CloseTerm)
    d.after(1)
    d.asked(m.Take)
    order(d, fence=9)  # the same id, another term: nothing is remembered of the last one
    assert d.asked(m.AnswerOrder).result is CommandResult.STEPPING_DOWN


def test_no_slot_is_claimed_once_it_steps_down() -> None:
    d = Driver().lead()
    run = d.fly()
    told_to_go(d)
    for _ in range(4):
        d.after(6)
        d.renew()
        assert not d.all(m.Take)
    assert d.node.wake_wall() is None
    assert run.run_id in d.node._dispatch.flights


def test_a_claim_on_its_way_is_waited_for_and_put_back() -> None:
    d = Driver().lead()
    d.after(1)
    take = d.asked(m.Take)
    told_to_go(d)
    assert not d.all(m.CloseTerm)
    d.grant(take)
    back = d.asked(m.WritePutBack)
    assert not d.all(m.Prepare)
    d.step(m.PutBackAnswered(d.nonce, back.put_back.run_id, Applied()))
    gone(d)


def test_what_outlasts_the_drain_is_ended_and_at_least_once_left_due() -> None:
    d = Driver([job(delivery=Delivery.AT_LEAST_ONCE, grace_s=4)], patient(drain_s=3)).lead()
    run = d.fly()
    told_to_go(d)
    assert d.node.wake_boot_ns() is not None
    d.after(3)
    assert d.asked(m.Kill) == m.Kill(run.run_id, 4)
    written = d.land(run, result("killed by SIGTERM"))
    assert written.finish.state is State.DUE
    d.record(written)
    gone(d)


@pytest.mark.parametrize(
    ("fence", "said"),
    [
        (6, CommandResult.NOT_LEADING),
        (8, CommandResult.NOT_LEADING),
        (None, CommandResult.NOT_UNDERSTOOD),
    ],
)
def test_an_order_for_another_term_is_answered_and_not_obeyed(
    fence: int | None, said: CommandResult
) -> None:
    d = Driver().lead()
    order(d, fence=fence)
    assert d.asked(m.AnswerOrder).result is said
    answered(d)
    d.after(1)
    assert d.asked(m.Take)


def test_an_order_that_comes_with_two_heartbeats_is_answered_once() -> None:
    d = Driver().lead()
    order(d)
    order(d)
    assert not d.all(m.AnswerOrder)
    answered(d)
    order(d)
    assert not d.all(m.AnswerOrder)


def test_of_two_orders_the_first_that_is_written_says_for_how_long() -> None:
    d = Driver().lead()
    run = d.fly()
    order(d, command="c1", for_s=5)
    order(d, command="c2", for_s=500)
    assert d.asked(m.AnswerOrder).result is CommandResult.STEPPING_DOWN
    answered(d, command="c1")
    answered(d, command="c2")
    d.record(d.land(run))
    gone(d)
    assert d.node.wake_boot_ns() == d.boot_ns + 5 * S


def test_an_order_somebody_else_answered_is_not_obeyed() -> None:
    d = Driver().lead()
    order(d)
    answered(d, changed=False)
    assert d.node.closed(d.boot_ns) is None


def test_an_answer_refused_by_the_ledger_ends_the_term_and_obeys_nothing() -> None:
    d = Driver().lead()
    order(d)
    d.step(m.OrderAnswered(d.nonce, "c1", Refused("command", 9)))
    assert d.told("term.ended")["reason"] == EndReason.REFUSED
    d.asked(m.Leave)
    d.step(m.Left(d.nonce))
    d.asked(m.Probe)  # not told to stay away: a newer term leads already


def test_orders_and_answers_outside_of_a_term_change_nothing() -> None:
    d = Driver()
    d.settle()
    order(d)
    assert d.effects == []
    d.step(m.Settled(d.nonce, ()))
    order(d)
    d.step(m.KeyDeleted(d.nonce))
    answered(d)
    assert d.effects == []
    order(d)
    assert d.effects == []


def test_a_term_lost_while_stepping_down_keeps_the_node_away_just_as_long() -> None:
    d = Driver().lead()
    run = d.fly()
    told_to_go(d)
    d.step(m.KeyDeleted(d.nonce))
    assert d.told("term.ended")["reason"] == EndReason.KEY_DELETED
    d.asked(m.Kill)
    d.step(m.RunEnded(run.run_id, result("killed by SIGKILL")))
    d.asked(m.Leave)
    d.step(m.Left(d.nonce))
    assert d.node.wake_boot_ns() == d.boot_ns + AWAY_S * S


def test_a_signal_while_stepping_down_stops_the_node_and_does_not_prolong_the_drain() -> None:
    d = Driver(limits=patient(drain_s=3)).lead()
    run = d.fly()
    told_to_go(d)
    d.after(2)
    d.step(m.StopAsked(15))
    assert not d.all(m.Kill)
    d.after(1)
    d.asked(m.Kill)
    d.record(d.land(run, result("killed by SIGTERM")))
    assert d.asked(m.CloseTerm).reason == EndReason.STOPPING
    d.step(m.TermClosed(d.nonce, 7, Applied()))
    d.step(m.Left(d.nonce))
    assert d.asked(m.Exit) == m.Exit(0)


def test_a_signal_after_the_term_was_closed_leaves_it_resigned() -> None:
    d = told_to_go(Driver().lead())
    d.step(m.StopAsked(15))
    assert not d.all(m.CloseTerm)
    d.step(m.TermClosed(d.nonce, 7, Applied()))
    assert d.told("term.ended")["reason"] == EndReason.RESIGNED
    d.step(m.Left(d.nonce))
    assert d.asked(m.Exit) == m.Exit(0)


def test_an_order_while_stopping_is_answered_and_the_node_still_exits() -> None:
    d = Driver().lead()
    run = d.fly()
    d.step(m.StopAsked(15))
    told_to_go(d)
    d.record(d.land(run))
    assert d.asked(m.CloseTerm).reason == EndReason.STOPPING
    d.step(m.TermClosed(d.nonce, 7, Applied()))
    d.step(m.Left(d.nonce))
    assert d.asked(m.Exit) == m.Exit(0)


def test_a_node_that_is_away_exits_at_once_when_told_to_stop() -> None:
    d = told_to_go(Driver().lead())
    gone(d)
    d.after(1)
    d.step(m.StopAsked(15))
    assert d.asked(m.Exit) == m.Exit(0)
