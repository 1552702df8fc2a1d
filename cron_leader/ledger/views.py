"""Reads of the ledger for people and checks: `status`, `history`, verdicts; and what operators
write: the rebase, and commands to the leader.

A `Reader` is synchronous and has a connection of its own. Rows come newest first, except where a
method says otherwise; times are aware UTC datetimes. Nothing here is under the fence.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from datetime import datetime
from typing import Any, Protocol, TypeVar

from cron_leader.core.model import LedgerId
from cron_leader.errors import LedgerUnusable
from cron_leader.ledger.migrate import identity_of
from cron_leader.ledger.sql import Dialect, Params, queries, to_text, to_time_or_none, translate


@dataclass(frozen=True, slots=True)
class FenceRow:
    """cron_leader_fence. cluster: etcd's cluster id in hex."""

    election: str
    fence: int
    nonce: str
    offset: int
    cluster: str | None
    node: str
    raised_at: datetime


@dataclass(frozen=True, slots=True)
class TermRow:
    election: str
    fence: int
    nonce: str
    node: str
    lease: int
    elected_at: datetime
    heartbeat_at: datetime
    planned_to: datetime
    ended_at: datetime | None
    reason: str | None


@dataclass(frozen=True, slots=True)
class JobRow:
    job: str
    election: str
    first_seen: datetime
    effective_from: datetime
    retired_at: datetime | None
    paused_until: datetime | None
    paused_why: str | None
    digest: str


@dataclass(frozen=True, slots=True)
class SlotRow:
    job: str
    scheduled_for: datetime
    command_id: str
    election: str
    fence: int
    node: str
    state: str
    reason: str | None
    origin: str
    attempt: int
    run_id: str | None
    next_at: datetime | None
    started_at: datetime | None
    finished_at: datetime | None


@dataclass(frozen=True, slots=True)
class GapRow:
    job: str
    first: datetime
    last: datetime
    slots: int
    state: str
    reason: str
    fence: int


@dataclass(frozen=True, slots=True)
class AttemptRow:
    job: str
    scheduled_for: datetime
    command_id: str
    attempt: int
    run_id: str
    fence: int
    node: str
    state: str
    started_at: datetime
    heartbeat_at: datetime | None
    finished_at: datetime | None
    exit_code: int | None
    error: str | None
    output: str | None


@dataclass(frozen=True, slots=True)
class RefusalRow:
    """cron_leader_refusal. high: the fence that refused; outcome: what a refused finish said."""

    at: datetime
    election: str
    fence: int
    high: int | None
    node: str
    what: str
    outcome: str | None


@dataclass(frozen=True, slots=True)
class CommandRow:
    """cron_leader_command, the audit log. args: JSON. result None: no leader has answered it."""

    id: str
    kind: str
    target: str
    args: str
    who: str
    why: str | None
    at: datetime
    done_by_fence: int | None = None
    result: str | None = None


BUSY_S = 3.0
"""How long a read waits for a lock on SQLite; in WAL it hardly ever meets one."""

R = TypeVar("R", FenceRow, TermRow, JobRow, SlotRow, GapRow, AttemptRow, RefusalRow, CommandRow)


class Database(Protocol):
    """One connection, either kind: `:word` parameters in, mappings out, errors in our words."""

    dialect: Dialect

    def run(self, text: str, params: Params) -> Sequence[Mapping[str, Any]]: ...

    def close(self) -> None: ...


