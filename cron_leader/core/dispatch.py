"""Which slots to claim, which runs to start, and what became of them: one term's work as data.

A slot goes `claiming -> preparing -> starting -> running -> finishing` and leaves. The gate is
asked twice on the way, before the claim and again between claim and exec; a claim whose run
certainly did not start is put back. A flight outlives its term only if its run may finish, and for
the one try to record its end.

Not decided here: whether the gate is open, when a term begins or ends (node.py).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from enum import StrEnum
from itertools import chain, groupby
from typing import NamedTuple

from cron_leader.core.messages import (
    Drop,
    Effect,
    Emit,
    Go,
    Kill,
    Now,
    Prepare,
    Take,
    WriteFinish,
    WritePutBack,
)
from cron_leader.core.model import (
    Batch,
    Claim,
    Delivery,
    DueRow,
    Entry,
    Finish,
    Gap,
    Isolation,
    Job,
    Origin,
    Overlap,
    PutBack,
    Reason,
    Result,
    Run,
    Settlement,
    SlotKey,
    State,
    Taken,
    Term,
    WhenFull,
)
from cron_leader.core.pauses import Pauses
from cron_leader.core.plan import Agenda, Turn, backlog, held_to, is_punctual, start_of
from cron_leader.core.retry import Budget, retry_at
from cron_leader.core.schedule import EPOCH
from cron_leader.core.slices import Slicer, Slices
from cron_leader.core.waiting import Waiting

ON_TIME = timedelta(seconds=1)
"""A slot reached within this is on time: neither catch-up nor, under catchup = none, missed."""

RETRY_AFTER = timedelta(seconds=1)
"""A claim put back is not tried again sooner."""

MOST_TOLD = 1_000
"""Missed slots that a takeover tells one by one, and skipped ones."""

SECOND_NS = 1_000_000_000


class Stage(StrEnum):
    CLAIMING = "claiming"
    PREPARING = "preparing"
    STARTING = "starting"
    RUNNING = "running"
    RETURNING = "returning"
    FINISHING = "finishing"


UNDER_WAY = frozenset({Stage.STARTING, Stage.RUNNING})
"""From "go" on: a python job that hangs while it is imported runs, too."""
ACTIVE = UNDER_WAY | {Stage.CLAIMING, Stage.PREPARING}


class Doom(StrEnum):
    """Why we end a run ourselves."""

    LOST = "lost"
    REPLACED = "replaced"
    SHUTDOWN = "shutdown"


@dataclass(slots=True)
class Flight:
    """One claimed slot on its way."""

    run: Run
    stage: Stage = Stage.CLAIMING
    doom: Doom | None = None
    retry_at: datetime | None = None


@dataclass(frozen=True, slots=True)
class Pool:
    """Bounds: runs at once on this node, and of a group's jobs; catch-up starts per second."""

    max_parallel: int
    catchup_rate: float
    groups: Mapping[str, int] = field(default_factory=dict)


class _Asked(NamedTuple):
    """A batch that waits for its answer. Kept while it does: its id() must stay its own.

    floor: planned_to without it, and those asked after it. since_ns: on the boot clock.
    """

    batch: Batch
    floor: datetime
    since_ns: int


