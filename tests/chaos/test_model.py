"""The protocol's model: the claims that take a moment to search. All of them: `make model`."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

MODEL = Path(__file__).resolve().parents[2] / "chaos" / "model"
CLAIMS = [line.split("|", 2) for line in (MODEL / "properties.txt").read_text().splitlines()]
QUICK = (
    "DESIGN at-least-once, a run's own transaction abandoned, 1 term: S10",
    "mutant: a run's own transaction looks at the fence only, not at its row: S10",
    "mutant: the effect commits without its success: S10 (retried)",
    "mutant: put-back of a claim not answered yet: S7",
    "mutant: claim keeps the attempt of an existing row: S2",
    "mutant: lost COMMIT reply of a claim taken for success: S9",
    "mutant: per-row guard only: S4 (stale insert)",
    "mutant: plain SELECT guard, no lock: S1",
    "mutant: raise without a comparison: S1",
    "mutant: an order that is answered is carried out by a late copy: S6",
    "mutant: a pause that is answered is carried out by a late copy: S12",
    "mutant: what waits in a ledger that went back is run in spite of skip: S9",
)


@pytest.fixture(scope="session")
def spin() -> None:
    """Skips where it is missing; CRON_LEADER_REQUIRE_ALL=1 makes that a failure."""
    for tool in ("spin", "gcc"):
        if shutil.which(tool) is None:
            if os.environ.get("CRON_LEADER_REQUIRE_ALL") == "1":
                pytest.fail(f"{tool} is not on this machine, and CRON_LEADER_REQUIRE_ALL is set")
            pytest.skip(f"{tool} is not on this machine")


def check(words: str, folder: Path = MODEL) -> subprocess.CompletedProcess[str]:
    argv = ["bash", str(folder / "check.sh"), words]
    return subprocess.run(argv, capture_output=True, text=True, check=False, timeout=110)


@pytest.mark.parametrize("claim", QUICK)
def test_the_search_finds_what_is_claimed(claim: str, spin: None) -> None:
    done = check(claim)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.startswith("ok "), done.stdout


def test_a_claim_that_does_not_come_out_is_told(spin: None, tmp_path: Path) -> None:
    for name in ("check.sh", "protocol.pml"):
        shutil.copy(MODEL / name, tmp_path)
    flags = "-DS2=1 -DTERMS=1 -DOPS=2 -DMUT=11"
    (tmp_path / "properties.txt").write_text(f"wrong on purpose|holds|{flags}\n")
    done = check("wrong", tmp_path)
    assert done.returncode == 1
    assert done.stdout.startswith("UNEXPECTED wrong on purpose ")


def test_words_that_no_claim_has_are_no_success(spin: None) -> None:
    assert check("no claim has these words").returncode == 1


def test_every_property_has_a_design_that_holds_and_a_mutant_that_fails() -> None:
    holds, fails = set[str](), set[str]()
    for name, expected, flags in CLAIMS:
        found = set(re.findall(r"-D(S\d+)=1", flags))
        if name.startswith("DESIGN"):
            assert expected == "holds", name
            holds |= found
        elif expected == "FAILS":
            fails |= found
    assert holds == fails == {f"S{n}" for n in range(1, 13)}


def test_every_claim_has_a_name_of_its_own() -> None:
    names = [name for name, _, _ in CLAIMS]
    assert len(names) == len(set(names))
    assert set(QUICK) <= set(names)
