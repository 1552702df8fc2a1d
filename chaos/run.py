"""The scenarios: each puts one fault to a steady fleet, waits for what must follow, and is judged.

A scenario only acts and waits; whether the promise held is for the checks to say, from the history.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path

from chaos import canaries, checks, workloads
from chaos.checks import Finding, Verdict
from chaos.faults import Cut, CutOneWay, Delay, Fault
from chaos.op import History, OneClock, Op, Source, Type, save
from chaos.story import SECOND_NS, Plan
from chaos.workloads import HELD, LATE, TICK
from chaos.worlds.netns import NODES, Netns, Setting
from chaos.worlds.nodes import sound
from chaos.worlds.services import CLIENT_PORT, NotHere

TTL_S = 5
DELAY_MS = (TTL_S + 1) * 1000
"""One way: no renewal sent under it can be answered, or even arrive, within the lease."""
MARGIN_MS = 1200
"""At most what the nodes take: etcd's election timeout of 1 s, and 0.2 s."""
ONE_WAY_NS = (TTL_S * 1000 - MARGIN_MS + 1000) * 1_000_000
START_S = 30.0
SETTLE_S = 15.0


class NotSteady(Exception):
    """The fleet did not get to where the scenario begins, or did not recover; one line."""


@dataclass(frozen=True, slots=True)
class Lead:
    """The term that is to be hit."""

    node: str
    fence: int


class Stage:
    """A world and its history, in the scenarios' words."""

    def __init__(self, world: Netns) -> None:
        self.world, self.history, self.clock = world, world.history, world.clock

    def steady(self) -> Lead:
        """Three nodes in line, one leads, ticks, and has a run of each other job under way."""
        for name in NODES:
            self.world.start_node(name)
        opened = self._see("a leader", lambda op: op.f == "gate.opened", within_s=START_S)
        lead = Lead(opened.process, opened.value["fence"])
        self._see("three candidates", lambda op: _is(op, Source.ETCD, "put"), count=len(NODES))
        for job, count in ((TICK, 3), (HELD, 1), (LATE, 1)):
            self._see(f"{count} runs of {job}", _started(job, lead.fence), count=count)
        return lead

    @contextmanager
    def under(self, fault: Fault, lead: Lead) -> Iterator[int]:
        """The fault is in while the block runs; gives the time it was asked for."""
        hit = {"fault": fault.name, "node": lead.node, "fence": lead.fence}
        began_ns = self._nemesis("inject", Type.INVOKE, hit)
        try:
            fault.inject()
            self._nemesis("inject", Type.OK, hit)
            yield began_ns
            self._nemesis("heal", Type.INVOKE, hit)
            packets = fault.heal()
            self._nemesis("heal", Type.OK, {**hit, "packets": packets})
        finally:
            fault.heal()

    def pass_until(self, at_ns: int) -> None:
        """The fault lasts a given time: nothing to wait for but the clock."""
        time.sleep(max(0.0, (at_ns - self.clock.now_ns()) / SECOND_NS))

    def successor(self, lead: Lead, *, by_ns: int) -> None:
        """Until a newer term starts a run of the interval job, or that time has come."""
        within_s = (by_ns - self.clock.now_ns()) / SECOND_NS
        self.history.wait(lambda op: _newer_tick(op, lead), within_s=within_s)

    def let_the_late_run_end(self, lead: Lead) -> None:
        """Its finish reaches the ledger: until the node has its answer."""
        began_ns = self.clock.now_ns()
        self.world.release()
        self.history.wait(
            lambda op: op.process == lead.node and op.f == "ledger.refused",
            within_s=SETTLE_S / 3,
            after_ns=began_ns,
        )

    def recover(self, lead: Lead) -> None:
        """After the heal: the hit node in line again, three more ticks."""
        healed_ns = self.clock.now_ns()
        in_line = partial(_is, source=Source.ETCD, f="put", process=lead.node)
        self.history.wait(in_line, within_s=SETTLE_S, count=2)
        self.history.wait(_ticked, within_s=SETTLE_S, count=3, after_ns=healed_ns)

    def _see(
        self, what: str, wanted: Callable[[Op], bool], *, within_s: float = SETTLE_S, count: int = 1
    ) -> Op:
        """It must come for the scenario to go on; a node that exits instead ends the waiting."""
        seen = self.history.wait(
            lambda op: wanted(op) or _is(op, Source.NODE, "exit"), within_s=within_s, count=count
        )
        if seen is None:
            raise NotSteady(f"not seen within {within_s:.0f} s: {what}")
        if seen.f == "exit":
            raise NotSteady(f"node {seen.process} exited with status {seen.value['status']}")
        return seen

    def _nemesis(self, f: str, kind: Type, value: Mapping[str, object]) -> int:
        now_ns = self.clock.now_ns()
        self.history.add(Op(now_ns, Source.NEMESIS, "nemesis", f, kind, value))
        return now_ns


def _is(op: Op, source: Source, f: str, process: str | None = None) -> bool:
    return op.source is source and op.f == f and process in (None, op.process)


def _started(job: str, fence: int) -> Callable[[Op], bool]:
    return lambda op: op.f == "run.started" and (op.value["job"], op.value["fence"]) == (job, fence)


def _ticked(op: Op) -> bool:
    return op.f == "run.started" and op.value["job"] == TICK


