"""The scenarios and their canaries, in network namespaces: `make scenarios`. Root only."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from chaos.canaries import CANARIES
from chaos.run import SCENARIOS
from chaos.worlds import contain

ROOT = Path(__file__).resolve().parents[2]
PLAYS = [(name, variant) for name, s in SCENARIOS.items() for variant in s.variants]
DEFECTS = [(name, scenario) for name, c in CANARIES.items() for scenario in c.scenarios]

pytestmark = [
    pytest.mark.root,
    pytest.mark.slow,
    pytest.mark.timeout(180),
    pytest.mark.long_file,
]


@pytest.fixture(autouse=True)
def namespaces() -> None:
    """Skips where there are none; CRON_LEADER_REQUIRE_ALL=1 makes that a failure."""
    if lacking := contain.missing():
        if os.environ.get("CRON_LEADER_REQUIRE_ALL") == "1":
            pytest.fail(lacking)
        pytest.skip(lacking)


def play(scenario: str, out: Path, *more: str) -> tuple[int, dict[str, str], str]:
    """Exit status, check -> verdict, and what it printed."""
    argv = [sys.executable, "-m", "chaos", "run", scenario, "--out", str(out), *more]
    done = subprocess.run(argv, cwd=ROOT, capture_output=True, text=True, check=False)
    verdict = json.loads((out / "verdict.json").read_text(encoding="utf-8"))
    found = {finding["check"]: finding["verdict"] for finding in verdict["findings"]}
    return done.returncode, found, done.stdout + done.stderr


@pytest.mark.parametrize(("scenario", "variant"), PLAYS)
def test_the_promise_holds_under_the_fault(scenario: str, variant: str, tmp_path: Path) -> None:
    status, found, printed = play(scenario, tmp_path, "--variant", variant)
    assert set(found.values()) == {"YES"}, printed
    assert status == 0


@pytest.mark.parametrize(("canary", "scenario"), DEFECTS)
def test_a_defect_built_in_turns_the_scenario_red(
    canary: str, scenario: str, tmp_path: Path
) -> None:
    status, found, printed = play(scenario, tmp_path, "--canary", canary)
    assert found[CANARIES[canary].red] == "NO", printed
    assert status == 1


def test_a_cut_that_nobody_notices_is_counted_as_one_with_two_gates(tmp_path: Path) -> None:
    argv = [sys.executable, "-m", "chaos", "cuts", "--count", "1", "--ttl", "2"]
    argv += ["--election-ms", "500", "--canary", "cut-unnoticed", "--out", str(tmp_path)]
    done = subprocess.run(argv, cwd=ROOT, capture_output=True, text=True, check=False)
    assert "1 cuts: two gates in 1," in done.stdout, done.stdout + done.stderr
    assert done.returncode == 1


def test_the_faults_do_what_they_say_and_count_what_they_touched() -> None:
    done = inside()
    printed, _ = done.communicate()
    assert done.returncode == 0, printed


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_nothing_of_a_world_outlives_its_run(number: signal.Signals) -> None:
    with inside("100") as run:
        assert run.stdout is not None
        assert run.stdout.readline() == "up\n"
        run.send_signal(number)
        # Every process inside has the pipe open: its end is the end of the last of them.
        assert run.communicate(timeout=20) == ("", None)
    assert run.returncode == (-9 if number is signal.SIGKILL else 128 + number)


def inside(*args: str) -> subprocess.Popen[str]:
    script = Path(__file__).with_name("two_faults.py")
    return subprocess.Popen(
        [sys.executable, str(script), *args],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
