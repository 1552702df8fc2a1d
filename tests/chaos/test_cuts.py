"""What a series of cuts is counted as, on hand-written histories."""

from __future__ import annotations

from typing import Any

import pytest

from chaos.cuts import Tally, count
from chaos.op import Op, Source, Type
from chaos.story import SECOND_NS

SLOT = "2026-05-01T12:00:00+00:00"


def op(at_s: float, source: Source, process: str, f: str, **value: Any) -> Op:
    return Op(round(at_s * SECOND_NS), source, process, f, Type.OK, value)


def gate(name: str, fence: int, opened_s: float, closed_s: float) -> tuple[Op, Op]:
    return (
        op(opened_s, Source.NODE, name, "gate.opened", fence=fence),
        op(closed_s, Source.NODE, name, "gate.closed", fence=fence),
    )


def cut(began_s: float, healed_s: float, packets: int = 3) -> tuple[Op, Op]:
    return (
        Op(round(began_s * SECOND_NS), Source.NEMESIS, "nemesis", "inject", Type.INVOKE),
        op(healed_s, Source.NEMESIS, "nemesis", "heal", packets=packets),
    )


def run(at_s: float, name: str, fence: int) -> Op:
    value = {"job": "tick", "scheduled_for": SLOT, "late_ms": 0, "ts": SLOT}
    return op(at_s, Source.NODE, name, "run.started", fence=fence, **value)


def raised(at_s: float, fence: int) -> Op:
    return op(at_s, Source.LEDGER, "a", "accepted", fence=fence, term=fence)


PLAN = op(
    0, Source.PLAN, "harness", "plan", scenario="cuts", ttl_ns=5 * SECOND_NS, every_ns=SECOND_NS,
    tick="tick", held="held",
)  # fmt: skip


def row(second: int, state: str, job: str = "tick") -> Op:
    at = f"2026-05-01T12:00:{second:02}+00:00"
    value = {"job": job, "scheduled_for": at, "command_id": "", "state": state}
    return op(99, Source.LEDGER, "ledger", "slot", **value)


def rows(*states: str) -> tuple[Op, ...]:
    return tuple(row(second, state) for second, state in enumerate(states))


CLEAN = (PLAN, *gate("a", 1, 0, 11), *cut(10, 17), *gate("b", 2, 12, 22), *cut(20, 27))


@pytest.mark.parametrize(
    ("more", "tally"),
    [
        ((), Tally(2, 0, 0, ())),
        (cut(30, 37, packets=0), Tally(2, 0, 0, ())),
        (gate("c", 3, 21, 40), Tally(2, 1, 0, ())),
        ((*gate("c", 3, 21, 40), *gate("d", 4, 23, 24)), Tally(2, 1, 0, ())),
        ((run(11, "a", 1), run(12, "b", 2)), Tally(2, 0, 0, ())),
        ((run(12, "a", 1), run(13, "a", 1)), Tally(2, 0, 2, ())),
        ((*rows("succeeded", "missed", "due"), row(1, "due", "held")), Tally(2, 0, 0, ())),
        (
            rows("succeeded", "due", "succeeded"),
            Tally(
                2, 0, 0, ("every_slot_explained: tick 2026-05-01T12:00:01+00:00: no row, no gap",)
            ),
        ),
        (
            (raised(0, 2), raised(12, 1)),
            Tally(2, 0, 0, ("fence_never_falls: fence 2 was followed by 1",)),
        ),
    ],
)
def test_what_must_not_happen_is_counted_by_the_cut(more: tuple[Op, ...], tally: Tally) -> None:
    ops = sorted((*CLEAN, *more), key=lambda one: one.at_ns)
    assert count(ops) == tally
    assert tally.clean is (tally == Tally(2, 0, 0, ()))
