"""Helpers of the supervisor's tests: a supervised stand-in, its runs, endpoints that listen."""

from __future__ import annotations

import json
import os
import queue
import select
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import cron_leader

SUPERVISOR = Path(cron_leader.__file__).with_name("supervisor.py")
STAND_IN = [sys.executable, "-S", "-E", str(Path(__file__).with_name("stand_in.py"))]
PATIENCE_S = 10.0
FAMILY = ["/bin/sh", "-c", "sleep 300 & sleep 300"]
"""A run with a grandchild."""


def boot_ns() -> int:
    return time.clock_gettime_ns(time.CLOCK_BOOTTIME)


def eventually(claim: Callable[[], object], what: str = "") -> None:
    """Where nothing can be waited for: look until it holds."""
    until = time.monotonic() + PATIENCE_S
    while not claim():
        assert time.monotonic() < until, f"never came true: {what or claim}"
        time.sleep(0.005)


def group_exists(pgid: int) -> bool:
    try:
        os.killpg(pgid, 0)
    except ProcessLookupError:
        return False
    return True


def state_of(pid: int) -> str:
    """The letter of /proc/PID/stat; empty once the process is reaped."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return ""


def children_of(pid: int) -> list[int]:
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def status_kb(pid: int, name: str) -> int:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(name + ":"))


class Supervised:
    """A supervisor over the stand-in. The lines of both are awaited by a key in them.

    log: a descriptor the supervisor writes to in place of the pipe both share.
    """

    def __init__(self, *options: str, prefix: tuple[str, ...] = (), log: int | None = None) -> None:
        argv = [*prefix, sys.executable, "-S", "-E", str(SUPERVISOR), *options, "--", *STAND_IN]
        lines, tell = os.pipe()
        self._from = os.fdopen(lines, "rb")
        self.popen = subprocess.Popen(
            argv,
            stdin=subprocess.PIPE,
            stdout=tell if log is None else log,
            pass_fds=[tell],
            env=os.environ | {"STAND_IN_TELL": str(tell)},
        )
        os.close(tell)
        self.groups: list[int] = []
        self._lines: queue.Queue[dict[str, Any] | None] = queue.Queue()
        self._kept: list[dict[str, Any]] = []
        self._seq = 0
        self._reader = threading.Thread(target=self._read)
        self._reader.start()
        self.up = self.told("up")
        self.daemon: int = self.up["up"]

    @property
    def pid(self) -> int:
        return self.popen.pid

    def _read(self) -> None:
        for line in self._from:
            self._lines.put(json.loads(line))
        self._lines.put(None)

    def told(self, key: str) -> dict[str, Any]:
        """The next line with this key; lines passed over are kept for later."""
        for line in self._kept:
            if key in line:
                self._kept.remove(line)
                return line
        while (line := self._next(key)) is not None:
            if key in line:
                return line
            self._kept.append(line)
        raise AssertionError(f"all ended without a line with {key!r}; others: {self._kept}")

    def _next(self, key: str) -> dict[str, Any] | None:
        try:
            return self._lines.get(timeout=PATIENCE_S)
        except queue.Empty:
            raise AssertionError(f"no line with {key!r} came; others: {self._kept}") from None

    def left(self) -> list[dict[str, Any]]:
        """Lines not awaited, to the last: both have ended."""
        while (line := self._lines.get(timeout=PATIENCE_S)) is not None:
            self._kept.append(line)
        return self._kept

    def event(self, name: str) -> dict[str, Any]:
        line = self.told("event")
        assert line["event"] == name
        return line

    def order(self, **command: object) -> None:
        assert self.popen.stdin
        self.popen.stdin.write(json.dumps(command).encode() + b"\n")
        self.popen.stdin.flush()

    def say(self, op: str, **said: object) -> None:
        """To the supervisor, through the daemon."""
        self.order(say={"op": op, **said})

    def ask(self, op: str, **said: object) -> None:
        """Say, and wait for the acknowledgement: what was said before is known by then too."""
        self._seq += 1
        self.say(op, seq=self._seq, **said)
        assert self.told("heard")["heard"] == {"ack": self._seq}

    def lease(self, lease: int, *endpoints: str, ttl_s: float = 10, **access: str) -> None:
        nothing = dict.fromkeys(("ca", "cert", "key", "user", "password"))
        ttl_ns = int(ttl_s * 1e9)
        self.ask("lease", lease=lease, ttl_ns=ttl_ns, endpoints=endpoints, **{**nothing, **access})

    def spawn(self, argv: list[str] = FAMILY) -> dict[str, int]:
        """A process of the daemon's, in a group of its own."""
        self.order(spawn=argv)
        spawned = self.told("spawned")
        self.groups.append(spawned["spawned"])
        return spawned

    def run(self, argv: list[str] = FAMILY, *, finish: bool = False) -> int:
        """A registered run; its process group."""
        spawned = self.spawn(argv)
        pgid = spawned["spawned"]
        self.ask("run", run=f"run-{pgid}", pgid=pgid, start=spawned["start"], finish=finish)
        return pgid

    def kill_daemon(self) -> None:
        os.kill(self.daemon, signal.SIGKILL)

    def exit_code(self) -> int:
        return self.popen.wait(PATIENCE_S)

    def close(self) -> None:
        """Kill whatever is left."""
        if self.popen.poll() is None:
            self.popen.kill()
            self.popen.wait()
        for kill, pid in [(os.kill, self.daemon), *((os.killpg, pgid) for pgid in self.groups)]:
            try:
                kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                pass
        self._reader.join(PATIENCE_S)
        assert self.popen.stdin
        self.popen.stdin.close()
        self._from.close()


class Endpoint:
    """Listens where an etcd could be, and never answers."""

    def __init__(self) -> None:
        self._sock = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self._sock.getsockname()[1]}"
        self._callers: list[socket.socket] = []

    def called(self, timeout_s: float = 0) -> bool:
        return bool(select.select([self._sock], [], [], timeout_s)[0])

    def answer_call(self) -> None:
        self._sock.settimeout(PATIENCE_S)
        self._callers.append(self._sock.accept()[0])

    def close(self) -> None:
        for sock in (self._sock, *self._callers):
            sock.close()


@contextmanager
def endpoint() -> Iterator[Endpoint]:
    it = Endpoint()
    try:
        yield it
    finally:
        it.close()
