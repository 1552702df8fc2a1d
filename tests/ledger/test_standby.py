"""Postgres fails over to a real streaming stand-by: with its last commits, and without them."""

from __future__ import annotations

import asyncio
import contextlib
import json
import signal
import time
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from cron_leader.core.model import Applied, Candidate, Claim, Refused, Rollback, Taken
from cron_leader.errors import LedgerUncertain, LedgerUnusable
from cron_leader.ledger.migrate import migration_sql
from cron_leader.ledger.views import open_reader
from tests import kit, pg_kit
from tests.etcd_kit import QUICK, EmbeddedEtcd
from tests.ledger.conftest import EMPTY, _needed
from tests.ledger.kit import T0, Lab, Leader, at, nothing, settlement, slot, soon
from tests.pg_kit import Postgres

PAUSE_S = 0.02
CAUGHT_UP = "SELECT count(*) FROM pg_stat_replication WHERE replay_lsn >= pg_current_wal_lsn()"
IN_STEP = "SELECT count(*) FROM pg_stat_replication WHERE sync_state = 'sync'"
RECEIVING = "SELECT count(*) FROM pg_stat_wal_receiver"


@dataclass
class Pair:
    """A primary and its stand-by; the URL names both, and finds the one that can be written."""

    primary: Postgres
    standby: Postgres

    @property
    def url(self) -> str:
        hosts = ",".join(f"{s.host}:{s.port}" for s in (self.primary, self.standby))
        return f"postgresql://postgres@{hosts}/ready?target_session_attrs=read-write"

    def catch_up(self) -> None:
        _until(self.primary, CAUGHT_UP, 1)

    def in_step(self) -> None:
        """From now on a commit waits for the stand-by."""
        self.primary.run("ALTER SYSTEM SET synchronous_standby_names = 'standby'")
        self.primary.run("SELECT pg_reload_conf()")
        _until(self.primary, IN_STEP, 1)

    def cut(self) -> None:
        """What is committed from now on does not reach the stand-by."""
        self.catch_up()
        self.standby.run("ALTER SYSTEM SET primary_conninfo = ''", "SELECT pg_reload_conf()")
        _until(self.standby, RECEIVING, 0)

    def fail_over(self) -> None:
        self.primary.kill()
        assert self.standby.ask("SELECT pg_promote()")


def _until(server: Postgres, query: str, count: int) -> None:
    end = time.monotonic() + pg_kit.START_S
    while server.ask(query) != count:
        assert time.monotonic() < end, query
        time.sleep(PAUSE_S)


class Succession:
    """A stand-by that was promoted is the next test's primary: no server is made twice."""

    def __init__(self, first: Postgres, stack: contextlib.ExitStack) -> None:
        self._now = first
        self._stack = stack

    def pair(self) -> Pair:
        primary = self._now
        primary.run("ALTER SYSTEM RESET ALL", "SELECT pg_reload_conf()")
        primary.run(EMPTY, database="ready")
        self._now = self._stack.enter_context(pg_kit.standby(primary))
        return Pair(primary, self._now)


@pytest.fixture(scope="module")
def succession() -> Iterator[Succession]:
    found = pg_kit.installed()
    if not found:
        _needed("Postgres")
    with contextlib.ExitStack() as stack:
        server = stack.enter_context(pg_kit.postgres(found[max(found)]))
        server.run("CREATE DATABASE ready")
        server.run(migration_sql(server.url()), database="ready")
        yield Succession(server, stack)


@pytest.fixture
def pair(succession: Succession) -> Pair:
    return succession.pair()


@pytest.fixture
async def lab(pair: Pair) -> AsyncIterator[Lab]:
    async with contextlib.AsyncExitStack() as stack:
        yield Lab(pair.url, stack)


async def beat(leader: Leader, seconds: float, known: float) -> Applied | Refused:
    """A heartbeat, sent again while the ledger is away, as the daemon does."""
    while True:
        with contextlib.suppress(LedgerUncertain, LedgerUnusable):
            return await leader.ledger.heartbeat(
                leader.term, at(seconds), at(seconds), known=at(known)
            )
        await asyncio.sleep(PAUSE_S)


def _next(lab: Lab, least: int, rollback: Rollback) -> Candidate:
    return replace(lab.candidate("next"), least=least, rollback=rollback)


