"""A few connections to one Postgres, each used by one operation at a time, each bounded in time.

A connection that failed or was given up is closed, never repaired; with it go the idle ones, which
have most likely met the same fate. The next operation connects anew.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import TypeVar

import psycopg
from psycopg import generators, waiting
from psycopg.abc import PQGen
from psycopg.pq import ExecStatus, TransactionStatus
from psycopg.pq.abc import PGresult
from psycopg.rows import DictRow, dict_row

from cron_leader.ledger.pg_dsn import ISO_TIMES, place, tells_iso_times, with_defaults
from cron_leader.ledger.pg_errors import translate

RV = TypeVar("RV")

MAX_CONNECTIONS = 4
"""Claims, heartbeat, the end of runs, and a probe beside a raise that waits."""


class Connection(psycopg.AsyncConnection[DictRow]):
    """A connection that is dropped, not nursed, when its operation is cancelled.

    psycopg would ask the server to cancel, over a second connection, and wait for both: up to ten
    seconds beside a frozen server. Our statements bear a late COMMIT, so closing is enough.
    """

    async def wait(self, gen: PQGen[RV], interval: float = 0.1, timeout: float | None = None) -> RV:
        try:
            return await waiting.wait_async(gen, self.pgconn.socket, interval=interval)
        except asyncio.CancelledError:
            self.pgconn.finish()
            raise

    async def call(self, text: bytes, params: Sequence[bytes]) -> PGresult:
        """One statement with parameters $1.. as text, and its rows as libpq has them: a tenth of a
        claim's time goes to what a cursor does beyond that. Raises psycopg.Error."""
        async with self.lock:
            self.pgconn.send_query_params(text, params)
            result: PGresult
            (result,) = await self.wait(generators.execute(self.pgconn))
        if result.status != ExecStatus.TUPLES_OK:
            raise psycopg.errors.error_from_result(result)
        return result


class Sessions:
    """`async with sessions.session(5.0) as connection`: ours for one operation."""

    def __init__(self, url: str) -> None:
        self.where = place(url)
        self._conninfo = with_defaults(url)
        # psycopg warns of what is on purpose here: refused pipelines, connections given up.
        logging.getLogger("psycopg").setLevel(logging.ERROR)
        self._room = asyncio.Semaphore(MAX_CONNECTIONS)
        self._idle: list[Connection] = []
        self._closed = False

    @asynccontextmanager
    async def session(self, within_s: float) -> AsyncIterator[Connection]:
        """A connection outside any transaction; all that happens in it shares one deadline.

        Raises LedgerUncertain or LedgerUnusable for whatever psycopg raises inside.
        """
        connected = False
        try:
            async with asyncio.timeout(within_s), self._room:
                connection = self._idle.pop() if self._idle else await self._connect()
                connected = True
                try:
                    yield connection
                finally:
                    await self._give_back(connection)
        except (psycopg.Error, OSError, TimeoutError) as error:
            raise translate(error, self.where, sent=connected) from error

    async def _connect(self) -> Connection:
        connection = await Connection.connect(
            self._conninfo, autocommit=True, prepare_threshold=None, row_factory=dict_row
        )
        if not tells_iso_times(connection.info):
            try:
                await connection.execute(ISO_TIMES)
            except BaseException:
                await connection.close()
                raise
        return connection

    async def _give_back(self, connection: Connection) -> None:
        usable = connection.pgconn.transaction_status == TransactionStatus.IDLE
        if usable and not self._closed:
            self._idle.append(connection)
            return
        for stale in (connection, *self._drain()):
            await stale.close()

    def _drain(self) -> list[Connection]:
        idle, self._idle = self._idle, []
        return idle

    async def close(self) -> None:
        """Close what is idle. An operation under way closes its own when it ends."""
        self._closed = True
        for connection in self._drain():
            await connection.close()
