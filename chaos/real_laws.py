"""Laws of real processes, beside those that hold in every world: what a simulated node cannot do
wrong. And which of the others are asked of them."""

from __future__ import annotations

from collections.abc import Sequence

from chaos import checks, laws, timely
from chaos.checks import Check, Finding, no, unknown, yes
from chaos.laws import Spell, planned, spells
from chaos.op import Op
from chaos.plan import Fault
from chaos.story import SECOND_NS, Story

CRASH_NS = SECOND_NS * 3 // 2
"""Promised are 300 ms; a machine that does more than this run takes longer."""
LEAVES_NS = 3 * SECOND_NS
"""A leader that is asked to leave: its drain of 1 s, and its runs' end."""
LATE_NS = 2 * SECOND_NS
"""From the end of the lease to a successor's open gate: promised is 1 s; see CRASH_NS."""
_CRASHES = frozenset({Fault.KILL_DAEMON, Fault.KILL_SUPERVISOR})


def succeeded_in_time(story: Story) -> Finding:
    """After the first blow, which hits a leader and is alone, a newer term's gate opens within the
    bound of design section 7 (T + 1 s; for a crash, and for leaving, far less), and some slack."""
    faults = sorted(spells(story), key=lambda spell: spell.began_ns)
    gates = sorted(story.gates(), key=lambda gate: gate.opened_ns)
    if not faults or not gates or not faults[0].nodes:
        return unknown(succeeded_in_time, "no leader was hit")
    blow, ttl_ns = faults[0], int(planned(story, "ttl_ns"))
    first = next((gate for gate in gates if gate.opened_ns > blow.began_ns), None)
    bound_ns = _bound_ns(blow, ttl_ns)
    if first is None:
        return no(succeeded_in_time, f"nobody took over after {blow.fault}")
    took_ns = first.opened_ns - blow.began_ns
    text = f"{first.node} {_s(took_ns)} after {blow.fault}, bound {_s(bound_ns)}"
    return (yes if took_ns <= bound_ns else no)(succeeded_in_time, text)


def _bound_ns(blow: Spell, ttl_ns: int) -> int:
    if blow.fault in _CRASHES:
        return CRASH_NS
    if blow.fault == Fault.RESTART:
        return LEAVES_NS
    return ttl_ns + LATE_NS


def no_run_begins_past_its_lease(story: Story) -> Finding:
    """Every run began before its leader's last renewal, by when it was sent, had been good for a
    TTL less the least margin."""
    last = {op.value["fence"]: op.value["until_ns"] for op in story.events("lease.until")}
    runs = 0
    for op in story.notes("began"):
        runs += 1
        late_ns = op.at_ns - last.get(op.value["fence"], op.at_ns)
        if late_ns > 0:
            who = f"{op.value['job']} {op.value['scheduled_for']} on {op.process}"
            return no(no_run_begins_past_its_lease, f"{who}: {_s(late_ns)} past its lease")
    if not runs:
        return unknown(no_run_begins_past_its_lease, "no run began")
    return yes(no_run_begins_past_its_lease, f"{runs} runs")


def no_node_falls_over(story: Story) -> Finding:
    """A node exits when it is asked to, with status 0, or because it was killed; or, with status 2,
    because it was started on an etcd that was restored and not rebased yet."""
    killed: set[str] = set()
    restored = [s for s in spells(story) if s.fault == Fault.ETCD_RESTORE]
    exits = 0
    for op in story.ops:
        if op.f == "killed" or (op.f == "inject" and op.value["fault"] == Fault.KILL_SUPERVISOR):
            killed |= {op.process, *op.value.get("nodes", ())}
        elif op.f in ("exit", "after.exit"):
            exits += 1
            refused = op.value["status"] == 2 and any(
                s.began_ns <= op.at_ns <= s.healed_ns + SECOND_NS for s in restored
            )
            if op.value["status"] != 0 and op.process not in killed and not refused:
                text = f"{op.process} exited with status {op.value['status']}"
                return no(no_node_falls_over, text)
            killed.discard(op.process)
    if not exits:
        return unknown(no_node_falls_over, "no node was ever asked to stop")
    return yes(no_node_falls_over, f"{exits} exits")


def no_traceback(story: Story) -> Finding:
    """Nothing went wrong in a node that nobody had thought of."""
    for op in story.ops:
        if op.f == "after.remains":
            found = op.value.get("tracebacks", ["not looked for"])
            return no(no_traceback, found[0]) if found else yes(no_traceback, "none")
    return unknown(no_traceback, "nobody looked")


def nothing_is_left(story: Story) -> Finding:
    """When the nodes are gone so are their runs, their connections and their keys."""
    for op in story.ops:
        if op.f == "after.remains":
            left = {what: op.value.get(what) for what in ("processes", "connections", "keys")}
            found = [f"{what}: {value}" for what, value in left.items() if value]
            return no(nothing_is_left, found[0]) if found else yes(nothing_is_left, "nothing")
    return unknown(nothing_is_left, "nobody looked")


REAL: tuple[Check, ...] = (
    *laws.LAWS,
    timely.gate_opens_after_its_raise,
    timely.a_hand_shuts_the_gate_in_time,
    timely.jobs_keep_to_themselves,
    succeeded_in_time,
    no_run_begins_past_its_lease,
    no_node_falls_over,
    no_traceback,
    nothing_is_left,
)
NEED_OUR_JOBS: frozenset[Check] = frozenset(
    {laws.lost_runs_end_in_time, timely.jobs_keep_to_themselves}
)
"""These read what only the harness's own jobs write down."""


def judge(ops: Sequence[Op]) -> tuple[Finding, ...]:
    """All that can be asked of this history."""
    ours = planned(Story(ops), "ours")
    return checks.judge(ops, [law for law in REAL if ours or law not in NEED_OUR_JOBS])


def _s(ns: int) -> str:
    return f"{ns / SECOND_NS:.2f} s"
