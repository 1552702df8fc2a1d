"""Inline runs: async functions as tasks in the daemon's own loop.

Cheap, and trusted: what blocks here blocks the daemon (which then gives its post up), and nothing
but cancellation can end it. Such a run has no process, so the supervisor need not know of it: it
dies with the daemon.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable, Coroutine
from datetime import datetime, timedelta
from inspect import iscoroutinefunction
from pathlib import Path
from typing import Any, cast

from cron_leader.core.messages import NotStarted, Prepared, RunEnded, Started
from cron_leader.core.model import Job, PythonSpec, Result, Run
from cron_leader.errors import ConfigError
from cron_leader.jobs import Tick, resolve
from cron_leader.runners.context import Context
from cron_leader.runners.failure import traceback_text
from cron_leader.runners.life import LATE

_CANCEL_S = 0.2  # what a function has for its clean-up even when there is no grace

AsyncFunction = Callable[[Tick], Coroutine[Any, Any, object]]


def load_inline(job: Job, base: Path) -> AsyncFunction:
    """The job's function, imported here. Raises ConfigError with the cure."""
    if not isinstance(job.spec, PythonSpec):
        raise ConfigError(f'job "{job.name}": isolation = "inline" is for python jobs only')
    if str(base) not in sys.path:
        sys.path.insert(0, str(base))
    try:
        function = resolve(job.spec.target)
    except Exception as error:
        raise ConfigError(
            f'job "{job.name}": cannot import "{job.spec.target}": '
            f"{type(error).__name__}: {error}; it is looked for in {base} and on PYTHONPATH"
        ) from error
    if not iscoroutinefunction(function):
        raise ConfigError(
            f'job "{job.name}": isolation = "inline" needs an async function, and '
            f'"{job.spec.target}" is none; make it `async def` or use isolation = "process"'
        )
    return cast(AsyncFunction, function)


class InlineRuns:
    """Where inline runs come from: each job's function, looked up once."""

    def __init__(self, context: Context, base: Path) -> None:
        self.context, self._base = context, base
        self._functions: dict[str, AsyncFunction] = {}
        self._begun: list[InlineLife] = []

    def load(self, job: Job) -> AsyncFunction:
        """Raises ConfigError with the cure."""
        target = job.spec.target if isinstance(job.spec, PythonSpec) else ""
        found = self._functions.get(target)
        if found is None:
            found = self._functions[target] = load_inline(job, self._base)
        return found

    def life(self, run: Run, over: Callable[[str], None]) -> InlineLife:
        """over: called with its id when the run has reported its end."""
        return InlineLife(run, self, over)

    def begun(self, life: InlineLife) -> None:
        """A run was told to go. What else there is to do for it is done once the functions of all
        that go at this instant have begun: of a thousand the last waits for all before it."""
        self._begun.append(life)
        if len(self._begun) == 1:
            loop = asyncio.get_running_loop()
            loop.call_soon(loop.call_soon, self._follow_up)  # behind the tasks of this turn

    def _follow_up(self) -> None:
        begun, self._begun = self._begun, []
        for life in begun:
            life.follow_up()


