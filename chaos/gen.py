"""Makes a plan from a seed, by pure functions: the same seed, the same plan, on any Python.

Draws are integers from a counter hashed (splitmix64): no draw depends on Python's own `random`, on
hashes of strings, or on the order of a set.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TypeVar

from chaos.plan import ORDERS, Fault, Move, Plan, Target

T = TypeVar("T")

_MASK = (1 << 64) - 1
_GOLDEN = 0x9E3779B97F4A7C15

QUIET_MS = 20_000
"""No fault before: the fleet gets up first."""
HEAL_MS = 60_000
"""No fault after this long before the end: the fleet must get up again."""
BETWEEN_MS = 40_000
"""From one fault to the next, on average; now and then two at once."""


class Draws:
    """A stream of integers; two streams of one seed with other names have nothing in common."""

    __slots__ = ("_state",)

    def __init__(self, seed: int, stream: int = 0) -> None:
        self._state = _mix((_mix(seed & _MASK) + (stream + 1) * _GOLDEN) & _MASK)

    def bits(self) -> int:
        """64 random bits."""
        self._state = z = (self._state + _GOLDEN) & _MASK
        z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & _MASK  # _mix(z), without a call
        z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & _MASK
        return z ^ (z >> 31)

    def below(self, n: int) -> int:
        """0 <= x < n. The bias of the remainder is below n / 2**64."""
        return self.bits() % n

    def between(self, low: int, high: int) -> int:
        """Both ends inclusive."""
        return low + self.bits() % (high - low + 1)

    def percent(self, chance: int) -> bool:
        return self.bits() % 100 < chance

    def one(self, of: Sequence[T]) -> T:
        return of[self.bits() % len(of)]

    def hex(self) -> str:
        """128 bits."""
        return f"{self.bits():016x}{self.bits():016x}"


def _mix(z: int) -> int:
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & _MASK
    return z ^ (z >> 31)


@dataclass(frozen=True, slots=True)
class Kind:
    """How one fault is drawn. weight: how often; amount, lasts_ms: drawn from (low, high)."""

    fault: Fault
    weight: int
    targets: tuple[Target, ...]
    lasts_ms: tuple[int, int] = (0, 0)
    amount: tuple[int, int] = (0, 0)


_NODES = (Target.LEADER,) * 4 + (Target.FOLLOWER, Target.NEXT, Target.ONE)
_SOME = (*_NODES, Target.MINORITY, Target.MAJORITY, Target.ALL)
_SHORT, _LONG, _BRIEF = (200, 9_000), (1_000, 40_000), (500, 20_000)
_RESTORE = (4_000, 20_000)

KINDS: tuple[Kind, ...] = (
    Kind(Fault.CUT, 6, _SOME, _LONG),
    Kind(Fault.CUT_OUT, 4, _SOME, _LONG),
    Kind(Fault.CUT_IN, 4, _SOME, _LONG),
    Kind(Fault.CUT_ETCD, 8, _SOME, _LONG),
    Kind(Fault.CUT_LEDGER, 5, _SOME, _LONG),
    Kind(Fault.RESET, 2, _SOME),
    Kind(Fault.LOSS, 3, _SOME, _LONG, (5, 40)),
    Kind(Fault.DELAY, 4, _SOME, _LONG, (20, 1_500)),
    Kind(Fault.FREEZE_DAEMON, 8, _NODES, _BRIEF),
    Kind(Fault.FREEZE_NODE, 8, _NODES, _BRIEF),
    Kind(Fault.KILL_DAEMON, 5, _NODES),
    Kind(Fault.KILL_SUPERVISOR, 4, _NODES),
    Kind(Fault.KILL_NODE, 4, _SOME),
    Kind(Fault.RESTART, 4, _SOME),
    Kind(Fault.ROLLING_RESTART, 1, (Target.ALL,)),
    Kind(Fault.CLOCK_STEP, 4, _NODES, _LONG, (-30_000, 30_000)),
    Kind(Fault.CLOCK_DRIFT, 2, _NODES, _LONG, (-200, 200)),
    Kind(Fault.ETCD_KILL, 2, (Target.ETCD_LEADER, Target.ETCD_MEMBER), _LONG),
    Kind(Fault.ETCD_FREEZE, 4, (Target.ETCD_LEADER, Target.ETCD_MEMBER), _BRIEF),
    Kind(Fault.ETCD_ISOLATE, 6, (Target.ETCD_LEADER, Target.ETCD_MEMBER), _LONG),
    Kind(Fault.ETCD_MOVE_LEADER, 3, (Target.ETCD,)),
    Kind(Fault.ETCD_QUORUM_LOSS, 2, (Target.ETCD,), _LONG),
    Kind(Fault.ETCD_COMPACT, 2, (Target.ETCD,)),
    Kind(Fault.ETCD_DEFRAG, 2, (Target.ETCD_LEADER, Target.ETCD_MEMBER), _SHORT),
    Kind(Fault.ETCD_NOSPACE, 2, (Target.ETCD,), _LONG),
    Kind(Fault.ETCD_RESTORE, 3, (Target.ETCD,), _RESTORE, (500, 120_000)),
    Kind(Fault.LEASE_REVOKE, 3, (Target.LEADER, Target.NEXT)),
    Kind(Fault.KEY_DELETE, 3, (Target.LEADER, Target.NEXT)),
    Kind(Fault.FOREIGN_PUT, 2, (Target.LEADER,)),
    Kind(Fault.LEDGER_FREEZE, 4, (Target.LEDGER,), _SHORT),
    Kind(Fault.LEDGER_RESTART, 2, (Target.LEDGER,), _SHORT),
    Kind(Fault.LEDGER_LOST_COMMIT, 6, (Target.LEADER,), _SHORT),
    Kind(Fault.LEDGER_LATE_COPY, 6, (Target.LEADER,), _SHORT),
    Kind(Fault.LEDGER_RESTORE, 3, (Target.LEDGER,), _RESTORE, (500, 120_000)),
    Kind(Fault.ORDER, 8, (Target.LEADER,), (0, 0), (0, len(ORDERS) - 1)),
    Kind(Fault.CONFIG_CHANGE, 2, (Target.ALL, Target.ONE)),
)
"""What is drawn by default: every fault that each world can do to the letter is left to `kinds`."""


REAL: tuple[Kind, ...] = (
    *KINDS,
    Kind(Fault.CUT_ETCD, 2, (Target.RING,), _LONG),
    Kind(Fault.RATE, 2, _NODES, _LONG, (8, 64)),
    Kind(Fault.LINK_DOWN, 3, _NODES, _LONG),
    Kind(Fault.SLOW, 3, _NODES, _LONG, (5, 50)),
    Kind(Fault.DISK_FULL, 2, (Target.LEDGER,), _SHORT),
)
"""What is drawn where processes are real."""


def plan(
    seed: int,
    time_ms: int,
    *,
    kinds: Sequence[Kind] = KINDS,
    can: Callable[[Fault], bool] = lambda _: True,
) -> Plan:
    """The plan of a seed. can: which faults the world does; the others are not drawn."""
    bag = [kind for kind in kinds if can(kind.fault) for _ in range(kind.weight)]
    return Plan(seed, time_ms, moves=tuple(_moves(Draws(seed), bag, time_ms)))


OPENINGS: tuple[tuple[Fault, bool], ...] = (
    (Fault.CUT, True),
    (Fault.CUT_IN, True),
    (Fault.CUT_ETCD, True),
    (Fault.FREEZE_DAEMON, True),
    (Fault.FREEZE_NODE, True),
    (Fault.KILL_DAEMON, False),
    (Fault.KILL_SUPERVISOR, False),
    (Fault.KILL_NODE, False),
    (Fault.RESTART, False),
)
"""A leader keeps its post under none of these, given that those that last do so for 1.5 TTL."""
FIRST_MS = 1_500
"""The first blow, once a real fleet has a leader and all stand in line: that is its time zero."""
APART_MS = 12_000
"""At most, from one fault to the next in real time; now and then two at once."""
LONGEST_MS = 10_000


def recovery_ms(ttl_s: int) -> int:
    """After the last heal: what a recovery may take in real time, whatever the faults were."""
    return 2 * ttl_s * 1000 + 8_000


def real(seed: int, time_ms: int, ttl_s: int, can: Callable[[Fault], bool]) -> Plan:
    """A plan for real time: it opens with a blow under which no leader keeps its post, the only one
    for 2.5 TTL; then come others, closer than in virtual time."""
    draws, ttl_ms = Draws(seed, 2), ttl_s * 1000
    fault, lasts = draws.one(OPENINGS)
    opening = Move(FIRST_MS, fault, Target.LEADER, lasts * ttl_ms * 3 // 2, pick=draws.below(60))
    bag = [kind for kind in REAL if can(kind.fault) for _ in range(kind.weight)]
    at_ms, last_ms = FIRST_MS + ttl_ms * 5 // 2, time_ms - recovery_ms(ttl_s) - 2_000
    moves = [opening]
    while bag:
        at_ms += 0 if draws.percent(15) else draws.between(1_000, APART_MS)
        if at_ms >= last_ms:
            break
        move = _move(draws, draws.one(bag), at_ms)
        moves.append(_cut_short(move, min(move.end_ms, at_ms + LONGEST_MS, last_ms)))
    return Plan(seed, time_ms, jobs=4, ttl_s=ttl_s, moves=tuple(moves))


def _moves(draws: Draws, bag: Sequence[Kind], time_ms: int) -> Iterator[Move]:
    last_ms = time_ms - min(HEAL_MS, time_ms // 3)
    at_ms = min(QUIET_MS, time_ms // 4)
    while bag:
        at_ms += 0 if draws.percent(15) else draws.between(500, 2 * BETWEEN_MS)
        if at_ms >= last_ms:
            return
        move = _move(draws, draws.one(bag), at_ms)
        yield move if move.end_ms <= last_ms else _cut_short(move, last_ms)


def _move(draws: Draws, kind: Kind, at_ms: int) -> Move:
    return Move(
        at_ms=at_ms,
        fault=kind.fault,
        target=draws.one(kind.targets),
        for_ms=draws.between(*kind.lasts_ms),
        amount=draws.between(*kind.amount),
        pick=draws.below(60),
    )


def _cut_short(move: Move, last_ms: int) -> Move:
    return Move(move.at_ms, move.fault, move.target, last_ms - move.at_ms, move.amount, move.pick)
