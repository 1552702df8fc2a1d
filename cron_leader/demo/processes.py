"""Signals to a whole process tree, by pid: what a frozen host looks like to everybody else.

Linux reads /proc; elsewhere `ps` is asked. Never a name, never a pattern: only descendants of the
process given.
"""

from __future__ import annotations

import os
import signal
import subprocess
from pathlib import Path


def freeze(root: int) -> tuple[int, ...]:
    """SIGSTOP `root` and all below it, parents first, until a look finds nobody new."""
    stopped: list[int] = []
    while fresh := [pid for pid in tree(root) if pid not in stopped]:
        for pid in fresh:
            send(pid, signal.SIGSTOP)
        stopped += fresh
    return tuple(stopped)


def thaw(pids: tuple[int, ...]) -> None:
    for pid in pids:
        send(pid, signal.SIGCONT)


def kill_tree(root: int) -> None:
    """SIGKILL; nobody below `root` is left to write, or to start others."""
    for pid in freeze(root):
        send(pid, signal.SIGKILL)


def send(pid: int, sig: signal.Signals) -> None:
    """Nothing happens if the process has ended."""
    try:
        os.kill(pid, sig)
    except ProcessLookupError:
        pass


def tree(root: int) -> list[int]:
    """`root` if it lives, then its descendants, each after its parent."""
    children: dict[int, list[int]] = {}
    parents = _parents()
    for pid, parent in parents.items():
        children.setdefault(parent, []).append(pid)
    found = [root] if root in parents else []
    for pid in found:  # grows as it is walked
        found += children.get(pid, [])
    return found


def _parents() -> dict[int, int]:
    """pid -> parent's pid of every process, zombies left out."""
    if Path("/proc/self/stat").exists():
        stats = (_stat(entry) for entry in Path("/proc").iterdir() if entry.name.isdecimal())
        return {pid: parent for pid, state, parent in filter(None, stats) if state != "Z"}
    listing = subprocess.run(
        ["ps", "-A", "-o", "pid=,ppid=,state="], capture_output=True, text=True, check=True
    )
    rows = (line.split() for line in listing.stdout.splitlines())
    return {int(pid): int(parent) for pid, parent, state in rows if not state.startswith("Z")}


def _stat(entry: Path) -> tuple[int, str, int] | None:
    """pid, state, parent; None if the process ended meanwhile."""
    try:
        text = (entry / "stat").read_text(errors="replace")
    except OSError:
        return None
    state, parent = text.rpartition(")")[2].split()[:2]  # the name before it may hold anything
    return int(entry.name), state, int(parent)
