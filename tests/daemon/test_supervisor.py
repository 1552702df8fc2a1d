"""The supervisor over a stand-in daemon: real processes, real signals."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from cron_leader.supervision.groups import Group
from cron_leader.supervision.log import Log
from cron_leader.supervision.loop import Supervisor
from cron_leader.supervision.notify import Notify
from tests.daemon.supervised import (
    STAND_IN,
    SUPERVISOR,
    Endpoint,
    Supervised,
    boot_ns,
    children_of,
    endpoint,
    eventually,
    group_exists,
    state_of,
    status_kb,
)

pytestmark = pytest.mark.skipif(not os.path.exists("/proc/self/stat"), reason="needs /proc")

PAST, FAR_NS = 1, 3600 * 10**9


@pytest.fixture
def supervise() -> Iterator[Callable[..., Supervised]]:
    made: list[Supervised] = []

    def make(*options: str, **more: Any) -> Supervised:
        made.append(Supervised(*options, **more))
        return made[-1]

    yield make
    for it in made:
        it.close()


@pytest.fixture
def node(supervise: Callable[..., Supervised]) -> Supervised:
    return supervise("--node", "a", "--fleet", "f")


@pytest.fixture
def silent() -> Iterator[Endpoint]:
    with endpoint() as it:
        yield it


def supervisor(*argv: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-S", "-E", str(SUPERVISOR), *argv]
    return subprocess.run(command, capture_output=True, text=True, timeout=10)


# ------------------------------------------------------------------ start, signals, status


@pytest.mark.parametrize("code", [0, 1, 2, 77])
def test_it_exits_with_the_daemons_code(code: int) -> None:
    assert supervisor("--", "/bin/sh", "-c", f"exit {code}").returncode == code


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGABRT])
def test_it_exits_with_128_and_the_signal_that_killed_the_daemon(number: int) -> None:
    assert supervisor("--", "/bin/sh", "-c", f"kill -{number} $$").returncode == 128 + number


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_asked_to_stop_before_the_daemon_listens_it_is_0(node: Supervised, number: int) -> None:
    node.order(exec=["/bin/sleep", "300"])
    eventually(lambda: Path(f"/proc/{node.daemon}/comm").read_text() == "sleep\n")
    os.kill(node.pid, number)
    assert node.exit_code() == 0


def test_a_command_that_is_not_there_is_one_line_and_127() -> None:
    done = supervisor("--", "/no/such/daemon")
    assert done.returncode == 127
    assert done.stderr.splitlines() == [
        "cron-leader supervisor: cannot start /no/such/daemon: No such file or directory"
    ]


@pytest.mark.parametrize("argv", [(), ("--node",), ("--",), ("--nod", "a", "--", "true")])
def test_bad_usage_is_exit_2(argv: tuple[str, ...]) -> None:
    assert supervisor(*argv).returncode == 2


def test_the_daemon_has_a_session_of_its_own_and_one_end_of_the_pipe(node: Supervised) -> None:
    assert node.up["session"] == node.daemon
    open_here = Path(f"/proc/{node.daemon}/fd").iterdir()
    assert sum(str(fd.readlink()).startswith("socket:") for fd in open_here) == 1


@pytest.mark.parametrize("number", ["SIGTERM", "SIGINT", "SIGHUP", "SIGUSR1"])
def test_it_forwards(node: Supervised, number: str) -> None:
    os.kill(node.pid, signal.Signals[number])
    assert node.told("signal") == {"signal": signal.Signals[number]}


def test_it_costs_four_megabytes_more_than_a_bare_interpreter(node: Supervised) -> None:
    node.run()
    bare = subprocess.Popen([sys.executable, "-S", "-E", "-c", "input()"], stdin=subprocess.PIPE)
    with bare:
        eventually(lambda: state_of(bare.pid) == "S")
        spent_kb = status_kb(node.pid, "VmRSS") - status_kb(bare.pid, "VmRSS")
        bare.communicate(b"\n")
    assert spent_kb <= 4 * 1024
    assert status_kb(node.pid, "Threads") == 1


def test_it_fits_in_twelve_megabytes(node: Supervised) -> None:
    node.lease(7, *(f"10.0.0.{i}:2379" for i in range(5)))
    for _ in range(5):
        node.run(["/bin/sleep", "300"])
    assert status_kb(node.pid, "VmRSS") <= 12 * 1024


def test_orphans_are_reaped(node: Supervised) -> None:
    node.spawn(["/bin/sh", "-c", "sh -c 'echo {\\\"orphan\\\": $$}; sleep 0.2' & exit"])
    orphan = node.told("orphan")["orphan"]
    eventually(lambda: state_of(orphan) == "", "the orphan was reaped")


def test_ctrl_z_stops_both_and_fg_continues_both(node: Supervised) -> None:
    os.kill(node.pid, signal.SIGTSTP)
    eventually(lambda: state_of(node.pid) == "T" and state_of(node.daemon) == "T")
    os.kill(node.pid, signal.SIGCONT)
    node.run()


def test_console_lines_name_node_and_event() -> None:
    with subprocess.Popen(
        [sys.executable, "-S", "-E", str(SUPERVISOR), "--log-format", "console", "--node", "a",
         "--", *STAND_IN],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    ) as popen:  # fmt: skip
        lease = dict.fromkeys(("ca", "cert", "key", "user", "password"))
        lease |= {"op": "lease", "seq": 1, "lease": 255, "ttl_ns": 10**8, "endpoints": []}
        out, _ = popen.communicate(json.dumps({"say": lease}) + '\n{"exit": 1}\n')
    last = out.splitlines()[-1]
    assert "a  supervisor.revoked  could not give the daemon's lease back: " in last
    assert "  lease=00000000000000ff  duration_ms=" in last


# ------------------------------------------------------------------ the daemon's death


def test_when_the_daemon_dies_its_runs_die_with_their_children(node: Supervised) -> None:
    plain, finishing = node.run(), node.run(finish=True)
    node.kill_daemon()
    killed = node.event("supervisor.killed")
    assert (killed["runs"], killed["reason"]) == (2, "daemon_died")
    assert (killed["node"], killed["fleet"]) == ("a", "f")
    assert node.exit_code() == 137
    assert not group_exists(plain)
    assert not group_exists(finishing)


def test_nobody_is_asked_to_revoke_before_the_runs_are_gone(
    node: Supervised, silent: Endpoint
) -> None:
    node.lease(7, silent.address)
    many = node.run(["/bin/sh", "-c", "for i in $(seq 50); do sleep 300 & done; wait"])
    node.kill_daemon()
    silent.answer_call()
    assert not group_exists(many)


def test_a_run_whose_leader_has_ended_is_killed_all_the_same(node: Supervised) -> None:
    pgid = node.run(["/bin/sh", "-c", "sleep 300 & exit"])
    node.kill_daemon()
    node.exit_code()
    assert not group_exists(pgid)


def test_a_reused_pid_is_not_killed(node: Supervised) -> None:
    stranger = node.spawn()
    pgid = stranger["spawned"]
    node.ask("run", run="old", pgid=pgid, start=stranger["start"] - 1, finish=False)
    node.kill_daemon()
    assert node.exit_code() == 137
    assert group_exists(pgid)


def test_a_run_that_ended_is_forgotten(node: Supervised) -> None:
    pgid = node.run()
    node.say("end", run=f"run-{pgid}")
    node.run()
    node.kill_daemon()
    assert node.event("supervisor.killed")["runs"] == 1
    assert node.exit_code() == 137
    assert group_exists(pgid)


@pytest.mark.parametrize("pgid", [-1, 0, 1, os.getpgrp()])
def test_a_group_that_is_no_runs_is_refused(pgid: int) -> None:
    with pytest.raises(ValueError, match="cannot be the process group of a run"):
        Group({"pgid": pgid, "start": 0, "finish": False}, None)


def test_a_refused_message_costs_its_acknowledgement_and_nothing_else(node: Supervised) -> None:
    node.say("run", seq=9, run="x", pgid=os.getpgid(node.pid), start=0, finish=False)
    node.say("unheard of")
    node.order(say=[])
    node.run()
    node.kill_daemon()
    assert node.event("supervisor.killed")["runs"] == 1
    assert node.exit_code() == 137


def test_zombies_whose_parent_is_stuck_do_not_keep_the_lease(
    node: Supervised, silent: Endpoint
) -> None:
    node.lease(7, silent.address, ttl_s=60)
    host = "import os, signal, sys, time\n"
    host += "pid = os.fork()\n"
    host += "if not pid: os.setsid(); time.sleep(300)\n"
    host += "print('{\"run\": %d}' % pid, flush=True)\n"
    host += "os.kill(os.getpid(), signal.SIGSTOP)\n"
    node.spawn([sys.executable, "-S", "-E", "-c", host])
    pgid = node.told("run")["run"]
    eventually(lambda: os.getpgid(pgid) == pgid)
    node.ask("run", run="hosted", pgid=pgid, start=0, finish=False)
    node.kill_daemon()
    silent.answer_call()
    assert state_of(pgid) == "Z"


def test_a_closed_pipe_is_not_the_daemons_death(node: Supervised, silent: Endpoint) -> None:
    node.lease(7, silent.address)
    pgid = node.run()
    node.order(hang_up=True)
    node.told("hung_up")
    os.kill(node.pid, signal.SIGUSR1)
    node.told("signal")
    assert not silent.called(1.0)  # a revocation would be a moment on its way
    assert group_exists(pgid)
    node.kill_daemon()
    silent.answer_call()


def test_a_daemon_that_becomes_another_program_is_not_dead(
    node: Supervised, silent: Endpoint
) -> None:
    """execv keeps the pid, and closes the pipe."""
    node.lease(7, silent.address)
    pgid = node.run()
    reborn = 'trap \'echo {\\"signal\\": 10}; exit 5\' USR1; echo {\\"reborn\\": $$}; '
    node.order(exec=["/bin/sh", "-c", reborn + "while :; do sleep 0.05; done"])
    assert node.told("reborn")["reborn"] == node.daemon
    assert not silent.called(0.3)
    assert group_exists(pgid)
    os.kill(node.pid, signal.SIGUSR1)
    node.told("signal")
    silent.answer_call()
    assert not group_exists(pgid)


@pytest.mark.parametrize("number", [signal.SIGSTOP, signal.SIGTERM])
def test_nothing_is_revoked_under_a_daemon_that_is_frozen_or_slow_to_stop(
    node: Supervised, silent: Endpoint, number: signal.Signals
) -> None:
    """Not even long after the deadline that its runs were killed at."""
    node.lease(7, silent.address, ttl_s=0.1)
    node.say("deadline", boot_ns=PAST)
    doomed = node.run()
    os.kill(node.daemon, number)
    assert node.event("supervisor.killed")["reason"] == "deadline"
    eventually(lambda: state_of(doomed) == "Z")
    assert not silent.called(0.5)
    assert state_of(node.daemon) in "TS"
    node.kill_daemon()
    silent.answer_call()


def test_an_orphan_with_the_number_of_a_child_that_is_gone_changes_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """What the daemon, or a process that asks etcd, died of is the first status seen of it."""
    ours, theirs = socket.socketpair()
    signals = SimpleNamespace(fd=theirs.fileno(), take=lambda: iter(()))
    log = Log("json", "a", "f")
    it = Supervisor(4711, ours, signals=signals, log=log, notify=Notify("", 0))
    dead = iter([(4711, 9), (4711, 0), (0, 0)])
    monkeypatch.setattr(os, "waitpid", lambda *_: next(dead))
    it._reap()
    assert it._exits == {4711: -9}
    ours.close()
    theirs.close()


def test_when_the_supervisor_dies_the_daemon_hears_it(node: Supervised) -> None:
    os.kill(node.pid, signal.SIGKILL)
    assert node.told("gone")


# ------------------------------------------------------------------ the deadline


def test_at_the_deadline_runs_die_though_the_daemon_is_frozen(node: Supervised) -> None:
    node.lease(7)
    doomed, spared = node.run(), node.run(finish=True)
    node.say("deadline", boot_ns=boot_ns() + 50_000_000)
    node.run(finish=True)
    os.kill(node.daemon, signal.SIGSTOP)
    killed = node.event("supervisor.killed")
    assert (killed["runs"], killed["reason"]) == (1, "deadline")
    eventually(lambda: state_of(doomed) == "Z")
    assert state_of(spared) == "S"
    node.kill_daemon()
    assert node.event("supervisor.killed")["runs"] == 2
    node.exit_code()
    assert not group_exists(spared)


def test_a_run_registered_after_the_deadline_is_killed(node: Supervised) -> None:
    node.lease(7)
    node.say("deadline", boot_ns=PAST)
    late = node.run()
    assert node.event("supervisor.killed")["reason"] == "deadline"
    eventually(lambda: state_of(late) == "Z")


def test_a_renewal_spares_the_runs_and_a_later_lease_does_not(node: Supervised) -> None:
    node.lease(7)
    node.say("deadline", boot_ns=boot_ns() + 100_000_000)
    renewed = node.run()
    node.lease(7)  # told once more after a silence: still the same
    node.say("deadline", boot_ns=boot_ns() + FAR_NS)
    node.lease(8)
    node.say("deadline", boot_ns=boot_ns() + 150_000_000)
    doomed = node.run()
    node.lease(9)
    node.say("deadline", boot_ns=boot_ns() + FAR_NS)
    assert node.event("supervisor.killed")["runs"] == 1
    eventually(lambda: state_of(doomed) == "Z")
    assert state_of(renewed) == "S"


def test_frozen_with_the_daemon_it_kills_first_thing_on_waking(node: Supervised) -> None:
    node.lease(7)
    doomed = node.run()
    deadline = boot_ns() + 100_000_000
    node.say("deadline", boot_ns=deadline)
    node.run(finish=True)
    for pid in (node.daemon, node.pid):
        os.kill(pid, signal.SIGSTOP)
    eventually(lambda: boot_ns() > deadline + 50_000_000)
    assert state_of(doomed) == "S"
    os.kill(node.pid, signal.SIGCONT)
    eventually(lambda: state_of(doomed) == "Z")


def test_a_log_that_nobody_reads_delays_no_deadline(supervise: Callable[..., Supervised]) -> None:
    unread, log = os.pipe()
    os.set_blocking(log, False)
    with suppress(BlockingIOError):
        while True:
            os.write(log, bytes(4096))
    os.set_blocking(log, True)
    node = supervise(log=log)
    node.lease(7)
    node.say("deadline", boot_ns=PAST)
    for late in (node.run(), node.run()):
        eventually(lambda late=late: state_of(late) == "Z")
    for fd in (unread, log):
        os.close(fd)


# ------------------------------------------------------------------ the second signal


@pytest.mark.parametrize(("second", "code"), [("SIGTERM", 143), ("SIGINT", 130)])
def test_a_second_signal_kills_at_once(node: Supervised, second: str, code: int) -> None:
    pgid = node.run(finish=True)
    os.kill(node.pid, signal.SIGTERM)
    node.told("signal")
    os.kill(node.daemon, signal.SIGSTOP)
    os.kill(node.pid, signal.Signals[second])
    assert node.event("supervisor.killed")["reason"] == "signal"
    assert node.exit_code() == code
    assert not group_exists(pgid)
    assert state_of(node.daemon) == ""


def test_a_signal_ends_a_revocation_that_nobody_answers(node: Supervised, silent: Endpoint) -> None:
    node.lease(7, silent.address, ttl_s=600)
    node.kill_daemon()
    silent.answer_call()
    os.kill(node.pid, signal.SIGTERM)
    revoked = node.event("supervisor.revoked")
    assert (revoked["ok"], revoked["error"]) == (False, "told to stop")
    assert node.exit_code() == 137


# ------------------------------------------------------------------ PID 1


def test_as_pid_1_it_forwards_reaps_and_passes_the_status(
    supervise: Callable[..., Supervised],
) -> None:
    prefix = ("unshare", "--pid", "--fork", "--mount-proc")
    able = os.geteuid() == 0 and shutil.which("unshare")
    if not able or subprocess.run([*prefix, "true"], check=False).returncode:
        if os.environ.get("CRON_LEADER_REQUIRE_ALL") == "1":
            pytest.fail("needs root and unshare")
        pytest.skip("needs root and unshare")
    node = supervise(prefix=prefix)
    (inside,) = children_of(node.pid)
    node.spawn(["/bin/sh", "-c", "sh -c 'echo {\\\"orphan\\\": 1}; sleep 0.1' & exit"])
    node.told("orphan")
    eventually(lambda: len(children_of(inside)) == 1, "the orphan was reaped")
    os.kill(inside, signal.SIGTERM)
    assert node.told("signal") == {"signal": signal.SIGTERM}
    node.order(exit=5)
    assert node.exit_code() == 5
