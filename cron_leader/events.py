"""The closed vocabulary of what the daemon reports, and the one way to report it.

A name or a field is a contract: removing or renaming one is breaking. Consumers (log lines,
metrics, the page) subscribe to an `Emitter`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Any, Protocol

VOCABULARY = frozenset(
    {
        "node.started", "node.stopping", "node.stopped",
        "lease.granted", "lease.renewed", "lease.lost",
        "watch.opened", "watch.broken", "watch.compacted",
        "term.campaigning", "term.elected", "term.raised", "term.ended",
        "gate.opened", "gate.closed",
        "slot.missed", "slot.skipped", "slot.failed",
        "run.started", "run.not_started", "run.finished",
        "ledger.refused", "ledger.uncertain", "ledger.unreachable", "ledger.back",
        "ledger.went_back", "ledger.failed_over",
        "etcd.unreachable", "etcd.back",
        "config.loaded", "config.drifted",
        "clock.stepped", "clock.skewed", "loop.lagged",
        "notice.sent", "notice.failed",
        "supervisor.killed", "supervisor.revoked",
    }
)  # fmt: skip

DEBUG = frozenset({"lease.renewed"})
"""Events shown only at --log-level debug."""


class Emit(Protocol):
    """What a part that reports is given."""

    def __call__(self, event: str, **fields: object) -> None: ...


Sink = Callable[[Mapping[str, Any]], None]


class Emitter:
    """Stamps ts, node and fleet on every event and hands it to each sink, in order."""

    def __init__(self, node: str, fleet: str, *, wall: Callable[[], datetime]) -> None:
        self._base = {"node": node, "fleet": fleet}
        self._wall = wall
        self._sinks: list[Sink] = []

    def subscribe(self, sink: Sink) -> None:
        self._sinks.append(sink)

    def __call__(self, event: str, **fields: object) -> None:
        if event not in VOCABULARY:
            raise ValueError(f"{event!r} is not in the event vocabulary")
        line: dict[str, object] = {"ts": timestamp(self._wall()), "event": event, **self._base}
        for key, value in fields.items():
            if value is not None:
                line[key] = timestamp(value) if isinstance(value, datetime) else value
        for sink in self._sinks:
            sink(line)


def timestamp(at: datetime) -> str:
    """RFC 3339 in UTC with microseconds, fixed width: 2026-12-01T09:00:00.000000Z."""
    return at.isoformat(timespec="microseconds")[:26] + "Z"
