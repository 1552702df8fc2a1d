"""A node of the fleet: the real program on a host of its own, its events read into the history."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from chaos.op import History, OneClock, Op, Source
from chaos.worlds.hosts import Host

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


class Node:
    """One run of the program, from start to exit."""

    def __init__(self, name: str, host: Host, place: Place, launch: Launcher) -> None:
        self.name, self.host, self._place = name, host, place
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
                env=_environment(),
                start_new_session=True,
            )
        self._reader = threading.Thread(target=self._read, name=f"read-{name}", daemon=True)
        self._reader.start()

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

    def _note(self, line: bytes) -> None:
        """A line that is no event stays in the log alone."""
        try:
            event = json.loads(line)
            at_ns, name = self._place.clock.from_text(event["ts"]), event["event"]
        except (ValueError, KeyError, TypeError):
            return
        self._add(at_ns, name, event)

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
