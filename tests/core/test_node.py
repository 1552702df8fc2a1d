"""The node's life: line, term, end; driven event by event, as the daemon drives it."""

from __future__ import annotations

from datetime import timedelta

import pytest

from cron_leader.core import messages as m
from cron_leader.core.gate import CloseReason
from cron_leader.core.lag import Lag
from cron_leader.core.messages import Now
from cron_leader.core.model import Applied, OnLostLeadership, Past, Refused, Rollback, Run
from cron_leader.core.standing import EndReason, Phase
from tests.core.driver import MARGIN, T0, TTL, Driver, S, job, patient, result

NEWER = Refused("claim", 9)


# ------------------------------------------------------------------ out of line


def test_a_node_asks_its_ledger_before_it_gets_in_line() -> None:
    d = Driver()
    d.step()
    d.asked(m.Probe)
    assert not d.all(m.Join)
    d.step(m.LedgerReached())
    d.asked(m.Join)


def test_an_unreachable_ledger_is_asked_again_with_growing_pauses() -> None:
    d = Driver()
    d.step()
    pauses = []
    for _ in range(6):
        d.step(m.LedgerFailed("down"))
        at_ns = d.node.wake_boot_ns()
        assert at_ns is not None
        pauses.append((at_ns - d.boot_ns) / S)
        d.after(pauses[-1])
        d.asked(m.Probe)
    assert pauses == [0.5, 1, 2, 4, 5, 5]


def test_a_ledger_that_needs_a_person_is_exit_2_at_start_and_patience_later() -> None:
    d = Driver()
    d.step()
    d.step(m.LedgerFailed("wrong password", permanent=True))
    assert d.asked(m.Exit) == m.Exit(2, "wrong password")

    d = Driver()
    d.join()
    d.step(m.JoinFailed(d.nonce, "unreachable", "down"))
    d.after(1)
    d.step(m.LedgerFailed("wrong password", permanent=True))
    assert not d.all(m.Exit)


def test_a_candidate_that_loses_its_ledger_leaves_the_line() -> None:
    d = Driver()
    d.join()
    d.after(TTL / 2 / S)
    d.asked(m.Probe)
    assert d.node.wake_boot_ns() is None  # one probe at a time
    d.step(m.LedgerFailed("down"))
    assert d.asked(m.Leave).nonce == d.nonce
    d.step(m.Left(d.nonce))
    d.asked(m.Probe)


def test_a_candidate_goes_on_probing_while_its_ledger_answers() -> None:
    d = Driver()
    d.join()
    for _ in range(3):
        d.after(TTL / 2 / S)
        d.asked(m.Probe)
        d.step(m.LedgerReached())


def test_a_failed_candidacy_starts_over_with_a_new_nonce_and_lease() -> None:
    d = Driver()
    d.join()
    first = d.nonce
    d.step(m.JoinFailed(first, "lease_lost", "gone"))
    assert d.node.phase is Phase.OUT
    d.after(0.5)
    d.step(m.LedgerReached())
    assert d.asked(m.Join).nonce != first


def test_a_node_says_that_it_is_in_line_once_it_has_a_lease() -> None:
    d = Driver()
    d.join()
    assert d.quiet("term.campaigning")
    d.renew()
    d.told("term.campaigning")
    d.after(3)
    d.renew()
    assert d.quiet("term.campaigning")


def _rejoin(d: Driver) -> str:
    d.after(5)
    d.step(m.LedgerReached())
    return d.asked(m.Join).nonce


def test_why_a_candidacy_failed_is_told_once_per_change_and_again_after_a_lease() -> None:
    d = Driver()
    full = m.JoinFailed(d.join(), "refused", "NOSPACE: compact")
    d.step(full)
    assert d.told("term.ended") == {"reason": "refused", "error": "NOSPACE: compact"}
    d.step(m.JoinFailed(_rejoin(d), "refused", full.text))
    assert d.quiet("term.ended")
    d.step(m.JoinFailed(_rejoin(d), "wrong_ledger", "ids", permanent=True))
    assert d.told("term.ended")["reason"] == EndReason.WRONG_LEDGER
    d.nonce = _rejoin(d)
    d.renew()
    d.step(m.JoinFailed(d.nonce, "wrong_ledger", "ids", permanent=True))
    d.told("term.ended")


def test_an_etcd_that_is_away_is_told_by_its_client_and_not_once_more() -> None:
    d = Driver()
    d.join()
    d.step(m.JoinFailed(d.nonce, "unreachable", "no answer in time"))
    assert d.quiet("term.ended")


def test_a_wrong_ledger_is_exit_2_before_the_first_candidacy() -> None:
    d = Driver()
    d.join()
    d.step(m.JoinFailed(d.nonce, "wrong_ledger", "ids x and y", permanent=True))
    assert d.asked(m.Exit) == m.Exit(2, "ids x and y")
    assert d.step() == []  # stopped for good


def test_a_wrong_ledger_found_later_keeps_the_node_out_of_line() -> None:
    d = Driver()
    d.join()
    d.step(m.JoinFailed(d.nonce, "unreachable", "down"))
    d.after(1)
    d.step(m.LedgerReached())
    nonce = d.asked(m.Join).nonce
    d.step(m.JoinFailed(nonce, "wrong_ledger", "ids", permanent=True))
    assert not d.all(m.Exit)
    assert d.node.wake_boot_ns() == d.boot_ns + 5 * S


