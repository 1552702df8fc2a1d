"""The ledger in one SQLite file: one machine, several processes. Never on a network file system.

One worker thread owns the connection. A write is BEGIN IMMEDIATE, the guard, the statements,
COMMIT: from BEGIN on nobody else writes, so the guard may come first. WAL and synchronous = FULL: a
commit that was answered outlives a power cut, as far as the disk keeps its word.

Not promised: progress while another process is frozen inside its transaction; that lasts until it
wakes or is killed.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import sqlite3
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import datetime
from functools import partial
from typing import Any, TypeVar

from cron_leader import fencing
from cron_leader.core.model import (
    Applied,
    Batch,
    Candidate,
    Finish,
    LedgerId,
    Mark,
    Past,
    Refused,
    Taken,
    Term,
)
from cron_leader.errors import CronLeaderError, LedgerNotCommitted, LedgerUncertain
from cron_leader.ledger import migrate as migrations
from cron_leader.ledger.guarded import (
    PAST_QUERIES,
    GuardedLedger,
    guard_params,
    judge_raise,
    mark_of,
    past_of,
    raise_params,
    raise_queries,
    refusal_of,
    refusal_of_raise,
)
from cron_leader.ledger.sql import Dialect, Params, queries, to_text
from cron_leader.ledger.sqlite_file import Connection, SqliteFile, is_busy, path_of, translate
from cron_leader.ledger.sqlite_fresh import insert_fresh, is_fresh
from cron_leader.ledger.worker import Worker
from cron_leader.ledger.writes import WRITE_S, Rows, Step, Write, plan_to, take
from cron_leader.ledger.writes import finish as end_of

T = TypeVar("T")

OPEN_S = 30.0
RAISE_S = 60.0
"""The longest wait for another's transaction; the caller's patience is shorter."""

LOOK_S = 0.1
"""After this long of waiting for the write lock a read shows whether the ledger is alive."""

PAUSE_S = 0.005
"""Between two tries, for locks on which SQLite does not wait by itself."""

UNIQUE = (sqlite3.SQLITE_CONSTRAINT_PRIMARYKEY, sqlite3.SQLITE_CONSTRAINT_UNIQUE)

RECORD_S = 1.0
"""What the record of a refusal may take; it is worth no more."""

TOGETHER = 100
"""The most ends of runs in one transaction; a claim does not wait for more."""

SOON_PAGES, LATE_PAGES = 1000, 8000
"""Of the WAL (4 and 32 MB): a checkpoint takes tens of milliseconds, so it is the ends of runs that
make them; claims do not, unless runs end too seldom for that."""

CHUNK = 5000
"""Rows of a batch in one statement: some ten milliseconds of text."""

QUEUE_S = 1.0
"""What an operation may take beyond its patience: the worker is busy, or the disk hangs."""

_QUERIES = queries(Dialect.SQLITE)


class Patience:
    """How long one operation tries for a lock; ends early when nobody waits for it any more."""

    def __init__(self, within_s: float, waiting: Callable[[], None] | None = None) -> None:
        self.within_s = within_s
        self.abandoned = threading.Event()
        now = time.monotonic()
        self._until = now + within_s
        self._look_at = now + LOOK_S
        self._waiting = waiting

    def spent(self) -> bool:
        """Called after a try that found the lock taken; a moment later: whether to give up."""
        return self.abandoned.wait(PAUSE_S) or time.monotonic() >= self._until

    def look(self, connection: Connection) -> None:
        """Tell, once, that the ledger answers reads while the write waits."""
        if self._waiting and time.monotonic() >= self._look_at:
            _identity(connection)
            self._waiting()
            self._waiting = None


Work = Callable[[Connection], T]


class _Together:
    """Ends of runs that share a transaction, and its answers in their order."""

    def __init__(self) -> None:
        self.writes: list[Write[Applied]] = []
        self.answers: asyncio.Future[Sequence[Applied | Refused]]


class SqliteLedger(GuardedLedger):
    """`sqlite:///relative/path.db` or `sqlite:////absolute/path.db`."""

    _alone = True
    """Whether the usual claim has its own way here."""

    def __init__(self, url: str) -> None:
        self._file = SqliteFile(path_of(url))
        self._where = self._file.path
        self._worker = Worker("ledger")
        self._turn = asyncio.Lock()
        self._gathering: _Together | None = None
        self._closed = False

    # -------------------------------------------------------------- identity

    async def open(self, *, fleet: str, shards: int, migrate: bool) -> LedgerId:
        def work(connection: Connection) -> LedgerId:
            version = _version(connection)
            if not migrations.check_version(version, Dialect.SQLITE, where=self._where):
                if not migrate:
                    raise migrations.not_migrated(version, where=self._where)
                _migrate(connection)
            if not _identity(connection).fleet:
                with transaction(connection):
                    execute(connection, Step("adopt", {"fleet": fleet, "shards": shards}))
            return _identity(connection)

        found = await self._call(work, Patience(OPEN_S), create=migrate)
        return migrations.check_owner(found, fleet=fleet, shards=shards, where=self._where)

    async def identity(self) -> LedgerId:
        return await self._call(_identity, Patience(WRITE_S))

    async def clock(self) -> datetime | None:
        await self.identity()
        return None

    async def timeline(self) -> str | None:
        return None

    async def mark(self, election: str) -> Mark | None:
        read = Step("read_fence", {"election": election})
        return await self._call(lambda c: mark_of(execute(c, read)), Patience(WRITE_S))

    async def close(self) -> None:
        if not self._closed:
            self._closed = True
            with contextlib.suppress(TimeoutError):  # it hangs: so does its file
                await self._worker.close(self._file.close, within_s=QUEUE_S)

    # -------------------------------------------------------------- the raise

    async def rehearse(self, election: str) -> None:
        """Nothing: its statements take microseconds to plan."""

    async def raise_fence(
        self, candidate: Candidate, now: datetime, *, waiting: Callable[[], None]
    ) -> int | Refused:
        params = raise_params(candidate, now)

        def work(connection: Connection) -> int | Refused:
            # Not waited for: the settlement is, before the gate opens, and who loses power in
            # between loses the older leader with it, on the same machine.
            with transaction(connection, on_disk=False):
                for query in raise_queries(candidate):
                    rows = execute(connection, Step(query, params))
            self._foreread = (candidate.nonce, _past(connection, candidate.election))
            return judge_raise(candidate, rows)

        loop = asyncio.get_running_loop()

        def tell() -> None:
            loop.call_soon_threadsafe(waiting)

        answer = await self._call(work, Patience(RAISE_S, tell))
        if isinstance(answer, Refused):
            await self._record(refusal_of_raise(candidate, answer, now))
        return answer

    async def look_back(self, election: str) -> Past:
        return await self._call(lambda c: _past(c, election), Patience(WRITE_S))

    async def read(self, query: str, params: Params) -> Rows:
        return await self._call(lambda c: execute(c, Step(query, params)), Patience(WRITE_S))

    # -------------------------------------------------------------- guarded writes

    async def take(self, term: Term, batch: Batch) -> Taken | Refused:
        if not (self._alone and is_fresh(batch)):
            return await super().take(term, batch)
        write = plan_to(term, batch)
        work = partial(_take_fresh, write=write, batch=batch)
        return await self._told(write, await self._call(work, Patience(write.within_s)))

    async def finish(self, term: Term, finish: Finish) -> Applied | Refused:
        """Those that come while others are written share a transaction: what one costs is the time
        of the disk, and a thousand runs may end in one second."""
        if self._gathering is None or len(self._gathering.writes) == TOGETHER:
            self._gathering = _Together()
            self._gathering.answers = asyncio.ensure_future(self._send_together(self._gathering))
        ours, write = self._gathering, end_of(term, finish)
        ours.writes.append(write)
        number = len(ours.writes) - 1
        answers = await asyncio.shield(ours.answers)
        return await self._told(write, answers[number])

    async def _send_together(self, some: _Together) -> Sequence[Applied | Refused]:
        async with self._turn:
            if self._gathering is some:
                self._gathering = None
            return await self._call(partial(_send_all, some=some.writes), Patience(WRITE_S))

    async def write(self, write: Write[T]) -> T | Refused:
        def work(connection: Connection) -> T | Refused:
            try:
                return _send(connection, write)
            except sqlite3.IntegrityError as error:
                if write.instead is None or error.sqlite_errorcode not in UNIQUE:
                    raise
                return _send(connection, write.instead)

        return await self._told(write, await self._call(work, Patience(write.within_s)))

    async def _told(self, write: Write[T], answer: T | Refused) -> T | Refused:
        """The answer; a refusal is recorded."""
        if isinstance(answer, Refused):
            await self._record(refusal_of(write, answer))
        return answer

    async def _record(self, refusal: Params) -> None:
        """Best effort, unfenced: the one thing a deposed leader may write."""

        def work(connection: Connection) -> None:
            with transaction(connection):
                execute(connection, Step("record_refusal", refusal))

        with contextlib.suppress(CronLeaderError):
            await self._call(work, Patience(RECORD_S))

    # -------------------------------------------------------------- the worker

    async def _call(self, work: Work[T], patience: Patience, *, create: bool = False) -> T:
        if self._closed:
            raise LedgerNotCommitted(f"ledger {self._where}: closed")
        running = partial(self._run, work, patience, create)
        try:
            return await self._worker.call(running, within_s=patience.within_s + QUEUE_S)
        except TimeoutError:
            raise LedgerUncertain(f"ledger {self._where}: no answer in time") from None
        finally:
            patience.abandoned.set()

    def _run(self, work: Work[T], patience: Patience, create: bool) -> T:
        """The whole of it again while a lock is taken: a try that failed has left nothing."""
        while True:
            try:
                return work(self._file.connection(create=create))
            except sqlite3.Error as error:
                if not is_busy(error) or patience.spent():
                    raise translate(error, self._where) from error
            with contextlib.suppress(sqlite3.Error):
                patience.look(self._file.connection())


# ------------------------------------------------------------------ transactions, in the worker


@contextlib.contextmanager
def transaction(
    connection: Connection, *, on_disk: bool = True, checkpoint_at: int = LATE_PAGES
) -> Iterator[None]:
    """BEGIN IMMEDIATE; COMMIT at the end, ROLLBACK on any exception.

    on_disk False: everybody sees it, but a loss of power may take it back, until the next
    transaction that is on disk: that one takes along all before it. checkpoint_at: with so many
    pages in the WAL it is this transaction that brings them into the file.
    """
    connection.set("synchronous", "FULL" if on_disk else "NORMAL")
    connection.set("wal_autocheckpoint", checkpoint_at)
    connection.execute("BEGIN IMMEDIATE")
    try:
        yield
        connection.execute("COMMIT")
    except BaseException:
        if connection.in_transaction:
            connection.execute("ROLLBACK")
        raise


def _send(connection: Connection, write: Write[T]) -> T | Refused:
    with transaction(connection, on_disk=write.on_disk):
        return _write(connection, write)


def _send_all(
    connection: Connection, some: Sequence[Write[Applied]]
) -> Sequence[Applied | Refused]:
    """All of them in one transaction; each has its own guard. No slot waits for it."""
    with transaction(connection, checkpoint_at=SOON_PAGES):
        return list(map(partial(_write, connection), some))


def _write(connection: Connection, write: Write[T]) -> T | Refused:
    refused = _guard(connection, write.term, write.what)
    if refused is not None:
        return refused
    rows: Rows = ()
    for step in write.steps:
        rows = execute(connection, step)
    return write.answer(rows, None)


def _take_fresh(connection: Connection, write: Write[Taken], batch: Batch) -> Taken | Refused:
    """The short way, unless a row was there or a job is paused; then the long one."""
    with contextlib.suppress(_NotFresh), transaction(connection):
        refused = _guard(connection, write.term, write.what)
        if refused is not None:
            return refused
        taken = insert_fresh(connection, write.term, batch)
        if taken is None:
            raise _NotFresh
        for step in write.steps:
            execute(connection, step)
        return taken
    return _send(connection, take(write.term, batch))


class _NotFresh(Exception):
    """Nothing was written."""


def _guard(connection: Connection, term: Term, what: str) -> Refused | None:
    """Whether the term holds the fence, which nobody can raise while we hold the write lock."""
    held = connection.execute(fencing.SQLITE_GUARD, guard_params(term)).fetchone()
    if held is not None and (held["fence"], held["nonce"]) == (term.fence, term.nonce):
        return None
    return Refused(what, held and held["fence"])


def _past(connection: Connection, election: str) -> Past:
    params = {"election": election}
    return past_of(*(execute(connection, Step(query, params)) for query in PAST_QUERIES))


def execute(connection: Connection, step: Step) -> Rows:
    """One statement; of a batch one for each chunk, its rows as a JSON text. To write that text
    holds up all other threads, the event loop's too."""
    text = _QUERIES[step.query].text
    values = {name: to_text(value) for name, value in step.params.items()}
    if step.rows is None:
        return connection.execute(text, values).fetchall()
    found: list[Mapping[str, Any]] = []
    for start in range(0, len(step.rows), CHUNK):
        rows = step.rows[start : start + CHUNK]
        values["batch"] = json.dumps([[to_text(value) for value in row] for row in rows])
        found += connection.execute(text, values).fetchall()
    return found


# ------------------------------------------------------------------ schema


def _identity(connection: Connection) -> LedgerId:
    return migrations.identity_of(execute(connection, Step("identity", {})))


def _version(connection: Connection) -> int | None:
    meta = "SELECT 1 FROM sqlite_master WHERE type = 'table' AND name = 'cron_leader_meta'"
    if connection.execute(meta).fetchone() is None:
        return None
    return _identity(connection).schema_version


def _migrate(connection: Connection) -> None:
    """Whatever is missing, in one transaction; other nodes that start now wait for it."""
    with transaction(connection):
        since = _version(connection) or 0
        for script in migrations.migrations(Dialect.SQLITE, since=since):
            for statement in _split(script):
                connection.execute(statement)


def _split(script: str) -> Iterator[str]:
    """Its statements one by one: executescript() would commit behind our back."""
    statement = ""
    for line in script.splitlines(keepends=True):
        statement += line
        if sqlite3.complete_statement(statement):
            yield statement
            statement = ""
