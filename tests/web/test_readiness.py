"""Health and readiness of real nodes: starting, standing by, leading, draining, cut off."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from cron_leader.core.gate import CloseReason, Gate
from cron_leader.core.standing import Phase
from cron_leader.etcd.embedded import EmbeddedEtcd, Ports
from cron_leader.web.ready import unready
from tests import pg_kit
from tests.etcd_kit import QUICK, Proxy, freeze, thaw
from tests.kit import Town, now, town
from tests.web.kit import S, served, snapshot

HELD = """
[[job]]
name = "held"
every = "1s"
shell = "until [ -e go ]; do sleep 0.05; done"
"""


@pytest.fixture(scope="module")
def postgres() -> Iterator[pg_kit.Postgres]:
    with pg_kit.postgres(pg_kit.newest()) as server:
        yield server


async def test_leader_and_follower_are_ready_and_say_which_they_are(town: Town) -> None:
    async with served(town, "a") as leader, served(town, "b") as follower:
        await leader.start("gate.opened")
        await follower.start("lease.granted")
        said = await leader.becomes("/readyz", 200)
        assert said.json == {"ready": True, "reasons": [], "phase": "leading", "gate": "open"}
        said = await follower.becomes("/readyz", 200)
        assert (said.json["phase"], said.json["gate"]) == ("in line", "not_raised")
        assert (await follower.get("/healthz")).text == "ok\n"


async def test_a_node_whose_etcd_is_away_is_alive_and_not_ready(tmp_path: Path) -> None:
    nowhere = f"127.0.0.1:{Ports.draw().client}"
    async with town(tmp_path, nowhere) as place, served(place, "a") as node:
        await node.start("etcd.unreachable")
        assert (await node.get("/healthz")).status == 200
        said = await node.get("/readyz")
        assert (said.status, said.json["reasons"]) == (503, ["starting"])


async def test_the_listener_stays_up_while_runs_end_and_the_node_is_not_ready_then(
    tmp_path: Path, etcd: EmbeddedEtcd
) -> None:
    async with town(tmp_path, etcd.endpoint, jobs=HELD) as place, served(place, "a") as node:
        await node.start("run.started")
        since = now()
        node.fleet.signal("a", signal.SIGTERM)
        await node.fleet.timeline.first("gate.closed", since=since, within_s=10)
        for _ in range(20):  # a server that heard the signal itself is gone after a tenth of this
            said = await node.get("/readyz")
            assert (said.status, said.json["reasons"]) == (503, ["stopping"])
            assert (await node.get("/healthz")).status == 200
            await asyncio.sleep(0.05)
        (tmp_path / "go").touch()
        assert await node.fleet.ended("a") == 0
        assert node.fleet.timeline.last("run.finished", outcome="succeeded")


async def test_a_leader_without_its_ledger_is_not_ready_until_it_is_back(
    tmp_path: Path, etcd: EmbeddedEtcd, postgres: pg_kit.Postgres
) -> None:
    there = f"{postgres.host}:{postgres.port}"
    with postgres.database() as url:
        async with (
            Proxy(there) as proxy,
            town(
                tmp_path, etcd.endpoint, ledger=url.replace(there, proxy.endpoint), ttl="5s"
            ) as place,
            served(place, "a") as node,
        ):
            await node.start("gate.opened")
            await node.becomes("/readyz", 200)
            proxy.refuse = True
            proxy.cut()
            said = await node.becomes("/readyz", 503)
            assert "ledger_unreachable" in said.json["reasons"]
            assert (await node.metrics())["ledger_up"] == 0
            status = (await node.get("/api/v1/status")).json
            assert status["ledger_id"] is None
            assert proxy.endpoint.partition(":")[2] in status["errors"][0]
            proxy.refuse = False
            await node.becomes("/readyz", 200)


async def test_a_follower_without_etcd_is_not_ready_until_it_is_back(tmp_path: Path) -> None:
    with EmbeddedEtcd(tmp_path / "etcd", options=QUICK) as own:
        async with town(tmp_path, own.endpoint) as place, served(place, "b") as follower:
            await place.lead("a")
            await follower.start("lease.granted")
            await follower.becomes("/readyz", 200)
            freeze(own)
            said = await follower.becomes("/readyz", 503)
            assert {"etcd_unreachable", "not_in_line"} & set(said.json["reasons"])
            thaw(own)
            await follower.becomes("/readyz", 200)


@pytest.mark.parametrize(
    ("phase", "gate", "reasons"),
    [
        (None, Gate(), ["starting"]),
        (Phase.OUT, Gate(), ["not_in_line"]),
        (Phase.PROBING, Gate(), ["not_in_line"]),
        (Phase.JOINING, Gate(), ["not_in_line"]),
        (Phase.JOINING, Gate(deadline_ns=101 * S), []),
        (Phase.JOINING, Gate(deadline_ns=99 * S), ["not_in_line"]),
        (Phase.RAISING, Gate(deadline_ns=101 * S), ["not_ticking"]),
        (Phase.SETTLING, Gate(deadline_ns=101 * S, raised=True), ["not_ticking"]),
        (Phase.LEADING, None, []),
        (Phase.LEADING, Gate(deadline_ns=99 * S, watching=True), ["not_ticking"]),
        (Phase.LEADING, Gate(deadline_ns=101 * S, stopping=True), ["stopping"]),
        (Phase.CLOSING, Gate(), ["not_in_line"]),
        (Phase.LEAVING, Gate(stopping=True), ["stopping"]),
        (Phase.STOPPED, Gate(), ["stopping"]),
    ],
)
def test_a_node_is_ready_in_line_or_ticking(
    phase: Phase | None, gate: Gate | None, reasons: list[str]
) -> None:
    assert list(unready(snapshot(phase, gate=gate), etcd_up=True, ledger_up=True)) == reasons


def test_every_reason_is_told_but_only_one_before_and_after_a_life() -> None:
    closed = snapshot(gate=Gate(deadline_ns=1))
    assert closed.closed is CloseReason.DEADLINE
    told = unready(closed, etcd_up=False, ledger_up=False)
    assert list(told) == ["not_ticking", "etcd_unreachable", "ledger_unreachable"]
    assert list(unready(snapshot(None), etcd_up=False, ledger_up=False)) == ["starting"]
