"""A node of the fleet: the real program on a host of its own, its events read into the history."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from chaos.op import History, OneClock, Op, Source
from chaos.worlds.hosts import Machine

ROOT = Path(__file__).resolve().parents[2]
STOP_S = 15.0

Launcher = Callable[[Mapping[str, str]], list[str]]
"""The options of `cron-leader run` -> the command that starts a node with them."""


def sound(options: Mapping[str, str]) -> list[str]:
    """The program as shipped: what the script `cron-leader` does."""
    start = "import sys; from cron_leader.cli import main; sys.exit(main())"
    words = (word for pair in options.items() for word in pair)
    return [sys.executable, "-c", start, "run", *words]


@dataclass(frozen=True, slots=True)
class Place:
    """Where nodes write, and who listens."""

    out: Path
    config: Path
    history: History
    clock: OneClock
    aheads_ns: Mapping[str, Sequence[int]] = field(default_factory=dict)
    """By how much a node's wall clock was ever set ahead."""
    on_exit: Callable[[Node], None] = lambda _: None
    """Told of each node that has exited, by the thread that read it."""


class Node:
    """One run of the program, from start to exit."""

    def __init__(
        self,
        name: str,
        host: Machine,
        place: Place,
        launch: Launcher,
        environ: Mapping[str, str] | None = None,
    ) -> None:
        """environ: more of it, for this node alone."""
        self.name, self.host, self._place = name, host, place
        self.daemon: int | None = None
        """The daemon's pid, once it has told; `pid` is the supervisor's."""
        options = {
            "--config": str(place.config),
            "--node-id": name,
            "--log-format": "json",
            "--log-level": "debug",
        }
        with (place.out / f"{name}.stderr").open("ab") as errors:
            self._process = subprocess.Popen(
                host.argv(launch(options)),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=errors,
                cwd=ROOT,
                env=_environment() | dict(environ or {}),
                start_new_session=True,
            )
        self._reader = threading.Thread(target=self._read, name=f"read-{name}", daemon=True)
        self._reader.start()

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def alive(self) -> bool:
        return self._process.poll() is None

    def mark(self, what: str) -> None:
        """A line of the history about the node that is not its own word."""
        self._add(self._place.clock.now_ns(), what, {})

    def stop(self) -> None:
        """SIGTERM, and SIGKILL if it has not left after STOP_S; its exit is in the history."""
        self._process.send_signal(signal.SIGTERM)
        try:
            self._process.wait(STOP_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
        self._process.wait()
        self._reader.join(STOP_S)

    def _read(self) -> None:
        assert self._process.stdout is not None
        log = self._place.out / f"{self.name}.jsonl"
        with self._process.stdout as lines, log.open("ab") as kept:
            for line in lines:
                kept.write(line)
                kept.flush()
                self._note(line)
        self._add(self._place.clock.now_ns(), "exit", {"status": self._process.wait()})
        self._place.on_exit(self)

    def _note(self, line: bytes) -> None:
        """A line that is no event stays in the log alone."""
        try:
            event = json.loads(line)
            at_ns, name = self._told_ns(event["ts"]), event["event"]
        except (ValueError, KeyError, TypeError):
            return
        if name == "node.started":
            self.daemon = event["pid"]
        self._add(at_ns, name, event)

    def _told_ns(self, text: str) -> int:
        """When it said so. Its clock may have been ahead of ours: the time nearest to now is it."""
        told_ns, now_ns = self._place.clock.from_text(text), self._place.clock.now_ns()
        aheads_ns = self._place.aheads_ns.get(self.name, ())
        return min((told_ns - ahead for ahead in (0, *aheads_ns)), key=lambda at: abs(now_ns - at))

    def _add(self, at_ns: int, name: str, value: dict[str, object]) -> None:
        self._place.history.add(Op(at_ns, Source.NODE, self.name, name, value=value))


def _environment() -> dict[str, str]:
    """Ours, without what would configure the node behind the scenario's back."""
    kept = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("CRON_LEADER_", "CHAOS_")) and name != "NODE_ID"
    }
    return kept | {"PYTHONPATH": str(ROOT)}
