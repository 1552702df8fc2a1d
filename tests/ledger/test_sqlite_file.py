"""The connection to a SQLite ledger, and which transaction makes checkpoints."""

from __future__ import annotations

import sqlite3
from contextlib import AsyncExitStack, closing
from pathlib import Path

import pytest

from cron_leader.core.model import Applied, Claim, Taken
from cron_leader.ledger import sqlite as sqlite_ledger
from cron_leader.ledger.sqlite import transaction
from cron_leader.ledger.sqlite_file import Connection, open_file
from tests.ledger.kit import Lab, finish, settlement, slot


def test_a_setting_is_sent_once_and_again_when_it_changes() -> None:
    connection = sqlite3.connect(":memory:", factory=Connection)
    sent: list[str] = []
    connection.set_trace_callback(sent.append)
    for value in (100, 100, 200, 200, 100):
        connection.set("wal_autocheckpoint", value)
    assert sent == [f"PRAGMA wal_autocheckpoint = {value}" for value in (100, 200, 100)]
    connection.close()


def test_a_transaction_keeps_other_writers_out_from_its_beginning(tmp_path: Path) -> None:
    """Before it has written anything: so a guard may be read first."""
    path = str(tmp_path / "x.db")
    with (
        closing(open_file(path, create=True)) as ours,
        closing(open_file(path, create=False)) as other,
    ):
        with transaction(ours), pytest.raises(sqlite3.OperationalError, match="locked"):
            other.execute("BEGIN IMMEDIATE")
        other.execute("BEGIN IMMEDIATE")
        other.execute("ROLLBACK")


async def test_checkpoints_are_made_by_the_ends_of_runs_and_not_by_claims(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The file itself changes by a checkpoint only; until then all is in the WAL."""
    monkeypatch.setattr(sqlite_ledger, "SOON_PAGES", 1)
    file = tmp_path / "x.db"
    async with AsyncExitStack() as stack:
        leader = await Lab(f"sqlite:///{file}", stack).leader("a", settlement())
        runs = [Claim(slot(second), f"run-{second}") for second in range(20)]
        before = file.read_bytes()
        for run in runs:
            assert isinstance(await leader.take(run), Taken)
        assert file.read_bytes() == before
        assert await leader.ledger.finish(leader.term, finish(runs[0])) == Applied()
        assert file.read_bytes() != before
