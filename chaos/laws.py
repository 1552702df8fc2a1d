"""What must be true of a history of any number of faults, whatever they were.

Pure functions of a history, like checks.py, whose scenarios have one fault and know what it is.
A fault that breaks a promise's premise excuses it, by name: a key that a hand deleted lets two
gates stand open until the watch says so; a frozen machine kills nothing.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from itertools import pairwise
from typing import Any

from chaos import checks
from chaos.checks import (
    GO_NS,
    UNFINISHED,
    Check,
    Finding,
    fence_never_falls,
    no,
    no_stale_write_accepted,
    unknown,
    yes,
)
from chaos.op import Op, Source
from chaos.plan import Fault
from chaos.story import SECOND_NS, Gate, Story
from cron_leader.core.model import Rollback

_MICROSECOND = timedelta(microseconds=1)
DYING_NS = SECOND_NS // 5
"""A process is dead so long after its SIGKILL, at most."""
_FREEZES = frozenset({Fault.FREEZE_NODE, Fault.FREEZE_DAEMON})


@dataclass(frozen=True, slots=True)
class Spell:
    """A fault's time."""

    fault: str
    nodes: tuple[str, ...]
    began_ns: int
    healed_ns: int
    bites: int


# ------------------------------------------------------------------ what the laws look at


def spells(story: Story) -> list[Spell]:
    return [
        Spell(v["fault"], tuple(v["nodes"]), v["began_ns"], op.at_ns, v["bites"])
        for op in story.heals()
        for v in [op.value]
    ]


def planned(story: Story, key: str, default: Any = None) -> Any:
    """Of the run's first op; raises KeyError if there is no such thing, and no default for it."""
    value = next(op.value for op in story.ops if op.source is Source.PLAN)
    return value[key] if default is None else value.get(key, default)


def gates(story: Story) -> list[Gate]:
    """As told, but none beyond the deadline its daemon knew: a frozen one cannot say so."""
    known: dict[tuple[str, int], list[int]] = {}
    for op in story.events("deadline"):
        if op.value["fence"] is not None:
            known.setdefault((op.process, op.value["fence"]), []).append(op.value["until_ns"])
    return [_bounded(gate, known.get((gate.node, gate.fence), [])) for gate in story.gates()]


def _bounded(gate: Gate, deadlines: list[int]) -> Gate:
    last_ns = max(deadlines, default=None)
    if last_ns is None or (gate.closed_ns is not None and gate.closed_ns <= last_ns):
        return gate
    return replace(gate, closed_ns=last_ns)


def keys_gone(story: Story) -> dict[tuple[str, int], int]:
    """(node, fence) -> when etcd deleted its key. Of the node, too: a restored etcd gives the
    revisions of keys that are gone once more, to others; or to the same node, whose gate opens
    after the restore: the older key is not its own. A ledger restored after that has lost what was
    added to the revisions, and tells old fences of new keys as well."""
    restores = [s for s in spells(story) if s.fault in (Fault.ETCD_RESTORE, Fault.LEDGER_RESTORE)]
    again = restores if any(s.fault == Fault.ETCD_RESTORE for s in restores) else []
    opened = {(gate.node, gate.fence): gate.opened_ns for gate in story.gates()} if again else {}
    gone: dict[tuple[str, int], int] = {}
    for op in story.deletes():
        key = op.process, op.value["fence"]
        opened_ns = opened.get(key, 0)
        older = op.at_ns < opened_ns
        if not (older and any(op.at_ns < s.healed_ns and s.began_ns < opened_ns for s in again)):
            gone[key] = op.at_ns
    return gone


def meddled(story: Story) -> dict[int, int]:
    """Fence -> when somebody's hand was first in its key or its lease: a store that is restored
    twice brings a key back and takes it again."""
    first: dict[int, int] = {}
    for op in story.hands():
        first.setdefault(op.value["fence"], op.at_ns)
    return first


# ------------------------------------------------------------------ the laws


