"""`fenced_upsert`: `WHERE fence <= $mine` on a row of any table, hard to hold wrong.

Usable without our daemon: all it needs is a table with a unique key and a fence column
(`cron-leader fence ddl TABLE`). A row without a fence (NULL) counts as fence 0: older than any.

Not promised: anything about a key that no newer leader has written yet. A per-row guard cannot
refuse a deposed leader there; `Tick.transaction` or the trigger of `fence ddl --trigger` can.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Mapping
from typing import Any

from cron_leader.fencing import FenceMisuse
from cron_leader.fencing.names import quoted, table

LARGEST = 2**63 - 1
"""A fence is a bigint."""

_CURES = {
    "42P10": "a unique index on the key is missing: CREATE UNIQUE INDEX ON {table} ({key})",
    "42703": "a column is missing; `cron-leader fence ddl {table}` prints the fence's",
    "42P01": "there is no such table",
}


def fenced_upsert(
    connection: Any,
    table_name: str,
    key: Mapping[str, object],
    values: Mapping[str, object],
    fence: int,
    *,
    column: str = "fence",
) -> bool:
    """Insert the row, or update it unless a newer fence wrote it; whether it was written.

    connection: psycopg 3 or sqlite3, in the caller's transaction, which stays open. key: columns of
    a unique index. The same fence may write again. Raises FenceMisuse.
    """
    _check(key, values, fence, column)
    lite = isinstance(connection, sqlite3.Connection)
    name = table(table_name, folded=not lite)
    row = {**key, **values, column: fence}
    text = _statement(name, tuple(key), tuple(row), column, mark="?" if lite else "%s")
    try:
        cursor = connection.execute(text if lite else text.encode(), tuple(row.values()))
    except Exception as error:
        if (cure := _cure(error)) is None:
            raise
        shown = ", ".join(key)
        raise FenceMisuse(
            f"fenced_upsert into {table_name}: {_first_line(error)}; "
            + cure.format(table=table_name, key=shown)
        ) from error
    return int(cursor.rowcount) == 1


def _check(
    key: Mapping[str, object], values: Mapping[str, object], fence: int, column: str
) -> None:
    if not key or not values:
        empty = "values" if key else "key"
        raise FenceMisuse(f"fenced_upsert: {empty} is empty; name at least one column")
    if twice := (key.keys() & values.keys()) | ({column} & (key.keys() | values.keys())):
        raise FenceMisuse(f"fenced_upsert: {', '.join(sorted(twice))} is given twice")
    if isinstance(fence, bool) or not isinstance(fence, int) or not 0 <= fence <= LARGEST:
        raise FenceMisuse(f"fenced_upsert: fence {fence!r} is no whole number of 0 to 2**63 - 1")


def _statement(
    name: str, key: tuple[str, ...], columns: tuple[str, ...], column: str, *, mark: str
) -> str:
    heads = [quoted(c).replace("%", "%%") if mark == "%s" else quoted(c) for c in columns]
    by_name = dict(zip(columns, heads, strict=True))
    changed = [by_name[c] for c in columns if c not in key]
    mine = by_name[column]
    return (
        f"INSERT INTO {name.replace('%', '%%') if mark == '%s' else name} AS held "
        f"({', '.join(heads)}) VALUES ({', '.join([mark] * len(heads))}) "
        f"ON CONFLICT ({', '.join(by_name[c] for c in key)}) DO UPDATE SET "
        f"{', '.join(f'{c} = excluded.{c}' for c in changed)} "
        f"WHERE coalesce(held.{mine}, 0) <= excluded.{mine}"
    )


def _cure(error: Exception) -> str | None:
    """What to do about a wrong table; None: the error is the database's own to explain."""
    if isinstance(error, sqlite3.OperationalError):
        text = str(error)
        for words, state in (
            ("ON CONFLICT clause does not match", "42P10"),
            ("no column named", "42703"),
            ("no such column", "42703"),
            ("no such table", "42P01"),
        ):
            if words in text:
                return _CURES[state]
    return _CURES.get(getattr(error, "sqlstate", None) or "")


def _first_line(error: Exception) -> str:
    return str(error).partition("\n")[0]
