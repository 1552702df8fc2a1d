"""What a report shows, read from a history: who led, what ran, what struck, what was refused.

Values only, times in nanoseconds of the history's clock. A history may lack anything: what is not
in it is not shown. No judgement here, but two: a run that starts more than LATE_MS after its slot
is late, and a write that commits under a fence that is not its own is stale.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from typing import Any

from chaos import laws
from chaos.op import Op, Source, Type
from chaos.story import Gate, Story

LATE_MS = 250.0
"""A run that starts this much after its slot is marked as late."""
TOLD_TWICE_NS = 2_000_000_000
"""A refusal in the ledger and one told by the same node within this are one and the same."""
SHORTLY_NS = 2_000_000_000
"""A term that ends within this of a fault's end ended by it."""


@dataclass(frozen=True, slots=True)
class Run:
    """ended_ns None: nobody knows. outcome "": it was never told."""

    node: str
    job: str
    slot: str
    attempt: int
    fence: int
    began_ns: int
    ended_ns: int | None = None
    late_ms: float = 0.0
    outcome: str = ""

    @property
    def late(self) -> bool:
        return self.late_ms > LATE_MS


@dataclass(frozen=True, slots=True)
class Fault:
    """ended_ns None: not healed before the history ends. target: a node, a member, the ledger."""

    name: str
    target: str
    began_ns: int
    ended_ns: int | None = None


@dataclass(frozen=True, slots=True)
class Mark:
    """Something at one instant. who: a node."""

    at_ns: int
    who: str
    text: str


@dataclass(frozen=True, slots=True)
class Key:
    """A node's key in etcd, from its put to its delete."""

    node: str
    put_ns: int
    gone_ns: int | None = None


@dataclass(frozen=True, slots=True)
class Step:
    """after_ns: since the failover's cause."""

    after_ns: int
    text: str


@dataclass(frozen=True, slots=True)
class Failover:
    """From what caused it to the new term's first run. leaderless_ns < 0: two gates were open."""

    cause: str
    began_ns: int
    leaderless_ns: int
    opened_ns: int
    old: Gate
    new: Gate
    steps: tuple[Step, ...]


@dataclass(frozen=True, slots=True)
class Scene:
    """All lists in order of time; nodes and jobs by name."""

    title: str
    began_ns: int
    ended_ns: int
    began_at: datetime | None
    """By the wall clock; None if no event says."""
    ttl_ns: int | None
    nodes: tuple[str, ...]
    jobs: tuple[str, ...]
    gates: tuple[Gate, ...]
    runs: tuple[Run, ...]
    faults: tuple[Fault, ...]
    keys: tuple[Key, ...]
    raises: tuple[Mark, ...]
    writes: tuple[Mark, ...]
    refused: tuple[Mark, ...]
    stale: tuple[Mark, ...]
    """Committed under a fence that was not the writer's: there should be none."""
    exits: tuple[Mark, ...]
    failovers: tuple[Failover, ...]


def scene(ops: Sequence[Op]) -> Scene:
    story = Story(ops)
    lived = [op.at_ns for op in ops if not _read_at_the_end(op)] or [0]
    offset_ns = _wall_minus_boot_ns(ops)
    plan = next((dict(op.value) for op in ops if op.f == "plan"), {})
    runs = tuple(_runs(story))
    raises, writes, stale = _writes(story)
    exits = (
        Mark(op.at_ns, op.process, f"exit {op.value.get('status', '')}".rstrip())
        for op in story.events("exit")
    )
    seen = Scene(
        title=_title(plan),
        began_ns=min(lived),
        ended_ns=max(lived),
        began_at=None if offset_ns is None else _wall(min(lived) + offset_ns),
        ttl_ns=plan.get("ttl_ns"),
        nodes=_names(op.process for op in ops if op.source is Source.NODE),
        jobs=_names(run.job for run in runs),
        gates=tuple(laws.gates(story)),
        runs=runs,
        faults=tuple(_faults(ops)),
        keys=tuple(_keys(ops)),
        raises=raises,
        writes=writes,
        refused=tuple(_refused(story, offset_ns, max(lived))),
        stale=stale,
        exits=tuple(exits),
        failovers=(),
    )
    return replace(seen, failovers=tuple(_failovers(seen, _reasons(story))))


def _title(plan: Mapping[str, Any]) -> str:
    """A scenario's name, or the seed that the faults were drawn from."""
    if "seed" not in plan:
        return str(plan.get("scenario", "a run"))
    return f"seed {plan['seed']}" + (f", luck {plan['luck']}" if "luck" in plan else "")


def _names(names: Iterable[str]) -> tuple[str, ...]:
    return tuple(sorted(set(names)))


