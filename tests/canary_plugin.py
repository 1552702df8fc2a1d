"""`pytest -p tests.canary_plugin --canary NAME`: the tests run with one defect of chaos/ armed.

It is armed in this process before any test is imported; a supervisor's defect in the supervisors
that the tests start; with --in-daemons in the daemons of the nodes that they start.
"""

from __future__ import annotations

import json
import os
from collections.abc import Generator
from pathlib import Path

import pytest

from chaos import armed_supervisor
from chaos.canaries import CANARIES, VARIABLE, start
from chaos.retest import MARK, ROOT

PATIENCE_S = 4.0
"""For what a defect keeps from coming."""

ENDS = pytest.StashKey[dict[str, tuple[str, str] | None]]()


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--canary", choices=sorted(CANARIES), required=True)
    parser.addoption("--in-daemons", action="store_true")


def pytest_configure(config: pytest.Config) -> None:
    config.stash[ENDS] = {}
    canary = CANARIES[config.getoption("--canary")]
    os.environ[VARIABLE] = canary.name
    if config.getoption("--in-daemons"):
        _arm_daemons(canary.name)
    elif canary.supervisor:
        _arm_supervisors()
    else:
        canary.arm()


def _arm_supervisors() -> None:
    from tests.daemon import supervised

    supervised.SUPERVISOR = Path(armed_supervisor.__file__)
    supervised.PATIENCE_S = PATIENCE_S


def _arm_daemons(name: str) -> None:
    from cron_leader.demo import fleet

    fleet._RUN = start(name)
    os.environ["PYTHONPATH"] = str(ROOT)  # chaos is no part of what is installed


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    ends = item.config.stash[ENDS]
    ends.setdefault(item.nodeid, None)
    if call.excinfo is not None and ends[item.nodeid] is None:
        ends[item.nodeid] = (report.when, call.excinfo.type.__name__)
    return report


def pytest_terminal_summary(
    terminalreporter: pytest.TerminalReporter, config: pytest.Config
) -> None:
    terminalreporter.write_line(MARK + json.dumps(config.stash[ENDS]))