# ------------------------------------------------------------------ election, raise, settle


def test_the_gate_opens_after_raise_and_settlement_in_that_order() -> None:
    d = Driver()
    d.elect(revision=7)
    assert d.told("term.elected")["revision"] == 7
    assert d.node.closed(d.boot_ns) is CloseReason.NOT_RAISED
    d.step(m.Raised(d.nonce, 107))  # the ledger's offset is 100
    assert d.told("term.raised")["fence"] == 107
    assert d.node.closed(d.boot_ns) is CloseReason.NOT_SETTLED
    d.step(m.PastRead(d.nonce, Past(None, {})))
    d.step(m.Settled(d.nonce, ()))
    assert d.told("gate.opened")["fence"] == 107
    assert d.node.closed(d.boot_ns) is None


def test_the_gate_waits_for_the_watch() -> None:
    d = Driver()
    d.join()
    d.renew()
    d.step(m.Elected(d.nonce, 7, 99))
    d.step(m.Raised(d.nonce, 7))
    d.step(m.PastRead(d.nonce, Past(None, {})))
    d.step(m.Settled(d.nonce, ()))
    assert d.quiet("gate.opened")
    d.step(m.WatchOpened(d.nonce))
    d.told("gate.opened")


def test_an_election_learnt_of_after_the_deadline_raises_nothing() -> None:
    d = Driver()
    d.join()
    d.renew()
    d.after((TTL - MARGIN) / S, m.Elected(d.nonce, 7, 99))
    assert not d.all(m.Raise)
    assert d.told("term.ended")["reason"] == EndReason.DEADLINE
    d.asked(m.Leave)


def test_a_raise_without_an_answer_is_given_up_after_two_seconds() -> None:
    d = Driver()
    d.elect()
    d.after(1.9)
    assert d.quiet("term.ended")
    d.after(0.1)
    assert d.told("term.ended")["reason"] == EndReason.RAISE_FAILED
    d.asked(m.Leave)
    assert not d.all(m.CloseTerm)


def test_a_raise_that_waits_for_a_lock_is_waited_for_a_ttl_and_a_second() -> None:
    d = Driver()
    d.elect()
    d.step(m.RaiseWaits(d.nonce))
    d.step(m.RaiseWaits(d.nonce))
    for _ in range(10):
        d.after(1)
        d.renew()
        assert d.quiet("term.ended")
    d.after(1)
    assert d.told("term.ended")["reason"] == EndReason.RAISE_FAILED


def test_a_refused_raise_with_our_key_still_lowest_is_broken_history() -> None:
    d = Driver()
    d.elect()
    d.step(m.Raised(d.nonce, Refused("raise", 9)))
    d.asked(m.Verify)
    d.step(m.Verified(d.nonce, d.boot_ns))
    assert d.told("term.ended")["reason"] == EndReason.HISTORY
    d.step(m.Left(d.nonce))
    assert d.node.wake_boot_ns() == d.boot_ns + 5 * S


def test_a_read_sent_before_the_raise_was_refused_is_no_proof_of_broken_history() -> None:
    d = Driver()
    d.elect()
    d.wall += timedelta(seconds=300)  # a clock jump asks for a read of its own
    d.step()
    d.asked(m.Verify)
    sent_ns = d.boot_ns
    d.after(0.01, m.Raised(d.nonce, Refused("raise", 9)))
    d.asked(m.Verify)
    d.step(m.Verified(d.nonce, sent_ns))
    assert d.quiet("term.ended")
    d.step(m.KeyDeleted(d.nonce))
    assert d.told("term.ended")["reason"] == EndReason.KEY_DELETED


def test_a_refused_raise_whose_key_is_gone_is_a_term_like_any_other() -> None:
    d = Driver()
    d.elect()
    d.step(m.Raised(d.nonce, Refused("raise", 9)))
    d.step(m.KeyDeleted(d.nonce))
    assert d.told("term.ended")["reason"] == EndReason.KEY_DELETED


def test_a_raise_refused_for_another_cluster_is_broken_history_at_once() -> None:
    d = Driver()
    d.elect()
    d.step(m.Raised(d.nonce, Refused("raise", 3, history=True, text="rebase")))
    assert d.told("ledger.refused")["error"] == "rebase"
    assert d.told("term.ended")["reason"] == EndReason.HISTORY


def test_what_etcd_remembers_goes_into_the_raise_and_what_was_raised_back_to_etcd() -> None:
    d = Driver()
    d.join()
    d.renew()
    d.step(m.Elected(d.nonce, 7, 99, least=5))
    assert d.asked(m.Raise).candidate.least == 5
    d.step(m.Raised(d.nonce, 107))
    assert not d.all(m.Record)  # it has time until the gate is open
    d.step(m.PastRead(d.nonce, Past(None, {})))
    d.step(m.Settled(d.nonce, ()))
    assert d.asked(m.Record) == m.Record(d.nonce, 107)


