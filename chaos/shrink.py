"""Fewer faults, the same failure: delta debugging over the moves of a plan.

Deterministic worlds only: a plan is tried once. Zeller's ddmin first, which ends with a plan of
which no single move can be left out under the plan's own luck. Without a move the world draws
everything later anew (delays, drops, orders), so that a failure which takes luck, too, is gone with
whichever move is left out. Only while more than MOST moves are left are smaller plans therefore
tried under other lucks, for as long as the budget lasts. Then the faults are drawn together, and
each is made shorter, while the plan still fails.

The result is the same on any machine, unless time runs out.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from itertools import count

from chaos.plan import Move, Plan

Fails = Callable[[Plan], bool]
"""Whether the plan shows the failure that is looked for."""

MOST = 5
"""No more moves than a reader keeps in mind at once."""
SHORTEST_MS = 250
AFTER_MS = 20_000
"""From one fault to the next, once they are drawn together, and from the last one to the end."""
TURN_MS = 480_000
"""How long the last few moves are tried each turn, in virtual time: under eight lucks, if a minute
is enough for them."""


@dataclass(frozen=True, slots=True)
class Budget:
    """Whichever is used up first. clock: seconds, of any zero."""

    tries: int = 5_000
    within_s: float = 120.0
    clock: Callable[[], float] = time.monotonic


@dataclass(frozen=True, slots=True)
class Shrunk:
    """The smallest plan found. spent: the budget was, and a smaller one may be left."""

    plan: Plan
    tries: int
    took_s: float
    spent: bool


class _Tries:
    """The failure that is looked for, within a budget: once that is spent, nothing fails. No plan
    is tried twice."""

    def __init__(self, fails: Fails, budget: Budget) -> None:
        self._fails, self._budget = fails, budget
        self._began_s = budget.clock()
        self._known: dict[Plan, bool] = {}

    def __call__(self, plan: Plan) -> bool:
        if plan not in self._known:
            if self.spent:
                return False
            self._known[plan] = self._fails(plan)
        return self._known[plan]

    @property
    def made(self) -> int:
        return len(self._known)

    @property
    def took_s(self) -> float:
        return self._budget.clock() - self._began_s

    @property
    def spent(self) -> bool:
        return self.made >= self._budget.tries or self.took_s >= self._budget.within_s


def shrink(plan: Plan, fails: Fails, budget: Budget | None = None) -> Shrunk:
    """Raises ValueError if the plan as it is does not fail."""
    tries = _Tries(fails, budget or Budget())
    if not tries(plan):
        raise ValueError("this plan does not fail")
    least = _ended_early(_fewest(plan, tries), tries)
    least = _shortest(_sooner(_by_luck(least, tries), tries), tries)
    return Shrunk(least, tries.made, tries.took_s, tries.spent)


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


# ------------------------------------------------------------------ luck


def _by_luck(plan: Plan, tries: _Tries) -> Plan:
    """Smaller plans by turns, each turn under lucks not tried yet, while more than MOST moves are
    left."""
    turns = count()
    while len(plan.moves) > MOST and not tries.spent:
        turn = next(turns)
        lucky = next(filter(tries, _turn(plan, turn)), None)
        if lucky is not None:
            plan, turns = _fewest(lucky, tries), count()
    return plan


def _turn(plan: Plan, turn: int) -> Iterator[Plan]:
    """The last few moves alone, under lucks not tried yet: what came after the failure is left out
    already, and what made it came mostly just before. Then all but one, another one each turn: a
    move long ago may have left something behind."""
    for few in range(1, MOST + 1):
        last = _drawn_together(plan.having(plan.moves[-few:]))
        lucks = max(1, TURN_MS // max(1, last.time_ms))
        yield from _under(last, plan.luck, *range(turn * lucks, (turn + 1) * lucks))
    nth, luck = turn % len(plan.moves), turn // len(plan.moves)
    rest = plan.having((*plan.moves[:nth], *plan.moves[nth + 1 :]))
    yield from _under(_drawn_together(rest), plan.luck, luck)


def _under(plan: Plan, *lucks: int) -> Iterator[Plan]:
    return (replace(plan, luck=luck) for luck in lucks)


# ------------------------------------------------------------------ time


def _ended_early(plan: Plan, fails: Fails) -> Plan:
    """No longer than the last fault needs."""
    return _if_it_fails(_cut_off(plan), plan, fails)


def _sooner(plan: Plan, fails: Fails) -> Plan:
    return _if_it_fails(_drawn_together(plan), plan, fails)


def _if_it_fails(other: Plan, plan: Plan, fails: Fails) -> Plan:
    return other if other != plan and fails(other) else plan


def _cut_off(plan: Plan) -> Plan:
    last_ms = max((move.end_ms for move in plan.moves), default=0)
    return replace(plan, time_ms=min(plan.time_ms, last_ms + AFTER_MS))


def _drawn_together(plan: Plan) -> Plan:
    """No longer without any fault than AFTER_MS, neither before the first nor after the last."""
    return _cut_off(plan.having(_nearer(plan.moves)))


def _nearer(moves: Iterable[Move]) -> Iterator[Move]:
    sooner_ms = busy_ms = 0
    for move in moves:
        sooner_ms += max(0, move.at_ms - sooner_ms - busy_ms - AFTER_MS)
        nearer = replace(move, at_ms=move.at_ms - sooner_ms)
        busy_ms = max(busy_ms, nearer.end_ms)
        yield nearer


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
