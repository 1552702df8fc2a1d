"""One bidirectional stream: a single reader task, a bounded queue, a clear end.

Reading with a timeout never cancels the call (`wait_for(call.read())` would): the reader task owns
the call, callers wait on the queue.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
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

    endpoint: where it is connected. heard: called at each reply; ended: called once with the error
    if the server or the connection ends the stream.
    """

    def __init__(
        self,
        call: Any,
        endpoint: str,
        *,
        heard: Callable[[str], None],
        ended: Callable[[str, End], None],
    ) -> None:
        self.endpoint = endpoint
        self._call = call
        self._heard = heard
        self._ended = ended
        self._end: End | None = None
        self._replies: asyncio.Queue[Any] = asyncio.Queue(BACKLOG)
        self._reader = asyncio.create_task(self._read(), name=f"etcd stream {endpoint}")

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

    async def _read(self) -> None:
        try:
            while (reply := await self._call.read()) is not EOF:
                self._heard(self.endpoint)
                await self._replies.put(reply)
            self._end = EtcdUnavailable(f"etcd {self.endpoint}: it closed the stream")
        except AioRpcError as error:
            self._end = to_error(error, self.endpoint)
        self._ended(self.endpoint, self._end)
        await self._replies.put(None)

    def _why(self) -> End:
        return self._end or EtcdUnavailable(f"etcd {self.endpoint}: the stream is closed")
