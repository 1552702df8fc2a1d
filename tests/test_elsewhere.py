"""What Linux alone has is done without elsewhere: macOS, and containers without /proc."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from cron_leader.runners import exits, host, needs
from cron_leader.supervision import groups

ROOT = Path(__file__).resolve().parents[1]
IMPORT_ALL = """
import importlib, os, pkgutil, select, signal, socket, sys, time
import cron_leader

def all_of_it():
    for found in pkgutil.walk_packages(cron_leader.__path__, "cron_leader."):
        if not found.name.endswith("__main__"):
            importlib.import_module(found.name)

all_of_it()  # first as it is: what others do for macOS is not for us to try here
ours = [name for name in sys.modules if name.split(".")[0] == "cron_leader"]
for name in ours:
    del sys.modules[name]
lacking = [(time, "CLOCK_BOOTTIME"), (select, "epoll"), (signal, "sigtimedwait"),
           (signal, "sigwaitinfo"), (socket, "MSG_CMSG_CLOEXEC"), (socket, "SO_PEERCRED"),
           (socket, "SOCK_CLOEXEC"), (socket, "SOCK_NONBLOCK"), (signal, "SIGPWR"),
           (os, "pidfd_open"), (os, "pipe2"), (os, "waitid"), (os, "eventfd"),
           (os, "timerfd_create"), (os, "sched_getaffinity"), (os, "memfd_create")]
for module, name in lacking:
    if hasattr(module, name):
        delattr(module, name)
sys.platform = "darwin"
importlib.import_module("cron_leader")
cron_leader = sys.modules["cron_leader"]
all_of_it()
again = [name for name in sys.modules if name.split(".")[0] == "cron_leader"]
assert set(again) == set(ours), set(again) ^ set(ours)
print(len(again))
"""


@pytest.fixture
def no_proc(monkeypatch: pytest.MonkeyPatch) -> None:
    """/proc is not there: for opens and for listings."""
    inner_open, inner_listdir = open, os.listdir

    def opened(path: str, *args: object, **options: object) -> object:
        if str(path).startswith("/proc"):
            raise FileNotFoundError(path)
        return inner_open(path, *args, **options)  # type: ignore[call-overload]

    def listed(path: str) -> list[str]:
        if str(path).startswith("/proc"):
            raise FileNotFoundError(path)
        return inner_listdir(path)

    for module in (groups, exits, needs):
        monkeypatch.setattr(module, "open", opened, raising=False)
    monkeypatch.setattr(os, "listdir", listed)


@pytest.fixture
def sleeper() -> Iterator[subprocess.Popen[bytes]]:
    """A process that leads a group of its own."""
    with subprocess.Popen(["sleep", "600"], start_new_session=True) as process:
        yield process
        process.kill()


def test_every_module_is_imported_where_linuxs_own_calls_are_missing() -> None:
    argv = [sys.executable, "-c", IMPORT_ALL]
    done = subprocess.run(argv, capture_output=True, text=True, check=False, timeout=100, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) > 100


@pytest.mark.usefixtures("no_proc")
def test_without_proc_a_run_is_known_by_its_number_and_killed_as_a_group(
    sleeper: subprocess.Popen[bytes],
) -> None:
    assert groups.start_ticks(sleeper.pid) is None
    assert exits.start_ticks(sleeper.pid) == 0
    group = groups.Group({"pgid": sleeper.pid, "start": 0, "finish": False}, None)
    assert group.alive(look_closer=True)
    assert group.kill()
    sleeper.wait()
    assert not group.alive(look_closer=True)


def test_a_group_of_zombies_is_gone_by_macoss_answer(
    sleeper: subprocess.Popen[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    def denied(pgid: int, number: int) -> None:
        raise PermissionError

    group = groups.Group({"pgid": sleeper.pid, "start": 0, "finish": False}, None)
    monkeypatch.setattr(os, "killpg", denied)
    assert group.alive(look_closer=False)  # on Linux: a member that may not be signalled
    monkeypatch.setattr(sys, "platform", "darwin")
    assert not group.alive(look_closer=False)


@pytest.mark.usefixtures("no_proc")
def test_without_proc_threads_and_rights_are_asked_of_python() -> None:
    assert host._single_threaded() == (threading.active_count() == 1)
    assert needs._may_switch() == (os.geteuid() == 0)
