"""Plans for real worlds, what a move becomes there, and how a real history is told to the laws."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from chaos import checks, gen, real
from chaos.checks import Verdict
from chaos.laws import gate_shut_before_key_gone
from chaos.op import Op, Source, Type
from chaos.plan import Fault, Move, Plan, Target
from chaos.real_laws import (
    no_node_falls_over,
    no_run_begins_past_its_lease,
    no_traceback,
    nothing_is_left,
    succeeded_in_time,
)
from chaos.retold import retold
from chaos.story import SECOND_NS, Story
from chaos.worlds import nemesis
from chaos.worlds.nemesis import Hit, resolve

NODES = ("a", "b", "c")
WALL = datetime(2026, 5, 1, 12, tzinfo=UTC)

# ------------------------------------------------------------------ plans


def test_a_seed_is_one_plan_in_each_real_world() -> None:
    assert real.plan_of("netns", 3, 60_000, 2) == real.plan_of("netns", 3, 60_000, 2)
    assert real.plan_of("netns", 3, 60_000, 2) != real.plan_of("netns", 4, 60_000, 2)


@pytest.mark.parametrize("ttl_s", [2, 5])
@pytest.mark.parametrize("world", real.SITES)
def test_a_plan_opens_with_a_blow_to_the_leader_and_leaves_time_to_recover(
    world: str, ttl_s: int
) -> None:
    for seed in range(40):
        first, *rest = real.plan_of(world, seed, 60_000, ttl_s).moves
        assert (first.target, first.at_ms) == (Target.LEADER, gen.FIRST_MS)
        assert first.fault in dict(gen.OPENINGS)
        assert all(move.at_ms >= first.at_ms + ttl_s * 2_500 for move in rest)
        assert all(move.end_ms < 60_000 - gen.recovery_ms(ttl_s) for move in rest)


@pytest.mark.parametrize("world", real.SITES)
def test_all_that_a_world_can_do_is_drawn_there_and_nothing_else(world: str) -> None:
    plans = (real.plan_of(world, seed, 120_000, 2) for seed in range(400))
    drawn = {move.fault for made in plans for move in made.moves}
    assert drawn == real.DRAWN[world]


# ------------------------------------------------------------------ from a move to a fault


def test_every_fault_that_is_drawn_is_made_by_somebody() -> None:
    made = nemesis._TRAFFIC.keys() | nemesis._OTHERS.keys()
    assert frozenset().union(*real.DRAWN.values()) <= made


@pytest.mark.parametrize(
    ("target", "pick", "hit"),
    [
        (Target.LEADER, 0, Hit(("b",))),
        (Target.NEXT, 0, Hit(("c",))),
        (Target.FOLLOWER, 1, Hit(("c",))),
        (Target.FOLLOWER, 0, Hit(("a",))),
        (Target.ONE, 4, Hit(("b",))),
        (Target.MINORITY, 2, Hit(("c",))),
        (Target.MAJORITY, 2, Hit(("c", "a"))),
        (Target.ALL, 1, Hit(NODES)),
        (Target.RING, 1, Hit(NODES)),
        (Target.ETCD_LEADER, 0, Hit(members=("e2",))),
        (Target.LEDGER, 0, Hit()),
    ],
)
def test_a_target_is_found_in_the_line_as_it_stands(target: Target, pick: int, hit: Hit) -> None:
    move = Move(0, Fault.CUT, target, pick=pick)
    assert resolve(move, NODES, ("b", "c"), "e2") == hit


def test_with_nobody_in_line_no_leader_is_hit() -> None:
    for target in (Target.LEADER, Target.NEXT, Target.ETCD_LEADER):
        assert resolve(Move(0, Fault.CUT, target), NODES, (), None) == Hit()


def test_the_command_inside_plays_the_plan_that_was_saved(tmp_path: Any) -> None:
    wanted = real.Wanted(tmp_path, Plan(1, 1000), etcd="3.5", config=tmp_path / "mine.toml")
    assert list(real.words("netns", wanted)) == [
        *("run", "--world", "netns", "--plan", f"{tmp_path}/plan.json"),
        *("--out", str(tmp_path), "--members", "3", "--etcd", "3.5"),
        *("--config", f"{tmp_path}/mine.toml"),
    ]


# ------------------------------------------------------------------ the history, told anew


def op(at_s: float, source: Source, process: str, f: str, **value: Any) -> Op:
    return Op(round((1000 + at_s) * SECOND_NS), source, process, f, Type.OK, value)


def node(at_s: float, f: str, **value: Any) -> Op:
    return op(at_s, Source.NODE, "a", f, **value)


def said(seconds: float) -> str:
    return (WALL + timedelta(seconds=seconds)).isoformat()


RUN = {"job": "tick", "scheduled_for": said(3), "attempt": 1, "fence": 7}
FIRST = op(
    -5, Source.PLAN, "harness", "plan",
    wall=said(-5), ttl_ns=2 * SECOND_NS, margin_ns=SECOND_NS // 2, nodes=["a"],
)  # fmt: skip
RISEN, STOP = (
    op(0, Source.PLAN, "harness", "risen"),
    op(20, Source.PLAN, "harness", "stopping"),
)
OPENED = node(-1, "gate.opened", fence=7, lease="0a")


def tell(*ops: Op) -> Story:
    return Story(retold(sorted((FIRST, RISEN, OPENED, *ops, STOP), key=lambda one: one.at_ns)))


def test_time_zero_is_when_the_fleet_was_up_and_the_wall_clock_of_then_is_told() -> None:
    story = tell()
    assert next(iter(story.events("gate.opened"))).at_ns == -SECOND_NS
    assert story.ops[0].value["started"] == said(0)


def test_a_renewal_is_a_deadline_counted_from_its_send() -> None:
    story = tell(node(4, "lease.renewed", lease="0a", duration_ms=300))
    (deadline,) = (o.value for o in story.events("lease.until"))
    assert deadline["fence"] == 7
    assert deadline["sent_ns"] == round(3.7 * SECOND_NS)
    assert deadline["until_ns"] == round(5.2 * SECOND_NS)


RENEWED = node(4, "lease.renewed", lease="0a", duration_ms=0)
"""Good until 5.5 s."""


@pytest.mark.parametrize(("said_s", "shut_s"), [(9, 5.5), (5, 5)])
def test_the_gate_of_a_frozen_daemon_is_shut_by_its_deadline(said_s: float, shut_s: float) -> None:
    story = tell(RENEWED, frozen(4.5, 8.5), node(said_s, "gate.closed", fence=7))
    assert [gate.closed_ns for gate in story.gates()] == [round(shut_s * SECOND_NS)]


def test_of_a_daemon_that_could_speak_its_own_word_counts() -> None:
    story = tell(RENEWED, node(9, "gate.closed", fence=7))
    assert [gate.closed_ns for gate in story.gates()] == [9 * SECOND_NS]


@pytest.mark.parametrize(("began_s", "verdict"), [(5.4, Verdict.YES), (5.6, Verdict.NO)])
def test_a_run_begins_while_its_lease_is_good(began_s: float, verdict: Verdict) -> None:
    assert no_run_begins_past_its_lease(tell(RENEWED, started(began_s))).verdict is verdict


def test_a_key_that_goes_is_known_by_the_fence_of_its_lease() -> None:
    story = tell(op(4, Source.ETCD, "a", "delete", key="/p/f/elections/0/0a", lease=0))
    assert [o.value["fence"] for o in story.deletes("a")] == [7]


GONE = op(4.3, Source.ETCD, "a", "delete", key="/p/f/elections/0/0a", lease=0)


def thawed(healed_s: float, fault: Fault = Fault.ETCD_FREEZE) -> Op:
    value = {"fault": fault, "nodes": [], "began_ns": 1002 * SECOND_NS, "bites": 1}
    return op(healed_s, Source.NEMESIS, "nemesis", "heal", **value)


@pytest.mark.parametrize(
    ("others", "hands"),
    [
        ((RENEWED, thawed(4.2)), [7]),
        ((RENEWED, thawed(4.2, Fault.ETCD_ISOLATE)), []),
        ((RENEWED, thawed(3.2)), []),
        ((node(1, "lease.renewed", lease="0a", duration_ms=0), thawed(4.2)), []),
        ((RENEWED, thawed(4.2), node(4.29, "gate.closed", fence=7)), []),
    ],
    ids=["thawed-just-before", "another-fault", "long-before", "expired", "let-go-by-the-node"],
)
def test_a_living_lease_that_a_thawed_etcd_leader_revokes_is_a_hand_in_its_key(
    others: tuple[Op, ...], hands: list[int]
) -> None:
    told = tell(GONE, *others)
    assert [o.value["fence"] for o in told.hands()] == hands
    before = gate_shut_before_key_gone(told).verdict
    shut = any(o.f == "gate.closed" for o in others)
    assert before is (Verdict.YES if hands or shut else Verdict.NO)


def test_what_is_said_after_the_stop_is_no_work_of_the_fleet() -> None:
    story = tell(node(21, "gate.closed", fence=7), node(22, "exit", status=0))
    assert not list(story.events("gate.closed"))
    assert [o.value["status"] for o in story.ops if o.f == "after.exit"] == [0]


def frozen(began_s: float, healed_s: float) -> Op:
    began_ns = round((1000 + began_s) * SECOND_NS)
    value = {"fault": "freeze-node", "nodes": ["a"], "began_ns": began_ns}
    return op(healed_s, Source.NEMESIS, "nemesis", "heal", bites=1, **value)


def started(at_s: float) -> Op:
    return node(
        at_s, "run.started", late_ms=0, ts=said(at_s), **RUN | {"scheduled_for": said(at_s)}
    )


def run_at(at_s: float) -> dict[str, Any]:
    return RUN | {"scheduled_for": said(at_s)}


def noted(at_s: float, what: str) -> Op:
    return op(at_s, Source.RUN, "a", what, **RUN)


def test_a_run_began_when_its_node_says_so_if_its_own_note_came_as_soon_as_it_could() -> None:
    run = started(3)
    assert [o.at_ns for o in tell(run, noted(3.2, "began")).notes("began")] == [3 * SECOND_NS]
    late = tell(run, noted(5.8, "began"))
    assert [o.at_ns for o in late.notes("began")] == [round(5.8 * SECOND_NS)]


def test_a_run_that_stood_still_is_given_that_time() -> None:
    story = tell(started(3), frozen(3.1, 9), noted(9.1, "began"))
    assert [o.at_ns for o in story.notes("began")] == [3 * SECOND_NS]


@pytest.mark.parametrize(("noted_s", "began_s"), [(9.01, 3.5), (9.2, 9.1)])
def test_a_first_note_in_the_moment_of_a_thaw_is_of_a_run_from_before(
    noted_s: float, began_s: float
) -> None:
    told_s = min(noted_s, 9.1)
    story = tell(
        started(told_s), frozen(3.5, 9), op(noted_s, Source.RUN, "a", "began", **run_at(told_s))
    )
    assert [o.at_ns for o in story.notes("began")] == [round(began_s * SECOND_NS)]


def test_a_run_that_was_killed_ended_with_its_last_beat() -> None:
    story = tell(started(3), noted(3.1, "began"), noted(4, "beat"), noted(5, "beat"))
    (ended,) = story.notes("ended")
    assert (ended.at_ns, ended.value["killed"]) == (5 * SECOND_NS, True)


def test_without_notes_of_their_own_runs_begin_by_their_nodes_word() -> None:
    assert [o.at_ns for o in tell(started(3)).notes("began")] == [3 * SECOND_NS]


def test_rows_are_told_in_text_whatever_the_database_gave() -> None:
    row = {"job": "tick", "scheduled_for": WALL, "retired_at": None, "effective_from": WALL}
    story = tell(
        op(22, Source.LEDGER, "ledger", "slot", **row),
        op(22, Source.LEDGER, "ledger", "job", **row),
        op(22, Source.PLAN, "harness", "periods", tick=1.5),
    )
    assert story.rows("slot")[0]["scheduled_for"] == WALL.isoformat()
    assert story.rows("job") == [{"job": "tick", "first_seen": WALL.isoformat(), "every_ms": 1500}]


def test_a_job_without_a_period_is_told_with_its_slots() -> None:
    row = {"job": "tick", "retired_at": None, "effective_from": WALL}
    story = tell(
        op(22, Source.LEDGER, "ledger", "job", **row),
        op(22, Source.PLAN, "harness", "slots", tick=[said(4)]),
    )
    assert story.rows("job") == [
        {"job": "tick", "first_seen": WALL.isoformat(), "slots": [said(4)]}
    ]


# ------------------------------------------------------------------ laws of real processes


def blow(fault: Fault, healed_s: float = 6) -> Op:
    value = {"fault": fault, "nodes": ["a"], "began_ns": 1002 * SECOND_NS, "bites": 1}
    return op(healed_s, Source.NEMESIS, "nemesis", "heal", **value)


def next_gate(at_s: float) -> Op:
    return op(at_s, Source.NODE, "b", "gate.opened", fence=8, lease="0b")


@pytest.mark.parametrize(
    ("ops", "verdict"),
    [
        ((blow(Fault.CUT), next_gate(4.5)), Verdict.YES),
        ((blow(Fault.CUT), next_gate(6.5)), Verdict.NO),
        ((blow(Fault.KILL_DAEMON), next_gate(2.2)), Verdict.YES),
        ((blow(Fault.KILL_DAEMON), next_gate(4.5)), Verdict.NO),
        ((blow(Fault.RESTART), next_gate(5.5)), Verdict.NO),
        ((blow(Fault.CUT),), Verdict.NO),
        ((), Verdict.UNKNOWN),
    ],
)
def test_a_successor_comes_in_time_for_what_befell_the_leader(
    ops: tuple[Op, ...], verdict: Verdict
) -> None:
    assert succeeded_in_time(tell(*ops)).verdict is verdict


def restored(began_s: float, healed_s: float) -> Op:
    value = {"fault": Fault.ETCD_RESTORE, "nodes": [], "bites": 3}
    began_ns = round((1000 + began_s) * SECOND_NS)
    return op(healed_s, Source.NEMESIS, "nemesis", "heal", began_ns=began_ns, **value)


@pytest.mark.parametrize(
    ("ops", "verdict"),
    [
        ((node(3, "exit", status=1),), Verdict.NO),
        ((node(3, "killed"), node(3.1, "exit", status=137)), Verdict.YES),
        ((node(3, "killed"), node(3.1, "exit", status=137), node(4, "exit", status=1)), Verdict.NO),
        ((restored(2, 6), node(5, "exit", status=2)), Verdict.YES),
        ((restored(2, 6), node(8, "exit", status=2)), Verdict.NO),
        ((restored(2, 6), node(5, "exit", status=1)), Verdict.NO),
        ((node(21, "exit", status=1),), Verdict.NO),
        ((node(21, "exit", status=0),), Verdict.YES),
        ((), Verdict.UNKNOWN),
    ],
)
def test_a_node_exits_when_asked_or_killed(ops: tuple[Op, ...], verdict: Verdict) -> None:
    assert no_node_falls_over(tell(*ops)).verdict is verdict


def remains(**found: Any) -> Op:
    nothing = {"processes": [], "connections": 0, "keys": [], "tracebacks": []}
    return op(25, Source.PLAN, "harness", "remains", **nothing | found)


@pytest.mark.parametrize("what", ["processes", "connections", "keys"])
def test_what_is_left_is_named(what: str) -> None:
    assert nothing_is_left(tell(remains())).verdict is Verdict.YES
    found = nothing_is_left(tell(remains(**{what: 3})))
    assert (found.verdict, found.text) == (Verdict.NO, f"{what}: 3")
    assert nothing_is_left(tell()).verdict is Verdict.UNKNOWN


def test_a_traceback_in_a_log_is_a_no() -> None:
    assert no_traceback(tell(remains())).verdict is Verdict.YES
    assert no_traceback(tell(remains(tracebacks=["a.stderr: KeyError"]))).verdict is Verdict.NO
    assert no_traceback(tell()).verdict is Verdict.UNKNOWN


def test_a_gate_is_shut_by_the_kill_of_its_daemon() -> None:
    story = tell(node(3, "killed"))
    assert [gate.closed_ns for gate in story.gates()] == [3 * SECOND_NS]
    assert checks.never_two_gates(tell(node(3, "killed"), next_gate(3.01))).verdict is Verdict.YES
