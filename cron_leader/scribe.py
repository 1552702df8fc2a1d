"""Carries the core's requests to the ledger, each sent until it has a definite answer.

A lost reply proves nothing, so the *same* request goes again; the ledger makes that harmless. A
term's requests are waited for until the term is abandoned; those marked once are tried once.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from datetime import datetime, timedelta
from typing import Any, TypeVar

from cron_leader.clock import Clock
from cron_leader.core import messages as m
from cron_leader.core.messages import Effect, Event
from cron_leader.core.model import Applied, Asked, Order, Refused
from cron_leader.errors import LedgerNotCommitted, LedgerUncertain, LedgerUnusable
from cron_leader.events import Emit
from cron_leader.ledger import Ledger
from cron_leader.ledger.targets import Targets

T = TypeVar("T")

RESEND_S = (0.05, 1.0)
"""First and longest pause between two sends of one request."""

COMPARABLE_S = 0.5
"""A ledger's answer that took longer tells too little of the time it was given at."""

_WRITES: Mapping[type[Effect], str] = {
    m.Raise: "raise",
    m.Settle: "settle",
    m.Take: "claim",
    m.Heartbeat: "heartbeat",
    m.WriteFinish: "finish",
    m.WritePutBack: "put_back",
    m.AnswerOrder: "command",
    m.CarryOut: "command",
    m.CloseTerm: "close_term",
}
"""What they are called in events, as in ledger.refused."""