def test_broken_history_found_before_the_line_is_exit_2_at_start_and_patience_later() -> None:
    d = Driver()
    d.step(m.JoinFailed(d.join(), "history", "rebase", permanent=True))
    assert d.asked(m.Exit) == m.Exit(2, "rebase")

    d = Driver().lead()
    d.step(m.KeyDeleted(d.nonce))
    d.step(m.Left(d.nonce))
    d.step(m.LedgerReached())
    d.step(m.JoinFailed(d.asked(m.Join).nonce, "history", "rebase", permanent=True))
    assert d.told("term.ended") == {"reason": EndReason.HISTORY, "error": "rebase"}
    assert d.node.wake_boot_ns() == d.boot_ns + 5 * S


def test_a_refused_settlement_ends_the_term() -> None:
    d = Driver()
    d.settle()
    d.step(m.Settled(d.nonce, Refused("settle", 9)))
    assert d.told("term.ended")["reason"] == EndReason.REFUSED


def test_answers_that_come_out_of_their_phase_change_nothing() -> None:
    d = Driver().lead()
    for event in (
        m.Elected(d.nonce, 8, 99),
        m.Raised(d.nonce, 8),
        m.PastRead(d.nonce, Past(None, {})),
        m.Settled(d.nonce, ()),
        m.TermClosed(d.nonce, 7, Applied()),
        m.Verified(d.nonce, d.boot_ns),
        m.LedgerReached(),
    ):
        assert d.step(event) == []
    assert d.node.closed(d.boot_ns) is None


def test_events_of_an_older_nonce_are_dropped() -> None:
    d = Driver().lead()
    for event in (
        m.KeyDeleted("old"),
        m.LeaseLost("old"),
        m.WatchBroken("old", "silent"),
        m.JoinFailed("old", "refused", ""),
        m.HeartbeatAnswered("old", NEWER, T0),
    ):
        assert d.step(event) == []


# ------------------------------------------------------------------ leading


def test_the_heartbeat_is_sent_each_second_one_at_a_time() -> None:
    d = Driver([job(every_s=60)]).lead()
    d.after(1)
    assert d.asked(m.Heartbeat).planned_to == d.wall
    d.after(1)
    assert not d.all(m.Heartbeat)
    d.step(m.HeartbeatAnswered(d.nonce, Applied(), d.wall))
    d.asked(m.Heartbeat)


