"""One machine of the fleet: the daemon around the real core, its supervisor, its runs.

The daemon steps the core on each event and on its alarms; a frozen one does all of that when it is
thawed. The supervisor kills runs at the deadline it was told, and, when the daemon has died, first
the runs, then the lease. A dead daemon is started again after a while, as systemd would.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import lru_cache
from typing import TYPE_CHECKING

from chaos.gen import Draws
from chaos.op import Op, Source
from chaos.worlds.sim.candidacy import LEAVE_NS, Candidacy, Client
from chaos.worlds.sim.engine import BOOTED_NS, MS, SECOND, Clock, Process, Steps, Task
from chaos.worlds.sim.network import Way
from chaos.worlds.sim.scribe import Scribe
from cron_leader.core import messages as m
from cron_leader.core.messages import Effect, Event, Now
from cron_leader.core.model import Result, Run
from cron_leader.core.node import Node
from cron_leader.core.schedule import EPOCH

if TYPE_CHECKING:
    from chaos.worlds.sim.world import World

STARTED = datetime(2026, 12, 1, tzinfo=EPOCH.tzinfo)
"""What the wall clocks show at the start of a run."""
SLOW_DEATH_NS = 400 * MS
"""Of a process that waits for a disk."""
MICROSECOND = timedelta(microseconds=1)
_UNTOLD = frozenset({"slot.skipped"})


@dataclass(slots=True)
class RunProcess:
    """The process of one run. ends_ns: true time of its own end, if nobody ends it."""

    run: Run
    began: datetime | None = None
    alive: bool = True


class Machine:
    """What outlives the daemon: clocks, ways, and the processes of its runs."""

    def __init__(self, world: World, name: str, draws: Draws) -> None:
        self.world, self.name, self.draws = world, name, draws
        self.engine = world.engine
        self.clock = Clock(draws.between(-100, 100))
        self.to_etcd = Way(world.engine, Draws(draws.bits()), world.etcd.broken)
        self.to_ledger = Way(world.engine, Draws(draws.bits()))
        self.jobs = Process(world.engine)
        self.daemon: Daemon | None = None
        self.supervised = False
        self.release = 0
        """Which configuration it is started with."""
        self.lost_commits_until = self.late_copies_until = 0
        self.runs: dict[str, RunProcess] = {}

    # ------------------------------------------------------------------ life

    def start(self) -> None:
        if self.daemon is None and not self.world.over:
            self.jobs = Process(self.engine)
            self.supervised = True
            self.daemon = Daemon(self)
            self.daemon.wake()

    def daemon_gone(self, daemon: Daemon) -> None:
        """Exited or killed. If the supervisor lives, it ends the runs and frees the lease."""
        if self.daemon is not daemon:
            return
        self.daemon = None
        daemon.process.die()
        self.world.note(Op(self.engine.now_ns, Source.NODE, self.name, "exit"))
        for run in list(self.runs.values()):
            self.kill(run)
        if self.supervised:
            self._free_lease(daemon)
        self.supervised = False
        self.engine.at(self.engine.now_ns + self.draws.between(500, 4_000) * MS, self.start)

    def _free_lease(self, daemon: Daemon) -> None:
        """By the supervisor, that has been told the lease's id; over one member after another."""
        candidacy = daemon.candidacy
        if candidacy is None or not candidacy.may_hold:
            return
        process = Process(self.engine)
        client = Client(self.world.etcd, self.to_etcd, process, daemon.client.member)
        Task(process, self._revoke(client, candidacy.lease, daemon.limits.ttl_ns))

    def _revoke(self, client: Client, lease: int, within_ns: int) -> Steps:
        until_ns = self.engine.now_ns + within_ns
        while self.has_runs():
            yield MS
        while self.engine.now_ns < until_ns:
            revoking = client.ask(lambda: self.world.etcd.revoke(lease), LEAVE_NS // 3)
            if (yield revoking) is not None:
                return

    def has_runs(self) -> bool:
        return bool(self.runs)

    def late_copy_ns(self) -> int:
        """By how much the first copy of a write is late now."""
        if self.engine.now_ns >= self.late_copies_until:
            return 0
        self.world.bit()
        return self.draws.between(300, 6_000) * MS

    # ------------------------------------------------------------------ runs

    def go(self, daemon: Daemon, process: RunProcess, deadline_ns: int) -> None:
        """The wrapper, told to go: it looks at the clock itself."""
        if not process.alive:
            return
        now_ns, run = self.engine.now_ns, process.run
        if self.clock.boot_ns(now_ns) >= deadline_ns:
            self._forget(process)
            daemon.tell(m.NotStarted(run.run_id, "late"))
            return
        process.began = self.wall()
        self.note_run("began", run)
        daemon.tell(m.Started(run.run_id, process.began))
        lasts_ns = self.world.lasts_ns(run)
        self.jobs.after(lasts_ns, self._end, daemon, process)
        if run.attempt % 2:
            self.jobs.after(lasts_ns // 2, self._write, process)

    def _write(self, process: RunProcess) -> None:
        """In the ledger's database, by tick.transaction()."""
        if process.alive:
            self.to_ledger.out(self.world.ledger_server.begin, self, process)

    def _end(self, daemon: Daemon, process: RunProcess) -> None:
        if not process.alive:
            return
        self._ended(daemon, process, None if self.draws.percent(95) else "exit code 1")

    def kill(self, process: RunProcess, *, daemon: Daemon | None = None, after_ns: int = 0) -> None:
        """SIGKILL takes a moment, now and then a long one; a frozen process dies of it too."""
        takes_ns = after_ns + self.draws.between(1, 8) * MS
        if self.draws.percent(8):
            takes_ns += SLOW_DEATH_NS
        self.engine.at(self.engine.now_ns + takes_ns, self._killed, daemon, process)

    def drop(self, process: RunProcess, daemon: Daemon) -> None:
        """Not to start, nor to obey a "go" that is on its way; once it has begun that is no use."""
        at_ns = self.engine.now_ns + self.draws.between(1, 8) * MS
        self.engine.at(at_ns, self._dropped, daemon, process)

    def _dropped(self, daemon: Daemon, process: RunProcess) -> None:
        if process.began is None:
            self._killed(daemon, process)

    def _killed(self, daemon: Daemon | None, process: RunProcess) -> None:
        if process.alive:
            self._ended(daemon, process, "killed")

    def _ended(self, daemon: Daemon | None, process: RunProcess, error: str | None) -> None:
        self._forget(process)
        run = process.run
        if process.began is None:
            if daemon is not None:
                daemon.tell(m.NotStarted(run.run_id, "killed before exec"))
            return
        self.note_run("ended", run)
        if daemon is not None:
            code = 0 if error is None else 1
            result = Result(code, False, error, None, self.wall(), SECOND // 10)
            daemon.tell(m.RunEnded(run.run_id, result))

    def _forget(self, process: RunProcess) -> None:
        process.alive = False
        self.runs.pop(process.run.run_id, None)

    def note_run(self, f: str, run: Run) -> None:
        value = {
            "job": run.slot.job,
            "scheduled_for": text(run.slot.scheduled_for),
            "command_id": run.slot.command_id,
            "attempt": run.attempt,
            "fence": run.term.fence,
        }
        self.world.note(Op(self.engine.now_ns, Source.RUN, self.name, f, value=value))

    def wall(self, ago_ns: int = 0) -> datetime:
        return self.wall_at(self.clock.boot_ns(self.engine.now_ns) + ago_ns)

    def wall_at(self, boot_ns: int) -> datetime:
        """What the wall clock, as it is set now, shows at an instant of the boot clock."""
        us = (boot_ns - BOOTED_NS + self.clock.step_ns) // 1_000
        return STARTED + us * MICROSECOND


class Daemon:
    """One process, from its start to its end."""

    def __init__(self, machine: Machine) -> None:
        self.machine, self.world, self.name = machine, machine.world, machine.name
        self.process = Process(machine.engine)
        self._engine, self._clock = machine.engine, machine.clock
        self.limits = machine.world.limits
        self._draws = Draws(machine.draws.bits())
        self.client = Client(self.world.etcd, machine.to_etcd, self.process, self._draws.below(3))
        self.node = Node(
            election="sim/0",
            name=self.name,
            jobs=self.world.fleet.jobs[machine.release],
            limits=self.limits,
            draw=self._draws.hex,
        )
        self.scribe = Scribe(self)
        self.candidacy: Candidacy | None = None
        self._inbox: deque[Event] = deque()
        self._stepping = False
        self._armed_ns: int | None = None
        self._deadline_ns = 0
        self._told_fence: int | None = None

    # ------------------------------------------------------------------ clocks

    def boot_ns(self) -> int:
        return self._clock.boot_ns(self._engine.now_ns)

    def wall(self, ago_ns: int = 0) -> datetime:
        return self.machine.wall(ago_ns)

    # ------------------------------------------------------------------ the loop

    def tell(self, event: Event) -> None:
        """From another process of the machine."""
        self.process.wake(self.post, event)

    def post(self, event: Event) -> None:
        self._inbox.append(event)
        if self._stepping:
            return
        self._stepping = True
        while self._inbox and self.process.alive:
            self._step(self._inbox.popleft())
        self._stepping = False
        if self.process.alive:
            self._arm()

    def wake(self) -> None:
        self.post(m.Woke())

    def _step(self, event: Event) -> None:
        now_ns, stood_ns = self._engine.now_ns, 0
        if self.process.froze_ns is not None:
            stood_ns, self.process.froze_ns = now_ns - self.process.froze_ns, None
        boot_ns = self._clock.boot_ns(now_ns)
        now = Now(boot_ns, self.machine.wall_at(boot_ns), stood_ns)
        for effect in self.node.step(event, now):
            self._perform(effect)
        deadline_ns, term = self.node.gate.deadline_ns, self.node.term
        fence = None if term is None else term.fence
        if deadline_ns != self._deadline_ns or fence != self._told_fence:
            self._tell_deadline(deadline_ns, fence)

    def _tell_deadline(self, deadline_ns: int, fence: int | None) -> None:
        """To the supervisor, when it is a new one; to the history, under its fence."""
        new, self._deadline_ns = deadline_ns != self._deadline_ns, deadline_ns
        if not deadline_ns:
            return
        self._told_fence = fence
        at_ns = self.machine.clock.true_ns(deadline_ns)
        if fence is not None:
            sent_ns = self.machine.clock.true_ns(self._candidacy().sent_ns)
            self._note("deadline", {"fence": fence, "until_ns": at_ns, "sent_ns": sent_ns})
        if new:
            self.machine.engine.at(at_ns, self._deadline_passed, deadline_ns)

    def _arm(self) -> None:
        """One alarm, at the earliest time the core asks for; a later one that stands is let be."""
        clock, now_ns = self._clock, self._engine.now_ns
        boot_ns = self.node.wake_boot_ns()
        if (wall := self.node.wake_wall()) is not None:
            wall_ns = (wall - STARTED) // MICROSECOND * 1_000 - clock.step_ns + BOOTED_NS
            boot_ns = wall_ns if boot_ns is None or wall_ns < boot_ns else boot_ns
        if boot_ns is None:
            return
        at_ns = clock.true_ns(boot_ns)
        if self._armed_ns is not None and now_ns < self._armed_ns <= at_ns:
            return
        self._armed_ns = max(at_ns, now_ns)
        self._engine.at(self._armed_ns, self.process.wake, self._fired, self._armed_ns)

    def _fired(self, armed_ns: int) -> None:
        if armed_ns == self._armed_ns:
            self._armed_ns = None
            self.wake()

    # ------------------------------------------------------------------ supervisor

    def _deadline_passed(self, deadline_ns: int) -> None:
        """By the supervisor, though the daemon may be frozen; a frozen machine, on waking."""
        if self._deadline_ns != deadline_ns or self.machine.daemon is not self:
            return
        if self.machine.supervised and self.kills_at_deadline():
            self.machine.jobs.wake(self._kill_lost)

    def kills_at_deadline(self) -> bool:
        return True

    def _kill_lost(self) -> None:
        for process in list(self.machine.runs.values()):
            if not process.run.job.may_finish:
                self.machine.kill(process, daemon=self)

    # ------------------------------------------------------------------ perform

    def _perform(self, effect: Effect) -> None:
        match effect:
            case m.Emit(event, fields):
                self._emit(event, fields)
            case m.Prepare(run):
                self._prepare(run)
            case m.Go(run, deadline_ns):
                takes_ns = self._draws.between(100, 3_000) * 1_000
                if (ready := self.machine.runs.get(run.run_id)) is not None:
                    self.machine.jobs.after(takes_ns, self.machine.go, self, ready, deadline_ns)
            case m.Drop(run_id):
                if (process := self.machine.runs.get(run_id)) is not None:
                    self.machine.drop(process, self)
            case m.Kill(run_id, grace_s):
                self._kill(run_id, self._draws.between(5, 500) * MS if grace_s else 0)
            case m.Join(nonce, lease):
                self.candidacy = Candidacy(self, nonce, lease)
            case m.Verify():
                self._candidacy().verify()
            case m.Record(_, fence, known):
                self._candidacy().record(fence, known)
            case m.Leave():
                self._candidacy().leave()
            case m.AskSupervisor():
                self.process.after(MS, self.post, m.SupervisorAnswered())
            case m.Abandon(nonce):
                self.scribe.abandon(nonce)
            case m.Exit():
                self.process.after(MS, self.machine.daemon_gone, self)
            case _:
                self.scribe.perform(effect)

    def _prepare(self, run: Run) -> None:
        process = self.machine.runs[run.run_id] = RunProcess(run)
        self.process.after(self._draws.between(1, 10) * MS, self._prepared, process)

    def _kill(self, run_id: str, after_ns: int) -> None:
        if (process := self.machine.runs.get(run_id)) is not None:
            self.machine.kill(process, daemon=self, after_ns=after_ns)

    def _prepared(self, process: RunProcess) -> None:
        if process.alive and self.machine.supervised:
            self.post(m.Prepared(process.run.run_id))

    def _candidacy(self) -> Candidacy:
        assert self.candidacy is not None
        return self.candidacy

    def _emit(self, event: str, fields: Mapping[str, object]) -> None:
        if event not in _UNTOLD:
            self._note(event, {key: _plain(value) for key, value in fields.items()})

    def _note(self, f: str, value: Mapping[str, object]) -> None:
        self.world.note(Op(self.machine.engine.now_ns, Source.NODE, self.name, f, value=value))


@lru_cache(maxsize=4_096)
def text(at: datetime) -> str:
    """As a history has it. The sim knows no zone but UTC: times that are equal read the same."""
    return at.isoformat()


def _plain(value: object) -> object:
    match value:
        case datetime():
            return text(value)
        case None | int() | float():
            return value
        case _:
            return str(value)
