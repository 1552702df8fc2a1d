"""A folder to work in, and the command called in this process."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from cron_leader.cli import main


@dataclass(frozen=True)
class Ran:
    """What one call of the command left."""

    code: int
    out: str
    err: str


Cli = Callable[..., Ran]


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The working directory, empty, under an environment that says nothing to cron-leader."""
    for name in [*os.environ]:
        if name.startswith("CRON_LEADER_") or name in {"NODE_ID", "COLUMNS", "TZ"}:
            monkeypatch.delenv(name)
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def cli(capfd: pytest.CaptureFixture[str]) -> Cli:
    """Run `cron-leader ARGS...` here. It must never end in a traceback of its own accord."""

    def run(*args: str) -> Ran:
        code = main(args)
        captured = capfd.readouterr()
        asked_for = any("debug" in arg for arg in args)
        assert asked_for or "Traceback" not in captured.out + captured.err
        return Ran(code, captured.out, captured.err)

    return run
