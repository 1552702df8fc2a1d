"""Each law of time and order on histories of a few lines: kept, broken, not tried."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from chaos import timely
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
        "ttl_ns": 10 * S,
        "margin_ns": 2 * S,
        "period_ns": 3 * S,
        "nodes": ["a", "b"],
        "alone": ["job"],
        "groups": {"job": "eu"},
        "bounds": {"eu": 1},
    },
)


def node(at_s: float, name: str, f: str, **value: Any) -> Op:
    return Op(round(at_s * S), Source.NODE, name, f, value=value)


def deadline(sent_s: float, until_s: float) -> Op:
    ends = {"fence": 2, "sent_ns": round(sent_s * S), "until_ns": round(until_s * S)}
    return node(sent_s, "a", "deadline", **ends)


def run(at_s: float, f: str, scheduled_for: str = "x", attempt: int = 1) -> Op:
    value = {"job": "job", "scheduled_for": scheduled_for, "command_id": ""}
    return Op(round(at_s * S), Source.RUN, "a", f, value={**value, "attempt": attempt, "fence": 2})


def ledger(at_s: float, f: str, **value: Any) -> Op:
    return Op(round(at_s * S), Source.LEDGER, "a", f, value=value)


def final(at_s: float, state: str) -> Op:
    return ledger(at_s, "final", job="job", scheduled_for="x", command_id="", state=state)


def raised(at_s: float, fence: int, operation: str = "write") -> Op:
    return ledger(at_s, "accepted", operation=operation, relation="raise", fence=fence, term=fence)


def etcd_leads(at_s: float, member: int | None) -> Op:
    return Op(round(at_s * S), Source.ETCD, "etcd", "leader", value={"member": member})


def hand(at_s: float) -> Op:
    return Op(round(at_s * S), Source.NEMESIS, "nemesis", "meddled", value={"fence": 2})


def fault(began_s: float, healed_s: float, name: str = "freeze-node", *, on: str = "a") -> Op:
    value = {"fault": name, "nodes": [on], "began_ns": round(began_s * S), "bites": 1}
    return Op(round(healed_s * S), Source.NEMESIS, "nemesis", "heal", Type.OK, value)


def both_frozen(began_s: float, healed_s: float) -> list[Op]:
    return [fault(began_s, healed_s, on=name) for name in ("a", "b")]


OPENED = node(1, "a", "gate.opened", fence=2)
END = node(99, "a", "x")
PAUSED = ledger(99, "job", job="job", paused=("2026-12-01T00:00:10.5+00:00", "2026-12-01T00:00:20"))


def shut(at_s: float) -> Op:
    return node(at_s, "a", "gate.closed", fence=2)


def succeeds(at_s: float) -> Op:
    return node(at_s, "b", "gate.opened", fence=3)


def stopped(at_s: float, reason: str = "stopping") -> Op:
    return node(at_s, "a", "term.ended", fence=2, reason=reason)


KEPT: Sequence[tuple[Check, Sequence[Op]]] = (
    (timely.deadline_counts_from_the_send, [deadline(1, 9)]),
    (timely.gate_opens_after_its_raise, [raised(0.9, 2), OPENED]),
    (timely.a_hand_shuts_the_gate_in_time, [OPENED, hand(50), shut(50.1)]),
    (timely.a_hand_shuts_the_gate_in_time, [OPENED, hand(50), shut(58), fault(49, 60, "cut")]),
    (timely.nothing_runs_past_a_stop, [run(2, "began"), run(3, "ended"), stopped(4)]),
    (timely.nothing_runs_past_a_stop, [run(2, "began"), stopped(4, "deadline")]),
    (timely.what_ended_stays_ended, [final(2, "failed")]),
    (
        timely.what_ended_stays_ended,
        [final(2, "succeeded"), raised(3, 2, "restore"), final(4, "x")],
    ),
    (timely.jobs_keep_to_themselves, [run(2, "began"), run(3, "ended"), run(4, "began", "y")]),
    (timely.groups_keep_their_bounds, [run(2, "began"), run(3, "ended"), run(4, "began", "y")]),
    (timely.a_pause_is_kept, [run(10, "began", "2026-12-01T00:00:10+00:00"), PAUSED]),
    (timely.failover_in_time, [OPENED, shut(50), succeeds(60), END]),
    (timely.failover_in_time, [OPENED, shut(50), *both_frozen(50, 70), succeeds(82), END]),
    (timely.failover_in_time, [OPENED, shut(50), etcd_leads(50, None), succeeds(90), END]),
    (timely.progress_after_each_heal, [fault(30, 40), run(52, "began"), END]),
)
BROKEN: Sequence[tuple[Check, Sequence[Op]]] = (
    (timely.deadline_counts_from_the_send, [deadline(1, 9.1)]),
    (timely.gate_opens_after_its_raise, [raised(0.9, 1), OPENED, raised(1.1, 2)]),
    (timely.a_hand_shuts_the_gate_in_time, [OPENED, hand(50), shut(52)]),
    (timely.a_hand_shuts_the_gate_in_time, [OPENED, hand(50), shut(63), fault(49, 60, "cut")]),
    (timely.nothing_runs_past_a_stop, [run(2, "began"), stopped(4)]),
    (timely.what_ended_stays_ended, [final(2, "succeeded"), final(3, "abandoned")]),
    (timely.what_ended_stays_ended, [final(2, "succeeded"), run(3, "began", attempt=2)]),
    (timely.jobs_keep_to_themselves, [run(2, "began"), run(4, "began", "y")]),
    (timely.groups_keep_their_bounds, [run(2, "began"), run(4, "began", "y")]),
    (timely.a_pause_is_kept, [run(30, "began", "2026-12-01T00:00:11+00:00"), PAUSED]),
    (timely.failover_in_time, [OPENED, shut(50), succeeds(64), END]),
    (timely.failover_in_time, [OPENED, shut(50), *both_frozen(50, 70), succeeds(84), END]),
    (timely.failover_in_time, [OPENED, shut(50), etcd_leads(50, 1), succeeds(75), END]),
    (timely.progress_after_each_heal, [fault(30, 40), run(56, "began"), END]),
)
UNTRIED: Sequence[tuple[Check, Sequence[Op]]] = (
    (timely.deadline_counts_from_the_send, []),
    (timely.gate_opens_after_its_raise, []),
    (timely.what_ended_stays_ended, []),
    (timely.jobs_keep_to_themselves, []),
    (timely.progress_after_each_heal, [fault(30, 40), fault(42, 43)]),
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
