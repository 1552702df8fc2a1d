"""Many seeds in the simulator, on all processors; and one plan, judged."""

from __future__ import annotations

import os
import traceback
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path

from chaos import checks, gen, op, plan
from chaos.checks import Finding, Verdict
from chaos.laws import LAWS
from chaos.plan import Plan
from chaos.timely import TIMELY
from chaos.worlds.sim.world import CAN, World


@dataclass(frozen=True, slots=True)
class Judged:
    """What became of one plan."""

    plan: Plan
    findings: tuple[Finding, ...]

    @property
    def verdict(self) -> Verdict:
        return checks.verdict(self.findings)

    @property
    def broken(self) -> frozenset[str]:
        """The laws that were."""
        return frozenset(f.check for f in self.findings if f.verdict is Verdict.NO)

    @property
    def first_broken(self) -> str | None:
        """In the order of the laws."""
        return next((f.check for f in self.findings if f.verdict is Verdict.NO), None)


def plan_of(seed: int, time_ms: int) -> Plan:
    """The plan that the simulator plays for this seed."""
    return gen.plan(seed, time_ms, can=CAN.__contains__)


def play(made: Plan) -> tuple[tuple[op.Op, ...], Judged]:
    """The history and the judgement. That a node fell over is a law broken, too."""
    world = World(made)
    try:
        world.run()
    except Exception:  # whatever a part of cron_leader raises is the finding
        text = traceback.format_exc().strip().rpartition("\n")[2]
        fell = Finding("no_node_falls_over", Verdict.NO, text)
        return tuple(world.ops), Judged(made, (fell,))
    ops = tuple(world.ops)
    return ops, Judged(made, checks.judge(ops, (*LAWS, *TIMELY)))


def judged(made: Plan) -> Judged:
    return play(made)[1]


def run(plans: Sequence[Plan], *, processes: int | None = None) -> Iterator[Judged]:
    """In the order of the plans. processes None: one a processor."""
    count = processes or os.cpu_count() or 1
    if count == 1 or len(plans) == 1:
        yield from map(judged, plans)
        return
    with get_context("spawn").Pool(count) as pool:
        yield from pool.imap(judged, plans, chunksize=4)


def keep(made: Plan, folder: Path) -> Judged:
    """Play it and leave plan.json and history.jsonl in the folder."""
    folder.mkdir(parents=True, exist_ok=True)
    ops, verdict = play(made)
    plan.save(made, folder / "plan.json")
    op.save(ops, folder / "history.jsonl")
    return verdict
