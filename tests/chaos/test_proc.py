"""One short run of real processes behind proxies: `python -m chaos run --world proc`."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from chaos import plan
from chaos.op import Type, load
from chaos.plan import Fault, Move, Plan, Target

ROOT = Path(__file__).resolve().parents[2]
PROVED = {
    "one_row_per_slot", "fence_never_falls", "no_stale_write_accepted", "never_two_gates",
    "gate_shut_before_key_gone", "no_run_begins_late", "lost_runs_end_in_time", "faults_bit",
    "gate_opens_after_its_raise", "jobs_keep_to_themselves", "succeeded_in_time",
    "no_node_falls_over", "no_traceback", "nothing_is_left",
}  # fmt: skip
MOVES = (
    Move(300, Fault.KILL_DAEMON, Target.LEADER),
    Move(2_000, Fault.CUT_ETCD, Target.FOLLOWER, for_ms=1_000),
    Move(2_000, Fault.LINK_DOWN, Target.ONE),
)


def test_a_killed_leader_is_succeeded_in_the_proc_world_and_every_law_that_can_tell_says_yes(
    tmp_path: Path,
) -> None:
    made = Plan(1, 3_200, ttl_s=2, moves=MOVES)
    plan.save(made, tmp_path / "given.json")
    argv = [sys.executable, "-m", "chaos", "run", "--world", "proc", "--sqlite", "--members", "1"]
    argv += ["--plan", str(tmp_path / "given.json"), "--out", str(tmp_path)]
    done = subprocess.run(argv, cwd=ROOT, capture_output=True, text=True, check=False)
    kept = json.loads((tmp_path / "verdict.json").read_text(encoding="utf-8"))
    found = {finding["check"]: finding["verdict"] for finding in kept["findings"]}
    assert "NO" not in found.values(), done.stdout + done.stderr
    assert {check for check in PROVED if found[check] != "YES"} == set(), done.stdout
    assert (found["ticks_in_peace"], done.returncode) == ("UNKNOWN", 2), "no time to tell"
    said = [op for op in load(tmp_path / "history.jsonl") if op.f == "inject"]
    impossible = [op.value["fault"] for op in said if op.type is Type.INFO]
    assert impossible == [Fault.LINK_DOWN], "a proxy has no link: to be said, and no more"
    assert plan.load(tmp_path / "plan.json") == made
    assert (tmp_path / "report.html").stat().st_size > 10_000