class Reader:
    """What stands in one ledger. Every method may raise LedgerUncertain or LedgerUnusable."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def __enter__(self) -> Reader:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self._database.close()

    def identity(self) -> LedgerId:
        return identity_of(self._named("identity", {}))

    def fence_row(self, election: str) -> FenceRow | None:
        found = self._select(FenceRow, "cron_leader_fence", {"election": election})
        return found[0] if found else None

    def terms(
        self, election: str | None = None, *, limit: int | None = None
    ) -> tuple[TermRow, ...]:
        where = {"election": election}
        return self._select(TermRow, "cron_leader_term", where, order="fence DESC", limit=limit)

    def jobs(self, election: str | None = None) -> tuple[JobRow, ...]:
        """By name; retired ones too."""
        return self._select(JobRow, "cron_leader_job", {"election": election}, order="job")

    def slots(
        self, *, election: str | None = None, job: str | None = None, limit: int | None = None
    ) -> tuple[SlotRow, ...]:
        where = {"election": election, "job": job}
        order = "scheduled_for DESC, job, command_id"
        return self._select(SlotRow, "cron_leader_slot", where, order=order, limit=limit)

    def last_slots(self) -> Mapping[str, SlotRow]:
        """The newest slot of each job that has one."""
        rows = self._named("last_slots", {})
        return {row["job"]: _row(SlotRow, row) for row in rows}

    def gaps(self, *, job: str | None = None, limit: int | None = None) -> tuple[GapRow, ...]:
        order = '"first" DESC, job'
        return self._select(GapRow, "cron_leader_gap", {"job": job}, order=order, limit=limit)

    def attempts(
        self, *, job: str | None = None, limit: int | None = None
    ) -> tuple[AttemptRow, ...]:
        order = "scheduled_for DESC, job, command_id, attempt DESC"
        return self._select(
            AttemptRow, "cron_leader_attempt", {"job": job}, order=order, limit=limit
        )

    def refusals(
        self, election: str | None = None, *, limit: int | None = None
    ) -> tuple[RefusalRow, ...]:
        where = {"election": election}
        return self._select(RefusalRow, "cron_leader_refusal", where, order="at DESC", limit=limit)

    def commands(
        self, target: str | None = None, *, id: str | None = None, limit: int | None = None
    ) -> tuple[CommandRow, ...]:
        where = {"target": target, "id": id}
        return self._select(CommandRow, "cron_leader_command", where, order="at DESC", limit=limit)

    def order(self, command: CommandRow) -> None:
        """Put a command to whoever leads its target; sent again, it is still one."""
        fields = ("id", "kind", "target", "args", "who", "why", "at")
        self._named("put_command", {name: getattr(command, name) for name in fields})

    def rebase(self, election: str) -> FenceRow | None:
        """After etcd was restored or rebuilt: the next fence counts on from the one that stands.

        One UPDATE; the row as it is then, None if the election never had a leader.
        """
        self._named("rebase_fence", {"election": election})
        return self.fence_row(election)

    def _named(self, query: str, params: Params) -> Sequence[Mapping[str, Any]]:
        return self._database.run(queries(self._database.dialect)[query].text, params)

    def _select(
        self,
        kind: type[R],
        table: str,
        where: Mapping[str, str | None],
        *,
        order: str = "1",
        limit: int | None = None,
    ) -> tuple[R, ...]:
        """Rows of one table; conditions whose value is None do not count."""
        wanted = {name: value for name, value in where.items() if value is not None}
        text = f"SELECT {', '.join(_columns(kind))} FROM {table}"
        if wanted:
            text += " WHERE " + " AND ".join(f"{name} = :{name}" for name in wanted)
        text += f" ORDER BY {order}" + ("" if limit is None else f" LIMIT {limit:d}")
        rows = self._database.run(translate(self._database.dialect, text), wanted)
        return tuple(_row(kind, row) for row in rows)


def _columns(kind: type[R]) -> Iterable[str]:
    return (f'"{field.name}"' for field in fields(kind))


def _row(kind: type[R], row: Mapping[str, Any]) -> R:
    return kind(*(_value(str(field.type), row[field.name]) for field in fields(kind)))


def _value(annotation: str, value: Any) -> Any:
    return to_time_or_none(value) if annotation.startswith("datetime") else value


# ------------------------------------------------------------------ the two databases


def open_reader(url: str) -> Reader:
    """A connection to an existing ledger; its schema is not looked at.

    Raises LedgerUnusable, LedgerUncertain.
    """
    scheme = url.partition(":")[0]
    if scheme == "sqlite":
        return Reader(SqliteDatabase(url))
    if scheme in {"postgresql", "postgres"}:
        return Reader(PostgresDatabase(url))
    raise LedgerUnusable(
        f"ledger url {scheme!r}: unknown scheme; use sqlite:///file.db or postgresql://host/db"
    )


class SqliteDatabase:
    dialect = Dialect.SQLITE

    def __init__(self, url: str) -> None:
        from cron_leader.ledger.sqlite_file import open_file, path_of, translate

        self._path = path_of(url)
        self._translate = translate
        try:
            self._connection = open_file(self._path, create=False, busy_s=BUSY_S)
        except sqlite3.Error as error:
            raise translate(error, self._path) from error

    def run(self, text: str, params: Params) -> Sequence[Mapping[str, Any]]:
        values = {name: to_text(value) for name, value in params.items()}
        try:
            return self._connection.execute(text, values).fetchall()
        except sqlite3.Error as error:
            raise self._translate(error, self._path) from error

    def close(self) -> None:
        self._connection.close()


class PostgresDatabase:
    dialect = Dialect.POSTGRES

    def __init__(self, url: str) -> None:
        import psycopg
        from psycopg.rows import dict_row

        from cron_leader.ledger import pg_dsn, pg_errors

        self._where = pg_dsn.place(url)
        self._errors: tuple[type[Exception], ...] = (psycopg.Error, OSError)
        self._translate = pg_errors.translate
        try:
            self._connection = psycopg.connect(
                pg_dsn.with_defaults(url),
                autocommit=True,
                prepare_threshold=None,  # a pooler would mix up whose statements they are
                row_factory=dict_row,
            )
        except self._errors as error:
            raise self._translate(error, self._where) from error

    def run(self, text: str, params: Params) -> Sequence[Mapping[str, Any]]:
        try:
            cursor = self._connection.execute(text.encode(), params)
            return cursor.fetchall() if cursor.description else []
        except self._errors as error:
            raise self._translate(error, self._where) from error

    def close(self) -> None:
        self._connection.close()
