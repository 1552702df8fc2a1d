"""The ledger on Postgres 13 or newer, one node or many.

Every write of a term is one transaction, sent as one pipeline: BEGIN, its settings, the statements,
the guard, COMMIT. The guard comes last: a successor waits for a COMMIT, not for a transaction. When
the guard refuses, the server skips the COMMIT. All settings are local to the transaction, so that a
pooler in transaction mode does no harm. The usual claim is one statement that does the same on the
server: cron_leader_claim(), made by the migrations.

Not promised: more than the database keeps. After a fail-over to a stand-by that lost commits the
next leader, or the sitting one, finds less than was acknowledged: see `ledger_rollback`.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, TypeVar

import psycopg
from psycopg.pq import TransactionStatus
from psycopg.rows import DictRow

from cron_leader import fencing
from cron_leader.core.model import (
    Batch,
    Candidate,
    DueRow,
    LedgerId,
    Mark,
    Past,
    Refused,
    Settlement,
    Taken,
    Term,
)
from cron_leader.errors import CronLeaderError, LedgerUncertain, LedgerUnusable
from cron_leader.fencing.pipelines import cause
from cron_leader.ledger import migrate as migrations
from cron_leader.ledger import writes
from cron_leader.ledger.guarded import (
    PAST_QUERIES,
    GuardedLedger,
    aside,
    guard_params,
    judge_raise,
    mark_of,
    past_of,
    raise_params,
    raise_queries,
    refusal_of,
    refusal_of_raise,
)
from cron_leader.ledger.pg_fresh import (
    CLAIM,
    COMPILE,
    CUT_SHORT,
    OTHER_ISOLATION,
    claim_params,
    is_fresh,
    rows_of,
)
from cron_leader.ledger.pg_older import end_older, push_past, until_known
from cron_leader.ledger.pg_sessions import Connection, Sessions
from cron_leader.ledger.sql import Dialect, Params, queries, to_array, to_time
from cron_leader.ledger.writes import WRITE_S, Rows, Step, Write, rehearsal, taken

T = TypeVar("T")
Arguments = Mapping[str, Any] | Sequence[Any] | None
Statement = tuple[str, Arguments]
"""Text in psycopg's notation, and its parameters (None: none)."""

READ_S = 3.0
LOOK_BACK_S = 3 * WRITE_S
"""It may read a hundred thousand jobs, in pieces."""
OPEN_S = 30.0
RAISE_S = 60.0
"""The longest wait for the lock of a raise; the caller's patience is shorter."""

FROZEN_S = 5.0
"""A transaction of ours whose client froze is ended by the server after this, if a lease's TTL is
not given: while it waits for our next statement, and while it cannot send its answer, when no
statement timeout is heeded."""

RECORD_S = 1.0
"""What the record of a refusal may take; it is worth no more."""

CHUNK = 5000
"""Rows of a batch sent at once, so that the event loop runs in between."""

PIECE = 1000
"""Rows of an answer that are read at once: some milliseconds."""

_QUERIES = queries(Dialect.POSTGRES)

_BEGIN: Statement = ("BEGIN ISOLATION LEVEL READ COMMITTED", None)
_COMMIT: Statement = ("COMMIT", None)
_CLOCK: Statement = ("SELECT clock_timestamp() AS ledger_now", None)
_TIMELINE = "SELECT substr(pg_walfile_name(pg_current_wal_lsn()), 1, 8) AS timeline"
_SETTINGS = """
SELECT set_config('application_name', %(name)s, true),
    set_config('synchronous_commit', 'on', true),
    set_config('statement_timeout', %(statement_ms)s, true),
    set_config('lock_timeout', '0', true),
    set_config('idle_in_transaction_session_timeout', %(idle_ms)s, true),
    set_config('tcp_user_timeout', %(idle_ms)s, true)
"""

_FIND_META = """
SELECT 1 AS found FROM pg_catalog.pg_class
WHERE relname = 'cron_leader_meta' AND relkind IN ('r', 'p') AND pg_table_is_visible(oid)
"""
"""Not to_regclass(): that answers from a cache which a wait for an advisory lock leaves stale."""


