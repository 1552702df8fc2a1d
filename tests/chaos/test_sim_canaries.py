"""Each defect of the simulator breaks its law at the seed of the track record."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import redirect_stdout
from io import StringIO
from pathlib import Path

import pytest

from chaos import plan, seeds
from chaos.__main__ import main
from chaos.plan import Plan
from chaos.seeds import Judged
from chaos.worlds.sim.canaries import SIM_CANARIES, apart, proven

CHANGED = "the sim has changed: `python -m chaos canary --world sim --record`, then `--list`"
AGAIN = ("--world", "sim", "--out")


@pytest.fixture(scope="module")
def found() -> Mapping[str, Judged | None]:
    """What became of each at its seed; all of them in a few processes, forked one by one."""
    return dict(proven(SIM_CANARIES))


def shrunk(asked: tuple[str, Path]) -> tuple[Plan, str]:
    """The plan that shows a defect, minutes longer than it need be, and what is told of it."""
    name, folder = asked
    canary = SIM_CANARIES[name]
    canary.arm()
    whole = seeds.cut_short(canary.plan_of(canary.seed or 0), 240_000)
    plan.save(whole, folder / "plan.json")
    with redirect_stdout(StringIO()) as said:
        assert main(["shrink", str(folder)]) == 0
        assert main(["run", "--plan", str(folder / "shrunk" / "plan.json"), *AGAIN, str(folder)])
    return whole, said.getvalue()


def test_a_failing_plan_shrinks_to_the_one_fault_that_matters(tmp_path: Path) -> None:
    ((whole, said),) = apart(shrunk, [("no-last-check", tmp_path)])
    found = plan.load(tmp_path / "shrunk" / "plan.json")
    assert len(found.moves) == 1 < len(whole.moves), CHANGED
    assert found.time_ms < whole.time_ms
    assert f"1 of {len(whole.moves)} faults break never_two_gates" in said
    again = (tmp_path / "history.jsonl").read_bytes()
    assert again == (tmp_path / "shrunk" / "history.jsonl").read_bytes()


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
