"""Reads of the ledger for people and checks: `status`, `history`, verdicts; and what operators
write: the rebase, and commands to the leader.

A `Reader` is synchronous and has a connection of its own. Rows come newest first, except where a
method says otherwise; times are aware UTC datetimes. Nothing here is under the fence.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from datetime import datetime, timedelta
from typing import Any, Protocol, TypeVar

from cron_leader.core.model import LedgerId, State
from cron_leader.errors import LedgerUnusable
from cron_leader.ledger.migrate import identity_of
from cron_leader.ledger.sql import (
    Dialect,
    Params,
    Value,
    queries,
    to_text,
    to_time,
    to_time_or_none,
    translate,
)


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
    paused_from: datetime | None = None


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


MOST_PAUSED = 100_000

TROUBLE = (
    State.FAILED,
    State.TIMED_OUT,
    State.CANCELLED,
    State.ABANDONED,
    State.SKIPPED,
    State.MISSED,
)
WAITING = (State.DUE, State.RUNNING, State.RETRYING)
"""The states of the two partial indexes, in the order in which their conditions name them."""


@dataclass(frozen=True, slots=True)
class Wanted:
    """Which slots a history shows; None and () do not count.

    since, until: of scheduled_for, the first inclusive. fence, node: of the term that wrote last.
    """

    job: str | None = None
    states: tuple[State, ...] = ()
    node: str | None = None
    fence: int | None = None
    since: datetime | None = None
    until: datetime | None = None


BUSY_S = 3.0
"""How long a read waits for a lock on SQLite; in WAL it hardly ever meets one."""

R = TypeVar("R", FenceRow, TermRow, JobRow, SlotRow, GapRow, AttemptRow, RefusalRow, CommandRow)


class Database(Protocol):
    """One connection, either kind: `:word` parameters in, mappings out, errors in our words."""

    dialect: Dialect
    where: str

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

    @property
    def where(self) -> str:
        """The ledger as messages name it: without secrets."""
        return self._database.where

    def is_made(self) -> bool:
        """Whether anybody has made its tables."""
        return bool(self._database.run(_FIND_TABLES[self._database.dialect], {}))

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

    def job(self, name: str) -> JobRow | None:
        found = self._select(JobRow, "cron_leader_job", {"job": name})
        return found[0] if found else None

    def history(self, wanted: Wanted, *, limit: int) -> tuple[SlotRow, ...]:
        """Newest first, found by an index, whatever is wanted; a node's, back from its last term.

        Not promised: speed for a node that led long ago and briefly.
        """
        params: dict[str, Value] = {
            "job": wanted.job,
            "node": wanted.node,
            "fence": wanted.fence,
        }
        conditions = [f"{name} = :{name}" for name, value in params.items() if value is not None]
        params |= {"since": wanted.since, "until": self._until(wanted)}
        conditions += ["scheduled_for >= :since"] if wanted.since else []
        conditions += ["scheduled_for < :until"] if params["until"] else []
        conditions += _of_states(wanted.states)
        order = "scheduled_for DESC, job, command_id"
        return self._find(SlotRow, "cron_leader_slot", conditions, params, order, limit)

    def _until(self, wanted: Wanted) -> datetime | None:
        """Nothing of a node that leads no more is newer than its last term."""
        if wanted.node is None:
            return wanted.until
        (last,) = self._named("last_word", {"node": wanted.node})
        if last["until"] is None or last["leads"]:
            return wanted.until
        until: datetime = to_time(last["until"]) + timedelta.resolution
        return until if wanted.until is None else min(until, wanted.until)

    def gap_history(self, wanted: Wanted, *, limit: int) -> tuple[GapRow, ...]:
        """The gaps that lie, with a part at least, in what is wanted; newest first."""
        params: dict[str, Value] = {"job": wanted.job, "fence": wanted.fence}
        conditions = [f"{name} = :{name}" for name, value in params.items() if value is not None]
        params |= {"since": wanted.since, "until": wanted.until, "node": wanted.node}
        conditions += ['"last" >= :since'] if wanted.since else []
        conditions += ['"first" < :until'] if wanted.until else []
        conditions += _of_states(wanted.states)[:1]
        if wanted.node is not None:
            terms = "SELECT t.fence FROM cron_leader_term AS t WHERE t.node = :node"
            conditions.append(f"fence IN ({terms})")
        return self._find(GapRow, "cron_leader_gap", conditions, params, '"first" DESC, job', limit)

    def attempts_of(self, slots: Sequence[SlotRow]) -> tuple[AttemptRow, ...]:
        """All attempts of these slots, the newest of each first."""
        rows = [(slot.job, slot.scheduled_for, slot.command_id) for slot in slots]
        return tuple(_row(AttemptRow, row) for row in self._with_rows("attempts_of", rows))

    def _with_rows(
        self, name: str, rows: Sequence[tuple[Value, ...]]
    ) -> Sequence[Mapping[str, Any]]:
        """A named query that takes a batch."""
        query = queries(self._database.dialect)[name]
        given: Any
        if self._database.dialect is Dialect.SQLITE:
            given = {"batch": json.dumps([[to_text(value) for value in row] for row in rows])}
        else:
            columns = zip(*rows, strict=True) if rows else [()] * len(query.columns)
            given = {n: list(c) for n, c in zip(query.columns, columns, strict=True)}
        return self._database.run(query.text, given)

    def paused(self, now: datetime) -> tuple[JobRow, ...]:
        """The jobs in a pause."""
        conditions = ["paused_until > :now"]
        return self._find(JobRow, "cron_leader_job", conditions, {"now": now}, "job", MOST_PAUSED)

    def slots_at(self, job: str, at: datetime) -> tuple[SlotRow, ...]:
        """The scheduled slot of that time, and what operators asked for at it."""
        conditions = ["job = :job", "scheduled_for = :at"]
        params = {"job": job, "at": at}
        return self._find(SlotRow, "cron_leader_slot", conditions, params, "command_id", 20)

    def first_slot(self, job: str) -> SlotRow | None:
        """The oldest row there is of a job."""
        found = self._find(
            SlotRow, "cron_leader_slot", ["job = :job"], {"job": job}, "scheduled_for", 1
        )
        return found[0] if found else None

    def gap_over(self, job: str, at: datetime) -> GapRow | None:
        """The gap that an instant lies in; those of one job do not overlap."""
        conditions = ["job = :job", '"first" <= :at']
        params = {"job": job, "at": at}
        found = self._find(GapRow, "cron_leader_gap", conditions, params, '"first" DESC', 1)
        return found[0] if found and found[0].last >= at else None

    def term_before(self, election: str, at: datetime) -> TermRow | None:
        """The newest term that had been elected by then."""
        conditions = ["election = :election", "elected_at <= :at"]
        params = {"election": election, "at": at}
        found = self._find(TermRow, "cron_leader_term", conditions, params, "fence DESC", 1)
        return found[0] if found else None

    def term_after(self, election: str, fence: int) -> TermRow | None:
        """The term that followed a fence; of 0, the first there is."""
        conditions = ["election = :election", "fence > :fence"]
        params = {"election": election, "fence": fence}
        found = self._find(TermRow, "cron_leader_term", conditions, params, "fence", 1)
        return found[0] if found else None

    def refusals_between(
        self, since: datetime, until: datetime, *, limit: int
    ) -> tuple[RefusalRow, ...]:
        """Oldest first."""
        params = {"since": since, "until": until}
        return self._find(RefusalRow, "cron_leader_refusal", _BETWEEN, params, "at", limit)

    def commands_between(
        self, since: datetime, until: datetime, *, limit: int
    ) -> tuple[CommandRow, ...]:
        """Oldest first."""
        params = {"since": since, "until": until}
        return self._find(CommandRow, "cron_leader_command", _BETWEEN, params, "at", limit)

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

    def _find(
        self,
        kind: type[R],
        table: str,
        conditions: Sequence[str],
        params: Mapping[str, Any],
        order: str,
        limit: int,
    ) -> tuple[R, ...]:
        text = f"SELECT {', '.join(_columns(kind))} FROM {table}"
        text += f" WHERE {' AND '.join(conditions)}" if conditions else ""
        text = translate(self._database.dialect, f"{text} ORDER BY {order} LIMIT {limit:d}")
        given = {name: value for name, value in params.items() if value is not None}
        return tuple(_row(kind, row) for row in self._database.run(text, given))

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


_BETWEEN = ("at >= :since", "at <= :until")


def _of_states(states: Sequence[State]) -> list[str]:
    """The condition, and in the words of a partial index that of the index, if it has them all."""
    if not states:
        return []
    return [
        _is_one_of(states),
        *(_is_one_of(index) for index in (TROUBLE, WAITING) if set(states) <= set(index)),
    ]


def _is_one_of(states: Sequence[State]) -> str:
    """Literals, not parameters: SQLite takes a partial index only for its own text."""
    return f"state IN ({', '.join(repr(state.value) for state in states)})"


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


_FIND_TABLES = {
    Dialect.SQLITE: "SELECT 1 FROM sqlite_master WHERE name = 'cron_leader_meta'",
    Dialect.POSTGRES: "SELECT 1 WHERE to_regclass('cron_leader_meta') IS NOT NULL",
}


class SqliteDatabase:
    dialect = Dialect.SQLITE

    def __init__(self, url: str) -> None:
        from cron_leader.ledger.sqlite_file import open_file, path_of, translate

        self.where = path_of(url)
        self._translate = translate
        try:
            self._connection = open_file(self.where, create=False, busy_s=BUSY_S)
        except sqlite3.Error as error:
            raise translate(error, self.where) from error

    def run(self, text: str, params: Params) -> Sequence[Mapping[str, Any]]:
        values = {name: to_text(value) for name, value in params.items()}
        try:
            return self._connection.execute(text, values).fetchall()
        except sqlite3.Error as error:
            raise self._translate(error, self.where) from error

    def close(self) -> None:
        self._connection.close()


class PostgresDatabase:
    dialect = Dialect.POSTGRES

    def __init__(self, url: str) -> None:
        import psycopg
        from psycopg.rows import dict_row

        from cron_leader.ledger import pg_dsn, pg_errors

        self.where = pg_dsn.place(url)
        self._errors: tuple[type[Exception], ...] = (psycopg.Error, OSError)
        self._translate = pg_errors.translate
        try:
            self._connection = psycopg.connect(
                pg_dsn.with_defaults(url),
                autocommit=True,
                prepare_threshold=None,  # a pooler would mix up whose statements they are
                row_factory=dict_row,
            )
            if not pg_dsn.tells_iso_times(self._connection.info):
                self._connection.execute(pg_dsn.ISO_TIMES)
        except self._errors as error:
            raise self._translate(error, self.where) from error

    def run(self, text: str, params: Params) -> Sequence[Mapping[str, Any]]:
        try:
            cursor = self._connection.execute(text.encode(), params)
            return cursor.fetchall() if cursor.description else []
        except self._errors as error:
            raise self._translate(error, self.where) from error

    def close(self) -> None:
        self._connection.close()
