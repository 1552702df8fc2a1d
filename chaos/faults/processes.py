"""Faults of a node's processes: always by pid, and of one tree only."""

from __future__ import annotations

import signal
import subprocess
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from pathlib import Path

from chaos.faults import Once, Stretch
from cron_leader.demo import processes

Pids = Callable[[], Sequence[int]]
"""Found when the fault is put in."""
ROUND_S = 0.1
"""Of a slow process: it has its share of each."""


class Stops:
    """Who stands still, and for how many faults: a process goes on when the last of them is over,
    for a SIGCONT alone would undo them all."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._holds: Counter[int] = Counter()

    def stop(self, pids: Iterable[int]) -> None:
        with self._lock:
            for pid in pids:
                self._holds[pid] += 1
                processes.send(pid, signal.SIGSTOP)

    def stop_tree(self, root: int) -> tuple[int, ...]:
        """All that were found below it, and itself."""
        with self._lock:
            stopped = processes.freeze(root)
            self._holds.update(stopped)
            return stopped

    def go_on(self, pids: Iterable[int]) -> None:
        with self._lock:
            for pid in pids:
                self._holds[pid] -= 1
                if self._holds[pid] <= 0:
                    del self._holds[pid]
                    processes.send(pid, signal.SIGCONT)


STOPS = Stops()
"""Of this process: two faults may hold the same node."""


def frozen(name: str, pids: Pids) -> Stretch:
    """They stand still until it is over; those below them do not."""
    stopped: list[int] = []

    def begin() -> int:
        stopped.extend(pids())
        STOPS.stop(stopped)
        return len(stopped)

    return Stretch(name, begin, lambda: STOPS.go_on(stopped))


def frozen_tree(name: str, roots: Pids) -> Stretch:
    """They and all below them, as when a machine stands still."""
    stopped: list[int] = []

    def begin() -> int:
        for root in roots():
            stopped.extend(STOPS.stop_tree(root))
        return len(stopped)

    return Stretch(name, begin, lambda: STOPS.go_on(stopped))


def killed(name: str, pids: Pids) -> Once:
    def act() -> int:
        doomed = pids()
        for pid in doomed:
            processes.send(pid, signal.SIGKILL)
        return len(doomed)

    return Once(name, act)


def killed_tree(name: str, roots: Pids) -> Once:
    """They and all below them at one blow."""

    def act() -> int:
        doomed = roots()
        for root in doomed:
            processes.kill_tree(root)
        return len(doomed)

    return Once(name, act)


class Slow:
    """A process has so many percent of each ROUND_S, and stands still for the rest."""

    def __init__(self, pids: Pids, percent: int) -> None:
        self.name, self._pids, self._share = "slow", pids, percent / 100
        self._over = threading.Event()
        self._thread: threading.Thread | None = None
        self._rounds = 0

    def inject(self) -> None:
        self._thread = threading.Thread(target=self._slow_down, args=(self._pids(),), name="slow")
        self._thread.start()

    def heal(self) -> int:
        """How often it was stopped."""
        thread, self._thread = self._thread, None
        if thread is None:
            return 0
        self._over.set()
        thread.join()
        return self._rounds

    def _slow_down(self, pids: Sequence[int]) -> None:
        while pids and not self._over.is_set():
            STOPS.stop(pids)
            time.sleep(ROUND_S * (1 - self._share))
            STOPS.go_on(pids)
            self._rounds += 1
            self._over.wait(ROUND_S * self._share)


class WallClock:
    """The wall clock of one node, by libfaketime; the boot clock stays as it is."""

    EVERY_S = 0.25

    def __init__(self, file: Path, aheads_ns: list[int]) -> None:
        """aheads_ns: by how much it was ever ahead, for whoever reads what the node said."""
        self._file, self.aheads_ns, self._ahead_ns = file, aheads_ns, 0
        self._write()

    def step(self, by_ms: int) -> Stretch:
        """Set forward (or back), and set right again at the end."""
        by_ns = by_ms * 1_000_000

        def begin() -> int:
            self._move(by_ns)
            return 1

        return Stretch("clock step", begin, lambda: self._move(-by_ns))

    def drift(self, ppm: int) -> Stretch:
        """It goes too fast (or too slow) in small steps, and is set right at the end."""
        over, gone = threading.Event(), [0]

        def drift() -> None:
            while not over.wait(self.EVERY_S):
                by_ns = round(self.EVERY_S * ppm * 1000)
                gone[0] += by_ns
                self._move(by_ns)

        thread = threading.Thread(target=drift, name="drift")

        def begin() -> int:
            thread.start()
            return 1

        def end() -> None:
            over.set()
            thread.join()
            self._move(-gone[0])

        return Stretch("clock drift", begin, end)

    def _move(self, by_ns: int) -> None:
        self._ahead_ns += by_ns
        if abs(by_ns) >= 1_000_000:
            self.aheads_ns.append(self._ahead_ns)
        self._write()

    def _write(self) -> None:
        fresh = self._file.with_suffix(".new")
        fresh.write_text(f"{self._ahead_ns / 1e9:+f}")
        fresh.replace(self._file)


def no_room(pids: Pids, path: Path) -> Stretch:
    """These processes can make no file longer than this one is now: to them the disk is full.
    Linux only."""
    import resource

    limited: list[tuple[int, tuple[int, int]]] = []

    def begin() -> int:
        size = path.stat().st_size
        for pid in pids():
            before = resource.prlimit(pid, resource.RLIMIT_FSIZE, (size, resource.RLIM_INFINITY))
            limited.append((pid, before))
        return len(limited)

    def end() -> None:
        for pid, before in limited:
            with suppress(ProcessLookupError, PermissionError):
                resource.prlimit(pid, resource.RLIMIT_FSIZE, before)

    return Stretch("no room", begin, end)


def left(*words: Sequence[str]) -> list[str]:
    """The command lines, on this machine, in which all words of one of these groups stand."""
    proc = Path("/proc")
    if (proc / "self" / "cmdline").exists():
        lines = [_command(at) for at in proc.iterdir() if at.name.isdecimal()]
    else:
        listing = ["ps", "-axo", "command="]
        lines = subprocess.run(listing, capture_output=True, text=True, check=True).stdout.split(
            "\n"
        )
    return [line for line in lines if any(all(w in line for w in group) for group in words)]


def _command(at: Path) -> str:
    try:
        return (at / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace").strip()
    except OSError:
        return ""
