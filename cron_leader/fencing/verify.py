"""Whether a table refuses a stale fence by itself: tried for real, in a transaction rolled back.

One row is updated, and deleted and inserted anew, with the fence raised last, which must pass, and
with the one below, which must not. Nothing is changed; the row is locked for the length of the try.
A DELETE alone is not tried: it carries no fence, and `fence ddl` claims nothing of it.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from cron_leader import fencing
from cron_leader.fencing import FenceMisuse
from cron_leader.fencing.names import parts, quoted, table

LITE_REFUSAL = "cron_leader: stale fence"


@dataclass(frozen=True, slots=True)
class Verdict:
    """guarded: no stale write passed, and a current one did. text: what was seen. accepted: the
    statements that let a stale fence through."""

    guarded: bool
    text: str
    accepted: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class _Seen:
    """What became of one statement: with the raised fence, and with the one below. fails: it could
    not be tried, for a reason that is not the fence."""

    current: bool
    stale: bool
    fails: str = ""


def verify_table(connection: Any, name: str, election: str) -> Verdict:
    """Try it. connection: psycopg 3 or sqlite3, autocommitting. Raises FenceMisuse."""
    lite = isinstance(connection, sqlite3.Connection)
    target = table(name, folded=not lite)
    try:
        # On SQLite the write lock at once: a leader that writes in between would fail the update.
        connection.execute("BEGIN IMMEDIATE" if lite else "BEGIN")
        try:
            return _verdict(connection, target, name, election)
        finally:
            connection.execute("ROLLBACK")
    except FenceMisuse:
        raise
    except Exception as error:
        raise FenceMisuse(f"fence verify {name}: {_first_line(error)}") from error


def _verdict(connection: Any, target: str, name: str, election: str) -> Verdict:
    raised = _raised(connection, election)
    if raised is None:
        raise FenceMisuse(f"fence verify {name}: no leader has raised a fence for {election} yet")
    if connection.execute(f"SELECT 1 FROM {target} LIMIT 1").fetchone() is None:
        raise FenceMisuse(f"fence verify {name}: the table is empty, there is no row to try it on")
    seen = {how: _try(connection, write, target, raised) for how, write in _WRITES.items()}
    if seen["UPDATE"].fails:
        raise FenceMisuse(f"fence verify {name}: {seen['UPDATE'].fails}")
    return _judge(name, election, raised, seen)


def _judge(name: str, election: str, raised: int, seen: dict[str, _Seen]) -> Verdict:
    tried = {how: one for how, one in seen.items() if not one.fails}
    untried = "".join(
        f"; {how} could not be tried: {one.fails}" for how, one in seen.items() if one.fails
    )
    if deaf := [how for how, one in tried.items() if not one.current]:
        text = f"{name} refuses even the raised fence {raised} of {election} by {_and(deaf)}"
        return Verdict(False, text + untried)
    stale = f"the stale fence {raised - 1} (raised: {raised}) by"
    if accepted := [how for how, one in tried.items() if one.stale]:
        cure = f"`cron-leader fence ddl {name} --trigger` prints what refuses it"
        text = f"{name} accepted {stale} {_and(accepted)}; {cure}"
        return Verdict(False, text + untried, tuple(accepted))
    return Verdict(True, f"{name} refused {stale} {_and([*tried])}{untried}")


def _raised(connection: Any, election: str) -> int | None:
    mark = "?" if _is_lite(connection) else "%s"
    text = f"SELECT fence FROM cron_leader_fence WHERE election = {mark}"
    row = connection.execute(text, (election,)).fetchone()
    return int(row[0]) if row else None


# ------------------------------------------------------------------ the tries, each undone

_Write = Callable[[Any, str, int], None]


def _try(connection: Any, write: _Write, target: str, raised: int) -> _Seen:
    try:
        current = _accepted(connection, write, target, raised)
        return _Seen(current, _accepted(connection, write, target, raised - 1))
    except Exception as error:
        return _Seen(False, False, _first_line(error))


def _accepted(connection: Any, write: _Write, target: str, fence: int) -> bool:
    """Whether the statement passes with this fence, up to what a COMMIT would do."""
    connection.execute("SAVEPOINT verify")
    try:
        write(connection, target, fence)
        if not _is_lite(connection):
            connection.execute("SET CONSTRAINTS ALL IMMEDIATE")
    except Exception as error:
        if not _is_refusal(error):
            raise
        return False
    finally:
        connection.execute("ROLLBACK TO verify")
    return True


def _update(connection: Any, target: str, fence: int) -> None:
    where = _one(connection, target)
    connection.execute(f"UPDATE {target} SET fence = {fence:d} WHERE {where}")


def _insert(connection: Any, target: str, fence: int) -> None:
    """The row anew, with all its values: any other might break a constraint of the table."""
    where = _one(connection, target)
    names = [quoted(name) for name in _columns(connection, target)]
    heads = ", ".join(names)
    values = ", ".join(f"{fence:d}" if name == '"fence"' else name for name in names)
    if _is_lite(connection):
        row = connection.execute(f"SELECT {values} FROM {target} WHERE {where}").fetchone()
        connection.execute(f"DELETE FROM {target} WHERE {where}")
        marks = ", ".join("?" * len(names))
        connection.execute(f"INSERT INTO {target} ({heads}) VALUES ({marks})", row)
    else:
        connection.execute(
            f"WITH gone AS (DELETE FROM {target} WHERE {where} RETURNING *) "
            f"INSERT INTO {target} ({heads}) OVERRIDING SYSTEM VALUE SELECT {values} FROM gone"
        )


_WRITES = {"UPDATE": _update, "INSERT": _insert}


def _one(connection: Any, target: str) -> str:
    """The condition for one row; of a partitioned table, too."""
    row = "rowid" if _is_lite(connection) else "(tableoid, ctid)"
    found = row.strip("()")
    return f"{row} = (SELECT {found} FROM {target} LIMIT 1)"


def _columns(connection: Any, target: str) -> list[str]:
    """Those that an INSERT may name: none that is generated."""
    if not _is_lite(connection):
        text = (
            "SELECT attname FROM pg_attribute WHERE attrelid = %s::regclass AND attnum > 0 "
            "AND NOT attisdropped AND attgenerated = '' ORDER BY attnum"
        )
        return [name for (name,) in connection.execute(text, (target,)).fetchall()]
    *schema, bare = parts(target)
    pragma = ".".join([*schema, f"table_xinfo({bare})"])
    rows = connection.execute(f"PRAGMA {pragma}").fetchall()
    return [name for _, name, *_, hidden in rows if not hidden]


def _is_lite(connection: Any) -> bool:
    return isinstance(connection, sqlite3.Connection)


def _is_refusal(error: Exception) -> bool:
    if isinstance(error, sqlite3.IntegrityError):
        return str(error) == LITE_REFUSAL
    return getattr(error, "sqlstate", None) == fencing.REFUSED


def _and(words: list[str]) -> str:
    return " and ".join(words)


def _first_line(error: Exception) -> str:
    return str(error).partition("\n")[0]
