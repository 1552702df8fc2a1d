"""TCP proxies between a node and what it talks to: where the `proc` world strikes.

A proxy cannot lose a packet, but it can do what TCP makes of lost ones: what is sent during a cut
waits, and arrives once the cut is healed; a connection made meanwhile is silent. Promised of a byte
that passes: order, and nothing doubled. Not shown here: a connect that is refused or gets no
answer, for the proxy has accepted it before it looks further.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import socket
import struct
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TypeVar

T = TypeVar("T")
RETRANSMIT_S = 0.2
"""TCP's least; doubled each time."""
CHUNK = 1 << 16
BEHIND = 256
"""Chunks read and not yet written; then the sender has to wait."""
_RESET = struct.pack("ii", 1, 0)


@dataclass(slots=True)
class Way:
    """What befalls the bytes of one direction. Counts above 0: that many faults are at it."""

    cuts: int = 0
    delay_ms: int = 0
    """Of each chunk, at most; drawn anew for each."""
    loss: int = 0
    """Percent of the chunks that are sent again, after RETRANSMIT_S."""
    kbit: int = 0
    bites: int = 0
    """Chunks that were held up."""

    def taken(self) -> int:
        """The bites so far, once."""
        bites, self.bites = self.bites, 0
        return bites

    def late_s(self, size: int) -> float:
        """How long a chunk of so many bytes is under way."""
        late = random.random() * self.delay_ms / 1000
        again = RETRANSMIT_S
        while self.loss and again < 60 and random.random() * 100 < self.loss:
            late, again = late + again, 2 * again
        late += size * 8 / (self.kbit * 1000) if self.kbit else 0.0
        self.bites += late > 0
        return late


@dataclass(slots=True)
class Link:
    """From one node to one server: both directions, and the connections there are."""

    host: str
    port: int
    """Of the server."""
    source: str = ""
    """The address we connect from; "": whichever."""
    out: Way = field(default_factory=Way)
    back: Way = field(default_factory=Way)
    late: int = 0
    """Of connections that were there when it began, what is sent waits until it ends."""
    pairs: set[_Pair] = field(default_factory=set)
    listens: int = 0
    """The port at which it is found."""

    def reset(self) -> int:
        """Break its connections, so that both sides know; how many. In the proxies' thread."""
        pairs, self.pairs = self.pairs, set()
        for pair in pairs:
            pair.reset()
        return len(pairs)


class _Pair:
    """One connection, and the one it is continued by."""

    def __init__(self, link: Link, changed: asyncio.Condition) -> None:
        self._link, self._changed = link, changed
        self._writers: list[asyncio.StreamWriter] = []
        self._broken = False
        self.old = False
        """It was there when copies began to be late."""

    async def run(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        link = self._link
        self._writers.append(writer)
        try:
            await self._passes(link.out)
            local = (link.source, 0) if link.source else None
            there = await asyncio.open_connection(link.host, link.port, local_addr=local)
            self._writers.append(there[1])
            if self._broken:  # while this one was being made
                self.reset()
            await asyncio.gather(
                self._pump(reader, there[1], link.out), self._pump(there[0], writer, link.back)
            )
        except OSError:
            pass
        finally:
            link.pairs.discard(self)
            for each in self._writers:
                each.close()

    def reset(self) -> None:
        self._broken = True
        for writer in self._writers:
            end: socket.socket | None = writer.get_extra_info("socket")
            if end is not None:
                with contextlib.suppress(OSError):
                    end.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
            writer.transport.abort()

    async def _pump(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, way: Way
    ) -> None:
        """Until this direction is shut; then the other side is told so, in its turn."""
        chunks: asyncio.Queue[tuple[float, bytes]] = asyncio.Queue(BEHIND)
        sender = asyncio.create_task(self._send(chunks, writer, way))
        loop, due = asyncio.get_running_loop(), 0.0
        try:
            while True:
                try:
                    data = await reader.read(CHUNK)
                except OSError:
                    data = b""
                due = max(due, loop.time()) + way.late_s(len(data)) if data else due
                await chunks.put((due, data))
                if not data:
                    break
            await sender
        finally:
            sender.cancel()

    async def _send(
        self, chunks: asyncio.Queue[tuple[float, bytes]], writer: asyncio.StreamWriter, way: Way
    ) -> None:
        loop = asyncio.get_running_loop()
        while True:
            due, data = await chunks.get()
            await asyncio.sleep(max(0.0, due - loop.time()))
            await self._passes(way)
            if not data:
                with contextlib.suppress(OSError):
                    writer.write_eof()
                return
            writer.write(data)
            await writer.drain()

    async def _passes(self, way: Way) -> None:
        """Until nothing holds this way up."""
        if self._held(way):
            way.bites += 1
            async with self._changed:
                await self._changed.wait_for(lambda: not self._held(way))

    def _held(self, way: Way) -> bool:
        return way.cuts > 0 or (self.old and self._link.late > 0 and way is self._link.out)


class Proxies:
    """All links of a world, in a thread of their own. Use as a context manager."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._changed = asyncio.Condition()
        self._links: list[Link] = []
        self._servers: list[asyncio.Server] = []
        self._tasks: set[asyncio.Task[None]] = set()
        self._thread = threading.Thread(target=self._loop.run_forever, name="proxies", daemon=True)

    def __enter__(self) -> Proxies:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        asyncio.run_coroutine_threadsafe(self._close(), self._loop).result()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def link(self, endpoint: str, *, source: str = "") -> Link:
        """A way to host:port; it is found at 127.0.0.1 and the link's own port."""
        host, _, port = endpoint.rpartition(":")
        made = Link(host, int(port), source)
        asyncio.run_coroutine_threadsafe(self._open(made), self._loop).result()
        self._links.append(made)
        return made

    def change(self, act: Callable[[], T]) -> T:
        """Do it in the proxies' thread; those that wait look again."""

        async def acted() -> T:
            done = act()
            async with self._changed:
                self._changed.notify_all()
            return done

        return asyncio.run_coroutine_threadsafe(acted(), self._loop).result()

    def connections(self) -> int:
        return self.change(lambda: sum(len(link.pairs) for link in self._links))

    async def _open(self, link: Link) -> None:
        async def accepted(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            pair = _Pair(link, self._changed)
            link.pairs.add(pair)
            task = asyncio.current_task()
            assert task is not None
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
            await pair.run(reader, writer)

        server = await asyncio.start_server(accepted, "127.0.0.1", 0)
        self._servers.append(server)
        link.listens = server.sockets[0].getsockname()[1]

    async def _close(self) -> None:
        for server in self._servers:
            server.close()
        for link in self._links:
            link.reset()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
