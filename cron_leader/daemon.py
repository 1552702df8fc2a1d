"""The asyncio shell around the core: inbox -> `Node.step` -> perform; start and stop order.

One task reads the inbox; whatever waits (etcd, the ledger, processes) runs beside it and answers by
an event. No job code runs here but what says `isolation = "inline"`. A bug in a part ends the
daemon (its supervisor then ends the runs and frees the lease): it is never carried on half alive.
"""

from __future__ import annotations

import asyncio
import gc
import os
import secrets
import signal
from collections.abc import Awaitable, Callable, Coroutine, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, TypeVar

from cron_leader import __version__
from cron_leader.clock import Clock, WallTimer, next_beat
from cron_leader.config import Config, check_margin
from cron_leader.core import messages as m
from cron_leader.core.dispatch import Pool
from cron_leader.core.gate import CloseReason, Gate
from cron_leader.core.lag import Lag
from cron_leader.core.messages import Effect, Event, Now
from cron_leader.core.model import Term
from cron_leader.core.node import Node
from cron_leader.core.standing import Limits, Phase
from cron_leader.errors import (
    ConfigError,
    EtcdRefused,
    EtcdUnavailable,
    LedgerUncertain,
    LedgerUnusable,
)
from cron_leader.etcd.channel import Etcd
from cron_leader.etcd.drift import Drift
from cron_leader.etcd.election import Candidacy
from cron_leader.etcd.keys import Seat
from cron_leader.etcd.lease import measure_election_timeout
from cron_leader.events import Emit
from cron_leader.ledger import open_ledger
from cron_leader.ledger.targets import Targets
from cron_leader.link import Link
from cron_leader.notices import Notices
from cron_leader.runners import Runners
from cron_leader.runners.context import LedgerAccess
from cron_leader.scribe import Scribe
from cron_leader.upkeep import Policy, Upkeep

T = TypeVar("T")

RETRY_S = (0.5, 5.0)
"""First and longest pause while a service is not there at start."""
NS = 1_000_000_000
ALIVE_NS = NS
"""The supervisor is told no more often than this that the loop comes round."""
AFTER_YOU = 10
"""What a process that ends adds to its niceness: its successor may need the same processors."""
TOKENS = 64
"""Random ids that are drawn at once."""
AT_ONCE = 100
"""Events that are taken in before the loop gets its turn: a few milliseconds."""
IDLE_NS = 4 * NS
"""The loop comes round at least this often, and three times in a TTL."""
RECORD_S = 0.5
"""What leaving waits for etcd to take what it is to remember of our raise."""
GARBAGE = 20_000
"""Objects made between two looks for garbage: those of a thousand runs of one instant, which are
gone by themselves before the next."""
REHEARSE_AFTER_S = 0.1
"""A candidate that is alone leads before."""
IN_LINE = frozenset({Phase.JOINING, Phase.RAISING, Phase.SETTLING, Phase.LEADING})
STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


@dataclass(frozen=True, slots=True)
class Snapshot:
    """How a node stands at one instant, for those who look on.

    phase None: it has not reached etcd and the ledger yet. fence None: it holds no term.
    closed: why no run may start at boot_ns; None: the gate is open.
    """

    phase: Phase | None
    fence: int | None
    gate: Gate
    closed: CloseReason | None
    boot_ns: int


