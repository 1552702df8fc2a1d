"""A model of the ledger that answers as cron_leader's own ledgers do (a test holds it against the
SQLite one), a hundred times faster. One election; no retention.

Every write is one transaction: the guard, then all of it, or nothing.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from copy import copy
from dataclasses import dataclass, replace
from datetime import datetime

from cron_leader.core.model import (
    UNFINISHED,
    Applied,
    Asked,
    Backfill,
    Batch,
    Candidate,
    Claim,
    CommandResult,
    Done,
    DueRow,
    Entry,
    Errand,
    Finish,
    Gap,
    JobRecord,
    Order,
    Origin,
    Past,
    PutBack,
    Reason,
    Refused,
    Rollback,
    Settlement,
    SlotKey,
    State,
    Taken,
    Term,
    Trigger,
)

TAKEOVERS = 2
_PLAIN = ("fence", "holder", "offset", "cluster", "loss")
_WAITING = frozenset({State.DUE, State.RETRYING})


@dataclass(slots=True)
class Row:
    """A slot."""

    slot: SlotKey
    fence: int
    state: State
    origin: Origin
    reason: Reason | None = None
    attempt: int = 0
    put_backs: int = 0
    run_id: str | None = None
    next_at: datetime | None = None
    paused_at: datetime | None = None


@dataclass(slots=True)
class Attempt:
    run_id: str
    fence: int
    state: State


@dataclass(slots=True)
class TermRow:
    nonce: str
    planned_to: datetime
    ended: str | None = None


@dataclass(slots=True)
class Command:
    """An operator's order. done_by, result: None until it is answered."""

    order: Order | Asked
    at: datetime
    done_by: int | None = None
    result: CommandResult | None = None


@dataclass(frozen=True, slots=True)
class Loss:
    """That a raise found the ledger to have lost its end. lost_from: the fence that etcd knew."""

    at: datetime
    lost_from: int
    skip: bool


Committed = Callable[[str, str, int, bool], None]
"""(node, what, fence, it is a raise)."""
Ended = Callable[[SlotKey, State], None]