class Dispatch:
    """The runs of this node, over its terms; `out` collects effects until the node takes them."""

    def __init__(self, pool: Pool, *, draw: Callable[[], str], out: list[Effect]) -> None:
        self._pool = pool
        self._draw = draw
        self._out = out
        self._jobs: Mapping[str, Job] = {}
        self._agenda = Agenda((), {})
        self._term: Term | None = None
        self._planned: datetime | None = None
        self._floors: dict[int, _Asked] = {}  # by the batch's id(): to hash one takes long
        self._ends: dict[str, int] = {}  # of put-backs and finishes not answered yet: since when
        self._waiting = Waiting({})
        self._outrun: set[SlotKey] = set()  # put back because a newer slot replaces them
        self._in_turn = False  # whether jobs differ in priority or group
        self._budget = Budget()
        self.pauses = Pauses({})
        self._paced_until_ns = 0
        self.known_to = EPOCH
        """The highest planned_to of the term that the ledger has acknowledged."""
        self.flights: dict[str, Flight] = {}
        self._busy = 0  # flights in an active stage, whichever their term
        self._busy_groups: Counter[str] = Counter()  # the same, by group
        self._busy_jobs: dict[str, dict[str, Flight]] = {}  # those of this term, by job

    # ------------------------------------------------------------------ a term begins and ends

    def begin(
        self, term: Term, jobs: Mapping[str, Job], settled: Settlement, rows: Iterable[DueRow]
    ) -> Slices[None]:
        """After the past is settled: schedule from there on, and the rows that wait. Nothing may be
        planned before the last slice."""
        planned_to = settled.planned_to
        self._term, self._jobs = term, jobs
        self._planned = self.known_to = planned_to
        self._in_turn = any(job.priority or job.group for job in jobs.values())
        self._forget()
        self._waiting = Waiting(jobs, settled.now)
        self._paced_until_ns = 0
        self.pauses = Pauses(settled.pauses)
        self._agenda, slicer = Agenda((), {}), Slicer()
        for job in jobs.values():
            if slicer.full():
                yield
            self._agenda.add(job, planned_to)
        for row in rows:
            if slicer.full():
                yield
            self.order((row,))
        yield from self._tell_past(settled, slicer)

    def _tell_past(self, settled: Settlement, slicer: Slicer) -> Slices[None]:
        """What the settlement recorded as missed, told one by one up to a bound, the rest as a sum;
        and in the same way what it skipped."""
        told: Counter[str] = Counter()
        rest: Counter[str] = Counter()
        ends: Iterable[Entry | Gap] = chain(settled.entries, settled.gaps)
        for past in ends:
            if slicer.full():
                yield
            if past.state is State.DUE:
                continue
            emit = _missed(past) if isinstance(past, Gap) else _ended(past)
            told[emit.event] += 1
            if told[emit.event] <= MOST_TOLD:
                self._out.append(emit)
            else:
                rest[emit.event] += past.slots if isinstance(past, Gap) else 1
        self._out += [Emit(event, {"slots": slots}) for event, slots in rest.items()]

    def end(self) -> None:
        """The term is over: forget claims, drop what has not started, kill what may not finish. One
        that may, and was told to go, is taken back if it has not begun."""
        term, self._term = self._term, None
        self._forget()
        for flight in [f for f in self.flights.values() if f.run.term is term]:
            match flight.stage:
                case Stage.CLAIMING | Stage.RETURNING:
                    self._remove(flight)
                case Stage.PREPARING:
                    flight.doom = Doom.LOST
                    self._out.append(Drop(flight.run.run_id))
                case Stage.STARTING | Stage.RUNNING if not flight.run.job.may_finish:
                    self._kill(flight, Doom.LOST, grace_s=0)
                case Stage.STARTING:
                    self._out.append(Drop(flight.run.run_id))
                case _:
                    pass

    def _forget(self) -> None:
        self._floors, self._ends, self._busy_jobs, self._outrun = {}, {}, {}, set()
        self._waiting = Waiting(self._jobs)

    # ------------------------------------------------------------------ planning

    def plan(self, now: Now) -> None:
        """With the gate open: claim what is due, and what waits and may start. One batch."""
        due = self._agenda.pop_due(now.wall)
        if not due and not self._waiting.any_ripe(now.wall):  # the usual case
            self._planned_up_to(now.wall)
            return
        sheet = _Sheet()
        for priority, found in groupby(_by_turn(due) if self._in_turn else due, _priority):
            self._take_waiting(now, sheet, least=priority)
            for turn in found:
                self._fresh(turn, now, sheet)
        self._take_waiting(now, sheet)
        self._send(sheet, now)

    def _fresh(self, turn: Turn, now: Now, sheet: _Sheet) -> None:
        """Of a thousand jobs at an instant almost all have one slot, on time: those cost little."""
        job, since, only = turn
        if only is not None and is_punctual(job, only, now.wall, ON_TIME):
            self._due(job, SlotKey(job.name, only), now, sheet)
            return
        pause = self.pauses.of(job.name)
        past = backlog(job, since, now.wall, on_time=ON_TIME, pause=pause)
        sheet.entries += past.entries
        sheet.gaps += past.gaps
        for scheduled_for in past.due:
            self._due(job, SlotKey(job.name, scheduled_for), now, sheet)

    def _due(self, job: Job, slot: SlotKey, now: Now, sheet: _Sheet) -> None:
        if now.wall - slot.scheduled_for > ON_TIME:
            self._queue(job, Entry(slot, State.DUE, origin=Origin.CATCHUP, next_at=now.wall), sheet)
        elif (start := start_of(job, slot.scheduled_for)) > now.wall:
            self._queue(job, Entry(slot, State.DUE, next_at=start), sheet)
        elif not (place := self._has_place(job)) and (reason := _OVERLAPPED.get(job.overlap)):
            sheet.entries.append(Entry(slot, State.SKIPPED, reason))
        elif not (room := self._has_room(job) or self._replaces(job)) and (
            job.when_full is WhenFull.SKIP
        ):
            sheet.entries.append(Entry(slot, State.SKIPPED, Reason.LIMIT))
        elif not room or not place or self._is_behind(job):
            self._queue(job, Entry(slot, State.DUE, next_at=slot.scheduled_for), sheet)
        else:
            self._claim(job, slot, sheet)

    def _replaces(self, job: Job) -> bool:
        """Whether a new slot of the job comes to end a run, and is given the room of that."""
        return job.overlap is Overlap.REPLACE and not self._has_place(job)

    def _is_behind(self, job: Job) -> bool:
        """Whether earlier slots of a queue have the first turn."""
        return job.overlap is Overlap.QUEUE and self._waiting.holds(job.name)

    def _queue(self, job: Job, due: Entry, sheet: _Sheet) -> None:
        """Let a new slot wait, unless too many of its job do."""
        overdue = due.origin is Origin.CATCHUP
        if self._waiting.has_room(job, overdue=overdue):
            self._waiting.announce(job.name, due.origin)
            sheet.entries.append(due)
            return
        state = State.MISSED if overdue else State.SKIPPED
        sheet.entries.append(Entry(due.slot, state, Reason.LIMIT, due.origin))

    def _take_waiting(self, now: Now, sheet: _Sheet, *, least: int | None = None) -> None:
        """Those that may start; least: before new slots of this priority."""
        paced = now.boot_ns < self._paced_until_ns
        for newer in self._waiting.pop_replacing(now.wall, self._replaces, overdue=not paced):
            self._take(newer, now, sheet)
        while not self._full():
            paced = now.boot_ns < self._paced_until_ns
            row = self._waiting.pop(now.wall, self._is_free, overdue=not paced, least=least)
            if row is None:
                return
            self._take(row, now, sheet)

    def _is_free(self, row: DueRow) -> bool:
        """Whether a row may have its turn, the node not being full: its group has room, or it only
        comes to wait for a run of its own job."""
        job = self._jobs.get(row.slot.job)
        return job is None or self._group_has_room(job) or not self._has_place(job)

    def _take(self, row: DueRow, now: Now, sheet: _Sheet) -> None:
        """A waiting row's turn: it starts, ends without a run, or waits for one of its own job."""
        job = self._jobs.get(row.slot.job)
        if job is None:
            self._settle(row, State.SKIPPED, Reason.NO_HANDLER, sheet)
        elif row.slot in self._outrun:
            self._outrun.remove(row.slot)
            self._settle(row, State.SKIPPED, Reason.OVERLAP, sheet)
        elif _too_late(job, row, now):
            self._settle(row, State.MISSED, Reason.LATE, sheet)
        elif until := held_to(job, row, now.wall):
            self._waiting.add(replace(row, next_at=until))
        elif self._has_place(job):
            self._pace(row, now)
            self._waiting.release(row)
            self._claim(job, row.slot, sheet, row)
        elif _is_jittered(job, row) and (reason := _OVERLAPPED.get(job.overlap)):
            self._settle(row, State.SKIPPED, reason, sheet)
        else:
            self._park(job, row, sheet)

    def _settle(self, row: DueRow, state: State, reason: Reason, sheet: _Sheet) -> None:
        """End a waiting row: no run of it comes, and the next of its job may have its turn."""
        self._waiting.release(row)
        sheet.end(row, state, reason)
        self._waiting.unpark(row.slot.job)

    def _park(self, job: Job, row: DueRow, sheet: _Sheet) -> None:
        if job.overlap is Overlap.REPLACE:
            for older in self._waiting.pop_replaced(row):
                self._waiting.release(older)
                sheet.end(older, State.SKIPPED, Reason.OVERLAP)
        self._waiting.park(row)
        self._give_way(job)

    def _give_way(self, job: Job) -> None:
        """Under `replace`, a run under way is ended for a newer slot that waits in the ledger."""
        if job.overlap is not Overlap.REPLACE:
            return
        for flight in self._busy_jobs.get(job.name, {}).values():
            under_way = flight.stage in UNDER_WAY and flight.doom is None
            if under_way and self._waiting.parks_newer(flight.run.slot):
                self._kill(flight, Doom.REPLACED, grace_s=job.grace_s)

    def _pace(self, row: DueRow, now: Now) -> None:
        if row.origin is Origin.CATCHUP:
            self._paced_until_ns = now.boot_ns + int(SECOND_NS / self._pool.catchup_rate)

    def _claim(self, job: Job, slot: SlotKey, sheet: _Sheet, row: DueRow | None = None) -> None:
        assert self._term is not None
        seen, put_backs = (row.attempt, row.put_backs) if row else (None, 0)
        run = Run(self._draw(), slot, (seen or 0) + 1, self._term, job, put_backs)
        flight = self.flights[run.run_id] = Flight(run)
        self._count(flight, 1)
        sheet.claims.append(Claim(slot, run.run_id, seen))

    def _send(self, sheet: _Sheet, now: Now) -> None:
        assert self._term is not None
        floor = self._planned_up_to(now.wall)
        if not (sheet.claims or sheet.entries or sheet.gaps):
            return
        batch = Batch(
            tuple(sheet.claims),
            tuple(sheet.entries),
            self.planned_to,
            now.wall,
            tuple(sheet.gaps),
            known=self.known_to,
        )
        self._floors[id(batch)] = _Asked(batch, floor, now.boot_ns)
        self._out.append(Take(self._term, batch))

    def _planned_up_to(self, wall: datetime) -> datetime:
        """Up to where it was before; a clock that was set back changes nothing."""
        assert self._planned is not None
        before, self._planned = self._planned, max(self._planned, wall)
        return before

    @property
    def planned_to(self) -> datetime:
        """Every slot up to here is a row, or stands in the batch about to be sent."""
        assert self._planned is not None
        if not self._floors:
            return self._planned
        return next(iter(self._floors.values())).floor  # none of a later batch is lower

    def under_way(self) -> tuple[Run, ...]:
        """The runs of this term that were told to go and whose end is not known."""
        flights = self.flights.values()
        return tuple(f.run for f in flights if f.stage in UNDER_WAY and self._current(f))

    def acknowledged(self, planned_to: datetime) -> None:
        """The ledger answered a write that said so: it must not show less from now on."""
        self.known_to = max(self.known_to, planned_to)

    @property
    def unanswered_ns(self) -> int | None:
        """Since when (boot clock) the oldest write of this term waits for the ledger's answer."""
        if not self._floors and not self._ends:  # the usual case
            return None
        batch = next(iter(self._floors.values()), None)  # they were asked in this order
        end_ns = next(iter(self._ends.values()), None)
        if batch is None or end_ns is None:
            return end_ns if batch is None else batch.since_ns
        return min(batch.since_ns, end_ns)

    # ------------------------------------------------------------------ answers of the ledger

    def on_batch(self, batch: Batch, answer: Taken, now: Now, *, deadline_ns: int | None) -> None:
        """deadline_ns: of the gate, None if it is closed."""
        self._floors.pop(id(batch), None)
        self.acknowledged(batch.planned_to)
        for entry in batch.entries:
            self._recorded(entry)
        for gap in batch.gaps:
            self._out.append(_missed(gap))
        for claim in batch.claims:
            if claim.run_id in answer.paused:
                self._paused(claim)
            self._claimed(claim.run_id, answer.attempts.get(claim.run_id), now, deadline_ns)

    def _paused(self, claim: Claim) -> None:
        flight = self.flights.get(claim.run_id)
        tried = flight is not None and flight.run.tries > 1
        state = State.FAILED if tried else State.SKIPPED
        self._out.append(_ended(Entry(claim.slot, state, Reason.PAUSED, seen=claim.seen)))

    def _recorded(self, entry: Entry) -> None:
        if entry.state is State.DUE:
            self._waiting.add(DueRow(entry.slot, 0, entry.origin, entry.next_at))
        else:
            self._out.append(_ended(entry))

    def _claimed(self, run_id: str, attempt: int | None, now: Now, deadline_ns: int | None) -> None:
        flight = self.flights.get(run_id)
        if flight is None:
            return
        if attempt is None:
            self._leave(flight)
            return
        run = flight.run
        if run.attempt != attempt:
            flight.run = Run(run_id, run.slot, attempt, run.term, run.job, run.put_backs)
        if deadline_ns is None:
            self._put_back(flight, now)
        elif run.job.isolation is Isolation.INLINE:  # there is no process to be prepared
            self._start(flight, deadline_ns)
        else:
            self._move(flight, Stage.PREPARING)
            self._out.append(Prepare(flight.run))

    def _start(self, flight: Flight, deadline_ns: int) -> None:
        self._move(flight, Stage.STARTING)
        self._out.append(Go(flight.run, deadline_ns))
        self._give_way(flight.run.job)

    def on_put_back(self, run_id: str, *, changed: bool, now: Now) -> None:
        flight = self.flights.get(run_id)
        if flight is None:
            return
        run = flight.run
        if changed and self._current(flight):
            next_at = now.wall + RETRY_AFTER
            if flight.doom is Doom.REPLACED:  # its "go" was taken back: it is not to start at all
                next_at = now.wall
                self._outrun.add(run.slot)
            self.order([_row_of(run, next_at, put_backs=run.put_backs + 1)])
        self._leave(flight)

    def on_finish(self, run_id: str, *, changed: bool) -> Run | None:
        """The run whose end is now written, or (not changed) refused, given up or superseded."""
        flight = self.flights.get(run_id)
        if flight is None:
            return None
        run = flight.run
        if changed and flight.retry_at is not None and self._current(flight):
            self.order([_row_of(run, flight.retry_at, put_backs=run.put_backs)])
        self._leave(flight)
        return run

    def order(self, rows: Iterable[DueRow]) -> None:
        """Rows that are in the ledger, whatever their number: they wait for their next_at."""
        for row in rows:
            self._waiting.announce(row.slot.job, row.origin)
            self._waiting.add(row)

    # ------------------------------------------------------------------ reports of the runners

    def on_prepared(self, run_id: str, *, deadline_ns: int | None) -> None:
        """deadline_ns: of the gate, None if it is closed."""
        flight = self.flights.get(run_id)
        if flight is None or flight.doom is not None:
            return
        if deadline_ns is None or not self._current(flight):
            self._out.append(Drop(run_id))
            return
        self._start(flight, deadline_ns)

    def on_not_started(self, run_id: str, now: Now) -> None:
        flight = self.flights.get(run_id)
        if flight is None:
            return
        if self._current(flight):
            self._put_back(flight, now)
        else:
            self._leave(flight)

    def on_started(self, run_id: str, at: datetime) -> None:
        flight = self.flights.get(run_id)
        if flight is None:
            return
        self._move(flight, Stage.RUNNING)
        late = at - flight.run.slot.scheduled_for
        self._out.append(Emit("run.started", _about(flight.run) | {"late_ms": _ms(late)}))

    def on_ended(self, run_id: str, result: Result, now: Now) -> None:
        flight = self.flights.get(run_id)
        if flight is None:
            return
        finish = _finish_of(flight, result)
        if self._current(flight):
            finish = self._retried(flight, finish, now)
        self._out.append(Emit("run.finished", _about(flight.run) | _how(finish)))
        if flight.doom is Doom.LOST:  # the next leader's sweep ends the row
            self._leave(flight)
            return
        self._move(flight, Stage.FINISHING)
        once = not self._current(flight)
        if not once:
            self._ends[run_id] = now.boot_ns
        self._out.append(WriteFinish(flight.run.term, finish, once=once))
        self._waiting.unpark(flight.run.slot.job)

    def _retried(self, flight: Flight, finish: Finish, now: Now) -> Finish:
        """The same end, or one after which the slot is to be tried again."""
        if finish.state not in (State.FAILED, State.TIMED_OUT):
            return finish
        at = retry_at(flight.run, finish.result)
        if at is None or not self._budget.take(flight.run.job, now.boot_ns):
            return finish
        flight.retry_at = at
        return replace(finish, state=State.RETRYING, next_at=at)

    # ------------------------------------------------------------------ leaving

    def drain(self, now: Now, *, since_ns: int, drain_s: float) -> None:
        """While stopping: drop what has not started, end what outlasts its share of the drain."""
        for flight in self.flights.values():
            if flight.doom is not None:
                continue
            if flight.stage is Stage.PREPARING:
                flight.doom = Doom.SHUTDOWN
                self._out.append(Drop(flight.run.run_id))
            elif flight.stage in UNDER_WAY and (
                now.boot_ns >= self._drained_ns(flight, since_ns, drain_s)
            ):
                self._kill(flight, Doom.SHUTDOWN, grace_s=flight.run.job.grace_s)

    def drain_alarm(self, *, since_ns: int, drain_s: float) -> int | None:
        """When `drain` next has something to do, on the boot clock."""
        running = (f for f in self.flights.values() if f.stage in UNDER_WAY and not f.doom)
        return min((self._drained_ns(f, since_ns, drain_s) for f in running), default=None)

    @staticmethod
    def _drained_ns(flight: Flight, since_ns: int, drain_s: float) -> int:
        own = flight.run.job.drain_s
        share = drain_s if own is None else min(own, drain_s)
        return since_ns + int(share * SECOND_NS)

    def kill_all(self, doom: Doom) -> None:
        """At once and without grace, whatever the job says."""
        for flight in self.flights.values():
            if flight.stage is Stage.PREPARING:
                flight.doom = doom
                self._out.append(Drop(flight.run.run_id))
            elif flight.stage in UNDER_WAY:
                self._kill(flight, doom, grace_s=0)

    def _kill(self, flight: Flight, doom: Doom, *, grace_s: float) -> None:
        flight.doom = doom
        self._out.append(Kill(flight.run.run_id, grace_s))

    @property
    def doomed(self) -> bool:
        """Whether a run is still being ended."""
        return any(f.doom is not None and f.stage in ACTIVE for f in self.flights.values())

    # ------------------------------------------------------------------ alarms

    def wake_wall(self, now: Now) -> datetime | None:
        """When a slot is due or a waiting row may start, the gate being open."""
        if not self._waiting:  # the usual case
            return self._agenda.next_time()
        times = [self._agenda.next_time()]
        if self._full():
            times.append(self._waiting.ripens_at())  # it may have come to replace a run
        else:
            times.append(self._waiting.next_time(self._is_free, overdue=False))
            if self.pace_alarm(now) is None:
                times.append(self._waiting.next_time(self._is_free, overdue=True))
        return min([t for t in times if t is not None], default=None)

    def pace_alarm(self, now: Now) -> int | None:
        """When the next catch-up row may start, on the boot clock; None if none waits for that."""
        if now.boot_ns >= self._paced_until_ns or self._full():
            return None
        at = self._waiting.next_time(self._is_free, overdue=True)
        return self._paced_until_ns if at is not None and at <= now.wall else None

    # ------------------------------------------------------------------ small things

    def _current(self, flight: Flight) -> bool:
        return flight.run.term is self._term

    def _has_place(self, job: Job) -> bool:
        return job.has_place(len(self._busy_jobs.get(job.name, ())))

    def _full(self) -> bool:
        return self._busy >= self._pool.max_parallel

    def _group_has_room(self, job: Job) -> bool:
        most = self._pool.groups.get(job.group)
        return most is None or self._busy_groups[job.group] < most

    def _has_room(self, job: Job) -> bool:
        return not self._full() and self._group_has_room(job)

    def _move(self, flight: Flight, stage: Stage) -> None:
        if flight.stage in ACTIVE and stage in ACTIVE:
            flight.stage = stage
            return
        self._count(flight, -1)
        flight.stage = stage
        self._count(flight, 1)

    def _remove(self, flight: Flight) -> None:
        self._count(flight, -1)
        del self.flights[flight.run.run_id]

    def _count(self, flight: Flight, by: int) -> None:
        """Asked for each slot, so it is kept: with a thousand flights it must not be a loop."""
        if flight.stage not in ACTIVE:
            return
        self._busy += by
        self._busy_groups[flight.run.job.group] += by
        if not self._current(flight):
            return
        run = flight.run
        of_job = self._busy_jobs.setdefault(run.slot.job, {})
        if by > 0:
            of_job[run.run_id] = flight
        else:
            del of_job[run.run_id]
        if not of_job:
            del self._busy_jobs[run.slot.job]

    def _put_back(self, flight: Flight, now: Now) -> None:
        self._move(flight, Stage.RETURNING)
        run = flight.run
        self._ends[run.run_id] = now.boot_ns
        put_back = PutBack(run.slot, run.attempt, run.run_id, now.wall)
        self._out.append(WritePutBack(run.term, put_back))

    def _leave(self, flight: Flight) -> None:
        self._remove(flight)
        self._ends.pop(flight.run.run_id, None)
        self._waiting.unpark(flight.run.slot.job)


