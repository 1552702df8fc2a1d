"""Each defect of the simulator breaks its law at the seed of the track record."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from chaos import seeds, shrink
from chaos.__main__ import main
from chaos.plan import Plan
from chaos.seeds import Judged
from chaos.worlds.sim.canaries import SIM_CANARIES, apart, proven

CHANGED = "the sim has changed: `python -m chaos canary --world sim --record`, then `--list`"


@pytest.fixture(scope="module")
def found() -> Mapping[str, Judged | None]:
    """What became of each at its seed; all of them in a few processes, forked one by one."""
    return dict(proven(SIM_CANARIES))


def least(name: str) -> tuple[Plan, Plan]:
    """The plan that shows a defect, minutes longer than it need be, and what it shrinks to."""
    canary = SIM_CANARIES[name]
    canary.arm()
    whole = seeds.cut_short(canary.plan_of(canary.seed or 0), 240_000)
    broken = seeds.judged(whole).broken
    return whole, shrink.shrink(whole, lambda tried: bool(seeds.judged(tried).broken & broken))


def test_a_failing_plan_shrinks_to_the_one_fault_that_matters() -> None:
    ((whole, found),) = apart(least, ["no-last-check"])
    assert len(found.moves) == 1 < len(whole.moves), CHANGED
    assert found.time_ms < whole.time_ms


@pytest.mark.parametrize("name", SIM_CANARIES)
def test_a_defect_breaks_its_law_at_the_seed_of_the_track_record(
    name: str, found: Mapping[str, Judged | None]
) -> None:
    judged = found[name]
    assert judged is not None
    assert SIM_CANARIES[name].law in judged.broken, CHANGED


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (["run", "--world", "sim", "--canary", "no-fence"], "canary NAME --world sim"),
        (["run", "--world", "proc", "--canary", "revoked-at-hang-up"], "for the supervisor"),
        (["run", "lease-stall", "--canary", "revoked-at-hang-up"], "for the supervisor"),
        (["cuts", "--canary", "revoked-at-hang-up"], "for the supervisor"),
    ],
)
def test_a_run_whose_defect_would_not_be_built_in_is_refused(
    words: list[str], why: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as left:
        main(words)
    assert left.value.code == 2
    assert why in capsys.readouterr().err
