"""Plans in network namespaces: between them they put in every fault that this world has, and each
must touch something. Root only."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from itertools import count
from pathlib import Path

import pytest

from chaos import gen, plan, real
from chaos.canaries import CANARIES
from chaos.op import Op, Source, Type, load
from chaos.plan import Fault as F
from chaos.plan import Move, Plan
from chaos.plan import Target as T
from chaos.worlds import contain

ROOT = Path(__file__).resolve().parents[2]
OPENED_MS = 1_500
pytestmark = [
    pytest.mark.root,
    pytest.mark.slow,
    pytest.mark.timeout(240),
    pytest.mark.long_file,
]
OWN_JOBS = """
[fleet]
name = "mine"

[lease]
ttl = "2s"

[ledger]
url = "postgresql://nobody@127.0.0.1:1/none"

[[job]]
name = "digest"
every = "1s"
command = ["true"]

[[job]]
name = "poll"
cron = "*/2 * * * * *"
command = ["true"]

[[job]]
name = "nightly"
cron = "0 3 * * *"
command = ["true"]
"""
"""Somebody's: the addresses in it are not those of the world."""


def played(*moves: Move) -> Plan:
    """The first hits the leader alone; the others come from 7 s on, two seconds apart, or at their
    own time. It lasts until a recovery from the last of them must have ended."""
    first, *rest = moves
    opening = Move(OPENED_MS, first.fault, T.LEADER, first.for_ms)
    at = count(7_000, 2_000)
    later = [Move(m.at_ms or next(at), m.fault, m.target, m.for_ms, m.amount) for m in rest]
    ends_ms = max(move.end_ms for move in later) + gen.recovery_ms(2) + 1_500
    return Plan(1, ends_ms, ttl_s=2, moves=(opening, *later))


def on(target: T, fault: F, for_ms: int = 1_800, amount: int = 0, at_ms: int = 0) -> Move:
    return Move(at_ms, fault, target, for_ms, amount)


LONG = 3_000
PLANS = {
    "cut": played(
        on(T.LEADER, F.CUT, LONG),
        on(T.LEADER, F.LOSS, amount=40),
        on(T.LEADER, F.RESET, 0),
        on(T.ETCD, F.ETCD_COMPACT, 0),
        on(T.LEADER, F.CUT_OUT),
        on(T.LEDGER, F.LEDGER_RESTART, 1_000),
    ),
    "cut-in": played(
        on(T.LEADER, F.CUT_IN, LONG),
        on(T.LEADER, F.DELAY, amount=800),
        on(T.ETCD, F.ETCD_MOVE_LEADER, 0),
        on(T.LEADER, F.LEDGER_LOST_COMMIT),
        on(T.LEADER, F.KEY_DELETE, 0),
        on(T.ALL, F.CONFIG_CHANGE, 0),
    ),
    "cut-etcd": played(
        on(T.LEADER, F.CUT_ETCD, LONG),
        on(T.LEADER, F.CUT_LEDGER),
        on(T.LEADER, F.RATE, amount=8),
        on(T.ETCD_LEADER, F.ETCD_FREEZE),
        on(T.LEADER, F.LEASE_REVOKE, 0),
        on(T.ALL, F.ROLLING_RESTART, 0),
    ),
    "freeze-daemon": played(
        on(T.LEADER, F.FREEZE_DAEMON, LONG),
        on(T.LEADER, F.SLOW, amount=20),
        on(T.ETCD_LEADER, F.ETCD_ISOLATE),
        on(T.LEADER, F.FOREIGN_PUT, 0),
        on(T.LEADER, F.LINK_DOWN),
        on(T.LEDGER, F.LEDGER_FREEZE),
        on(T.ONE, F.RESTART, 0, at_ms=15_000),
    ),
    "freeze-node": played(
        on(T.LEADER, F.FREEZE_NODE, LONG),
        on(T.LEADER, F.CLOCK_STEP, amount=7_000),
        on(T.LEADER, F.CLOCK_DRIFT, amount=200),
        on(T.ETCD_MEMBER, F.ETCD_KILL),
        on(T.ETCD_MEMBER, F.ETCD_DEFRAG, 0),
        on(T.LEADER, F.KILL_DAEMON, 0, at_ms=15_000),
        on(T.NEXT, F.KILL_SUPERVISOR, 0, at_ms=15_000),
    ),
    "kill-node": played(
        on(T.LEADER, F.KILL_NODE, 0),
        on(T.ETCD, F.ETCD_QUORUM_LOSS),
        on(T.ETCD, F.ETCD_NOSPACE),
        on(T.LEDGER, F.DISK_FULL, 1_000),
        on(T.ETCD, F.ETCD_RESTORE),
    ),
}
PAIRS = (("cut", "cut-in"), ("cut-etcd", "freeze-daemon"), ("freeze-node", "kill-node"))
OWN = "kill-node"
"""This one is played with somebody's own jobs."""


