"""Real nodes as child processes, and what they say: one `cron-leader run` each, on one ledger.

Everything started here has ended when the `async with` is left, however it is left. Nodes are named
and killed by pid. Their event lines arrive on one timeline, in the order in which they were read.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sqlite3
import sys
from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from types import TracebackType
from typing import Any

from cron_leader.demo import processes
from cron_leader.errors import CronLeaderError

START_S = 10.0
STOP_S = 10.0
LONGEST_LINE = 1 << 20
FREEZE_TRIES = 5

_RUN = "import sys; from cron_leader.cli import main; sys.exit(main())"


class Stalled(CronLeaderError):
    """What was waited for did not happen in time, or the process that should do it has ended."""


@dataclass(frozen=True, slots=True)
class Line:
    """One event of one node. at: the node's own wall clock when it reported it."""

    at: datetime
    event: str
    node: str
    fields: Mapping[str, Any]


class Timeline:
    """Every event of every node so far."""

    def __init__(self) -> None:
        self._lines: list[Line] = []
        self._grown = asyncio.Event()

    def add(self, line: Line) -> None:
        self._lines.append(line)
        self._grown.set()

    def all(self, event: str, *, node: str | None = None, **fields: object) -> Iterator[Line]:
        """Events of this name whose fields have these values."""
        for line in self._lines:
            if line.event != event or node not in (None, line.node):
                continue
            if all(line.fields.get(key) == value for key, value in fields.items()):
                yield line

    def last(self, event: str, *, node: str | None = None, **fields: object) -> Line | None:
        return max(self.all(event, node=node, **fields), key=lambda line: line.at, default=None)

    async def first(
        self,
        event: str,
        *,
        since: datetime,
        within_s: float,
        node: str | None = None,
        **fields: object,
    ) -> Line:
        """The earliest such event at or after `since`; waits for it, raises Stalled."""
        try:
            async with asyncio.timeout(within_s):
                while True:
                    found = [x for x in self.all(event, node=node, **fields) if x.at >= since]
                    if found:
                        return min(found, key=lambda line: line.at)
                    self._grown.clear()
                    await self._grown.wait()
        except TimeoutError:
            whose = f" of node {node}" if node else ""
            raise Stalled(f"no {event}{whose} within {within_s:g} s") from None


@dataclass(slots=True)
class Node:
    """One started node; said: the last lines it wrote that are no events (stderr too)."""

    name: str
    process: asyncio.subprocess.Process
    frozen: tuple[int, ...] = ()
    said: deque[str] = field(default_factory=lambda: deque(maxlen=5))
    readers: list[asyncio.Task[None]] = field(default_factory=list)


