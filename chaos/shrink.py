"""Fewer faults, the same failure: delta debugging over the moves of a plan.

Deterministic worlds only: a plan is tried once. Zeller's ddmin, which ends with a plan of which no
single move can be left out; then each fault is made shorter while it still fails.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from chaos.plan import Move, Plan

Fails = Callable[[Plan], bool]
"""Whether the plan shows the failure that is looked for."""

SHORTEST_MS = 250


def shrink(plan: Plan, fails: Fails) -> Plan:
    """The smallest plan found; raises ValueError if the plan as it is does not fail."""
    if not fails(plan):
        raise ValueError("this plan does not fail")
    fewest = _fewest(plan, fails)
    return _shortest(_ended_early(fewest, fails), fails)


def _fewest(plan: Plan, fails: Fails) -> Plan:
    moves, parts = list(plan.moves), 2
    while len(moves) >= 2:
        size = -(-len(moves) // parts)
        for start in range(0, len(moves), size):
            left = moves[:start] + moves[start + size :]
            if fails(plan.having(left)):
                moves, parts = left, max(parts - 1, 2)
                break
        else:
            if size == 1:
                break
            parts = min(2 * parts, len(moves))
    if moves and fails(plan.having(())):
        moves = []
    return plan.having(moves)


def _ended_early(plan: Plan, fails: Fails) -> Plan:
    """No longer than the last fault needs."""
    last_ms = max((move.end_ms for move in plan.moves), default=0)
    early = replace(plan, time_ms=min(plan.time_ms, last_ms + 30_000))
    return early if early != plan and fails(early) else plan


def _shortest(plan: Plan, fails: Fails) -> Plan:
    for n, move in enumerate(plan.moves):
        while move.for_ms // 2 >= SHORTEST_MS:
            shorter = _with(plan, n, replace(move, for_ms=move.for_ms // 2))
            if not fails(shorter):
                break
            plan, move = shorter, shorter.moves[n]
    return plan


def _with(plan: Plan, n: int, move: Move) -> Plan:
    return plan.having((*plan.moves[:n], move, *plan.moves[n + 1 :]))
