"""A run and the supervisor: it is registered before it may exec, and forgotten once gone."""

from __future__ import annotations

import asyncio
from typing import Any

from cron_leader.core.model import OnLostLeadership
from tests.runners.stage import (
    NotStarted,
    Prepared,
    RunEnded,
    SupervisorSilent,
    alive,
    run_of,
    shell,
    stage,
    stat_of,
    vanished,
)


class Supervisor:
    """Remembers what it is told; acknowledges once `answer` is set, or refuses at once."""

    def __init__(self, *, acknowledges: bool = True) -> None:
        self.acknowledges = acknowledges
        self.told: dict[str, Any] = {}
        self.forgotten: list[str] = []
        self.alive_at_end: list[bool] = []
        self.answer = asyncio.Event()
        self.asked = asyncio.Event()

    async def register(
        self, run_id: str, pgid: int, start: int, *, may_finish: bool, timeout_s: float
    ) -> bool:
        self.told = {"run_id": run_id, "pgid": pgid, "start": start, "may_finish": may_finish}
        self.told["timeout_s"] = timeout_s
        self.asked.set()
        if not self.acknowledges:
            return False
        await self.answer.wait()
        return True

    def ended(self, run_id: str) -> None:
        self.forgotten.append(run_id)
        self.alive_at_end.append(alive(self.told["pgid"]))


async def test_a_run_is_registered_before_it_counts_as_prepared() -> None:
    link = Supervisor()
    run = run_of(shell("true", on_lost_leadership=OnLostLeadership.FINISH))
    async with stage(link=link, ack_timeout_s=0.7) as s:
        s.runners.prepare(run)
        await link.asked.wait()
        assert s.events == []
        link.answer.set()
        await s.until(Prepared, run)
        stat = stat_of(link.told["pgid"])
        s.go(run)
        await s.until(RunEnded, run)
        assert link.forgotten == [run.run_id]
    assert link.told == {
        "run_id": run.run_id,
        "pgid": int(stat[2]),
        "start": int(stat[19]),
        "may_finish": True,
        "timeout_s": 0.7,
    }
    assert stat[2] == stat[3], "leader of its group and of its session"
    assert link.alive_at_end == [False]


async def test_a_run_the_supervisor_does_not_acknowledge_is_not_started() -> None:
    link = Supervisor(acknowledges=False)
    run = run_of(shell("true"))
    async with stage(link=link) as s:
        s.runners.prepare(run)
        await s.until((SupervisorSilent, Prepared))
        assert s.kinds(run) == [NotStarted]
        assert await vanished(link.told["pgid"])


async def test_a_run_dropped_while_it_is_being_registered_is_never_prepared() -> None:
    link = Supervisor()
    run = run_of(shell("true"))
    async with stage(link=link) as s:
        s.runners.prepare(run)
        await link.asked.wait()
        s.runners.drop(run.run_id)
        link.answer.set()
        await s.until(NotStarted, run)
    assert s.kinds(run) == [NotStarted]