# ------------------------------------------------------------------ the pin

WATCHED = """
CREATE TABLE watched (relation text, setting text, isolation text);
CREATE FUNCTION watch() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
    INSERT INTO watched VALUES (TG_TABLE_NAME, current_setting('synchronous_commit'),
        current_setting('transaction_isolation'));
    RETURN NULL;
END $$;
DO $$ DECLARE name text; BEGIN
    FOR name IN SELECT tablename FROM pg_tables WHERE tablename LIKE 'cron\\_leader\\_%' LOOP
        EXECUTE format('CREATE TRIGGER watch AFTER INSERT OR UPDATE ON %I EXECUTE FUNCTION watch()',
            name);
    END LOOP;
END $$
"""


async def test_every_write_of_a_term_pins_how_it_commits_whatever_the_servers_default(
    server: Postgres,
) -> None:
    assert server.ask("SHOW synchronous_commit") == "off"
    with server.database("ready") as url:
        name = url.rpartition("/")[2]
        server.run(EMPTY, WATCHED, database=name)
        isolation = "default_transaction_isolation = 'serializable'"
        server.run(f'ALTER DATABASE "{name}" SET {isolation}', database=name)
        async with contextlib.AsyncExitStack() as stack:
            leader = await Lab(url, stack).leader("a", settlement())
            server.run("DELETE FROM watched WHERE relation = 'cron_leader_meta'", database=name)
            run, back = Claim(slot(), "run"), Claim(slot(1), "back")
            assert isinstance(await leader.take(run, back), Taken)
            for answer in (
                await leader.finish(run),
                await leader.put_back(back),
                await leader.ledger.heartbeat(leader.term, at(1), at(1)),
                await leader.ledger.close_term(leader.term, "resigned", at(2)),
            ):
                assert isinstance(answer, Applied)
        written = server.ask("SELECT array_agg(DISTINCT relation) FROM watched", name)
        pinned = server.ask("SELECT array_agg(DISTINCT setting) FROM watched", name)
        isolated = server.ask("SELECT array_agg(DISTINCT isolation) FROM watched", name)
    assert pinned == ["on"]
    assert isolated == ["read committed"]
    assert {f"cron_leader_{t}" for t in ("fence", "term", "job", "slot", "attempt")} <= set(written)


# ------------------------------------------------------------------ the ledger


async def test_a_synchronous_stand_by_loses_nothing_and_the_term_goes_on(
    pair: Pair, lab: Lab
) -> None:
    """Although the server's own synchronous_commit is off: ours is pinned."""
    pair.in_step()
    leader = await lab.leader("a", settlement())
    before = await leader.ledger.timeline()
    run = Claim(slot(), "run")
    assert isinstance(await leader.take(run, to=at(1)), Taken)
    pair.fail_over()
    answer = await soon(beat(leader, 2, known=1))
    assert isinstance(answer, Applied)
    assert answer.changed
    finished = await leader.finish(run)
    assert isinstance(finished, Applied)
    assert finished.changed
    after = await leader.ledger.timeline()
    assert before is not None
    assert after is not None
    assert after > before


async def test_a_raise_that_a_fail_over_lost_is_noticed_by_its_leader_and_by_the_next(
    pair: Pair, lab: Lab
) -> None:
    old = await lab.leader("old", settlement())
    pair.cut()
    leader = await lab.leader("new", settlement())
    assert isinstance(await leader.take(Claim(slot(), "run")), Taken)
    pair.fail_over()
    refused = await soon(beat(leader, 1, known=0))
    assert isinstance(refused, Refused)
    assert refused.high == old.fence
    candidate = _next(lab, leader.fence, Rollback.REFUSE)
    answer = await leader.ledger.raise_fence(candidate, T0, waiting=nothing)
    assert isinstance(answer, Refused)
    assert answer.history
    assert lab.states() == {}
    heir = Leader(leader.ledger, _next(lab, leader.fence, Rollback.SKIP))
    assert await heir.rise() > leader.fence
    assert isinstance(await leader.take(Claim(slot(1), "late")), Refused)
    assert isinstance(await heir.settle(settlement()), tuple)


