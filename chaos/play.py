"""A plan, played in a world of real processes, and judged.

Each move has a thread of its own: its target is found when it is put in, and recorded; what the
world cannot do, or what fails, is recorded too, and the run goes on. At the end everything is
healed, the nodes are asked to stop, and the history is told anew for the laws.
"""

from __future__ import annotations

import json
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import asdict
from datetime import UTC, datetime

from chaos import checks, gen, plan
from chaos.checks import Finding, Verdict
from chaos.faults import Fault
from chaos.op import History, OneClock, Op, Source, Type, save
from chaos.plan import Move
from chaos.real_laws import judge
from chaos.retold import retold
from chaos.run import NotSteady
from chaos.story import SECOND_NS
from chaos.workloads import AGAIN, EVERY_MS, HELD, LATE, TICK
from chaos.worlds import nemesis
from chaos.worlds.rig import Rig, Site, Wanted

START_S = 30.0
LINE_S = 15.0
TROUBLE = (OSError, subprocess.CalledProcessError, KeyError, IndexError, AssertionError)
"""What putting a fault in, or taking it out, may end with."""

SiteOf = Callable[[Wanted], AbstractContextManager[Site]]


def play(site_of: SiteOf, wanted: Wanted) -> tuple[Finding, ...]:
    """Leaves plan.json, history.jsonl, verdict.json and the logs in wanted.out. Raises NotHere."""
    history, clock = History(), OneClock()
    plan.save(wanted.plan, wanted.out / "plan.json")
    _say(history, clock, Source.PLAN, "harness", "plan", _premises(wanted))
    trouble: tuple[Finding, ...] = ()
    try:
        with site_of(wanted) as site, Rig(site, wanted, history, clock) as world:
            _Game(world).play()
    except NotSteady as error:
        trouble = (Finding("played_to_the_end", Verdict.UNKNOWN, str(error)),)
    save(told := retold(history.ops()), wanted.out / "history.jsonl")
    findings = (*trouble, *judge(told))
    kept = {"findings": [asdict(finding) for finding in findings]}
    text = json.dumps({**kept, "verdict": checks.verdict(findings)}, indent=2)
    (wanted.out / "verdict.json").write_text(text + "\n", encoding="utf-8")
    return findings


def _premises(wanted: Wanted) -> dict[str, object]:
    """What the laws are told; see laws.planned."""
    made = wanted.plan
    ttl_ns = made.ttl_s * SECOND_NS
    recovery_ns = gen.recovery_ms(made.ttl_s) * 1_000_000
    ours = wanted.config is None
    return {
        "wall": datetime.now(UTC).isoformat(),  # at the time of this op
        "seed": made.seed,
        "ours": ours,
        "ttl_ns": ttl_ns,
        "margin_ns": ttl_ns // 5,
        "nodes": list(wanted.nodes),
        "may_finish": [LATE] if ours else [],
        "alone": [TICK, HELD, LATE, AGAIN] if ours else [],
        "period_ns": EVERY_MS * 1_000_000,
        # Of slots that may be under way, or wait, when the nodes are stopped nothing is asked.
        "settle_ns": recovery_ns,
        "recovery_ns": recovery_ns,
        "rolling_ns": 1,
    }


def _say(
    history: History,
    clock: OneClock,
    source: Source,
    process: str,
    f: str,
    value: dict[str, object],
    type_: Type = Type.INFO,
) -> int:
    now_ns = clock.now_ns()
    history.add(Op(now_ns, source, process, f, type_, value))
    return now_ns


class _Game:
    """One plan in one world, from the nodes' start to their stop."""

    def __init__(self, world: Rig) -> None:
        self._world, self._plan = world, world.wanted.plan
        self._over = threading.Event()
        self._zero_s = 0.0

    def play(self) -> None:
        """Raises NotSteady if the fleet does not get up."""
        self._world.start_nodes()
        self._await_line()
        threads = [
            threading.Thread(target=self._move, args=(move,), name=str(move))
            for move in self._plan.moves
        ]
        for thread in threads:
            thread.start()
        try:
            for thread in threads:
                thread.join()
            self._wait_until(self._ends_ms())
        finally:
            self._over.set()
            for thread in threads:
                thread.join()
        self._say("stopping", {}, source=Source.PLAN)
        self._world.stop_nodes(last=self._world.leader())

    def _await_line(self) -> None:
        """Until somebody leads and all stand in line."""
        history = self._world.history
        opened = history.wait(lambda op: op.f == "gate.opened", within_s=START_S)
        put = history.wait(
            lambda op: op.source is Source.ETCD and op.f == "put",
            within_s=LINE_S,
            count=len(self._world.wanted.nodes),
        )
        if opened is None or put is None:
            raise NotSteady(f"no leader and {self._plan.nodes} candidates within {START_S:.0f} s")
        self._zero_s = time.monotonic()
        self._say("risen", {}, source=Source.PLAN)

    def _ends_ms(self) -> int:
        """As planned, and as much later as the last heal came late: call it after that."""
        past_ms = round((time.monotonic() - self._zero_s) * 1000)
        planned_ms = max((move.end_ms for move in self._plan.moves), default=0)
        return self._plan.time_ms + max(0, past_ms - planned_ms)

    def _wait_until(self, at_ms: int) -> bool:
        """False if the run ends before."""
        left_s = self._zero_s + at_ms / 1000 - time.monotonic()
        return not self._over.wait(max(0.0, left_s))

    # ------------------------------------------------------------------ one move

    def _move(self, move: Move) -> None:
        if not self._wait_until(move.at_ms):
            return
        if move.fault not in self._world.can:
            self._say("inject", {**_named(move), "why": "not possible here"})
            return
        for fault, value in self._put_in(move):
            self._over.wait(move.for_ms / 1000)
            self._take_out(fault, value)

    def _put_in(self, move: Move) -> Iterator[tuple[Fault, dict[str, object]]]:
        """The fault, if it could be put in."""
        began_ns = self._world.clock.now_ns()
        try:
            whom = nemesis.hit(self._world, move)
            value = _named(move) | {"nodes": sorted(whom.nodes), "members": sorted(whom.members)}
            value["began_ns"] = began_ns
            self._say("inject", value, Type.INVOKE)
            fault = nemesis.fault(self._world, move, whom)
            fault.inject()
        except TROUBLE as error:
            self._say("inject", {**_named(move), "why": repr(error)[:300]}, Type.FAIL)
            return
        self._say("inject", value, Type.OK)
        yield fault, value

    def _take_out(self, fault: Fault, value: dict[str, object]) -> None:
        try:
            value = {**value, "bites": fault.heal()}
        except TROUBLE as error:
            self._say("heal", {**value, "why": repr(error)[:300]}, Type.FAIL)
            return
        self._say("heal", value, Type.OK)

    def _say(
        self,
        f: str,
        value: dict[str, object],
        type_: Type = Type.INFO,
        source: Source = Source.NEMESIS,
    ) -> None:
        who = "nemesis" if source is Source.NEMESIS else "harness"
        _say(self._world.history, self._world.clock, source, who, f, value, type_)


def _named(move: Move) -> dict[str, object]:
    return {"fault": move.fault.value, "target": move.target.value, "amount": move.amount}
