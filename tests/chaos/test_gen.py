"""Plans: from a seed, the same for ever; saved and read back; no fault where none may be."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from chaos import gen, plan
from chaos.gen import Draws
from chaos.plan import Fault

FIRST = [602, 86, 851, 384]


def test_draws_are_the_same_on_every_python() -> None:
    draws = Draws(7)
    assert [draws.below(1000) for _ in range(4)] == FIRST
    assert Draws(7, 1).bits() != Draws(7, 2).bits()


def test_a_seed_makes_one_plan_and_another_seed_another() -> None:
    assert gen.plan(3, 600_000) == gen.plan(3, 600_000)
    assert gen.plan(3, 600_000).moves != gen.plan(4, 600_000).moves


def test_a_plan_is_read_back_as_it_was_saved(tmp_path: Path) -> None:
    made = gen.plan(5, 600_000)
    plan.save(made, tmp_path / "plan.json")
    assert plan.load(tmp_path / "plan.json") == made


def test_the_luck_of_a_plan_is_saved_and_shown_if_it_has_any(tmp_path: Path) -> None:
    made, path = gen.plan(5, 600_000), tmp_path / "plan.json"
    plan.save(made, path)
    assert "luck" not in path.read_text() + plan.show(made)
    plan.save(replace(made, luck=3), path)
    assert plan.load(path) == replace(made, luck=3)
    assert "luck 3" in plan.show(plan.load(path))


def test_faults_come_in_order_after_the_start_and_are_healed_before_the_end() -> None:
    for seed in range(50):
        moves = gen.plan(seed, 600_000).moves
        assert moves
        assert [m.at_ms for m in moves] == sorted(m.at_ms for m in moves)
        assert all(m.at_ms >= gen.QUIET_MS and m.end_ms <= 540_000 for m in moves)


def test_what_a_world_cannot_do_is_not_drawn() -> None:
    made = gen.plan(5, 600_000, can=lambda fault: fault is Fault.CUT)
    assert {move.fault for move in made.moves} == {Fault.CUT}
    assert gen.plan(5, 600_000, can=lambda _: False).moves == ()


def test_every_kind_is_drawn_within_a_few_hundred_seeds() -> None:
    drawn = {move.fault for seed in range(300) for move in gen.plan(seed, 600_000).moves}
    assert drawn == {kind.fault for kind in gen.KINDS}


def test_a_plan_is_shown_a_line_a_fault() -> None:
    made = gen.plan(5, 600_000)
    first, *rest = plan.show(made).splitlines()
    assert first.startswith("seed 5: 600 s, 3 nodes")
    assert len(rest) == len(made.moves)
    assert made.moves[0].fault in rest[0]
