"""From the command line to the daemon's exec, and only then to the rest of the supervisor."""

from __future__ import annotations

import os
import signal
import socket
import sys

from .log import Log, complain, write
from .notify import Notify
from .signals import CAUGHT, Signals, default_signals

TYPE_CHECKING = False  # typing itself would cost a megabyte
if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from typing import NoReturn

FD_VARIABLE = "CRON_LEADER_SUPERVISOR_FD"
USAGE = "usage: supervisor.py [--log-format json|console] [--node ID] [--fleet F] -- CMD [ARG...]"


def main(argv: Sequence[str]) -> int:
    """The exit status: the daemon's, 128 + n for signal n; 2 for bad usage."""
    split = argv.index("--") if "--" in argv else 0
    options, command = argv[:split], argv[split + 1 :]
    said = dict(zip(options[::2], options[1::2], strict=False))
    if not command or len(options) % 2 or said.keys() - {"--log-format", "--node", "--fleet"}:
        write(2, USAGE)
        return 2
    log = Log(said.get("--log-format", "json"), said.get("--node", ""), said.get("--fleet", ""))
    notify = Notify.take(os.environ)
    signals = Signals()
    daemon, sock = start_daemon(command)
    become_reaper()
    from .loop import Supervisor  # while the daemon's interpreter starts

    return Supervisor(daemon, sock, signals=signals, log=log, notify=notify).run()


def start_daemon(command: Sequence[str]) -> tuple[int, socket.socket]:
    """Fork and exec the daemon in a session of its own, with one end of a socket pair."""
    ours, theirs = socket.socketpair()
    # Held back until exec has reset our handlers, a signal to the child cannot fall between.
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, CAUGHT)
    pid = os.fork()
    if not pid:
        exec_daemon(command, theirs, mask)
    signal.pthread_sigmask(signal.SIG_SETMASK, mask)
    theirs.close()
    return pid, ours


def exec_daemon(command: Sequence[str], pipe: socket.socket, mask: Iterable[int]) -> NoReturn:
    try:
        os.setsid()
        pipe.set_inheritable(True)
        default_signals()
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        os.execvpe(command[0], list(command), os.environ | {FD_VARIABLE: str(pipe.fileno())})
    except OSError as error:
        complain(f"cannot start {command[0]}", error.strerror)
    finally:
        os._exit(127)


def become_reaper() -> None:
    """PR_SET_CHILD_SUBREAPER: runs whose parent died become our children. Linux; else, and as
    PID 1, somebody already is."""
    if not sys.platform.startswith("linux"):
        return
    try:
        import ctypes

        ctypes.CDLL(None).prctl(36, 1, 0, 0, 0)
    except (ImportError, OSError, AttributeError):
        pass  # a libc we do not know: killed groups are waited for all the same
