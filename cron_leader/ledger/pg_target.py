"""A fence target on Postgres. A raise there is as bounded as in the ledger: it waits for a COMMIT,
and a run that froze right before one is ended by it, or by the server after a TTL."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Any

import psycopg

from cron_leader import fencing
from cron_leader.errors import CronLeaderError, LedgerUncertain
from cron_leader.fencing.pipelines import cause
from cron_leader.ledger import targets
from cron_leader.ledger.pg_older import end_older, push_past, until_known
from cron_leader.ledger.pg_sessions import Connection, Sessions
from cron_leader.ledger.sql import Dialect, Value, translate

READ_S = 3.0
RAISE_S = 60.0
"""The longest wait for the lock of a raise; the caller's patience is shorter."""

ANSWER_S = 5.0
"""The longest wait for anything else: for a sign of life, or for a client that froze."""

_MISSING = {"42P01", "42883", "3F000"}
"""SQLSTATEs of a table, a function or a schema that is not there."""

_RAISE = translate(Dialect.POSTGRES, targets.RAISE)
_HELD = translate(Dialect.POSTGRES, targets.HELD)
_SETTINGS = """
SELECT set_config('application_name', %(name)s, true),
    set_config('synchronous_commit', 'on', true),
    set_config('statement_timeout', %(raise_ms)s, true),
    set_config('lock_timeout', '0', true),
    set_config('idle_in_transaction_session_timeout', %(answer_ms)s, true),
    set_config('tcp_user_timeout', %(answer_ms)s, true)
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
        raising = asyncio.create_task(self._raise(params), name="target-raise")
        try:
            await until_known(raising, waiting, self._answers, within_s=ANSWER_S)
            return await push_past(raising, lambda: self._end_older(params))
        except TimeoutError:
            raise LedgerUncertain(
                f"ledger {self._sessions.where}: no answer to the raise"
            ) from None
        finally:
            raising.cancel()
            await asyncio.gather(raising, return_exceptions=True)

    async def _raise(self, params: Mapping[str, Value]) -> targets.Held | None:
        """One round trip, lest a raise that freezes in the middle keep its lock."""
        statements: tuple[tuple[str, Any], ...] = (
            ("BEGIN ISOLATION LEVEL READ COMMITTED", None),
            (_SETTINGS, _settings(params)),
            (fencing.POSTGRES_EXCLUSIVE, (params["election"],)),
            (_RAISE, params),
            (_HELD, params),
            ("COMMIT", None),
        )
        async with self._session(RAISE_S) as connection:
            async with connection.pipeline():
                cursors = [await connection.execute(t.encode(), p) for t, p in statements]
            row = await cursors[-2].fetchone()
        return (row["fence"], row["nonce"]) if row else None

    async def _answers(self) -> bool:
        with contextlib.suppress(CronLeaderError):
            await self.probe()
            return True
        return False

    async def _end_older(self, params: Mapping[str, Value]) -> None:
        election, fence = _term(params)
        await end_older(self._sessions, election, fence=fence)

    @asynccontextmanager
    async def _session(self, within_s: float) -> AsyncIterator[Connection]:
        async with self._sessions.session(within_s) as connection:
            try:
                yield connection
            except psycopg.Error as told:
                error = cause(told)
                if not isinstance(error, psycopg.Error) or error.sqlstate not in _MISSING:
                    raise error from None
                raise targets.no_table(self._sessions.where) from error

    async def close(self) -> None:
        await self._sessions.close()


def _term(params: Mapping[str, Value]) -> tuple[str, int]:
    return str(params["election"]), int(str(params["fence"]))


def _settings(params: Mapping[str, Value]) -> Mapping[str, Any]:
    return {
        "name": fencing.application_name(*_term(params)),
        "raise_ms": str(int(RAISE_S * 1000)),
        "answer_ms": str(int(ANSWER_S * 1000)),
    }
