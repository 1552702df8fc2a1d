"""The demo holds; its verdict can fail; it touches only the processes it started."""

from __future__ import annotations

import asyncio
import io
import os
import signal
import subprocess
import sys
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import psutil
import pytest
from rich.console import Console

from cron_leader import demo
from cron_leader.core.model import Job, ShellSpec
from cron_leader.core.schedule import Every
from cron_leader.demo import processes, report
from cron_leader.demo.acts import Failover
from cron_leader.demo.fleet import Fleet, Line, Stalled, Timeline
from cron_leader.demo.verdict import Evidence, GapRow, SlotRow, TermRow, judge

NOON = datetime(2026, 12, 1, 12, tzinfo=UTC)
JOBS = [Job("tick", Every(timedelta(seconds=1)), ShellSpec("true"))]
FAILOVER = Failover("SIGTERM", "a", "b", 10.0, 1500.0, "< 50 ms")


def at(second: int) -> datetime:
    return NOON + timedelta(seconds=second)


def slot(second: int, state: str = "succeeded") -> SlotRow:
    return SlotRow("tick", at(second), state, "a", 7)


GOOD = Evidence(
    planned_to=at(4),
    known={"tick": at(0)},
    slots=(slot(1), slot(4)),
    gaps=(GapRow("tick", at(2), at(3)),),
    terms=(),
    doubled_runs=0,
    refused=1,
    accepted=0,
    marks=("1", "4"),
)


def broken(evidence: Evidence, failover: Failover = FAILOVER) -> list[str]:
    return [check.what for check in judge(evidence, JOBS, [failover]) if not check.holds]


def test_rows_and_gaps_together_explain_every_slot() -> None:
    assert broken(GOOD) == []


@pytest.mark.parametrize(
    ("evidence", "what"),
    [
        (replace(GOOD, gaps=()), "slots unexplained"),
        (replace(GOOD, slots=(*GOOD.slots, slot(0))), "rows beyond the schedule"),
        (replace(GOOD, slots=(*GOOD.slots, slot(4))), "duplicates: rows or runs"),
        (replace(GOOD, doubled_runs=1), "duplicates: rows or runs"),
        (replace(GOOD, marks=("1", "1")), "slots run twice, by their own marks"),
        (replace(GOOD, slots=(slot(1), slot(4, "running"))), "slots left unfinished"),
        (replace(GOOD, refused=0), "stale writes refused"),
        (replace(GOOD, accepted=1), "stale writes accepted"),
    ],
)
def test_the_verdict_fails_when_the_promise_is_broken(evidence: Evidence, what: str) -> None:
    assert broken(evidence) == [what]


def test_a_slow_failover_fails_the_verdict() -> None:
    assert broken(GOOD, replace(FAILOVER, took_ms=1500.0)) == ["failover, SIGTERM a -> b"]


def test_a_wrong_exit_code_fails_the_verdict() -> None:
    assert broken(GOOD, replace(FAILOVER, exited=(1, 0))) == ["exit code of a after SIGTERM"]


def test_nothing_expected_is_no_pass() -> None:
    nothing = replace(GOOD, known={}, slots=(), gaps=())
    assert broken(nothing) == ["slots expected"]


@pytest.mark.parametrize("reason", ["lease_expired", "stopping"])
def test_the_end_of_a_term_that_said_nothing_is_told_as_its_last_heartbeat(reason: str) -> None:
    shown = io.StringIO()
    term = TermRow(7, "a", at(0), at(4), reason)
    report.show_terms(Console(file=shown, width=120), replace(GOOD, terms=(term,)))
    assert ("its last heartbeat" in shown.getvalue()) is (reason == "lease_expired")


# ------------------------------------------------------------------ the timeline


def line(event: str, second: int, node: str = "a", **fields: object) -> Line:
    return Line(at(second), event, node, fields)


async def test_the_first_of_an_event_is_waited_for() -> None:
    timeline = Timeline()
    timeline.add(line("gate.opened", 0))
    waiting = asyncio.create_task(timeline.first("gate.opened", since=at(1), within_s=5))
    await asyncio.sleep(0)
    timeline.add(line("gate.closed", 2))
    timeline.add(line("gate.opened", 3, "b"))
    assert (await waiting).node == "b"


async def test_what_does_not_come_in_time_is_said_in_one_line() -> None:
    with pytest.raises(Stalled, match=r"^no gate\.opened of node b within 0\.01 s$"):
        await Timeline().first("gate.opened", node="b", since=NOON, within_s=0.01)


async def test_a_node_that_exits_at_once_says_why(tmp_path: Path) -> None:
    config = tmp_path / "cron-leader.toml"
    config.write_text("[fleet]\nnam = 'x'\n")
    async with Fleet(config) as fleet:
        with pytest.raises(Stalled, match=r"node a exited with 2: .*did you mean name"):
            await fleet.start("a")


# ------------------------------------------------------------------ processes


@pytest.fixture
def family() -> subprocess.Popen[bytes]:
    """A shell with a child, both sleeping; ended by the test."""
    script = "sleep 600 & echo up; wait"
    parent = subprocess.Popen(["sh", "-c", script], stdout=subprocess.PIPE)
    assert parent.stdout is not None
    assert parent.stdout.readline() == b"up\n"
    parent.stdout.close()
    return parent


def test_a_frozen_tree_stands_still_and_wakes_again(family: subprocess.Popen[bytes]) -> None:
    pids = processes.freeze(family.pid)
    assert len(pids) == 2
    assert {psutil.Process(pid).status() for pid in pids} == {psutil.STATUS_STOPPED}
    processes.thaw(pids)
    assert psutil.STATUS_STOPPED not in {psutil.Process(pid).status() for pid in pids}
    processes.kill_tree(family.pid)
    assert family.wait(5) == -signal.SIGKILL
    assert processes.tree(family.pid) == []


# ------------------------------------------------------------------ the whole of it


async def test_the_demo_holds_and_leaves_nothing_behind() -> None:
    before = set(processes.tree(os.getpid()))
    shown = io.StringIO()
    code = await demo.main(console=Console(file=shown, width=120))
    assert code == 0, shown.getvalue()
    assert "verdict: all of it holds" in shown.getvalue()
    assert set(processes.tree(os.getpid())) == before


def test_no_etcd_is_one_line(tmp_path: Path) -> None:
    run = subprocess.run(
        [
            sys.executable,
            "-c",
            "from cron_leader.cli import main; raise SystemExit(main())",
            "demo",
        ],
        env={"PATH": str(tmp_path), "CRON_LEADER_ETCD": str(tmp_path / "none")},
        capture_output=True,
        text=True,
    )
    assert run.returncode == 2
    assert run.stderr.count("\n") == 1
    assert "etcd" in run.stderr