@pytest.fixture(autouse=True)
def namespaces() -> None:
    """Skips where there are none; CRON_LEADER_REQUIRE_ALL=1 makes that a failure."""
    if lacking := contain.missing():
        if os.environ.get("CRON_LEADER_REQUIRE_ALL") == "1":
            pytest.fail(lacking)
        pytest.skip(lacking)


def start(name: str, out: Path) -> subprocess.Popen[str]:
    out.mkdir()
    if name != OWN:
        return command(PLANS[name], out)
    (out / "mine.toml").write_text(OWN_JOBS)
    return command(PLANS[name], out, "--config", str(out / "mine.toml"))


def command(made: Plan, out: Path, *more: str) -> subprocess.Popen[str]:
    plan.save(made, out / "given.json")
    argv = [sys.executable, "-m", "chaos", "run", "--world", "netns", "--out", str(out)]
    argv += ["--plan", str(out / "given.json"), *more]
    pipe = subprocess.PIPE
    return subprocess.Popen(argv, cwd=ROOT, stdout=pipe, stderr=subprocess.STDOUT, text=True)


def test_the_plans_have_every_fault_of_this_world() -> None:
    assert {m.fault for made in PLANS.values() for m in made.moves} == real.DRAWN["netns"]


@pytest.mark.parametrize("pair", PAIRS, ids="+".join)
def test_each_fault_bites_and_the_promise_holds(pair: tuple[str, str], tmp_path: Path) -> None:
    runs = {name: start(name, tmp_path / name) for name in pair}
    printed = {name: run.communicate()[0] for name, run in runs.items()}
    for name, run in runs.items():
        found = verdicts(tmp_path / name)
        assert set(found.values()) == {"YES"}, printed[name]
        assert run.returncode == 0, printed[name]
        history = load(tmp_path / name / "history.jsonl")
        assert list(toothless(history)) == [], printed[name]


RED = {name: canary.law for name, canary in CANARIES.items() if canary.law}


def test_a_defect_built_in_breaks_the_law_that_is_there_for_it(tmp_path: Path) -> None:
    cut = Move(OPENED_MS, F.CUT_ETCD, T.LEADER, 5_000)
    again = Move(OPENED_MS + 9_000, F.KEY_DELETE, T.LEADER)
    made = Plan(1, OPENED_MS + 14_000, ttl_s=2, moves=(cut, again))
    runs = {}
    for canary in RED:
        (tmp_path / canary).mkdir()
        runs[canary] = command(made, tmp_path / canary, "--canary", canary)
    for canary, run in runs.items():
        printed = run.communicate()[0]
        assert verdicts(tmp_path / canary)[RED[canary]] == "NO", printed
        assert run.returncode == 1, printed


def verdicts(out: Path) -> dict[str, str]:
    kept = json.loads((out / "verdict.json").read_text(encoding="utf-8"))
    return {finding["check"]: finding["verdict"] for finding in kept["findings"]}


def toothless(history: tuple[Op, ...]) -> Iterator[object]:
    """Faults that could not be put in or taken out, or that touched nothing."""
    for op in history:
        if op.source is not Source.NEMESIS or op.f not in ("inject", "heal"):
            continue
        if op.type in (Type.FAIL, Type.INFO) or (op.f == "heal" and not op.value["bites"]):
            yield op.value
