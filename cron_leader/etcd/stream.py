"""One bidirectional stream: a single reader task, a bounded queue, a clear end.

Reading with a timeout never cancels the call (`wait_for(call.read())` would): the reader task owns
the call, callers wait on the queue.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from types import TracebackType
from typing import Any

from grpc.aio import EOF, AioRpcError  # type: ignore[attr-defined]  # stubs lack EOF

from cron_leader.errors import EtcdRefused, EtcdUnavailable
from cron_leader.etcd.codes import to_error

BACKLOG = 64
"""Replies read ahead of the consumer; then flow control holds the server back."""

End = EtcdUnavailable | EtcdRefused


class Stream:
    """`async with` it: leaving cancels the reader, awaits it, then cancels the call.

    endpoint: where it is connected. fresh_until_ns: from when on (boot clock) another should take
    its place, for its auth token ages; None: never. heard: called with each reply; the error it may
    return ends the stream. ended: called once with the error if the server or the connection ends
    the stream. left: awaited when it is over.
    """

    def __init__(
        self,
        call: Any,
        endpoint: str,
        *,
        heard: Callable[[str, Any], End | None],
        ended: Callable[[str, End], None],
        left: Callable[[], Awaitable[None]],
        fresh_until_ns: int | None = None,
    ) -> None:
        self.endpoint = endpoint
        self.fresh_until_ns = fresh_until_ns
        self._left = left
        self._call = call
        self._heard = heard
        self._ended = ended
        self._end: End | None = None
        self._replies: asyncio.Queue[Any] = asyncio.Queue(BACKLOG)
        self._reader = asyncio.create_task(self._read(), name=f"etcd stream {endpoint}")

    @property
    def over(self) -> bool:
        """It has ended, though not every reply may have been received yet."""
        return self._end is not None

    async def send(self, request: Any, *, timeout_s: float) -> None:
        """Hand the request to gRPC; TimeoutError, or the error the stream ended with."""
        async with asyncio.timeout(timeout_s):
            try:
                await self._call.write(request)
            except (AioRpcError, asyncio.InvalidStateError):
                await asyncio.wait({self._reader})  # it knows why; unless it waits to be read
                raise self._why() from None

    async def receive(self, *, timeout_s: float) -> Any:
        """The next reply; TimeoutError if none came, or the error the stream ended with."""
        if self._end is not None and self._replies.empty():
            raise self._why()
        async with asyncio.timeout(timeout_s):
            reply = await self._replies.get()
        if reply is None:
            raise self._why()
        return reply

    async def __aenter__(self) -> Stream:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._reader.cancel()
        await asyncio.wait({self._reader})
        self._call.cancel()
        await self._left()

    async def _read(self) -> None:
        try:
            self._end = await self._read_on()
        except AioRpcError as error:
            self._end = to_error(error, self.endpoint)
        self._ended(self.endpoint, self._end)
        await self._replies.put(None)

    async def _read_on(self) -> End:
        """Why it ends."""
        while (reply := await self._call.read()) is not EOF:
            if (error := self._heard(self.endpoint, reply)) is not None:
                return error
            await self._replies.put(reply)
        return EtcdUnavailable(f"etcd {self.endpoint}: it closed the stream")

    def _why(self) -> End:
        return self._end or EtcdUnavailable(f"etcd {self.endpoint}: the stream is closed")
