"""A stage to let runs play on: real processes, every report kept and waited for."""

from __future__ import annotations

import asyncio
import os
import signal
import uuid
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, TypeVar

from cron_leader.clock import SystemClock
from cron_leader.core.messages import (
    Event,
    NotStarted,
    Prepared,
    RunEnded,
    Started,
    SupervisorSilent,
)
from cron_leader.core.model import (
    CommandSpec,
    Job,
    PythonSpec,
    Result,
    Run,
    RunnableSpec,
    ShellSpec,
    SlotKey,
    Term,
)
from cron_leader.core.schedule import At
from cron_leader.runners import Runners

E = TypeVar("E", bound=Event)
CLOCK = SystemClock()
SLOT = datetime(2026, 3, 1, 9, 0, tzinfo=UTC)
TERM = Term("fleet/0", 42, "nonce", "a", 7, SLOT)
FAR_NS = 3_600_000_000_000


def shell(script: str, **options: Any) -> Job:
    return job(ShellSpec(script), **options)


def command(*argv: str, **options: Any) -> Job:
    return job(CommandSpec(argv), **options)


def python(target: str, **options: Any) -> Job:
    return job(PythonSpec(target), **options)


def job(spec: RunnableSpec, **options: Any) -> Job:
    return Job(**{"name": "j", "schedule": At(SLOT), "spec": spec, "grace_s": 0.2} | options)


def run_of(job: Job, *, attempt: int = 1) -> Run:
    return Run(uuid.uuid4().hex, SlotKey(job.name, SLOT), attempt, TERM, job)


class Stage:
    """Runners, and what they reported in order."""

    def __init__(self, **options: Any) -> None:
        self.events: list[Event] = []
        self._news = asyncio.Event()
        self.runners = Runners(
            **{"node": "a", "fleet": "fleet", "clock": CLOCK, "report": self._report} | options
        )

    async def until(self, kind: type[E] | tuple[type[E], ...], run: Run | None = None) -> E:
        """The first report of that kind, or these (about that run)."""
        async with asyncio.timeout(15):
            while True:
                for event in self.events:
                    about = getattr(event, "run_id", None)
                    if isinstance(event, kind) and (run is None or about == run.run_id):
                        return event
                self._news.clear()
                await self._news.wait()

    def kinds(self, run: Run) -> list[type]:
        return [type(e) for e in self.events if getattr(e, "run_id", None) == run.run_id]

    async def begin(self, job: Job, *, deadline_ns: int | None = None) -> Run:
        """Prepare and say go; returns once it has started."""
        run = run_of(job)
        self.runners.prepare(run)
        await self.until(Prepared, run)
        self.go(run, deadline_ns=deadline_ns)
        await self.until(Started, run)
        return run

    def go(self, run: Run, *, deadline_ns: int | None = None) -> None:
        far = CLOCK.boot_ns() + FAR_NS
        self.runners.go(run, far if deadline_ns is None else deadline_ns)

    async def take_back(self, run: Run, link: Recorder) -> NotStarted:
        """Say go while its process stands still, then that it is not to start; let it go on."""
        self.runners.prepare(run)
        await self.until(Prepared, run)
        os.kill(link.pgid, signal.SIGSTOP)
        self.go(run)
        await asyncio.sleep(0.05)  # "go" is sent by then, and waits; unsent, it is held back here
        self.runners.drop(run.run_id)
        os.kill(link.pgid, signal.SIGCONT)
        return await self.until(NotStarted, run)

    async def result(self, run: Run) -> Result:
        """How it ended, after reports in the promised order."""
        ended = await self.until(RunEnded, run)
        assert self.kinds(run) == [Prepared, Started, RunEnded]
        return ended.result

    async def play(self, job: Job) -> Result:
        """All of one run."""
        return await self.result(await self.begin(job))

    def _report(self, event: Event) -> None:
        self.events.append(event)
        self._news.set()


class Recorder:
    """A supervisor that acknowledges everything."""

    def __init__(self) -> None:
        self.pgid = 0

    async def register(
        self, run_id: str, pgid: int, start: int, *, may_finish: bool, timeout_s: float
    ) -> bool:
        self.pgid = pgid
        return True

    def ended(self, run_id: str) -> None:
        pass


@asynccontextmanager
async def stage(*jobs: Job, **options: Any) -> AsyncIterator[Stage]:
    it = Stage(**options)
    await it.runners.start(jobs)
    try:
        yield it
    finally:
        await it.runners.close()


async def vanished(pid: int) -> bool:
    """Whether process `pid` is gone (or a zombie that only waits for its parent) within 5 s."""
    for _ in range(500):
        if not alive(pid):
            return True
        await asyncio.sleep(0.01)
    return False


def alive(pid: int) -> bool:
    try:
        return stat_of(pid)[0] not in "ZX"
    except OSError:
        return False


def stat_of(pid: int) -> list[str]:
    """The fields of /proc/PID/stat after the name, the state first."""
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()


async def written(path: Path) -> str:
    """The content of a file that a run is about to write, line and all."""
    async with asyncio.timeout(10):
        while not (text := _text(path)).endswith("\n"):  # noqa: ASYNC110
            await asyncio.sleep(0.01)
    return text.strip()


def _text(path: Path) -> str:
    return path.read_text() if path.exists() else ""


def open_fds() -> int:
    return len(os.listdir("/proc/self/fd"))


__all__ = [
    "CLOCK",
    "FAR_NS",
    "SLOT",
    "NotStarted",
    "Prepared",
    "RunEnded",
    "Started",
    "SupervisorSilent",
    "alive",
    "command",
    "open_fds",
    "python",
    "run_of",
    "shell",
    "stage",
    "stat_of",
    "vanished",
    "written",
]