def one_row_per_slot(story: Story) -> Finding:
    """As in checks.py; but what a restored ledger lost is run once more with `refire`, if nobody
    led then, or if the fleet was struck otherwise, too: no leader could tell etcd of the loss."""
    faults = spells(story)
    restored = [spell for spell in faults if spell.fault == Fault.LEDGER_RESTORE]
    untold = (
        other.began_ns <= spell.healed_ns and _told_again_ns(story, other) >= spell.began_ns
        for spell in restored
        for other in faults
        if other is not spell
    )
    if restored and (
        planned(story, "rollback") == Rollback.REFIRE
        or any(untold)
        or any(not _is_led(story, spell.began_ns) for spell in restored)
    ):
        story = Story([op for op in story.ops if op.source is not Source.RUN])
    return checks.one_row_per_slot(story)


def _is_led(story: Story, at_ns: int) -> bool:
    return any(gate.open_at(at_ns) for gate in gates(story))


def _told_again_ns(story: Story, spell: Spell) -> int:
    """When etcd can know again what the ledger holds: what a restored one forgot of that, the next
    leader tells it."""
    if spell.fault != Fault.ETCD_RESTORE:
        return spell.healed_ns
    opened = (gate.opened_ns for gate in story.gates() if gate.opened_ns > spell.began_ns)
    return max(spell.healed_ns, min(opened, default=story.ops[-1].at_ns) + SECOND_NS)


