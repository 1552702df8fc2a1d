"""What must happen in time, and in what order: laws of a history of any number of faults.

Beside laws.py, whose words these are. A bound counts only while its premise holds: of a fleet
without a quorum of etcd, a ledger or a sound node nothing is promised.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise

from chaos.checks import Check, Finding, no, unknown, yes
from chaos.laws import Spell, gates, planned, spells
from chaos.op import Op, Source
from chaos.plan import LEDGER_FAULTS, Fault
from chaos.story import SECOND_NS, Story

ELECTION_NS = SECOND_NS
"""etcd's election timeout."""
DRIFT_NS = SECOND_NS // 100
"""What a node's boot clock and true time may differ by over a lease."""
TELLS_NS = SECOND_NS
"""A watch that nothing disturbs tells of a deleted key so long after it, at most."""
TAKES_NS = 2 * SECOND_NS
"""From the lease's end to an open gate: etcd's scan, the raise, the settlement, a lost packet."""
ARRIVES_NS = 13 * SECOND_NS
"""A packet that was lost, and lost again, has arrived so long after the line was mended: what waits
for its sender's next try is sent once more then."""
DRAIN_NS = 15 * SECOND_NS
"""A node that is asked to stop has ended its runs by then."""
_HANDS = frozenset({Fault.LEASE_REVOKE, Fault.KEY_DELETE, Fault.FOREIGN_PUT})
_SLOW = frozenset(
    {
        Fault.CLOCK_STEP, Fault.CLOCK_DRIFT, Fault.CUT_LEDGER, Fault.CUT, Fault.CUT_IN,
        Fault.CUT_OUT, Fault.LOSS, Fault.DELAY, Fault.LEDGER_LOST_COMMIT, Fault.LEDGER_LATE_COPY,
    }
)  # fmt: skip
"""Under these a leader may keep its lease and not tick; it gives up after a TTL."""


_UNSOUND = LEDGER_FAULTS | {Fault.ETCD_QUORUM_LOSS, Fault.ETCD_NOSPACE, Fault.ETCD_RESTORE}
"""Under these nobody can be made leader. Of a member that is away the nodes know after silence."""


# ------------------------------------------------------------------ the deadline and the gate


def deadline_counts_from_the_send(story: Story) -> Finding:
    """No deadline lies later than TTL - margin after its renewal was sent, by whatever clock."""
    lasts_ns = planned(story, "ttl_ns") - planned(story, "margin_ns") + DRIFT_NS
    told = 0
    for op in story.events("deadline"):
        told += 1
        late_ns = op.value["until_ns"] - op.value["sent_ns"] - lasts_ns
        if late_ns > 0:
            text = f"{op.process}, fence {op.value['fence']}: {late_ns / 1e6:.1f} ms too late"
            return no(deadline_counts_from_the_send, text)
    if not told:
        return unknown(deadline_counts_from_the_send, "nobody led")
    return yes(deadline_counts_from_the_send, f"{told} deadlines")


def gate_opens_after_its_raise(story: Story) -> Finding:
    """When a gate opens, the raise of its fence has committed."""
    raised: set[object] = set()
    opened = 0
    for op in story.ops:
        if op.f == "accepted" and op.source is Source.LEDGER:
            raised.add(op.value["fence"])
        elif op.f == "gate.opened" and op.source is Source.NODE:
            opened += 1
            if op.value["fence"] not in raised:
                text = f"{op.process} opened at fence {op.value['fence']}, which nobody had raised"
                return no(gate_opens_after_its_raise, text)
    if not opened:
        return unknown(gate_opens_after_its_raise, "no gate opened")
    return yes(gate_opens_after_its_raise, f"{opened} gates")


