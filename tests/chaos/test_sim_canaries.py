"""Each defect of the simulator breaks its law at the seed of the track record."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from chaos.seeds import Judged
from chaos.worlds.sim.canaries import SIM_CANARIES, proven

CHANGED = "the sim has changed: `python -m chaos canary --world sim --record`, then `--list`"
KNOWN = [name for name, canary in SIM_CANARIES.items() if canary.seed is not None]


@pytest.fixture(scope="module")
def found() -> Mapping[str, Judged | None]:
    """What became of each at its seed; all of them in a few processes, forked one by one."""
    return dict(proven(KNOWN))


@pytest.mark.parametrize("name", KNOWN)
def test_a_defect_breaks_its_law_at_the_seed_of_the_track_record(
    name: str, found: Mapping[str, Judged | None]
) -> None:
    judged = found[name]
    assert judged is not None
    assert SIM_CANARIES[name].law in judged.broken, CHANGED
