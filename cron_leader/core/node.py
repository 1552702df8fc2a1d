"""One node's decisions as data: `step(event, now)` returns what is to be done, and does nothing.

A node stands out of line until its ledger answers, joins the line with a new nonce and lease, and,
once elected, raises the ledger's fence, settles the past and opens its gate, in that order. A lost
term is never resumed: its runs end, its keys and lease go, and the node starts over. The daemon,
the tests and the simulator drive the same object.

Not decided here: what etcd's answers mean (etcd/), what a slot's row holds (ledger/), whether a
process has ended (runners/).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any, TypeVar, assert_never

from cron_leader.core import messages as m
from cron_leader.core.ahead import Ahead
from cron_leader.core.dispatch import SECOND_NS, Dispatch, Doom
from cron_leader.core.gate import CloseReason, Gate
from cron_leader.core.messages import Effect, Event, Now
from cron_leader.core.model import (
    Applied,
    Candidate,
    CommandResult,
    Done,
    DueRow,
    Errand,
    Job,
    Past,
    Refused,
    Rollback,
    Settlement,
    Taken,
    Term,
)
from cron_leader.core.orders import Desk, errand_of
from cron_leader.core.schedule import EPOCH
from cron_leader.core.skew import Skew
from cron_leader.core.slices import Slices
from cron_leader.core.standing import SHUT_BY, UNRECORDED, EndReason, Limits, Phase
from cron_leader.core.takeover import settling

T = TypeVar("T")

HEARTBEAT_NS = SECOND_NS
RAISE_ANSWER_NS = 2 * SECOND_NS
"""A raise that the ledger does not answer is given up this long after the election."""
LOOK_AGAIN_NS = 5 * SECOND_NS
"""A node kept out of line by something only a person can mend looks again this often."""
BACKOFF_NS = (SECOND_NS // 2, 5 * SECOND_NS)
FORCED_EXIT = 128
_MICROSECOND = timedelta(microseconds=1)
# Written down once: up to Python 3.11 each look-up of an enum's member costs as much as a call.
_RAISED = (Phase.SETTLING, Phase.LEADING)
_IN_TERM = (Phase.RAISING, *_RAISED)
_OUTLASTS = frozenset({CloseReason.WATCH, CloseReason.CLOCK_JUMP, CloseReason.CLOCK_SKEW})
"""What shuts the gate of a term that goes on, and may not do so for longer than a TTL."""


class Node:
    """The state machine of one node in one election. Not thread-safe; never blocks, never raises
    on an event of an older nonce (it is dropped)."""

    def __init__(
        self,
        *,
        election: str,
        name: str,
        jobs: Mapping[str, Job],
        limits: Limits,
        draw: Callable[[], str],
    ) -> None:
        """draw: 128 random bits as 32 hex digits, for nonces, leases and run ids."""
        self._election, self._name, self._jobs = election, name, jobs
        self._limits, self._draw = limits, draw
        self._jump = timedelta(microseconds=limits.margin_ns // 2000)
        self._out: list[Effect] = []
        self._dispatch = Dispatch(limits.pool, draw=draw, out=self._out)
        self.phase = Phase.OUT
        self.gate = Gate()
        self.term: Term | None = None
        self._nonce: str | None = None
        self._lease = 0
        self._candidate: Candidate | None = None
        self._elected_at: datetime | None = None
        self._now = Now(0, datetime.min.replace(tzinfo=UTC))
        self._booted: datetime | None = None
        self._skew = Skew(timedelta(seconds=limits.max_clock_skew_s))
        self._was_open = False
        self._joined_once = False
        self._told_failure: str | None = None
        self._told_hindrances: dict[str, str] = {}  # by job
        self._retry_ns: int | None = 0
        self._backoff_ns = BACKOFF_NS[0]
        self._elected_ns = self._raise_by_ns = 0
        self._doubt: Refused | None = None
        self._doubt_ns = 0
        self._close_by_ns = 0
        self._beat_ns = 0
        self._beating = False
        self._beat_to = EPOCH
        self._ahead = Ahead()
        self._remembered: datetime | None = None
        self._verify_ns = 0
        self._probe_ns = 0
        self._probing = False
        self._ledger_down_ns: int | None = None
        self._silent_ns: int | None = None
        self._shut_ns: int | None = None
        self._stop_ns: int | None = None
        self._drain_ns: int | None = None
        self._orders: dict[str, m.StepDown] = {}
        self._obeyed: m.StepDown | None = None
        self._desk = Desk()
        self._errand: tuple[Errand, datetime] | None = None
        self._work: tuple[Slices[Any], Callable[[Any], None]] | None = None
        self._closing_as: EndReason | None = None
        self._exit: m.Exit | None = None

    # ------------------------------------------------------------------ the step

    def step(self, event: Event, now: Now) -> list[Effect]:
        """What follows from `event` at `now`, in order. Deadlines are looked at first: an event
        that was read late must not act for a term that is over."""
        if self.phase is Phase.STOPPED:
            return []
        self._now = now
        self._look_at_clocks()
        self._on(event)
        self._proceed()
        self._tell_gate()
        effects = self._out[:]
        self._out.clear()
        return effects

    def closed(self, boot_ns: int) -> CloseReason | None:
        """Why no run may start at boot_ns; None: the gate is open."""
        return self.gate.closed(boot_ns) if self.term is not None else CloseReason.NOT_RAISED

    def _open(self) -> bool:
        return self.term is not None and self.gate.closed(self._now.boot_ns) is None

    def _gate_ns(self) -> int | None:
        """The deadline of the gate; None: it is closed."""
        return self.gate.deadline_ns if self._open() else None

    def _do(self, effect: Effect) -> None:
        self._out.append(effect)

    def _emit(self, event: str, **fields: object) -> None:
        self._do(m.Emit(event, fields))

    # ------------------------------------------------------------------ clocks

    def _look_at_clocks(self) -> None:
        now = self._now
        booted = now.wall - now.boot_ns // 1000 * _MICROSECOND
        if self._booted is not None and self._nonce is not None:
            jump = booted - self._booted
            if abs(jump) > self._jump:
                self._jumped(jump)
        self._booted = booted
        if self._in_term() and self._due(self.gate.deadline_ns):
            stuck = now.stood_ns >= self._limits.ttl_ns // 2
            self._end(EndReason.STUCK if stuck else EndReason.DEADLINE)
        elif self.phase in _RAISED:
            self._look_at_patience()

    def _look_at_patience(self) -> None:
        """A leader that cannot tick gives the post up after one TTL: without its ledger (heartbeats
        may be answered though claims are not), its supervisor, its watch, or the right time."""
        if self._due(self._patience_ends_ns()):
            _, reason = min((ns, reason) for ns, reason in self._patience() if ns is not None)
            self._end(reason)

    def _patience(self) -> tuple[tuple[int | None, EndReason], ...]:
        """What has kept the leader from its work, since when, and what ends the term for it."""
        return (
            (self._ledger_down_ns, EndReason.LEDGER_UNREACHABLE),
            (self._dispatch.unanswered_ns, EndReason.LEDGER_UNREACHABLE),
            (self._silent_ns, EndReason.SUPERVISOR_GONE),
            (self._shut_ns, EndReason.RESIGNED),
        )

    def _patience_ends_ns(self) -> int | None:
        """With the first of these; None: nothing keeps the leader from its work."""
        since_ns = self._dispatch.unanswered_ns
        down_ns, silent_ns, shut_ns = self._ledger_down_ns, self._silent_ns, self._shut_ns
        if since_ns is down_ns is silent_ns is shut_ns is None:
            return None
        all_ns = (since_ns, down_ns, silent_ns, shut_ns)
        return min([ns for ns in all_ns if ns is not None]) + self._limits.ttl_ns

    def _jumped(self, by: timedelta) -> None:
        self._emit("clock.stepped", by_ms=round(by.total_seconds() * 1e3))
        self.gate = replace(self.gate, jumped_ns=self._now.boot_ns)
        self._verify_ns = self._now.boot_ns
        self._skew.jumped(by, self._now.boot_ns)
        self._look_at_skew()

    def _measured(self, ahead: timedelta | None, sent_ns: int) -> None:
        if ahead is not None:
            self._skew.measured(ahead, sent_ns)
            self._look_at_skew()

    def _look_at_skew(self) -> None:
        """Shut the gate while the ledger's clock is another one; tell it once per change."""
        if self.gate.skewed is not self._skew.too_much:
            self.gate = replace(self.gate, skewed=self._skew.too_much)
        if (skew_ms := self._skew.news()) is not None:
            self._emit("clock.skewed", skew_ms=skew_ms)

    def _in_term(self) -> bool:
        return self.phase in _IN_TERM

    # ------------------------------------------------------------------ dispatch of events

    def _on(self, event: Event) -> None:
        match event:
            case m.Woke():
                pass
            case m.SlotNear():
                self._on_slot_near()
            case m.StopAsked(signal):
                self._on_stop(signal)
            case m.SupervisorGone():
                self._on_supervisor_gone()
            case m.SupervisorSilent():
                self._on_supervisor_silent()
            case m.SupervisorAnswered():
                self._silent_ns = None
                self.gate = replace(self.gate, unsupervised=False)
            case m.LedgerReached(ahead, sent_ns):
                self._measured(ahead, sent_ns)
                self._on_ledger_reached()
            case m.LedgerFailed(text, permanent):
                self._on_ledger_failed(text, permanent)
            case m.Prepared() | m.Started() | m.NotStarted() | m.RunEnded():
                self._on_runner(event)
            case m.FinishAnswered():
                self._on_finish(event)
            case m.TermClosed():
                self._on_term_closed(event)
            case _ if event.nonce == self._nonce:
                self._on_candidacy(event)
            case _:
                pass

    def _on_runner(self, event: m.Prepared | m.Started | m.NotStarted | m.RunEnded) -> None:
        match event:
            case m.Prepared(run_id):
                self._dispatch.on_prepared(run_id, deadline_ns=self._gate_ns())
            case m.Started(run_id, at):
                if self._told_hindrances:
                    self._starts_again(run_id)
                self._dispatch.on_started(run_id, at)
            case m.NotStarted(run_id, why):
                self._tell_hindrance(run_id, why)
                self._dispatch.on_not_started(run_id, self._now)
            case m.RunEnded(run_id, result):
                self._dispatch.on_ended(run_id, result, self._now)
            case _:
                assert_never(event)

    def _tell_hindrance(self, run_id: str, why: str) -> None:
        """Once per change: why a job's runs do not start though they may, and nobody ended them."""
        flight = self._dispatch.flights.get(run_id)
        if flight is None or flight.doom or flight.run.term is not self.term or not self._open():
            return
        slot, attempt, fence = flight.run.slot, flight.run.attempt, flight.run.term.fence
        if self._told_hindrances.get(slot.job) != why:
            self._told_hindrances[slot.job] = why
            at = slot.scheduled_for
            self._emit(
                "run.not_started",
                job=slot.job,
                scheduled_for=at,
                attempt=attempt,
                fence=fence,
                error=why,
            )

    def _starts_again(self, run_id: str) -> None:
        flight = self._dispatch.flights.get(run_id)
        if flight is not None:
            self._told_hindrances.pop(flight.run.slot.job, None)

    def _on_finish(self, event: m.FinishAnswered) -> None:
        changed = isinstance(event.answer, Applied) and event.answer.changed
        run = self._dispatch.on_finish(event.run_id, changed=changed)
        if isinstance(event.answer, Refused):
            self._refused(event.answer, event.nonce, run.term.fence if run else None)

    def _on_term_closed(self, event: m.TermClosed) -> None:
        """A refused last word is told though its term is over: the proof that somebody else led."""
        if isinstance(event.answer, Refused):
            self._refused(event.answer, event.nonce, event.fence)
        elif event.nonce == self._nonce and self._closing_as is not None:
            self._leave()

    def _on_candidacy(self, event: m.CandidacyEvent) -> None:
        match event:
            case m.LeaseRenewed(_, sent_ns, ttl_ns):
                self._on_renewed(sent_ns, ttl_ns)
            case m.LeaseLost():
                self._end(EndReason.LEASE_LOST)
            case m.JoinFailed():
                self._on_join_failed(event)
            case m.Elected():
                self._on_elected(event)
            case m.WatchOpened():
                self.gate = replace(self.gate, watching=True)
            case m.WatchBroken():
                self.gate = replace(self.gate, watching=False)
            case m.KeyDeleted():
                self._end(EndReason.KEY_DELETED)
            case m.KeyOverwritten():
                self._end(EndReason.KEY_OVERWRITTEN)
            case m.Verified(_, sent_ns):
                self._on_verified(sent_ns)
            case m.Left():
                self._on_left()
            case _:
                self._on_ledger(event)

    def _on_ledger(self, event: m.LedgerAnswer) -> None:
        match event:
            case m.RaiseWaits():
                self._raise_by_ns = self._elected_ns + self._limits.ttl_ns + SECOND_NS
            case m.Raised(_, answer):
                self._on_raised(answer)
            case m.PastRead(_, past):
                self._on_past(past)
            case m.Settled(_, answer):
                self._on_settled(answer)
            case m.BatchAnswered(_, batch, answer):
                if self._held(answer):
                    assert isinstance(answer, Taken)
                    gate_ns = self._gate_ns()
                    self._dispatch.on_batch(batch, answer, self._now, deadline_ns=gate_ns)
            case m.HeartbeatAnswered(_, answer, asked, sent_ns):
                self._on_heartbeat(answer, asked, sent_ns)
            case m.PutBackAnswered(_, run_id, answer):
                if self._held(answer):
                    assert isinstance(answer, Applied)
                    self._dispatch.on_put_back(run_id, changed=answer.changed, now=self._now)
            case m.StepDown():
                self._on_order(event)
            case m.OrderAnswered(_, command_id, answer):
                self._on_order_answered(command_id, answer)
            case m.Ordered(_, order):
                if self.phase is Phase.LEADING and self._desk.put(order):
                    self._carry_out()
            case m.ErrandDone(_, command_id, answer):
                self._on_errand_done(command_id, answer)
            case _:
                assert_never(event)

    # ------------------------------------------------------------------ out of line, and joining

    def _on_ledger_reached(self) -> None:
        self._probing = False
        self._ledger_down_ns = None
        if self._skew.too_much:
            self._stand_aside()
        elif self.phase is Phase.PROBING:
            self._join()

    def _stand_aside(self) -> None:
        """Out of line while our clock is another one: a takeover by it would settle the future."""
        if self.phase is Phase.PROBING:
            self._stay_out(LOOK_AGAIN_NS)
        elif self.phase is Phase.JOINING:
            self._retry_ns = self._now.boot_ns + LOOK_AGAIN_NS
            self._leave()

    def _on_ledger_failed(self, text: str, permanent: bool) -> None:
        self._probing = False
        if self._ledger_down_ns is None:
            self._ledger_down_ns = self._now.boot_ns
        if self.phase is Phase.PROBING:
            if permanent and not self._joined_once:
                self._stop_with(2, text)
            else:
                self._stay_out(self._next_backoff())
        elif self.phase is Phase.JOINING:
            self._leave()
        elif self.phase is Phase.LEADING:
            assert self.term is not None
            self._do(m.Record(self.term.nonce, self.term.fence, self._dispatch.known_to))

    def _join(self) -> None:
        self._nonce = self._draw()
        self._lease = (int(self._draw()[:16], 16) >> 1) | 1
        self.gate = Gate(stopping=self._stop_ns is not None, skewed=self._skew.too_much)
        self.phase = Phase.JOINING
        self._probe_ns = self._now.boot_ns + self._limits.ttl_ns // 2
        self._do(m.Join(self._nonce, self._lease))

    def _on_renewed(self, sent_ns: int, ttl_ns: int) -> None:
        granted = self.phase is Phase.JOINING and not self.gate.sent_ns
        self.gate = self.gate.renewed(sent_ns, ttl_ns, self._limits.margin_ns)
        if granted:
            self._told_failure = None
            self._emit("term.campaigning", lease=_hex(self._lease))

    def _on_join_failed(self, event: m.JoinFailed) -> None:
        first, self._joined_once = not self._joined_once, True
        if event.permanent and first:
            self._stop_with(2, event.text)
        elif self._in_term():
            self._end(EndReason.LEASE_LOST, error=event.text)
        elif self.phase is Phase.JOINING:
            self._tell_failure(event)
            self._nonce = None
            self._stay_out(LOOK_AGAIN_NS if event.permanent else self._next_backoff())

    def _tell_failure(self, event: m.JoinFailed) -> None:
        """Once per change, and not what the client of etcd says itself: that it is away."""
        if event.reason != "unreachable" and event.text != self._told_failure:
            self._told_failure = event.text
            self._emit("term.ended", reason=event.reason, error=event.text)

    def _stay_out(self, for_ns: int) -> None:
        self.phase = Phase.OUT
        self._retry_ns = self._now.boot_ns + for_ns

    def _next_backoff(self) -> int:
        backoff_ns = self._backoff_ns
        self._backoff_ns = min(2 * backoff_ns, BACKOFF_NS[1])
        return backoff_ns

    # ------------------------------------------------------------------ elected, raised, settled

    def _on_elected(self, won: m.Elected) -> None:
        if self.phase is not Phase.JOINING:
            return
        self._joined_once = True
        self._backoff_ns = BACKOFF_NS[0]
        self._elected_at = self._now.wall
        self._candidate = Candidate(
            self._election,
            won.nonce,
            self._name,
            self._lease,
            won.revision,
            won.cluster,
            won.least,
            won.rollback,
        )
        self._remembered = won.known
        self.phase = Phase.RAISING
        self._elected_ns = self._now.boot_ns
        self._raise_by_ns = self._elected_ns + RAISE_ANSWER_NS
        self._emit("term.elected", lease=_hex(self._lease), revision=won.revision)
        if self._due(self.gate.deadline_ns):  # frozen since the last check: not even a raise
            self._end(EndReason.DEADLINE)
        else:
            self._do(m.Raise(self._candidate))

    def _on_raised(self, answer: int | Refused) -> None:
        if self.phase is not Phase.RAISING:
            return
        if isinstance(answer, Refused):
            self._raise_refused(answer)
            return
        c, at = self._candidate, self._elected_at
        assert c is not None
        assert at is not None
        self.term = Term(c.election, answer, c.nonce, c.node, c.lease, at)
        self.gate = replace(self.gate, raised=True)
        self.phase = Phase.SETTLING
        self._emit("term.raised", fence=answer, lease=_hex(c.lease))
        self._do(m.ReadPast(self.term))

    def _raise_refused(self, answer: Refused) -> None:
        """Either a newer leader raised, or etcd's history went back: the key itself decides."""
        if answer.history:
            self._history(answer)
            return
        self._doubt = answer
        self._doubt_ns = self._verify_ns = self._now.boot_ns

    def _on_verified(self, sent_ns: int) -> None:
        self.gate = self.gate.verified(sent_ns)
        if self._doubt is None or self.phase is not Phase.RAISING:
            return
        if sent_ns >= self._doubt_ns:  # a read sent earlier may be older than a newer leader
            self._history(self._doubt)

    def _history(self, answer: Refused) -> None:
        self._emit("ledger.refused", what=answer.what, high=answer.high, error=answer.text)
        self._end(EndReason.HISTORY)

    def _on_past(self, past: Past) -> None:
        if self.phase is Phase.SETTLING and self.term is not None:
            assert self._candidate is not None
            if past.went_back_at is None and self._shows_less(past):
                if self._candidate.rollback is Rollback.REFUSE:
                    self._went_back(self._remembered)
                    return
                skip = self._candidate.rollback is Rollback.SKIP
                past = replace(past, went_back_at=self._now.wall, skip=skip)
            if past.went_back_at is not None:
                answer = Rollback.SKIP if past.skip else Rollback.REFIRE
                self._emit("ledger.went_back", answer=answer, planned_to=past.planned_to)
            self._work_on(settling(self._jobs, past, self._now.wall), self._on_drafted)

    def _on_drafted(self, settlement: Settlement) -> None:
        assert self.term is not None
        self._settlement = settlement
        self._do(m.Settle(self.term, settlement))

    def _on_settled(self, answer: tuple[DueRow, ...] | Refused) -> None:
        if self.phase is not Phase.SETTLING or not self._held(answer):
            return
        assert not isinstance(answer, Refused)
        assert self.term is not None
        work = self._dispatch.begin(self.term, self._jobs, self._settlement, answer)
        self._work_on(work, self._on_begun)

    def _on_begun(self, _: None) -> None:
        assert self.term is not None
        self.phase = Phase.LEADING
        self.gate = replace(self.gate, settled=True)
        self._beat_ns, self._beating = self._now.boot_ns + HEARTBEAT_NS, False
        self._ahead = Ahead()
        self._do(m.Record(self.term.nonce, self.term.fence))  # not before: nothing may delay us

    def _work_on(self, work: Slices[T], then: Callable[[T], None]) -> None:
        """A slice now, and one with each step, which is asked for at once; then what follows."""
        self._work = work, then
        self._resume()

    def _resume(self) -> None:
        if self._work is None:
            return
        work, then = self._work
        try:
            next(work)
        except StopIteration as end:
            self._work = None
            then(end.value)

    # ------------------------------------------------------------------ leading

    def _on_slot_near(self) -> None:
        if not self._beating:
            self._beat_ns = min(self._beat_ns, self._now.boot_ns)
            self._ahead.called(self._now.boot_ns)

    def _on_heartbeat(
        self, answer: Applied | Refused, asked: datetime | None, sent_ns: int
    ) -> None:
        self._beating = False
        self._ahead.answered(self._now.boot_ns)
        if not self._held(answer) or self.term is None:  # it may come while the keys go
            return
        assert isinstance(answer, Applied)
        if not answer.changed:
            self._went_back(self._dispatch.known_to)
            return
        self._dispatch.acknowledged(self._beat_to)
        if answer.ledger_now is not None and asked is not None:
            self._measured(asked - answer.ledger_now, sent_ns)

    def _shows_less(self, past: Past) -> bool:
        """Whether the leader before us was acknowledged more than that."""
        known = self._remembered
        return known is not None and (past.planned_to is None or past.planned_to < known)

    def _went_back(self, known: datetime | None) -> None:
        """Our fence stands, but not all that was acknowledged under it: the ledger lost its end.

        The successor must not take it for whole: from now on etcd remembers a fence above ours.
        """
        assert self.term is not None
        fence = self.term.fence
        self._emit("ledger.went_back", fence=fence, planned_to=known)
        self._do(m.Record(self.term.nonce, fence + 1))
        self._end(EndReason.HISTORY)

    def _held(self, answer: object) -> bool:
        """Whether the write was made under our fence; if it was refused, the term is over."""
        if not isinstance(answer, Refused):
            return True
        assert self._nonce is not None
        self._refused(answer, self._nonce, self._fence())
        return False

    def _fence(self) -> int | None:
        return self.term.fence if self.term is not None else None

    def _refused(self, answer: Refused, nonce: str, fence: int | None) -> None:
        self._emit("ledger.refused", what=answer.what, high=answer.high, fence=fence)
        if nonce == self._nonce:
            self._end(EndReason.REFUSED)

    # ------------------------------------------------------------------ asked to step down

    def _on_order(self, order: m.StepDown) -> None:
        """It is answered under the fence, and obeyed once that is written: exactly once."""
        if self.phase is not Phase.LEADING or order.command_id in self._orders:
            return
        assert self.term is not None
        self._orders[order.command_id] = order
        match order.fence:
            case self.term.fence:
                result = CommandResult.STEPPING_DOWN
            case None:
                result = CommandResult.NOT_UNDERSTOOD
            case _:
                result = CommandResult.NOT_LEADING
        self._do(m.AnswerOrder(self.term, order.command_id, result))

    def _on_order_answered(self, command_id: str, answer: Applied | Refused) -> None:
        if not self._held(answer):
            return
        assert isinstance(answer, Applied)
        order = self._orders.get(command_id)
        if order is not None and answer.changed and order.fence == self._fence():
            self._obeyed = self._obeyed or order
            self._wind_down()

    def _carry_out(self) -> None:
        """The next order to the jobs, with what is known now."""
        order = self._desk.next()
        if order is not None:
            assert self.term is not None
            known_to = self._dispatch.known_to
            errand = errand_of(order, self._jobs, self._now.wall, known_to)
            self._errand = errand, self._now.wall
            self._do(m.CarryOut(self.term, errand))

    def _on_errand_done(self, command_id: str, answer: Done | Refused) -> None:
        if self.phase is not Phase.LEADING or not self._held(answer):
            return
        assert isinstance(answer, Done)
        self._desk.done(command_id)
        if answer.changed and self._errand is not None:
            self._dispatch.pauses.carried_out(*self._errand)
        self._dispatch.order(answer.rows)
        self._carry_out()

    def _wind_down(self) -> None:
        """From now on no run starts in this term; those in flight are drained."""
        self.gate = replace(self.gate, stopping=True)
        if self._drain_ns is None:
            self._drain_ns = self._now.boot_ns

    def _away_ns(self) -> int:
        return 0 if self._obeyed is None else self._obeyed.for_ns

    def _on_supervisor_silent(self) -> None:
        if self._in_term() and self._silent_ns is None:
            self._silent_ns = self._now.boot_ns
            self.gate = replace(self.gate, unsupervised=True)
            self._do(m.AskSupervisor())

    # ------------------------------------------------------------------ the term ends

    def _end(self, reason: EndReason, *, error: str | None = None) -> None:
        """End the term, or the candidacy: runs first, then the keys."""
        if self.phase in (Phase.CLOSING, Phase.LEAVING, Phase.STOPPED, Phase.OUT, Phase.PROBING):
            return
        if self._in_term():
            self._close_gate(SHUT_BY.get(reason))
            self._emit("term.ended", reason=reason, fence=self._fence(), error=error)
        assert self._nonce is not None
        self._do(m.Abandon(self._nonce))
        if self.term is not None and reason not in UNRECORDED:
            self._do(m.CloseTerm(self.term, reason))
        self._dispatch.end()
        self._close_by_ns = self._now.boot_ns + self._limits.margin_ns // 2
        self._retry_ns = self._now.boot_ns + self._away_ns()
        if reason is EndReason.HISTORY:
            self._retry_ns += LOOK_AGAIN_NS
        self.phase = Phase.CLOSING
        self._forget_term()

    def _forget_term(self) -> None:
        self.term = self._candidate = self._elected_at = self._doubt = None
        self._silent_ns = self._shut_ns = self._obeyed = self._closing_as = None
        self._beating = False
        self._work = None
        self._orders, self._desk = {}, Desk()
        if self._stop_ns is None:
            self._drain_ns = None
        self.gate = Gate(stopping=self._stop_ns is not None, skewed=self._skew.too_much)

    def _leave(self) -> None:
        assert self._nonce is not None
        if self.term is not None:
            command = None if self._obeyed is None else self._obeyed.command_id
            self._emit(
                "term.ended", reason=self._closing_as, fence=self.term.fence, command=command
            )
            self._do(m.Abandon(self._nonce))
            self._dispatch.end()
            self._retry_ns = self._now.boot_ns + self._away_ns()
        self._forget_term()
        self.phase = Phase.LEAVING
        self._do(m.Leave(self._nonce))

    def _on_left(self) -> None:
        self._nonce = None
        self._stay_out(max(0, (self._retry_ns or 0) - self._now.boot_ns))

    # ------------------------------------------------------------------ stopping

    def _on_stop(self, signal: int) -> None:
        if self._stop_ns is not None:
            self._dispatch.kill_all(Doom.SHUTDOWN)
            self._exit = m.Exit(FORCED_EXIT + signal, "second signal")
            self._finish()
            return
        self._begin_stop()

    def _begin_stop(self) -> None:
        self._emit("node.stopping")
        self._stop_ns = self._now.boot_ns
        self._wind_down()
        match self.phase:
            case Phase.PROBING:
                self.phase = Phase.OUT
            case Phase.JOINING:
                self._leave()
            case Phase.RAISING | Phase.SETTLING:
                self._end(EndReason.STOPPING)
            case _:
                pass

    def _on_supervisor_gone(self) -> None:
        self._exit = m.Exit(1, "the supervisor died")
        if self._stop_ns is None:
            self._begin_stop()
        self._dispatch.kill_all(Doom.SHUTDOWN)

    def _stop_with(self, code: int, text: str) -> None:
        self._exit = m.Exit(code, text)
        self._stop_ns = self._now.boot_ns
        self._wind_down()
        self._nonce = None
        self._stay_out(0)

    def _finish(self) -> None:
        self.phase = Phase.STOPPED
        self._do(self._exit or m.Exit(0))

    # ------------------------------------------------------------------ what time brings

    def _proceed(self) -> None:
        """Everything that is due at this instant, phase after phase until none follows."""
        before = None
        while self.phase is not before:
            before = self.phase
            self._proceed_in(before)

    def _proceed_in(self, phase: Phase) -> None:
        match phase:
            case Phase.LEADING:
                self._proceed_leading()
            case Phase.JOINING:
                self._proceed_joining()
            case Phase.OUT:
                self._proceed_out()
            case Phase.RAISING:
                self._proceed_raising()
            case Phase.SETTLING:
                self._verify()
                self._resume()
            case Phase.CLOSING:
                self._proceed_closing()
            case _:
                pass

    def _proceed_out(self) -> None:
        if self._stop_ns is not None:
            self._drain()
            if not self._dispatch.flights:
                self._finish()
        elif self._due(self._retry_ns):
            self.phase = Phase.PROBING
            self._do(m.Probe())

    def _proceed_joining(self) -> None:
        if self._due(self._probe_ns) and not self._probing:
            self._probing = True
            self._probe_ns = self._now.boot_ns + self._limits.ttl_ns // 2
            self._do(m.Probe())

    def _proceed_raising(self) -> None:
        self._verify()
        if self._due(self._raise_by_ns):
            self._end(EndReason.RAISE_FAILED)

    def _proceed_leading(self) -> None:
        self._verify()
        if self._open():
            self._dispatch.plan(self._now)
        self._beat()
        if self._drain_ns is not None:
            self._drain()
            self._close_term()

    def _close_term(self) -> None:
        if self._dispatch.flights or self._closing_as is not None:
            return
        assert self.term is not None
        stopping = self._stop_ns is not None
        self._closing_as = EndReason.STOPPING if stopping else EndReason.RESIGNED
        self._do(m.CloseTerm(self.term, self._closing_as))

    def _proceed_closing(self) -> None:
        if not self._dispatch.doomed or self._due(self._close_by_ns):
            self._leave()

    def _drain(self) -> None:
        assert self._drain_ns is not None
        drain_s = self._limits.drain_s
        self._dispatch.drain(self._now, since_ns=self._drain_ns, drain_s=drain_s)

    def _beat(self) -> None:
        if self._due(self._beat_ns) and not self._beating:
            assert self.term is not None
            self._beating = True
            self._beat_ns = self._now.boot_ns + HEARTBEAT_NS
            self._ahead.sent(self._now.boot_ns)
            self._beat_to = self._dispatch.planned_to
            known, runs = self._dispatch.known_to, self._dispatch.under_way()
            self._do(m.Heartbeat(self.term, self._beat_to, known, runs))

    def _verify(self) -> None:
        doubtful = self.gate.jumped_ns is not None or self._doubt is not None
        if doubtful and self._due(self._verify_ns):
            assert self._nonce is not None
            self._verify_ns = self._now.boot_ns + SECOND_NS
            self._do(m.Verify(self._nonce))

    def _due(self, at_ns: int | None) -> bool:
        return at_ns is not None and self._now.boot_ns >= at_ns

    # ------------------------------------------------------------------ the gate, seen from outside

    def _tell_gate(self) -> None:
        if self.term is None or self.phase is not Phase.LEADING:
            return
        reason = self.closed(self._now.boot_ns)
        if reason not in _OUTLASTS:
            self._shut_ns = None
        elif self._shut_ns is None:
            self._shut_ns = self._now.boot_ns
        if reason is None and not self._was_open:
            self._was_open = True
            self._emit("gate.opened", fence=self.term.fence, lease=_hex(self.term.lease))
        elif reason is not None:
            self._close_gate(reason)

    def _close_gate(self, reason: CloseReason | None) -> None:
        if self._was_open:
            assert self.term is not None
            self._was_open = False
            self._emit("gate.closed", reason=reason, fence=self.term.fence)

    # ------------------------------------------------------------------ alarms

    def wake_wall(self) -> datetime | None:
        """When the wall clock next brings something to do."""
        if self._open() and self.phase is Phase.LEADING:
            return self._dispatch.wake_wall(self._now)
        return None

    def near_wall(self, slot: datetime) -> datetime | None:
        """When SlotNear is to come for what wake_wall() says is next; None: it need not."""
        if self._beating:
            return None
        lead = self._ahead.lead(self._now.boot_ns, slot - self._now.wall)
        return None if lead is None else slot - lead

    def wake_boot_ns(self) -> int | None:
        """When the boot clock next brings something to do."""
        alarms = [at for at in self._alarms() if at is not None]
        return min(alarms) if alarms else None

    def _alarms(self) -> list[int | None]:
        match self.phase:
            case Phase.LEADING:
                return self._leading_alarms()
            case Phase.JOINING:
                return [None if self._probing else self._probe_ns]
            case Phase.OUT if self._stop_ns is None:
                return [self._retry_ns]
            case Phase.OUT:
                return [self._drain_alarm()]
            case Phase.RAISING:
                doubt = self._verify_ns if self._doubt or self.gate.jumped_ns else None
                return [self.gate.deadline_ns, self._raise_by_ns, doubt]
            case Phase.SETTLING:
                return [*self._term_alarms(), self._now.boot_ns if self._work else None]
            case Phase.CLOSING:
                return [self._close_by_ns]
            case _:
                return []

    def _term_alarms(self) -> list[int | None]:
        return [
            self.gate.deadline_ns,
            self._verify_ns if self.gate.jumped_ns is not None else None,
            self._patience_ends_ns(),
        ]

    def _leading_alarms(self) -> list[int | None]:
        return [
            *self._term_alarms(),
            None if self._beating else self._beat_ns,
            self._dispatch.pace_alarm(self._now) if self._open() else None,
            self._drain_alarm(),
        ]

    def _drain_alarm(self) -> int | None:
        if self._drain_ns is None:
            return None
        return self._dispatch.drain_alarm(since_ns=self._drain_ns, drain_s=self._limits.drain_s)


def _hex(lease: int) -> str:
    """A lease as etcdctl prints it."""
    return f"{lease:016x}"