class _Sheet:
    """A batch in the making."""

    def __init__(self) -> None:
        self.claims: list[Claim] = []
        self.entries: list[Entry] = []
        self.gaps: list[Gap] = []

    def end(self, row: DueRow, state: State, reason: Reason) -> None:
        """Settle a waiting row. One that has been tried was neither missed nor skipped: it has
        failed, and is not tried again."""
        state = State.FAILED if row.tries else state
        self.entries.append(
            Entry(row.slot, state, reason, row.origin, row.next_at, seen=row.attempt)
        )


_OVERLAPPED = {Overlap.SKIP: Reason.OVERLAP, Overlap.ALLOW: Reason.LIMIT}
"""Where a slot at its own time that finds no place beside its job's runs is skipped, and why."""


def _by_turn(due: Iterable[Turn]) -> list[Turn]:
    """By priority, the groups of one in rotation; else as it was."""
    before: Counter[tuple[int, str]] = Counter()
    ranked = []
    for order, turn in enumerate(due):
        job = turn.job
        ranked.append((-job.priority, before[job.priority, job.group], order, turn))
        before[job.priority, job.group] += 1
    return [turn for *_, turn in sorted(ranked, key=lambda each: each[:3])]


def _priority(due: Turn) -> int:
    return due.job.priority