class Daemon:
    """One node's process, from `run()` to its exit."""

    def __init__(
        self, config: Config, *, clock: Clock, emit: Emit, handlers: tuple[str, ...] = ()
    ) -> None:
        self._config, self._clock, self._emit = config, clock, emit
        self._handlers = handlers
        self._inbox: asyncio.Queue[Event] = asyncio.Queue()
        self._tasks: set[asyncio.Task[None]] = set()
        self._recording: asyncio.Task[None] | None = None
        self._timeline: str | None = None
        self._candidacy: tuple[str, Candidacy] | None = None
        self._lease = 0
        self.cause: Exception | None = None
        """What kept the daemon from starting."""
        self._exit: m.Exit | None = None
        self._told_deadline_ns = self._told_alive_ns = 0
        self._told_ready = False
        self._stepped_ns = clock.boot_ns()
        self._boot_timer: asyncio.TimerHandle | None = None
        self._boot_due_ns = 0
        self._arming = self._near = False
        self._lag = Lag(config.lease.ttl_ns)
        self._drift = Drift(config.node_id, config.digest, emit=emit)
        self._notices: Notices | None = None

    # ------------------------------------------------------------------ start and stop

    async def run(self) -> m.Exit:
        """Start, lead and follow until told to stop; the exit code, and why if it is not 0."""
        self._loop = asyncio.get_running_loop()
        for number in STOP_SIGNALS:
            self._loop.add_signal_handler(number, self.post, m.StopAsked(int(number)))
        self._link = await Link.from_environment(on_gone=lambda: self.post(m.SupervisorGone()))
        self._emit("node.started", pid=os.getpid(), supervisor_pid=os.getppid())
        self._etcd = Etcd(self._config.etcd, clock=self._clock, emit=self._emit)
        self._ledger = open_ledger(self._config.ledger.url, ttl_s=self._config.lease.ttl_ns / NS)
        self._targets = Targets(self._config.fence_targets)
        try:
            if await self._start():
                await self._serve()
        finally:
            await self._stop()
        assert self._exit is not None
        self._emit("node.stopped", error=self._exit.text or None)
        return self._exit

    async def _start(self) -> bool:
        """Whether both services answered and the node stands; a signal ends the waiting."""
        starting = asyncio.ensure_future(self._get_ready())
        while not starting.done():
            asked = asyncio.ensure_future(self._inbox.get())
            await asyncio.wait({starting, asked}, return_when=asyncio.FIRST_COMPLETED)
            if asked.done():
                self._exit = _exit_early(asked.result())
                starting.cancel()
                await asyncio.gather(starting, return_exceptions=True)
                return False
            asked.cancel()
        try:
            starting.result()
        except (ConfigError, EtcdRefused, LedgerUnusable) as error:
            self.cause = error
            self._exit = m.Exit(2, str(error))
            return False
        return True

    async def _get_ready(self) -> None:
        await self._equip(*await self._reach())

    async def _reach(self) -> tuple[int, str]:
        """(margin in ns, ledger id), once etcd and the ledger have answered."""
        config = self._config
        timeout_ns, identity = await asyncio.gather(
            # That etcd is away is told by its client, but not that it answers with a no.
            self._until("etcd", lambda: measure_election_timeout(self._etcd), EtcdRefused),
            self._until(
                "ledger",
                lambda: self._ledger.open(
                    fleet=config.fleet, shards=config.shards, migrate=config.ledger.migrate
                ),
            ),
        )
        return check_margin(config.lease, timeout_ns), identity.ledger_id

    async def _until(
        self, service: str, ask: Callable[[], Awaitable[T]], told: type[Exception] = Exception
    ) -> T:
        """The service's answer; the first failure of the kind `told`, and its end, are told."""
        said = False

        def say(error: Exception) -> None:
            nonlocal said
            if not said and isinstance(error, told):
                said = True
                self._emit(f"{service}.unreachable", error=str(error))

        answer = await _until_there(ask, say=say)
        if said:
            self._emit(f"{service}.back")
        return answer

    async def _equip(self, margin_ns: int, ledger_id: str) -> None:
        """Build the node and its hands."""
        config = self._config
        self._ledger_id, self._margin_ns = ledger_id, margin_ns
        self._runners = Runners(
            node=config.node_id,
            fleet=config.fleet,
            link=self._link,
            report=self.post,
            clock=self._clock,
            ack_timeout_s=margin_ns / 2 / NS,
            modules=config.modules,
            base=config.base,
            ledger=LedgerAccess(
                config.ledger.url,
                config.lease.ttl_ns / NS,
                {target.name: target.url for target in config.fence_targets},
            ),
        )
        await self._runners.start(config.jobs)
        self._scribe = Scribe(
            self._ledger,
            post=self.post,
            clock=self._clock,
            emit=self._emit,
            targets=self._targets,
        )
        self._timer = WallTimer(self._loop, on_fire=self._fired, on_step=self._wake)
        self._node = Node(
            election=config.election,
            name=config.node_id,
            jobs={job.name: job for job in config.jobs},
            limits=Limits(
                ttl_ns=config.lease.ttl_ns,
                margin_ns=margin_ns,
                drain_s=config.run.drain_s,
                max_clock_skew_s=config.run.max_clock_skew_s,
                pool=Pool(config.run.max_parallel, config.run.catchup_rate, config.groups),
            ),
            draw=_tokens().__next__,
        )
        self._upkeep = Upkeep(
            self._ledger,
            Policy.of(config.ledger.retention_ns, config.ledger.keep),
            leading=self._leading,
            clock=self._clock,
            emit=self._emit,
        )

        self._notices = Notices(
            config.notify,
            self._ledger,
            leading=self._term,
            clock=self._clock,
            emit=self._emit,
        )

    def saw(self, line: Mapping[str, Any]) -> None:
        """An event of this node, for those who are to be told of it."""
        if self._notices is not None:
            self._notices.see(line)

    def _term(self) -> Term | None:
        """The term that has settled the past."""
        return self._node.term if self._node.phase is Phase.LEADING else None

    def _leading(self) -> Term | None:
        """The term whose gate is open now."""
        settled = self._node.phase is Phase.LEADING
        return self._node.term if settled and self.snapshot().closed is None else None

    async def _serve(self) -> None:
        """The loop: one event, one step, its effects."""
        gc.freeze()  # what there is by now stays
        gc.set_threshold(GARBAGE)
        self.spawn(self._upkeep.run())
        assert self._notices is not None
        self.spawn(self._notices.run())
        self._wake()
        while self._exit is None:
            self._take_in(await self._inbox.get())
            if not self._inbox.empty():
                await asyncio.sleep(0)  # else nothing but the inbox had its turn

    async def _stop(self) -> None:
        if hasattr(self, "_node"):
            self._timer.close()
            if self._boot_timer is not None:
                self._boot_timer.cancel()
        if hasattr(self, "_runners"):  # perhaps still importing
            await self._runners.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._ledger.close()
        await self._targets.close()
        await self._etcd.aclose()
        if self._link is not None:
            self._link.close()
        for number in STOP_SIGNALS:
            self._loop.remove_signal_handler(number)

    def snapshot(self) -> Snapshot:
        """How the node stands now; changes nothing."""
        boot_ns = self._clock.boot_ns()
        if not hasattr(self, "_node"):
            return Snapshot(None, None, Gate(), CloseReason.NOT_RAISED, boot_ns)
        node = self._node
        fence = node.term.fence if node.term is not None else None
        return Snapshot(node.phase, fence, node.gate, node.closed(boot_ns), boot_ns)

    # ------------------------------------------------------------------ inbox and timers

    def post(self, event: Event) -> None:
        """Put an event into the inbox."""
        self._inbox.put_nowait(event)

    def _wake(self) -> None:
        self.post(m.Woke())

    def _fired(self) -> None:
        self.post(m.SlotNear() if self._near else m.Woke())

    def _take_in(self, event: Event) -> None:
        """A step for it, and for those that wait behind it, up to a bound; then what follows from
        how the node stands, once for all: a thousand runs may start at one instant."""
        self._step(event)
        for _ in range(min(self._inbox.qsize(), AT_ONCE)):
            if self._exit is None:
                self._step(self._inbox.get_nowait())
        self._runners.lead(self._node.gate.settled)
        if self._link is not None:
            self._tell_supervisor(self._link)
        if not self._arming:  # behind what the effects began: claims and runs do not wait for it
            self._arming = True
            self._loop.call_soon(self._arm)

    def _step(self, event: Event) -> None:
        before_ns, self._stepped_ns = self._stepped_ns, self._clock.boot_ns()
        now = Now(self._stepped_ns, self._clock.wall(), self._stepped_ns - before_ns)
        for effect in self._node.step(event, now):
            self._perform(effect)

    def _arm(self) -> None:
        """Wake when the core asks, and often enough that a stuck loop shows."""
        self._arming = False
        if self._exit is not None:
            return
        slot = self._node.wake_wall()
        near = None if slot is None else self._node.near_wall(slot)
        self._near = near is not None
        self._timer.set(near or slot)
        now_ns, at_ns = self._clock.boot_ns(), self._node.wake_boot_ns()
        due_ns = next_beat(now_ns, min(self._config.lease.ttl_ns // 3, IDLE_NS))
        if at_ns is not None:
            due_ns = max(min(at_ns, due_ns), now_ns)
        if self._boot_timer is not None:
            if self._boot_due_ns <= now_ns:
                return  # it is about to fire, and to say how late it is
            self._boot_timer.cancel()
        self._boot_due_ns = due_ns
        self._boot_timer = self._loop.call_later((due_ns - now_ns) / NS, self._wake_late, due_ns)

    def _wake_late(self, due_ns: int) -> None:
        """The boot timer's: how late it is says how late everything in this loop is."""
        self._boot_timer = None
        lag_ns = self._clock.boot_ns() - due_ns
        if self._lag.see(lag_ns):
            ttl_ms = self._config.lease.ttl_ns // 1_000_000
            self._emit("loop.lagged", lag_ms=lag_ns // 1_000_000, ttl_ms=ttl_ms)
        self._wake()

    def _tell_supervisor(self, link: Link) -> None:
        deadline_ns = self._node.gate.deadline_ns
        if deadline_ns and deadline_ns != self._told_deadline_ns:
            self._told_deadline_ns = deadline_ns
            link.deadline(deadline_ns)
        if not self._told_ready and self._node.phase in IN_LINE and deadline_ns:
            self._told_ready = True
            link.ready()
        if self._stepped_ns - self._told_alive_ns >= ALIVE_NS:
            self._told_alive_ns = self._stepped_ns
            link.alive()

    def _advancing(self) -> bool:
        """Whether the step loop has moved within half a TTL; renewals stop when it has not."""
        return self._clock.boot_ns() - self._stepped_ns < self._config.lease.ttl_ns // 2

    # ------------------------------------------------------------------ perform

    def _perform(self, effect: Effect) -> None:
        match effect:
            case m.Emit(event, fields):
                self._emit(event, **fields)
            case m.Prepare(run):
                self._runners.prepare(run)
            case m.Go(run, deadline_ns):
                self._runners.go(run, deadline_ns)
            case m.Drop(run_id):
                self._runners.drop(run_id)
            case m.Kill(run_id, grace_s):
                self._runners.kill(run_id, grace_s)
            case m.Join(nonce, lease):
                self.spawn(self._join(nonce, lease))
            case m.Verify(nonce):
                self.spawn(self._verify(nonce))
            case m.Record():
                self._recording = self.spawn(self._record(effect))
            case m.Leave(nonce):
                if self._node.gate.stopping:
                    os.nice(AFTER_YOU)
                self.spawn(self._leave(nonce))
            case m.AskSupervisor():
                self.spawn(self._ask_supervisor())
            case m.Abandon(nonce):
                self._scribe.abandon(nonce)
            case m.Exit():
                self._exit = effect
            case _:
                self.spawn(self._scribe.perform(effect))

    def spawn(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Do something beside the loop; if it raises, the daemon ends."""
        task = self._loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._done)
        return task

    def _done(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            self._loop.call_exception_handler(
                {"message": "a part of the daemon failed", "exception": error, "task": task}
            )
            self._exit = m.Exit(1, f"internal error: {error!r}")
            self._wake()

    # ------------------------------------------------------------------ etcd

    async def _join(self, nonce: str, lease: int) -> None:
        config = self._config
        self._lease = lease
        seat = Seat(
            prefix=config.prefix,
            fleet=config.fleet,
            shard=0,
            node=config.node_id,
            nonce=nonce,
            lease=lease,
            ttl_ns=config.lease.ttl_ns,
            renew_ns=config.lease.renew_ns,
            ledger_id=self._ledger_id,
            version=__version__,
            digest=config.digest,
            handlers=self._handlers,
            rollback=config.ledger.rollback,
        )
        candidacy = Candidacy(
            self._etcd,
            seat,
            report=self.post,
            clock=self._clock,
            emit=self._emit,
            may_renew=self._advancing,
            read_mark=lambda: self._ledger.mark(config.election),
            met=self._drift.met,
        )
        # Known before anything is waited for: one that is left meanwhile must not begin after all.
        self._candidacy = (nonce, candidacy)
        if self._link is not None and not await self._tell_lease(lease):
            self.post(m.JoinFailed(nonce, "supervisor_gone", "the supervisor does not answer"))
            return
        self.spawn(self._rehearse())
        await candidacy.run()
        self._tell_released(candidacy)

    async def _rehearse(self) -> None:
        """In line behind another: whatever would take time when its turn comes is done now."""
        await asyncio.sleep(REHEARSE_AFTER_S)
        if self._node.phase is not Phase.JOINING:
            return
        with suppress(LedgerUncertain, LedgerUnusable):
            await self._ledger.rehearse(self._config.election)
        gc.collect()
        gc.freeze()

    async def _tell_lease(self, lease: int) -> bool:
        assert self._link is not None
        return await self._link.lease(
            lease, ttl_ns=self._config.lease.ttl_ns, etcd=self._config.etcd
        )

    async def _verify(self, nonce: str) -> None:
        if (candidacy := self._of(nonce)) is not None:
            await candidacy.verify()

    async def _record(self, asked: m.Record) -> None:
        if (candidacy := self._of(asked.nonce)) is not None:
            if asked.known is None:  # else the ledger is away
                with suppress(LedgerUncertain, LedgerUnusable):
                    self._timeline = await self._ledger.timeline()
            await candidacy.record(asked.fence, self._timeline, asked.known)

    async def _leave(self, nonce: str) -> None:
        candidacy = self._of(nonce)
        if candidacy is None:
            self.post(m.Left(nonce))
            return
        if self._recording is not None:  # for the successor, who comes when the key goes
            await asyncio.wait({self._recording}, timeout=RECORD_S)
        await candidacy.leave()
        self._tell_released(candidacy)

    def _tell_released(self, candidacy: Candidacy) -> None:
        """Nothing of its lease is left for the supervisor to revoke."""
        if self._link is not None and not candidacy.may_hold:
            self._link.released(candidacy.lease)

    def _of(self, nonce: str) -> Candidacy | None:
        if self._candidacy is None or self._candidacy[0] != nonce:
            return None
        return self._candidacy[1]

    async def _ask_supervisor(self) -> None:
        assert self._link is not None
        while self._candidacy is not None:
            if await self._tell_lease(self._lease):
                self.post(m.SupervisorAnswered())
                return
            await asyncio.sleep(RETRY_S[0])


def _tokens() -> Iterator[str]:
    """128 random bits as 32 hex digits each; the system is asked for many at once."""
    while True:
        many = secrets.token_hex(16 * TOKENS)
        yield from (many[at : at + 32] for at in range(0, len(many), 32))


def _exit_early(event: Event) -> m.Exit:
    if isinstance(event, m.SupervisorGone):
        return m.Exit(1, "the supervisor died")
    return m.Exit(0)


async def _until_there(ask: Callable[[], Awaitable[T]], *, say: Callable[[Exception], None]) -> T:
    """The answer, asked for again while its service is not there.

    Raises what a person must mend: ConfigError, and permanent EtcdRefused and LedgerUnusable.
    """
    pause_s = RETRY_S[0]
    while True:
        try:
            return await ask()
        except (EtcdUnavailable, LedgerUncertain) as error:
            say(error)
        except (EtcdRefused, LedgerUnusable) as error:
            if error.permanent:
                raise
            say(error)
        await asyncio.sleep(pause_s)
        pause_s = min(2 * pause_s, RETRY_S[1])
