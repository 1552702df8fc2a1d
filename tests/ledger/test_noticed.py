"""Notices are taken once, under the fence; what failed of late is found by the next leader."""

from __future__ import annotations

import asyncio

from cron_leader.core.model import Applied, Claim, Entry, Refused, State
from cron_leader.ledger.noticed import Failed
from tests.ledger.kit import ELECTION, T0, Lab, Leader, at, settlement, slot


async def take(leader: Leader, key: str = "k", seconds: float = 1) -> bool | Refused:
    answer = await leader.ledger.put_notice(leader.term, key, at(seconds))
    return answer.changed if isinstance(answer, Applied) else answer


async def test_a_notice_is_taken_once_and_its_resend_says_the_same(lab: Lab) -> None:
    leader = await lab.leader(past=settlement())
    assert [await take(leader) for _ in range(2)] == [True, True]
    assert await take(leader, seconds=2) is False
    assert await take(leader, "other", seconds=2) is True


async def test_a_notice_of_an_older_term_is_not_taken_again(lab: Lab) -> None:
    old = await lab.leader(past=settlement())
    await take(old)
    new = await lab.leader("b", past=settlement())
    assert await take(new) is False
    assert await take(old, "late") == Refused("notice", new.fence)
    assert await take(new, "late") is True


async def test_of_two_takers_at_once_one_has_it(lab: Lab) -> None:
    leader = await lab.leader(past=settlement())
    twin = Leader(await lab.ledger(), leader.candidate)
    taken = await asyncio.gather(take(leader, seconds=1), take(twin, seconds=2))
    assert sorted(map(bool, taken)) == [False, True]


async def test_what_failed_and_has_not_recovered_is_found_oldest_first(lab: Lab) -> None:
    leader = await lab.leader(past=settlement(jobs=("job", "mended")))
    for seconds, job, state in (
        (1, "job", State.SUCCEEDED),
        (2, "job", State.TIMED_OUT),
        (3, "job", State.FAILED),
        (4, "mended", State.FAILED),
        (5, "mended", State.SUCCEEDED),
    ):
        claim = Claim(slot(seconds, job), f"run-{seconds}")
        await leader.take(claim)
        await leader.finish(claim, state=state)
    await leader.take(entries=(Entry(slot(6), State.MISSED),))
    await leader.take(Claim(slot(7), "run-7"))
    found = await leader.ledger.failing(ELECTION, T0)
    assert found == [
        Failed("job", at(2), 1, "timed_out", None, "a", at(1)),
        Failed("job", at(3), 1, "failed", None, "a", at(1)),
    ]
    assert await leader.ledger.failing(ELECTION, at(2)) == found[1:]
    assert await leader.ledger.failing("other/0", T0) == []
