"""Command and shell runs: each is a wrapper process that becomes the job.

One wrapper is kept started ahead, for an interpreter takes ten times as long to start as an exec.
"""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import Awaitable, Callable, Mapping
from datetime import timedelta
from pathlib import Path

from cron_leader.core.model import CommandSpec, Run, ShellSpec
from cron_leader.runners.child import Child, Control, plumbing
from cron_leader.runners.context import Context, environment, for_interpreter

_WRAPPER = str(Path(__file__).with_name("wrapper.py"))
_RESTOCK_AFTER_S = 0.05  # starting a process stops the loop for 1-3 ms: not while a run is starting


class Wrappers:
    """The source of command and shell runs, with one spare wrapper."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._spare: Child | None = None
        self._restock: asyncio.TimerHandle | None = None
        self._starting = asyncio.Lock()
        self._closed = False

    def stock(self) -> None:
        """Start the spare, if there is none."""
        self._restock = None
        if self._spare is None and not self._closed:
            try:
                self._spare = self._start()
            except OSError:
                pass  # no spare, then; a run that finds no process either will say so

    async def spawn(self, run: Run) -> Child:
        """The spare, or a new wrapper. Raises OSError."""
        child, self._spare = self._spare, None
        if child is not None and child.exited.is_set():
            await _discard(child)
            child = None
        if self._restock is None and not self._closed:
            loop = asyncio.get_running_loop()
            self._restock = loop.call_later(_RESTOCK_AFTER_S, self.stock)
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
            "deadline_ns": deadline_ns,
        }

    async def close(self) -> None:
        """Idempotent; the spare is ended."""
        self._closed = True
        if self._restock is not None:
            self._restock.cancel()
        spare, self._spare = self._spare, None
        if spare is not None:
            await _discard(spare)

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


async def _discard(child: Child) -> None:
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
