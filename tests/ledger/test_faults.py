"""Ledgers that are wrong, absent, full, or cut off: one clear line, and whether to try again."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import sqlite3
import threading
from collections.abc import Sequence
from contextlib import AsyncExitStack, closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil
import psycopg
import pytest

from cron_leader.core.model import Claim, Entry, State, Taken
from cron_leader.errors import (
    CronLeaderError,
    LedgerNotCommitted,
    LedgerUncertain,
    LedgerUnusable,
)
from cron_leader.ledger import Ledger, open_ledger, postgres, writes
from cron_leader.ledger.migrate import migration_sql, newest
from cron_leader.ledger.pg_errors import translate
from cron_leader.ledger.sql import Dialect
from cron_leader.ledger.sqlite import Patience, SqliteLedger
from cron_leader.ledger.views import open_reader
from tests.ledger.kit import Lab, batch, settlement, slot, soon
from tests.pg_kit import Postgres

RUN = Claim(slot(), "run-1")
ALIVE = "SELECT 1 FROM pg_stat_activity WHERE pid = %s"


async def refusal(url: str, *, migrate: bool = True) -> CronLeaderError:
    """What opening says; one line, no secret."""

    async def opening() -> None:
        ledger = open_ledger(url)
        try:
            await ledger.open(fleet="default", shards=1, migrate=migrate)
        finally:
            await ledger.close()

    with pytest.raises((LedgerUncertain, LedgerUnusable)) as raised:
        await opening()
    assert len(str(raised.value).splitlines()) == 1
    assert "s3cret" not in str(raised.value)
    return raised.value


def permanent(error: CronLeaderError) -> bool:
    return isinstance(error, LedgerUnusable) and error.permanent


# ------------------------------------------------------------------ urls


@pytest.mark.parametrize(
    ("url", "says"),
    [
        ("mysql://u:s3cret@h/db", "unknown scheme"),
        ("sqlite://file.db", "write sqlite:///file.db"),
        ("sqlite:///:memory:", "write sqlite:///file.db"),
        ("postgresql://u:s3cret@h/db?no_such=1", "cannot be read"),
        ("postgresql://u:odd@s3cret@h/db?no_such=1", "cannot be read"),
        ("postgresql://u:odd@s3cret@h/db", "as %40"),
        ("postgresql://u:odd/s3cret@h/db?no_such=1", "cannot be read"),
        ("postgresql://u:odd/s3cret@h/db", "as %2F"),
        ("postgresql://u:s3cret%zz@h/db", "a % in a password as %25"),
        ("postgresql://u:s3cret@h:1:2/db", "no port 1:2"),
        ("postgresql://u:s3cret@h:70000/db", "no port 70000"),
        ("postgresql://u@h/db?passwordd=s3cret", "cannot be read"),
        ("postgresql://u@h/db?password=s3cret&no_such=1", "cannot be read"),
        ("postgresql://u@h/db?no_such=1&sslPassword=s3cret", "cannot be read"),
    ],
)
async def test_a_url_that_cannot_be_read_is_refused(url: str, says: str) -> None:
    error = await refusal(url)
    assert permanent(error)
    assert says in str(error)


# ------------------------------------------------------------------ SQLite


async def test_a_file_of_another_program_is_refused_and_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "theirs.db"
    theirs = sqlite3.connect(path)
    theirs.execute("CREATE TABLE accounts (id)")
    theirs.close()
    before = path.read_bytes()
    error = await refusal(f"sqlite:///{path}")
    assert permanent(error)
    assert "another program" in str(error)
    assert path.read_bytes() == before


async def test_a_file_that_is_no_database_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "notes.txt"
    path.write_text("no database " * 100)
    error = await refusal(f"sqlite:///{path}")
    assert permanent(error)
    assert "no SQLite file" in str(error)


async def test_a_missing_folder_and_a_missing_file_are_refused(tmp_path: Path) -> None:
    for url, migrate, says in (
        (f"{tmp_path}/none/x.db", True, "does not exist"),
        (f"{tmp_path}/x.db", False, "db migrate"),
    ):
        error = await refusal(f"sqlite:///{url}", migrate=migrate)
        assert permanent(error)
        assert says in str(error)
    assert os.listdir(tmp_path) == []


async def test_a_read_only_file_is_refused(tmp_path: Path) -> None:
    """query_only stands in for the permission bits, which do not bind root."""
    async with AsyncExitStack() as stack:
        lab = Lab(f"sqlite:///{tmp_path}/x.db", stack)
        leader = await lab.leader("a", settlement())
        await _pragma(leader.ledger, "query_only = on")
        with pytest.raises(LedgerUnusable, match=r"readonly.*writable for this user"):
            await leader.take(RUN)


async def test_a_full_disk_is_told_as_passing_and_loses_nothing(tmp_path: Path) -> None:
    entries = tuple(Entry(slot(i), State.DUE) for i in range(5000))
    async with AsyncExitStack() as stack:
        lab = Lab(f"sqlite:///{tmp_path}/x.db", stack)
        leader = await lab.leader("a")
        await _pragma(leader.ledger, "max_page_count = 40")
        with pytest.raises(LedgerUnusable, match="free space") as raised:
            await leader.settle(settlement(entries=entries))
        assert not raised.value.permanent
        await _pragma(leader.ledger, "max_page_count = 100000")
        waiting = await leader.settle(settlement(entries=entries))
        assert len(waiting) == len(entries)  # type: ignore[arg-type]


async def _pragma(ledger: Ledger, pragma: str) -> None:
    def work(connection: sqlite3.Connection) -> None:
        connection.execute(f"PRAGMA {pragma}").fetchall()

    assert isinstance(ledger, SqliteLedger)
    await ledger._call(work, Patience(1.0))


async def test_a_file_deleted_under_a_leader_is_noticed(tmp_path: Path) -> None:
    async with AsyncExitStack() as stack:
        lab = Lab(f"sqlite:///{tmp_path}/x.db", stack)
        leader = await lab.leader("a", settlement())
        (tmp_path / "x.db").unlink()
        with pytest.raises(LedgerUnusable, match="deleted while in use"):
            await leader.take(RUN)


async def test_a_lock_held_too_long_is_told_and_then_the_same_write_commits(
    tmp_path: Path,
) -> None:
    async with AsyncExitStack() as stack:
        lab = Lab(f"sqlite:///{tmp_path}/x.db", stack)
        leader = await lab.leader("a", settlement())
        held = sqlite3.connect(tmp_path / "x.db", isolation_level=None)
        held.execute("BEGIN IMMEDIATE")
        brief = replace(writes.take(leader.term, batch(RUN)), within_s=0.1)
        with pytest.raises(LedgerNotCommitted, match="locked"):
            await leader.ledger.write(brief)  # type: ignore[attr-defined]
        held.execute("COMMIT")
        held.close()
        assert await leader.take(RUN) == Taken({"run-1": 1})


async def test_a_closed_sqlite_ledger_leaves_no_thread(tmp_path: Path) -> None:
    async with AsyncExitStack() as stack:
        await Lab(f"sqlite:///{tmp_path}/x.db", stack).leader("a", settlement())
        assert _workers()
    assert not _workers()


def _workers() -> list[str]:
    return [t.name for t in threading.enumerate() if t.name.startswith("ledger")]


# ------------------------------------------------------------------ Postgres


async def test_a_wrong_database_or_role_is_for_a_person_to_mend(server: Postgres) -> None:
    for url, says in (
        (server.url("absent"), "create the database"),
        (server.url().replace("postgres@", "nobody_here:s3cret@"), "check user and password"),
    ):
        error = await refusal(url)
        assert permanent(error), error
        assert says in str(error)
        with pytest.raises(LedgerUnusable, match=says):
            open_reader(url)


def test_the_words_of_a_server_that_asks_for_a_password_are_understood() -> None:
    said = 'connection failed: FATAL:  password authentication failed for user "u"'
    error = translate(psycopg.OperationalError(said), "u@h:5432/db")
    assert permanent(error)
    assert "check user and password" in str(error)


async def test_a_role_without_rights_is_told_what_to_run(server: Postgres) -> None:
    server.run("DROP ROLE IF EXISTS guest", "CREATE ROLE guest LOGIN")
    with server.database() as url:
        server.run("REVOKE CREATE ON SCHEMA public FROM public", database=url.rpartition("/")[2])
        error = await refusal(url.replace("postgres@", "guest@"))
    assert permanent(error)
    assert "db migrate --sql" in str(error)


async def test_a_database_of_another_encoding_is_refused(server: Postgres) -> None:
    server.run("CREATE DATABASE latin ENCODING 'SQL_ASCII' LC_COLLATE 'C' LC_CTYPE 'C' "
               "TEMPLATE template0")  # fmt: skip
    try:
        error = await refusal(server.url("latin"))
    finally:
        server.run("DROP DATABASE latin WITH (FORCE)")
    assert permanent(error)
    assert "ENCODING 'UTF8'" in str(error)


async def test_with_nobody_listening_nothing_is_committed() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        error = await refusal(f"postgresql://u:s3cret@127.0.0.1:{taken.getsockname()[1]}/db")
    assert isinstance(error, LedgerNotCommitted)


async def test_cut_connections_are_uncertain_once_and_then_replaced(
    pglab: Lab, server: Postgres
) -> None:
    leader = await pglab.leader("a", settlement())
    await soon(asyncio.gather(*(leader.ledger.identity() for _ in range(3))))
    server.run(
        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
        "WHERE datname = 'ready' AND pid <> pg_backend_pid()"
    )
    with pytest.raises(LedgerUncertain) as cut:
        await leader.take(RUN)
    assert not isinstance(cut.value, LedgerNotCommitted)
    assert await leader.take(RUN) == Taken({"run-1": 1})


async def test_a_commit_whose_answer_is_lost_is_the_same_run_when_sent_again(
    pglab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    leader = await pglab.leader("a", settlement())
    call = postgres.Connection.call

    async def lossy(connection: postgres.Connection, text: bytes, params: list[bytes]) -> object:
        await call(connection, text, params)
        raise psycopg.OperationalError("server closed the connection unexpectedly")

    with monkeypatch.context() as patched:
        patched.setattr(postgres.Connection, "call", lossy)
        with pytest.raises(LedgerUncertain):
            await leader.take(RUN)
    assert pglab.states() == {slot(): "running"}
    assert await leader.take(RUN) == Taken({"run-1": 1})


async def test_a_client_that_slept_inside_its_transaction_sends_the_same_again(
    pglab: Lab, server: Postgres, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The server has ended it meanwhile: no lasting fault that a person would have to mend."""
    leader = (await pglab.leader("a", settlement())).step_by_step()

    async def sleepy(connection: postgres.Connection, statements: Sequence[Any]) -> list[Any]:
        for statement in statements[:-1]:
            await postgres._execute(connection, *statement)
        with psycopg.connect(server.url("ready"), autocommit=True) as other:
            backend = connection.pgconn.backend_pid
            while other.execute(ALIVE, (backend,)).fetchone():  # noqa: ASYNC110
                await asyncio.sleep(0.02)
        await postgres._execute(connection, *statements[-1])
        return []

    with monkeypatch.context() as patched:
        patched.setattr(postgres, "_transact", sleepy)
        patched.setattr(leader.ledger, "_frozen_s", 0.05)
        with pytest.raises(LedgerUncertain, match="idle-in-transaction"):
            await soon(leader.take(RUN))
    assert await leader.take(RUN) == Taken({"run-1": 1})


