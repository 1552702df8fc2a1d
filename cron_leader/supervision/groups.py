"""Leases as told by the daemon, and the process groups of its runs."""

from __future__ import annotations

import os
import signal
import sys
import time

TYPE_CHECKING = False  # typing itself would cost a megabyte
if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from typing import Any

_BOOT = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)


def boot_ns() -> int:
    """Nanoseconds since boot, counting suspend where the platform can."""
    return time.clock_gettime_ns(_BOOT)


class Lease:
    """One lease of the daemon, and how to reach the etcd that holds it.

    deadline_ns: boot clock; None until the daemon says one. A group answers to the lease it was
    registered under, so that a later lease's deadline never lengthens an earlier term.
    """

    def __init__(self, said: Mapping[str, Any]) -> None:
        self.id = int(said["lease"])
        self.ttl_ns = int(said["ttl_ns"])
        self.endpoints: list[str] = list(said["endpoints"])
        self.ca: str | None = said["ca"]
        self.cert: str | None = said["cert"]
        self.key: str | None = said["key"]
        self.server_name: str | None = said.get("server_name")
        self.user: str | None = said["user"]
        self.password: str | None = said["password"]
        self.password_file: str | None = said.get("password_file")
        self.deadline_ns: int | None = None
        self.released = False


class Group:
    """The process group of one run. start: its leader's start time in ticks, 0 if unknown."""

    def __init__(self, said: Mapping[str, Any], lease: Lease | None) -> None:
        self.pgid = int(said["pgid"])
        self.start = int(said["start"])
        self.finish = bool(said["finish"])
        self.lease = lease
        self.killed = False
        if self.pgid <= 1 or self.pgid == os.getpgrp():
            raise ValueError(f"{self.pgid} cannot be the process group of a run")

    @property
    def deadline_ns(self) -> int | None:
        """When to kill it; None if only the daemon's death ends it, or it is killed already."""
        return None if self.finish or self.killed or not self.lease else self.lease.deadline_ns

    def ours(self) -> bool:
        """False if the number now is another process's. A group without its leader is ours: the
        kernel gives no number away that is still some group's."""
        found = start_ticks(self.pgid)
        return not self.start or found is None or found == self.start

    def kill(self) -> bool:
        """SIGKILL to the group. Whether it was there, and this was the first time."""
        first, self.killed = not self.killed, True
        return self.ours() and signal_group(self.pgid, signal.SIGKILL) and first

    def alive(self, *, look_closer: bool) -> bool:
        """Whether members are left; without look_closer a zombie is one."""
        if not self.ours() or not signal_group(self.pgid, 0):
            return False
        return not look_closer or any(running_members(self.pgid))


def signal_group(pgid: int, number: int) -> bool:
    """Signal those members that we may; False if there is no such group."""
    try:
        os.killpg(pgid, number)
    except ProcessLookupError:
        return False
    except PermissionError:
        return sys.platform != "darwin"  # whose answer this is for a group of zombies
    return True


def start_ticks(pid: int) -> int | None:
    """Field 22 of /proc/PID/stat; None if there is no such process, or no /proc."""
    stat = proc_stat(str(pid))
    return int(stat[19]) if stat else None


def running_members(pgid: int) -> Iterator[int]:
    """Members of the group that are no zombies; without /proc its number stands for all."""
    if not proc_stat("self"):
        yield pgid
        return
    for name in filter(str.isdigit, os.listdir("/proc")):
        stat = proc_stat(name)
        if stat and int(stat[2]) == pgid and stat[0] not in (b"Z", b"X"):
            yield int(name)


def proc_stat(pid: str) -> list[bytes]:
    """Fields 3 and on of /proc/PID/stat (the second may hold spaces); empty if there is none."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as stat:
            return stat.read().rpartition(b")")[2].split()
    except OSError:
        return []
