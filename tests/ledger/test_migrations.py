"""The schema moves forward, in one piece, beside nodes that run."""

from __future__ import annotations

import asyncio
import shutil
import subprocess
from contextlib import AsyncExitStack
from pathlib import Path

import psycopg
import pytest

from cron_leader.cli import main
from cron_leader.core.model import Applied, Claim, Taken
from cron_leader.errors import LedgerNotCommitted, LedgerUnusable
from cron_leader.ledger import Ledger, migrate, open_ledger
from cron_leader.ledger.migrate import migration_sql, newest
from cron_leader.ledger.sql import Dialect
from cron_leader.ledger.views import open_reader
from tests.ledger.conftest import _needed
from tests.ledger.kit import Lab, at, settlement, slot, soon
from tests.pg_kit import Postgres, installed

NOW = newest(Dialect.SQLITE)
NEXT = NOW + 1
ADDS = "ALTER TABLE cron_leader_term ADD COLUMN mood text;"
BUMP = f"UPDATE cron_leader_meta SET schema_version = {NEXT};"
BROKEN = "CREATE TABLE cron_leader_term (again integer);"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The migrations, to be added to or taken from: a program of another release."""
    copy = tmp_path / "migrations"
    shutil.copytree(migrate.FOLDER, copy)
    monkeypatch.setattr(migrate, "FOLDER", copy)
    return copy


def _release(folder: Path, *statements: str) -> None:
    """The next release's migration, for both databases."""
    for dialect in Dialect:
        file = folder / f"{NEXT:04}_next.{dialect.value}.sql"
        file.write_text("\n".join(statements) + "\n", encoding="utf-8")


def _back_to(folder: Path, version: int) -> None:
    """A program that knows no later one."""
    for file in folder.glob("*.sql"):
        if int(file.name.partition("_")[0]) > version:
            file.unlink()


async def opened(url: str, *, migrate: bool = True) -> Ledger:
    ledger = open_ledger(url)
    try:
        await ledger.open(fleet="default", shards=1, migrate=migrate)
    except BaseException:
        await ledger.close()
        raise
    return ledger


async def migrated(url: str) -> None:
    await (await opened(url)).close()


def version(url: str) -> int:
    with open_reader(url) as reader:
        return reader.identity().schema_version


def test_both_databases_have_the_same_migrations_numbered_without_gaps() -> None:
    numbers = {
        dialect: [int(f.name[:4]) for f in sorted(migrate.FOLDER.glob(f"*.{dialect.value}.sql"))]
        for dialect in Dialect
    }
    assert all(found == list(range(1, NOW + 1)) for found in numbers.values())


