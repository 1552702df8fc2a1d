"""What must be true of a history. Pure functions: the same history, the same verdict.

YES: it held. NO: it was broken; the text names the first case. UNKNOWN: the history cannot tell,
because what the check is about did not happen; a scenario that ends so has proved nothing. Times
are compared on one clock. Not judged here: anything the history does not hold.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from itertools import combinations, pairwise

from chaos.op import Op
from chaos.story import SECOND_NS, Blow, Gate, Start, Story

GO_NS = SECOND_NS // 2
"""A "go" on its way when the gate shuts may be obeyed, and the node learns of an exec a moment
after it: together at most this. It hides no overlap: the deadline lies further before the lease's
own end, and under a newer gate no start is excused."""
START_UP_NS = SECOND_NS // 2
"""A run writes its first note this much later than its exec, at most."""
UNFINISHED = frozenset({"due", "running", "retrying"})


class Verdict(StrEnum):
    YES = "YES"
    NO = "NO"
    UNKNOWN = "UNKNOWN"


@dataclass(frozen=True, slots=True)
class Finding:
    """One check's answer and its evidence, in one line."""

    check: str
    verdict: Verdict
    text: str


Check = Callable[[Story], Finding]


def judge(ops: Sequence[Op], checks: Iterable[Check]) -> tuple[Finding, ...]:
    story = Story(ops)
    return tuple(check(story) for check in checks)


def verdict(findings: Iterable[Finding]) -> Verdict:
    """The worst: one NO makes it NO, else one UNKNOWN makes it UNKNOWN."""
    found = {finding.verdict for finding in findings}
    return next(v for v in (Verdict.NO, Verdict.UNKNOWN, Verdict.YES) if v in found | {Verdict.YES})


# ------------------------------------------------------------------ slots


def one_row_per_slot(story: Story) -> Finding:
    """A slot has one row, and one run at most ever began for each of its attempts."""
    rows: Counter[tuple[object, ...]] = Counter(
        (r["job"], str(r["scheduled_for"]), r["command_id"]) for r in story.rows("slot")
    )
    runs: Counter[tuple[object, ...]] = Counter(
        (op.value["job"], op.value["scheduled_for"], _command(op), op.value["attempt"])
        for op in story.notes("began")
    )
    if not rows:
        return unknown(one_row_per_slot, "the ledger holds no slot")
    for kind, counted in (("rows", rows), ("runs", runs)):
        if double := next((slot for slot, n in counted.items() if n > 1), None):
            return no(one_row_per_slot, f"{counted[double]} {kind} of {double}")
    return yes(one_row_per_slot, f"{len(rows)} slots, {runs.total()} runs began, none twice")


def _command(op: Op) -> str:
    """The order that the slot is for; "" if it is the schedule's."""
    return str(op.value.get("command_id", ""))


