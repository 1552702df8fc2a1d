"""Faults of the ledger itself: its server, its disk, its file."""

from __future__ import annotations

import signal
import sqlite3
from pathlib import Path

from chaos.faults import Stretch
from chaos.faults.processes import frozen_tree
from chaos.worlds.services import Postgres

FILL = 1 << 20


def frozen(server: Postgres) -> Stretch:
    """All of it stands still, connections are kept and not answered."""
    return frozen_tree("ledger freeze", lambda: [server.pid])


def away(server: Postgres, *, crash: bool) -> Stretch:
    """Stopped, and started again at the end."""
    how = signal.SIGQUIT if crash else signal.SIGINT

    def begin() -> int:
        server.stop(how)
        return 1

    return Stretch("ledger restart", begin, server.launch)


def full(server: Postgres) -> Stretch:
    """There is no room on its disk. If it dies of that, it is started again."""
    filler = server.data / "filler"

    def begin() -> int:
        written = 0
        with filler.open("wb", buffering=0) as file:
            try:
                while True:
                    written += file.write(bytes(FILL))
            except OSError:
                return written // FILL

    def end() -> None:
        filler.unlink(missing_ok=True)
        server.launch()

    return Stretch("disk full", begin, end)


def locked(path: Path) -> Stretch:
    """Somebody else holds SQLite's write lock."""
    held: list[sqlite3.Connection] = []

    def begin() -> int:
        connection = sqlite3.connect(path, timeout=5, check_same_thread=False)
        connection.execute("BEGIN IMMEDIATE")
        held.append(connection)
        return 1

    def end() -> None:
        for connection in held:
            connection.rollback()
            connection.close()

    return Stretch("ledger freeze", begin, end)
