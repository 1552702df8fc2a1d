"""A fence target on Postgres."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Any

import psycopg

from cron_leader import fencing
from cron_leader.ledger import targets
from cron_leader.ledger.pg_sessions import Connection, Sessions
from cron_leader.ledger.sql import Dialect, Value, translate

READ_S = 3.0
RAISE_S = 60.0
"""The longest wait for the lock of a raise; the caller's patience is shorter."""

ANSWER_S = 5.0
"""The longest wait for anything else: for a connection, and for what is sent ahead of the lock."""

LOOK_S = 0.1
"""A lock that is not had within this time is waited for: the target answered just before."""

_MISSING = {"42P01", "42883", "3F000"}
"""SQLSTATEs of a table, a function or a schema that is not there."""

_RAISE = translate(Dialect.POSTGRES, targets.RAISE)
_HELD = translate(Dialect.POSTGRES, targets.HELD)
_SETTINGS = """
SELECT set_config('application_name', %(name)s, true),
    set_config('synchronous_commit', 'on', true),
    set_config('statement_timeout', %(raise_ms)s, true),
    set_config('lock_timeout', '0', true),
    set_config('idle_in_transaction_session_timeout', %(answer_ms)s, true)
"""


class PostgresTarget:
    """One connection, kept from probe to probe."""

    def __init__(self, url: str) -> None:
        self._sessions = Sessions(url)

    async def probe(self) -> None:
        async with self._session(READ_S) as connection:
            await connection.execute(targets.PROBE)

    async def raise_fence(
        self, params: Mapping[str, Value], waiting: Callable[[], None]
    ) -> targets.Held | None:
        async with self._session(RAISE_S) as connection, connection.transaction():
            async with asyncio.timeout(ANSWER_S):
                await connection.execute(_SETTINGS, _settings(params))
            tell = asyncio.get_running_loop().call_later(LOOK_S, waiting)
            try:
                await connection.execute(fencing.POSTGRES_EXCLUSIVE, (params["election"],))
                await connection.execute(_RAISE.encode(), params)
            finally:
                tell.cancel()
            row = await (await connection.execute(_HELD.encode(), params)).fetchone()
        return (row["fence"], row["nonce"]) if row else None

    @asynccontextmanager
    async def _session(self, within_s: float) -> AsyncIterator[Connection]:
        async with self._sessions.session(within_s) as connection:
            try:
                yield connection
            except psycopg.Error as error:
                if error.sqlstate not in _MISSING:
                    raise
                raise targets.no_table(self._sessions.where) from error

    async def close(self) -> None:
        await self._sessions.close()


def _settings(params: Mapping[str, Value]) -> Mapping[str, Any]:
    return {
        "name": fencing.application_name(str(params["election"]), int(str(params["fence"]))),
        "raise_ms": str(int(RAISE_S * 1000)),
        "answer_ms": str(int(ANSWER_S * 1000)),
    }
