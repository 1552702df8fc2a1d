"""Defects built in on purpose, for the simulator: each must break a law within a few seeds.

Those of the core are the ones of chaos/defects.py, which patch the program itself; the others patch
the model of what the program does outside its core. Each is armed in a process of its own, which a
server forks that has everything loaded. Which seed shows each first is kept in a file beside this
one, written by `python -m chaos canary --world sim --record`.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path
from typing import TypeVar

from chaos import defects, seeds
from chaos.plan import Fault, Plan
from chaos.seeds import Judged
from chaos.worlds.sim import defects as sim
from chaos.worlds.sim.world import CAN

TIME_MS = 600_000
SHORTER_MS = (60_000, 120_000, 180_000, 240_000, 360_000, 480_000, TIME_MS)
"""A run that shows a defect is cut short after one of these."""
MOST_SEEDS = 200
T = TypeVar("T")
R = TypeVar("R")
Found = tuple[str, Judged | None]
RECORD = Path(__file__).with_name("track_record.json")


@dataclass(frozen=True, slots=True)
class SimCanary:
    """faults: of which its plans are drawn, () of all. seed: the first of them that shows it, in a
    run of time_ms already; law: one that it breaks there; None: not recorded yet."""

    name: str
    arm: Callable[[], None]
    faults: tuple[Fault, ...] = ()
    seed: int | None = None
    law: str | None = None
    time_ms: int = TIME_MS

    def again(self) -> Plan:
        """The plan that shows it."""
        return seeds.cut_short(self.plan_of(self.seed or 0), self.time_ms)

    def plan_of(self, seed: int) -> Plan:
        return seeds.plan_of(seed, TIME_MS, self.faults or CAN)

    @property
    def breaks(self) -> str:
        """What the defect is, in a line."""
        return (self.arm.__doc__ or "").strip().partition("\n")[0]


_ALL_FAULTS: tuple[Fault, ...] = ()
_LEADERLESS = (Fault.KILL_NODE, Fault.CUT_ETCD, Fault.FREEZE_DAEMON)
_HANDED_OVER = (Fault.KILL_DAEMON, Fault.KEY_DELETE, Fault.RESTART)
_STALE = (Fault.LEDGER_LATE_COPY, Fault.KEY_DELETE, Fault.FREEZE_NODE)
_UNANSWERED = (Fault.LEDGER_LOST_COMMIT, Fault.LEDGER_LATE_COPY, Fault.CUT_LEDGER)

_ARMS: tuple[tuple[Callable[[], None], tuple[Fault, ...]], ...] = (
    # -- the deadline and the gate
    (sim.deadline_from_receipt, _ALL_FAULTS),
    (defects.deadline_ignored, _ALL_FAULTS),
    (defects.gate_ignored, _ALL_FAULTS),
    (sim.polled_flag, _ALL_FAULTS),
    (defects.silence_shuts_nothing, _ALL_FAULTS),
    (defects.cut_unnoticed, _ALL_FAULTS),
    (sim.gate_without_raise, _ALL_FAULTS),
    (defects.older_nonce_heard, _ALL_FAULTS),
    # -- etcd
    (sim.no_last_check, _ALL_FAULTS),
    (sim.no_hasleader, (Fault.ETCD_ISOLATE, Fault.KILL_DAEMON, Fault.KEY_DELETE)),
    # -- runs, and leaving
    (defects.lost_runs_live, (Fault.CUT_LEDGER, Fault.CLOCK_STEP)),
    (defects.key_before_gate, _ALL_FAULTS),
    (defects.key_before_runs, (Fault.LEDGER_RESTORE,)),
    (defects.resign_before_run, _ALL_FAULTS),
    (sim.revoked_before_runs, (Fault.KILL_DAEMON,)),
    (defects.group_unbounded, _ALL_FAULTS),
    # -- the ledger
    (sim.no_fence, _STALE),
    (sim.row_guard_only, _STALE),
    (sim.guard_without_lock, (Fault.FREEZE_NODE, Fault.KEY_DELETE)),
    (sim.raise_takes_equal, _ALL_FAULTS),
    (sim.no_nonce, (Fault.ETCD_RESTORE, Fault.FREEZE_NODE, Fault.CUT)),
    (sim.lost_commit_trusted, _UNANSWERED),
    (sim.attempt_kept, _ALL_FAULTS),
    # -- the takeover
    (sim.sweep_without_state, _LEADERLESS),
    (sim.slots_read_early, _HANDED_OVER),
    (sim.slots_read_early_and_stateless, _HANDED_OVER),
    (defects.planned_past_unanswered, (*_UNANSWERED, Fault.KILL_DAEMON)),
    (defects.mark_in_memory, _LEADERLESS),
    (sim.loss_covered_up, (Fault.LEDGER_RESTORE,)),
    (sim.lost_slots_rerun, (Fault.LEDGER_RESTORE,)),
)
"""Each with the faults that its plans are drawn from; none: from all."""


def _canaries() -> Iterator[SimCanary]:
    known = json.loads(RECORD.read_text(encoding="utf-8")) if RECORD.exists() else {}
    for arm, faults in _ARMS:
        name = arm.__name__.replace("_", "-")
        yield SimCanary(name, arm, faults, *known.get(name, ()))


SIM_CANARIES = {canary.name: canary for canary in _canaries()}


def first_seeds(
    names: Iterable[str], *, most: int = MOST_SEEDS
) -> Iterator[tuple[str, Judged | None]]:
    """Of each the first seed that breaks a law, its plan cut short; None: it does not show."""
    yield from apart(_search, [(name, most) for name in names])


def proven(names: Iterable[str]) -> Iterator[tuple[str, Judged | None]]:
    """What becomes of each at the seed of the track record."""
    yield from apart(_again, list(names))


def apart(do: Callable[[T], R], asked: Sequence[T]) -> Iterator[R]:
    """Each in a process of its own, forked by a server that has everything loaded."""
    context = get_context("forkserver")
    context.set_forkserver_preload([__name__])
    with context.Pool(os.cpu_count(), maxtasksperchild=1) as pool:
        yield from pool.imap(do, asked, chunksize=1)


def _again(name: str) -> Found:
    canary = SIM_CANARIES[name]
    canary.arm()
    return name, seeds.judged(canary.again())


def _search(asked: tuple[str, int]) -> Found:
    name, most = asked
    canary = SIM_CANARIES[name]
    canary.arm()
    for seed in range(most):
        plan = canary.plan_of(seed)
        if seeds.judged(plan).broken:
            shorter = (seeds.judged(seeds.cut_short(plan, time_ms)) for time_ms in SHORTER_MS)
            return name, next(judged for judged in shorter if judged.broken)
    return name, None


def record(found: Iterable[Found]) -> None:
    """Keep what was found; what was not searched for stays as it is."""
    kept = {name: (c.seed, c.law, c.time_ms) for name, c in SIM_CANARIES.items()}
    for name, judged in found:
        if judged is not None:
            kept[name] = judged.plan.seed, judged.first_broken, judged.plan.time_ms
    lines = (f"{json.dumps(name)}: {json.dumps(kept[name])}" for name in SIM_CANARIES)
    RECORD.write_text("{\n" + ",\n".join(lines) + "\n}\n", encoding="utf-8")