class InlineLife:
    """A run that is a task of the daemon's loop; orders as for any other life.

    It has no process that could be prepared, so it may be told to go at once. All of it is
    callbacks: of a thousand runs due at one instant the last waits for all before it, and a task of
    ours beside each would cost more than most of them.
    """

    def __init__(self, run: Run, source: InlineRuns, over: Callable[[str], None]) -> None:
        self.run, self.context = run, source.context
        self._source, self._over = source, over
        self._task: asyncio.Task[str | None] | None = None
        self._timers: list[asyncio.TimerHandle] = []
        self._started_ns = 0
        self._started_at: datetime | None = None  # until it is reported
        self._entered = self._ended = self._asked = self._timed_out = False

    def prepare(self) -> None:
        """There is nothing to prepare."""
        self.context.report(Prepared(self.run.run_id))

    def go(self, deadline_ns: int) -> None:
        """Start it, unless the boot clock has passed deadline_ns."""
        if self._task is not None or self._ended:
            return
        started_ns = self.context.clock.boot_ns()
        if started_ns >= deadline_ns:
            self._not_started(LATE)
            return
        self._started_ns, self._started_at = started_ns, self.context.clock.wall()
        # Not loop.create_task(): there is no task factory here, and of a thousand it is 1 ms.
        call = self._call(self._started_at)
        self._task = asyncio.Task(call, loop=asyncio.get_running_loop())
        self._task.add_done_callback(self._done)
        self._source.begun(self)

    def follow_up(self) -> None:
        """Say that it has started, and see to it that it ends."""
        self._tell_started()
        if self._task is not None and not self._task.done():
            loop, timeout_s = asyncio.get_running_loop(), self.run.job.timeout_s
            self._timers.append(loop.call_later(timeout_s, self._time_out))

    def _tell_started(self) -> None:
        if self._started_at is not None:
            self.context.report(Started(self.run.run_id, self._started_at))
            self._started_at = None

    def drop(self) -> None:
        """It is not to start. After `go`: only if nothing of it has run by then."""
        if self._ended or self._entered:
            return
        if self._task is not None:
            self._task.cancel()  # before its first step: that is none of the function's
            self._started_at = None
        self._not_started("dropped")

    def kill(self, grace_s: float) -> None:
        """Cancel it, and give it up after grace_s. Not yet told to go: drop it."""
        self.drop()
        if not self._ended:
            self._stop(grace_s)

    async def _call(self, started_at: datetime) -> str | None:
        """The user's function; the error it ended in. The run boundary: SystemExit must not reach
        the loop, it would end the daemon."""
        self._entered = True
        try:
            await self._source.load(self.run.job)(self._tick(started_at))
        except asyncio.CancelledError:
            raise
        except SystemExit as error:
            return None if error.code in (None, 0) else f"exit code {error.code}"
        except BaseException as error:
            return traceback_text(error)
        return None

    def _tick(self, started_at: datetime) -> Tick:
        run = self.run
        return Tick(
            job=run.job.name,
            scheduled_for=run.slot.scheduled_for,
            fence=run.term.fence,
            lease=run.term.lease,
            node=self.context.node,
            attempt=run.attempt,
            run_deadline=started_at + timedelta(seconds=run.job.timeout_s),
            _asked_to_stop=lambda: self._asked,
        )

    def _done(self, task: asyncio.Task[str | None]) -> None:
        if not self._ended:
            self._end("cancelled" if task.cancelled() else task.result())

    def _time_out(self) -> None:
        self._timed_out = True
        self._stop(self.run.job.grace_s)

    def _stop(self, grace_s: float) -> None:
        assert self._task is not None
        self._asked = True
        self._task.cancel()
        wait_s = max(grace_s, _CANCEL_S)
        self._timers.append(asyncio.get_running_loop().call_later(wait_s, self._give_up))

    def _give_up(self) -> None:
        assert self._task is not None
        self._task.cancel()
        self._end("cancelled, but the function ignores it and goes on")

    def _end(self, error: str | None) -> None:
        clock, timeout_s = self.context.clock, self.run.job.timeout_s
        result = Result(
            exit_code=None,
            timed_out=self._timed_out,
            error=f"timed out after {timeout_s:g} s" if self._timed_out else error,
            output=None,
            finished_at=clock.wall(),
            duration_ns=clock.boot_ns() - self._started_ns,
        )
        self._report_last(RunEnded(self.run.run_id, result))

    def _not_started(self, why: str) -> None:
        self._report_last(NotStarted(self.run.run_id, why))

    def _report_last(self, event: NotStarted | RunEnded) -> None:
        self._tell_started()
        self._ended = True
        for timer in self._timers:
            timer.cancel()
        self.context.report(event)
        self._over(self.run.run_id)
