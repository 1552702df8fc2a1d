"""Many seeds in the simulator, on all processors; and one plan, judged."""

from __future__ import annotations

import gc
import math
import os
import time
import traceback
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from multiprocessing import get_context
from pathlib import Path

from chaos import checks, gen, op, plan
from chaos.checks import Check, Finding, Verdict
from chaos.laws import LAWS
from chaos.plan import Fault, Plan
from chaos.timely import TIMELY
from chaos.worlds.sim.world import CAN, World

ASKED: tuple[Check, ...] = (*LAWS, *TIMELY)
"""What a simulated history is held to."""


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


def plan_of(seed: int, time_ms: int, faults: Collection[Fault] = CAN) -> Plan:
    """The plan that the simulator plays for this seed. faults: those that it is drawn from."""
    return gen.plan(seed, time_ms, can=faults.__contains__)


def cut_short(made: Plan, time_ms: int) -> Plan:
    """The same up to then: what comes later is left out, and draws nothing."""
    return replace(made, time_ms=time_ms, moves=tuple(m for m in made.moves if m.end_ms < time_ms))


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
    return ops, Judged(made, checks.judge(ops, ASKED))


def judged(made: Plan) -> Judged:
    return play(made)[1]


def breaks_first(law: str) -> Callable[[Plan], bool]:
    """Whether a plan fails as one did that broke this law before any other."""
    return lambda tried: judged(tried).first_broken == law


def run(
    plans: Sequence[Plan], *, processes: int | None = None, within_s: float | None = None
) -> Iterator[Judged]:
    """In the order of the plans. processes None: one a processor; within_s: those that are done
    when so much time has passed."""
    ends = math.inf if within_s is None else time.monotonic() + within_s
    count = min(processes or os.cpu_count() or 1, len(plans))
    with ExitStack() as undo:
        found: Iterator[Judged] = map(judged, plans)
        if count > 1:
            pool = undo.enter_context(get_context("spawn").Pool(count, _rarely_collect))
            found = pool.imap(judged, plans)
        for one in found:
            yield one
            if time.monotonic() >= ends:
                return


def _rarely_collect() -> None:
    """A run makes many objects, most of which live as long as it does."""
    gc.freeze()
    gc.set_threshold(200_000, 10, 10)


def keep(made: Plan, folder: Path) -> Judged:
    """Play it and leave plan.json and history.jsonl in the folder."""
    folder.mkdir(parents=True, exist_ok=True)
    ops, verdict = play(made)
    plan.save(made, folder / "plan.json")
    op.save(ops, folder / "history.jsonl")
    return verdict
