"""The daemon's hold on the process of one run: its control socket, its group, its end."""

from __future__ import annotations

import asyncio
import json
import marshal
import os
import signal
import socket
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from typing import Any

from cron_leader.runners.exits import start_ticks, watch_exit

Status = list[Any]
"""A message from the run's side: ["ready", pid], ["late"], ["taken back"], ["failed", code, text],
["entered"], ["committed"], ["raised", code, text]."""

_READ = 64 * 1024


class CannotStart(Exception):
    """There is no process for this run; its text says why. Nothing ran."""


class Control:
    """Our end of a run's control socket: "go" to it, one JSON array a line back."""

    def __init__(self, end: socket.socket) -> None:
        end.setblocking(False)
        self._end = end
        self._unread = b""
        self._loop = asyncio.get_running_loop()

    async def send(self, message: Mapping[str, object]) -> None:
        """Raises OSError if the other end is gone: then it has not got the whole message."""
        await self._loop.sock_sendall(self._end, marshal.dumps(dict(message)))

    async def read(self) -> Status | None:
        """The next message; None: the other end is closed, by exec or by death."""
        while (status := self._next()) is None:
            try:
                data = await self._loop.sock_recv(self._end, _READ)
            except ConnectionError:
                return None
            if not data:
                return None
            self._unread += data
        return status

    def take_back(self) -> None:
        """Say that a "go" is not to be obeyed: the other end looks whether more than that has come,
        the end of what we say, before it obeys. Nothing else can be sent after it."""
        with suppress(OSError):  # it is gone
            self._end.shutdown(socket.SHUT_WR)

    def close(self) -> None:
        self._end.close()

    def _next(self) -> Status | None:
        line, newline, rest = self._unread.partition(b"\n")
        if not newline:
            return None
        self._unread = rest
        status: Status = json.loads(line)
        return status


class Child:
    """A run's process: leader of its own session and process group.

    `reap` frees its pid and gives its exit code (negative: a signal), or says why that is unknown;
    it is called once, after the process has ended and its group was killed.
    """

    def __init__(
        self,
        pid: int,
        control: Control,
        output: int,
        reap: Callable[[], Awaitable[int | str]],
    ) -> None:
        self.pid = pid
        self.start = start_ticks(pid)
        self.control = control
        self.output = output
        self.exited = asyncio.Event()
        self._reap = reap
        self._reaped = False
        self._code: int | str = "not reaped"
        self._unwatch = watch_exit(pid, self.exited.set)

    def signal(self, number: int) -> None:
        """Signal the whole group, as long as its id is ours.

        It is until its leader is reaped, by us or, once the job host that was to do it is dead, by
        whoever inherits it: then another start time gives a stranger away.
        """
        if self._reaped or start_ticks(self.pid) not in (self.start, 0):
            return
        try:
            os.killpg(self.pid, number)
        except (ProcessLookupError, PermissionError):
            pass  # nobody left; macOS says EPERM of a group of zombies

    async def bury(self) -> int | str:
        """Wait for the process, kill what it left in its group, then reap it: what `reap` says.

        Called again it says the same.
        """
        await self.exited.wait()
        if not self._reaped:
            self.signal(signal.SIGKILL)
            self._reaped = True
            self._code = await self._reap()
        return self._code

    def let_go(self) -> None:
        """Close what we hold of it but its output; idempotent."""
        self._unwatch()
        self.control.close()


def shell_code(code: int) -> int:
    """An exit code as a shell counts it: 128 + n for signal n."""
    return code if code >= 0 else 128 - code


def plumbing() -> tuple[socket.socket, socket.socket, int, int]:
    """Control socket (ours, theirs) and output pipe (read, write) of one run; none inheritable."""
    ours, theirs = socket.socketpair()
    try:
        read, write = os.pipe()
    except OSError:
        ours.close()
        theirs.close()
        raise
    os.set_blocking(read, False)
    return ours, theirs, read, write
