"""A stream whose consumer and reader wait for each other still ends."""

from __future__ import annotations

import asyncio

import pytest

from cron_leader.etcd.stream import BACKLOG, Stream


class Flood:
    """A call that has ended for writing, with more to read than anybody takes."""

    def __init__(self) -> None:
        self.read_so_far = 0
        self.full = asyncio.Event()

    async def read(self) -> object:
        self.read_so_far += 1
        if self.read_so_far > BACKLOG:
            self.full.set()
        return object()

    async def write(self, request: object) -> None:
        raise asyncio.InvalidStateError("the call has ended")

    def cancel(self) -> None:
        pass


async def nothing() -> None:
    pass


async def test_a_send_never_waits_longer_than_told() -> None:
    call = Flood()
    stream = Stream(call, "e", heard=lambda *_: None, ended=lambda *_: None, left=nothing)
    async with stream, asyncio.timeout(5):
        await call.full.wait()
        with pytest.raises(TimeoutError):
            await stream.send(object(), timeout_s=0.05)