class Fleet:
    """Nodes of one configuration file; `timeline` is what they said, over all restarts.

    environ None: ours, less what was set for another fleet.
    """

    def __init__(self, config: Path, *, environ: Mapping[str, str] | None = None) -> None:
        self._config = config
        self._environ = _clean(os.environ) if environ is None else environ
        self._nodes: dict[str, Node] = {}
        self.timeline = Timeline()

    async def __aenter__(self) -> Fleet:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.stop()

    # ------------------------------------------------------------------ starting and stopping

    async def start(self, name: str) -> Line:
        """Start (or start again) a node; its node.started event. Raises Stalled."""
        since = datetime.now(UTC)
        node = self._nodes[name] = await self._spawn(name)
        ended = asyncio.create_task(node.process.wait())
        started = asyncio.create_task(
            self.timeline.first("node.started", node=name, since=since, within_s=START_S)
        )
        await asyncio.wait({ended, started}, return_when=asyncio.FIRST_COMPLETED)
        ended.cancel()
        if started.done():
            return started.result()
        started.cancel()
        await asyncio.gather(*node.readers)
        raise Stalled(f"node {name} exited with {node.process.returncode}: {' '.join(node.said)}")

    async def _spawn(self, name: str) -> Node:
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-c", _RUN, "run"),
            *("--config", str(self._config), "--node-id", name, "--log-format", "json"),
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            env=self._environ,
            cwd=self._config.parent,
            limit=LONGEST_LINE,
            start_new_session=True,  # a Ctrl-C at the terminal is for us to pass on, once
        )
        assert process.stdout is not None
        assert process.stderr is not None
        node = Node(name, process)
        for stream in (process.stdout, process.stderr):
            node.readers.append(asyncio.create_task(self._read(node, stream)))
        return node

    async def _read(self, node: Node, stream: asyncio.StreamReader) -> None:
        while raw := await stream.readline():
            text = raw.decode(errors="replace").strip()
            if line := _parse(text):
                self.timeline.add(line)
            elif text:
                node.said.append(text)

    async def stop(self) -> dict[str, int]:
        """SIGTERM to all that live, frozen ones thawed first; exit codes by node. Idempotent."""
        nodes, self._nodes = self._nodes, {}
        for node in nodes.values():
            processes.thaw(node.frozen)
            if node.process.returncode is None:
                processes.send(node.process.pid, signal.SIGTERM)
        codes = await asyncio.gather(*(self._reap(node) for node in nodes.values()))
        return dict(zip(nodes, codes, strict=True))

    async def _reap(self, node: Node) -> int:
        """The exit code, waited for STOP_S, then forced."""
        try:
            return await asyncio.wait_for(node.process.wait(), STOP_S)
        except TimeoutError:
            return -signal.SIGKILL
        finally:
            if node.process.returncode is None:
                processes.kill_tree(node.process.pid)
                await node.process.wait()
            _, open_still = await asyncio.wait(node.readers, timeout=1.0)
            for reader in open_still:
                reader.cancel()

    # ------------------------------------------------------------------ who leads, and harm

    async def leader(self, *, since: datetime, within_s: float) -> Line:
        """The gate.opened event of the first node to lead at or after `since`."""
        return await self.timeline.first("gate.opened", since=since, within_s=within_s)

    def signal(self, name: str, sig: signal.Signals) -> datetime:
        """To the node's supervisor, as a terminal or systemd would; the instant."""
        at = datetime.now(UTC)
        processes.send(self._nodes[name].process.pid, sig)
        return at

    def kill_daemon(self, name: str) -> datetime:
        """SIGKILL to the daemon alone: its supervisor is left to clean up. The instant."""
        started = self.timeline.last("node.started", node=name)
        assert started is not None
        at = datetime.now(UTC)
        processes.send(started.fields["pid"], signal.SIGKILL)
        return at

    async def ended(self, name: str) -> int:
        """Wait until the node's supervisor has exited; its code."""
        return await self._reap(self._nodes.pop(name))

    def freeze(self, name: str) -> datetime:
        """SIGSTOP to supervisor, daemon and runs; the instant at which all of them stood."""
        node = self._nodes[name]
        node.frozen = processes.freeze(node.process.pid)
        return datetime.now(UTC)

    async def freeze_between_writes(self, name: str, ledger: Path) -> datetime:
        """The same, but not inside a SQLite transaction, which would hold everybody up until it
        woke: the price of SQLite, and not what a freeze is to show. Raises Stalled."""
        for _ in range(FREEZE_TRIES):
            frozen = self.freeze(name)
            if not await asyncio.to_thread(write_locked, ledger):
                return frozen
            self.thaw(name)
            await asyncio.sleep(0.1)
        raise Stalled(f"the freeze caught SQLite's write lock {FREEZE_TRIES} times")

    def thaw(self, name: str) -> datetime:
        node = self._nodes[name]
        at = datetime.now(UTC)
        processes.thaw(node.frozen)
        node.frozen = ()
        return at


def write_locked(ledger: Path) -> bool:
    """Whether somebody holds SQLite's write lock for longer than a write takes."""
    db = sqlite3.connect(ledger, timeout=0.5, isolation_level=None)
    try:
        db.execute("BEGIN IMMEDIATE")
        db.execute("ROLLBACK")
    except sqlite3.OperationalError:
        return True
    finally:
        db.close()
    return False


def _clean(environ: Mapping[str, str]) -> dict[str, str]:
    """A NODE_ID or an endpoint that somebody exported is for another fleet."""
    return {k: v for k, v in environ.items() if k != "NODE_ID" and not k.startswith("CRON_LEADER_")}


def _parse(text: str) -> Line | None:
    """None for what is not an event line."""
    if not text.startswith("{"):
        return None
    try:
        line = json.loads(text)
        return Line(datetime.fromisoformat(line["ts"]), line["event"], line["node"], line)
    except (ValueError, KeyError):
        return None
