"""The whole of it: a plan goes in, a history comes out.

The faults of a plan find their targets when they are put in, and say in the history whom they hit
and whether they bit.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from datetime import timedelta
from typing import Any

from chaos.gen import Draws
from chaos.op import Op, Source, Type
from chaos.plan import Fault, Move, Plan, Target
from chaos.worlds.sim.daemon import STARTED, Machine
from chaos.worlds.sim.engine import MS, SECOND, Engine
from chaos.worlds.sim.etcd import Etcd
from chaos.worlds.sim.ledger import ModelLedger
from cron_leader.core import messages as m
from cron_leader.core.dispatch import Pool
from cron_leader.core.model import (
    Catchup,
    CommandSpec,
    Delivery,
    Job,
    OnLostLeadership,
    Run,
    SlotKey,
    State,
)
from cron_leader.core.schedule import Every
from cron_leader.core.standing import Limits

END_MS = 40_000
"""The plan's time is followed by this much peace."""
_TRUE = CommandSpec(("true",))


PERIODS_S = (3, 5, 11, 17, 29, 13, 7, 23, 19, 31)


def jobs_of(count: int) -> dict[str, Job]:
    """The same jobs in every run: all policies, periods from three seconds up."""
    return {f"job-{n}": _job(n) for n in range(count)}


def _job(n: int) -> Job:
    return Job(
        f"job-{n}",
        Every(timedelta(seconds=PERIODS_S[n % 10])),
        _TRUE,
        catchup=(Catchup.LATEST, Catchup.ALL, Catchup.NONE)[n % 3],
        delivery=(Delivery.AT_MOST_ONCE, Delivery.AT_LEAST_ONCE)[n % 2],
        on_lost_leadership=OnLostLeadership.FINISH if n == 6 else OnLostLeadership.KILL,
        jitter_s=2.0 if n == 4 else 0.0,
        start_within_s=8.0 if n == 8 else None,
    )


