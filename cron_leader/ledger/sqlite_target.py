"""A fence target in an SQLite file, which is the user's own: it is opened, never made."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Callable, Mapping
from contextlib import closing
from urllib.parse import quote

from cron_leader.ledger import targets
from cron_leader.ledger.sql import Value, to_text
from cron_leader.ledger.sqlite_file import is_busy, path_of, translate

BUSY_S = 0.5
"""How long a try waits for the write lock; the next one follows soon."""


class SqliteTarget:
    """Opened for every question: there are few of them."""

    def __init__(self, url: str) -> None:
        self._path = path_of(url)

    async def probe(self) -> None:
        await asyncio.to_thread(self._ask, _probe)

    async def raise_fence(
        self, params: Mapping[str, Value], waiting: Callable[[], None]
    ) -> targets.Held | None:
        values = {name: to_text(value) for name, value in params.items()}
        try:
            return await asyncio.to_thread(self._ask, lambda db: _raise(db, values))
        except Exception as error:
            if isinstance(error.__cause__, sqlite3.Error) and is_busy(error.__cause__):
                waiting()
            raise

    def _ask(
        self, work: Callable[[sqlite3.Connection], targets.Held | None]
    ) -> targets.Held | None:
        uri = f"file:{quote(self._path)}?mode=rw"
        try:
            with closing(
                sqlite3.connect(uri, uri=True, isolation_level=None, timeout=BUSY_S)
            ) as db:
                db.execute("PRAGMA synchronous = FULL")
                return work(db)
        except sqlite3.Error as error:
            if "no such table" in str(error):
                raise targets.no_table(self._path) from error
            raise translate(error, self._path) from error

    async def close(self) -> None:
        """Nothing is open."""


def _probe(db: sqlite3.Connection) -> None:
    db.execute(targets.PROBE)


def _raise(db: sqlite3.Connection, values: Mapping[str, str | int | None]) -> targets.Held | None:
    db.execute("BEGIN IMMEDIATE")
    db.execute(targets.RAISE, values)
    held = db.execute(targets.HELD, values).fetchone()
    db.execute("COMMIT")
    return held and (held[0], held[1])
