"""Each check on hand-written histories of a few lines: one where the claim held, some where it did
not, one that cannot tell."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from chaos import checks
from chaos.checks import Check, Finding, Verdict
from chaos.op import History, OneClock, Op, Source, Type, load, save
from chaos.story import SECOND_NS, Story

T0 = datetime(2026, 5, 1, 12, 0, 0, tzinfo=UTC)
OLD, NEW = 100, 120


def op(at_s: float, source: Source, process: str, f: str, **value: Any) -> Op:
    return Op(round(at_s * SECOND_NS), source, process, f, Type.OK, value)


PLAN = op(
    0, Source.PLAN, "harness", "plan", scenario="x", ttl_ns=5 * SECOND_NS, every_ns=SECOND_NS,
    tick="tick", held="held", gate_within_ns=4_800_000_000,
)  # fmt: skip


def node(at_s: float, name: str, event: str, **fields: Any) -> Op:
    return op(at_s, Source.NODE, name, event, **fields)


def opened(at_s: float, name: str, fence: int) -> Op:
    return node(at_s, name, "gate.opened", fence=fence)


def closed(at_s: float, name: str, fence: int, reason: str = "deadline") -> Op:
    return node(at_s, name, "gate.closed", fence=fence, reason=reason)


def ended(at_s: float, name: str, fence: int, reason: str = "deadline") -> Op:
    return node(at_s, name, "term.ended", fence=fence, reason=reason)


def started(at_s: float, name: str, fence: int, job: str = "tick", *, reported_s: float = 0) -> Op:
    """reported_s: how long after the exec the node said so."""
    said = at_s + reported_s
    value = {"job": job, "scheduled_for": slot(int(at_s)), "late_ms": (at_s - int(at_s)) * 1e3}
    return node(said, name, "run.started", fence=fence, ts=slot(said), **value)


def note(at_s: float, name: str, what: str, fence: int, job: str = "tick") -> Op:
    value = {"fence": fence, "job": job, "scheduled_for": slot(int(at_s)), "attempt": 1}
    return op(at_s, Source.RUN, name, what, **value)


def slot(at_s: float) -> str:
    return (T0 + timedelta(seconds=at_s)).isoformat()


def row(at_s: float, state: str = "succeeded", job: str = "tick") -> Op:
    value = {"job": job, "scheduled_for": slot(at_s), "command_id": "", "state": state}
    return op(99, Source.LEDGER, "ledger", "slot", **value)


def gap(first_s: float, last_s: float) -> Op:
    value = {"job": "tick", "first": slot(first_s), "last": slot(last_s)}
    return op(99, Source.LEDGER, "ledger", "gap", **value)


def raised(at_s: float, name: str, fence: int) -> Op:
    value = {"fence": fence, "term": fence, "relation": "cron_leader_fence", "operation": "UPDATE"}
    return op(at_s, Source.LEDGER, name, "accepted", **value)


def wrote(at_s: float, name: str, term: int | None) -> Op:
    value = {"fence": None, "term": term, "relation": "cron_leader_slot", "operation": "UPDATE"}
    return op(at_s, Source.LEDGER, name, "accepted", **value)


def refusal(name: str, fence: int, high: int) -> Op:
    return op(
        99, Source.LEDGER, "ledger", "refusal", node=name, fence=fence, high=high, what="finish"
    )


def key(at_s: float, name: str, what: str) -> Op:
    return op(at_s, Source.ETCD, name, what)


def drifted(by_s: float) -> Op:
    return op(99, Source.PLAN, "harness", "drift", drift_ns=round(by_s * SECOND_NS))


def stopping(at_s: float) -> Op:
    return op(at_s, Source.PLAN, "harness", "stopping")


def left(at_s: float, name: str, *, status: int = 0) -> Op:
    return node(at_s, name, "exit", status=status)


def blow(began_s: float = 10, healed_s: float = 17, packets: int = 9) -> tuple[Op, ...]:
    hit = {"fault": "cut", "node": "a", "fence": OLD}
    asked = Op(round(began_s * SECOND_NS), Source.NEMESIS, "nemesis", "inject", Type.INVOKE, hit)
    done = op(began_s, Source.NEMESIS, "nemesis", "inject", **hit)
    return (asked, done, op(healed_s, Source.NEMESIS, "nemesis", "heal", packets=packets, **hit))


def said(check: Check, *ops: Op) -> Finding:
    return check(Story(sorted((PLAN, *ops), key=lambda op: op.at_ns)))


CASES: list[tuple[Check, Verdict, tuple[Op, ...]]] = [
    (checks.one_row_per_slot, Verdict.YES, (row(1), row(2), note(1, "a", "began", OLD))),
    (checks.one_row_per_slot, Verdict.NO, (row(1), row(1))),
    (
        checks.one_row_per_slot,
        Verdict.NO,
        (row(1), note(1, "a", "began", OLD), note(1.5, "b", "began", NEW)),
    ),
    (checks.one_row_per_slot, Verdict.UNKNOWN, ()),
    (checks.every_slot_explained, Verdict.YES, (row(1), row(2, "missed"), row(3))),
    (checks.every_slot_explained, Verdict.YES, (row(1), gap(2, 20), row(21))),
    (checks.every_slot_explained, Verdict.NO, (row(1), row(3))),
    (checks.every_slot_explained, Verdict.NO, (row(1), gap(3, 4), row(5))),
    (checks.every_slot_explained, Verdict.NO, (row(1), row(2), row(2, "running", job="held"))),
    (checks.every_slot_explained, Verdict.UNKNOWN, (row(1),)),
    (checks.fence_never_falls, Verdict.YES, (raised(1, "a", OLD), raised(2, "b", NEW))),
    (checks.fence_never_falls, Verdict.NO, (raised(1, "b", NEW), raised(2, "a", OLD))),
    (checks.fence_never_falls, Verdict.NO, (raised(1, "a", OLD), raised(2, "b", OLD))),
    (checks.fence_never_falls, Verdict.UNKNOWN, (wrote(1, "a", OLD),)),
    (
        checks.no_stale_write_accepted,
        Verdict.YES,
        (raised(1, "a", OLD), wrote(2, "a", OLD), raised(3, "b", NEW), wrote(4, "b", NEW)),
    ),
    (
        checks.no_stale_write_accepted,
        Verdict.NO,
        (raised(1, "a", OLD), raised(3, "b", NEW), wrote(4, "a", None)),
    ),
    (  # the same node, elected again, still writing for its older term
        checks.no_stale_write_accepted,
        Verdict.NO,
        (raised(1, "a", OLD), raised(3, "a", NEW), wrote(4, "a", OLD)),
    ),
    (checks.no_stale_write_accepted, Verdict.NO, (wrote(1, "a", OLD), raised(2, "a", OLD))),
    (checks.no_stale_write_accepted, Verdict.UNKNOWN, ()),
    (checks.stale_write_refused, Verdict.YES, (*blow(), refusal("a", OLD, NEW))),
    (checks.stale_write_refused, Verdict.UNKNOWN, blow()),
    (checks.stale_write_refused, Verdict.UNKNOWN, (*blow(), refusal("b", NEW, NEW + 1))),
    (checks.stale_write_refused, Verdict.UNKNOWN, (refusal("a", OLD, NEW),)),
    (
        checks.never_two_gates,
        Verdict.YES,
        (opened(1, "a", OLD), closed(5, "a", OLD), opened(6, "b", NEW)),
    ),
    (
        checks.never_two_gates,
        Verdict.NO,
        (opened(1, "a", OLD), opened(6, "b", NEW), closed(7, "a", OLD)),
    ),
    (checks.never_two_gates, Verdict.NO, (opened(1, "a", OLD), opened(6, "b", NEW))),
    (  # an exit takes the gate with it
        checks.never_two_gates,
        Verdict.YES,
        (opened(1, "a", OLD), left(5, "a"), opened(6, "b", NEW)),
    ),
    (  # the first of three is still open when the third opens
        checks.never_two_gates,
        Verdict.NO,
        (
            *(opened(1, "a", OLD), opened(0.2, "b", 90), closed(0.4, "b", 90)),
            *(opened(6, "c", NEW), closed(7, "a", OLD)),
        ),
    ),
    (checks.never_two_gates, Verdict.UNKNOWN, ()),
    (
        checks.no_run_outside_its_gate,
        Verdict.YES,
        (opened(1, "a", OLD), started(2, "a", OLD), closed(5, "a", OLD)),
    ),
    (  # it needed a moment to start up
        checks.no_run_outside_its_gate,
        Verdict.YES,
        (opened(1, "a", OLD), closed(5, "a", OLD), note(5.9, "a", "began", OLD)),
    ),
    (  # its exec was reported late
        checks.no_run_outside_its_gate,
        Verdict.YES,
        (opened(1, "a", OLD), closed(5, "a", OLD), started(4.9, "a", OLD, reported_s=0.3)),
    ),
    (  # "go" was on its way when the node was told to stop
        checks.no_run_outside_its_gate,
        Verdict.YES,
        (opened(1, "a", OLD), closed(5, "a", OLD, "stopping"), started(5.1, "a", OLD)),
    ),
    (  # longer than a "go" can be on its way
        checks.no_run_outside_its_gate,
        Verdict.NO,
        (opened(1, "a", OLD), closed(5, "a", OLD), started(5.6, "a", OLD)),
    ),
    (
        checks.no_run_outside_its_gate,
        Verdict.NO,
        (opened(1, "a", OLD), closed(5, "a", OLD, "stopping"), started(6, "a", OLD)),
    ),
    (  # a newer gate had opened
        checks.no_run_outside_its_gate,
        Verdict.NO,
        (
            opened(1, "a", OLD),
            closed(5, "a", OLD),
            opened(5.5, "b", NEW),
            note(5.6, "a", "began", OLD),
        ),
    ),
    (  # only the run itself tells
        checks.no_run_outside_its_gate,
        Verdict.NO,
        (opened(1, "a", OLD), closed(5, "a", OLD), note(6.1, "a", "began", OLD)),
    ),
    (  # the gate of a newer term does not count
        checks.no_run_outside_its_gate,
        Verdict.NO,
        (opened(1, "a", NEW), started(6, "a", OLD)),
    ),
    (checks.no_run_outside_its_gate, Verdict.UNKNOWN, (opened(1, "a", OLD),)),
    (
        checks.stopped_by_its_own_deadline,
        Verdict.YES,
        (
            *(opened(1, "a", OLD), *blow(), closed(12, "a", OLD), ended(12, "a", OLD)),
            key(14, "a", "delete"),
        ),
    ),
    (  # too late
        checks.stopped_by_its_own_deadline,
        Verdict.NO,
        (
            *(opened(1, "a", OLD), *blow(), closed(15, "a", OLD), ended(15, "a", OLD)),
            key(14, "a", "delete"),
        ),
    ),
    (  # ended, but the gate was left open
        checks.stopped_by_its_own_deadline,
        Verdict.NO,
        (opened(1, "a", OLD), *blow(), ended(12, "a", OLD), key(14, "a", "delete")),
    ),
    (  # by something else than its deadline
        checks.stopped_by_its_own_deadline,
        Verdict.NO,
        (*blow(), ended(13, "a", OLD, "lease_lost"), key(14, "a", "delete")),
    ),
    (checks.stopped_by_its_own_deadline, Verdict.NO, (*blow(), key(14, "a", "delete"))),
    (checks.stopped_by_its_own_deadline, Verdict.UNKNOWN, (*blow(), ended(12, "a", OLD))),
    (checks.stopped_by_its_own_deadline, Verdict.UNKNOWN, ()),
    (
        checks.lost_runs_ended_in_time,
        Verdict.YES,
        (*blow(), note(12, "a", "beat", OLD, "held"), key(14, "a", "delete")),
    ),
    (
        checks.lost_runs_ended_in_time,
        Verdict.NO,
        (*blow(), note(14.1, "a", "beat", OLD, "held"), key(14, "a", "delete")),
    ),
    (
        checks.lost_runs_ended_in_time,
        Verdict.UNKNOWN,
        (*blow(), note(9, "a", "beat", OLD, "held"), key(14, "a", "delete")),
    ),
    (checks.lost_runs_ended_in_time, Verdict.UNKNOWN, ()),
    (checks.successor_ticks_in_time, Verdict.YES, (*blow(), started(19.9, "b", NEW))),
    (checks.successor_ticks_in_time, Verdict.NO, (*blow(), started(20.1, "b", NEW))),
    (checks.successor_ticks_in_time, Verdict.NO, (*blow(), started(16, "b", NEW, "held"))),
    (checks.successor_ticks_in_time, Verdict.NO, (*blow(), started(16, "a", OLD))),
    (checks.successor_ticks_in_time, Verdict.UNKNOWN, (started(16, "b", NEW),)),
    (
        checks.successor_gate_in_time,
        Verdict.YES,
        (opened(1, "a", OLD), *blow(), opened(14.8, "b", NEW)),
    ),
    (
        checks.successor_gate_in_time,
        Verdict.NO,
        (opened(1, "a", OLD), *blow(), opened(14.9, "b", NEW)),
    ),
    (checks.successor_gate_in_time, Verdict.NO, (opened(1, "a", OLD), *blow())),
    (checks.successor_gate_in_time, Verdict.UNKNOWN, (opened(1, "b", NEW),)),
    (
        checks.progress_after_the_heal,
        Verdict.YES,
        (*blow(), key(18, "a", "put"), *(started(18 + i, "b", NEW) for i in range(3))),
    ),
    (
        checks.progress_after_the_heal,
        Verdict.NO,
        (*blow(), key(18, "a", "put"), *(started(12 + i, "b", NEW) for i in range(3))),
    ),
    (
        checks.progress_after_the_heal,
        Verdict.NO,
        (*blow(), key(1, "a", "put"), *(started(18 + i, "b", NEW) for i in range(3))),
    ),
    (checks.progress_after_the_heal, Verdict.UNKNOWN, ()),
    (checks.no_node_fell, Verdict.YES, (stopping(20), left(21, "a"), left(22, "b"))),
    (checks.no_node_fell, Verdict.NO, (left(19, "a"), stopping(20), left(22, "b"))),
    (checks.no_node_fell, Verdict.NO, (stopping(20), left(21, "a"), left(22, "b", status=-9))),
    (checks.no_node_fell, Verdict.UNKNOWN, (left(19, "a"),)),
    (checks.fault_bit, Verdict.YES, blow()),
    (checks.fault_bit, Verdict.UNKNOWN, blow(packets=0)),
    (checks.fault_bit, Verdict.UNKNOWN, blow()[:2]),
    (checks.one_clock, Verdict.YES, (drifted(0.001),)),
    (checks.one_clock, Verdict.UNKNOWN, (drifted(-0.3),)),
    (checks.one_clock, Verdict.UNKNOWN, ()),
]


@pytest.mark.parametrize(("check", "expected", "ops"), CASES)
def test_a_check_tells_a_good_history_from_a_bad_one(
    check: Check, expected: Verdict, ops: tuple[Op, ...]
) -> None:
    finding = said(check, *ops)
    assert finding.verdict is expected, finding.text


@pytest.mark.parametrize("check", [*checks.SOUND, *checks.ALWAYS])
def test_every_check_is_shown_a_good_history_and_one_that_is_not(check: Check) -> None:
    shown = {expected for one, expected, _ in CASES if one is check}
    assert Verdict.YES in shown
    assert shown & {Verdict.NO, Verdict.UNKNOWN}


def test_a_scenario_without_a_bound_of_its_own_on_the_gate_is_held_to_none() -> None:
    value = {k: v for k, v in PLAN.value.items() if k != "gate_within_ns"}
    plan = op(0, Source.PLAN, "harness", "plan", **value)
    story = Story((plan, *blow(), opened(99, "b", NEW)))
    assert checks.successor_gate_in_time(story).verdict is Verdict.YES


@pytest.mark.parametrize(
    ("verdicts", "expected"),
    [
        (("YES", "YES"), "YES"),
        (("YES", "UNKNOWN"), "UNKNOWN"),
        (("UNKNOWN", "NO", "YES"), "NO"),
    ],
)
def test_the_verdict_is_the_worst_finding(verdicts: tuple[str, ...], expected: str) -> None:
    findings = [Finding("x", Verdict(v), "") for v in verdicts]
    assert checks.verdict(findings) == expected


def test_a_saved_history_is_judged_as_the_fresh_one(tmp_path: Path) -> None:
    value = {"job": "tick", "scheduled_for": T0, "command_id": "", "state": "missed"}
    fresh = (PLAN, op(99, Source.LEDGER, "ledger", "slot", **value), row(1), row(2))
    save(fresh, tmp_path / "history.jsonl")
    loaded = load(tmp_path / "history.jsonl")
    assert checks.judge(loaded, checks.ALWAYS) == checks.judge(fresh, checks.ALWAYS)


def test_wall_clock_times_are_moved_to_the_boot_clock() -> None:
    clock = OneClock()
    wall = datetime.now(UTC)
    assert abs(clock.from_wall(wall) - clock.now_ns()) < SECOND_NS
    assert clock.from_text(wall.isoformat()) == clock.from_wall(wall)
    later = clock.from_wall(wall + timedelta(seconds=2))
    assert later - clock.from_wall(wall) == 2 * SECOND_NS


@pytest.mark.parametrize(
    ("after_s", "count", "found"), [(0, 1, True), (0, 2, True), (0, 3, False), (1.5, 2, False)]
)
def test_a_scenario_waits_for_the_nth_op_it_wants(after_s: float, count: int, found: bool) -> None:
    history = History()
    for at_s in (1, 2):
        history.add(started(at_s, "a", OLD))
    wanted: Callable[[Op], bool] = lambda op: op.f == "run.started"  # noqa: E731
    after_ns = round(after_s * SECOND_NS)
    seen = history.wait(wanted, within_s=0.01, count=count, after_ns=after_ns)
    assert (seen is not None) is found
