"""Cuts in a row: the leader loses etcd both ways, each time at another moment between two renewals.

A fleet that holds its gate by timers fails at some moments and not at others, so one cut says
little. Counted is what must not happen: a cut during which two gates stood open, and a run started
under a term that was over. What else broke a promise is named.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from itertools import combinations
from pathlib import Path

from chaos import checks
from chaos.canaries import launcher
from chaos.checks import Verdict
from chaos.faults import CutBothWays
from chaos.op import History, OneClock, Op, Source, Type, save
from chaos.run import Lead, NotSteady, Stage
from chaos.story import SECOND_NS, Plan, Story
from chaos.workloads import HELD, TICK
from chaos.worlds.netns import Netns, Setting
from chaos.worlds.nodes import sound
from chaos.worlds.services import CLIENT_PORT

EVERY_MS = 200
"""Short, for a deposed leader to have something to start at any time."""
SUCCEEDED_S = 10.0
"""Beyond two TTLs: a cut without a successor breaks the series off."""
RESTED = 10
"""Runs of the interval job, two seconds of them, before the nodes are stopped."""
TALLY = "tally.json"


@dataclass(frozen=True, slots=True)
class Series:
    """count: of cuts. election_ms: etcd's election timeout. canary: a defect to build in."""

    count: int
    ttl_s: int
    election_ms: int
    canary: str | None
    out: Path


@dataclass(frozen=True, slots=True)
class Tally:
    """cuts: that bit. broken: checks that said NO of the whole history, and why."""

    cuts: int
    two_gates: int
    stale_runs: int
    broken: tuple[str, ...]

    @property
    def clean(self) -> bool:
        return not (self.two_gates or self.stale_runs or self.broken)


def play(series: Series) -> Tally:
    """All cuts in one world, and what came of them; it is left in series.out as well. Inside
    `contain`. Raises NotSteady, NotHere, OSError if the series could not be played to its end."""
    history, clock = History(), OneClock()
    try:
        plan = Plan("cuts", series.ttl_s * SECOND_NS, EVERY_MS * 1_000_000, TICK, HELD)
        history.add(Op(clock.now_ns(), Source.PLAN, "harness", "plan", value=asdict(plan)))
        with Netns(_setting(series), history, clock) as world:
            stage = Stage(world)
            lead = stage.steady()
            for number in range(series.count):
                lead = _cut(stage, series, lead, number)
            _come_to_rest(stage)
            world.stop_nodes(last=lead.node)
    finally:
        save(history.ops(), series.out / "history.jsonl")
    tally = count(history.ops())
    (series.out / TALLY).write_text(json.dumps(asdict(tally)) + "\n", encoding="utf-8")
    return tally


def _setting(series: Series) -> Setting:
    launch = launcher(series.canary) if series.canary else sound
    return Setting(series.out, series.ttl_s, launch, series.election_ms, EVERY_MS)


def _cut(stage: Stage, series: Series, lead: Lead, number: int) -> Lead:
    """One cut, for 1.5 TTL and until another leads, then healed; the leader after it."""
    _to_the_moment(stage, series, lead, number)
    with stage.under(CutBothWays(stage.world.host_of(lead.node), CLIENT_PORT), lead) as began_ns:
        opened = stage.history.wait(
            lambda op: op.f == "gate.opened" and op.value["fence"] > lead.fence,
            within_s=2 * series.ttl_s + SUCCEEDED_S,
            after_ns=began_ns,
        )
        stage.pass_until(began_ns + series.ttl_s * SECOND_NS * 3 // 2)
    if opened is None:
        raise NotSteady(f"cut {number}: nobody succeeded {lead.node}")
    stage.history.wait(
        lambda op: op.source is Source.ETCD and (op.f, op.process) == ("put", lead.node),
        within_s=SUCCEEDED_S,
        after_ns=began_ns,
    )
    return Lead(opened.process, opened.value["fence"])


def _come_to_rest(stage: Stage) -> None:
    """Runs that wait for leave to end get it, and slots that wait for them are run."""
    stage.world.release()
    stage.history.wait(
        lambda op: op.f == "run.finished" and op.value["job"] == TICK,
        within_s=SUCCEEDED_S,
        after_ns=stage.clock.now_ns(),
        count=RESTED,
    )


def _to_the_moment(stage: Stage, series: Series, lead: Lead, number: int) -> None:
    """The moments are spread evenly over the time between two renewals, TTL / 3."""
    renewed = stage.history.wait(
        lambda op: (op.f, op.process) == ("lease.renewed", lead.node),
        within_s=series.ttl_s,
        after_ns=stage.clock.now_ns(),
    )
    if renewed is None:
        raise NotSteady(f"cut {number}: {lead.node} does not renew its lease any more")
    stage.pass_until(renewed.at_ns + series.ttl_s * SECOND_NS // 3 * number // series.count)


# ------------------------------------------------------------------ what came of it


def count(ops: Sequence[Op]) -> Tally:
    """Of a history with any number of cuts in it."""
    story = Story(ops)
    cuts = _began(ops)
    bit = [op for op in ops if (op.f, op.type) == ("heal", Type.OK) and op.value["packets"] > 0]
    return Tally(
        cuts=len(bit),
        two_gates=len({_cut_before(at_ns, cuts) for at_ns in _both_open(story)}),
        stale_runs=_stale_runs(story),
        broken=tuple(_broken(story)),
    )


def _began(ops: Sequence[Op]) -> list[int]:
    return [op.at_ns for op in ops if (op.f, op.type) == ("inject", Type.INVOKE)]


def _both_open(story: Story) -> list[int]:
    """When a gate opened while another stood open."""
    return [
        other.opened_ns
        for one, other in combinations(story.gates(), 2)
        if one.open_at(other.opened_ns)
    ]


def _cut_before(at_ns: int, cuts: Sequence[int]) -> int:
    return sum(began_ns <= at_ns for began_ns in cuts)


def _stale_runs(story: Story) -> int:
    """Runs that began, by their node's word, once a newer term's gate had opened."""
    gates = story.gates()
    return sum(
        any(gate.fence > start.fence and gate.opened_ns <= start.at_ns for gate in gates)
        for start in story.starts()
        if not start.own
    )


_PROMISES = (
    checks.one_row_per_slot,
    checks.fence_never_falls,
    checks.no_stale_write_accepted,
)


def _broken(story: Story) -> list[str]:
    """Of TICK each slot must be explained, up to the last ones, put back when the last node was
    stopped; slots of the other jobs may wait for a run without an end."""
    ticks = Story([op for op in story.ops if op.f != "slot" or _is_settled_tick(op)])
    found = [*(check(story) for check in _PROMISES), checks.every_slot_explained(ticks)]
    return [f"{f.check}: {f.text}" for f in found if f.verdict is Verdict.NO]


def _is_settled_tick(row: Op) -> bool:
    return bool(row.value["job"] == TICK and row.value["state"] != "due")
