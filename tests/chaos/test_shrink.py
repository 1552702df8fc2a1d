"""Shrinking, with failures made of plain functions; with real ones it is test_sim_canaries.py's."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest

from chaos import seeds, shrink
from chaos.checks import Finding, Verdict
from chaos.plan import Fault, Move, Plan, Target
from chaos.seeds import Judged
from chaos.shrink import Budget

MOVES = tuple(
    Move(n * 50_000, Fault.CUT, Target.LEADER, for_ms=10_000, amount=n) for n in range(1, 10)
)
WHOLE = Plan(7, 600_000, moves=MOVES)


def amounts(plan: Plan) -> list[int]:
    """Which of the moves those are, whenever they come."""
    return [move.amount for move in plan.moves]


def takes(needed: int, luck: int) -> shrink.Fails:
    """That move, and all the others or that luck."""
    return lambda tried: (
        needed in amounts(tried) and (tried.luck == luck or len(tried.moves) == len(MOVES))
    )


def test_shrinking_ends_with_the_faults_that_matter() -> None:
    found = shrink.shrink(WHOLE, lambda tried: {2, 9} <= set(amounts(tried)))
    assert amounts(found.plan) == [2, 9]
    assert all(move.for_ms < 2 * shrink.SHORTEST_MS for move in found.plan.moves)
    assert not found.spent
    with pytest.raises(ValueError, match="does not fail"):
        shrink.shrink(found.plan, lambda _: False)


def test_the_faults_are_drawn_together_and_the_run_ends_after_the_last_one() -> None:
    blows = WHOLE.having(replace(move, for_ms=0) for move in MOVES)
    found = shrink.shrink(blows, lambda tried: {2, 9} <= set(amounts(tried))).plan
    after_ms = shrink.AFTER_MS
    assert [move.at_ms for move in found.moves] == [after_ms, 2 * after_ms]
    assert found.time_ms == 3 * after_ms


def test_faults_at_once_stay_at_once_when_they_are_drawn_together() -> None:
    at_once = (MOVES[3], replace(MOVES[4], at_ms=MOVES[3].at_ms + 7))
    found = shrink.shrink(WHOLE.having((*MOVES[:3], *at_once)), lambda tried: len(tried.moves) >= 2)
    assert len(found.plan.moves) == 2
    one = shrink.shrink(WHOLE.having(at_once), lambda tried: len(tried.moves) == 2).plan
    assert one.moves[1].at_ms - one.moves[0].at_ms == 7


@pytest.mark.parametrize("needed", [1, 5, 9], ids=["the-first", "one-amid", "the-last"])
def test_a_failure_that_takes_luck_shrinks_to_the_fault_that_it_takes_too(needed: int) -> None:
    found = shrink.shrink(WHOLE, takes(needed, luck=3))
    assert (amounts(found.plan), found.plan.luck) == ([needed], 3)


def test_a_failure_that_takes_no_luck_keeps_the_plans_own() -> None:
    """Although it would have done with fewer faults: five are few enough."""
    few = {1, 2, 3, 4, 5}
    found = shrink.shrink(WHOLE, lambda tried: bool(tried.luck) or few <= set(amounts(tried)))
    assert (set(amounts(found.plan)), found.plan.luck) == (few, 0)


def test_the_same_plan_shrinks_to_the_same_one() -> None:
    timeless = Budget(clock=lambda: 0.0)
    one, other = (shrink.shrink(WHOLE, takes(5, luck=20), timeless) for _ in range(2))
    assert one == other
    assert one.plan.luck == 20


def test_no_plan_is_tried_twice() -> None:
    tried: list[Plan] = []

    def fails(plan: Plan) -> bool:
        tried.append(plan)
        return takes(5, luck=3)(plan)

    found = shrink.shrink(WHOLE, fails)
    assert len(tried) == len(set(tried)) == found.tries


def test_tries_end_with_their_budget() -> None:
    found = shrink.shrink(WHOLE, takes(1, luck=-1), Budget(tries=200))
    assert (found.tries, found.spent) == (200, True)
    assert amounts(found.plan) == amounts(WHOLE)


def test_the_smallest_plan_so_far_is_told_when_time_is_up() -> None:
    passed: Iterator[int] = iter(range(10_000))
    found = shrink.shrink(WHOLE, takes(9, luck=999), Budget(clock=lambda: next(passed)))
    assert found.spent
    assert found.tries < 120 <= found.took_s
    assert amounts(found.plan) == amounts(WHOLE)


@pytest.mark.parametrize(
    ("broken", "same"),
    [
        (("never_two_gates",), True),
        (("never_two_gates", "ticks_in_peace"), True),
        (("no_node_falls_over", "never_two_gates"), False),
        (("ticks_in_peace",), False),
        ((), False),
    ],
)
def test_a_plan_fails_as_another_if_it_breaks_the_same_law_first(
    broken: tuple[str, ...], same: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    findings = tuple(Finding(law, Verdict.NO, "") for law in broken)
    monkeypatch.setattr(seeds, "judged", lambda tried: Judged(tried, findings))
    assert seeds.breaks_first("never_two_gates")(WHOLE) is same
