"""To be several leaders of one ledger, and to disturb what they send."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import sqlite3
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any, cast

import psycopg
import pytest
from psycopg import conninfo

from cron_leader.core.model import (
    Applied,
    Batch,
    Candidate,
    Claim,
    DueRow,
    Entry,
    Finish,
    Gap,
    JobRecord,
    PutBack,
    Refused,
    Result,
    Settlement,
    SlotKey,
    State,
    Taken,
    Term,
)
from cron_leader.ledger import Ledger, open_ledger, postgres, sqlite
from cron_leader.ledger.views import CommandRow, Reader, SlotRow, open_reader

T0 = datetime(2026, 3, 1, 12, tzinfo=UTC)
ELECTION = "default/0"
CLUSTER = 0xCDF818194E3A8C32
TIMEOUT_S = 20.0
"""For answers that must come; never a pause."""


def at(seconds: float) -> datetime:
    return T0 + timedelta(seconds=seconds)


def slot(seconds: float = 0, job: str = "job") -> SlotKey:
    return SlotKey(job, at(seconds))


def batch(
    *claims: Claim,
    entries: tuple[Entry, ...] = (),
    gaps: tuple[Gap, ...] = (),
    now: datetime = T0,
    to: datetime = T0,
) -> Batch:
    return Batch(claims, entries, planned_to=to, now=now, gaps=gaps)


def settlement(
    *,
    entries: tuple[Entry, ...] = (),
    gaps: tuple[Gap, ...] = (),
    jobs: tuple[str, ...] = ("job",),
    retired: tuple[str, ...] = (),
    again: tuple[str, ...] = (),
    now: datetime = T0,
) -> Settlement:
    records = tuple(JobRecord(job, T0, T0, "digest") for job in jobs)
    return Settlement(now, now, records, retired, entries, gaps, frozenset(again))


def result(error: str | None = None, output: str | None = None) -> Result:
    return Result(0 if error is None else 1, False, error, output, at(1), 10**9)


def finish(claim: Claim, attempt: int = 1, state: State = State.SUCCEEDED, **kwargs: Any) -> Finish:
    kept = {"attempt_state": state, "reason": None, "result": result()} | kwargs
    return Finish(claim.slot, attempt, claim.run_id, state, **kept)


def order(fence: object, for_s: object = 60, *, id: str = "order-1", **other: Any) -> CommandRow:
    """A step-down aimed at a fence."""
    args = json.dumps({"for_s": for_s, "fence": fence})
    row = CommandRow(id, "step-down", ELECTION, args, "op@host", "disk swap", T0)
    return replace(row, **other)


def put_back(claim: Claim, attempt: int = 1) -> PutBack:
    return PutBack(claim.slot, attempt, claim.run_id, at(1))


def nothing() -> None:
    """For raises that are not expected to wait."""


class Lab:
    """One ledger's URL, any number of connected nodes, and a reader."""

    def __init__(self, url: str, stack: contextlib.AsyncExitStack) -> None:
        self.url = url
        self._stack = stack
        self._revisions = itertools.count(100)

    @property
    def is_sqlite(self) -> bool:
        return self.url.startswith("sqlite")

    async def ledger(self) -> Ledger:
        """A node's own handle, opened, closed with the test."""
        ledger = open_ledger(self.url)
        self._stack.push_async_callback(ledger.close)
        await ledger.open(fleet="default", shards=1, migrate=self.is_sqlite)
        return ledger

    def candidate(self, node: str, *, cluster: int = CLUSTER) -> Candidate:
        revision = next(self._revisions)
        return Candidate(ELECTION, f"nonce-{revision}", node, revision + 7, revision, cluster)

    async def leader(self, node: str = "a", past: Settlement | None = None) -> Leader:
        """A fresh leader: raised, and settled unless `past` is None."""
        leader = Leader(await self.ledger(), self.candidate(node))
        await leader.rise()
        if past is not None:
            assert isinstance(await leader.settle(past), tuple)
        return leader

    def read(self) -> Reader:
        reader = open_reader(self.url)
        self._stack.callback(reader.close)
        return reader

    def slot(self, key: SlotKey) -> SlotRow | None:
        with open_reader(self.url) as reader:
            rows = reader.slots(job=key.job)
        return next((row for row in rows if row.scheduled_for == key.scheduled_for), None)

    def states(self) -> dict[SlotKey, str]:
        with open_reader(self.url) as reader:
            return {SlotKey(r.job, r.scheduled_for, r.command_id): r.state for r in reader.slots()}

    def give(self, command: CommandRow) -> CommandRow:
        """An operator's order, from any host."""
        with open_reader(self.url) as reader:
            reader.order(command)
        return command

    def sql(self, text: str) -> None:
        """A change from outside."""
        with contextlib.closing(open_reader(self.url)) as reader:
            reader._database.run(text, {})


