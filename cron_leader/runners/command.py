"""Command and shell runs: each is a wrapper process that becomes the job.

Spare wrappers are kept started ahead, for an interpreter takes ten times as long to start as an
exec: one while the node follows, while it leads as many as the largest batch seen lately needed.
"""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from collections import deque
from collections.abc import Awaitable, Callable, Mapping
from datetime import timedelta
from pathlib import Path

from cron_leader.core.model import CommandSpec, Run, ShellSpec
from cron_leader.runners.child import Child, Control, plumbing
from cron_leader.runners.context import Context, environment, for_interpreter
from cron_leader.runners.demand import STOCK_AFTER_S, Demand
from cron_leader.runners.needs import bounds

_WRAPPER = str(Path(__file__).with_name("wrapper.py"))
_STOCK_NEXT_S = 0.02  # and the loop gets its turn between two


class Wrappers:
    """The source of command and shell runs, with its spare wrappers."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._demand = Demand(context.clock.boot_ns())
        self._asked = 0  # runs since the stock was last looked at
        self._spares: deque[Child] = deque()
        self._stocking: asyncio.TimerHandle | None = None
        self._starting = asyncio.Lock()
        self._ending: set[asyncio.Task[None]] = set()
        self._needed = self._leading = self._closed = False

    def stock(self) -> None:
        """There will be runs: start a spare at once, if there is none."""
        self._needed = True
        if not self._spares and not self._closed:
            self._add()

    def lead(self, leading: bool) -> None:
        """Whether the node leads. Cheap; to be told often, for what is wanted changes with time."""
        self._leading = leading
        if self._needed and len(self._spares) != self._wanted():
            self._stock_after(STOCK_AFTER_S)

    async def spawn(self, run: Run) -> Child:
        """A spare, or a new wrapper. Raises OSError."""
        self._needed = True
        self._asked += 1
        child = self._take()
        self._stock_after(STOCK_AFTER_S)
        if child is None:
            async with self._starting:  # many at once: the loop gets its turn after each
                await asyncio.sleep(0)
                child = self._start()
        return child

    def go(self, run: Run, deadline_ns: int) -> Mapping[str, object]:
        run_deadline = self._context.clock.wall() + timedelta(seconds=run.job.timeout_s)
        return {
            "argv": _argv(run),
            "env": environment(run, self._context, run_deadline),
            "cwd": run.job.cwd,
            "bounds": bounds(run.job),
            "deadline_ns": deadline_ns,
        }

    async def close(self) -> None:
        """Idempotent; the spares are ended."""
        self._closed = True
        if self._stocking is not None:
            self._stocking.cancel()
        while self._spares:
            self._discard(self._spares.pop())
        if self._ending:
            await asyncio.wait(self._ending)

    # ------------------------------------------------------------------ the stock

    def _wanted(self) -> int:
        return self._demand.spares(self._context.clock.boot_ns()) if self._leading else 1

    def _stock_after(self, delay_s: float) -> None:
        if self._stocking is None and not self._closed:
            self._stocking = asyncio.get_running_loop().call_later(delay_s, self._look)

    def _look(self) -> None:
        """One more, or those too many ended; comes back until there are as many as wanted."""
        self._stocking = None
        self._demand.batch(self._asked, self._context.clock.boot_ns())
        self._asked = 0
        wanted = self._wanted()
        while len(self._spares) > wanted:
            self._discard(self._spares.pop())
        if len(self._spares) < wanted and self._add() and len(self._spares) < wanted:
            self._stock_after(_STOCK_NEXT_S)

    def _add(self) -> bool:
        try:
            self._spares.append(self._start())
        except OSError:
            return False  # no spare, then; a run that finds no process either will say so
        return True

    def _take(self) -> Child | None:
        """The oldest spare that is alive."""
        while self._spares:
            child = self._spares.popleft()
            if not child.exited.is_set():
                return child
            self._discard(child)
        return None

    def _discard(self, child: Child) -> None:
        task = asyncio.get_running_loop().create_task(_end(child))
        self._ending.add(task)
        task.add_done_callback(self._ending.discard)

    def _start(self) -> Child:
        """A wrapper, waiting for "go". Raises OSError."""
        ours, theirs, read, write = plumbing()
        try:
            process = subprocess.Popen(
                [sys.executable, "-I", "-S", _WRAPPER, str(theirs.fileno()), str(os.getpid())],
                stdin=subprocess.DEVNULL,
                stdout=write,
                stderr=write,
                env=for_interpreter(self._context.environ),
                start_new_session=True,
                pass_fds=(theirs.fileno(),),
            )
        except OSError:
            ours.close()
            os.close(read)
            raise
        finally:
            theirs.close()
            os.close(write)
        return Child(process.pid, Control(ours), read, _reaper(process))


async def _end(child: Child) -> None:
    child.signal(signal.SIGKILL)
    await child.bury()
    child.let_go()
    os.close(child.output)


def _argv(run: Run) -> list[str]:
    match run.job.spec:
        case CommandSpec(argv):
            return list(argv)
        case ShellSpec(script):
            return ["/bin/sh", "-c", script]
        case other:
            raise TypeError(f"not a command: {other!r}")


def _reaper(process: subprocess.Popen[bytes]) -> Callable[[], Awaitable[int]]:
    async def reap() -> int:
        return process.wait()  # it is a zombie already: this does not block

    return reap
