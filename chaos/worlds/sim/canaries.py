"""Defects built in on purpose, for the simulator: each must break a law within a few seeds.

Those of the core are the ones of chaos/defects.py, which patch the program itself; the others patch
the model of what the program does outside its core. Each is armed in a process of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from multiprocessing import get_context
from typing import Any

from chaos import defects, seeds
from chaos.seeds import Judged

TIME_MS = 600_000
MOST_SEEDS = 200


@dataclass(frozen=True, slots=True)
class SimCanary:
    """seed: the first that shows it; law: one that it breaks there."""

    name: str
    arm: Callable[[], None]
    seed: int
    law: str

    @property
    def breaks(self) -> str:
        """What the defect is, in a line."""
        return (self.arm.__doc__ or "").strip().partition("\n")[0]


# ------------------------------------------------------------------ defects of the modelled parts


def no_last_check() -> None:
    """A candidate leads on one word of its watch, without another look at the line."""
    from chaos.worlds.sim.candidacy import Candidacy

    _patch(Candidacy, "trusts_watch", lambda _: True)


def no_fence() -> None:
    """The ledger's guard lets every write through."""
    from chaos.worlds.sim.ledger import ModelLedger

    _patch(ModelLedger, "guard", lambda *_: True)


def lost_commit_trusted() -> None:
    """A claim whose answer is lost counts as won."""
    from chaos.worlds.sim.scribe import Scribe
    from cron_leader.core import messages as m
    from cron_leader.core.model import Taken

    insist = Scribe._insist

    def trusting(scribe: Any, effect: Any) -> Any:
        if not isinstance(effect, m.Take):
            yield from insist(scribe, effect)
            return
        sent_ns = scribe._daemon.boot_ns()
        answer = yield scribe._send(scribe._ask(effect), first=True)
        if answer is None:
            won = {claim.run_id: (claim.seen or 0) + 1 for claim in effect.batch.claims}
            answer = Taken(won)
        scribe._daemon.post(scribe._told(effect, answer, sent_ns))

    _patch(Scribe, "_insist", trusting)


def slots_forgotten() -> None:
    """A new leader goes on from its own now, not from planned_to."""
    from cron_leader.core import node, takeover

    def from_now_on(jobs: Any, past: Any, now: Any) -> Any:
        return takeover.settle(jobs, replace(past, planned_to=None), now)

    _patch(node, "settle", from_now_on)


def _patch(owner: Any, name: str, by: Any) -> None:
    """Raises AttributeError if the code has moved on."""
    getattr(owner, name)
    setattr(owner, name, by)


_ALL = (
    SimCanary("deadline-ignored", defects.deadline_ignored, 4, "never_two_gates"),
    SimCanary("no-last-check", no_last_check, 0, "never_two_gates"),
    SimCanary("no-fence", no_fence, 1, "no_stale_write_accepted"),
    SimCanary("lost-runs-live", defects.lost_runs_live, 1, "lost_runs_end_in_time"),
    SimCanary("lost-commit-trusted", lost_commit_trusted, 0, "every_slot_explained"),
    SimCanary(
        "planned-past-unanswered", defects.planned_past_unanswered, 0, "every_slot_explained"
    ),
    SimCanary("slots-forgotten", slots_forgotten, 0, "every_slot_explained"),
)
SIM_CANARIES = {canary.name: canary for canary in _ALL}


def first_seed(name: str, *, most: int = MOST_SEEDS, since: int = 0) -> Judged | None:
    """The first plan, from `since` on, in which the defect breaks a law; None: it does not show."""
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as apart:
        return apart.submit(_search, name, since, most).result()


def _search(name: str, since: int, most: int) -> Judged | None:
    SIM_CANARIES[name].arm()
    for seed in range(since, since + most):
        judged = seeds.judged(seeds.plan_of(seed, TIME_MS))
        if judged.broken:
            return judged
    return None


def table() -> Iterator[str]:
    """The track record, as Markdown."""
    yield "| canary | what is broken | seed | the law it breaks there |"
    yield "|---|---|---|---|"
    for c in _ALL:
        yield f"| {c.name} | {c.breaks} | {c.seed} | {c.law} |"