class LedgerServer:
    """Where the ledger runs: it may be frozen, or away, and lose its answers."""

    def __init__(self, world: World) -> None:
        self._world = world
        self.ledger = ModelLedger(world.committed, world.ended)
        self.frozen = self.away = 0
        self._held: list[tuple[Machine, Callable[[], Any], Callable[[Any], None]]] = []

    def wall(self) -> Any:
        """Its own clock, which is right."""
        return STARTED + timedelta(microseconds=self._world.engine.now_ns // 1_000)

    def serve(self, machine: Machine, do: Callable[[], Any], answer: Callable[[Any], None]) -> None:
        if self.away:
            self._world.bit()
            answer(None)
        elif self.frozen:
            self._world.bit()
            self._held.append((machine, do, answer))
        else:
            done = do()
            if self._world.engine.now_ns < machine.lost_commits_until:
                self._world.bit()
                done = None
            answer(done)

    def thaw(self) -> None:
        self.frozen -= 1
        if not self.frozen:
            held, self._held = self._held, []
            for asked in held:
                self.serve(*asked)


class World:
    """One run. Used once."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        draws = Draws(plan.seed, 1)
        self.engine = Engine()
        self.ops: list[Op] = []
        self.over = False
        self.jobs: Mapping[str, Job] = jobs_of(plan.jobs)
        ttl_ns = plan.ttl_s * SECOND
        margin_ns = max(ttl_ns // 5, 1_630 * MS)
        self.limits = Limits(ttl_ns, margin_ns, 10.0, 5.0, Pool(8, 10.0))
        self._bites = 0
        self.etcd = Etcd(self.engine, Draws(draws.bits()), self.note)
        self.ledger_server = LedgerServer(self)
        self._lasts = Draws(draws.bits())
        self._names = "abcdefghi"[: plan.nodes]
        self.machines = {name: Machine(self, name, Draws(draws.bits())) for name in self._names}
        for machine in self.machines.values():
            self.engine.at(draws.below(2_000) * MS, machine.start)
        for move in plan.moves:
            self.engine.at(move.at_ms * MS, self._begin, move)

    def run(self) -> tuple[Op, ...]:
        """The history, in order of time."""
        plan = self.plan
        value = {
            "seed": plan.seed,
            "ttl_ns": self.limits.ttl_ns,
            "margin_ns": self.limits.margin_ns,
            "period_ns": min(PERIODS_S[: plan.jobs]) * SECOND,
            "nodes": list(self._names),
            "started": STARTED.isoformat(),
            "may_finish": [job.name for job in self.jobs.values() if job.may_finish],
            "alone": [job.name for job in self.jobs.values() if not job.has_place(1)],
        }
        self.note(Op(0, Source.PLAN, "sim", "plan", value=value))
        self.engine.run((plan.time_ms + END_MS) * MS)
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

    def committed(self, node: str, what: str, fence: int, raised: bool) -> None:
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
        for record in ledger.jobs.values():
            every = self.jobs[record.job].schedule
            assert isinstance(every, Every)
            value = {
                "job": record.job,
                "first_seen": record.effective_from.isoformat(),
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

    def user_write(self, run: Run) -> None:
        """At the ledger: what `tick.transaction()` commits, under the guard."""
        server = self.ledger_server
        if not (server.away or server.frozen) and server.ledger.guard(run.term):
            self.committed(run.term.node, "user", run.term.fence, False)

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
        hit = self.resolve(move)
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
        if move.fault in _ETCD:
            self._do_etcd(move, undo)
            return
        if move.fault is Fault.ROLLING_RESTART:
            for n, machine in enumerate(hit):
                self.engine.at(self.engine.now_ns + n * 5 * SECOND, self._restart, machine)
            return
        if move.fault in (Fault.LEDGER_FREEZE, Fault.LEDGER_RESTART):
            self._do_ledger(move, undo)
            return
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
                x.clock.step_ns += move.amount * MS
                if x.daemon is not None:
                    x.daemon.process.wake(x.daemon.wake)
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
                self._restart(x)
            case _:
                raise AssertionError(f"the sim does no {fault}")

    def _restart(self, x: Machine) -> None:
        if x.daemon is not None:
            self.bit()
            x.daemon.tell(m.StopAsked(15))

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
            value = {"node": x.name, "fence": self.etcd.line[id_].created}
            self._say("meddled", Type.INFO, value)
            match fault:
                case Fault.LEASE_REVOKE:
                    self.etcd.revoke(id_)
                case Fault.KEY_DELETE:
                    self.etcd.delete(id_)
                case _:
                    self.etcd.foreign_put(id_)

    def _do_ledger(self, move: Move, undo: ExitStack) -> None:
        server = self.ledger_server
        if move.fault is Fault.LEDGER_FREEZE:
            server.frozen += 1
            undo.callback(server.thaw)
        else:
            server.away += 1
            undo.callback(lambda: setattr(server, "away", server.away - 1))

    def _do_etcd(self, move: Move, undo: ExitStack) -> None:
        etcd = self.etcd
        self.bit()
        if move.fault is Fault.ETCD_MOVE_LEADER:
            etcd.move_leader()
            return
        dumb = move.fault is not Fault.ETCD_ISOLATE
        hit = move.pick % 3
        if move.target is Target.ETCD_LEADER and etcd.leader is not None:
            hit = etcd.leader
        members = [hit, (hit + 1) % 3] if move.fault is Fault.ETCD_QUORUM_LOSS else [hit]
        for member in members:
            etcd.hurt(member, dumb=dumb)
            undo.callback(etcd.mend, member, dumb=dumb)


def _slot(slot: SlotKey) -> dict[str, Any]:
    return {
        "job": slot.job,
        "scheduled_for": slot.scheduled_for.isoformat(),
        "command_id": slot.command_id,
    }


_ETCD = frozenset(
    {
        Fault.ETCD_KILL,
        Fault.ETCD_FREEZE,
        Fault.ETCD_ISOLATE,
        Fault.ETCD_MOVE_LEADER,
        Fault.ETCD_QUORUM_LOSS,
    }
)
CAN = frozenset(Fault) - {
    Fault.RATE,
    Fault.SLOW,
    Fault.CONFIG_CHANGE,
    Fault.DISK_FULL,
    Fault.ETCD_COMPACT,
    Fault.ETCD_DEFRAG,
    Fault.ETCD_NOSPACE,
    Fault.ETCD_RESTORE,
}
"""The faults that this world does."""