@pytest.mark.parametrize("which", ["claim", "finish", "put_back"])
@pytest.mark.parametrize("stopping", [False, True])
def test_a_term_whose_heartbeats_are_answered_but_no_other_write_lasts_one_ttl(
    which: str, stopping: bool
) -> None:
    d = Driver([job(every_s=5)]).lead()
    match which:
        case "finish":
            d.land(d.fly(5))
        case "claim":
            d.after(5)
            d.asked(m.Take)
        case _:
            d.after(5)
            d.grant(d.asked(m.Take))
            d.step(m.NotStarted(d.asked(m.Prepare).run.run_id, "no process"))
            d.asked(m.WritePutBack)
    if stopping:
        d.step(m.StopAsked(15))
    assert _answering_nothing_but_heartbeats(d) == (TTL // S, EndReason.LEDGER_UNREACHABLE)


def test_a_batch_without_claims_is_waited_for_no_longer() -> None:
    d = Driver([job(every_s=5)]).lead()
    d.fly(5)
    d.renew()
    d.after(5)
    assert not d.asked(m.Take).batch.claims
    assert _answering_nothing_but_heartbeats(d) == (TTL // S, EndReason.LEDGER_UNREACHABLE)


def _answering_nothing_but_heartbeats(d: Driver) -> tuple[int, object]:
    """After how many seconds the term ends, and why."""
    for second in range(1, 2 * TTL // S):
        d.renew()
        d.step(m.HeartbeatAnswered(d.nonce, Applied(), d.wall))
        d.step(m.LedgerReached())
        d.after(1)
        if not d.quiet("term.ended"):
            return second, d.told("term.ended")["reason"]
    raise AssertionError("the post is kept")


def test_a_refused_heartbeat_ends_the_term() -> None:
    d = Driver().lead()
    d.step(m.HeartbeatAnswered(d.nonce, NEWER, d.wall))
    assert d.told("gate.closed")["reason"] == CloseReason.NOT_RAISED
    assert d.told("term.ended") == {"reason": EndReason.REFUSED, "fence": 7, "error": None}


def test_a_heartbeat_says_what_the_ledger_acknowledged_by_claims_and_heartbeats() -> None:
    d = Driver([job(every_s=3)]).lead()
    settled = d.wall
    d.after(1)
    beat = d.asked(m.Heartbeat)
    assert (beat.known, beat.planned_to) == (settled, d.wall)
    d.step(m.HeartbeatAnswered(d.nonce, Applied(), d.wall))
    d.after(2)
    assert d.asked(m.Heartbeat).known == beat.planned_to  # the claim is under way
    take = d.asked(m.Take)
    assert take.batch.known == beat.planned_to
    d.grant(take)
    d.step(m.HeartbeatAnswered(d.nonce, Applied(), d.wall))
    d.after(1)
    assert d.asked(m.Heartbeat).known == take.batch.planned_to


def test_a_ledger_that_lost_what_it_acknowledged_ends_the_term_and_etcd_remembers_more() -> None:
    d = Driver([job(every_s=60)]).lead()
    known = d.wall
    d.after(1)
    d.step(m.HeartbeatAnswered(d.nonce, Applied(changed=False), d.wall))
    assert d.told("ledger.went_back") == {"fence": 7, "planned_to": known}
    assert d.told("term.ended")["reason"] == EndReason.HISTORY
    assert d.asked(m.Record) == m.Record(d.nonce, 8)
    assert not d.all(m.CloseTerm)


def test_when_the_ledger_is_away_etcd_remembers_what_it_must_come_back_with() -> None:
    d = Driver([job(every_s=60)]).lead()
    known = d.wall
    d.after(1)
    d.step(m.LedgerFailed("away"))
    assert d.asked(m.Record) == m.Record(d.nonce, 7, known)


def _after_an_outage(rollback: Rollback, shows: timedelta | None) -> Driver:
    """Elected after a leader whose ledger was away, and has read a past of T0 + shows."""
    d = Driver([job()])
    d.join()
    d.renew()
    d.step(m.WatchOpened(d.nonce))
    d.step(m.Elected(d.nonce, 7, 99, 5, rollback, known=T0))
    d.step(m.Raised(d.nonce, 7))
    d.step(m.PastRead(d.nonce, Past(None if shows is None else T0 + shows, {})))
    return d


@pytest.mark.parametrize("shows", [timedelta(seconds=-1), None])
def test_a_ledger_that_comes_back_with_less_is_refused_and_that_is_remembered(
    shows: timedelta | None,
) -> None:
    d = _after_an_outage(Rollback.REFUSE, shows)
    assert d.told("ledger.went_back") == {"fence": 7, "planned_to": T0}
    assert d.told("term.ended")["reason"] == EndReason.HISTORY
    assert d.asked(m.Record) == m.Record(d.nonce, 8)


@pytest.mark.parametrize("rollback", [Rollback.SKIP, Rollback.REFIRE])
def test_a_ledger_that_comes_back_with_less_is_gone_on_with_as_asked(rollback: Rollback) -> None:
    d = _after_an_outage(rollback, timedelta(seconds=-1))
    assert d.told("ledger.went_back")["answer"] == rollback
    assert d.asked(m.Settle).settlement.skip is (rollback is Rollback.SKIP)


def test_a_ledger_that_comes_back_with_all_of_it_is_taken_as_it_is() -> None:
    d = _after_an_outage(Rollback.REFUSE, timedelta(0))
    assert d.quiet("ledger.went_back")
    assert not d.asked(m.Settle).settlement.skip


def test_skew_against_the_ledger_shuts_the_gate_until_it_is_gone() -> None:
    d = Driver().lead()
    ahead = Applied(ledger_now=d.wall + timedelta(seconds=6))
    d.step(m.HeartbeatAnswered(d.nonce, ahead, d.wall))
    assert d.told("gate.closed")["reason"] == CloseReason.CLOCK_SKEW
    d.step(m.HeartbeatAnswered(d.nonce, Applied(ledger_now=d.wall), d.wall))
    d.told("gate.opened")


def test_silence_of_the_watch_shuts_the_gate_and_does_not_end_the_term() -> None:
    d = Driver().lead()
    d.step(m.WatchBroken(d.nonce, "silent"))
    assert d.told("gate.closed")["reason"] == CloseReason.WATCH
    assert d.node.wake_wall() is None
    d.step(m.WatchOpened(d.nonce))
    d.told("gate.opened")


@pytest.mark.parametrize(
    ("event", "reason", "shut"),
    [
        (m.KeyDeleted, EndReason.KEY_DELETED, CloseReason.WATCH),
        (m.KeyOverwritten, EndReason.KEY_OVERWRITTEN, CloseReason.WATCH),
        (m.LeaseLost, EndReason.LEASE_LOST, CloseReason.DEADLINE),
    ],
)
def test_bad_news_of_key_or_lease_ends_the_term(event: type, reason: str, shut: str) -> None:
    d = Driver().lead()
    d.step(event(d.nonce))
    assert d.told("gate.closed")["reason"] == shut
    assert d.told("term.ended")["reason"] == reason
    assert d.asked(m.CloseTerm).reason == reason
    assert [type(e) for e in d.effects if isinstance(e, m.Abandon | m.Leave)] == [
        m.Abandon,
        m.Leave,
    ]


def test_a_candidacy_that_breaks_under_a_leader_ends_the_term() -> None:
    d = Driver().lead()
    d.step(m.JoinFailed(d.nonce, "refused", "NOSPACE"))
    told = d.told("term.ended")
    assert (told["reason"], told["error"]) == (EndReason.LEASE_LOST, "NOSPACE")
    d.step(m.JoinFailed(d.nonce, "refused", "again"))
    assert d.quiet("term.ended")


def test_the_deadline_ends_the_term_even_before_the_event_that_came_late() -> None:
    d = Driver().lead()
    d.after((TTL - MARGIN) / S, m.LeaseRenewed(d.nonce, d.boot_ns, TTL))
    assert d.told("term.ended")["reason"] == EndReason.DEADLINE
    assert d.told("gate.closed")["reason"] == CloseReason.DEADLINE


def test_the_node_wakes_at_its_deadline() -> None:
    d = Driver().lead()
    d.after(1)  # the heartbeat is out, and nothing else is due
    assert d.node.wake_boot_ns() == d.node.gate.deadline_ns


def test_a_lost_term_is_never_resumed() -> None:
    d = Driver().lead()
    old = d.nonce
    d.step(m.KeyDeleted(old))
    d.step(m.Left(old))
    d.asked(m.Probe)
    d.step(m.LedgerReached())
    assert d.asked(m.Join).nonce != old
    assert d.node.closed(d.boot_ns) is CloseReason.NOT_RAISED


def test_a_leader_without_its_ledger_for_a_ttl_resigns() -> None:
    d = Driver().lead()
    d.step(m.LedgerFailed("down"))
    for _ in range(9):
        d.after(1)
        d.renew()
        assert d.quiet("term.ended")
    d.after(1)
    assert d.told("term.ended")["reason"] == EndReason.LEDGER_UNREACHABLE
    assert not d.all(m.CloseTerm)


def test_a_term_that_ends_by_time_says_no_go_in_the_same_step() -> None:
    d = Driver([job(on_lost_leadership=OnLostLeadership.FINISH)]).lead()
    d.step(m.LedgerFailed("down"))
    d.after(1)
    d.grant(d.asked(m.Take))
    run = d.asked(m.Prepare).run
    d.after(5)
    d.renew()
    d.after(4, m.Prepared(run.run_id))
    assert d.told("term.ended")["reason"] == EndReason.LEDGER_UNREACHABLE
    assert not d.all(m.Go)


def test_a_ledger_that_comes_back_in_time_keeps_the_term() -> None:
    d = Driver().lead()
    d.step(m.LedgerFailed("down"))
    d.after(5)
    d.renew()
    d.step(m.LedgerReached())
    d.after(5)
    d.renew()
    assert d.quiet("term.ended")


def test_a_ledger_lost_while_settling_is_not_waited_for_for_ever() -> None:
    d = Driver()
    d.settle()
    d.step(m.LedgerFailed("down"))
    assert d.node.wake_boot_ns() == d.node.gate.deadline_ns
    d.after(5)
    d.renew()
    d.after(5)
    assert d.told("term.ended")["reason"] == EndReason.LEDGER_UNREACHABLE


# ------------------------------------------------------------------ clocks


def test_a_clock_jump_shuts_the_gate_until_leadership_is_proven_again() -> None:
    d = Driver([job(every_s=3600)]).lead()
    d.after(0.1)
    d.wall += timedelta(seconds=300)
    d.step()
    assert d.told("clock.stepped")["by_ms"] == 300_000
    assert d.told("gate.closed")["reason"] == CloseReason.CLOCK_JUMP
    jumped_ns = d.boot_ns
    d.asked(m.Verify)
    d.step(m.Verified(d.nonce, jumped_ns))
    assert d.node.gate.jumped_ns == jumped_ns  # no renewal since
    d.after(0.95)
    assert d.node.wake_boot_ns() == jumped_ns + S
    d.after(0.05)
    d.asked(m.Verify)
    d.renew()
    d.step(m.Verified(d.nonce, d.boot_ns))
    d.told("gate.opened")


def test_a_clock_jump_while_raising_is_looked_into() -> None:
    d = Driver()
    d.elect()
    d.wall -= timedelta(seconds=300)
    d.step()
    d.asked(m.Verify)
    assert d.node.wake_boot_ns() == d.boot_ns + S


def test_a_small_drift_is_no_jump() -> None:
    d = Driver().lead()
    d.wall += timedelta(milliseconds=900)
    d.step()
    assert d.quiet("clock.stepped")


def test_a_jump_outside_any_candidacy_is_nobodys_business() -> None:
    d = Driver()
    d.step()
    d.wall += timedelta(hours=1)
    d.step()
    assert d.quiet("clock.stepped")


def test_a_node_whose_clock_is_another_one_gets_in_line_once_it_is_not() -> None:
    d = Driver()
    d.step()
    d.step(m.LedgerReached(timedelta(seconds=-6), d.boot_ns))
    assert d.told("clock.skewed") == {"skew_ms": -6000}
    assert not d.all(m.Join)
    assert d.node.wake_boot_ns() == d.boot_ns + 5 * S
    d.after(5)
    d.asked(m.Probe)
    d.step(m.LedgerReached(timedelta(0), d.boot_ns))
    d.asked(m.Join)


def test_a_candidate_whose_clock_becomes_another_one_leaves_the_line_for_a_while() -> None:
    d = Driver()
    d.join()
    d.after(TTL / 2 / S)
    d.step(m.LedgerReached(timedelta(seconds=6), d.boot_ns))
    assert d.asked(m.Leave).nonce == d.nonce
    d.step(m.Left(d.nonce))
    assert d.node.wake_boot_ns() == d.boot_ns + 5 * S


def test_a_leader_learns_of_its_skew_and_stays_with_its_gate_shut() -> None:
    d = Driver([job(every_s=3600)]).lead()
    d.step(m.LedgerReached(timedelta(seconds=6), d.boot_ns))
    assert d.told("gate.closed")["reason"] == CloseReason.CLOCK_SKEW
    assert not d.all(m.Leave)


def test_skew_is_told_from_a_second_on_once_per_change_and_shuts_nothing_yet() -> None:
    d = Driver([job(every_s=3600)]).lead()
    told = []
    for ahead_s in (0.9, 1.2, 1.4, 0.8, 0.4, -2, -6, -3, 0):
        d.after(0.1)
        ledger_now = d.wall - timedelta(seconds=ahead_s)
        d.step(m.HeartbeatAnswered(d.nonce, Applied(ledger_now=ledger_now), d.wall, d.boot_ns))
        told += [e.fields["skew_ms"] for e in d.all(m.Emit) if e.event == "clock.skewed"]
        assert (d.node.closed(d.boot_ns) is None) is (ahead_s != -6)
    assert told == [1200, 400, -2000, -6000, -3000, 0]


def test_a_jump_of_our_own_clock_is_skew_at_once_until_the_ledger_was_asked_anew() -> None:
    d = Driver([job(every_s=3600)]).lead()
    d.step(m.HeartbeatAnswered(d.nonce, Applied(ledger_now=d.wall), d.wall, d.boot_ns))
    d.after(0.1)
    before, asked_ns = d.wall, d.boot_ns
    d.after(0.1)
    d.wall += timedelta(seconds=300)
    d.step()
    assert d.told("clock.skewed") == {"skew_ms": 300_000}
    d.renew()
    d.step(m.Verified(d.nonce, d.boot_ns))
    assert d.node.closed(d.boot_ns) is CloseReason.CLOCK_SKEW
    d.step(m.HeartbeatAnswered(d.nonce, Applied(ledger_now=before), before, asked_ns))
    assert d.node.closed(d.boot_ns) is CloseReason.CLOCK_SKEW  # asked by the clock as it was
    d.after(0.1)
    d.step(m.HeartbeatAnswered(d.nonce, Applied(ledger_now=d.wall), d.wall, d.boot_ns))
    assert d.told("clock.skewed") == {"skew_ms": 0}
    d.told("gate.opened")


def test_an_answer_too_slow_to_compare_says_nothing_of_the_clocks() -> None:
    d = Driver().lead()
    ledger_now = d.wall - timedelta(hours=1)
    d.step(m.HeartbeatAnswered(d.nonce, Applied(ledger_now=ledger_now), None, d.boot_ns))
    assert d.quiet("clock.skewed")
    assert d.node.closed(d.boot_ns) is None


# ------------------------------------------------------------------ the loop


def test_a_loop_that_stood_still_and_so_missed_its_deadline_was_stuck() -> None:
    d = Driver().lead()
    d.boot_ns += TTL
    d.effects = d.node.step(m.Woke(), Now(d.boot_ns, d.wall, stood_ns=TTL // 2))
    assert d.told("gate.closed")["reason"] == CloseReason.DEADLINE
    assert d.told("term.ended")["reason"] == EndReason.STUCK
    assert d.asked(m.CloseTerm).reason == "stuck"


def test_a_loop_that_came_round_and_missed_its_deadline_was_not() -> None:
    d = Driver().lead()
    d.boot_ns += TTL
    d.effects = d.node.step(m.Woke(), Now(d.boot_ns, d.wall, stood_ns=TTL // 2 - 1))
    assert d.told("term.ended")["reason"] == EndReason.DEADLINE


def test_lag_is_told_once_per_new_worst_that_the_ttl_does_not_bear() -> None:
    lag = Lag(9 * S)
    seen = (1, 3 * S, 2 * S, 3 * S + 1, 3 * S + 1, 3 * S, 4 * S)
    assert [lag_ns for lag_ns in seen if lag.see(lag_ns)] == [3 * S + 1, 4 * S]
    assert lag.worst_ns == 4 * S


# ------------------------------------------------------------------ the supervisor


def test_a_silent_supervisor_shuts_the_gate_and_an_answer_opens_it() -> None:
    d = Driver().lead()
    d.step(m.SupervisorSilent())
    assert d.told("gate.closed")["reason"] == CloseReason.SUPERVISOR
    d.asked(m.AskSupervisor)
    d.step(m.SupervisorSilent())
    assert not d.all(m.AskSupervisor)
    d.step(m.SupervisorAnswered())
    d.told("gate.opened")


def test_a_supervisor_silent_for_a_ttl_ends_the_term() -> None:
    d = Driver().lead()
    d.step(m.SupervisorSilent())
    d.after(5)
    d.renew()
    d.after(5)
    assert d.told("term.ended")["reason"] == EndReason.SUPERVISOR_GONE


def test_a_supervisor_silent_towards_a_follower_is_no_term_event() -> None:
    d = Driver()
    d.join()
    d.step(m.SupervisorSilent())
    assert not d.all(m.AskSupervisor)


def test_without_its_supervisor_a_leader_kills_its_runs_records_them_and_goes() -> None:
    d = Driver([job(on_lost_leadership=OnLostLeadership.FINISH)]).lead()
    run = d.fly()
    d.step(m.SupervisorGone())
    assert d.asked(m.Kill) == m.Kill(run.run_id, 0)
    d.record(d.land(run))
    assert d.asked(m.CloseTerm).reason == EndReason.STOPPING
    d.step(m.TermClosed(d.nonce, 7, Applied()))
    d.step(m.Left(d.nonce))
    assert d.asked(m.Exit).code == 1
    assert d.step(m.SupervisorGone()) == []


def test_losing_the_supervisor_while_stopping_kills_what_is_drained() -> None:
    d = Driver().lead()
    run = d.fly()
    d.step(m.StopAsked(15))
    assert not d.all(m.Kill)
    d.step(m.SupervisorGone())
    assert d.asked(m.Kill) == m.Kill(run.run_id, 0)


# ------------------------------------------------------------------ stopping


def test_a_stop_out_of_line_exits_at_once() -> None:
    d = Driver()
    d.step()
    d.step(m.LedgerFailed("down"))
    d.step(m.StopAsked(15))
    assert d.asked(m.Exit) == m.Exit(0)


def test_a_stop_while_probing_exits_at_once() -> None:
    d = Driver()
    d.step()
    d.step(m.StopAsked(2))
    assert d.asked(m.Exit) == m.Exit(0)


def test_a_stop_in_line_leaves_the_line_first() -> None:
    d = Driver()
    d.join()
    d.step(m.StopAsked(15))
    d.told("node.stopping")
    d.asked(m.Leave)
    assert d.node.wake_boot_ns() is None
    d.step(m.Left(d.nonce))
    assert d.asked(m.Exit) == m.Exit(0)


@pytest.mark.parametrize("way", ["elect", "settle"])
def test_a_stop_before_the_gate_opened_ends_the_term(way: str) -> None:
    d = Driver()
    getattr(d, way)()
    d.step(m.StopAsked(15))
    assert d.told("term.ended")["reason"] == EndReason.STOPPING
    d.asked(m.Leave)


def test_a_graceful_stop_waits_for_the_run_in_flight_then_records_resigns_and_exits() -> None:
    d = Driver().lead()
    run = d.fly()
    d.step(m.StopAsked(15))
    assert d.told("gate.closed")["reason"] == CloseReason.STOPPING
    assert not d.all(m.Kill)
    assert not d.all(m.CloseTerm)
    assert not d.all(m.Leave)
    written = d.land(run)
    assert not d.all(m.CloseTerm)
    assert not d.all(m.Leave)
    d.record(written)
    d.asked(m.CloseTerm)
    assert not d.all(m.Leave)
    d.step()
    assert not d.all(m.CloseTerm)  # asked for once
    d.step(m.TermClosed(d.nonce, 7, None))
    assert d.told("term.ended")["reason"] == EndReason.STOPPING
    assert d.asked(m.Abandon).nonce == d.nonce  # a heartbeat may be on its way
    d.asked(m.Leave)
    d.step(m.Left(d.nonce))
    assert d.asked(m.Exit) == m.Exit(0)


def test_no_slot_is_claimed_while_stopping() -> None:
    d = Driver().lead()
    run = d.fly()
    d.step(m.StopAsked(15))
    for _ in range(12):
        d.after(6)
        d.renew()
        assert not d.all(m.Take)
    assert run.run_id


def test_a_run_that_outlasts_the_drain_is_ended() -> None:
    d = Driver([job(drain_s=3, grace_s=4)], patient(drain_s=30)).lead()
    run = d.fly()
    d.step(m.StopAsked(15))
    assert d.node.wake_boot_ns() is not None
    d.after(3)
    assert d.asked(m.Kill) == m.Kill(run.run_id, 4)
    d.after(0.1)
    assert not d.all(m.Kill)


def test_the_deadline_passing_in_mid_drain_ends_the_term_and_the_node_still_exits() -> None:
    d = Driver().lead()
    run = d.fly()
    d.step(m.StopAsked(15))
    d.after(10)
    assert d.told("term.ended")["reason"] == EndReason.DEADLINE
    d.asked(m.Kill)
    assert not d.all(m.Leave)  # runs first
    d.step(m.RunEnded(run.run_id, result("killed by SIGKILL")))
    d.asked(m.Leave)
    d.step(m.Left(d.nonce))
    assert d.asked(m.Exit) == m.Exit(0)


def test_a_second_signal_kills_the_runs_and_exits_as_a_shell_counts() -> None:
    d = Driver().lead()
    run = d.fly()
    d.step(m.StopAsked(15))
    d.step(m.StopAsked(2))
    assert d.asked(m.Kill) == m.Kill(run.run_id, 0)
    assert d.asked(m.Exit).code == 130


def test_a_run_that_does_not_die_holds_the_keys_up_for_half_a_margin_only() -> None:
    d = Driver().lead()
    d.fly()
    d.step(m.KeyDeleted(d.nonce))
    d.asked(m.Kill)
    assert not d.all(m.Leave)
    assert d.node.wake_boot_ns() == d.boot_ns + MARGIN // 2
    d.after(MARGIN / 2 / S)
    d.asked(m.Leave)


def test_a_stopped_node_that_still_has_a_finish_run_waits_for_it() -> None:
    d = Driver([job(on_lost_leadership=OnLostLeadership.FINISH)]).lead()
    run = d.fly()
    d.step(m.KeyDeleted(d.nonce))
    assert not d.all(m.Kill)
    d.step(m.Left(d.nonce))
    d.step(m.LedgerFailed("down"))
    d.step(m.StopAsked(15))
    assert not d.all(m.Exit)
    assert d.node.wake_boot_ns() == d.boot_ns + 30 * S
    written = d.land(run)
    assert written.once
    d.record(written, Refused("finish", 9))
    d.asked(m.Exit)


def test_a_key_lost_in_line_starts_the_candidacy_over() -> None:
    d = Driver()
    d.join()
    d.step(m.KeyDeleted(d.nonce))
    assert d.quiet("term.ended")
    d.asked(m.Leave)


def test_losing_the_supervisor_with_a_claim_on_its_way_waits_for_the_answer() -> None:
    d = Driver().lead()
    d.after(1)
    take = d.asked(m.Take)
    d.step(m.SupervisorGone())
    assert not d.all(m.CloseTerm)
    d.grant(take)
    d.asked(m.WritePutBack)


@pytest.mark.parametrize("shut", ["watch", "skew"])
def test_a_leader_whose_gate_stays_shut_for_a_ttl_gives_the_post_up(shut: str) -> None:
    d = Driver([job(every_s=3600)]).lead()
    if shut == "watch":
        d.step(m.WatchBroken(d.nonce, "silent"))
    else:
        ahead = Applied(ledger_now=d.wall + timedelta(seconds=6))
        d.step(m.HeartbeatAnswered(d.nonce, ahead, d.wall, d.boot_ns))
    d.after(5)
    d.renew()
    d.after(4.9)
    d.renew()
    assert d.quiet("term.ended")
    d.after(0.1)
    assert d.told("term.ended")["reason"] == EndReason.RESIGNED


def test_a_watch_that_opens_again_in_time_keeps_the_post() -> None:
    d = Driver([job(every_s=3600)]).lead()
    for _ in range(4):
        d.step(m.WatchBroken(d.nonce, "silent"))
        d.after(6)
        d.renew()
        d.step(m.WatchOpened(d.nonce))
        assert d.quiet("term.ended")


def test_a_refused_last_word_is_told_while_the_term_is_ending_and_after_it_has() -> None:
    d = Driver().lead()
    d.after(60)
    assert d.told("term.ended")["reason"] == EndReason.DEADLINE
    assert d.asked(m.CloseTerm).reason == EndReason.DEADLINE
    assert d.node.phase is Phase.LEAVING
    refused = m.TermClosed(d.nonce, 7, Refused("close_term", 9))
    for _ in range(2):
        d.step(refused)
        assert d.told("ledger.refused") == {"what": "close_term", "high": 9, "fence": 7}
        assert d.quiet("term.ended")
        d.step(m.Left(d.nonce))


def test_a_leader_told_to_stop_whose_last_word_is_refused_ends_as_refused_and_exits() -> None:
    d = Driver().lead()
    d.step(m.StopAsked(15))
    d.asked(m.CloseTerm)
    d.step(m.TermClosed(d.nonce, 7, Refused("close_term", 9)))
    assert d.told("ledger.refused")["what"] == "close_term"
    assert d.told("term.ended")["reason"] == EndReason.REFUSED
    assert not d.all(m.CloseTerm)
    d.asked(m.Leave)
    d.step(m.Left(d.nonce))
    assert d.asked(m.Exit) == m.Exit(0)


# ------------------------------------------------------------------ runs that do not start


def _claimed(d: Driver, seconds: float = 1) -> Run:
    d.after(seconds)
    d.grant(d.asked(m.Take))
    run: Run = d.asked(m.Prepare).run
    d.renew()
    return run


def _not_started(d: Driver, run: Run, why: str) -> None:
    """Reported, and put back."""
    d.step(m.NotStarted(run.run_id, why))
    effects = list(d.effects)
    d.step(m.PutBackAnswered(d.nonce, run.run_id, Applied()))
    d.effects[:0] = effects


def test_why_a_jobs_runs_do_not_start_is_told_once_per_change() -> None:
    d = Driver([job(every_s=5)]).lead()
    _not_started(d, _claimed(d, 5), "no process")
    assert d.told("run.not_started") == {
        "job": "beat",
        "scheduled_for": T0 + timedelta(seconds=5),
        "attempt": 1,
        "fence": 7,
        "error": "no process",
    }
    d.step(m.Started("of no flight", d.wall))
    _not_started(d, _claimed(d), "no process")
    assert d.quiet("run.not_started")
    _not_started(d, _claimed(d), "no host")
    assert d.told("run.not_started")["error"] == "no host"
    run = _claimed(d)
    d.step(m.Prepared(run.run_id))
    d.step(m.Started(run.run_id, d.wall))
    d.record(d.land(run))
    _not_started(d, _claimed(d, 2), "no host")
    assert d.told("run.not_started")["error"] == "no host"


def test_that_a_shut_gate_or_a_stop_keeps_a_run_from_starting_needs_no_word() -> None:
    shut, stopped, unknown = Driver().lead(), Driver().lead(), Driver().lead()
    run = _claimed(shut)
    shut.step(m.WatchBroken(shut.nonce, "silent"))
    shut.step(m.NotStarted(run.run_id, "dropped"))
    run = _claimed(stopped)
    stopped.step(m.StopAsked(15))
    stopped.step(m.NotStarted(run.run_id, "dropped"))
    unknown.step(m.NotStarted("no run", "dropped"))
    assert all(d.quiet("run.not_started") for d in (shut, stopped, unknown))


def test_a_heartbeat_answered_after_its_term_has_ended_changes_nothing_whatever_it_says() -> None:
    d = Driver().lead()
    d.after(1)
    d.asked(m.Heartbeat)
    d.step(m.LeaseLost(d.nonce))
    d.step(m.HeartbeatAnswered(d.nonce, Applied(changed=False), d.wall))
    assert d.quiet("ledger.went_back")
    assert not d.all(m.Record)
