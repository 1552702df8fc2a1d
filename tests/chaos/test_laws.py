"""Each law on histories of a few lines: one that keeps it, one that breaks it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from chaos import laws
from chaos.checks import Check, Verdict
from chaos.op import Op, Source, Type
from chaos.story import Story

S = 1_000_000_000
PLAN = Op(
    0,
    Source.PLAN,
    "sim",
    "plan",
    value={
        "rollback": "skip",
        "ttl_ns": 10 * S,
        "started": "2026-12-01T00:00:00+00:00",
        "may_finish": ["finishes"],
    },
)


def node(at_s: float, name: str, f: str, **value: Any) -> Op:
    return Op(round(at_s * S), Source.NODE, name, f, value=value)


def run(at_s: float, name: str, f: str, fence: int, job: str = "job") -> Op:
    value = {"job": job, "scheduled_for": "x", "attempt": 1, "fence": fence}
    return Op(round(at_s * S), Source.RUN, name, f, value=value)


def gone(at_s: float, fence: int) -> Op:
    return Op(round(at_s * S), Source.ETCD, "a", "delete", value={"fence": fence})


def hand(at_s: float, fence: int) -> Op:
    return Op(round(at_s * S), Source.NEMESIS, "nemesis", "meddled", value={"fence": fence})


def fault(began_s: float, healed_s: float, bites: int = 1) -> Op:
    value = {"fault": "freeze-node", "nodes": ["a"], "began_ns": round(began_s * S), "bites": bites}
    return Op(round(healed_s * S), Source.NEMESIS, "nemesis", "heal", Type.OK, value)


def restored(at_s: float, what: str = "ledger", *, took_s: float = 0) -> Op:
    began_ns = round((at_s - took_s) * S)
    value = {"fault": f"{what}-restore", "nodes": [], "began_ns": began_ns, "bites": 1}
    return Op(round(at_s * S), Source.NEMESIS, "nemesis", "heal", Type.OK, value)


def slot(at: str, state: str) -> Op:
    value = {"job": "job", "scheduled_for": at, "command_id": "", "state": state}
    return Op(70 * S, Source.LEDGER, "ledger", "slot", value=value)


JOB = Op(
    70 * S,
    Source.LEDGER,
    "ledger",
    "job",
    value={"job": "job", "first_seen": "2026-12-01T00:00:00+00:00", "every_ms": 20_000},
)
LISTED = Op(
    70 * S,
    Source.LEDGER,
    "ledger",
    "job",
    value={
        "job": "job",
        "first_seen": "2026-12-01T00:00:00+00:00",
        "slots": ["2026-11-30T23:59:00+00:00", "2026-12-01T00:00:20+00:00"],
    },
)
FIRST, SECOND = "2026-12-01T00:00:20+00:00", "2026-12-01T00:00:40+00:00"
OPENED = node(1, "a", "gate.opened", fence=2)
KNOWN = node(1, "a", "deadline", fence=2, until_ns=9 * S)
NEXT = node(10, "b", "gate.opened", fence=3)
BEGAN = run(5, "a", "began", 2)
AGAIN = run(12, "b", "began", 3)

BOTH_RESTORED = (restored(0.3, "etcd"), gone(0.5, 2), restored(0.7, took_s=0.3))
"""Fence 2 was told of an older key, too."""

KEPT: Sequence[tuple[Check, Sequence[Op]]] = (
    (laws.every_slot_explained, [JOB, slot(FIRST, "succeeded"), slot(SECOND, "missed")]),
    (laws.every_slot_explained, [LISTED, slot(FIRST, "succeeded")]),
    (laws.one_row_per_slot, [slot("x", "due"), OPENED, BEGAN, KNOWN, restored(9.5), AGAIN]),
    (laws.never_two_gates, [OPENED, KNOWN, NEXT]),
    (laws.never_two_gates, [OPENED, hand(8, 2), NEXT]),
    (laws.never_two_gates, [OPENED, hand(8, 2), NEXT, hand(99, 2)]),
    (laws.gate_shut_before_key_gone, [OPENED, KNOWN, gone(9.5, 2)]),
    (laws.no_run_begins_late, [OPENED, KNOWN, BEGAN]),
    (laws.no_run_begins_late, [gone(0.5, 2), restored(0.7, "etcd"), OPENED, KNOWN, BEGAN]),
    (laws.no_run_begins_late, [*BOTH_RESTORED, OPENED, KNOWN, BEGAN]),
    (laws.lost_runs_end_in_time, [BEGAN, run(6, "a", "ended", 2), gone(7, 2)]),
    (laws.lost_runs_end_in_time, [BEGAN, gone(7, 2), run(9, "a", "ended", 2), fault(4, 9)]),
    (laws.ticks_in_peace, [OPENED, node(99, "a", "x")]),
)
BROKEN: Sequence[tuple[Check, Sequence[Op]]] = (
    (laws.every_slot_explained, [JOB, slot(FIRST, "succeeded")]),
    (laws.every_slot_explained, [JOB, slot(FIRST, "succeeded"), slot(SECOND, "running")]),
    (laws.every_slot_explained, [LISTED, slot(SECOND, "succeeded")]),
    (laws.one_row_per_slot, [slot("x", "due"), OPENED, BEGAN, KNOWN, restored(8), AGAIN]),
    (laws.never_two_gates, [OPENED, NEXT]),
    (laws.gate_shut_before_key_gone, [OPENED, KNOWN, gone(8, 2)]),
    (laws.no_run_begins_late, [OPENED, KNOWN, run(9.5, "a", "began", 2)]),
    (laws.no_run_begins_late, [OPENED, gone(4, 2), BEGAN]),
    (laws.no_run_begins_late, [gone(0.5, 2), OPENED, KNOWN, BEGAN]),
    (laws.no_run_begins_late, [gone(0.5, 2), restored(0.7), OPENED, KNOWN, BEGAN]),
    (laws.no_run_begins_late, [OPENED, gone(4, 2), BEGAN, restored(6, "etcd", took_s=5.5)]),
    (laws.no_run_begins_late, [restored(0.3, "etcd"), gone(0.5, 2), OPENED, KNOWN, BEGAN]),
    (laws.no_run_begins_late, [run(0.5, "a", "began", 2), OPENED]),
    (laws.lost_runs_end_in_time, [BEGAN, gone(7, 2), run(9, "a", "ended", 2)]),
    (laws.ticks_in_peace, [OPENED, node(9, "a", "gate.closed", fence=2), node(99, "a", "x")]),
)
UNTRIED: Sequence[tuple[Check, Sequence[Op]]] = (
    (laws.never_two_gates, []),
    (laws.no_run_begins_late, []),
    (laws.every_slot_explained, []),
    (laws.gate_shut_before_key_gone, [OPENED, KNOWN]),
    (laws.faults_bit, [fault(1, 2, bites=0)]),
    (laws.faults_bit, [fault(1, 2)]),
)


@pytest.mark.parametrize(("law", "ops"), KEPT)
def test_a_history_that_keeps_the_law_is_a_yes(law: Check, ops: Sequence[Op]) -> None:
    assert law(Story([PLAN, *ops])).verdict is Verdict.YES


@pytest.mark.parametrize(("law", "ops"), BROKEN)
def test_a_history_that_breaks_it_is_a_no(law: Check, ops: Sequence[Op]) -> None:
    assert law(Story([PLAN, *ops])).verdict is Verdict.NO


@pytest.mark.parametrize(("law", "ops"), UNTRIED)
def test_a_history_that_did_not_try_it_is_unknown(law: Check, ops: Sequence[Op]) -> None:
    assert law(Story([PLAN, *ops])).verdict is Verdict.UNKNOWN
