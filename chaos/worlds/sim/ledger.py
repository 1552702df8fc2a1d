"""A model of the ledger that answers as cron_leader's own ledgers do (a test holds it against the
SQLite one), a hundred times faster. One election; no orders, no retention, no lost history.

Every write is one transaction: the guard, then all of it, or nothing.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from datetime import datetime

from cron_leader.core.model import (
    UNFINISHED,
    Applied,
    Batch,
    Candidate,
    DueRow,
    Entry,
    Finish,
    Gap,
    JobRecord,
    Origin,
    Past,
    PutBack,
    Reason,
    Refused,
    Settlement,
    SlotKey,
    State,
    Taken,
    Term,
)

TAKEOVERS = 2
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
        self.terms: dict[int, TermRow] = {}
        self.slots: dict[SlotKey, Row] = {}
        self.attempts: dict[tuple[SlotKey, int], Attempt] = {}
        self.jobs: dict[str, JobRecord] = {}
        self.gaps: dict[tuple[str, datetime], Gap] = {}
        self.refusals: list[tuple[int, int | None, str, str]] = []
        """(fence, high, node, what)."""
        self._open: dict[SlotKey, Row] = {}
        self._abandoned: Counter[SlotKey] = Counter()

    # ------------------------------------------------------------------ fence

    def raise_fence(self, candidate: Candidate) -> int | Refused:
        mine = (candidate.revision, candidate.nonce)
        if self.fence is None or self.fence[0] < candidate.revision:
            self.fence = mine
            self._committed(candidate.node, "raise", candidate.revision, True)
        if self.fence == mine:
            return candidate.revision
        high = self.fence[0]
        self.refusals.append((candidate.revision, high, candidate.node, "raise"))
        return Refused("raise", high)

    def guard(self, term: Term) -> bool:
        return self.fence == (term.fence, term.nonce)

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
        return Past(planned, dict(self.jobs))

    def settle(self, term: Term, settlement: Settlement) -> tuple[DueRow, ...] | Refused:
        if refused := self._refused(term, "settle"):
            return refused
        if term.fence not in self.terms:
            for row in self.terms.values():
                row.ended = row.ended or "lease_expired"
            self.terms[term.fence] = TermRow(term.nonce, settlement.planned_to)
            self._sweep(term.fence, settlement)
            self.jobs.update((record.job, record) for record in settlement.jobs)
            for name in settlement.retired:
                self.jobs[name] = replace(self.jobs[name], retired_at=settlement.now)
            self._entries(term, settlement.entries)
            self._gaps(settlement.gaps)
        rows = [row for row in self._open.values() if _waits(row, term.fence)]
        rows.sort(key=lambda row: (row.slot.scheduled_for, row.slot.job, row.slot.command_id))
        return tuple(
            DueRow(row.slot, row.attempt, row.origin, row.next_at, row.put_backs) for row in rows
        )

    def _sweep(self, fence: int, settlement: Settlement) -> None:
        for row in [row for row in self._open.values() if row.fence < fence]:
            if row.state is not State.RUNNING:
                row.fence = fence
                continue
            attempt = self.attempts[row.slot, row.attempt]
            if attempt.state is State.RUNNING:
                attempt.state = State.ABANDONED
                self._abandoned[row.slot] += 1
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
            self._claim(term.fence, claim.slot, claim.run_id, claim.seen)
        self._entries(term, batch.entries)
        self._gaps(batch.gaps)
        self._plan_to(term, batch.planned_to, batch.known)
        won = {}
        for claim in batch.claims:
            row = self.slots.get(claim.slot)
            if row and row.run_id == claim.run_id and row.state is State.RUNNING:
                won[claim.run_id] = row.attempt
        return Taken(won)

    def _claim(self, fence: int, slot: SlotKey, run_id: str, seen: int | None) -> None:
        row = self.slots.get(slot)
        if row is None and seen is None:
            origin = Origin.MANUAL if slot.command_id else Origin.SCHEDULE
            row = Row(slot, fence, State.RUNNING, origin, attempt=1, run_id=run_id)
            self.slots[slot] = self._open[slot] = row
        elif row is not None and seen is not None and _waits(row, fence) and row.attempt == seen:
            row.state, row.attempt, row.run_id = State.RUNNING, seen + 1, run_id
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
        return Applied(changed=shows, ledger_now=now)

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


def _waits(row: Row, fence: int) -> bool:
    return row.fence == fence and row.state in _WAITING
