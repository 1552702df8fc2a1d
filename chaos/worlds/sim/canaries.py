"""Defects built in on purpose, for the simulator: each must break a law within a few seeds.

Those of the core are the ones of chaos/defects.py, which patch the program itself; the others patch
the model of what the program does outside its core. Each is armed in a process of its own, which a
server forks that has everything loaded. Which seed shows each first is kept in a file beside this
one, written by `python -m chaos canary --world sim --record`.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path

from chaos import defects, seeds
from chaos.seeds import Judged
from chaos.worlds.sim import defects as sim

TIME_MS = 240_000
MOST_SEEDS = 200
RECORD = Path(__file__).with_name("track_record.json")


@dataclass(frozen=True, slots=True)
class SimCanary:
    """seed: the first that shows it; law: one that it breaks there; None: not recorded yet."""

    name: str
    arm: Callable[[], None]
    seed: int | None = None
    law: str | None = None

    @property
    def breaks(self) -> str:
        """What the defect is, in a line."""
        return (self.arm.__doc__ or "").strip().partition("\n")[0]


_ARMS: tuple[Callable[[], None], ...] = (
    # -- the deadline and the gate
    sim.deadline_from_receipt,
    defects.deadline_ignored,
    defects.gate_ignored,
    sim.polled_flag,
    defects.silence_shuts_nothing,
    defects.cut_unnoticed,
    sim.gate_without_raise,
    defects.older_nonce_heard,
    # -- etcd
    sim.no_last_check,
    sim.no_hasleader,
    # -- runs, and leaving
    defects.lost_runs_live,
    defects.key_before_gate,
    defects.key_before_runs,
    defects.resign_before_run,
    sim.past_deadline_started,
    defects.put_back_after_go,
    sim.supervisor_misses_deadline,
    sim.revoked_before_runs,
    defects.group_unbounded,
    # -- the ledger
    sim.no_fence,
    sim.row_guard_only,
    sim.guard_without_lock,
    sim.raise_ends_nobody,
    sim.raise_takes_equal,
    sim.guard_without_nonce,
    sim.lost_commit_trusted,
    sim.claim_without_state,
    sim.attempt_kept,
    # -- the takeover
    sim.sweep_without_state,
    sim.slots_read_early,
    sim.slots_read_early_and_stateless,
    defects.planned_past_unanswered,
    defects.mark_in_memory,
    sim.loss_covered_up,
    sim.lost_slots_rerun,
    # -- orders
    sim.order_carried_out_late,
    sim.pause_forgotten,
)


def _canaries() -> Iterator[SimCanary]:
    known = json.loads(RECORD.read_text(encoding="utf-8")) if RECORD.exists() else {}
    for arm in _ARMS:
        name = arm.__name__.replace("_", "-")
        yield SimCanary(name, arm, *known.get(name, (None, None)))


SIM_CANARIES = {canary.name: canary for canary in _canaries()}


def first_seeds(
    names: Iterable[str], *, most: int = MOST_SEEDS, since: dict[str, int] | None = None
) -> Iterator[tuple[str, Judged | None]]:
    """Of each the first plan, from `since` on, in which it breaks a law; None: it does not show."""
    asked = [(name, (since or {}).get(name, 0), most) for name in names]
    context = get_context("forkserver")
    context.set_forkserver_preload([__name__])
    with context.Pool(os.cpu_count(), maxtasksperchild=1) as pool:
        yield from pool.imap(_search, asked, chunksize=1)


def _search(asked: tuple[str, int, int]) -> tuple[str, Judged | None]:
    name, since, most = asked
    SIM_CANARIES[name].arm()
    for seed in range(since, since + most):
        judged = seeds.judged(seeds.plan_of(seed, TIME_MS))
        if judged.broken:
            return name, judged
    return name, None


def record(found: Iterable[tuple[str, Judged | None]]) -> None:
    """Keep what was found; what was not searched for stays as it is."""
    kept = {name: (canary.seed, canary.law) for name, canary in SIM_CANARIES.items()}
    for name, judged in found:
        if judged is not None:
            kept[name] = judged.plan.seed, judged.first_broken
    lines = (f"{json.dumps(name)}: {json.dumps(kept[name])}" for name in SIM_CANARIES)
    RECORD.write_text("{\n" + ",\n".join(lines) + "\n}\n", encoding="utf-8")
