"""One SQLite file: opened with our settings, refused if it is not ours, errors in our words."""

from __future__ import annotations

import os
import sqlite3
from typing import Any
from urllib.parse import quote

from cron_leader.errors import (
    CronLeaderError,
    LedgerNotCommitted,
    LedgerUncertain,
    LedgerUnusable,
)

APPLICATION_ID = int.from_bytes(b"CRLD", "big")

BUSY_S = 0.02
"""How long SQLite itself waits for a lock; longer waits are ours, so that they can be given up."""

CACHE_KIB = 8192
"""Of pages, taken as they are needed: a thousand claims touch more than SQLite's own 2 MB."""

OLDEST = (3, 33, 0)
"""The first SQLite with UPDATE .. FROM."""


def path_of(url: str) -> str:
    """The file of `sqlite:///relative` or `sqlite:////absolute`. Raises LedgerUnusable."""
    path = url.removeprefix("sqlite:///")
    if path == url or not path or path.startswith(":memory:"):
        raise LedgerUnusable(
            f"ledger url {url!r}: write sqlite:///file.db or sqlite:////absolute/path/file.db"
        )
    return path


class Connection(sqlite3.Connection):
    """One that remembers its settings: setting one again costs nothing."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._set: dict[str, object] = {}

    def set(self, pragma: str, value: object) -> None:
        if self._set.get(pragma) != value:
            self.execute(f"PRAGMA {pragma} = {value}")
            self._set[pragma] = value


class SqliteFile:
    """The file and the one connection to it; used by one thread."""

    def __init__(self, path: str) -> None:
        self.path = path
        self._connection: Connection | None = None
        self._identity: tuple[int, int] | None = None

    def connection(self, *, create: bool = False) -> Connection:
        """Opened on first use. Raises LedgerUnusable once the file is no longer the one opened."""
        if self._connection is None:
            self._connection = open_file(self.path, create=create)
            self._identity = self._on_disk()
        elif self._on_disk() != self._identity:
            raise LedgerUnusable(
                f"ledger {self.path}: the file was moved, replaced or deleted while in use; "
                "put it back and restart the node"
            )
        return self._connection

    def _on_disk(self) -> tuple[int, int] | None:
        try:
            status = os.stat(self.path)
        except OSError:
            return None
        return status.st_dev, status.st_ino

    def close(self) -> None:
        if self._connection:
            self._connection.close()
            self._connection = None


def open_file(path: str, *, create: bool, busy_s: float = BUSY_S) -> Connection:
    """A connection with our settings. Raises LedgerUnusable for a file of another program."""
    if sqlite3.sqlite_version_info < OLDEST:
        raise LedgerUnusable(f"SQLite {sqlite3.sqlite_version} is too old: 3.33 is needed")
    mode = "rwc" if create else "rw"
    uri = f"file:{quote(path)}?mode={mode}"
    connection = sqlite3.connect(
        uri, uri=True, isolation_level=None, timeout=busy_s, factory=Connection
    )
    connection.row_factory = _row
    try:
        _check_ours(connection, path)
        connection.set("cache_size", -CACHE_KIB)
        connection.set("synchronous", "FULL")
        connection.execute("PRAGMA journal_mode = WAL")
    except BaseException:
        connection.close()
        raise
    return connection


def _row(cursor: sqlite3.Cursor, values: tuple[Any, ...]) -> dict[str, Any]:
    return {column[0]: value for column, value in zip(cursor.description, values, strict=True)}


def _check_ours(connection: sqlite3.Connection, path: str) -> None:
    # In one snapshot: another node may be creating the tables right now.
    connection.execute("BEGIN")
    (mark,) = connection.execute("PRAGMA application_id").fetchone().values()
    filled = connection.execute("SELECT 1 FROM sqlite_master LIMIT 1").fetchone()
    connection.execute("ROLLBACK")
    if mark != APPLICATION_ID and (mark or filled):
        raise LedgerUnusable(
            f"ledger {path}: this SQLite file belongs to another program; name a file of its own"
        )


# ------------------------------------------------------------------ errors

_PASSING = {sqlite3.SQLITE_FULL: "the disk is full: free space"}
_FOR_A_PERSON = {
    sqlite3.SQLITE_CANTOPEN: "run `cron-leader db migrate`, or correct the url and its permissions",
    sqlite3.SQLITE_READONLY: "make the file and its folder writable for this user",
    sqlite3.SQLITE_PERM: "make the file and its folder readable and writable for this user",
    sqlite3.SQLITE_AUTH: "make the file and its folder readable and writable for this user",
    sqlite3.SQLITE_NOTADB: "this is no SQLite file; name another",
    sqlite3.SQLITE_CORRUPT: "the file is damaged: restore it from a backup",
    sqlite3.SQLITE_ERROR: "the schema is not ours: run `cron-leader db migrate`",
}
_UNKNOWN_OUTCOME = {sqlite3.SQLITE_INTERRUPT, sqlite3.SQLITE_IOERR, sqlite3.SQLITE_NOMEM}


def is_busy(error: sqlite3.Error) -> bool:
    """Whether a lock was taken: what asked for it is rolled back."""
    return _code(error) in {sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED, sqlite3.SQLITE_PROTOCOL}


def translate(error: sqlite3.Error, path: str) -> CronLeaderError:
    """The exception to raise for what sqlite3 raised."""
    code = _code(error)
    folder = os.path.dirname(path)
    if code == sqlite3.SQLITE_CANTOPEN and folder and not os.path.isdir(folder):
        return LedgerUnusable(f"ledger {path}: the folder {folder} does not exist: create it")
    text = f"ledger {path}: {error}"
    if is_busy(error):
        return LedgerNotCommitted(text)
    if code in _UNKNOWN_OUTCOME:
        return LedgerUncertain(text)
    if cure := _PASSING.get(code):
        return LedgerUnusable(f"{text}; {cure}", permanent=False)
    if cure := _FOR_A_PERSON.get(code):
        return LedgerUnusable(f"{text}; {cure}")
    return LedgerUnusable(f"ledger {path}: unexpected error: {error}")


def _code(error: sqlite3.Error) -> int:
    """The primary result code; -1 where the module itself complains."""
    return getattr(error, "sqlite_errorcode", -1) & 0xFF