def every_slot_explained(story: Story) -> Finding:
    """Between the first and the last slot of the interval job each has a row or lies in a gap, and
    every row of every job is in a final state, but for one that waits for a run without an end."""
    plan = story.plan()
    rows = {_time(r["scheduled_for"]) for r in story.rows("slot") if r["job"] == plan.tick}
    gaps = [
        (_time(g["first"]), _time(g["last"])) for g in story.rows("gap") if g["job"] == plan.tick
    ]
    if len(rows) < 2:
        return unknown(every_slot_explained, "fewer than two slots of the interval job")
    for slot in _grid(min(rows), max(rows), timedelta(microseconds=plan.every_ns // 1000)):
        if slot not in rows and not any(first <= slot <= last for first, last in gaps):
            return no(every_slot_explained, f"{plan.tick} {slot.isoformat()}: no row, no gap")
    for row in story.rows("slot"):
        if row["job"] == plan.held and row["state"] == "due":
            continue
        if row["state"] in UNFINISHED:
            text = f"{row['job']} {row['scheduled_for']} is left {row['state']}"
            return no(every_slot_explained, text)
    return yes(every_slot_explained, f"{len(rows)} rows and {len(gaps)} gaps of {plan.tick}")


def _grid(first: datetime, last: datetime, step: timedelta) -> Iterator[datetime]:
    while first <= last:
        yield first
        first += step


def _time(value: object) -> datetime:
    """Rows hold datetimes when fresh and text when loaded from a file."""
    at = value if isinstance(value, datetime) else datetime.fromisoformat(str(value))
    return at.astimezone(UTC)


# ------------------------------------------------------------------ the fence


def fence_never_falls(story: Story) -> Finding:
    """In the order of commit, each raise is higher than the one before; of a ledger that was
    restored, than that which stood in the backup."""
    raises = [op for op in story.accepted() if op.value["fence"] is not None]
    if not raises:
        return unknown(fence_never_falls, "no raise was seen")
    for one, other in pairwise(raises):
        before, after = one.value["fence"], other.value["fence"]
        if after <= before and other.value.get("operation") != "restore":
            return no(fence_never_falls, f"fence {before} was followed by {after}")
    return yes(fence_never_falls, f"raised {len(raises)} times, to {raises[-1].value['fence']}")


def no_stale_write_accepted(story: Story) -> Finding:
    """After a raise, nothing commits but writes of that node and that term, until the next one."""
    holder: tuple[str, int] | None = None
    writes = 0
    for op in story.accepted():
        if op.value["fence"] is not None:
            holder = (op.process, op.value["fence"])
        elif holder is None or op.process != holder[0] or op.value["term"] not in (None, holder[1]):
            what = f"{op.value['operation']} on {op.value['relation']} by {op.process}"
            text = f"{what}, term {op.value['term']}, committed while the fence was {holder}"
            return no(no_stale_write_accepted, text)
        else:
            writes += 1
    if holder is None:
        return unknown(no_stale_write_accepted, "no raise was seen")
    return yes(no_stale_write_accepted, f"{writes} writes, each by the holder of the fence")


def stale_write_refused(story: Story) -> Finding:
    """The deposed leader did write, and the fence refused and counted it. If it never tried,
    nothing was put to the test."""
    blow = story.blow()
    if blow is None:
        return unknown(stale_write_refused, "no fault")
    refused = [
        row
        for row in story.rows("refusal")
        if row["node"] == blow.node and row["fence"] == blow.fence and row["high"] > blow.fence
    ]
    if not refused:
        return unknown(stale_write_refused, f"no write of {blow.node} was refused")
    what = ", ".join(sorted({row["what"] for row in refused}))
    high = max(row["high"] for row in refused)
    return yes(
        stale_write_refused,
        f"{len(refused)} refused ({what}) of fence {blow.fence} under {high}",
    )


# ------------------------------------------------------------------ the gate


def never_two_gates(story: Story) -> Finding:
    """At no instant do two gates stand open."""
    gates = story.gates()
    if not gates:
        return unknown(never_two_gates, "no gate opened")
    for one, other in combinations(gates, 2):
        if one.open_at(other.opened_ns):
            text = f"{other.node} opened at fence {other.fence}, {one.node} ({one.fence}) was open"
            return no(never_two_gates, text)
    return yes(never_two_gates, f"{len(gates)} gates, one after the other")


def no_run_outside_its_gate(story: Story) -> Finding:
    """Every run, by its node's word and by its own, began while the gate of its own term was open,
    and none once a newer term's gate had opened."""
    gates, starts = story.gates(), list(story.starts())
    if not starts:
        return unknown(no_run_outside_its_gate, "no run began")
    for start in starts:
        who = f"{start.run} on {start.node}, fence {start.fence}"
        if not any(_lets(gate, start) for gate in gates):
            return no(no_run_outside_its_gate, f"{who}: its gate was not open")
        if any(gate.fence > start.fence and gate.opened_ns <= start.at_ns for gate in gates):
            return no(no_run_outside_its_gate, f"{who}: a newer gate was open")
    return yes(no_run_outside_its_gate, f"{len(starts)} starts, each inside its gate")


def _lets(gate: Gate, start: Start) -> bool:
    """Whether the run began inside this stretch of its own term's gate."""
    mine = (gate.node, gate.fence) == (start.node, start.fence)
    return mine and gate.open_at(start.at_ns, slack_ns=GO_NS + (START_UP_NS if start.own else 0))


def stopped_by_its_own_deadline(story: Story) -> Finding:
    """The node that was cut off shut its gate and ended its term by the lease's deadline, before
    etcd let its key go."""
    blow = story.blow()
    gone = _key_gone_ns(story, blow)
    if blow is None or gone is None:
        return unknown(stopped_by_its_own_deadline, "no fault, or etcd never let the key go")
    ended = story.events("term.ended", blow.node)
    ends = [op for op in ended if op.value.get("fence") == blow.fence]
    reasons = [op.value["reason"] for op in ends]
    if reasons != ["deadline"]:
        text = f"{blow.node} ended fence {blow.fence}: {', '.join(reasons) or 'never'}"
        return no(stopped_by_its_own_deadline, text)
    gates = [g for g in story.gates() if (g.node, g.fence) == (blow.node, blow.fence)]
    shut_ns = max((g.closed_ns or gone for g in gates), default=gone)
    if max(shut_ns, ends[0].at_ns) >= gone:
        return no(stopped_by_its_own_deadline, f"{blow.node} stopped after its lease was gone")
    early = _s(gone - max(shut_ns, ends[0].at_ns))
    text = f"{blow.node}, {_s(ends[0].at_ns - blow.began_ns)} after the fault, {early} before etcd"
    return yes(stopped_by_its_own_deadline, text)


def lost_runs_ended_in_time(story: Story) -> Finding:
    """A run that may not outlive its term was dead before etcd let the key go."""
    blow, held = story.blow(), story.plan().held
    gone = _key_gone_ns(story, blow)
    if blow is None or gone is None:
        return unknown(lost_runs_ended_in_time, "no fault, or etcd never let the key go")
    beats = [
        op.at_ns
        for op in story.notes("beat", blow.node)
        if (op.value["job"], op.value["fence"]) == (held, blow.fence)
    ]
    if not beats or beats[-1] < blow.began_ns:
        return unknown(lost_runs_ended_in_time, f"no run of {held} was under way at the fault")
    if beats[-1] >= gone:
        text = f"{held} still ran {_s(beats[-1] - gone)} after the lease was gone"
        return no(lost_runs_ended_in_time, text)
    return yes(lost_runs_ended_in_time, f"{held} was dead {_s(gone - beats[-1])} before etcd")


def _key_gone_ns(story: Story, blow: Blow | None) -> int | None:
    """When etcd deleted the hit node's key, as the witness saw it."""
    if blow is None:
        return None
    return next((op.at_ns for op in story.deletes(blow.node) if op.at_ns > blow.began_ns), None)


# ------------------------------------------------------------------ progress


def successor_ticks_in_time(story: Story) -> Finding:
    """Within 2 TTL of the fault another node starts a run of the interval job."""
    blow, plan = story.blow(), story.plan()
    if blow is None:
        return unknown(successor_ticks_in_time, "no fault")
    first = next(
        (
            op
            for op in story.events("run.started")
            if op.value["job"] == plan.tick and op.value["fence"] > blow.fence
        ),
        None,
    )
    if first is None:
        return no(successor_ticks_in_time, "nobody took over")
    took = f"{first.process} after {_s(first.at_ns - blow.began_ns)}, bound {_s(2 * plan.ttl_ns)}"
    in_time = first.at_ns - blow.began_ns <= 2 * plan.ttl_ns
    return (yes if in_time else no)(successor_ticks_in_time, took)


def successor_gate_in_time(story: Story) -> Finding:
    """Where the scenario promises it: another node's gate opens within that bound of the fault."""
    blow, within_ns = story.blow(), story.plan().gate_within_ns
    if within_ns is None:
        return yes(successor_gate_in_time, "no bound of its own")
    if blow is None:
        return unknown(successor_gate_in_time, "no fault")
    gates = [gate for gate in story.gates() if gate.fence > blow.fence]
    if not gates:
        return no(successor_gate_in_time, "nobody took over")
    after_ns = gates[0].opened_ns - blow.began_ns
    took = f"{gates[0].node} after {_s(after_ns)}, bound {_s(within_ns)}"
    return (yes if after_ns <= within_ns else no)(successor_gate_in_time, took)


def progress_after_the_heal(story: Story) -> Finding:
    """Once healed, the fleet goes on ticking and the node that was hit stands in line again."""
    blow, plan = story.blow(), story.plan()
    if blow is None:
        return unknown(progress_after_the_heal, "no fault")
    ticks = [
        op
        for op in story.events("run.started")
        if op.value["job"] == plan.tick and op.at_ns > blow.healed_ns
    ]
    if len(ticks) < 3:
        return no(progress_after_the_heal, f"{len(ticks)} runs of {plan.tick} after the heal")
    if not any(op.at_ns > blow.began_ns for op in story.puts(blow.node)):
        return no(progress_after_the_heal, f"{blow.node} did not get in line again")
    return yes(progress_after_the_heal, f"{len(ticks)} ticks; {blow.node} is in line again")


def no_node_fell(story: Story) -> Finding:
    """Every node lived until it was asked to stop, and then left with status 0."""
    asked = next((op.at_ns for op in story.ops if op.f == "stopping"), None)
    exits = list(story.events("exit"))
    if asked is None or not exits:
        return unknown(no_node_fell, "the nodes were never asked to stop")
    for left in exits:
        if left.at_ns < asked or left.value["status"] != 0:
            when = "before it was asked to" if left.at_ns < asked else "when asked to"
            return no(no_node_fell, f"{left.process} exited {when}: {left.value['status']}")
    return yes(no_node_fell, f"{len(exits)} nodes left when asked to, with status 0")


# ------------------------------------------------------------------ is the experiment sound?


def fault_bit(story: Story) -> Finding:
    """The fault touched packets."""
    blow = story.blow()
    if blow is None or blow.packets == 0:
        return unknown(fault_bit, "no fault, or it touched no packet")
    lasted = _s(blow.healed_ns - blow.began_ns)
    return yes(fault_bit, f"{blow.fault} on {blow.node} for {lasted}, {blow.packets} packets")


def one_clock(story: Story) -> Finding:
    """The wall clock kept step with the boot clock: all times can be compared."""
    ends = [op.value["drift_ns"] for op in story.ops if op.f == "drift"]
    if not ends or abs(ends[-1]) > SECOND_NS // 50:
        return unknown(one_clock, "the wall clock was stepped during the run")
    return yes(one_clock, f"wall and boot clock kept within {abs(ends[-1]) / 1e6:.1f} ms")


SOUND: tuple[Check, ...] = (fault_bit, one_clock)
ALWAYS: tuple[Check, ...] = (
    one_row_per_slot,
    every_slot_explained,
    fence_never_falls,
    no_stale_write_accepted,
    stale_write_refused,
    never_two_gates,
    no_run_outside_its_gate,
    stopped_by_its_own_deadline,
    lost_runs_ended_in_time,
    successor_ticks_in_time,
    successor_gate_in_time,
    progress_after_the_heal,
    no_node_fell,
)


def _s(ns: int) -> str:
    return f"{ns / SECOND_NS:.2f} s"


def yes(check: Check, text: str) -> Finding:
    return Finding(check.__name__, Verdict.YES, text)


def no(check: Check, text: str) -> Finding:
    return Finding(check.__name__, Verdict.NO, text)


def unknown(check: Check, text: str) -> Finding:
    return Finding(check.__name__, Verdict.UNKNOWN, text)