class Scribe:
    """Performs the ledger's share of the effects; answers go to `post` as events."""

    def __init__(
        self,
        ledger: Ledger,
        *,
        post: Callable[[Event], None],
        clock: Clock,
        emit: Emit,
        targets: Targets | None = None,
    ) -> None:
        self._ledger, self._post, self._clock, self._emit = ledger, post, clock, emit
        self._targets = targets or Targets()
        self._terms: dict[str, asyncio.Event] = {}
        self._down = self._doubted = False
        self._failing: set[object] = set()
        """Requests whose last try got no answer."""

    def perform(self, effect: Effect) -> Coroutine[Any, Any, None]:
        """Carry out one effect of the ledger's; returns when it is answered or abandoned.

        Bound to its term here and not when the coroutine starts: an `abandon` between the two
        counts.
        """
        return self._perform(effect, self._end_of(effect))

    def abandon(self, nonce: str) -> None:
        """From now on nothing of this term is sent a second time."""
        if ended := self._terms.pop(nonce, None):
            ended.set()

    def _end_of(self, effect: Effect) -> asyncio.Event | None:
        """Set when nothing of the effect's term is waited for any more; None: it is tried once."""
        match effect:
            case m.Raise(candidate):
                nonce = candidate.nonce
            case m.ReadPast(term) | m.Settle(term) | m.Take(term) | m.Heartbeat(term):
                nonce = term.nonce
            case m.WriteFinish(term, _, once=False) | m.WritePutBack(term):
                nonce = term.nonce
            case m.AnswerOrder(term) | m.CarryOut(term):
                nonce = term.nonce
            case _:
                return None
        return self._terms.setdefault(nonce, asyncio.Event())

    async def _perform(self, effect: Effect, ended: asyncio.Event | None) -> None:
        match effect:
            case m.Probe():
                await self._probe()
            case m.Raise():
                await self._raise(effect, ended)
            case m.ReadPast(term):
                past = await self._insist(effect, ended, lambda: self._ledger.read_past(term))
                if past is not None:
                    self._post(m.PastRead(term.nonce, past))
            case m.Settle(term, settlement):
                rows = await self._insist(
                    effect, ended, lambda: self._ledger.settle(term, settlement)
                )
                if rows is not None:
                    self._post(m.Settled(term.nonce, rows))
            case m.Take(term, batch):
                taken = await self._insist(effect, ended, lambda: self._ledger.take(term, batch))
                if taken is not None:
                    self._post(m.BatchAnswered(term.nonce, batch, taken))
            case m.Heartbeat():
                await self._heartbeat(effect, ended)
            case m.WriteFinish():
                await self._finish(effect, ended)
            case m.WritePutBack(term, put_back):
                back = await self._insist(
                    effect, ended, lambda: self._ledger.put_back(term, put_back)
                )
                if back is not None:
                    self._post(m.PutBackAnswered(term.nonce, put_back.run_id, back))
            case m.AnswerOrder():
                await self._answer(effect, ended)
            case m.CarryOut():
                await self._carry_out(effect, ended)
            case m.CloseTerm():
                await self._close_term(effect)
            case _:
                raise AssertionError(f"not the ledger's: {effect!r}")

    # ------------------------------------------------------------------ one effect each

    async def _probe(self) -> None:
        try:
            await self._targets.probe()
            reached = await self._compare()
        except (LedgerUncertain, LedgerUnusable) as error:
            self._failed(error)
            permanent = isinstance(error, LedgerUnusable) and error.permanent
            self._post(m.LedgerFailed(str(error), permanent))
            return
        self._reached()
        self._post(reached)

    async def _compare(self) -> m.LedgerReached:
        """Our wall clock with the ledger's, where that is another one."""
        sent, sent_ns = self._clock.wall(), self._clock.boot_ns()
        theirs = await self._ledger.clock()
        asked = self._halfway(sent, sent_ns)
        if theirs is None or asked is None:
            return m.LedgerReached()
        return m.LedgerReached(asked - theirs, sent_ns)

    def _halfway(self, sent: datetime, sent_ns: int) -> datetime | None:
        """The middle of a round trip that ends now, by the wall clock of its start, which may have
        been set since; None if it took too long to tell."""
        took_ns = self._clock.boot_ns() - sent_ns
        if took_ns > COMPARABLE_S * 1e9:
            return None
        return sent + timedelta(microseconds=took_ns // 2000)

    async def _raise(self, effect: m.Raise, ended: asyncio.Event | None) -> None:
        candidate, now = effect.candidate, self._clock.wall()
        waits = m.RaiseWaits(candidate.nonce)

        def waiting() -> None:
            self._post(waits)

        async def send() -> int | Refused:
            """The ledger first: it alone knows the fence. One that is raised may be raised again,
            so a target that did not answer is asked again together with it."""
            fence = await self._ledger.raise_fence(candidate, now, waiting=waiting)
            if isinstance(fence, Refused):
                return fence
            refused = await self._targets.raise_fence(candidate, fence, now, waiting=waiting)
            return refused or fence

        answer = await self._insist(effect, ended, send)
        if answer is not None:
            self._post(m.Raised(candidate.nonce, answer))

    async def _heartbeat(self, effect: m.Heartbeat, ended: asyncio.Event | None) -> None:
        term, now = effect.term, self._clock.wall()
        sent = (now, self._clock.boot_ns())

        async def send() -> Applied | Refused:
            nonlocal sent
            sent = (self._clock.wall(), self._clock.boot_ns())
            return await self._ledger.heartbeat(
                term, effect.planned_to, now, known=effect.known, runs=effect.runs
            )

        answer = await self._insist(effect, ended, send)
        if answer is not None:
            asked = self._halfway(*sent)
            self._post(m.HeartbeatAnswered(term.nonce, answer, asked, sent[1]))
            for order in answer.orders if isinstance(answer, Applied) else ():
                self._post(_ordered(term.nonce, order))

    async def _answer(self, effect: m.AnswerOrder, ended: asyncio.Event | None) -> None:
        term, command_id, now = effect.term, effect.command_id, self._clock.wall()
        answer = await self._insist(
            effect,
            ended,
            lambda: self._ledger.answer_order(term, command_id, effect.result, now),
        )
        if answer is not None:
            self._post(m.OrderAnswered(term.nonce, command_id, answer))

    async def _carry_out(self, effect: m.CarryOut, ended: asyncio.Event | None) -> None:
        term, errand, now = effect.term, effect.errand, self._clock.wall()
        answer = await self._insist(
            effect, ended, lambda: self._ledger.carry_out(term, errand, now)
        )
        if answer is not None:
            self._post(m.ErrandDone(term.nonce, errand.command_id, answer))

    async def _finish(self, effect: m.WriteFinish, ended: asyncio.Event | None) -> None:
        term, finish = effect.term, effect.finish
        answer = await self._insist(effect, ended, lambda: self._ledger.finish(term, finish))
        self._post(m.FinishAnswered(term.nonce, finish.run_id, answer))

    async def _close_term(self, effect: m.CloseTerm) -> None:
        term, now = effect.term, self._clock.wall()
        answer = await self._insist(
            effect, None, lambda: self._ledger.close_term(term, effect.reason, now)
        )
        self._post(m.TermClosed(term.nonce, term.fence, answer))

    # ------------------------------------------------------------------ sending

    async def _insist(
        self, effect: Effect, ended: asyncio.Event | None, send: Callable[[], Awaitable[T]]
    ) -> T | None:
        """The definite answer; None if the term was abandoned, or the one try failed, without.

        ended None: try once.
        """
        try:
            return await self._send_on(effect, ended, send)
        finally:
            self._failing.discard(send)

    async def _send_on(
        self, effect: Effect, ended: asyncio.Event | None, send: Callable[[], Awaitable[T]]
    ) -> T | None:
        pause_s = RESEND_S[0]
        while True:
            try:
                answer = await send()
            except (LedgerUncertain, LedgerUnusable) as error:
                self._failing.add(send)
                if self._failed(error):
                    self._post(m.LedgerFailed(str(error)))
                self._doubt(effect, error)
            else:
                self._failing.discard(send)
                if self._reached():
                    self._post(m.LedgerReached())
                return answer
            if ended is None or ended.is_set():
                return None
            try:
                await asyncio.wait_for(ended.wait(), pause_s)
            except TimeoutError:
                pause_s = min(2 * pause_s, RESEND_S[1])
            else:
                return None

    def _failed(self, error: LedgerUncertain | LedgerUnusable) -> bool:
        """Say so once per outage; whether this is its start."""
        first, self._down = not self._down, True
        if first:
            self._emit("ledger.unreachable", error=str(error))
        return first

    def _doubt(self, effect: Effect, error: LedgerUncertain | LedgerUnusable) -> None:
        """Say, once per outage, of a write that it may have been carried out, or may yet be."""
        what = _WRITES.get(type(effect))
        known = isinstance(error, LedgerUnusable | LedgerNotCommitted)
        if what is None or known or self._doubted:
            return
        self._doubted = True
        self._emit("ledger.uncertain", what=what, error=str(error))

    def _reached(self) -> bool:
        """Say so once per outage; whether this is its end. It is none while other requests still
        fail: reads may be answered on a full disk, heartbeats with a locked table."""
        back = self._down and not self._failing
        if back:
            self._down = self._doubted = False
            self._emit("ledger.back")
        return back


def _ordered(nonce: str, order: Order | Asked) -> Event:
    if isinstance(order, Order):
        return m.StepDown(nonce, order.command_id, order.fence, order.for_ns)
    return m.Ordered(nonce, order)
