"""Inline runs: async functions as tasks in the daemon's own loop.

Cheap, and trusted: what blocks here blocks the daemon (which then gives its post up), and nothing
but cancellation can end it. Such a run has no process, so the supervisor need not know of it: it
dies with the daemon.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable, Coroutine
from datetime import timedelta
from inspect import iscoroutinefunction
from pathlib import Path
from typing import Any, cast

from cron_leader.core.messages import Prepared
from cron_leader.core.model import Job, PythonSpec, Run
from cron_leader.errors import ConfigError
from cron_leader.jobs import Tick, resolve
from cron_leader.runners.context import Context
from cron_leader.runners.failure import traceback_text
from cron_leader.runners.life import LATE, Life

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


class InlineLife(Life):
    """A run that is a task of the daemon's loop."""

    def __init__(self, run: Run, context: Context, base: Path) -> None:
        super().__init__(run, context)
        self._base = base
        self._task: asyncio.Task[str | None] | None = None
        self._asked = False
        self._timed_out = False
        self._give_up = asyncio.Event()
        self._timers: list[asyncio.TimerHandle] = []

    async def _live(self) -> None:
        if self._dropped:
            self._not_started("dropped")
            return
        self.context.report(Prepared(self.run.run_id))
        deadline_ns = await self._ordered()
        if deadline_ns is None:
            self._not_started("dropped")
        elif self.context.clock.boot_ns() >= deadline_ns:
            self._not_started(LATE)
        else:
            await self._attend()

    async def _attend(self) -> None:
        self._started()
        loop = asyncio.get_running_loop()
        self._task = loop.create_task(self._call(), name=f"job {self.run.job.name}")
        self._timers.append(loop.call_later(self.run.job.timeout_s, self._time_out))
        gave_up = loop.create_task(self._give_up.wait())
        try:
            await asyncio.wait({self._task, gave_up}, return_when=asyncio.FIRST_COMPLETED)
            self._ended(self._result(self._error(), timed_out=self._timed_out))
        finally:
            gave_up.cancel()
            self._task.cancel()
            for timer in self._timers:
                timer.cancel()

    async def _call(self) -> str | None:
        """The user's function; the error it ended in. The run boundary: SystemExit must not reach
        the loop, it would end the daemon."""
        try:
            await load_inline(self.run.job, self._base)(self._tick())
        except asyncio.CancelledError:
            raise
        except SystemExit as error:
            return None if error.code in (None, 0) else f"exit code {error.code}"
        except BaseException as error:
            return traceback_text(error)
        return None

    def _tick(self) -> Tick:
        run, clock = self.run, self.context.clock
        return Tick(
            job=run.job.name,
            scheduled_for=run.slot.scheduled_for,
            fence=run.term.fence,
            lease=run.term.lease,
            node=self.context.node,
            attempt=run.attempt,
            run_deadline=clock.wall() + timedelta(seconds=run.job.timeout_s),
            _asked_to_stop=lambda: self._asked,
        )

    def _error(self) -> str | None:
        assert self._task is not None
        if self._timed_out:
            return self._timed_out_text()
        if not self._task.done():
            return "cancelled, but the function ignores it and goes on"
        return "cancelled" if self._task.cancelled() else self._task.result()

    def _time_out(self) -> None:
        self._timed_out = True
        self._stop(self.run.job.grace_s)

    def _stop(self, grace_s: float) -> None:
        self._asked = True
        if self._task is not None:
            self._task.cancel()
            wait_s = max(grace_s, _CANCEL_S)
            later = asyncio.get_running_loop().call_later(wait_s, self._give_up.set)
            self._timers.append(later)
