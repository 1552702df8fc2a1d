"""Learning that a process has ended without reaping it.

Until it is reaped its pid, and so its process group's id, cannot be given to anybody else: that is
what makes killing the group afterwards safe. A pidfd says so on Linux, a kqueue on macOS; where
neither is allowed (old container runtimes forbid pidfd_open), /proc is looked at.
"""

from __future__ import annotations

import asyncio
import os
import select
import sys
from collections.abc import Callable

_LOOK_EVERY_S = 0.05


def watch_exit(pid: int, exited: Callable[[], None]) -> Callable[[], None]:
    """Call `exited` from the loop, once, when `pid` is a zombie or gone; returns how to stop."""
    try:
        return _by_descriptor(*_exit_descriptor(pid), exited)
    except ProcessLookupError:
        return asyncio.get_running_loop().call_soon(exited).cancel
    except OSError:
        return _by_looking(pid, exited)


def start_ticks(pid: int) -> int:
    """When `pid` started, field 22 of /proc/PID/stat; 0 if that cannot be known."""
    fields = _stat(pid)
    return int(fields[19]) if len(fields) > 19 else 0


def _exit_descriptor(pid: int) -> tuple[int, Callable[[], None]]:
    """A descriptor that turns readable when `pid` ends, and how to close it; else OSError."""
    if sys.platform == "darwin":
        queue = select.kqueue()
        event = select.kevent(pid, select.KQ_FILTER_PROC, select.KQ_EV_ADD, select.KQ_NOTE_EXIT)
        queue.control([event], 0)
        return queue.fileno(), queue.close
    if not hasattr(os, "pidfd_open"):  # interpreters built for old kernels
        raise OSError("no pidfd_open")
    fd = os.pidfd_open(pid)
    return fd, lambda: os.close(fd)


def _by_descriptor(
    fd: int, close: Callable[[], None], exited: Callable[[], None]
) -> Callable[[], None]:
    loop = asyncio.get_running_loop()
    watching = True

    def stop() -> None:
        nonlocal watching
        if watching:
            watching = False
            loop.remove_reader(fd)
            close()

    def fire() -> None:
        stop()
        exited()

    loop.add_reader(fd, fire)
    return stop


def _by_looking(pid: int, exited: Callable[[], None]) -> Callable[[], None]:
    loop = asyncio.get_running_loop()

    timer: asyncio.TimerHandle

    def look() -> None:
        nonlocal timer
        fields = _stat(pid)
        if not fields or fields[0] in "ZX":
            exited()
        else:
            timer = loop.call_later(_LOOK_EVERY_S, look)

    timer = loop.call_later(0, look)
    return lambda: timer.cancel()


def _stat(pid: int) -> list[str]:
    """The fields of /proc/PID/stat from the state (field 3) on; the name before may hold spaces."""
    try:
        with open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as stat:
            return stat.read().rpartition(")")[2].split()
    except OSError:
        return []
