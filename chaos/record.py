"""The track record: each defect built in, and what says NO to it in which world. As Markdown."""

from __future__ import annotations

from collections.abc import Iterator

from chaos.canaries import CANARIES, Canary
from chaos.worlds.sim.canaries import SIM_CANARIES, SimCanary


def table() -> Iterator[str]:
    """A line a canary, those of real nodes first."""
    yield "| canary | what is broken | the tests that fail | world: the check that says NO |"
    yield "|---|---|---|---|"
    for name, canary in CANARIES.items():
        yield _row(name, canary.breaks, _tests(canary), _checks(canary, SIM_CANARIES.get(name)))
    for name, only in SIM_CANARIES.items():
        if name not in CANARIES:
            yield _row(name, only.breaks, "", _checks(None, only))


def _row(*cells: str) -> str:
    return f"| {' | '.join(cells)} |".replace("|  |", "| |")


def _tests(canary: Canary) -> str:
    parted = (test.partition("::") for test in canary.tests)
    return ", ".join(f"`{file}` `{name}`" for file, _, name in parted)


def _checks(canary: Canary | None, simulated: SimCanary | None) -> str:
    found = []
    if simulated is not None and simulated.seed is not None:
        drawn = f" of {', '.join(simulated.faults)}" if simulated.faults else ""
        found.append(f"sim, seed {simulated.seed}{drawn}: {simulated.law}")
    if canary is not None and canary.scenarios:
        found.append(f"netns, {', '.join(canary.scenarios)}: {canary.red}")
    if canary is not None and canary.law:
        found.append(f"netns, cut-etcd: {canary.law}")
    return "; ".join(found)
