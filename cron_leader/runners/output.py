"""What a run printed: read as it comes, kept up to a bound, made fit for a text column."""

from __future__ import annotations

import asyncio
import os

_READ = 64 * 1024


class Output:
    """The read end of a run's stdout and stderr; keeps the first `head` and last `tail` bytes.

    It must be read even when it is not kept, or the job would block. One read a turn of the loop:
    a flooding job slows down itself, not the daemon.
    """

    def __init__(self, fd: int, *, head: int, tail: int) -> None:
        self._fd = fd
        self._head_limit, self._tail_limit = head, tail
        self._head, self._tail = bytearray(), bytearray()
        self._total = 0
        self._loop = asyncio.get_running_loop()
        self._ended = asyncio.Event()
        self._loop.add_reader(fd, self._read)

    async def drain(self, timeout_s: float) -> None:
        """Read to the end, but not for longer: a process outside the group may hold the pipe."""
        try:
            async with asyncio.timeout(timeout_s):
                await self._ended.wait()
        except TimeoutError:
            pass

    def close(self) -> None:
        """Idempotent."""
        if not self._ended.is_set():
            self._loop.remove_reader(self._fd)
            os.close(self._fd)
            self._ended.set()

    def text(self) -> str | None:
        """Head and tail with a line between them that says what was dropped; None: no output."""
        if not self._total:
            return None
        tail = self._tail[max(0, len(self._tail) - self._tail_limit) :]
        dropped = self._total - len(self._head) - len(tail)
        if not dropped:
            return _decode(self._head + tail)
        return f"{_decode(self._head)}\n[... {dropped} bytes dropped ...]\n{_decode(tail)}"

    def _read(self) -> None:
        try:
            data = os.read(self._fd, _READ)
        except BlockingIOError:
            return
        if data:
            self._keep(data)
        else:
            self.close()

    def _keep(self, data: bytes) -> None:
        self._total += len(data)
        room = self._head_limit - len(self._head)
        if room > 0:
            self._head += data[:room]
            data = data[room:]
        self._tail += data
        if len(self._tail) > 2 * self._tail_limit:  # amortised: one move per tail_limit bytes
            del self._tail[: len(self._tail) - self._tail_limit]


def _decode(data: bytes | bytearray) -> str:
    """UTF-8 as far as it is; no NUL, which no Postgres text can hold."""
    return data.decode("utf-8", "replace").replace("\x00", "\ufffd")