async def test_the_locks_of_a_client_that_stopped_reading_are_freed(
    pglab: Lab, server: Postgres
) -> None:
    """A backend stuck in sending its answer heeds no statement timeout."""
    much = b"SELECT repeat('x', 1000) FROM generate_series(1, 100000)"
    with (
        closing(psycopg.connect(server.url("ready"), autocommit=True)) as frozen,
        psycopg.connect(server.url("ready"), autocommit=True) as other,
    ):
        for text, params in postgres._begin("frozen", 1, 0.3):
            frozen.execute(text.encode(), params)
        frozen.execute("SELECT pg_advisory_xact_lock(7)")
        frozen.pgconn.send_query(much)
        frozen.pgconn.flush()
        other.execute("SET lock_timeout = '10s'")
        other.execute("SELECT pg_advisory_xact_lock(7)")


async def test_a_frozen_server_is_given_up_in_time_and_used_again_once_awake(
    pglab: Lab, server: Postgres
) -> None:
    leader = await pglab.leader("a", settlement())
    backends = _family(server.process.pid)
    brief = replace(writes.take(leader.term, batch(RUN)), within_s=0.3)
    for pid in backends:
        os.kill(pid, signal.SIGSTOP)
    try:
        with pytest.raises(LedgerUncertain, match="no answer in time"):
            await soon(leader.ledger.write(brief))  # type: ignore[attr-defined]
    finally:
        for pid in backends:
            os.kill(pid, signal.SIGCONT)
    assert await leader.take(RUN) == Taken({"run-1": 1})


def _family(pid: int) -> list[int]:
    return [pid, *(child.pid for child in psutil.Process(pid).children(recursive=True))]


async def test_all_nodes_may_migrate_at_once(bare_url: str) -> None:
    ledgers = [open_ledger(bare_url) for _ in range(4)]
    opened = await soon(
        asyncio.gather(
            *(ledger.open(fleet="default", shards=1, migrate=True) for ledger in ledgers)
        )
    )
    assert len(set(opened)) == 1
    for ledger in ledgers:
        await ledger.close()


def test_the_migration_is_a_script_for_people_too(bare_url: str) -> None:
    script = migration_sql(bare_url)
    if bare_url.startswith("sqlite"):
        with closing(sqlite3.connect(bare_url.removeprefix("sqlite:///"))) as connection:
            connection.executescript(script)
    else:
        with psycopg.connect(bare_url, autocommit=True) as server:
            server.execute(script.encode())
    with open_reader(bare_url) as reader:
        assert reader.identity().schema_version == newest(Dialect.SQLITE)