def a_hand_shuts_the_gate_in_time(story: Story) -> Finding:
    """A gate whose key somebody deleted or overwrote is shut by the watch, at once where nothing
    else is disturbed, and within a TTL in any case."""
    found, faults, ttl_ns = gates(story), spells(story), int(planned(story, "ttl_ns"))
    hands = 0
    for op in story.hands():
        quiet = not any(
            s.began_ns <= op.at_ns + TELLS_NS and s.healed_ns >= op.at_ns - 2 * ttl_ns
            for s in faults
            if s.fault not in _HANDS
        )
        by_ns = op.at_ns + (TELLS_NS if quiet else ttl_ns + TELLS_NS)
        for gate in found:
            if gate.fence == op.value["fence"] and gate.open_at(op.at_ns - 1):
                hands += 1
                if gate.open_at(by_ns):
                    late = f"{(by_ns - op.at_ns) / SECOND_NS:.2f} s after a hand took its key"
                    text = f"{gate.node}'s gate ({gate.fence}) was open {late}"
                    return no(a_hand_shuts_the_gate_in_time, text)
    return yes(a_hand_shuts_the_gate_in_time, f"{hands} hands")


# ------------------------------------------------------------------ runs and slots


def nothing_runs_past_a_stop(story: Story) -> Finding:
    """A leader that was asked to leave has no run any more when its term ends."""
    under_way = defaultdict[tuple[str, int], Counter[object]](Counter)
    stops = 0
    for op in story.ops:
        if op.f in ("began", "ended") and op.source is Source.RUN:
            runs = under_way[op.process, op.value["fence"]]
            runs[_run(op)] += 1 if op.f == "began" else -1
        elif op.f == "term.ended" and op.source is Source.NODE and _asked_to(op):
            stops += 1
            runs = +under_way[op.process, op.value["fence"]]
            if runs:
                text = f"{next(iter(runs))} on {op.process}, fence {op.value['fence']}"
                return no(nothing_runs_past_a_stop, text)
    return yes(nothing_runs_past_a_stop, f"{stops} stops")


def _asked_to(op: Op) -> bool:
    return op.value.get("reason") == "stopping" or op.value.get("command") is not None


def what_ended_stays_ended(story: Story) -> Finding:
    """A slot ends once; none that succeeded is run again; none is abandoned that was not claimed.
    A ledger that went back knows of none."""
    ended: dict[object, str] = {}
    for op in story.ops:
        if op.f == "accepted" and op.value["operation"] == "restore":
            ended = {}
        elif op.f == "final" and op.source is Source.LEDGER:
            if (slot := _slot(op)) in ended:
                text = f"{slot}: {ended[slot]}, then {op.value['state']}"
                return no(what_ended_stays_ended, text)
            ended[slot] = op.value["state"]
        elif op.f == "began" and op.source is Source.RUN and ended.get(_slot(op)) == "succeeded":
            return no(what_ended_stays_ended, f"{_slot(op)} is run again, after it succeeded")
    for row in story.rows("slot"):
        if row["state"] == "abandoned" and not row["attempt"]:
            text = f"{row['job']} {row['scheduled_for']} is abandoned, and was never claimed"
            return no(what_ended_stays_ended, text)
    if not ended:
        return unknown(what_ended_stays_ended, "no run's end was recorded")
    return yes(what_ended_stays_ended, f"{len(ended)} slots")


def jobs_keep_to_themselves(story: Story) -> Finding:
    """Of a job whose runs may not overlap, one runs at a time within a term."""
    alone = set(planned(story, "alone"))
    under_way: dict[tuple[object, object], object] = {}
    runs = 0
    for op in story.runs():
        if op.value["job"] not in alone:
            continue
        of_job = op.value["job"], op.value["fence"]
        if op.f == "ended":
            under_way.pop(of_job, None)
        else:
            runs += 1
            if of_job in under_way:
                text = f"{_slot(op)} began while {under_way[of_job]} ran, fence {of_job[1]}"
                return no(jobs_keep_to_themselves, text)
            under_way[of_job] = _slot(op)
    if not runs:
        return unknown(jobs_keep_to_themselves, "no such run began")
    return yes(jobs_keep_to_themselves, f"{runs} runs, one at a time")


def groups_keep_their_bounds(story: Story) -> Finding:
    """Of a group no more runs go on a node at a time than its pool allows."""
    group_of, most = planned(story, "groups"), planned(story, "bounds")
    under_way: Counter[tuple[str, str]] = Counter()
    runs = 0
    for op in story.runs():
        if (group := group_of.get(op.value["job"])) not in most:
            continue
        if op.f == "ended":
            under_way[op.process, group] -= 1
        else:
            runs += 1
            under_way[op.process, group] += 1
            if under_way[op.process, group] > most[group]:
                text = f"{_slot(op)} began on {op.process}, where {most[group]} of {group} ran"
                return no(groups_keep_their_bounds, text)
    return yes(groups_keep_their_bounds, f"{runs} runs of groups with a bound")


