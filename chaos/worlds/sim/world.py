"""The whole of it: a plan goes in, a history comes out.

The faults of a plan find their targets when they are put in, and say in the history whom they hit
and whether they bit.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from datetime import timedelta
from typing import Any

from chaos.gen import Draws
from chaos.op import Op, Source, Type
from chaos.plan import ETCD_FAULTS, LEDGER_FAULTS, Fault, Move, Plan, Target
from chaos.worlds.sim.daemon import STARTED, Machine, text
from chaos.worlds.sim.engine import MS, SECOND, Engine
from chaos.worlds.sim.etcd import MEMBERS, Etcd
from chaos.worlds.sim.fleet import Fleet
from chaos.worlds.sim.operators import APART_NS, Operators
from chaos.worlds.sim.server import LedgerServer
from cron_leader.core import messages as m
from cron_leader.core.model import JobRecord, Run, SlotKey, State
from cron_leader.core.schedule import Every
from cron_leader.core.standing import Limits

STREAM = 1
LUCKS_APART = 256
"""From the stream of one luck to that of the next. No other stream of a seed is one of them."""
PEACE_MS = 60_000
"""After the last fault, at least: of a short plan, beyond its time."""


class World:
    """One run. Used once."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        draws = Draws(plan.seed, STREAM + LUCKS_APART * plan.luck)
        self.engine = Engine()
        self.ops: list[Op] = []
        self.over = False
        self.fleet = Fleet(plan.seed, plan.jobs)
        self.rollback = self.fleet.rollback
        ttl_ns = plan.ttl_s * SECOND
        margin_ns = max(ttl_ns // 5, 1_630 * MS)
        self.limits = Limits(ttl_ns, margin_ns, 10.0, 5.0, self.fleet.pool)
        self._bites = 0
        self.etcd = Etcd(self.engine, Draws(draws.bits()), self.note)
        self.ledger_server = LedgerServer(self, Draws(draws.bits()))
        self._lasts = Draws(draws.bits())
        self._names = "abcdefghi"[: plan.nodes]
        self.machines = {name: Machine(self, name, Draws(draws.bits())) for name in self._names}
        for machine in self.machines.values():
            self.engine.at(draws.below(2_000) * MS, machine.start)
        self._operators = Operators(self, Draws(draws.bits()), plan)
        for move in plan.moves:
            self.engine.at(move.at_ms * MS, self._begin, move)

    def run(self) -> tuple[Op, ...]:
        """The history, in order of time."""
        plan, jobs = self.plan, self.fleet.every()
        value = {
            "seed": plan.seed,
            "ttl_ns": self.limits.ttl_ns,
            "margin_ns": self.limits.margin_ns,
            "period_ns": self.fleet.period_s * SECOND,
            "nodes": list(self._names),
            "started": STARTED.isoformat(),
            "rollback": self.rollback.value,
            "may_finish": sorted({job.name for job in jobs if job.may_finish}),
            "groups": {job.name: job.group for job in jobs if job.group},
            "bounds": dict(self.fleet.pool.groups),
            "alone": sorted({job.name for job in jobs if not job.has_place(1)}),
            **({"luck": plan.luck} if plan.luck else {}),
        }
        self.note(Op(0, Source.PLAN, "sim", "plan", value=value))
        last_ms = max((move.end_ms for move in plan.moves), default=0)
        self.engine.run(max(plan.time_ms, last_ms + PEACE_MS) * MS)
        self.over = True
        for op in self._rows():
            self.note(op)
        return tuple(self.ops)

    # ------------------------------------------------------------------ what is seen

    def note(self, op: Op) -> None:
        self.ops.append(op)

    def bit(self) -> None:
        """A fault touched something."""
        self._bites += 1

    def restored(self, holder: str, fence: tuple[int, str] | None) -> None:
        """The ledger is what it was under that fence."""
        value = {"operation": "restore", "relation": "fence", "fence": fence and fence[0]}
        op = Op(self.engine.now_ns, Source.LEDGER, holder, "accepted", value=value)
        self.note(replace(op, value={**value, "term": value["fence"]}))

    def meddled(self, node: str, fence: int) -> None:
        """Somebody's hand was in the node's key."""
        self._say("meddled", Type.INFO, {"node": node, "fence": fence})

    def committed(self, node: str, what: str, fence: int, raised: bool) -> None:
        if raised:
            self.etcd.rebased(self.ledger_server.ledger.offset)
        if raised and (daemon := self.machines[node].daemon) and daemon.candidacy:
            self.etcd.raised_by(daemon.candidacy.lease, fence)
        value = {
            "operation": "write",
            "relation": what,
            "fence": fence if raised else None,
            "term": fence,
        }
        self.note(Op(self.engine.now_ns, Source.LEDGER, node, "accepted", value=value))

    def ended(self, slot: SlotKey, state: State) -> None:
        value = {**_slot(slot), "state": state.value}
        self.note(Op(self.engine.now_ns, Source.LEDGER, "ledger", "final", value=value))

    def _rows(self) -> Iterator[Op]:
        now_ns, ledger = self.engine.now_ns, self.ledger_server.ledger
        for slot, row in ledger.slots.items():
            value: dict[str, Any] = {
                **_slot(slot),
                "state": row.state.value,
                "attempt": row.attempt,
                "fence": row.fence,
            }
            yield Op(now_ns, Source.LEDGER, "ledger", "slot", value=value)
        for gap in ledger.gaps.values():
            value = {"job": gap.job, "first": gap.first.isoformat(), "last": gap.last.isoformat()}
            yield Op(now_ns, Source.LEDGER, "ledger", "gap", value=value)
        for fence, high, node, what in ledger.refusals:
            value = {"fence": fence, "high": high, "node": node, "what": what}
            yield Op(now_ns, Source.LEDGER, "ledger", "refusal", value=value)
        schedules = {job.schedule.digest: job.schedule for job in self.fleet.every()}
        for record in ledger.jobs.values():
            every = schedules[record.digest]
            assert isinstance(every, Every)
            value = {
                "job": record.job,
                "first_seen": record.effective_from.isoformat(),
                "paused": _pause(record),
                "retired_at": record.retired_at and record.retired_at.isoformat(),
                "every_ms": every.period // timedelta(milliseconds=1),
            }
            yield Op(now_ns, Source.LEDGER, "ledger", "job", value=value)

    # ------------------------------------------------------------------ runs

    def lasts_ns(self, run: Run) -> int:
        """How long a run takes: mostly a moment, now and then longer than its period."""
        del run
        if self._lasts.percent(90):
            return self._lasts.between(5, 400) * MS
        return self._lasts.between(1_000, 15_000) * MS

    # ------------------------------------------------------------------ targets

    def leader(self) -> Machine | None:
        """The first in line, as etcd has it."""
        line = self._line()
        return line[0] if line else None

    def _line(self) -> list[Machine]:
        keys = sorted(self.etcd.line.values(), key=lambda key: key.created)
        return [self.machines[key.node] for key in keys]

    def resolve(self, move: Move) -> list[Machine]:
        every, line = list(self.machines.values()), self._line()
        turn = move.pick % len(every)
        turned = every[turn:] + every[:turn]
        half = (len(every) - 1) // 2
        match move.target:
            case Target.LEADER:
                return line[:1]
            case Target.NEXT:
                return line[1:2]
            case Target.FOLLOWER:
                return [machine for machine in turned if machine not in line[:1]][:1]
            case Target.MINORITY:
                return turned[:half]
            case Target.MAJORITY:
                return turned[: half + 1]
            case Target.ALL:
                return turned
            case _:
                return turned[:1]

    # ------------------------------------------------------------------ faults

    def _begin(self, move: Move) -> None:
        """Put the fault in; taken out again at its end."""
        hit = [] if move.fault in _OF_NO_NODE else self.resolve(move)
        value = {
            "fault": move.fault.value,
            "target": move.target.value,
            "nodes": sorted(machine.name for machine in hit),
            "began_ns": self.engine.now_ns,
        }
        for_ns, before = move.for_ms * MS, self._bites
        self._say("inject", Type.INVOKE, value)
        undo = ExitStack()
        self._do(move, hit, undo)
        self._say("inject", Type.OK, value)
        self.engine.at(self.engine.now_ns + for_ns, self._heal, undo, value, before)

    def _heal(self, undo: ExitStack, value: Mapping[str, Any], before: int) -> None:
        undo.close()
        ways = [way for x in self.machines.values() for way in (x.to_etcd, x.to_ledger)]
        for way in ways:
            self._bites, way.bit = self._bites + way.bit, 0
        self._say("heal", Type.OK, {**value, "bites": self._bites - before})

    def _say(self, f: str, type_: Type, value: Mapping[str, Any]) -> None:
        self.note(Op(self.engine.now_ns, Source.NEMESIS, "nemesis", f, type_, value))

    def _do(self, move: Move, hit: Sequence[Machine], undo: ExitStack) -> None:
        match move.fault:
            case Fault.ROLLING_RESTART:
                for n, machine in enumerate(hit):
                    self.engine.at(self.engine.now_ns + n * APART_NS, self.restart, machine)
            case Fault.CONFIG_CHANGE:
                self.bit()
                self._operators.release(list(hit))
            case Fault.ORDER:
                self._operators.order(move)
            case fault if fault in ETCD_FAULTS:
                self._do_etcd(move, undo)
            case fault if fault in LEDGER_FAULTS:
                self._do_ledger(move, undo)
            case _:
                for machine in hit:
                    self._do_machine(move, machine, undo)

    def _do_machine(self, move: Move, x: Machine, undo: ExitStack) -> None:
        match move.fault:
            case Fault.CUT | Fault.LINK_DOWN:
                self._cut(x, undo, (0, 1), etcd=True, ledger=True)
            case Fault.CUT_OUT:
                self._cut(x, undo, (0,), etcd=True, ledger=True)
            case Fault.CUT_IN:
                self._cut(x, undo, (1,), etcd=True, ledger=True)
            case Fault.CUT_ETCD:
                self._cut(x, undo, (0, 1), etcd=True, ledger=False)
            case Fault.CUT_LEDGER:
                self._cut(x, undo, (0, 1), etcd=False, ledger=True)
            case Fault.RESET:
                x.to_etcd.reset()
                x.to_ledger.reset()
            case Fault.LOSS | Fault.DELAY:
                self._worsen(move, x, undo)
            case Fault.CLOCK_STEP:
                self.bit()
                self._step_clock(x, move.amount)
                undo.callback(self._step_clock, x, -move.amount)
            case Fault.CLOCK_DRIFT:
                self.bit()
                x.clock.drift(self.engine.now_ns, move.amount)
                undo.callback(lambda: x.clock.drift(self.engine.now_ns, 0))
            case Fault.LEDGER_LOST_COMMIT:
                x.lost_commits_until = self.engine.now_ns + move.for_ms * MS
            case Fault.LEDGER_LATE_COPY:
                x.late_copies_until = self.engine.now_ns + move.for_ms * MS
            case Fault.LEASE_REVOKE | Fault.KEY_DELETE | Fault.FOREIGN_PUT:
                self._meddle(move.fault, x)
            case _:
                self._do_processes(move.fault, x, undo)

    def _do_processes(self, fault: Fault, x: Machine, undo: ExitStack) -> None:
        daemon = x.daemon
        if daemon is None:
            return
        self.bit()
        match fault:
            case Fault.FREEZE_DAEMON:
                daemon.process.freeze()
                undo.callback(daemon.process.thaw)
            case Fault.FREEZE_NODE:
                jobs = x.jobs
                daemon.process.freeze()
                jobs.freeze()
                undo.callback(daemon.process.thaw)
                undo.callback(jobs.thaw)
            case Fault.KILL_DAEMON:
                x.daemon_gone(daemon)
            case Fault.KILL_NODE:
                x.supervised = False
                x.daemon_gone(daemon)
            case Fault.KILL_SUPERVISOR:
                x.supervised = False
                daemon.tell(m.SupervisorGone())
            case Fault.RESTART:
                self.restart(x)
            case _:
                raise AssertionError(f"the sim does no {fault}")

    def restart(self, x: Machine) -> None:
        """Ask it to stop; it is started again as whatever ends is."""
        if x.daemon is not None:
            self.bit()
            x.daemon.tell(m.StopAsked(15))

    def _step_clock(self, x: Machine, by_ms: int) -> None:
        x.clock.step_ns += by_ms * MS
        if x.daemon is not None:
            x.daemon.process.wake(x.daemon.wake)

    def _cut(
        self, x: Machine, undo: ExitStack, ways: tuple[int, ...], *, etcd: bool, ledger: bool
    ) -> None:
        for way, wanted in ((x.to_etcd, etcd), (x.to_ledger, ledger)):
            if wanted:
                way.cut(*ways)
                undo.callback(way.heal, *ways)

    def _worsen(self, move: Move, x: Machine, undo: ExitStack) -> None:
        for way in (x.to_etcd, x.to_ledger):
            name = "loss" if move.fault is Fault.LOSS else "delay_ms"
            undo.callback(setattr, way, name, 0)
            setattr(way, name, move.amount)

    def _meddle(self, fault: Fault, x: Machine) -> None:
        """Somebody's hand in etcd."""
        mine = [id_ for id_, key in self.etcd.line.items() if key.node == x.name and key.lease]
        for id_ in mine if self.etcd.leader is not None else ():
            self.bit()
            self.meddled(x.name, self.etcd.line[id_].fence)
            match fault:
                case Fault.LEASE_REVOKE:
                    self.etcd.revoke(id_)
                case Fault.KEY_DELETE:
                    self.etcd.delete(id_)
                case _:
                    self.etcd.foreign_put(id_)

    def _do_ledger(self, move: Move, undo: ExitStack) -> None:
        server = self.ledger_server
        match move.fault:
            case Fault.LEDGER_FREEZE:
                server.freeze()
                undo.callback(server.thaw)
            case Fault.LEDGER_RESTART:
                server.stop()
                undo.callback(server.start)
            case _:
                self.bit()
                self._operators.restore_ledger(move, undo)

    def _do_etcd(self, move: Move, undo: ExitStack) -> None:
        etcd = self.etcd
        self.bit()
        hit = move.pick % MEMBERS
        if move.target is Target.ETCD_LEADER and etcd.leader is not None:
            hit = etcd.leader
        match move.fault:
            case Fault.ETCD_MOVE_LEADER:
                etcd.move_leader()
            case Fault.ETCD_COMPACT:
                etcd.compact()
            case Fault.ETCD_DEFRAG:
                etcd.busy(hit)
                undo.callback(etcd.idle, hit)
            case Fault.ETCD_NOSPACE:
                etcd.full += 1
                undo.callback(lambda: setattr(etcd, "full", etcd.full - 1))
            case Fault.ETCD_RESTORE:
                self._operators.restore_etcd(move, undo)
            case Fault.ETCD_QUORUM_LOSS:
                self._hurt(hit, undo, dumb=True)
                self._hurt((hit + 1) % MEMBERS, undo, dumb=True)
            case fault:
                self._hurt(hit, undo, dumb=fault is not Fault.ETCD_ISOLATE)

    def _hurt(self, member: int, undo: ExitStack, *, dumb: bool) -> None:
        self.etcd.hurt(member, dumb=dumb)
        undo.callback(self.etcd.mend, member, dumb=dumb)


def _pause(record: JobRecord) -> tuple[str, str] | None:
    """The last one: [from, until)."""
    if record.paused_from is None or record.paused_until is None:
        return None
    return record.paused_from.isoformat(), record.paused_until.isoformat()


def _slot(slot: SlotKey) -> dict[str, Any]:
    return {
        "job": slot.job,
        "scheduled_for": text(slot.scheduled_for),
        "command_id": slot.command_id,
    }


_OF_NO_NODE = ETCD_FAULTS | LEDGER_FAULTS
CAN = frozenset(Fault) - {Fault.RATE, Fault.SLOW, Fault.DISK_FULL}
"""The faults that this world does."""