def _is_jittered(job: Job, row: DueRow) -> bool:
    """Whether it waited for its own time only: it falls due now, and does not queue."""
    return job.jitter_s > 0 and row.origin is Origin.SCHEDULE and row.tries == 0


def _too_late(job: Job, row: DueRow, now: Now) -> bool:
    if job.start_within_s is None or row.origin is Origin.MANUAL:
        return False
    return now.wall - row.slot.scheduled_for > timedelta(seconds=job.start_within_s)


def _finish_of(flight: Flight, result: Result) -> Finish:
    state, reason = _outcome(flight, result)
    again = reason is Reason.SHUTDOWN and flight.run.job.delivery is Delivery.AT_LEAST_ONCE
    run = flight.run
    return Finish(
        slot=run.slot,
        attempt=run.attempt,
        run_id=run.run_id,
        state=State.DUE if again else state,
        attempt_state=state,
        reason=None if again else reason,
        result=result,
    )


def _outcome(flight: Flight, result: Result) -> tuple[State, Reason | None]:
    if result.committed:
        return State.SUCCEEDED, None
    if flight.doom is Doom.LOST:
        return State.ABANDONED, Reason.LOST_LEADERSHIP
    if result.ok:
        return State.SUCCEEDED, None
    if flight.doom is not None:
        replaced = flight.doom is Doom.REPLACED
        return State.CANCELLED, Reason.OVERLAP if replaced else Reason.SHUTDOWN
    return (State.TIMED_OUT if result.timed_out else State.FAILED), None


