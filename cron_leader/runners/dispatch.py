"""`Runners`: one entry for every kind of run; picks what a job runs in."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from cron_leader.clock import Clock
from cron_leader.core.messages import Event
from cron_leader.core.model import HttpSpec, Isolation, Job, PythonSpec, Run
from cron_leader.errors import ConfigError
from cron_leader.runners.command import Wrappers
from cron_leader.runners.context import Context, LedgerAccess, Registrar
from cron_leader.runners.inline import InlineLife, InlineRuns
from cron_leader.runners.life import Life, ProcessLife
from cron_leader.runners.needs import unmet
from cron_leader.runners.python import PythonRuns
from cron_leader.runners.url import SEND

_CLOSE_S = 5.0


class Runners:
    """All runs of one daemon. Every method but `start` and `close` returns at once and reports.

    modules, base: what the job host imports, and the folder it looks in first (that of the
    configuration file). ack_timeout_s: how long the supervisor may take to acknowledge a run.
    environ: the daemon's environment; runs get four variables of it.
    ledger: for tick.transaction().
    """

    def __init__(
        self,
        *,
        node: str,
        fleet: str,
        report: Callable[[Event], None],
        clock: Clock,
        link: Registrar | None = None,
        ack_timeout_s: float = 1.0,
        modules: Sequence[str] = (),
        base: Path | None = None,
        environ: Mapping[str, str] = os.environ,
        ledger: LedgerAccess | None = None,
    ) -> None:
        self._context = Context(
            node, fleet, clock, report, link, ack_timeout_s, dict(environ), ledger
        )
        self._modules, self._base = tuple(modules), base or Path.cwd()
        self._wrappers = Wrappers(self._context)
        self._python = PythonRuns(self._context, self._modules, self._base)
        self._inline = InlineRuns(self._context, self._base)
        self._lives: dict[str, Life | InlineLife] = {}
        self._none_left = asyncio.Event()
        self._tasks: set[asyncio.Task[None]] = set()

    async def start(self, jobs: Sequence[Job]) -> None:
        """A spare wrapper, and the job host if there are python or url jobs; waits until it has
        imported what they need. Raises ConfigError if this node cannot give a job what it needs, or
        if an inline job cannot be imported or is not async."""
        if lacking := [f'job "{job.name}": {why}' for job in jobs if (why := unmet(job))]:
            raise ConfigError("\n".join(lacking))
        for job in jobs:
            if job.isolation is Isolation.INLINE:
                self._inline.load(job)
        if any(not isinstance(job.spec, PythonSpec | HttpSpec) for job in jobs):
            self._wrappers.stock()
        if targets := tuple(dict.fromkeys(_hosted(jobs))):
            await self._python.start(targets)

    def lead(self, leading: bool) -> None:
        """Whether runs are to be expected: a leader has more processes stand ready. To be told
        often; it costs nothing."""
        self._wrappers.lead(leading)
        self._python.lead(leading)

    def prepare(self, run: Run) -> None:
        """Have a process ready and registered: Prepared, or NotStarted (and SupervisorSilent)."""
        if run.job.isolation is Isolation.INLINE:
            self._inline_life(run).prepare()
            return
        life = self._lives[run.run_id] = self._life(run)
        task = asyncio.get_running_loop().create_task(life.live())
        self._tasks.add(task)
        task.add_done_callback(lambda done: self._over(run.run_id, done))

    def go(self, run: Run, deadline_ns: int) -> None:
        """Start a run: Started and, later, RunEnded; or NotStarted if past deadline_ns.

        It is one that was prepared, or an inline one, which need not be.
        """
        life = self._lives.get(run.run_id)
        if life is None and run.job.isolation is Isolation.INLINE:
            life = self._inline_life(run)
        if life is not None:
            life.go(deadline_ns)

    def drop(self, run_id: str) -> None:
        """A run that is not to start: NotStarted. One that was told to go already is taken back if
        nothing of the job has run yet: NotStarted, else Started as if nothing had been said."""
        if life := self._lives.get(run_id):
            life.drop()

    def kill(self, run_id: str, grace_s: float) -> None:
        """SIGTERM to the group, SIGKILL after grace_s (0: SIGKILL at once); RunEnded follows."""
        if life := self._lives.get(run_id):
            life.kill(grace_s)

    async def close(self) -> None:
        """Kill every run at once, report their ends, stop wrappers and job host; idempotent."""
        for life in list(self._lives.values()):
            life.kill(0)
        with suppress(TimeoutError):
            async with asyncio.timeout(_CLOSE_S):
                while self._lives:
                    self._none_left.clear()
                    await self._none_left.wait()
        for task in self._tasks:
            task.cancel()
        await self._python.close()
        await self._wrappers.close()

    def _life(self, run: Run) -> ProcessLife:
        hosted = isinstance(run.job.spec, PythonSpec | HttpSpec)
        return ProcessLife(run, self._context, self._python if hosted else self._wrappers)

    def _inline_life(self, run: Run) -> InlineLife:
        life = self._lives[run.run_id] = self._inline.life(run, self._forget)
        return life

    def _over(self, run_id: str, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        self._forget(run_id)

    def _forget(self, run_id: str) -> None:
        self._lives.pop(run_id, None)
        if not self._lives:
            self._none_left.set()


def _hosted(jobs: Sequence[Job]) -> Iterator[str]:
    """The functions that the job host runs."""
    for job in jobs:
        match job:
            case Job(spec=PythonSpec(target), isolation=Isolation.PROCESS):
                yield target
            case Job(spec=HttpSpec()):
                yield SEND