class Leader:
    """One term and its ledger."""

    def __init__(self, ledger: Ledger, candidate: Candidate) -> None:
        self.ledger = ledger
        self.candidate = candidate
        self.fence = candidate.revision

    @property
    def term(self) -> Term:
        c = self.candidate
        return Term(c.election, self.fence, c.nonce, c.node, c.lease, T0)

    async def rise(self) -> int:
        answer = await self.ledger.raise_fence(self.candidate, T0, waiting=nothing)
        assert isinstance(answer, int)
        self.fence = answer
        return answer

    async def settle(self, past: Settlement) -> tuple[DueRow, ...] | Refused:
        return await self.ledger.settle(self.term, past)

    async def take(self, *claims: Claim, **kwargs: Any) -> Taken | Refused:
        return await self.ledger.take(self.term, batch(*claims, **kwargs))

    async def finish(self, *args: Any, **kwargs: Any) -> Applied | Refused:
        return await self.ledger.finish(self.term, finish(*args, **kwargs))

    def step_by_step(self) -> Leader:
        """Its claims are several statements, as both databases share them."""
        if isinstance(self.ledger, postgres.PostgresLedger | sqlite.SqliteLedger):
            self.ledger._alone = False
        return self

    async def put_back(self, *args: Any) -> Applied | Refused:
        return await self.ledger.put_back(self.term, put_back(*args))


class Killed(Exception):
    """The client died here."""


@contextlib.contextmanager
def dying_after(statements: int, patch: pytest.MonkeyPatch) -> Iterator[Callable[[], int]]:
    """Both back ends die, connection and all, once they have sent this many statements.

    Yields a function that says how many were sent.
    """
    sent = 0

    def count() -> bool:
        nonlocal sent
        sent += 1
        return sent > statements

    async def transact(connection: Any, todo: Any) -> Any:
        answers = []
        for text, params in todo:
            if count():
                connection.pgconn.finish()
                raise Killed
            answers.append(await postgres._execute(connection, text, params))
        return answers

    def execute(connection: sqlite3.Connection, step: Any, run: Any = sqlite.execute) -> Any:
        if count():
            connection.execute("ROLLBACK")
            raise Killed
        return run(connection, step)

    with patch.context() as patched:
        patched.setattr(postgres, "_transact", transact)
        patched.setattr(sqlite, "execute", execute)
        yield lambda: sent


class Door:
    """Holds the first Postgres transaction that comes to it before a statement (its guard), those
    ahead of it executed, their locks taken."""

    def __init__(self, before: str = "cron_leader_guard") -> None:
        self._before = before
        self.reached = asyncio.Event()
        self.opened = asyncio.Event()

    async def transact(self, connection: Any, todo: Any) -> Any:
        answers = []
        for text, params in todo:
            if self._before in text:
                self.reached.set()
                await self.opened.wait()
            try:
                answers.append(await postgres._execute(connection, text, params))
            except BaseException:
                await connection.execute("ROLLBACK")
                raise
        return answers


@contextlib.asynccontextmanager
async def cut_once(url: str, *, arrives: bool) -> AsyncIterator[str]:
    """A way to the server that breaks at the first COMMIT, or the Sync that commits a claim: when
    all ahead of it has been sent, or ahead of its answer. Whole again after that."""
    there = conninfo.conninfo_to_dict(url)
    whole = True
    serving: list[asyncio.Task[None]] = []

    async def serve(client: asyncio.StreamReader, to_client: asyncio.StreamWriter) -> None:
        nonlocal whole
        serving.append(cast(asyncio.Task[None], asyncio.current_task()))
        server, to_server = await asyncio.open_connection(there["host"], there["port"])

        async def back() -> None:
            while (data := await server.read(65536)) and not (cut and _committed(data)):
                to_client.write(data)
            to_client.close()

        cut = False
        answering = asyncio.create_task(back())
        with contextlib.suppress(ConnectionError):
            while data := await client.read(65536):
                if whole and (end := _commit_in(data)) is not None:
                    cut, whole = True, False
                    if not arrives:
                        to_server.write(data[:end])
                        break
                to_server.write(data)
        answering.cancel()
        await asyncio.wait({answering})
        for end in (to_server, to_client):
            end.close()
            with contextlib.suppress(ConnectionError):
                await end.wait_closed()

    proxy = await asyncio.start_server(serve, "127.0.0.1")
    port = proxy.sockets[0].getsockname()[1]
    try:
        yield url.replace(f":{there['port']}/", f":{port}/")
        assert not whole, "nothing was cut"
    finally:
        proxy.close()
        await asyncio.gather(*serving)


async def until_blocked(url: str, *, beside: asyncio.Task[Any], for_ms: int = 0) -> None:
    """Until some statement in this database waits for another's lock, and has gone on for so long;
    `beside` must not end first."""
    waits = (
        "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND datname = "
        f"current_database() AND clock_timestamp() - query_start > interval '{for_ms} ms'"
    )
    async with await psycopg.AsyncConnection.connect(url, autocommit=True) as db:
        while not (await (await db.execute(waits)).fetchone())[0]:  # type: ignore[index]
            assert not beside.done(), f"it did not wait: {beside}"
            await asyncio.sleep(0.005)


_SYNC = b"S\0\0\0\4"
_READY = b"Z\0\0\0\5I"


def _commit_in(data: bytes) -> int | None:
    """Where what commits begins, in what a client sends; None: it is not in it."""
    if b"cron_leader_claim(" in data:
        return data.index(_SYNC)
    return data.index(b"COMMIT\0") if b"COMMIT\0" in data else None  # not READ COMMITTED


def _committed(data: bytes) -> bool:
    return b"COMMIT" in data or data.endswith(_READY)


async def soon(awaitable: Any) -> Any:
    return await asyncio.wait_for(awaitable, TIMEOUT_S)
