"""Whether a table refuses a stale fence by itself: tried for real, in a transaction rolled back.

One row is written with the fence raised last, which must pass, and with the one below, which must
not. Nothing is changed; one row is locked for the length of the try.
"""

from __future__ import annotations

import sqlite3
from dataclasses import dataclass
from typing import Any

from cron_leader import fencing
from cron_leader.fencing import FenceMisuse
from cron_leader.fencing.names import table

LITE_REFUSAL = "cron_leader: stale fence"


@dataclass(frozen=True, slots=True)
class Verdict:
    """guarded: a stale write was refused, and a current one was not. text: what was seen."""

    guarded: bool
    text: str


def verify_table(connection: Any, name: str, election: str) -> Verdict:
    """Try it. connection: psycopg 3 or sqlite3, autocommitting. Raises FenceMisuse."""
    lite = isinstance(connection, sqlite3.Connection)
    target = table(name, folded=not lite)
    try:
        # On SQLite the write lock at once: a leader that writes in between would fail the update.
        connection.execute("BEGIN IMMEDIATE" if lite else "BEGIN")
        try:
            return _verdict(connection, target, name, election, lite)
        finally:
            connection.execute("ROLLBACK")
    except FenceMisuse:
        raise
    except Exception as error:
        first = str(error).partition("\n")[0]
        raise FenceMisuse(f"fence verify {name}: {first}") from error


def _verdict(connection: Any, target: str, name: str, election: str, lite: bool) -> Verdict:
    raised = _raised(connection, election, lite)
    if raised is None:
        raise FenceMisuse(f"fence verify {name}: no leader has raised a fence for {election} yet")
    if connection.execute(f"SELECT 1 FROM {target} LIMIT 1").fetchone() is None:
        raise FenceMisuse(f"fence verify {name}: the table is empty, there is no row to try it on")
    if not _accepted(connection, target, raised, lite):
        return Verdict(False, f"{name} refuses even the raised fence {raised} of {election}")
    if _accepted(connection, target, raised - 1, lite):
        return Verdict(
            False,
            f"{name} accepted the stale fence {raised - 1} (raised: {raised}); "
            f"`cron-leader fence ddl {name} --trigger` prints what refuses it",
        )
    return Verdict(True, f"{name} refused the stale fence {raised - 1} (raised: {raised})")


def _raised(connection: Any, election: str, lite: bool) -> int | None:
    mark = "?" if lite else "%s"
    text = f"SELECT fence FROM cron_leader_fence WHERE election = {mark}"
    row = connection.execute(text, (election,)).fetchone()
    return int(row[0]) if row else None


def _accepted(connection: Any, target: str, fence: int, lite: bool) -> bool:
    """Whether one row takes this fence; undone."""
    row = "rowid" if lite else "ctid"
    one = f"(SELECT {row} FROM {target} LIMIT 1)"
    connection.execute("SAVEPOINT verify")
    try:
        connection.execute(f"UPDATE {target} SET fence = {fence:d} WHERE {row} = {one}")
        if not lite:
            connection.execute("SET CONSTRAINTS ALL IMMEDIATE")
    except Exception as error:
        if not _is_refusal(error):
            raise
        return False
    finally:
        connection.execute("ROLLBACK TO verify")
    return True


def _is_refusal(error: Exception) -> bool:
    if isinstance(error, sqlite3.IntegrityError):
        return str(error) == LITE_REFUSAL
    return getattr(error, "sqlstate", None) == fencing.REFUSED
