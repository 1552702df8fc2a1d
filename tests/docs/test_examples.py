"""The files in examples/ are accepted as they are, and the jobs in Python run."""

from __future__ import annotations

import runpy
from datetime import UTC, datetime
from importlib import import_module
from pathlib import Path

import pytest

from cron_leader.cli.setup import check
from cron_leader.config import load
from cron_leader.jobs import Tick
from tests.docs.blocks import ROOT, blocks

EXAMPLES = sorted((ROOT / "examples").glob("*.toml"))


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_an_example_is_accepted_without_a_warning(
    path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    check(path)
    printed, noted = capsys.readouterr()
    assert f"{path.name}: ok, " in printed
    assert noted == ""


def test_there_are_eight_and_each_begins_by_saying_what_it_shows() -> None:
    assert len(EXAMPLES) == 8
    assert all(path.read_text(encoding="utf-8").startswith("# ") for path in EXAMPLES)


def test_no_two_examples_share_a_job() -> None:
    names = [job.name for path in EXAMPLES for job in load(path, environ={}).jobs]
    assert len(set(names)) == len(names) > 8


def test_the_test_shown_in_the_guide_passes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shown = [b.text for b in blocks(ROOT / "docs/guide.md") if "cron_leader.testing" in b.text]
    (tmp_path / "shown_in_the_guide.py").write_text("\n".join(shown), encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    module = import_module("shown_in_the_guide")
    tests = [value for name, value in vars(module).items() if name.startswith("test_")]
    assert tests
    for test in tests:
        test()


def test_the_jobs_in_python_run(capsys: pytest.CaptureFixture[str]) -> None:
    module = runpy.run_path(str(ROOT / "examples/digest.py"), run_name="digest_example")
    noon = datetime(2026, 12, 1, 12, tzinfo=UTC)
    module["send_digest"](Tick.for_test(scheduled_for=noon))
    module["sample_queue"](Tick.for_test(scheduled_for=noon))
    module["send_digest"](Tick.for_test(cancelled=True))
    assert capsys.readouterr().out.splitlines() == [
        "digest of 01 December to ada@mail.example",
        "digest of 01 December to grace@mail.example",
        "queue at 12:00:00: 0",
    ]