class _OwnCopy:
    """The transaction met a row that only an earlier copy of itself can have written."""


class PostgresLedger(GuardedLedger):
    """`postgresql://user:password@host:port/database`, or anything else libpq reads."""

    _alone = True
    """Whether the usual claim can be one statement here."""

    def __init__(self, url: str, *, frozen_s: float = FROZEN_S) -> None:
        """frozen_s: after how long the server ends a transaction whose client froze."""
        self._sessions = Sessions(url)
        self._where = self._sessions.where
        self._frozen_s = frozen_s

    # -------------------------------------------------------------- identity

    async def open(self, *, fleet: str, shards: int, migrate: bool) -> LedgerId:
        async with self._sessions.session(OPEN_S) as connection:
            self._check_encoding(connection)
            version = await _version(connection)
            if not migrations.check_version(version, Dialect.POSTGRES, where=self._where):
                if not migrate:
                    raise migrations.not_migrated(version, where=self._where)
                await _migrate(connection)
            found = await _identity(connection)
            if not found.fleet:
                await _execute(connection, *_named("adopt", {"fleet": fleet, "shards": shards}))
                found = await _identity(connection)
        return migrations.check_owner(found, fleet=fleet, shards=shards, where=self._where)

    def _check_encoding(self, connection: Connection) -> None:
        encoding = connection.info.parameter_status("server_encoding")
        if encoding != "UTF8":
            raise LedgerUnusable(
                f"ledger {self._where}: the database's encoding is {encoding}; "
                "create it with ENCODING 'UTF8'"
            )

    async def identity(self) -> LedgerId:
        async with self._sessions.session(READ_S) as connection:
            return await _identity(connection)

    async def clock(self) -> datetime | None:
        async with self._sessions.session(READ_S) as connection:
            found, now = await _transact(connection, (_named("identity", {}), _CLOCK))
        migrations.identity_of(found)
        return to_time(now[0]["ledger_now"])

    async def timeline(self) -> str | None:
        async with self._sessions.session(READ_S) as connection:
            rows = await _execute(connection, _TIMELINE)
        return str(rows[0]["timeline"])

    async def mark(self, election: str) -> Mark | None:
        read = _named("read_fence", {"election": election})
        async with self._sessions.session(READ_S) as connection:
            return mark_of(await _execute(connection, *read))

    async def close(self) -> None:
        await self._sessions.close()

    # -------------------------------------------------------------- the raise

    async def rehearse(self, election: str) -> None:
        """What a server process plans for the first time takes it two or three times as long."""
        candidate, now = Candidate(election, "", "", 0, 0, 0), datetime.now(UTC)
        params = raise_params(candidate, now)
        statements = [
            *(_named(query, params) for query in (*raise_queries(candidate), *PAST_QUERIES)),
            *(statement for step in rehearsal(election, now) for statement in _statements(step)),
        ]
        async with self._sessions.session(READ_S) as connection:
            plans: list[Statement] = [(f"EXPLAIN {text}", given) for text, given in statements]
            await _transact(connection, [*plans, (COMPILE, None)])

    async def raise_fence(
        self, candidate: Candidate, now: datetime, *, waiting: Callable[[], None]
    ) -> int | Refused:
        raising = asyncio.create_task(self._raise(candidate, now), name="ledger-raise")
        try:
            await until_known(raising, waiting, self._answers, within_s=WRITE_S)
            answer = await push_past(
                raising, lambda: self._end_older(candidate.election, revision=candidate.revision)
            )
        except TimeoutError:
            raise LedgerUncertain(f"ledger {self._where}: no answer to the raise") from None
        finally:
            raising.cancel()
            await asyncio.gather(raising, return_exceptions=True)
        if isinstance(answer, Refused):
            await self._record(refusal_of_raise(candidate, answer, now))
        return answer

    async def settle(self, term: Term, settlement: Settlement) -> tuple[DueRow, ...] | Refused:
        """A run that froze inside a transaction of its own may hold the row of its slot."""
        settling = asyncio.create_task(super().settle(term, settlement), name="ledger-settle")
        try:
            return await push_past(
                settling, lambda: self._end_older(term.election, fence=term.fence)
            )
        finally:
            settling.cancel()
            await asyncio.gather(settling, return_exceptions=True)

    async def _end_older(
        self, election: str, *, revision: int = 0, fence: int | None = None
    ) -> None:
        await end_older(self._sessions, election, revision=revision, fence=fence)

    async def _answers(self) -> bool:
        with contextlib.suppress(CronLeaderError):
            await self.identity()
            return True
        return False

    async def _raise(self, candidate: Candidate, now: datetime) -> int | Refused:
        params = raise_params(candidate, now)
        past = {"election": candidate.election}
        name = fencing.application_name(candidate.election, candidate.revision)
        statements = (
            *_begin(name, RAISE_S, self._frozen_s),
            (fencing.POSTGRES_EXCLUSIVE, (candidate.election,)),
            *(_named(query, params) for query in raise_queries(candidate)),
            _COMMIT,
            *(_named(query, past) for query in PAST_QUERIES),
        )
        async with self._sessions.session(RAISE_S) as connection:
            *_, fence, _, planned, jobs = await _transact(connection, statements)
        foreread = await aside(len(jobs), lambda: past_of(planned, jobs))
        self._foreread = (candidate.nonce, foreread)
        return judge_raise(candidate, fence)

    async def look_back(self, election: str) -> Past:
        statements = [_named(query, {"election": election}) for query in PAST_QUERIES]
        async with self._sessions.session(LOOK_BACK_S) as connection:
            planned, jobs = await _transact(connection, statements)
        return await aside(len(jobs), lambda: past_of(planned, jobs))

    async def read(self, query: str, params: Params) -> Rows:
        async with self._sessions.session(WRITE_S) as connection:
            return await _execute(connection, *_named(query, params))

    # -------------------------------------------------------------- guarded writes

    async def take(self, term: Term, batch: Batch) -> Taken | Refused:
        if self._alone and is_fresh(batch) and len(batch.claims) <= CHUNK:
            answer = await self._claim(term, batch)
            if isinstance(answer, Refused):
                await self._record(refusal_of(writes.take(term, batch), answer))
            if answer is not None:
                return answer
        return await super().take(term, batch)

    async def _claim(self, term: Term, batch: Batch) -> Taken | Refused | None:
        """In one statement; None: not so, for want of settings that have to be named first."""
        frozen_ms = int(self._frozen_s * 1000)
        params = claim_params(term, batch, within_ms=int(WRITE_S * 1000), frozen_ms=frozen_ms)
        async with self._sessions.session(WRITE_S) as connection:
            try:
                rows = rows_of(await connection.call(CLAIM, params))
            except psycopg.Error as error:
                if error.sqlstate == fencing.REFUSED:
                    return Refused("claim", _fence_in(error))
                if error.sqlstate not in (OTHER_ISOLATION, CUT_SHORT):
                    raise
                self._alone = error.sqlstate == CUT_SHORT  # which may never come again
                return None
        return taken(rows)

    async def write(self, write: Write[T]) -> T | Refused:
        answer = await self._send(write)
        if isinstance(answer, _OwnCopy):
            assert write.instead is not None
            return await self.write(write.instead)
        if isinstance(answer, Refused):
            await self._record(refusal_of(write, answer))
        return answer

    async def _send(self, write: Write[T]) -> T | Refused | _OwnCopy:
        many = sum(len(step.rows or ()) for step in write.steps)
        statements, last = await aside(many, lambda: self._script(write))
        async with self._sessions.session(write.within_s) as connection:
            try:
                *answers, guard, _ = await _transact(connection, statements)
            except psycopg.errors.UniqueViolation:
                if write.instead is None:
                    raise
                return _OwnCopy()
            except psycopg.Error as error:
                if error.sqlstate != fencing.REFUSED:
                    raise
                return Refused(write.what, _fence_in(error))
        rows = [row for answer in answers[-last:] for row in answer]
        now = to_time(guard[0]["ledger_now"])
        return await aside(len(rows), lambda: write.answer(rows, now))

    def _script(self, write: Write[T]) -> tuple[Sequence[Statement], int]:
        """The whole transaction, and how many statements its last step is."""
        last = tuple(_statements(write.steps[-1]))
        statements = (
            *_begin(
                fencing.application_name(write.term.election, write.term.fence),
                write.within_s,
                self._frozen_s,
            ),
            *(statement for step in write.steps[:-1] for statement in _statements(step)),
            *last,
            (fencing.POSTGRES_GUARD, guard_params(write.term)),
            _COMMIT,
        )
        return statements, len(last)

    async def _record(self, refusal: Params) -> None:
        """Best effort, unfenced: the one thing a deposed leader may write."""
        with contextlib.suppress(CronLeaderError):
            async with self._sessions.session(RECORD_S) as connection:
                await _execute(connection, *_named("record_refusal", refusal))


