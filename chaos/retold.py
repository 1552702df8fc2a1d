"""The history of a real world, told in the words of the laws: a pure function of ops.

Real nodes say less than simulated ones, and what they say has to be put together: until when the
lease of a leader is good (from its renewals), under which fence a key went (from its lease), when a
run that was killed had ended (with its last beat). Time zero is when the fleet had a leader and all
stood in line; it ends when the nodes are asked to stop: what comes later is no work of the fleet.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

from chaos.op import Op, Source, Type
from chaos.plan import Fault
from chaos.story import SECOND_NS, exec_ns

_STILL = frozenset({Fault.FREEZE_NODE, Fault.FREEZE_DAEMON, Fault.SLOW})
"""Under these a run may take its time to write its first note."""
THAW_NS = SECOND_NS // 50
"""From the thaw to the end of the harness's work at it; shorter than any program takes to start."""
START_UP_NS = 2 * SECOND_NS
"""From a run's exec to that note, at most, on a machine that does more than this."""
REVOKES_NS = SECOND_NS
"""A thawed etcd leader has revoked what it thinks has expired so long after it, at most."""


def retold(ops: Sequence[Op]) -> tuple[Op, ...]:
    """ops: in order of time; the first is the plan, with the wall clock at that time ("wall")."""
    fences = _fences(ops)
    leases = list(_leases(ops, fences))
    unheard = _unheard(ops, leases)
    stop_ns = next((op.at_ns for op in ops if op.f == "stopping"), ops[-1].at_ns)
    zero_ns = next((op.at_ns for op in ops if op.f == "risen"), ops[0].at_ns)
    told = [
        *leases,
        *(replace(op, f="deadline") for op in leases if op.value["fence"] in unheard),
        *_revoked_by_etcd(ops, fences, leases),
        *_runs(ops),
        *(_in_time(_put_right(op, fences, stop_ns), unheard) for op in ops if _is_kept(op)),
    ]
    jobs = list(_jobs(ops, stop_ns))
    kept = [op for op in told if op.at_ns <= stop_ns or op.source in (Source.PLAN, Source.NEMESIS)]
    after = [op for op in ops if op.f in ("exit", "remains") and op.at_ns > stop_ns]
    began = _began(ops, zero_ns)
    every = (began, *kept, *jobs, *(_aside(op, stop_ns) for op in after))
    return tuple(sorted((_moved(op, zero_ns) for op in every), key=lambda op: op.at_ns))


