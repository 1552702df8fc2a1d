"""Python runs of a leader find a process forked ahead, as commands find a wrapper."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import psutil

from cron_leader.core.model import Job
from tests.runners.stage import Stage, open_fds, python, stage, vanished

JOB = python("ahead:pid")
MODULE = "import os\ndef pid(tick): print(os.getpid())\n"


@asynccontextmanager
async def leading(folder: Path) -> AsyncIterator[Stage]:
    (folder / "ahead.py").write_text(MODULE)
    async with stage(JOB, base=folder) as s:
        s.runners.lead(True)
        yield s


def host_of(s: Stage) -> psutil.Process:
    host = s.runners._python._host
    assert host is not None
    return psutil.Process(host._process.pid)


async def forked(s: Stage, count: int) -> set[int]:
    """So many stand ready, all of them known to us."""
    host = s.runners._python._host
    assert host is not None
    async with asyncio.timeout(10):
        while host.spares != count or s.runners._python._stocking is not None:
            s.runners.lead(count > 0)
            await asyncio.sleep(0.01)
    return {child.pid for child in host_of(s).children()}


async def died(s: Stage) -> None:
    """Until the daemon's side knows that the oldest spare has ended: before, a run that is given it
    is not started, and put back."""
    host = s.runners._python._host
    assert host is not None
    await host._spares[0].exited.wait()


async def ran_in(s: Stage, job: Job = JOB) -> int:
    return int((await s.play(job)).output or "")


async def test_a_python_run_of_a_leader_finds_a_process_forked_ahead(tmp_path: Path) -> None:
    async with leading(tmp_path) as s:
        ready = await forked(s, 2)
        first = await ran_in(s)
        assert first in ready
        again = await forked(s, 2)
        assert first not in again
        assert await ran_in(s) in again


async def test_a_spare_that_has_died_is_passed_over(tmp_path: Path) -> None:
    async with leading(tmp_path) as s:
        ready = await forked(s, 2)
        host = s.runners._python._host
        assert host is not None
        dead = host._spares[0].pid
        os.kill(dead, signal.SIGKILL)
        await died(s)
        assert await ran_in(s) in ready - {dead}


async def test_who_does_not_lead_has_none_and_a_host_takes_its_own_along(tmp_path: Path) -> None:
    before = open_fds()
    async with leading(tmp_path) as s:
        await forked(s, 2)
        assert await forked(s, 0) == set()
        ready = await forked(s, 2)
        host = s.runners._python._host
        assert host is not None
        host_of(s).kill()
        await host.died.wait()
        for pid in ready:
            assert await vanished(pid)
        assert await ran_in(s) not in ready
    assert open_fds() == before


async def test_a_run_as_another_user_has_nothing_forked_ahead(tmp_path: Path) -> None:
    async with leading(tmp_path) as s:
        ready = await forked(s, 2)
        user = str(os.geteuid())
        assert await ran_in(s, python("ahead:pid", user=user)) not in ready
