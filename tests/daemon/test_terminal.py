"""The supervisor in the foreground of a terminal: a real pty, the keys typed at its other end."""

from __future__ import annotations

import os
import signal
import sys
import termios
import time
from collections.abc import Iterator

import pytest

from tests.daemon.supervised import Supervised, boot_ns, eventually, group_exists, state_of

pytestmark = pytest.mark.skipif(not os.path.exists("/proc/self/stat"), reason="needs /proc")

CTRL_C, CTRL_Z = b"\x03", b"\x1a"

# What a shell with job control does for one job: a session that owns the terminal, and in it the
# job as the foreground's process group. "fg" is its SIGUSR1.
_SHELL = """
import fcntl, os, signal, sys, termios
tty = os.open(sys.argv[1], os.O_RDWR)
os.setsid()
fcntl.ioctl(tty, termios.TIOCSCTTY, 0)
job = os.fork()
if not job:
    os.setpgid(0, 0)
    signal.signal(signal.SIGTTOU, signal.SIG_IGN)
    os.tcsetpgrp(tty, os.getpid())
    signal.signal(signal.SIGTTOU, signal.SIG_DFL)
    os.execvp(sys.argv[2], sys.argv[2:])
signal.signal(signal.SIGUSR1, lambda *_: os.killpg(job, signal.SIGCONT))
os.write(int(os.environ["STAND_IN_TELL"]), b'{"job": %d}\\n' % job)
while True:
    _, status = os.waitpid(job, os.WUNTRACED)
    if os.WIFSTOPPED(status):
        os.write(int(os.environ["STAND_IN_TELL"]), b'{"stopped": true}\\n')
    else:
        sys.exit(os.waitstatus_to_exitcode(status))
"""


class Terminal:
    """A shell over one job, the supervisor, in a terminal of their own."""

    def __init__(self) -> None:
        self._keys, theirs = os.openpty()
        prefix = (sys.executable, "-S", "-E", "-c", _SHELL, os.ttyname(theirs))
        self.node = Supervised(prefix=prefix)
        os.close(theirs)
        assert termios.tcgetattr(self._keys)[3] & termios.ISIG
        self.job: int = self.node.told("job")["job"]

    def type(self, keys: bytes) -> None:
        os.write(self._keys, keys)

    def fg(self) -> None:
        os.kill(self.node.pid, signal.SIGUSR1)

    def close(self) -> None:
        if state_of(self.job):
            os.kill(self.job, signal.SIGKILL)
        self.node.close()
        os.close(self._keys)


@pytest.fixture
def terminal() -> Iterator[Terminal]:
    it = Terminal()
    yield it
    it.close()


def test_ctrl_c_reaches_the_daemon_once_and_by_the_supervisor_only(terminal: Terminal) -> None:
    node = terminal.node
    pgid = node.run()
    terminal.type(CTRL_C)
    assert node.told("signal") == {"signal": signal.SIGINT}
    assert group_exists(pgid)
    node.order(exit=0)
    assert node.exit_code() == 0
    assert not [line for line in node.left() if "signal" in line]


def test_ctrl_c_twice_is_130(terminal: Terminal) -> None:
    terminal.type(CTRL_C)
    terminal.node.told("signal")
    terminal.type(CTRL_C)
    assert terminal.node.exit_code() == 130


def test_ctrl_z_stops_supervisor_and_daemon_and_fg_continues_both(terminal: Terminal) -> None:
    for _ in range(2):
        terminal.type(CTRL_Z)
        assert terminal.node.told("stopped")
        eventually(lambda: state_of(terminal.job) == "T" and state_of(terminal.node.daemon) == "T")
        terminal.fg()
        terminal.node.run()


def test_after_fg_a_deadline_that_passed_comes_before_the_daemon(terminal: Terminal) -> None:
    """What the daemon says once it goes on cannot save the run."""
    node = terminal.node
    node.lease(7)
    doomed = node.run()
    deadline = boot_ns() + 300_000_000
    node.say("deadline", boot_ns=deadline)
    node.run(finish=True)
    terminal.type(CTRL_Z)
    assert node.told("stopped")
    node.say("end", run=f"run-{doomed}")  # read by the daemon once it goes on
    eventually(lambda: boot_ns() > deadline)
    time.sleep(0.05)
    assert state_of(doomed) == "S"
    terminal.fg()
    assert node.event("supervisor.killed")["reason"] == "deadline"
    eventually(lambda: state_of(doomed) == "Z")
