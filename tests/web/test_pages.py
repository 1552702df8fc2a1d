"""What real nodes show: the status that the command prints, and metrics that Prometheus reads."""

from __future__ import annotations

import asyncio
import contextlib
import json
import sqlite3
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from cron_leader.etcd.embedded import EmbeddedEtcd
from cron_leader.ledger.views import open_reader
from tests.kit import Town, now, town
from tests.web.kit import Served, ask, served

COMMAND = "import sys; from cron_leader.cli import main; sys.exit(main())"
NEVER = '[[job]]\nname = "never"\nat = "2999-01-01T00:00:00Z"\ncommand = ["true"]\n'
STATUS = "/api/v1/status"
MOVING = {"heartbeat", "planned_to"}
"""Facts of a leader that change each second."""


@pytest.fixture
async def quiet(tmp_path: Path, etcd: EmbeddedEtcd) -> AsyncIterator[Served]:
    """A leader with little to do."""
    async with town(tmp_path, etcd.endpoint, jobs=NEVER) as place, served(place, "a") as node:
        await node.start("gate.opened")
        yield node


def _printed(config: Path) -> Any:
    """By `cron-leader status --json`."""
    command = [sys.executable, "-c", COMMAND, "status", "--json", "--config", str(config)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    return _still(json.loads(done.stdout))


def _still(status: Any) -> Any:
    leader = {key: value for key, value in status["leader"].items() if key not in MOVING}
    return status | {"leader": leader}


async def test_leader_and_follower_serve_the_same_fleet(town: Town) -> None:
    async with served(town, "a") as leader, served(town, "b") as follower:
        await leader.start("gate.opened")
        await follower.start("lease.granted")
        for node in (leader, follower):
            answer = await node.until(STATUS, lambda answer: len(answer.json["nodes"]) == 2)
            said = answer.json
            assert said["leader"]["node"] == "a"
            assert [standing["node"] for standing in said["nodes"]] == ["a", "b"]
            assert said["errors"] == []


async def test_the_status_is_what_the_command_prints(quiet: Served) -> None:
    before = await asyncio.to_thread(_printed, quiet.town.config)
    said = await quiet.get(STATUS)
    assert said.headers["content-type"] == "application/json"
    assert _still(said.json) == before


async def test_what_is_not_there_is_404_and_reading_is_all_one_may_do(quiet: Served) -> None:
    for path in ("/", "/healthz/", "/metrics/x", "/api/v1", "/api/v1/status/", "/docs"):
        assert (await quiet.get(path)).status == 404, path
    url = f"http://127.0.0.1:{quiet.port}{STATUS}"
    assert (await asyncio.to_thread(ask, url, b"{}")).status == 405


async def test_a_leaders_metrics_parse_and_tell_its_term(town: Town) -> None:
    async with served(town, "a") as node:
        opened = await node.start("gate.opened")
        await node.fleet.timeline.first("run.finished", since=opened.at, within_s=20)
        said = await node.metrics()
        assert (said["gate_open"], said["etcd_up"], said["ledger_up"]) == (1, 1, 1)
        assert said["fence"] == opened.fields["fence"]
        assert said["terms_elected_total"] == 1
        assert said["runs_finished_total{job=beat,outcome=succeeded}"] >= 1
        assert said["run_lateness_seconds_count"] >= 1
        assert 0 < said["lease_left_seconds"] < 2
        assert 0 < said["lease_left_min_seconds"] <= said["lease_left_seconds"] + 0.1
        assert 0 <= said["loop_lag_max_seconds"] < 5
        page = await node.get("/metrics")
        assert page.headers["content-type"].startswith("text/plain; version=0.0.4")


async def test_a_leader_whose_fence_was_raised_by_hand_says_so_wherever_one_looks(
    quiet: Served,
) -> None:
    """The split-brain self-test: it still leads in etcd, has nothing to run, and finds out by its
    heartbeat, within a second."""
    ledger = quiet.town.ledger
    opened = quiet.fleet.timeline.last("gate.opened", node="a")
    assert opened is not None
    fence, since = opened.fields["fence"], now()
    refused = "writes_refused_total{what=heartbeat}"
    assert (await quiet.metrics())[refused] == 0
    with contextlib.closing(sqlite3.connect(ledger.removeprefix("sqlite:///"))) as by_hand, by_hand:
        by_hand.execute("UPDATE cron_leader_fence SET fence = fence + 1000000, nonce = 'by hand'")
    told = await quiet.fleet.timeline.first("ledger.refused", since=since, within_s=20)
    assert (told.fields["what"], told.fields["fence"]) == ("heartbeat", fence)
    assert told.fields["high"] == fence + 1_000_000
    ended = await quiet.fleet.timeline.first("term.ended", since=since, within_s=20)
    assert (ended.fields["reason"], ended.fields["fence"]) == ("refused", fence)
    assert (await quiet.counts(refused))["gate_open"] == 0
    with open_reader(ledger) as reader:
        (row,) = [row for row in reader.refusals() if row.what == "heartbeat"]
    assert (row.fence, row.high, row.node) == (fence, fence + 1_000_000, "a")


async def test_a_successor_counts_the_time_that_nobody_led(town: Town) -> None:
    async with served(town, "b") as successor:
        await town.lead("a")
        await town.says("run.finished", since=now())
        await successor.start("lease.granted")
        before = await successor.metrics()
        assert (before["gate_open"], before["leaderless_seconds_total"]) == (0, 0)
        frozen = await town.freeze("a")
        opened = (await successor.fleet.leader(since=frozen, within_s=20)).at
        after = await successor.counts("leaderless_seconds_total")
        gone_s = (opened - frozen).total_seconds()
        # The frozen leader's last heartbeat, at most a second (and a write) before it stood.
        assert gone_s - 0.1 <= after["leaderless_seconds_total"] <= gone_s + 2
        assert after["terms_elected_total"] == 1


async def test_many_askers_at_once_are_all_answered(quiet: Served) -> None:
    url = f"http://127.0.0.1:{quiet.port}"
    paths = ["/metrics", STATUS, "/readyz"] * 8
    answers = await asyncio.gather(*(asyncio.to_thread(ask, url + path) for path in paths))
    assert {answer.status for answer in answers} == {200}
