"""Runs the test of a canary with its defect armed: does it fail, and for the right reason?"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any

from chaos.canaries import Canary

ROOT = Path(__file__).resolve().parents[1]
PLUGINS = ("-p", "tests.canary_plugin", "-p", "no:cacheprovider", "-p", "no:hypothesispytest")
"""The last takes longer to import than most of the tests to run."""
MARK = "canary: "
"""Begins the line in which the plugin tells how the tests ended."""
LONGEST_S = 60
ASSERTED = frozenset({"AssertionError", "Failed"})
"""What an assertion, or pytest.raises and pytest.fail, raise."""


def why_pale(canary: Canary, test: str) -> str:
    """Why the defect does not count as found; "" if this test of its, all of it and only it, failed
    by an assertion."""
    argv = [sys.executable, "-m", "pytest", "-q", *PLUGINS]
    argv += ["--canary", canary.name, "--tb", "short", test]
    argv += ["--in-daemons"] if test == canary.fleet else []
    compiled = {k: v for k, v in os.environ.items() if k != "PYTHONDONTWRITEBYTECODE"}
    status, said = _run(argv, compiled)
    if status is None:
        return f"no end within {LONGEST_S} s\n{said}"
    told = [line for line in said.splitlines() if line.startswith(MARK)]
    ends = json.loads(told[-1].removeprefix(MARK)) if told else {}
    wrong = _wrong(test, status, ends)
    return f"{wrong}\n{said}" if wrong else ""


def _run(argv: Sequence[str], environ: Mapping[str, str]) -> tuple[int | None, str]:
    """Exit status, None if it had to be ended, and what it printed: into a file, for what outlives
    it would keep a pipe open."""
    with TemporaryFile("w+", encoding="utf-8", errors="replace") as out:
        process = subprocess.Popen(
            argv, cwd=ROOT, env=environ, stdout=out, stderr=out, start_new_session=True
        )
        status: int | None = None
        with suppress(subprocess.TimeoutExpired):
            status = process.wait(LONGEST_S)
        if status is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        out.seek(0)
        return status, out.read()


def _wrong(asked: str, status: int, ends: dict[str, Any]) -> str:
    """ends: of each test that was run the phase and the exception that ended it, or None. A
    parameter for which this machine lacks something may be skipped."""
    if status != 1 or not ends:
        return f"pytest exited with status {status}"
    for test, end in ends.items():
        if asked not in (test, test.partition("[")[0]):
            return f"{test} was run"
        if end is None:
            return f"{test} passed"
        phase, error = end
        if error == "Skipped":
            continue
        if phase != "call" or error not in ASSERTED:
            return f"{test} ended with {error} at its {phase}"
    return ""
