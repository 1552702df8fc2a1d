"""Operators' orders: written by anybody, read with a heartbeat, answered once under the fence."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from datetime import timedelta

import pytest

from cron_leader.core.model import Applied, CommandResult, Order, Refused
from tests.ledger.kit import T0, Killed, Lab, Leader, at, dying_after, order, settlement

DOWN = CommandResult.STEPPING_DOWN


async def orders(leader: Leader) -> tuple[Order, ...]:
    """What the next heartbeat brings."""
    answer = await leader.ledger.heartbeat(leader.term, at(1), at(1))
    assert isinstance(answer, Applied)
    assert answer.changed
    return answer.orders


async def answer(leader: Leader, result: CommandResult = DOWN) -> Applied | Refused:
    return await leader.ledger.answer_order(leader.term, "order-1", result, at(2))


async def test_an_order_comes_with_the_heartbeat_until_it_is_answered(lab: Lab) -> None:
    leader = await lab.leader(past=settlement())
    assert await orders(leader) == ()
    lab.give(order(leader.fence, 90))
    wanted = (Order("order-1", leader.fence, 90 * 10**9),)
    assert await orders(leader) == wanted
    assert await orders(leader) == wanted
    await answer(leader)
    assert await orders(leader) == ()


async def test_an_order_sent_again_is_still_one_and_is_kept_as_it_was_written(lab: Lab) -> None:
    leader = await lab.leader(past=settlement())
    row = lab.give(order(leader.fence))
    lab.give(replace(row, why="another"))
    assert lab.read().commands() == (row,)
    assert lab.read().commands(id="order-2") == ()


async def test_an_answer_is_written_once_and_its_resend_answers_the_same(lab: Lab) -> None:
    leader = await lab.leader(past=settlement())
    row = lab.give(order(leader.fence))
    for _ in range(2):
        answered = await answer(leader)
        assert isinstance(answered, Applied)
        assert answered.changed
    assert lab.read().commands() == (replace(row, done_by_fence=leader.fence, result=DOWN.value),)


async def test_an_order_somebody_else_answered_is_not_ours(lab: Lab) -> None:
    old = await lab.leader(past=settlement())
    row = lab.give(order(old.fence))
    await answer(old)
    new = await lab.leader("b", past=settlement())
    assert await orders(new) == ()
    answered = await answer(new)
    assert isinstance(answered, Applied)
    assert not answered.changed
    assert lab.read().commands() == (replace(row, done_by_fence=old.fence, result=DOWN.value),)


async def test_two_answers_at_once_are_one(lab: Lab) -> None:
    leader = await lab.leader(past=settlement())
    twin = Leader(await lab.ledger(), leader.candidate)
    lab.give(order(leader.fence))
    answers = await asyncio.gather(answer(leader), answer(twin, CommandResult.NOT_UNDERSTOOD))
    assert sorted(a.changed for a in answers if isinstance(a, Applied)) == [False, True]


async def test_a_deposed_leader_answers_nothing_and_the_next_one_sees_the_order(lab: Lab) -> None:
    old = await lab.leader(past=settlement())
    row = lab.give(order(old.fence))
    new = await lab.leader("b", past=settlement())
    assert await answer(old) == Refused("command", new.fence)
    assert lab.read().commands() == (row,)
    assert await orders(new) == (Order("order-1", old.fence, 60 * 10**9),)


async def test_an_answer_cut_at_any_statement_is_whole_when_sent_again(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    leader = await lab.leader(past=settlement())
    row, killed = lab.give(order(leader.fence)), 0
    while True:
        with dying_after(killed, monkeypatch):
            try:
                answered = await answer(leader)
                break
            except Killed:
                killed += 1
        assert lab.read().commands() == (row,)
    assert killed >= 2
    assert isinstance(answered, Applied)
    assert answered.changed


async def test_orders_of_other_elections_and_of_kinds_not_known_are_not_brought(lab: Lab) -> None:
    leader = await lab.leader(past=settlement())
    lab.give(order(leader.fence, id="1", target="default/1"))
    lab.give(order(leader.fence, id="2", kind="dance"))
    assert await orders(leader) == ()


async def test_orders_come_oldest_first(lab: Lab) -> None:
    leader = await lab.leader(past=settlement())
    lab.give(order(leader.fence, id="a", at=T0 + timedelta(seconds=1)))
    lab.give(order(leader.fence, id="b"))
    assert [o.command_id for o in await orders(leader)] == ["b", "a"]


@pytest.mark.parametrize(
    "args",
    [
        "", "{", "[]", "{}", "null", "[" * 100_000, '{"fence": 100}', '{"for_s": 1}',
        '{"fence": "100", "for_s": 1}', '{"fence": 100, "for_s": "1"}',
        '{"fence": 100, "for_s": -1}', '{"fence": 100, "for_s": NaN}',
        '{"fence": 100, "for_s": Infinity}', '{"fence": 100, "for_s": 1e9}',
        '{"fence": 1' + "0" * 5000 + ', "for_s": 1}',
    ],
    ids=lambda args: args[:30],
)  # fmt: skip
async def test_an_order_that_cannot_be_read_is_brought_as_such_and_stops_no_heartbeat(
    lab: Lab, args: str
) -> None:
    leader = await lab.leader(past=settlement())
    lab.give(order(leader.fence, args=args))
    assert await orders(leader) == (Order("order-1", None),)


async def test_a_term_that_is_not_there_has_no_heartbeat_to_bring_orders(lab: Lab) -> None:
    leader = await lab.leader()  # raised, not settled
    lab.give(order(leader.fence))
    answered = await leader.ledger.heartbeat(leader.term, at(1), at(1))
    assert isinstance(answered, Applied)
    assert (answered.changed, answered.orders) == (False, ())