def _read_at_the_end(op: Op) -> bool:
    """It says when it was read, not when it happened."""
    return op.f == "drift" or (op.source is Source.LEDGER and op.f != "accepted")


def _wall(wall_ns: int) -> datetime:
    return datetime.fromtimestamp(0, UTC) + timedelta(microseconds=wall_ns // 1000)


def _wall_ns(at: object) -> int:
    """`at`: a datetime, or its text in a file."""
    when = at if isinstance(at, datetime) else datetime.fromisoformat(str(at))
    return (when - datetime.fromtimestamp(0, UTC)) // timedelta(microseconds=1) * 1000


def _wall_minus_boot_ns(ops: Iterable[Op]) -> int | None:
    """Nodes' events have both times."""
    both = (op for op in ops if op.source is Source.NODE and "ts" in op.value)
    return next((_wall_ns(op.value["ts"]) - op.at_ns for op in both), None)


# ------------------------------------------------------------------ what ran


def _runs(story: Story) -> Iterator[Run]:
    """By the nodes' word; those that only the run itself told of, too."""
    ends, runs = _ends(story), dict[tuple[Any, ...], Run]()
    by_node = (start for start in story.starts() if not start.own)
    for op, start in zip(story.events("run.started"), by_node, strict=True):
        runs[_run_id(op)] = _run(op, start.at_ns, float(op.value["late_ms"]))
    for op in story.notes("began"):
        runs.setdefault(_run_id(op), _run(op, op.at_ns))
    for key, run in runs.items():
        ended_ns, outcome = ends.get(key, (None, ""))
        runs[key] = replace(run, ended_ns=ended_ns, outcome=outcome)
    yield from sorted(runs.values(), key=lambda run: run.began_ns)


def _run(op: Op, began_ns: int, late_ms: float = 0.0) -> Run:
    node, job, _, attempt, fence = _run_id(op)
    return Run(node, job, op.value["scheduled_for"], attempt, fence, began_ns, late_ms=late_ms)


def _ends(story: Story) -> dict[tuple[Any, ...], tuple[int, str]]:
    """The run's own word, or its last sign of life, is nearer to the truth than its node's."""
    ends: dict[tuple[Any, ...], tuple[int, str]] = {}
    for what in ("beat", "ended"):
        ends.update({_run_id(op): (op.at_ns, "") for op in story.notes(what)})
    for op in story.events("run.finished"):
        if "fence" in op.value:
            at_ns, _ = ends.get(_run_id(op), (op.at_ns, ""))
            ends[_run_id(op)] = (at_ns, str(op.value["outcome"]))
    return ends


def _run_id(op: Op) -> tuple[Any, ...]:
    at, attempt = datetime.fromisoformat(op.value["scheduled_for"]), op.value.get("attempt", 1)
    return (op.process, op.value["job"], at, attempt, op.value["fence"])


# ------------------------------------------------------------------ what struck


def _faults(ops: Iterable[Op]) -> Iterator[Fault]:
    """One for each node that it struck; a heal ends the oldest of its name and target."""
    faults: list[Fault] = []
    for op in ops:
        if op.source is not Source.NEMESIS:
            continue
        name = str(op.value.get("fault", op.f))
        for target in _targets(op):
            if op.f == "inject" and op.type is Type.INVOKE:
                faults.append(Fault(name, target, op.at_ns))
            elif op.f == "heal" and op.type is Type.OK:
                at = _open_fault(faults, name, target)
                if at is not None:
                    faults[at] = replace(faults[at], ended_ns=op.at_ns)
    yield from faults


def _targets(op: Op) -> Sequence[str]:
    """The nodes; or else what was struck: a member, etcd, the ledger."""
    nodes = op.value.get("nodes")
    return nodes or [str(op.value.get("node") or op.value.get("target") or "")]


def _open_fault(faults: Sequence[Fault], name: str, target: str) -> int | None:
    still = (
        at
        for at, fault in enumerate(faults)
        if (fault.name, fault.target, fault.ended_ns) == (name, target, None)
    )
    return next(still, None)


def _keys(ops: Iterable[Op]) -> Iterator[Key]:
    keys: list[Key] = []
    for op in ops:
        if op.source is not Source.ETCD:
            continue
        if op.f == "put":
            keys.append(Key(op.process, op.at_ns))
        elif op.f == "delete":
            keys = [
                replace(key, gone_ns=op.at_ns)
                if (key.node, key.gone_ns) == (op.process, None)
                else key
                for key in keys
            ]
    yield from keys


# ------------------------------------------------------------------ what was written


def _writes(story: Story) -> tuple[tuple[Mark, ...], tuple[Mark, ...], tuple[Mark, ...]]:
    """Raises, writes of who held the fence, and writes of anybody else."""
    raises, writes, stale = [], [], []
    holder: tuple[str, int] | None = None
    for op in story.accepted():
        what = f"{op.value['operation']} on {op.value['relation']} by {op.process}"
        if (fence := op.value["fence"]) is not None:
            holder = (op.process, fence)
            raises.append(Mark(op.at_ns, op.process, f"fence {fence}"))
        elif holder and op.process == holder[0] and op.value["term"] in (None, holder[1]):
            writes.append(Mark(op.at_ns, op.process, what))
        else:
            stale.append(Mark(op.at_ns, op.process, f"{what}, term {op.value['term']}"))
    return tuple(raises), tuple(writes), tuple(stale)


def _refused(story: Story, offset_ns: int | None, ended_ns: int) -> Iterator[Mark]:
    """Those in the ledger, and those a node told of that the ledger has not. When a row without a
    time was written its node tells; where it does not, the row stands at the end."""
    marks, events = [], list(story.events("ledger.refused"))
    for row in story.rows("refusal"):
        timed = offset_ns is not None and row.get("at") is not None
        if not timed and any(op.process == row["node"] for op in events):
            continue
        at_ns = _wall_ns(row["at"]) - (offset_ns or 0) if timed else ended_ns
        text = f"{row['what']} under fence {row['fence']} refused: {row['high']} stands"
        marks.append(Mark(at_ns, row["node"], text))
    for op in events:
        if not any(_same(mark, op) for mark in marks):
            text = f"a write under fence {op.value.get('fence', '?')} refused"
            marks.append(Mark(op.at_ns, op.process, text))
    yield from sorted(marks, key=lambda mark: mark.at_ns)


def _same(mark: Mark, op: Op) -> bool:
    return mark.who == op.process and abs(mark.at_ns - op.at_ns) < TOLD_TWICE_NS


# ------------------------------------------------------------------ failovers


def _reasons(story: Story) -> dict[tuple[str, int | None], str]:
    """Why the gate of a node's term shut, by (node, fence); where its end shut it, why that was."""
    told = (*story.events("term.ended"), *story.events("gate.closed"))
    return {
        (op.process, op.value.get("fence")): str(op.value["reason"])
        for op in told
        if op.value.get("reason")
    }


def _failovers(seen: Scene, why: Mapping[tuple[str, int | None], str]) -> Iterator[Failover]:
    """One for each new term but the first; a term's own gate, shut and opened again, is none."""
    for old, new in pairwise(seen.gates):
        if (old.node, old.fence) == (new.node, new.fence):
            continue
        shut_ns = seen.ended_ns if old.closed_ns is None else old.closed_ns
        reason = why.get((old.node, old.fence), "exit")
        fault = _cause(seen.faults, old, min(shut_ns, new.opened_ns))
        zero_ns = fault.began_ns if fault else min(shut_ns, new.opened_ns)
        told = [(shut_ns, f"{old.node} shuts its gate ({reason})"), *_succession(seen, old, new)]
        yield Failover(
            cause=f"{fault.name} on {fault.target}" if fault else f"{old.node}: {reason}",
            began_ns=zero_ns,
            leaderless_ns=new.opened_ns - shut_ns,
            opened_ns=new.opened_ns,
            old=old,
            new=new,
            steps=tuple(Step(at_ns - zero_ns, text) for at_ns, text in sorted(told)),
        )


def _succession(seen: Scene, old: Gate, new: Gate) -> Iterator[tuple[int, str]]:
    """From the old key's end to the new term's first run."""
    for key in seen.keys:
        if key.node == old.node and key.gone_ns and key.put_ns <= old.opened_ns < key.gone_ns:
            yield key.gone_ns, f"{key.node}'s key leaves etcd"
    for mark in seen.raises:
        raised = (mark.who, mark.text) == (new.node, f"fence {new.fence}")
        if raised and mark.at_ns <= new.opened_ns:
            yield mark.at_ns, f"{mark.who} raises {mark.text}"
    yield new.opened_ns, f"{new.node} opens its gate"
    for run in (run for run in seen.runs if run.fence == new.fence):
        yield run.began_ns, f"first run: {run.job}"
        return


def _cause(faults: Sequence[Fault], old: Gate, over_ns: int) -> Fault | None:
    """The last fault of the old leader that struck its term and was not long over at its end."""
    hits = [
        fault
        for fault in faults
        if fault.target == old.node
        and old.opened_ns <= fault.began_ns <= over_ns
        and (fault.ended_ns is None or fault.ended_ns >= over_ns - SHORTLY_NS)
    ]
    return hits[-1] if hits else None
