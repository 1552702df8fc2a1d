"""A receiver's quota is spent on what this leader has to tell, and on nothing else."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from cron_leader.config import NotifyConfig, On, Quota
from cron_leader.core.model import Claim, State
from cron_leader.events import timestamp
from cron_leader.notices import Notices
from tests.kit import until
from tests.ledger.kit import Lab, Leader, at, settlement, slot

S = 1_000_000_000


@dataclass
class Hand:
    """A clock that is moved by hand."""

    boot_s: float = 0

    def wall(self) -> datetime:
        return at(10)

    def boot_ns(self) -> int:
        return int(self.boot_s * S)


class Receiver:
    """What it is told is written to files, in turn."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def rule(self, quota: Quota) -> NotifyConfig:
        told = ("sh", "-c", "cat > $$.part && mv $$.part $$.told")
        place = str(self._folder)
        return NotifyConfig(frozenset({On.FAILURE}), (), None, told, None, quota, None, place)

    def got(self) -> list[dict[str, Any]]:
        read = [json.loads(path.read_text()) for path in self._folder.glob("*.told")]
        return sorted(read, key=lambda notice: notice["scheduled_for"])

    def slots(self) -> list[str]:
        return [notice["scheduled_for"] for notice in self.got()]


@asynccontextmanager
async def posting(leader: Leader, rule: NotifyConfig, clock: Hand) -> AsyncIterator[Notices]:
    """The notices of a leader, on their way."""
    notices = Notices(
        (rule,),
        leader.ledger,
        leading=lambda: leader.term,
        clock=clock,
        emit=lambda event, **fields: None,
    )
    sending = asyncio.create_task(notices.run())
    try:
        yield notices
    finally:
        sending.cancel()
        await asyncio.wait([sending])


def failed(seconds: float) -> dict[str, Any]:
    """The event of a run of the slot at `seconds`."""
    return {
        "event": "run.finished",
        "ts": timestamp(at(10)),
        "job": "job",
        "scheduled_for": timestamp(at(seconds)),
        "attempt": 1,
        "outcome": "failed",
    }


async def test_what_is_beyond_the_quota_is_counted_in_the_next_notice(
    lab: Lab, tmp_path: Path
) -> None:
    receiver, clock = Receiver(tmp_path), Hand()
    leader = await lab.leader(past=settlement())
    async with posting(leader, receiver.rule(Quota(1, 60.0)), clock) as notices:
        for seconds in (1, 2, 3):
            notices.see(failed(seconds))
        await until("the first is told", lambda: len(receiver.got()) == 1)
        (bucket,) = notices._buckets.values()
        await until("the others are judged", lambda: bucket.suppressed == 2)
        clock.boot_s = 60
        notices.see(failed(4))
        await until("the last is told", lambda: len(receiver.got()) == 2)
    assert receiver.slots() == [timestamp(at(1)), timestamp(at(4))]
    assert [notice["suppressed"] for notice in receiver.got()] == [0, 2]


async def test_what_the_leader_before_has_told_spends_no_quota(lab: Lab, tmp_path: Path) -> None:
    receiver, clock = Receiver(tmp_path), Hand()
    rule = receiver.rule(Quota(1, 3600.0))
    old = await lab.leader(past=settlement())
    for seconds in (1, 2):
        claim = Claim(slot(seconds), f"run-{seconds}")
        await old.take(claim)
        await old.finish(claim, state=State.FAILED)
    async with posting(old, rule, clock) as notices:
        notices.see(failed(1))
        await until("it is told", lambda: receiver.slots() == [timestamp(at(1))])
    new = await lab.leader("b", past=settlement())
    async with posting(new, rule, clock):
        await until("the new one tells the other", lambda: len(receiver.got()) == 2)
    assert receiver.slots() == [timestamp(at(1)), timestamp(at(2))]
    assert [notice["suppressed"] for notice in receiver.got()] == [0, 0]