def _began(ops: Sequence[Op], zero_ns: int) -> Op:
    """The plan, with the wall clock at time zero; it comes just before the nodes, for how long it
    took to build the world is of no interest."""
    plan = ops[0]
    first_ns = next((op.at_ns for op in ops if op.source is Source.NODE), plan.at_ns)
    wall = datetime.fromisoformat(plan.value["wall"])
    started = wall + timedelta(microseconds=(zero_ns - plan.at_ns) // 1000)
    return replace(plan, at_ns=first_ns - 1, value={**plan.value, "started": started.isoformat()})


def _unheard(ops: Sequence[Op], leases: Iterable[Op]) -> dict[int, int]:
    """Fence -> until when its lease was good, of nodes that stood still then: they could not say
    that their gate was shut. Of all others their own word counts."""
    last = {op.value["fence"]: op for op in leases if op.value["fence"] is not None}
    return {
        fence: op.value["until_ns"]
        for fence, op in last.items()
        if _still_ns(ops, op.process, op.value["until_ns"], op.value["until_ns"] + 1)
    }


def _in_time(op: Op, unheard: Mapping[int, int]) -> Op:
    """A gate is shut by its deadline; a daemon that stood still then says so later."""
    if op.source is not Source.NODE or op.f != "gate.closed":
        return op
    return replace(op, at_ns=min(op.at_ns, unheard.get(op.value["fence"], op.at_ns)))


def _revoked_by_etcd(
    ops: Sequence[Op], fences: Mapping[str, int], leases: Iterable[Op]
) -> Iterator[Op]:
    """Below 3.4.31 and 3.5.13 an etcd leader that stood still while another was elected revokes
    leases that live, once it is thawed: a hand like any other."""
    until = {op.value["fence"]: op.value["until_ns"] for op in leases}
    for op in ops:
        if (op.source, op.f) != (Source.ETCD, "delete") or not _is_thawed(ops, op.at_ns):
            continue
        lease = op.value["key"].rpartition("/")[2]
        fence = fences.get(lease)
        if fence is None or op.at_ns >= until.get(fence, 0) or _had_shut(ops, fence, op.at_ns):
            continue
        yield replace(
            op, source=Source.NEMESIS, f="meddled", value={"lease": lease, "fence": fence}
        )


def _is_thawed(ops: Iterable[Op], at_ns: int) -> bool:
    """An etcd member was, just before."""
    return any(
        op.value["began_ns"] <= at_ns <= op.at_ns + REVOKES_NS
        for op in ops
        if op.source is Source.NEMESIS
        and (op.f, op.type) == ("heal", Type.OK)
        and op.value["fault"] == Fault.ETCD_FREEZE
    )


def _had_shut(ops: Iterable[Op], fence: int, at_ns: int) -> bool:
    """The node let the key go itself: its gate was shut by then."""
    return any(
        op.source is Source.NODE and op.f == "gate.closed" and op.value["fence"] == fence
        for op in ops
        if op.at_ns <= at_ns
    )


def _moved(op: Op, zero_ns: int) -> Op:
    value = op.value
    for key in ("until_ns", "sent_ns", "began_ns"):
        if key in value:
            value = {**value, key: value[key] - zero_ns}
    return replace(op, at_ns=op.at_ns - zero_ns, value=value)


def _aside(op: Op, stop_ns: int) -> Op:
    """What only `real_laws` look at: it came after the end, and is kept as of the end."""
    return Op(stop_ns, Source.PLAN, op.process, f"after.{op.f}", value=op.value)


_ASIDE = frozenset({"plan", "job", "periods", "slots", "remains", "risen"})


def _is_kept(op: Op) -> bool:
    """Runs and jobs are told anew, the end and the harness's own words aside."""
    return op.source is not Source.RUN and op.f not in _ASIDE


def _fences(ops: Iterable[Op]) -> dict[str, int]:
    """Lease -> the fence under which its holder led."""
    return {
        op.value["lease"]: op.value["fence"]
        for op in ops
        if op.source is Source.NODE and op.f == "gate.opened"
    }


def _put_right(op: Op, fences: Mapping[str, int], stop_ns: int) -> Op:
    """Fences of keys and hands; rows as text, and as of the end."""
    match op.source, op.f:
        case Source.ETCD, _:
            lease = op.value["key"].rpartition("/")[2]
            return replace(op, value={**op.value, "fence": fences.get(lease, -1)})
        case Source.NEMESIS, "meddled":
            return replace(op, value={**op.value, "fence": fences.get(op.value["lease"], -1)})
        case Source.LEDGER, "accepted":
            return op
        case Source.LEDGER, _:
            return replace(op, at_ns=stop_ns, value=_texts(op.value))
        case _:
            return op


def _texts(row: Mapping[str, Any]) -> dict[str, Any]:
    """Times as ISO texts in UTC, whatever the database gave."""
    return {key: _text(value) if key in _TIMES else value for key, value in row.items()}


_TIMES = frozenset({"scheduled_for", "first", "last", "effective_from", "retired_at"})


def _text(value: Any) -> Any:
    if value is None:
        return None
    at = value if isinstance(value, datetime) else datetime.fromisoformat(str(value))
    return at.astimezone(UTC).isoformat()


def _leases(ops: Sequence[Op], fences: Mapping[str, int]) -> Iterator[Op]:
    """A renewal says how long ago it was sent; a margin is TTL / 5 at least."""
    lasts_ns = ops[0].value["ttl_ns"] - ops[0].value["margin_ns"]
    for op in ops:
        if op.source is Source.NODE and op.f in ("lease.granted", "lease.renewed"):
            fence = fences.get(op.value["lease"])
            sent_ns = op.at_ns - round(op.value.get("duration_ms", 0) * 1e6)
            value = {"fence": fence, "sent_ns": sent_ns, "until_ns": sent_ns + lasts_ns}
            yield Op(op.at_ns, Source.NODE, op.process, "lease.until", value=value)


def _jobs(ops: Iterable[Op], stop_ns: int) -> Iterator[Op]:
    """Those that have a row, are not retired, and whose period or slots are known."""
    when: dict[str, dict[str, object]] = {}
    for op in ops:
        if op.f == "periods":
            when |= {name: {"every_ms": round(s * 1000)} for name, s in op.value.items()}
        elif (op.source, op.f) == (Source.PLAN, "slots"):
            when |= {name: {"slots": slots} for name, slots in op.value.items()}
    for op in ops:
        if op.source is Source.LEDGER and op.f == "job" and op.value["retired_at"] is None:
            name = op.value["job"]
            if name in when:
                seen = {"job": name, "first_seen": _text(op.value["effective_from"])}
                yield Op(stop_ns, Source.LEDGER, "ledger", "job", Type.OK, seen | when[name])


# ------------------------------------------------------------------ runs


def _runs(ops: Sequence[Op]) -> Iterator[Op]:
    """By their own notes, where there are any; else by their nodes' word."""
    notes: dict[tuple[Any, ...], list[Op]] = {}
    for op in ops:
        if op.source is Source.RUN:
            notes.setdefault(_run(op), []).append(op)
    said = {_run(op): op for op in ops if op.source is Source.NODE and op.f == "run.started"}
    for run, own in notes.items():
        yield _thawed(_begun(own[0], said.get(run), ops), own[0], ops)
        yield from _ended(own)
    if not notes:
        for op in said.values():
            yield Op(exec_ns(op), Source.RUN, op.process, "began", Type.OK, op.value)


def _run(op: Op) -> tuple[Any, ...]:
    value = op.value
    return value["job"], _text(value["scheduled_for"]), value["attempt"], value["fence"]


def _begun(note: Op, said: Op | None, ops: Sequence[Op]) -> Op:
    """The instant of the exec as the node tells it, if the run's own first note came as soon after
    that as a program takes to start, less what it stood still."""
    if said is None:
        return note
    exec_at_ns = exec_ns(said)
    took_ns = note.at_ns - exec_at_ns - _still_ns(ops, note.process, exec_at_ns, note.at_ns)
    believed = exec_at_ns <= note.at_ns and took_ns <= START_UP_NS
    return replace(note, at_ns=exec_at_ns) if believed else note


def _thawed(began: Op, note: Op, ops: Iterable[Op]) -> Op:
    """No program is executed and writes its first note in the moment of a thaw: one that does was
    executed before the node stood still, and its node can only tell of it late."""
    for op in _heals(ops, note.process):
        thaw = op.value["began_ns"] <= note.at_ns <= op.at_ns + THAW_NS
        if thaw and op.value["fault"] != Fault.SLOW:
            return replace(began, at_ns=min(began.at_ns, op.value["began_ns"]))
    return began


def _heals(ops: Iterable[Op], node: str) -> Iterator[Op]:
    """Of faults that held this node still."""
    for op in ops:
        healed = op.source is Source.NEMESIS and (op.f, op.type) == ("heal", Type.OK)
        if healed and op.value["fault"] in _STILL and node in op.value["nodes"]:
            yield op


def _ended(notes: Sequence[Op]) -> Iterator[Op]:
    """With its last note: a run that is killed says no more."""
    last = notes[-1]
    yield replace(last, f="ended", value={**last.value, "killed": last.f != "ended"})


def _still_ns(ops: Iterable[Op], node: str, from_ns: int, to_ns: int) -> int:
    """How much of that stretch faults held the node still."""
    held = (min(to_ns, op.at_ns) - max(from_ns, op.value["began_ns"]) for op in _heals(ops, node))
    return sum(max(0, ns) for ns in held)
