"""The README's two terminals: what it says of Ctrl-C, kill -9, kill -STOP and kill -CONT."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import pytest

from cron_leader.cli import main
from cron_leader.demo import processes
from cron_leader.demo.fleet import Fleet, Line
from cron_leader.etcd.embedded import EmbeddedEtcd

TTL_S = 4
SOON_S = TTL_S / 2
"""Sooner than any lease can run out: somebody gave it back."""

PROGRAM = (sys.executable, "-c", "from cron_leader.cli import main; raise SystemExit(main())")


@dataclass(frozen=True, slots=True)
class Terminals:
    """a leads, b stands by, as after the README's two commands. lead: a's gate.opened."""

    fleet: Fleet
    environ: dict[str, str]
    folder: Path
    lead: Line

    @property
    def ledger(self) -> Path:
        return self.folder / "cron-leader.db"

    def third(self, *words: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [*PROGRAM, *words], cwd=self.folder, env=self.environ, capture_output=True, text=True
        )


@pytest.fixture
async def terminals(tmp_path: Path) -> AsyncIterator[Terminals]:
    with EmbeddedEtcd(tmp_path / "etcd") as etcd:
        environ = {k: v for k, v in os.environ.items() if not k.startswith("CRON_LEADER_")} | {
            "CRON_LEADER_ETCD_ENDPOINTS": etcd.endpoint,
            "CRON_LEADER_LEASE_TTL": f"{TTL_S}s",
            "NO_COLOR": "1",
        }
        config = tmp_path / "cron-leader.toml"
        assert main(["init", str(config)]) == 0
        async with Fleet(config, environ=environ) as fleet:
            since = datetime.now(UTC)
            await fleet.start("a")
            lead = await fleet.leader(since=since, within_s=10)
            b = await fleet.start("b")
            await fleet.timeline.first("lease.granted", node="b", since=b.at, within_s=10)
            yield Terminals(fleet, environ, tmp_path, lead)


async def test_ctrl_c_hands_over_and_exits_0(terminals: Terminals) -> None:
    asked = terminals.fleet.signal("a", signal.SIGINT)
    assert (await terminals.fleet.leader(since=asked, within_s=SOON_S)).node == "b"
    assert await terminals.fleet.ended("a") == 0


async def test_kill_9_of_the_daemon_is_cleaned_up_by_its_supervisor(terminals: Terminals) -> None:
    killed = terminals.fleet.kill_daemon("a")
    assert (await terminals.fleet.leader(since=killed, within_s=SOON_S)).node == "b"
    assert await terminals.fleet.ended("a") == 128 + signal.SIGKILL


async def test_kill_9_of_the_supervisor_is_cleaned_up_by_its_daemon(terminals: Terminals) -> None:
    killed = terminals.fleet.signal("a", signal.SIGKILL)
    assert (await terminals.fleet.leader(since=killed, within_s=SOON_S)).node == "b"
    assert await terminals.fleet.ended("a") == -signal.SIGKILL


async def test_kill_9_of_both_costs_the_ttl(terminals: Terminals) -> None:
    started = terminals.fleet.timeline.last("node.started", node="a")
    assert started is not None
    killed = datetime.now(UTC)
    for how in (signal.SIGSTOP, signal.SIGKILL):  # else one may clean up after the other
        for pid in (started.fields["supervisor_pid"], started.fields["pid"]):
            processes.send(pid, how)
    new = await terminals.fleet.leader(since=killed, within_s=TTL_S + 5)
    assert new.node == "b"
    assert (new.at - killed).total_seconds() > SOON_S


async def test_a_frozen_leader_wakes_deposed_and_gets_in_line_again(terminals: Terminals) -> None:
    frozen = await terminals.fleet.freeze_between_writes("a", terminals.ledger)
    assert (await terminals.fleet.leader(since=frozen, within_s=TTL_S + 5)).node == "b"
    thawed = terminals.fleet.thaw("a")
    seen = terminals.fleet.timeline
    closed = await seen.first("gate.closed", node="a", since=thawed, within_s=5)
    assert closed.fields["fence"] == terminals.lead.fields["fence"]
    await seen.first("term.campaigning", node="a", since=thawed, within_s=10)
    late = seen.all("run.started", node="a", fence=terminals.lead.fields["fence"])
    assert not [line for line in late if line.at >= thawed]


async def test_a_third_terminal_sees_who_leads(terminals: Terminals) -> None:
    status = terminals.third("status")
    assert status.returncode == 0, status.stderr
    assert str(terminals.lead.fields["fence"]) in status.stdout
    assert terminals.third("history").returncode == 0
