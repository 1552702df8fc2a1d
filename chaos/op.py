"""What happened, on one clock: the only thing a check ever reads.

An `Op` is one thing somebody did or reported. Everything runs on one machine, so every op is
stamped with its boot-time clock; times written on the wall clock (the nodes' events, Postgres's
commits) are moved over by `OneClock`, which also tells whether the two clocks stayed in step.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, field
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from pathlib import Path
from typing import Any

from cron_leader.core.value import value

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class Source(StrEnum):
    """Who says so."""

    PLAN = "plan"
    """The scenario itself: what it set out to do."""
    NEMESIS = "nemesis"
    """The fault injector."""
    NODE = "node"
    """A node's own events; `exit` is added by the world when the process is gone."""
    RUN = "run"
    """The jobs' own notes, written by the run itself: began, beat, ended."""
    ETCD = "etcd"
    """An independent watch on the election's keys: put, delete."""
    LEDGER = "ledger"
    """Rows read at the end (f: table), and `accepted`: each write that committed, by whom."""


class Type(StrEnum):
    INVOKE = "invoke"
    OK = "ok"
    FAIL = "fail"
    INFO = "info"


@value
class Op:
    """`process` did `f`. at_ns: boot-time clock."""

    at_ns: int
    source: Source
    process: str
    f: str
    type: Type = Type.INFO
    value: Mapping[str, Any] = field(default_factory=dict)


class OneClock:
    """Moves wall-clock times to the boot-time clock by the offset found at the start."""

    def __init__(self) -> None:
        self._offset_ns = _wall_minus_boot_ns()

    def now_ns(self) -> int:
        return time.clock_gettime_ns(time.CLOCK_BOOTTIME)

    def from_wall(self, at: datetime) -> int:
        return (at - _EPOCH) // timedelta(microseconds=1) * 1000 - self._offset_ns

    def from_text(self, at: str) -> int:
        """`at`: RFC 3339 with a zone."""
        return self.from_wall(datetime.fromisoformat(at))

    def drift_ns(self) -> int:
        """How far the wall clock has moved against the boot clock since the start."""
        return _wall_minus_boot_ns() - self._offset_ns


def _wall_minus_boot_ns() -> int:
    before = time.clock_gettime_ns(time.CLOCK_BOOTTIME)
    wall = time.time_ns()
    after = time.clock_gettime_ns(time.CLOCK_BOOTTIME)
    return wall - (before + after) // 2


class History:
    """Append-only, shared by threads. A scenario waits here for what it needs to see."""

    def __init__(self) -> None:
        self._ops: list[Op] = []
        self._grown = threading.Condition()

    def add(self, op: Op) -> None:
        with self._grown:
            self._ops.append(op)
            self._grown.notify_all()

    def wait(
        self,
        wanted: Callable[[Op], bool],
        *,
        within_s: float,
        after_ns: int = 0,
        count: int = 1,
    ) -> Op | None:
        """The `count`-th op at or after after_ns that is wanted; None if it does not come."""
        end, seen, found = time.monotonic() + within_s, 0, 0
        with self._grown:
            while True:
                for op in self._ops[seen:]:
                    found += op.at_ns >= after_ns and wanted(op)
                    if found == count:
                        return op
                seen = len(self._ops)
                if not self._grown.wait(max(0.0, end - time.monotonic())):
                    return None

    def ops(self) -> tuple[Op, ...]:
        """Everything so far, in order of time."""
        with self._grown:
            return tuple(sorted(self._ops, key=lambda op: op.at_ns))


def save(ops: Iterable[Op], path: Path) -> None:
    with path.open("w", encoding="utf-8") as file:
        file.writelines(json.dumps(asdict(op), default=str) + "\n" for op in ops)


def load(path: Path) -> tuple[Op, ...]:
    lines = path.read_text(encoding="utf-8").splitlines()
    return tuple(_parse(json.loads(line)) for line in lines)


def _parse(raw: Mapping[str, Any]) -> Op:
    return Op(
        at_ns=raw["at_ns"],
        source=Source(raw["source"]),
        process=raw["process"],
        f=raw["f"],
        type=Type(raw["type"]),
        value=raw["value"],
    )