def a_pause_is_kept(story: Story) -> Finding:
    """No slot of a job's pause is run, then or later. Unless clocks were set: a pause is a time."""
    pauses = {row["job"]: row["paused"] for row in story.rows("job") if row.get("paused")}
    if any(spell.fault == Fault.CLOCK_STEP for spell in spells(story)):
        pauses = {}
    for op in story.notes("began"):
        job, at = op.value["job"], op.value["scheduled_for"]
        if job in pauses and not op.value["command_id"]:
            opens, closes = pauses[job]
            if opens <= at < closes:
                return no(a_pause_is_kept, f"{_slot(op)} was run, paused from {opens} to {closes}")
    return yes(a_pause_is_kept, f"{len(pauses)} jobs had been paused")


def _slot(op: Op) -> tuple[object, ...]:
    value = op.value
    return value["job"], value["scheduled_for"], value.get("command_id", "")


def _run(op: Op) -> tuple[object, ...]:
    return (*_slot(op), op.value["attempt"])


# ------------------------------------------------------------------ failover


def failover_in_time(story: Story) -> Finding:
    """With a quorum of etcd, the ledger up and a sound node, no stretch without a gate is longer
    than T + 1 s (2T + 1 s where a leader may keep its lease and not tick) since the last thing
    that happened to the fleet; T + E more where that was a change of etcd's leader."""
    fleet, ttl_ns = _Fleet(story), int(planned(story, "ttl_ns"))
    worst_ns = 0
    for began_ns, ends_ns in _without_gate(story, fleet.end_ns):
        for since_ns, until_ns in fleet.undisturbed(began_ns, ends_ns):
            allowed_ns = ttl_ns * (2 if fleet.slow(since_ns) else 1) + TAKES_NS
            allowed_ns += ttl_ns + ELECTION_NS if fleet.elected(since_ns) else 0
            if not fleet.sound(since_ns):
                continue
            worst_ns = max(worst_ns, until_ns - since_ns)
            if until_ns - since_ns > allowed_ns:
                text = f"no gate from {since_ns / SECOND_NS:.2f} to {until_ns / SECOND_NS:.2f} s, "
                text += f"bound {allowed_ns / SECOND_NS:.2f} s"
                return no(failover_in_time, text)
    return yes(failover_in_time, f"at most {worst_ns / SECOND_NS:.2f} s without a gate")


def _without_gate(story: Story, end_ns: int) -> Iterator[tuple[int, int]]:
    """The stretches in which no gate was open, from the start on."""
    at_ns = 0
    for gate in sorted(gates(story), key=lambda gate: gate.opened_ns):
        if gate.opened_ns > at_ns:
            yield at_ns, gate.opened_ns
        at_ns = max(at_ns, end_ns if gate.closed_ns is None else gate.closed_ns)
    if at_ns < end_ns:
        yield at_ns, end_ns


@dataclass(frozen=True, slots=True)
class _Left:
    """A node that was gone, or stood aside for good: from when to when."""

    node: str
    from_ns: int
    to_ns: int


