"""What cron_leader/scribe.py does, in the model's words: each request of the core is sent to the
ledger, as it is, until it has a definite answer or its term is over.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

from chaos.worlds.sim.engine import MS, SECOND, Steps, Task, Wait
from cron_leader.core import messages as m
from cron_leader.core.messages import Effect, Event
from cron_leader.core.model import Applied, Asked, Order

if TYPE_CHECKING:
    from chaos.worlds.sim.daemon import Daemon

WRITE_NS = 5 * SECOND
RESEND_NS = (50 * MS, SECOND)
COMPARABLE_NS = SECOND // 2


class Scribe:
    """Of one daemon."""

    def __init__(self, daemon: Daemon) -> None:
        self._daemon = daemon
        self._server = daemon.world.ledger_server
        self._abandoned: set[str] = set()
        self._failing: set[int] = set()
        self._down = False

    def abandon(self, nonce: str) -> None:
        self._abandoned.add(nonce)

    def perform(self, effect: Effect) -> None:
        Task(self._daemon.process, self._insist(effect))

    def _insist(self, effect: Effect) -> Steps:
        ask, nonce = self._ask(effect), _insisted_on(effect)
        pause_ns = RESEND_NS[0]
        first = True
        while True:
            sent_ns = self._daemon.boot_ns()
            answer = yield self._send(effect, ask, first=first)
            first = False
            if answer is not None:
                self._failing.discard(id(effect))
                if self._down and not self._failing:
                    self._down = False
                    self._daemon.post(m.LedgerReached())
                self._daemon.post(self._told(effect, answer, sent_ns))
                for order in answer.orders if isinstance(answer, Applied) else ():
                    self._daemon.post(_ordered(effect, order))
                return
            if self._failed(effect) or isinstance(effect, m.Probe):
                self._daemon.post(m.LedgerFailed("no answer"))
            if nonce is None or nonce in self._abandoned:
                break
            yield pause_ns
            pause_ns = min(2 * pause_ns, RESEND_NS[1])
            if nonce in self._abandoned:
                break
        self._failing.discard(id(effect))
        if (given_up := _given_up(effect)) is not None:
            self._daemon.post(given_up)

    def _failed(self, effect: Effect) -> bool:
        if not isinstance(effect, m.Probe):
            self._failing.add(id(effect))
        first, self._down = not self._down, True
        return first

    def _send(self, effect: Effect, ask: Callable[[], Any], *, first: bool) -> Wait:
        """To be yielded: the answer; None: the outcome is not known."""
        machine = self._daemon.machine
        process, way = self._daemon.process, machine.to_ledger

        def start(task: Task, wait: int) -> None:
            def answered(answer: Any) -> None:
                way.back(task.resume, wait, answer)

            arrive = partial(self._server.serve, machine, ask, answered)
            if isinstance(effect, m.Raise):
                waits = partial(way.back, process.wake, self._daemon.post, _waits(effect))
                fence = self._server.ledger.offset + effect.candidate.revision
                arrive = partial(self._server.raise_, machine, fence, ask, answered, waits)
            engine = process.engine
            if late_ns := machine.late_copy_ns() if first else 0:
                engine.at(engine.now_ns + late_ns, way.out, arrive)
                engine.at(engine.now_ns + 200 * MS, task.resume, wait, None)
            else:
                way.out(arrive)
                engine.unless(task, wait, WRITE_NS, task.resume, wait, None)

        return start

    def _ask(self, effect: Effect) -> Callable[[], Any]:
        """What is to be done at the ledger."""
        ledger, server = self._server.ledger, self._server
        match effect:
            case m.Probe():
                return server.wall
            case m.Raise(candidate):
                return partial(ledger.raise_fence, candidate, self._daemon.wall())
            case m.ReadPast(term):
                return partial(ledger.read_past, term)
            case m.Settle(term, settlement):
                return partial(ledger.settle, term, settlement)
            case m.Take(term, batch):
                return partial(ledger.take, term, batch)
            case m.Heartbeat(term, planned_to, known, _):
                return lambda: ledger.heartbeat(term, planned_to, known, server.wall())
            case m.WriteFinish(term, finish, _):
                return partial(ledger.finish, term, finish)
            case m.WritePutBack(term, back):
                return partial(ledger.put_back, term, back)
            case m.CloseTerm(term, reason):
                return partial(ledger.close_term, term, reason)
            case m.AnswerOrder(term, command_id, result):
                return partial(ledger.answer_order, term, command_id, result)
            case m.CarryOut(term, errand):
                return partial(ledger.carry_out, term, errand, self._daemon.wall())
        raise AssertionError(f"not the ledger's: {effect!r}")

    def _told(self, effect: Effect, a: Any, sent_ns: int) -> Event:
        """The answer, as the core hears it."""
        match effect:
            case m.Probe():
                asked = self._asked(sent_ns)
                return m.LedgerReached(None if asked is None else asked - a, sent_ns)
            case m.Raise(candidate):
                return m.Raised(candidate.nonce, a)
            case m.ReadPast(term):
                return m.PastRead(term.nonce, a)
            case m.Settle(term, _):
                return m.Settled(term.nonce, a)
            case m.Take(term, batch):
                return m.BatchAnswered(term.nonce, batch, a)
            case m.Heartbeat(term):
                return m.HeartbeatAnswered(term.nonce, a, self._asked(sent_ns), sent_ns)
            case m.WriteFinish(term, finish, _):
                return m.FinishAnswered(term.nonce, finish.run_id, a)
            case m.WritePutBack(term, back):
                return m.PutBackAnswered(term.nonce, back.run_id, a)
            case m.CloseTerm(term):
                return m.TermClosed(term.nonce, term.fence, a)
            case m.AnswerOrder(term, command_id):
                return m.OrderAnswered(term.nonce, command_id, a)
            case m.CarryOut(term, errand):
                return m.ErrandDone(term.nonce, errand.command_id, a)
        raise AssertionError(f"not the ledger's: {effect!r}")

    def _asked(self, sent_ns: int) -> Any:
        """Our wall clock halfway through a round trip that ends now; None if it took too long."""
        took_ns = self._daemon.boot_ns() - sent_ns
        return None if took_ns > COMPARABLE_NS else self._daemon.wall(-took_ns // 2)


def _insisted_on(effect: Effect) -> str | None:
    """The nonce for which it is sent again; None: it is tried once."""
    match effect:
        case m.Raise(candidate):
            return candidate.nonce
        case m.WriteFinish(once=True) | m.Probe() | m.CloseTerm():
            return None
        case m.ReadPast(t) | m.Settle(t) | m.Take(t) | m.Heartbeat(t):
            return t.nonce
        case m.WriteFinish(t) | m.WritePutBack(t) | m.AnswerOrder(t) | m.CarryOut(t):
            return t.nonce
    raise AssertionError(f"not the ledger's: {effect!r}")


def _waits(effect: m.Raise) -> m.RaiseWaits:
    return m.RaiseWaits(effect.candidate.nonce)


def _ordered(effect: Effect, order: Order | Asked) -> Event:
    """As read with a heartbeat."""
    assert isinstance(effect, m.Heartbeat)
    if isinstance(order, Order):
        return m.StepDown(effect.term.nonce, order.command_id, order.fence, order.for_ns)
    return m.Ordered(effect.term.nonce, order)


def _given_up(effect: Effect) -> Event | None:
    match effect:
        case m.WriteFinish(term, finish):
            return m.FinishAnswered(term.nonce, finish.run_id, None)
        case m.CloseTerm(term):
            return m.TermClosed(term.nonce, term.fence, None)
        case _:
            return None