# ------------------------------------------------------------------ statements


def _begin(name: str, within_s: float, frozen_s: float) -> tuple[Statement, Statement]:
    settings = {"name": name, "statement_ms": _ms(within_s), "idle_ms": _ms(frozen_s)}
    return _BEGIN, (_SETTINGS, settings)


def _ms(seconds: float) -> str:
    return str(int(seconds * 1000))


def _named(query: str, params: Params) -> Statement:
    return _QUERIES[query].text, params


def _statements(step: Step) -> Iterator[tuple[str, Params]]:
    """One statement; of a batch one for each chunk, its rows turned into columns."""
    query = _QUERIES[step.query]
    if step.rows is None:
        yield query.text, step.params
        return
    for start in range(0, len(step.rows), CHUNK):
        columns = zip(*step.rows[start : start + CHUNK], strict=True)
        arrays = {name: to_array(c) for name, c in zip(query.columns, columns, strict=True)}
        yield query.text, {**step.params, **arrays}


def _fence_in(error: psycopg.Error) -> int | None:
    return int(error.diag.message_detail) if error.diag.message_detail else None


# ------------------------------------------------------------------ sending


async def _transact(connection: Connection, statements: Sequence[Statement]) -> list[Rows]:
    """All of it in one round trip; rolled back on a definite error of the server."""
    if len(statements) == 1:
        return [await _execute(connection, *statements[0])]
    try:
        async with connection.pipeline():
            cursors = [await connection.execute(t.encode(), p) for t, p in statements]
        return [await _rows(cursor) for cursor in cursors]
    except psycopg.Error as error:
        if connection.pgconn.transaction_status == TransactionStatus.INERROR:
            await connection.execute("ROLLBACK")
        raise cause(error) from None


