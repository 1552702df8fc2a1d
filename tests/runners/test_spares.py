"""Spare wrappers: as many as the largest batch seen lately needed, where the node leads."""

from __future__ import annotations

import asyncio
import os
import signal
import sys

import psutil
import pytest

from cron_leader.core.model import Run
from cron_leader.runners.demand import FEWER_AFTER_NS, LEAST, MOST, Demand
from tests.runners.stage import Prepared, RunEnded, Stage, run_of, shell, stage


def spares() -> set[int]:
    """Waiting wrappers; other children are servers that other tests' fixtures keep."""
    return {child.pid for child in psutil.Process().children() if _waits(child)}


def _waits(child: psutil.Process) -> bool:
    try:
        return any(word.endswith("wrapper.py") for word in child.cmdline())
    except psutil.Error:
        return False


async def until_spares(count: int) -> set[int]:
    async with asyncio.timeout(10):
        while len(spares()) != count:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
    return spares()


async def batch(s: Stage, size: int) -> set[int]:
    """Runs due at one instant, to their end; their processes."""
    runs = [run_of(shell("echo $$")) for _ in range(size)]
    for run in runs:
        s.runners.prepare(run)
    for run in runs:
        await s.until(Prepared, run)
        s.go(run)
    return {await pid_of(s, run) for run in runs}


async def pid_of(s: Stage, run: Run) -> int:
    return int((await s.until(RunEnded, run)).result.output or "")


async def test_two_jobs_due_together_both_find_a_process_ready() -> None:
    """`every = "1s"` and `* * * * *`, say, from the first minute of a term on."""
    async with stage(shell("true")) as s:
        s.runners.lead(True)
        ready = await until_spares(2)
        assert await batch(s, 2) == ready


async def test_as_many_as_the_last_large_batch_needed_stand_ready_for_the_next() -> None:
    async with stage(shell("true")) as s:
        s.runners.lead(True)
        await batch(s, 5)
        ready = await until_spares(5)
        assert len(await batch(s, 1) & ready) == 1
        ready = await until_spares(5)
        assert await batch(s, 5) == ready


async def test_the_stock_has_a_bound_whatever_falls_due_at_once() -> None:
    async with stage(shell("true")) as s:
        s.runners.lead(True)
        await batch(s, MOST + 2)
        await until_spares(MOST)
        await settled()
        assert len(spares()) == MOST
    assert not spares()


async def test_a_node_that_follows_or_lost_its_term_holds_one() -> None:
    async with stage(shell("true")) as s:
        s.runners.lead(False)
        await settled()
        assert len(spares()) == 1
        s.runners.lead(True)
        await batch(s, 4)
        await until_spares(4)
        s.runners.lead(False)
        await until_spares(1)


async def test_a_leader_without_commands_holds_none() -> None:
    async with stage() as s:
        s.runners.lead(True)
        await settled()
        assert not spares()


async def test_dead_spares_are_passed_over_and_replaced() -> None:
    async with stage(shell("true")) as s:
        s.runners.lead(True)
        dead = await until_spares(2)
        for pid in dead:
            os.kill(pid, signal.SIGKILL)
        await asyncio.gather(*(child.exited.wait() for child in s.runners._wrappers._spares))
        assert not await batch(s, 2) & dead
        assert not await until_spares(2) & dead


async def test_no_process_to_be_had_for_the_stock_is_tried_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with stage(shell("true")) as s:
        with monkeypatch.context() as m:
            m.setattr(sys, "executable", "/no/such/python")
            s.runners.lead(True)
            await settled()
            assert len(spares()) == 1
        s.runners.lead(True)
        await until_spares(2)


async def settled() -> None:
    """Longer than any timer of the stock; for claims that nothing happens."""
    await asyncio.sleep(0.2)


# ------------------------------------------------------------------ how many


def test_the_largest_batch_counts_within_its_bounds() -> None:
    demand = Demand(0)
    seen = []
    for size in (0, 1, 2, 3, 1, 7, 4, 64):
        demand.batch(size, 0)
        seen.append(demand.spares(0))
    assert seen == [LEAST, LEAST, LEAST, 3, 3, 7, 7, MOST]


def test_a_large_batch_is_forgotten_one_spare_at_a_time() -> None:
    demand = Demand(0)
    demand.batch(5, 0)
    by_stretch = [demand.spares(n * FEWER_AFTER_NS) for n in range(6)]
    assert by_stretch == [5, 4, 3, 2, 2, 2]
    assert demand.spares(FEWER_AFTER_NS - 1) == 5


def test_a_batch_as_large_as_is_remembered_keeps_it_remembered() -> None:
    hour_ns = 3_600_000_000_000
    demand = Demand(0)
    for hour in range(10):
        demand.batch(6, hour * hour_ns)
        demand.batch(1, hour * hour_ns + 1)
    assert demand.spares(10 * hour_ns) == 6
    demand.batch(4, 12 * hour_ns)  # 6 has become 4 by then, and 4 is seen again
    assert demand.spares(13 * hour_ns) == 4