class _Fleet:
    """What befell nodes, etcd and ledger, and when."""

    def __init__(self, story: Story) -> None:
        self.end_ns = story.end_ns
        self._nodes = frozenset(planned(story, "nodes"))
        self._spells = spells(story)
        self._leaders = [(op.at_ns, op.value["member"]) for op in story.etcd("leader")]
        self._left = list(_departures(story, self.end_ns))
        events = [0, *(at_ns for at_ns, _ in self._leaders)]
        events += [at for s in self._spells for at in (s.began_ns, s.healed_ns)]
        events += [at for left in self._left for at in (left.from_ns, left.to_ns)]
        events += [op.at_ns for op in story.events("term.ended") if _asked_to(op)]
        self._events = sorted(set(events))

    def undisturbed(self, began_ns: int, ends_ns: int) -> Iterator[tuple[int, int]]:
        """The stretch, parted at whatever happened in it."""
        first = bisect_right(self._events, began_ns)
        last = bisect_right(self._events, ends_ns)
        yield from pairwise([began_ns, *self._events[first:last], ends_ns])

    def _active(self, at_ns: int) -> list[Spell]:
        return [s for s in self._spells if s.began_ns <= at_ns < s.healed_ns]

    def slow(self, at_ns: int) -> bool:
        """Whether a leader may be about that keeps its lease and does not tick; or one that is
        dead, and whose last renewal is still on its way."""
        return any(
            s.began_ns
            <= at_ns
            <= s.healed_ns + (ARRIVES_NS if s.fault == Fault.LOSS else SECOND_NS)
            for s in self._spells
            if s.fault in _SLOW
        )

    def elected(self, at_ns: int) -> bool:
        """Whether etcd's leader changed then, or just before, and every lease began anew."""
        return any(0 <= at_ns - changed_ns < SECOND_NS for changed_ns, _ in self._leaders)

    def sound(self, at_ns: int) -> bool:
        """Whether from this event to the next one there is all that it takes to lead."""
        active = self._active(at_ns)
        changes = [member for changed_ns, member in self._leaders if changed_ns <= at_ns]
        if (changes and changes[-1] is None) or any(s.fault in _UNSOUND for s in active):
            return False
        hit = {node for s in active for node in s.nodes}
        gone = {left.node for left in self._left if left.from_ns <= at_ns < left.to_ns}
        return bool(self._nodes - hit - gone)


def _departures(story: Story, end_ns: int) -> Iterator[_Left]:
    """From its exit, or the order to stop, until it is in line."""
    back: dict[str, list[int]] = {}
    for op in story.events("term.campaigning"):
        back.setdefault(op.process, []).append(op.at_ns)
    for op in (*story.events("exit"), *story.events("node.stopping")):
        again = (at for at in back.get(op.process, ()) if at > op.at_ns)
        yield _Left(op.process, op.at_ns, next(again, end_ns))


def progress_after_each_heal(story: Story) -> Finding:
    """Once the last of the faults about is healed, and none comes, a run begins within TTL and one
    period; counted from when etcd has a leader, and with a drain on top after a restart."""
    began = sorted(op.at_ns for op in story.notes("began"))
    ttl_ns, period_ns = int(planned(story, "ttl_ns")), int(planned(story, "period_ns"))
    faults = spells(story)
    elected = [op.at_ns for op in story.etcd("leader") if op.value["member"] is not None]
    end_ns = story.end_ns
    heals = 0
    for spell in faults:
        from_ns = _ready_ns(spell, elected)
        by_ns = from_ns + ttl_ns + period_ns + TAKES_NS + (ttl_ns if spell.fault in _SLOW else 0)
        crossed = any(
            other.healed_ns >= spell.healed_ns and other.began_ns <= by_ns
            for other in faults
            if other is not spell
        )
        if crossed or by_ns > end_ns:
            continue
        heals += 1
        after = bisect_right(began, spell.healed_ns)
        if after == len(began) or began[after] > by_ns:
            late = f"{(by_ns - spell.healed_ns) / SECOND_NS:.2f} s"
            return no(progress_after_each_heal, f"no run within {late} of the end of {spell.fault}")
    if not heals:
        return unknown(progress_after_each_heal, "no fault was alone")
    return yes(progress_after_each_heal, f"after {heals} heals")


def _ready_ns(spell: Spell, elected: list[int]) -> int:
    if spell.fault.startswith("etcd-"):
        soon = (at for at in elected if spell.began_ns <= at <= spell.healed_ns + 3 * ELECTION_NS)
        return max((*soon, spell.healed_ns)) + ELECTION_NS
    if spell.fault in (Fault.RESTART, Fault.ORDER):
        return spell.healed_ns + DRAIN_NS
    if spell.fault in (Fault.ROLLING_RESTART, Fault.CONFIG_CHANGE):
        return spell.healed_ns + 3 * DRAIN_NS
    return spell.healed_ns


TIMELY: tuple[Check, ...] = (
    deadline_counts_from_the_send,
    gate_opens_after_its_raise,
    a_hand_shuts_the_gate_in_time,
    nothing_runs_past_a_stop,
    what_ended_stays_ended,
    jobs_keep_to_themselves,
    groups_keep_their_bounds,
    a_pause_is_kept,
    failover_in_time,
    progress_after_each_heal,
)