async def test_an_older_schema_is_brought_up_by_nodes_that_start_at_once(
    bare_url: str, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _back_to(folder, 1)
    await migrated(bare_url)
    assert version(bare_url) == 1
    monkeypatch.undo()
    await soon(asyncio.gather(*(migrated(bare_url) for _ in range(4))))
    assert version(bare_url) == NOW


async def test_a_migration_that_fails_half_way_leaves_nothing(url: str, folder: Path) -> None:
    await migrated(url)
    _release(folder, ADDS, BROKEN, BUMP)
    with pytest.raises(LedgerUnusable, match="already exists"):
        await opened(url)
    with open_reader(url) as reader, pytest.raises(LedgerUnusable):
        reader._database.run("SELECT mood FROM cron_leader_term", {})
    assert version(url) == NOW
    _back_to(folder, NOW)
    await (await opened(url, migrate=False)).close()


async def test_a_leader_of_the_release_before_goes_on_and_once_gone_is_refused(
    bare_url: str, folder: Path
) -> None:
    async with AsyncExitStack() as stack:
        lab = Lab(bare_url, stack)
        await migrated(bare_url)
        leader = await lab.leader("old", settlement())
        _release(folder, ADDS, BUMP)
        await migrated(bare_url)
        assert version(bare_url) == NEXT
        assert isinstance(await leader.take(Claim(slot(), "run")), Taken)
        assert isinstance(await leader.finish(Claim(slot(), "run")), Applied)
        beat = await leader.ledger.heartbeat(leader.term, at(1), at(1))
        assert isinstance(beat, Applied)
        assert beat.changed
        _back_to(folder, NOW)
        said = rf"has schema {NEXT}, this program knows {NOW}: upgrade cron-leader"
        with pytest.raises(LedgerUnusable, match=said) as refused:
            await opened(bare_url)
        assert refused.value.permanent


async def test_without_migrate_an_older_schema_is_told_with_the_cure(
    bare_url: str, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _back_to(folder, 1)
    await migrated(bare_url)
    monkeypatch.undo()
    with pytest.raises(LedgerUnusable, match=r"old schema 1: run `cron-leader db migrate`.*--sql"):
        await opened(bare_url, migrate=False)
    assert version(bare_url) == 1


# ------------------------------------------------------------------ by hand


def _psql(server: Postgres, url: str, script: str) -> subprocess.CompletedProcess[str]:
    tool = installed()[server.version] / "psql"
    return subprocess.run(
        [tool, "-X", "-v", "ON_ERROR_STOP=1", url],
        input=script,
        capture_output=True,
        text=True,
        timeout=30,
    )


def _sqlite3(file: Path, script: str) -> subprocess.CompletedProcess[str]:
    if (tool := shutil.which("sqlite3")) is None:
        _needed("sqlite3")
    assert tool is not None
    return subprocess.run(
        [tool, "-bail", file], input=script, capture_output=True, text=True, timeout=30
    )


async def test_psql_takes_the_printed_sql_whole_or_not_at_all(
    server: Postgres, folder: Path
) -> None:
    with server.database() as url:
        assert _psql(server, url, migration_sql(url)).returncode == 0
        await (await opened(url, migrate=False)).close()
        assert _psql(server, url, migration_sql(url)).returncode != 0  # once is enough
        _release(folder, ADDS, BROKEN, BUMP)
        assert "already exists" in _psql(server, url, migration_sql(url, since=NOW)).stderr
        assert version(url) == NOW
        _release(folder, ADDS, BUMP)
        done = _psql(server, url, migration_sql(url, since=NOW))
        assert (done.returncode, done.stderr) == (0, "")
        assert version(url) == NEXT


async def test_sqlite3_takes_the_printed_sql_whole_or_not_at_all(
    tmp_path: Path, folder: Path
) -> None:
    url, file = f"sqlite:///{tmp_path}/ledger.db", tmp_path / "ledger.db"
    assert _sqlite3(file, migration_sql(url)).returncode == 0
    await (await opened(url, migrate=False)).close()
    _release(folder, ADDS, BROKEN, BUMP)
    assert "already exists" in _sqlite3(file, migration_sql(url, since=NOW)).stderr
    assert version(url) == NOW
    _release(folder, ADDS, BUMP)
    assert _sqlite3(file, migration_sql(url, since=NOW)).returncode == 0
    assert version(url) == NEXT


async def test_a_role_without_ddl_runs_what_the_owner_migrated(
    server: Postgres, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And before that is told what to ask the owner for."""
    server.run("DROP ROLE IF EXISTS clerk", "CREATE ROLE clerk LOGIN")
    with server.database() as url:
        _back_to(folder, 1)
        assert _psql(server, url, migration_sql(url)).returncode == 0
        database = url.rpartition("/")[2]
        rights = "GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA public TO clerk"
        server.run(rights, "REVOKE CREATE ON SCHEMA public FROM public", database=database)
        monkeypatch.undo()
        clerk = url.replace("postgres@", "clerk@")
        with pytest.raises(LedgerUnusable, match="have the owner run `cron-leader db migrate"):
            await opened(clerk)
        assert _psql(server, url, migration_sql(url, since=1)).returncode == 0
        async with AsyncExitStack() as stack:
            leader = await Lab(clerk, stack).leader("a", settlement())
            assert isinstance(await leader.take(Claim(slot(), "run")), Taken)
        server.run("DROP OWNED BY clerk", database=database)


async def test_a_migration_behind_a_long_transaction_is_given_up_and_leaves_nothing(
    server: Postgres, folder: Path
) -> None:
    """It would hold up the leader's writes, which wait behind it."""
    with server.database() as url:
        await migrated(url)
        _release(folder, ADDS, BUMP)
        with psycopg.connect(url) as dump:
            dump.execute("LOCK TABLE cron_leader_term IN ACCESS SHARE MODE")
            with pytest.raises(LedgerNotCommitted, match="lock timeout"):
                await opened(url)
            assert version(url) == NOW
        await migrated(url)
        assert version(url) == NEXT


async def test_a_ledger_that_nobody_has_made_is_told_alike_of_either_database(
    bare_url: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Also of an SQLite file that is there, and empty."""
    (tmp_path / "ledger.db").touch()
    config = tmp_path / "cron-leader.toml"

    async def told(*words: str, migrate: str = "true") -> tuple[int, list[str]]:
        config.write_text(
            f'[ledger]\nurl = "{bare_url}"\nmigrate = {migrate}\n'
            '[etcd]\nendpoints = ["127.0.0.1:1"]\n'
            '[[job]]\nname = "digest"\nevery = "1m"\nshell = ":"\n'
        )
        code = await asyncio.to_thread(main, [*words, "--config", str(config)])
        return code, [line for line in capsys.readouterr().err.splitlines() if "ledger" in line]

    why = ("why", "digest", "2026-01-02T03:01:00Z")
    for words in (("history",), why, ("terms",), ("fence", "show"), ("status",)):
        code, (line,) = await told(*words)
        assert code == 3, words
        assert ": not there yet; the first node makes it (`cron-leader run`), or `" in line
    _, (line,) = await told("history", migrate="false")
    assert line.endswith(": not there yet; run `cron-leader db migrate`")
    assert (await told("db", "migrate"))[0] == 0
    assert (await told("history"))[0] == 0
