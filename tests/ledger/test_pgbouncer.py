"""A PgBouncer in transaction mode between the nodes and Postgres: the whole conformance suite, and
a fleet. Whatever outlives a transaction (a session's SET, a lock, a prepared statement) would show.
"""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from cron_leader.core.model import Claim, Taken
from cron_leader.ledger.views import open_reader
from tests import kit, pg_kit
from tests.etcd_kit import QUICK, EmbeddedEtcd
from tests.ledger.conftest import EMPTY, _needed
from tests.ledger.kit import Lab, settlement, slot
from tests.ledger.test_conformance import *  # noqa: F403
from tests.pg_kit import Postgres

APPLICATIONS = "SELECT count(*) FROM pg_stat_activity WHERE application_name LIKE 'cron_leader:%'"


@pytest.fixture(scope="module")
def port(servers: dict[int, Postgres]) -> Iterator[int]:
    """Of a pooler before the newest Postgres."""
    tool = pg_kit.find_pgbouncer()
    if tool is None:
        _needed("pgbouncer")
    if not servers:
        _needed("Postgres")
    assert tool is not None
    with pg_kit.pgbouncer(tool, servers[max(servers)]) as port:
        yield port


@pytest.fixture
def url(server: Postgres, port: int) -> Iterator[str]:
    """Overrides conftest's: the tests taken over from test_conformance go through the pooler."""
    server.run(EMPTY, database="ready")
    yield f"postgresql://postgres@{server.host}:{port}/ready"
    server.run(EMPTY, database="ready")  # a fleet has made it its own


@pytest.fixture
def bare_url(server: Postgres, port: int) -> Iterator[str]:
    """The same, of a database that nobody has migrated."""
    with server.database() as url:
        yield url.replace(f":{server.port}/", f":{port}/")


def test_readers_that_ask_the_same_again_and_again_share_connections(url: str) -> None:
    """A client that prepares statements by name would meet them on another's connection."""
    with open_reader(url) as one, open_reader(url) as other:
        for _ in range(12):
            assert one.slots() == other.slots() == ()


async def test_nothing_of_a_term_stays_with_the_poolers_connections(
    lab: Lab, server: Postgres
) -> None:
    leader = await lab.leader("a", settlement())
    assert isinstance(await leader.take(Claim(slot(), "run")), Taken)
    assert server.ask(APPLICATIONS) == 0


async def test_a_fleet_hands_over_through_the_pooler(url: str, tmp_path: Path) -> None:
    with EmbeddedEtcd(tmp_path / "etcd", options=QUICK) as etcd:
        async with kit.town(tmp_path, etcd.endpoint, ledger=url) as town:
            opened = await town.lead("a")
            await town.says("run.finished", since=opened.at, node="a", outcome="succeeded")
            await town.follow("b")
            since = kit.now()
            town.fleet.signal("a", signal.SIGTERM)
            heir = await town.says("gate.opened", since=since, node="b")
            await town.says("run.finished", since=heir.at, node="b", outcome="succeeded")
            assert await town.fleet.ended("a") == 0
            slots = await asyncio.to_thread(town.slots, "beat")
    times = [row.scheduled_for for row in slots]
    assert len(times) == len(set(times))
    assert not list(town.fleet.timeline.all("ledger.unreachable"))
