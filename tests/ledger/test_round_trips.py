"""How often a write waits for Postgres, counted where it passes: each is sent and answered at once.

The connection is there already: to open one takes two or three, and happens once.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import cast

import pytest
from psycopg import conninfo

from cron_leader.core.model import Applied, Claim, CommandResult, Entry, State, Taken
from cron_leader.fencing.transaction import Opener
from cron_leader.ledger import open_ledger
from tests.fencing.kit import ticket
from tests.ledger.kit import (
    T0,
    Lab,
    Leader,
    at,
    finish,
    nothing,
    order,
    put_back,
    settlement,
    slot,
)

RUN = Claim(slot(), "run-1")
OTHER = Claim(slot(1), "run-2")
WAITING = Claim(slot(5), "run-5", seen=0)
PAST = settlement(entries=(Entry(slot(5), State.DUE),))

SYNC, QUERY, FLUSH = b"S", b"Q", b"H"
"""After each of these a client waits for the server; a Flush behind a Sync asks for no more."""


class Wire:
    """Counts what a client asks of the server; messages of one connection need not come whole."""

    def __init__(self) -> None:
        self.asked = 0
        self._last = b""

    def count(self, left: bytes, *, started: bool) -> tuple[bytes, bool]:
        """Of what has come, the message that is not whole yet; whether the session has begun."""
        while True:
            head = 1 if started else 0
            length = head + int.from_bytes(left[head : head + 4])
            if len(left) < head + 4 or len(left) < length:
                return left, started
            if started:
                self._see(left[:1])
            started = started or left[4:6] == b"\0\3"  # not a request for encryption
            left = left[length:]

    def _see(self, message: bytes) -> None:
        self.asked += message in (SYNC, QUERY) or (message == FLUSH and self._last != SYNC)
        self._last = message

    @contextlib.asynccontextmanager
    async def to(self, url: str) -> AsyncIterator[str]:
        """The URL of the server behind the wire."""
        there = conninfo.conninfo_to_dict(url)
        serving: list[asyncio.Task[None]] = []

        async def serve(client: asyncio.StreamReader, to_client: asyncio.StreamWriter) -> None:
            serving.append(cast("asyncio.Task[None]", asyncio.current_task()))
            server, to_server = await asyncio.open_connection(there["host"], there["port"])
            back = asyncio.create_task(_pass(server, to_client))
            left, started = b"", False
            while data := await client.read(65536):
                left, started = self.count(left + data, started=started)
                to_server.write(data)
            to_server.close()
            await back

        proxy = await asyncio.start_server(serve, "127.0.0.1")
        port = proxy.sockets[0].getsockname()[1]
        try:
            yield url.replace(f":{there['port']}/", f":{port}/")
        finally:
            proxy.close()
            await asyncio.gather(*serving, return_exceptions=True)


async def _pass(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with contextlib.suppress(ConnectionError):
        while data := await reader.read(65536):
            writer.write(data)
    writer.close()


WRITES: dict[str, Callable[[Leader], Awaitable[object]]] = {
    "raise": lambda new: new.ledger.raise_fence(new.candidate, T0, waiting=nothing),
    "settle": lambda new: new.settle(PAST),
    "claim": lambda one: one.take(RUN, OTHER, to=at(9)),
    "claim what waits": lambda one: one.take(WAITING, to=at(9)),
    "heartbeat": lambda one: one.ledger.heartbeat(one.term, at(9), at(9)),
    "finish": lambda one: one.ledger.finish(one.term, finish(RUN)),
    "put back": lambda one: one.ledger.put_back(one.term, put_back(OTHER)),
    "order": lambda one: one.ledger.answer_order(
        one.term, "order-1", CommandResult.STEPPING_DOWN, at(9)
    ),
    "end of term": lambda one: one.ledger.close_term(one.term, "drained", at(9)),
}
"""In the order of a term's life."""


async def test_each_write_of_a_term_is_one_round_trip(pglab: Lab) -> None:
    wire, found = Wire(), {}
    pglab.give(order(1))
    async with wire.to(pglab.url) as url:
        leader = Leader(open_ledger(url), pglab.candidate("a"))
        await leader.ledger.identity()
        for name, send in WRITES.items():
            before = wire.asked
            answer = await send(leader)
            found[name] = wire.asked - before
            assert isinstance(answer, int | tuple | Taken | Applied)
        await leader.ledger.close()
    assert found == dict.fromkeys(WRITES, 1)


@pytest.mark.parametrize("final", [True, False])
async def test_a_users_transaction_adds_three_to_its_own(pglab: Lab, final: bool) -> None:
    """BEGIN; whether the run goes on, and its success; the guard and COMMIT. What depends on a look
    cannot be sent with it."""
    leader = await pglab.leader("a", settlement())
    await leader.take(RUN)
    wire = Wire()

    def block(url: str) -> int:
        behind = Lab(url, contextlib.AsyncExitStack())
        opened = Opener(ticket(behind, leader, RUN))
        with opened(final=final, isolation="read committed") as db:
            for _ in range(2):
                db.execute("SELECT 1")
        return wire.asked

    async with wire.to(pglab.url) as url:
        assert await asyncio.to_thread(block, url) == 2 + 3
