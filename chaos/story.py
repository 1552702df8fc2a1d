"""A history, read: gates, faults, ledger writes and run notes as values. No judgement here."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import Any

from chaos.op import Op, Source, Type

SECOND_NS = 1_000_000_000


@dataclass(frozen=True, slots=True)
class Plan:
    """What the scenario set out to do; the first op of a history."""

    scenario: str
    ttl_ns: int
    every_ns: int
    tick: str
    """The job that has a slot every every_ns."""
    held: str
    """The job whose runs end only when they are killed."""
    gate_within_ns: int | None = None
    """Bound on the successor's gate after the fault, where the scenario has one of its own."""


@dataclass(frozen=True, slots=True)
class Gate:
    """A stretch during which a node's gate stood open. closed_ns None: until the history ends."""

    node: str
    fence: int
    opened_ns: int
    closed_ns: int | None = None

    def open_at(self, at_ns: int, *, slack_ns: int = 0) -> bool:
        return self.opened_ns <= at_ns and (
            self.closed_ns is None or at_ns <= self.closed_ns + slack_ns
        )


@dataclass(frozen=True, slots=True)
class Start:
    """A run began. own: noted by the run itself, once it had started up; else the instant of its
    exec as the node reports it."""

    at_ns: int
    node: str
    fence: int
    run: str
    own: bool


@dataclass(frozen=True, slots=True)
class Blow:
    """A fault: on which node, from when (it was asked for) to when (it was gone)."""

    fault: str
    node: str
    fence: int
    """Of the node's term when it was hit."""
    began_ns: int
    healed_ns: int
    packets: int


@dataclass(frozen=True, slots=True)
class Story:
    """Ops in order of time."""

    ops: Sequence[Op]
    end_ns: int = field(init=False, repr=False, compare=False)
    """When the last thing happened."""
    _by_name: dict[tuple[Source, str], list[Op]] = field(init=False, repr=False, compare=False)
    _gates: list[Gate] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        by_name = defaultdict[tuple[Source, str], list[Op]](list)
        for op in self.ops:
            by_name[op.source, op.f].append(op)
        object.__setattr__(self, "end_ns", max((op.at_ns for op in self.ops), default=0))
        object.__setattr__(self, "_by_name", by_name)
        object.__setattr__(self, "_gates", _stretches(self.ops))

    def plan(self) -> Plan:
        return Plan(**next(op.value for op in self.ops if op.source is Source.PLAN))

    def events(self, name: str, node: str | None = None) -> Iterator[Op]:
        return self._of(Source.NODE, name, node)

    def notes(self, what: str, node: str | None = None) -> Iterator[Op]:
        """What runs wrote down: began, beat, ended."""
        return self._of(Source.RUN, what, node)

    def runs(self) -> Iterator[Op]:
        """As they began and ended, by their own word, in order of time."""
        return (op for op in self.ops if op.f in ("began", "ended") and op.source is Source.RUN)

    def etcd(self, what: str) -> Iterator[Op]:
        """What etcd says of itself, or its watch of the election's keys."""
        return self._of(Source.ETCD, what, None)

    def rows(self, table: str) -> list[dict[str, Any]]:
        return [dict(op.value) for op in self._of(Source.LEDGER, table, None)]

    def accepted(self) -> Iterator[Op]:
        """Ledger writes that committed, in the order of commit. process: the node they came from;
        fence: set by this write, if it is a raise; term: the fence the writer claims, if any."""
        return self._of(Source.LEDGER, "accepted", None)

    def deletes(self, node: str | None = None) -> Iterator[Op]:
        """Keys of the election that went."""
        return self._of(Source.ETCD, "delete", node)

    def puts(self, node: str) -> Iterator[Op]:
        """The node got in line."""
        return self._of(Source.ETCD, "put", node)

    def _of(self, source: Source, f: str, process: str | None) -> Iterator[Op]:
        found = self._by_name.get((source, f), [])
        return (op for op in found if op.process == process) if process else iter(found)

    def gates(self) -> list[Gate]:
        """In order of opening. A node that exits, or is killed, takes its open gate with it."""
        return self._gates

    def starts(self) -> Iterator[Start]:
        """Every run that began, twice: by the node's word, and by its own."""
        for op in self.events("run.started"):
            yield Start(exec_ns(op), op.process, op.value["fence"], _run(op), own=False)
        for op in self.notes("began"):
            yield Start(op.at_ns, op.process, op.value["fence"], _run(op), own=True)

    def heals(self) -> Iterator[Op]:
        """The ends of the faults."""
        return (op for op in self._of(Source.NEMESIS, "heal", None) if op.type is Type.OK)

    def hands(self) -> Iterator[Op]:
        """Somebody's hand was in a key or a lease."""
        return self._of(Source.NEMESIS, "meddled", None)

    def blow(self) -> Blow | None:
        """The one fault of a scenario; None if it was never put in and taken out again."""
        asked = self._nemesis("inject", Type.INVOKE)
        done, healed = self._nemesis("inject", Type.OK), self._nemesis("heal", Type.OK)
        if not (asked and done and healed):
            return None
        return Blow(
            fault=asked.value["fault"],
            node=asked.value["node"],
            fence=asked.value["fence"],
            began_ns=asked.at_ns,
            healed_ns=healed.at_ns,
            packets=healed.value["packets"],
        )

    def _nemesis(self, f: str, kind: Type) -> Op | None:
        found = (op for op in self._of(Source.NEMESIS, f, None) if op.type is kind)
        return next(found, None)


def _run(op: Op) -> str:
    return f"{op.value['job']} {op.value['scheduled_for']}"


_OF_GATES = ("gate.opened", "gate.closed", "exit", "killed")


def _stretches(ops: Iterable[Op]) -> list[Gate]:
    gates: list[Gate] = []
    for op in ops:
        if op.f not in _OF_GATES or op.source is not Source.NODE:
            continue
        if op.f != "gate.opened":
            gates = [_closed(gate, op) for gate in gates]
        else:
            gates.append(Gate(op.process, op.value["fence"], op.at_ns))
    return gates


def _closed(gate: Gate, op: Op) -> Gate:
    mine = gate.node == op.process and op.value.get("fence", gate.fence) == gate.fence
    if not mine or gate.closed_ns is not None:
        return gate
    return replace(gate, closed_ns=op.at_ns)


def exec_ns(op: Op) -> int:
    """A node says how late the exec was against its slot, and that some time afterwards. One
    that is simulated has no wall clock, and says it at once."""
    if "ts" not in op.value:
        return op.at_ns
    said, slot = (datetime.fromisoformat(op.value[key]) for key in ("ts", "scheduled_for"))
    ago = said - slot - timedelta(milliseconds=op.value["late_ms"])
    return op.at_ns - round(ago / timedelta(microseconds=1)) * 1000