class ModelLedger:
    """Answers at once; `committed` is told of each write that is made, `ended` of each slot that
    is final after it was not."""

    def __init__(
        self, committed: Committed = lambda *_: None, ended: Ended = lambda *_: None
    ) -> None:
        self._committed, self._ended = committed, ended
        self.fence: tuple[int, str] | None = None
        self.holder = ""
        self.offset = 0
        self.cluster: int | None = None
        self.loss: Loss | None = None
        self.terms: dict[int, TermRow] = {}
        self.slots: dict[SlotKey, Row] = {}
        self.attempts: dict[tuple[SlotKey, int], Attempt] = {}
        self.jobs: dict[str, JobRecord] = {}
        self.gaps: dict[tuple[str, datetime], Gap] = {}
        self.refusals: list[tuple[int, int | None, str, str]] = []
        """(fence, high, node, what)."""
        self.commands: dict[str, Command] = {}
        self._open: dict[SlotKey, Row] = {}
        self._abandoned: Counter[SlotKey] = Counter()

    # ------------------------------------------------------------------ fence

    def raise_fence(self, candidate: Candidate, now: datetime | None = None) -> int | Refused:
        """now: the candidate's clock; needed where a loss is to be admitted."""
        least, ours = candidate.least, self.offset + candidate.revision
        if candidate.rollback is not Rollback.REFUSE and least and now is not None:
            self._admit(candidate, now)
            ours = self.offset + candidate.revision
        known = self.fence is not None or not least
        shows_less = least > (0 if self.fence is None else self.fence[0])
        if known and not shows_less and self.is_below(ours) and self._is_of(candidate.cluster):
            self.lift(candidate)
        if self.holds(ours, candidate.nonce):
            return ours
        high = None if self.fence is None else self.fence[0]
        self.refusals.append((candidate.revision, high, candidate.node, "raise"))
        return Refused("raise", high, history=shows_less or not self._is_of(candidate.cluster))

    def lift(self, candidate: Candidate) -> int:
        """Commit the raise."""
        fence = self.offset + candidate.revision
        self.fence, self.cluster = (fence, candidate.nonce), candidate.cluster
        self.holder = candidate.node
        self._committed(candidate.node, "raise", fence, True)
        return fence

    def _admit(self, candidate: Candidate, now: datetime) -> None:
        """A fence below what etcd remembers is lifted to that: the ledger has lost its end."""
        least = candidate.least
        if not self.is_below(least) or not self._is_of(candidate.cluster):
            return
        if self.offset + candidate.revision <= least:
            self.offset = least
        self.fence = (least, "")
        self.loss = Loss(now, least, candidate.rollback is Rollback.SKIP)
        self._committed(candidate.node, "admit", least, True)

    def is_below(self, fence: int) -> bool:
        """Whether a raise to this fence is one."""
        return self.fence is None or self.fence[0] < fence

    def _is_of(self, cluster: int) -> bool:
        return self.cluster in (None, cluster)

    def holds(self, fence: int, nonce: str) -> bool:
        return self.fence == (fence, nonce)

    def rebase(self) -> None:
        """`cron-leader fence rebase`, by hand, after etcd's history went back."""
        if self.fence is not None:
            self.offset, self.cluster = max(self.offset, self.fence[0]), None

    def guard(self, term: Term) -> bool:
        return self.holds(term.fence, term.nonce)

    # ------------------------------------------------------------------ backups

    def backup(self) -> dict[str, object]:
        """What is in it now, but for the record of refusals; for `restore`."""
        slots = {slot: copy(row) for slot, row in self.slots.items()}
        return {
            **{name: getattr(self, name) for name in _PLAIN},
            "terms": {fence: copy(row) for fence, row in self.terms.items()},
            "slots": slots,
            "_open": {slot: slots[slot] for slot in self._open},
            "attempts": {key: copy(attempt) for key, attempt in self.attempts.items()},
            "commands": {key: copy(command) for key, command in self.commands.items()},
            "jobs": dict(self.jobs),
            "gaps": dict(self.gaps),
            "_abandoned": Counter(self._abandoned),
        }

    def restore(self, backup: dict[str, object]) -> None:
        """Go back to that; a backup is used once."""
        for name, held in backup.items():
            setattr(self, name, held)

    def _refused(self, term: Term, what: str) -> Refused | None:
        """None: the write is made."""
        if self.guard(term):
            self._committed(term.node, what, term.fence, False)
            return None
        high = None if self.fence is None else self.fence[0]
        self.refusals.append((term.fence, high, term.node, what))
        return Refused(what, high)

    # ------------------------------------------------------------------ takeover

    def read_past(self, term: Term) -> Past:
        planned = max((row.planned_to for row in self.terms.values()), default=None)
        loss, settled = self.loss, max(self.terms, default=0)
        past = Past(planned, dict(self.jobs), unfinished=bool(self._to_sweep(term.fence)))
        if loss is None or settled >= loss.lost_from:
            return past
        return replace(past, went_back_at=loss.at, skip=loss.skip)

    def settle(self, term: Term, settlement: Settlement) -> tuple[DueRow, ...] | Refused:
        if refused := self._refused(term, "settle"):
            return refused
        assert not settlement.renamed, "no plan renames a job: the model has no rule for it"
        if term.fence not in self.terms:
            for row in self.terms.values():
                row.ended = row.ended or "lease_expired"
            self.terms[term.fence] = TermRow(term.nonce, settlement.planned_to)
            if settlement.sweep:
                self._sweep(term.fence, settlement)
            if settlement.skip:
                self._drop_orders(term)
            self.jobs.update((record.job, self._put(record)) for record in settlement.jobs)
            for name in settlement.retired:
                self.jobs[name] = replace(
                    self.jobs[name], retired_at=settlement.retired_at or settlement.now
                )
            self._entries(term, settlement.entries)
            self._gaps(settlement.gaps)
        rows = [row for row in self._open.values() if _waits(row, term.fence)]
        rows.sort(key=lambda row: (row.slot.scheduled_for, row.slot.job, row.slot.command_id))
        return tuple(
            DueRow(row.slot, row.attempt, row.origin, row.next_at, row.put_backs) for row in rows
        )

    def _drop_orders(self, term: Term) -> None:
        for key, command in self.commands.items():
            if isinstance(command.order, Trigger | Backfill):
                self._answered(term, key, CommandResult.ROLLBACK)

    def _put(self, record: JobRecord) -> JobRecord:
        """A pause is an operator's order: no leader's record changes it."""
        held = self.jobs.get(record.job)
        if held is None:
            return record
        return replace(record, paused_from=held.paused_from, paused_until=held.paused_until)

    def _to_sweep(self, fence: int) -> Iterable[Row]:
        return [row for row in self._open.values() if row.fence < fence]

    def _is_running(self, row: Row) -> bool:
        return row.state is State.RUNNING

    def _sweep(self, fence: int, settlement: Settlement) -> None:
        for row in self._to_sweep(fence):
            running = self._is_running(row)
            attempt = self.attempts.get((row.slot, row.attempt)) if running else None
            if attempt is not None and attempt.state is State.RUNNING:
                attempt.state = State.ABANDONED
                self._abandoned[row.slot] += 1
            if settlement.skip:
                state = State.ABANDONED if row.attempt else State.MISSED
                self._end(row, state, Reason.ROLLBACK)
                continue
            if not running:
                row.fence = fence
                continue
            again = row.slot.job in settlement.at_least_once
            if again and self._abandoned[row.slot] <= TAKEOVERS:
                row.state, row.fence, row.run_id = State.DUE, fence, None
            else:
                self._end(row, State.ABANDONED, Reason.LOST_LEADERSHIP)

    def _end(self, row: Row, state: State, reason: Reason | None) -> None:
        row.state, row.reason = state, reason
        if state not in UNFINISHED:
            self._open.pop(row.slot, None)
            self._ended(row.slot, state)

    # ------------------------------------------------------------------ slots

    def take(self, term: Term, batch: Batch) -> Taken | Refused:
        if refused := self._refused(term, "claim"):
            return refused
        for claim in batch.claims:
            if not self._pause(term.fence, claim, batch.now):
                self._claim(term.fence, claim.slot, claim.run_id, claim.seen)
        self._entries(term, batch.entries)
        self._gaps(batch.gaps)
        self._plan_to(term, batch.planned_to, batch.known)
        won, paused = {}, set()
        for claim in batch.claims:
            row = self.slots.get(claim.slot)
            if row and row.run_id == claim.run_id and row.state is State.RUNNING:
                won[claim.run_id] = row.attempt
            elif row and row.paused_at == batch.now:
                paused.add(claim.run_id)
        return Taken(won, frozenset(paused))

    def _pause(self, fence: int, claim: Claim, now: datetime) -> bool:
        """Whether the slot is skipped for a pause of its job, or was by an earlier copy."""
        slot = claim.slot
        if slot.command_id or not self._is_paused(slot, now):
            return False
        row = self.slots.get(slot)
        if row is None and claim.seen is None:
            self.slots[slot] = Row(slot, fence, State.SKIPPED, Origin.SCHEDULE, Reason.PAUSED)
            self.slots[slot].paused_at = now
        elif row is not None and row.attempt == claim.seen and _waits(row, fence):
            row.paused_at = now
            tried = row.attempt > row.put_backs
            self._end(row, State.FAILED if tried else State.SKIPPED, Reason.PAUSED)
        return True

    def _is_paused(self, slot: SlotKey, now: datetime) -> bool:
        job = self.jobs.get(slot.job)
        if job is None or job.paused_from is None or job.paused_until is None:
            return False
        return job.paused_until > now or job.paused_from <= slot.scheduled_for < job.paused_until

    def _claim(self, fence: int, slot: SlotKey, run_id: str, seen: int | None) -> None:
        row = self.slots.get(slot)
        if row is None and seen is None:
            origin = Origin.MANUAL if slot.command_id else Origin.SCHEDULE
            row = Row(slot, fence, State.RUNNING, origin, attempt=1, run_id=run_id)
            self.slots[slot] = self._open[slot] = row
        elif row is not None and seen is not None and _waits(row, fence) and row.attempt == seen:
            row.state, row.attempt, row.run_id = State.RUNNING, _next_attempt(seen), run_id
        else:
            return
        self.attempts.setdefault((slot, row.attempt), Attempt(run_id, fence, State.RUNNING))

    def _entries(self, term: Term, entries: Iterable[Entry]) -> None:
        for entry in entries:
            row = self.slots.get(entry.slot)
            if entry.seen is None and row is None:
                row = Row(entry.slot, term.fence, entry.state, entry.origin, entry.reason)
                row.next_at = entry.next_at
                self.slots[entry.slot] = row
                if entry.state in UNFINISHED:
                    self._open[entry.slot] = row
            elif row is not None and entry.seen == row.attempt and _waits(row, term.fence):
                row.next_at = entry.next_at
                self._end(row, entry.state, entry.reason)

    def _gaps(self, gaps: Iterable[Gap]) -> None:
        for gap in gaps:
            held = self.gaps.setdefault((gap.job, gap.first), gap)
            if held.last < gap.last:
                self.gaps[gap.job, gap.first] = gap

    def _plan_to(self, term: Term, planned_to: datetime, known: datetime | None) -> None:
        row = self.terms.get(term.fence)
        if row is not None and (known is None or row.planned_to >= known):
            row.planned_to = max(row.planned_to, planned_to)

    def heartbeat(
        self, term: Term, planned_to: datetime, known: datetime, now: datetime | None
    ) -> Applied | Refused:
        """now: the ledger's clock."""
        if refused := self._refused(term, "heartbeat"):
            return refused
        self._plan_to(term, planned_to, known)
        row = self.terms.get(term.fence)
        shows = row is not None and row.planned_to >= planned_to
        return Applied(changed=shows, ledger_now=now, orders=self._orders() if shows else ())

    # ------------------------------------------------------------------ operators' orders

    def _orders(self) -> tuple[Order | Asked, ...]:
        """Those that nobody has answered."""
        return tuple(c.order for c in self.commands.values() if c.done_by is None)

    def answer_order(self, term: Term, command_id: str, result: CommandResult) -> Applied | Refused:
        if refused := self._refused(term, "command"):
            return refused
        return Applied(changed=self._answered(term, command_id, result))

    def _answered(self, term: Term, command_id: str, result: CommandResult) -> bool:
        command = self.commands.get(command_id)
        if command is None:
            return False
        if command.done_by is None:
            command.done_by, command.result = term.fence, result
        return (command.done_by, command.result) == (term.fence, result)

    def carry_out(self, term: Term, errand: Errand, now: datetime) -> Done | Refused:
        if refused := self._refused(term, "command"):
            return refused
        command = self.commands.get(errand.command_id)
        if command is not None and self._is_open(command):
            self._obey(term.fence, errand, now)
        if not self._answered(term, errand.command_id, errand.result):
            return Done(False)
        rows = [self.slots.get(entry.slot) for entry in errand.slots]
        due = [row for row in rows if row and (row.fence, row.state) == (term.fence, State.DUE)]
        return Done(True, tuple(DueRow(r.slot, r.attempt, r.origin, r.next_at) for r in due))

    def _is_open(self, command: Command) -> bool:
        return command.done_by is None

    def _obey(self, fence: int, errand: Errand, now: datetime) -> None:
        for entry in errand.slots:
            if entry.slot not in self.slots and (errand.anew or not self._has_run(entry.slot)):
                row = Row(entry.slot, fence, State.DUE, Origin.MANUAL, next_at=entry.next_at)
                self.slots[entry.slot] = self._open[entry.slot] = row
        until = errand.paused_until
        for job in list(self.jobs.values()) if until is not None else ():
            if errand.job not in (None, job.job):
                continue
            paused = job.paused_until is not None and job.paused_until > now
            if errand.result is CommandResult.PAUSED and job.retired_at is None:
                since = job.paused_from if paused else now
                self.jobs[job.job] = replace(job, paused_from=since, paused_until=until)
            elif errand.result is CommandResult.RESUMED and paused:
                self.jobs[job.job] = replace(job, paused_until=now)

    def _has_run(self, slot: SlotKey) -> bool:
        """Whether something of that time has run, or is about to."""
        return any(
            (row.slot.job, row.slot.scheduled_for) == (slot.job, slot.scheduled_for)
            and row.state not in (State.MISSED, State.SKIPPED)
            for row in self.slots.values()
        )

    # ------------------------------------------------------------------ the end of a run, of a term

    def finish(self, term: Term, finish: Finish) -> Applied | Refused:
        if refused := self._refused(term, "finish"):
            return refused
        self._end_run(finish, finish.state, finish.attempt_state, finish.reason)
        return self._finished(finish, finish.attempt_state)

    def put_back(self, term: Term, back: PutBack) -> Applied | Refused:
        if refused := self._refused(term, "put_back"):
            return refused
        self._end_run(back, State.DUE, State.CANCELLED, None)
        return self._finished(back, State.CANCELLED)

    def _end_run(
        self, end: Finish | PutBack, state: State, attempt_state: State, reason: Reason | None
    ) -> None:
        row = self.slots.get(end.slot)
        mine = row is not None and (row.attempt, row.run_id) == (end.attempt, end.run_id)
        if row is not None and mine and row.state is State.RUNNING:
            if state is State.DUE:
                row.run_id = None
                row.state = state
                row.put_backs += isinstance(end, PutBack)
            else:
                self._end(row, state, reason)
            if state is State.RETRYING and isinstance(end, Finish):
                row.run_id, row.next_at = None, end.next_at
        attempt = self.attempts.get((end.slot, end.attempt))
        if attempt and attempt.run_id == end.run_id and attempt.state is State.RUNNING:
            attempt.state = attempt_state

    def _finished(self, end: Finish | PutBack, state: State) -> Applied:
        attempt = self.attempts.get((end.slot, end.attempt))
        mine = attempt is not None and (attempt.run_id, attempt.state) == (end.run_id, state)
        return Applied(changed=mine)

    def close_term(self, term: Term, reason: str) -> Applied | Refused:
        if refused := self._refused(term, "close_term"):
            return refused
        row = self.terms.get(term.fence)
        if row is not None and row.ended is None:
            row.ended = reason
        return Applied(changed=row is not None and row.ended == reason)


def _next_attempt(seen: int) -> int:
    return seen + 1


def _waits(row: Row, fence: int) -> bool:
    return row.fence == fence and row.state in _WAITING