async def test_claims_that_a_fail_over_lost_are_noticed_though_the_fence_stands(
    pair: Pair, lab: Lab
) -> None:
    leader = await lab.leader("a", settlement())
    pair.cut()
    assert isinstance(await leader.take(Claim(slot(5), "run"), to=at(5)), Taken)
    pair.fail_over()
    answer = await soon(beat(leader, 6, known=5))
    assert isinstance(answer, Applied)
    assert not answer.changed
    assert lab.states() == {}


# ------------------------------------------------------------------ a fleet

DIARY = """
[[job]]
name = "diary"
every = "100ms"
catchup = "all"
shell = 'echo "$CRON_LEADER_SCHEDULED_FOR" >> {diary}'
"""


async def test_a_fail_over_that_outlasts_the_term_is_seen_by_the_next_leader_who_refuses(
    pair: Pair, tmp_path: Path
) -> None:
    """The one who knew is gone; etcd was told when the ledger went away."""
    jobs = DIARY.format(diary=json.dumps(str(tmp_path / "diary")))
    with EmbeddedEtcd(tmp_path / "etcd", options=QUICK) as etcd:
        async with kit.town(tmp_path, etcd.endpoint, jobs=jobs, ledger=pair.url) as town:
            await town.lead("a")
            await asyncio.to_thread(pair.cut)
            await _starts(town, 2)
            since = kit.now()
            pair.primary.kill()
            await town.says("ledger.unreachable", since=since, node="a")
            await _remembers(town, lambda record: "planned_to" in record)
            town.fleet.signal("a", signal.SIGKILL)
            assert await town.fleet.ended("a")
            assert await asyncio.to_thread(pair.standby.ask, "SELECT pg_promote()")
            since = kit.now()
            await town.fleet.start("b")
            told = await town.says("ledger.went_back", since=since, node="b")
            ended = await town.says("term.ended", since=told.at, node="b")
            assert ended.fields["reason"] == "history"
            above = ended.fields["fence"] + 1  # so that the next one does not even get in line
            await _remembers(town, lambda record: record["fence"] == above)
            assert not list(town.fleet.timeline.all("gate.opened", node="b"))


async def _remembers(town: kit.Town, what: Callable[[Mapping[str, Any]], bool]) -> None:
    """Until etcd's record of the last raise is so."""
    key = f"/cron-leader/{town.name}/raised/0".encode()
    async with town.hand() as hand, asyncio.timeout(kit.SOON_S):
        while not what(json.loads((await hand.get(key)).value)):  # noqa: ASYNC110
            await asyncio.sleep(PAUSE_S)


async def _starts(town: kit.Town, count: int) -> None:
    since = kit.now()
    for _ in range(count):
        started = await town.says("run.started", since=since, job="diary")
        since = started.at + timedelta(microseconds=1)


async def test_a_fleet_that_skips_goes_on_after_a_fail_over_and_runs_nothing_twice(
    pair: Pair, tmp_path: Path
) -> None:
    diary = tmp_path / "diary"
    with EmbeddedEtcd(tmp_path / "etcd", options=QUICK) as etcd:
        async with kit.town(
            tmp_path,
            etcd.endpoint,
            jobs=DIARY.format(diary=json.dumps(str(diary))),
            ledger=pair.url,
            more='ledger_rollback = "skip"',
        ) as town:
            await town.lead("a")
            await town.follow("b")
            await asyncio.to_thread(pair.cut)
            await _starts(town, 2)  # of these the second was claimed after the cut
            since = kit.now()
            await asyncio.to_thread(pair.fail_over)
            await town.says("ledger.went_back", since=since, node="a")
            ended = await town.says("term.ended", since=since, node="a")
            assert ended.fields["reason"] == "history"
            moved = await town.says("ledger.failed_over", since=since)
            assert moved.fields["timeline"] > moved.fields["before"]
            told = await town.says("ledger.went_back", since=since, node="b")
            assert told.fields["answer"] == "skip"
            opened = await town.says("gate.opened", since=since, node="b")
            await town.says("run.finished", since=opened.at, node="b")
            ran = diary.read_text().split()
            with open_reader(pair.url) as reader:
                explained = (*reader.slots(job="diary"), *reader.gaps(job="diary"))
    assert len(ran) == len(set(ran))
    assert "rollback" in {row.reason for row in explained}
