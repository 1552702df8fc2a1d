"""Requests to the ledger: sent until answered, and no longer than their term is waited for."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from typing import Any

import pytest

from cron_leader.clock import SystemClock
from cron_leader.core import messages as m
from cron_leader.core.model import (
    Applied,
    Batch,
    Candidate,
    CommandResult,
    Finish,
    Order,
    Refused,
    Result,
    SlotKey,
    State,
    Term,
)
from cron_leader.errors import LedgerNotCommitted, LedgerUncertain, LedgerUnusable
from cron_leader.scribe import Scribe
from tests.etcd_kit import Emitted, Recorder

T0 = datetime(2026, 12, 1, tzinfo=UTC)
TERM = Term("fleet/0", 7, "nonce", "a", 1, T0)
RESULT = Result(0, False, None, None, T0, 1)
FINISH = Finish(SlotKey("beat", T0), 1, "run", State.SUCCEEDED, State.SUCCEEDED, None, RESULT)
OF_A_TERM = (
    m.Raise(Candidate("fleet/0", "nonce", "a", 1, 7, 99)),
    m.ReadPast(TERM),
    m.Take(TERM, Batch((), (), T0, T0)),
    m.Heartbeat(TERM, T0, T0),
    m.AnswerOrder(TERM, "order-1", CommandResult.STEPPING_DOWN),
    m.WriteFinish(TERM, FINISH, once=False),
)


class Away:
    """A ledger that cannot be reached, or answers as told; counts what it was asked."""

    def __init__(self, error: Exception | None = None) -> None:
        self.error: Exception | None = error or LedgerNotCommitted("away")
        self.answer: object = Applied()
        self.asked = 0
        self.news = asyncio.Event()

    def __getattr__(self, name: str) -> Callable[..., Awaitable[Any]]:
        async def ask(*args: object, **kwargs: object) -> object:
            self.asked += 1
            self.news.set()
            if self.error is not None:
                raise self.error
            return self.answer

        return ask


class Desk:
    """A scribe, its ledger, and what it reports."""

    def __init__(self, error: Exception | None = None) -> None:
        self.ledger, self.emit, self.reports = Away(error), Emitted(), Recorder()
        self.scribe = Scribe(
            self.ledger,  # type: ignore[arg-type]
            post=self.reports,
            clock=SystemClock(),
            emit=self.emit,
        )


async def test_a_request_is_sent_until_it_is_answered_and_the_outage_is_told_once() -> None:
    desk = Desk()
    work = asyncio.create_task(desk.scribe.perform(m.WriteFinish(TERM, FINISH, once=False)))
    while desk.ledger.asked < 3:
        desk.ledger.news.clear()
        await desk.ledger.news.wait()
    desk.ledger.error = None
    await work
    kinds = [type(event) for event in desk.reports.events]
    assert kinds == [m.LedgerFailed, m.LedgerReached, m.FinishAnswered]
    assert desk.emit.names() == ["ledger.unreachable", "ledger.back"]


@pytest.mark.parametrize(
    ("error", "told"),
    [
        (LedgerUncertain("broken off"), ["ledger.unreachable", "ledger.uncertain"]),
        (LedgerNotCommitted("nobody listens"), ["ledger.unreachable"]),
        (LedgerUnusable("the disk is full", permanent=False), ["ledger.unreachable"]),
    ],
)
async def test_a_write_whose_outcome_is_unknown_is_told_once_before_it_is_sent_again(
    error: Exception, told: list[str]
) -> None:
    desk = Desk(error)
    work = asyncio.create_task(desk.scribe.perform(m.Take(TERM, Batch((), (), T0, T0))))
    await desk.ledger.news.wait()
    await asyncio.sleep(0)
    assert desk.emit.names() == told
    assert {fields.get("what") for _, fields in desk.emit.lines[1:]} <= {"claim"}
    await desk.scribe.perform(m.CloseTerm(TERM, "deadline"))
    while desk.ledger.asked < 3:
        desk.ledger.news.clear()
        await desk.ledger.news.wait()
    assert desk.emit.names() == told
    desk.ledger.error = None
    await work
    desk.ledger.error = error
    await desk.scribe.perform(m.CloseTerm(TERM, "deadline"))
    assert desk.emit.names() == [*told, "ledger.back", *told]


async def test_a_read_without_an_answer_leaves_nothing_uncertain() -> None:
    desk = Desk(LedgerUncertain("broken off"))
    await desk.scribe.perform(m.Probe())
    work = asyncio.create_task(desk.scribe.perform(m.ReadPast(TERM)))
    await asyncio.sleep(0)
    desk.scribe.abandon("nonce")
    await work
    assert desk.emit.names() == ["ledger.unreachable"]


@pytest.mark.parametrize("effect", OF_A_TERM, ids=lambda e: type(e).__name__)
async def test_a_term_abandoned_before_its_request_has_begun_is_not_waited_for(
    effect: m.Effect,
) -> None:
    desk = Desk()
    work = asyncio.create_task(desk.scribe.perform(effect))
    desk.scribe.abandon("nonce")
    async with asyncio.timeout(5):
        await work
    assert desk.ledger.asked <= 1
    assert not desk.scribe._terms


@pytest.mark.parametrize(
    "effect", [m.WriteFinish(TERM, FINISH, once=True), m.CloseTerm(TERM, "deadline")]
)
async def test_what_is_tried_once_is_tried_once_and_leaves_nothing_behind(
    effect: m.Effect,
) -> None:
    desk = Desk()
    await desk.scribe.perform(effect)
    assert desk.ledger.asked == 1
    answers = (m.FinishAnswered("nonce", "run", None), m.TermClosed("nonce", TERM.fence, None))
    assert desk.reports.events[-1] in answers
    assert not desk.scribe._terms


async def test_orders_read_with_a_heartbeat_follow_its_answer_as_events() -> None:
    desk = Desk()
    desk.ledger.error = None
    desk.ledger.answer = Applied(orders=(Order("order-1", 7, 60), Order("order-2", None)))
    await desk.scribe.perform(m.Heartbeat(TERM, T0, T0))
    beat, *orders = desk.reports.events
    assert isinstance(beat, m.HeartbeatAnswered)
    assert orders == [
        m.StepDown("nonce", "order-1", 7, 60),
        m.StepDown("nonce", "order-2", None, 0),
    ]


async def test_a_refused_answer_to_an_order_is_reported() -> None:
    desk = Desk()
    desk.ledger.error, desk.ledger.answer = None, Refused("command", 9)
    await desk.scribe.perform(m.AnswerOrder(TERM, "order-1", CommandResult.NOT_LEADING))
    assert desk.reports.events == [m.OrderAnswered("nonce", "order-1", Refused("command", 9))]


@pytest.mark.parametrize(
    ("error", "permanent"),
    [
        (LedgerUncertain("away"), False),
        (LedgerUnusable("the disk is full", permanent=False), False),
        (LedgerUnusable("wrong password"), True),
    ],
)
async def test_a_probe_says_whether_a_person_must_act(error: Exception, permanent: bool) -> None:
    desk = Desk(error)
    await desk.scribe.perform(m.Probe())
    (failed,) = desk.reports.of(m.LedgerFailed)
    assert failed.permanent is permanent


async def test_an_outage_lasts_while_one_request_still_fails_though_others_are_answered() -> None:
    """As with a locked table or a full disk: reads and heartbeats prove nothing then."""
    desk = Desk()
    claim = asyncio.create_task(desk.scribe.perform(m.Take(TERM, Batch((), (), T0, T0))))
    await desk.ledger.news.wait()
    await asyncio.sleep(0)

    async def answered(*_: object, **__: object) -> Applied:
        return Applied()

    desk.ledger.heartbeat = answered  # type: ignore[method-assign, assignment]
    await desk.scribe.perform(m.Heartbeat(TERM, T0, T0))
    assert desk.emit.names() == ["ledger.unreachable"]
    assert not desk.reports.of(m.LedgerReached)
    desk.ledger.error = None
    await claim
    assert desk.emit.names() == ["ledger.unreachable", "ledger.back"]
    assert len(desk.reports.of(m.LedgerReached)) == 1
