"""Both ledgers, fresh for every test: a SQLite file, and a database of each Postgres found."""

from __future__ import annotations

import contextlib
import os
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from cron_leader.ledger.migrate import migration_sql, newest
from cron_leader.ledger.sql import Dialect
from tests import pg_kit
from tests.ledger.kit import Lab

MAJORS = (15, 18)
EMPTY = f"""
DO $$ DECLARE name text; BEGIN
    FOR name IN SELECT tablename FROM pg_tables WHERE tablename LIKE 'cron\\_leader\\_%' LOOP
        IF name <> 'cron_leader_meta' THEN EXECUTE 'DELETE FROM ' || name; END IF;
    END LOOP;
END $$;
UPDATE cron_leader_meta SET fleet = '', shards = 0, schema_version = {newest(Dialect.POSTGRES)}
"""
SERVERS = tuple(f"postgres{major}" for major in MAJORS)


def _needed(what: str) -> None:
    if os.environ.get("CRON_LEADER_REQUIRE_ALL"):
        pytest.fail(f"{what} is not on this machine, and CRON_LEADER_REQUIRE_ALL is set")
    pytest.skip(f"{what} is not on this machine")


@pytest.fixture(scope="session")
def servers() -> Iterator[dict[int, pg_kit.Postgres]]:
    """One server of each version, with a migrated database `ready`, emptied for each test."""
    with contextlib.ExitStack() as stack:
        found = {}
        for major, folder in pg_kit.installed().items():
            if major in MAJORS:
                server = stack.enter_context(pg_kit.postgres(folder))
                server.run("CREATE DATABASE ready")
                server.run(migration_sql(server.url()), database="ready")
                found[major] = server
        yield found


@pytest.fixture
def server(servers: dict[int, pg_kit.Postgres]) -> pg_kit.Postgres:
    """The newest Postgres found."""
    if not servers:
        _needed("Postgres")
    return servers[max(servers)]


@pytest.fixture(params=["sqlite", *SERVERS])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """A ledger that is migrated (or, SQLite, will be at first open), and empty."""
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path}/ledger.db"
    server = _server(request)
    server.run(EMPTY, database="ready")
    return server.url("ready")


@pytest.fixture(params=["sqlite", *SERVERS])
def bare_url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """A ledger nobody has migrated."""
    if request.param == "sqlite":
        yield f"sqlite:///{tmp_path}/ledger.db"
        return
    with _server(request).database() as url:
        yield url


def _server(request: pytest.FixtureRequest) -> pg_kit.Postgres:
    servers: dict[int, pg_kit.Postgres] = request.getfixturevalue("servers")
    major = int(request.param.removeprefix("postgres"))
    if major not in servers:
        _needed(f"Postgres {major}")
    return servers[major]


@pytest.fixture
async def lab(url: str) -> AsyncIterator[Lab]:
    """The ledger, opened, with helpers to be several leaders of it."""
    async with contextlib.AsyncExitStack() as stack:
        lab = Lab(url, stack)
        await lab.ledger()
        yield lab


@pytest.fixture
async def pglab(server: pg_kit.Postgres) -> AsyncIterator[Lab]:
    """A lab on the newest Postgres."""
    server.run(EMPTY, database="ready")
    async with contextlib.AsyncExitStack() as stack:
        yield Lab(server.url("ready"), stack)