def _row_of(run: Run, next_at: datetime, *, put_backs: int) -> DueRow:
    """Its row, which waits once more: it is no catch-up, whatever it was."""
    origin = Origin.MANUAL if run.slot.command_id else Origin.SCHEDULE
    return DueRow(run.slot, run.attempt, origin, next_at, put_backs)


def _about(run: Run) -> dict[str, object]:
    return {
        "job": run.slot.job,
        "scheduled_for": run.slot.scheduled_for,
        "attempt": run.attempt,
        "fence": run.term.fence,
    }


def _how(finish: Finish) -> dict[str, object]:
    result = finish.result
    how: dict[str, object] = {
        "outcome": finish.attempt_state,
        "duration_ms": round(result.duration_ns / 1e6, 3),
    }
    if finish.reason is not None:
        how["reason"] = finish.reason
    if result.error is not None:
        how["error"] = result.error.strip().rpartition("\n")[2]
    if finish.next_at is not None:
        how["retry_at"] = finish.next_at
    return how


def _ended(entry: Entry) -> Emit:
    """The event of a slot that ends without a run, or another."""
    slot = entry.slot
    about: dict[str, object] = {"job": slot.job, "scheduled_for": slot.scheduled_for}
    if entry.state is State.FAILED:
        about["attempt"] = entry.seen
    return Emit(f"slot.{entry.state}", about | {"reason": entry.reason})


def _missed(gap: Gap) -> Emit:
    fields = {
        "job": gap.job,
        "scheduled_for": gap.first,
        "last": gap.last,
        "slots": gap.slots,
        "reason": gap.reason,
    }
    return Emit(f"slot.{gap.state}", fields)


def _ms(delta: timedelta) -> float:
    return round(delta.total_seconds() * 1e3, 3)