async def _execute(connection: Connection, text: str, params: Arguments = None) -> Rows:
    return await _rows(await connection.execute(text.encode(), params))


async def _rows(cursor: psycopg.AsyncCursor[DictRow]) -> Rows:
    """All rows, read in pieces, so that the event loop runs in between."""
    rows: list[DictRow] = []
    left = cursor.rowcount if cursor.pgresult and cursor.pgresult.nfields else 0
    while left > 0:
        rows += await cursor.fetchmany(PIECE)
        left -= PIECE
        if left > 0:
            await asyncio.sleep(0)
    return rows


# ------------------------------------------------------------------ schema


async def _identity(connection: Connection) -> LedgerId:
    return migrations.identity_of(await _execute(connection, _QUERIES["identity"].text))


async def _version(connection: Connection) -> int | None:
    if not await _execute(connection, _FIND_META):
        return None
    return (await _identity(connection)).schema_version


async def _migrate(connection: Connection) -> None:
    """Whatever is missing, in one transaction; other nodes that start now wait for it.

    Given up (LedgerNotCommitted) behind somebody's long transaction: see POSTGRES_PATIENCE.
    """
    await _execute(connection, *_BEGIN)
    await _execute(connection, migrations.POSTGRES_LOCK)
    await _execute(connection, migrations.POSTGRES_PATIENCE)
    since = await _version(connection) or 0
    for script in migrations.migrations(Dialect.POSTGRES, since=since):
        await _execute(connection, script)
    await _execute(connection, *_COMMIT)