def every_slot_explained(story: Story) -> Finding:
    """Each slot of each job, from when the fleet knew it to half a minute before the end, has a
    row or lies in a gap, and no such row is unfinished; but in a full group one may wait, as long
    as the group goes on."""
    ends = story.end_ns
    found = story.rows("slot")
    rows = {(r["job"], r["scheduled_for"]): r["state"] for r in found if not r["command_id"]}
    spans: dict[str, list[tuple[datetime, datetime]]] = {}
    for gap in story.rows("gap"):
        span = datetime.fromisoformat(gap["first"]), datetime.fromisoformat(gap["last"])
        spans.setdefault(gap["job"], []).append(span)
    jobs = story.rows("job")
    started = datetime.fromisoformat(planned(story, "started")) if jobs else None
    if not rows or started is None:
        return unknown(every_slot_explained, "the ledger holds no slot")
    settle_ns = int(planned(story, "settle_ns", 30 * SECOND_NS))
    until = started + timedelta(microseconds=(ends - settle_ns) // 1_000)
    may_wait = _of_busy_groups(story, ends - settle_ns)
    for job in jobs:
        retired_at = job.get("retired_at")
        to = min(until, datetime.fromisoformat(retired_at)) if retired_at else until
        for at in _slots(job, datetime.fromisoformat(job["first_seen"]), to):
            state = rows.get((job["job"], at.isoformat()))
            if state is None and not any(a <= at <= b for a, b in spans.get(job["job"], ())):
                return no(every_slot_explained, f"{job['job']} {at.isoformat()}: no row, no gap")
            if state in UNFINISHED and (state == "running" or job["job"] not in may_wait):
                return no(every_slot_explained, f"{job['job']} {at.isoformat()} is left {state}")
    return yes(every_slot_explained, f"{len(rows)} rows")


def _of_busy_groups(story: Story, since_ns: int) -> frozenset[str]:
    """The jobs of groups with a bound that had a run end since then."""
    groups, bounds = planned(story, "groups", {}), planned(story, "bounds", {})
    ended = {op.value["job"] for op in story.notes("ended") if op.at_ns >= since_ns}
    busy = {groups.get(job) for job in ended} & bounds.keys()
    return frozenset(job for job, group in groups.items() if group in busy)


def _slots(job: Mapping[str, Any], after: datetime, until: datetime) -> Iterator[datetime]:
    """In (after, until]: as they were listed, or one each period since the epoch."""
    if (listed := job.get("slots")) is not None:
        times = map(datetime.fromisoformat, listed)
        yield from (at for at in times if after < at <= until)
        return
    every = timedelta(milliseconds=job["every_ms"])
    epoch = datetime(1970, 1, 1, tzinfo=after.tzinfo)
    at = epoch + ((after - epoch) // every + 1) * every
    while at <= until:
        yield at
        at += every


def never_two_gates(story: Story) -> Finding:
    """At no instant do two gates stand open, unless a hand had deleted the older one's key."""
    found, hands = sorted(gates(story), key=lambda gate: gate.opened_ns), meddled(story)
    if not found:
        return unknown(never_two_gates, "no gate opened")
    for one, other in pairwise(found):
        if one.open_at(other.opened_ns - 1) and hands.get(one.fence, other.opened_ns) >= (
            other.opened_ns
        ):
            text = f"{other.node} opened at fence {other.fence}, {one.node} ({one.fence}) was open"
            return no(never_two_gates, text)
    return yes(never_two_gates, f"{len(found)} gates, one after the other")


def gate_shut_before_key_gone(story: Story) -> Finding:
    """A gate is shut when etcd lets its key go, unless a hand did."""
    gone, hands = keys_gone(story), meddled(story)
    found = gates(story)
    for gate in found:
        at_ns = gone.get((gate.node, gate.fence))
        if at_ns is None or gate.fence in hands:
            continue
        if gate.open_at(at_ns):
            text = f"{gate.node}'s gate ({gate.fence}) was open when etcd let its key go"
            return no(gate_shut_before_key_gone, text)
    if not gone.keys() & {(gate.node, gate.fence) for gate in found}:
        return unknown(gate_shut_before_key_gone, "no leader's key went")
    return yes(gate_shut_before_key_gone, f"{len(found)} gates")


def no_run_begins_late(story: Story) -> Finding:
    """No run begins while its term's gate is shut, past the deadline its daemon knew, or once its
    key is gone (unless a hand took it)."""
    gone, hands, faults = keys_gone(story), meddled(story), spells(story)
    opened: dict[int, list[Gate]] = {}
    for gate in story.gates():
        opened.setdefault(gate.fence, []).append(gate)
    last = {op.value["fence"]: op.value["until_ns"] for op in story.events("deadline")}
    runs = 0
    for op in story.notes("began"):
        fence, runs = op.value["fence"], runs + 1
        who = f"{op.value['job']} {op.value['scheduled_for']} on {op.process}, fence {fence}"
        own = opened.get(fence, ())
        shut = not any(gate.open_at(op.at_ns, slack_ns=GO_NS) for gate in own)
        if shut and not (own and _frozen(faults, op.process, op.at_ns)):
            return no(no_run_begins_late, f"{who}: its gate was shut")
        if op.at_ns > last.get(fence, op.at_ns):
            return no(no_run_begins_late, f"{who}: past its deadline")
        if fence not in hands and op.at_ns > gone.get((op.process, fence), op.at_ns):
            return no(no_run_begins_late, f"{who}: its key was gone")
    if not runs:
        return unknown(no_run_begins_late, "no run began")
    return yes(no_run_begins_late, f"{runs} runs")


def lost_runs_end_in_time(story: Story) -> Finding:
    """A run that may not outlive its term is dead when etcd lets the key go, unless its machine
    was frozen, or a hand took the key."""
    gone, hands, ends = keys_gone(story), meddled(story), _ends(story)
    may_finish, faults = set(planned(story, "may_finish")), spells(story)
    for op in story.notes("began"):
        fence, job = op.value["fence"], op.value["job"]
        at_ns = gone.get((op.process, fence))
        if at_ns is None or job in may_finish or fence in hands:
            continue
        if ends.get(_run(op), at_ns) > at_ns + DYING_NS and not _frozen(faults, op.process, at_ns):
            late = (ends[_run(op)] - at_ns) / SECOND_NS
            text = f"{job} on {op.process}, fence {fence}, ran {late:.2f} s on without its key"
            return no(lost_runs_end_in_time, text)
    return yes(lost_runs_end_in_time, f"{len(ends)} runs ended")


def _ends(story: Story) -> dict[tuple[object, ...], int]:
    return {_run(op): op.at_ns for op in story.notes("ended")}


def _run(op: Op) -> tuple[object, ...]:
    """Of the node, too: where both stores were restored a fence comes twice."""
    value = op.value
    run = value["job"], value["scheduled_for"], value.get("command_id", ""), value["attempt"]
    return op.process, *run, value["fence"]


def _frozen(faults: list[Spell], node: str, at_ns: int) -> bool:
    """Frozen then, or thawed just before."""
    return any(
        s.fault in _FREEZES and node in s.nodes and s.began_ns <= at_ns <= s.healed_ns + SECOND_NS
        for s in faults
    )


def ticks_in_peace(story: Story) -> Finding:
    """A gate stands open whenever no fault has been about for the time a recovery may take."""
    end_ns = story.end_ns
    found, faults = sorted(gates(story), key=lambda g: g.opened_ns), spells(story)
    allowed_ns = 2 * int(planned(story, "ttl_ns")) + 15 * SECOND_NS
    allowed_ns = int(planned(story, "recovery_ns", allowed_ns))
    rolling_ns = int(planned(story, "rolling_ns", 40 * SECOND_NS))
    peace = list(_peace([_rolled(s, rolling_ns) for s in faults], end_ns, allowed_ns))
    open_ = [(g.opened_ns, end_ns if g.closed_ns is None else g.closed_ns) for g in found]
    for began_ns, ends_ns in peace:
        for at_ns in _uncovered(open_, began_ns, ends_ns):
            text = f"no gate is open at {at_ns / SECOND_NS:.2f} s, in peace since "
            text += f"{(began_ns - allowed_ns) / SECOND_NS:.2f} s"
            return no(ticks_in_peace, text)
    if not peace:
        return unknown(ticks_in_peace, "there was no peace")
    return yes(ticks_in_peace, f"{len(peace)} spells of peace")


def _rolled(spell: Spell, rolling_ns: int) -> Spell:
    """A rolling restart goes on for so long after the order."""
    rolls = spell.fault in (Fault.ROLLING_RESTART, Fault.CONFIG_CHANGE)
    more_ns = rolling_ns if rolls else 0
    return replace(spell, healed_ns=spell.healed_ns + more_ns)


def _peace(faults: list[Spell], end_ns: int, allowed_ns: int) -> Iterator[tuple[int, int]]:
    since_ns = 0
    for spell in sorted(faults, key=lambda s: s.began_ns):
        if spell.began_ns > since_ns + allowed_ns:
            yield since_ns + allowed_ns, spell.began_ns
        since_ns = max(since_ns, spell.healed_ns)
    if end_ns > since_ns + allowed_ns:
        yield since_ns + allowed_ns, end_ns


def _uncovered(open_: list[tuple[int, int]], began_ns: int, ends_ns: int) -> Iterator[int]:
    """Instants of the stretch at which nothing is open; a handover of a second is nothing."""
    at_ns = began_ns
    for opened_ns, closed_ns in open_:
        if closed_ns < at_ns:
            continue
        if opened_ns > at_ns + SECOND_NS:
            break
        at_ns = max(at_ns, closed_ns)
        if at_ns >= ends_ns:
            return
    yield at_ns


def faults_bit(story: Story) -> Finding:
    """Something was disturbed, runs began, and a newer term raised the fence over an older one."""
    bites = sum(spell.bites for spell in spells(story))
    raises = sum(op.value["fence"] is not None for op in story.accepted())
    if not bites:
        return unknown(faults_bit, "no fault touched anything")
    if raises < 2:
        return unknown(faults_bit, "the first leader kept the post")
    return yes(faults_bit, f"{bites} bites, {raises} terms")


LAWS: tuple[Check, ...] = (
    one_row_per_slot,
    every_slot_explained,
    fence_never_falls,
    no_stale_write_accepted,
    never_two_gates,
    gate_shut_before_key_gone,
    no_run_begins_late,
    lost_runs_end_in_time,
    ticks_in_peace,
    faults_bit,
)
