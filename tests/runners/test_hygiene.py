"""What runs leave behind (nothing), what they cost, and what outlives a dead daemon (nothing)."""

from __future__ import annotations

import asyncio
import os
import signal
import statistics
import subprocess
import sys
import threading
import time
from pathlib import Path

import psutil
import pytest

from tests.runners.stage import (
    Prepared,
    RunEnded,
    Stage,
    Started,
    command,
    open_fds,
    python,
    run_of,
    shell,
    stage,
    vanished,
    written,
)


async def test_a_hundred_runs_leave_no_descriptor_task_thread_or_zombie(tmp_path: Path) -> None:
    (tmp_path / "tidy.py").write_text("def f(tick): pass\n")
    jobs = [shell("true"), shell("sleep 600 & exit 3"), command("nope"), python("tidy:f")]
    others = set(psutil.Process().children())  # servers of other tests' fixtures
    async with stage(*jobs, base=tmp_path) as s:
        await several(s, jobs)
        await asyncio.sleep(0.1)  # the spare is back
        before = footprint()
        for _ in range(24):
            await several(s, jobs)
        await asyncio.sleep(0.1)
        after = footprint()  # fewer spares, if anything
        assert all(a <= b for a, b in zip(after, before, strict=True)), (after, before)
    assert set(psutil.Process().children()) <= others


async def test_runs_end_where_the_kernel_or_the_container_has_no_pidfd(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delattr(os, "pidfd_open")
    (tmp_path / "tidy.py").write_text("def f(tick): pass\n")
    jobs = [shell("exit 3"), shell("exec sleep 600", timeout_s=0.2), python("tidy:f")]
    async with stage(*jobs, base=tmp_path) as s:
        codes = [(await s.play(job)).exit_code for job in jobs]
    assert codes == [3, 143, 0]


async def several(s: Stage, jobs: list) -> None:  # type: ignore[type-arg]
    runs = [run_of(job) for job in jobs]
    for run in runs:
        s.runners.prepare(run)
    for run in runs:
        await s.until(Prepared, run)
        s.go(run)
    for run in runs:
        await s.result(run)
    s.events.clear()


def footprint() -> tuple[int, int, int, int]:
    children = psutil.Process().children(recursive=True)
    return open_fds(), len(asyncio.all_tasks()), threading.active_count(), len(children)


async def test_prepare_and_go_cost_at_most_a_few_milliseconds() -> None:
    """The best of ten says what the code costs, the others what else the machine does."""
    took = []
    async with stage(command("true")) as s:
        for _ in range(10):
            await asyncio.sleep(0.2)  # a warm spare
            run = run_of(command("true"))
            begun = time.perf_counter()
            s.runners.prepare(run)
            await s.until(Prepared, run)
            s.go(run)
            await s.until(Started, run)
            took.append(time.perf_counter() - begun)
            await s.until(RunEnded, run)
    print(f"prepare + go: median {statistics.median(took) * 1e3:.2f} ms")
    assert min(took) < 0.010


def start_daemon(script: str, log: Path) -> subprocess.Popen[bytes]:
    with log.open("w") as stdout:
        return subprocess.Popen([sys.executable, "-c", script], stdout=stdout)


DAEMON = """
import asyncio, sys
sys.path.insert(0, {root!r})
from tests.runners.stage import *
async def main():
    async with stage(python("slow:f"), base=__import__("pathlib").Path({folder!r})) as s:
        sleeps = shell("exec sleep 600", user={user})
        runs = [await s.begin(sleeps), await s.begin(python("slow:f"))]
        waiting = run_of(shell("true"))
        s.runners.prepare(waiting)
        await s.until(Prepared, waiting)
        s.runners._wrappers.stock()
        print("up", flush=True)
        await asyncio.sleep(600)
asyncio.run(main())
"""


async def test_nothing_outlives_a_daemon_that_is_killed(tmp_path: Path) -> None:
    """Runs, a waiting wrapper, the spare, the job host: the kernel ends them, unsupervised too;
    and a run as another user, though the kernel forgets its parent when the user changes."""
    (tmp_path / "slow.py").write_text("import time\ndef f(tick): time.sleep(600)\n")
    root = str(Path(__file__).parents[2])
    user = "nobody" if os.geteuid() == 0 else None
    script = DAEMON.format(root=root, folder=str(tmp_path), user=repr(user))
    daemon = start_daemon(script, tmp_path / "log")
    try:
        await written(tmp_path / "log")
        brood = [child.pid for child in psutil.Process(daemon.pid).children(recursive=True)]
        assert len(brood) == 5
    finally:
        os.kill(daemon.pid, signal.SIGKILL)
        daemon.wait()
    assert [await vanished(pid) for pid in brood] == [True] * 5