def _newer_tick(op: Op, lead: Lead) -> bool:
    return _ticked(op) and op.value["fence"] > lead.fence


# ------------------------------------------------------------------ the scenarios


def lease_stall(stage: Stage, variant: str) -> None:
    """The leader's renewals stall for 1.5 TTL. It must stop by its own deadline, before the lease
    can have expired, and a successor must tick within 2 TTL of the fault."""
    lead = stage.steady()
    host = stage.world.host_of(lead.node)
    fault = Delay(host, CLIENT_PORT, DELAY_MS) if variant == "delay" else Cut(host, CLIENT_PORT)
    with stage.under(fault, lead) as began_ns:
        heal_ns = began_ns + TTL_S * SECOND_NS * 3 // 2
        stage.successor(lead, by_ns=heal_ns)
        stage.pass_until(heal_ns)
    stage.successor(lead, by_ns=began_ns + (2 * TTL_S + 1) * SECOND_NS)
    stage.let_the_late_run_end(lead)
    stage.recover(lead)


def split_brain(stage: Stage, variant: str) -> None:
    """The leader loses etcd but not Postgres for 2 TTL + 2 s, with a run that may finish held open
    over the cut: its finish reaches the ledger under a fence that a successor has overtaken."""
    lead = stage.steady()
    with stage.under(Cut(stage.world.host_of(lead.node), CLIENT_PORT), lead) as began_ns:
        stage.pass_until(began_ns + (2 * TTL_S + 2) * SECOND_NS)
    stage.let_the_late_run_end(lead)
    stage.recover(lead)


def one_way(stage: Stage, variant: str) -> None:
    """The leader's requests arrive at etcd, no answer comes back. It must stop by its own deadline,
    and, though nobody answers, take its key out of etcd: the successor waits for no expiry."""
    lead = stage.steady()
    with stage.under(CutOneWay(stage.world.host_of(lead.node), CLIENT_PORT), lead) as began_ns:
        heal_ns = began_ns + TTL_S * SECOND_NS * 3 // 2
        stage.successor(lead, by_ns=heal_ns)
        stage.pass_until(heal_ns)
    stage.let_the_late_run_end(lead)
    stage.recover(lead)


@dataclass(frozen=True, slots=True)
class Scenario:
    """The first variant is the default.

    gate_within_ns: what is promised of the successor's gate after the fault; None: nothing more
    than of its first tick.
    """

    name: str
    play: Callable[[Stage, str], None]
    variants: tuple[str, ...]
    gate_within_ns: int | None = None


SCENARIOS = {
    scenario.name: scenario
    for scenario in (
        Scenario("lease-stall", lease_stall, ("drop", "delay")),
        Scenario("split-brain", split_brain, ("cut",)),
        Scenario("one-way", one_way, ("cut",), gate_within_ns=ONE_WAY_NS),
    )
}


# ------------------------------------------------------------------ one run


@dataclass(frozen=True, slots=True)
class Order:
    """What to run. canary: a defect to build in, None for the program as shipped."""

    scenario: str
    variant: str
    canary: str | None
    out: Path


@dataclass(frozen=True, slots=True)
class Outcome:
    order: Order
    verdict: Verdict
    findings: tuple[Finding, ...]


def run(order: Order) -> Outcome:
    """Play it in a fresh world, judge it, and leave everything in order.out. Inside `contain`."""
    history, clock = History(), OneClock()
    history.add(Op(clock.now_ns(), Source.PLAN, "harness", "plan", value=asdict(_plan(order))))
    try:
        trouble = _play(order, history, clock)
    finally:
        drift = {"drift_ns": clock.drift_ns()}
        history.add(Op(clock.now_ns(), Source.PLAN, "harness", "drift", value=drift))
        save(history.ops(), order.out / "history.jsonl")
    findings = (*trouble, *judge(history.ops()))
    outcome = Outcome(order, checks.verdict(findings), findings)
    _keep(outcome)
    return outcome


def judge(ops: Sequence[Op]) -> tuple[Finding, ...]:
    return checks.judge(ops, (*checks.SOUND, *checks.ALWAYS))


def _plan(order: Order) -> Plan:
    every_ns = workloads.EVERY_MS * 1_000_000
    within_ns = SCENARIOS[order.scenario].gate_within_ns
    return Plan(order.scenario, TTL_S * SECOND_NS, every_ns, TICK, HELD, within_ns)


def _play(order: Order, history: History, clock: OneClock) -> tuple[Finding, ...]:
    """Empty, or why the scenario could not be played to its end."""
    launch = canaries.launcher(order.canary) if order.canary else sound
    try:
        with Netns(Setting(order.out, TTL_S, launch), history, clock) as world:
            SCENARIOS[order.scenario].play(Stage(world), order.variant)
            history.add(Op(clock.now_ns(), Source.PLAN, "harness", "stopping"))
            world.stop_nodes(last=_leader(history))
    except (NotHere, NotSteady, OSError) as error:
        return (Finding("played_to_the_end", Verdict.UNKNOWN, str(error)),)
    return ()


def _leader(history: History) -> str | None:
    opened = [op.process for op in history.ops() if op.f == "gate.opened"]
    return opened[-1] if opened else None


def _keep(outcome: Outcome) -> None:
    text = json.dumps(asdict(outcome), default=str, indent=2)
    (outcome.order.out / "verdict.json").write_text(text + "\n", encoding="utf-8")
