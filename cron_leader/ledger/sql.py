"""The named statements of queries.sql in each database's own notation, and their values.

One text serves both databases. A statement that takes a batch reads it as the relation `batch`:
for Postgres its columns are arrays through unnest, for SQLite its rows are one JSON text.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import StrEnum
from functools import cache
from pathlib import Path

Value = str | int | datetime | None
Params = Mapping[str, Value]


class Dialect(StrEnum):
    POSTGRES = "postgres"
    SQLITE = "sqlite"


@dataclass(frozen=True, slots=True)
class Query:
    """One statement. columns: of its batch, in order; empty if it takes none."""

    text: str
    columns: tuple[str, ...]


_HEADER = re.compile(r"^-- name: (\w+)(?: \(([\w, ]+)\))?\n", re.MULTILINE)
_PARAMETER = re.compile(r"(?<![:\w]):([a-z_]+)")
_ROW_LOCK = re.compile(r"\s+FOR UPDATE OF \w+( SKIP LOCKED)?")
_TIMES = {"scheduled_for", "next_at", "finished_at", "first", "last", "first_seen"}
_TIMES |= {"effective_from", "at"}
_TYPES = {"seen": "integer", "slots": "bigint", "old_fence": "bigint"} | dict.fromkeys(
    _TIMES, "timestamptz"
)


@cache
def queries(dialect: Dialect) -> Mapping[str, Query]:
    """All statements of queries.sql by name."""
    source = Path(__file__).with_name("queries.sql").read_text(encoding="utf-8")
    _, *parts = _HEADER.split(source)
    named = zip(parts[0::3], parts[1::3], parts[2::3], strict=True)
    return {name: _query(dialect, columns or "", body) for name, columns, body in named}


def _query(dialect: Dialect, columns: str, body: str) -> Query:
    text = "\n".join(line for line in body.splitlines() if line and not line.startswith("--"))
    names = tuple(columns.split(", ")) if columns else ()
    return Query(translate(dialect, (_batch(dialect, names) + text) if names else text), names)


def _batch(dialect: Dialect, columns: tuple[str, ...]) -> str:
    heads = ", ".join(f'"{column}"' for column in columns)
    if dialect is Dialect.SQLITE:
        cells = ", ".join(f"json_extract(value, '$[{i}]')" for i in range(len(columns)))
        return f"WITH batch({heads}) AS (SELECT {cells} FROM json_each(:batch))\n"
    arrays = ", ".join(f":{column}::{_TYPES.get(column, 'text')}[]" for column in columns)
    return f"WITH batch({heads}) AS (SELECT * FROM unnest({arrays}))\n"


def translate(dialect: Dialect, text: str) -> str:
    """`:word` parameters in the notation of the driver: psycopg's, or sqlite3's (unchanged)."""
    if dialect is Dialect.SQLITE:
        return _ROW_LOCK.sub("", text)  # it has one writer, and no locks of rows
    return _PARAMETER.sub(r"%(\1)s", text.replace("%", "%%"))


def to_text(value: Value) -> str | int | None:
    """A value as SQLite stores it: times are UTC text of one width, so that they sort."""
    if isinstance(value, datetime):
        return value.astimezone(UTC).replace(tzinfo=None).isoformat(timespec="microseconds") + "Z"
    return value


def to_array(values: Iterable[Value]) -> str:
    """The values of a column as Postgres reads an array. psycopg takes ten times as long to."""
    return "{" + ",".join(map(_element, values)) + "}"


def _element(value: Value) -> str:
    if value is None:
        return "NULL"
    text = value.isoformat() if isinstance(value, datetime) else str(value)
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'


def to_time(value: str | datetime) -> datetime:
    """A time read from either database, in UTC."""
    if isinstance(value, str):
        return datetime.fromisoformat(value)
    return value.astimezone(UTC)


def to_time_or_none(value: str | datetime | None) -> datetime | None:
    return None if value is None else to_time(value)
