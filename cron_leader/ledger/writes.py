"""What each guarded write of a term says to the database, decided without touching one.

A `Write` is one transaction: its steps in order, the guard, COMMIT. Its answer is read from the
last step, inside the transaction, and is the same for a first copy, a resend and a copy that comes
late: no step counts the rows it changed; each write reads what stands there in the end.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from operator import itemgetter
from typing import Any, Generic, TypeVar

from cron_leader.core.model import (
    Applied,
    Batch,
    Claim,
    CommandResult,
    Done,
    DueRow,
    Entry,
    Errand,
    Finish,
    Gap,
    JobRecord,
    Origin,
    PutBack,
    Run,
    Settlement,
    SlotKey,
    State,
    Taken,
    Term,
)
from cron_leader.ledger.orders import done_of, errand_params, errand_rows, read_order
from cron_leader.ledger.sql import Params, Value, to_time, to_time_or_none

T = TypeVar("T")

Row = Mapping[str, Any]
Rows = Sequence[Row]

WRITE_S = 5.0
"""How long an ordinary write may go unanswered before its outcome is called unknown."""

SETTLE_S = 60.0
"""The same for a takeover: it may write a hundred thousand rows."""

TAKEOVERS = 2
"""How many times one at-least-once slot is taken over before it is left `abandoned`."""

PUT_BACK = "not started"
"""The error of an attempt that was put back; what ran has another."""

_ANY_TIME = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(frozen=True, slots=True)
class Step:
    """One statement of queries.sql. rows: its batch, in the order of its columns."""

    query: str
    params: Params
    rows: tuple[tuple[Value, ...], ...] | None = None


@dataclass(frozen=True, slots=True)
class Write(Generic[T]):
    """One guarded transaction.

    at: when, by our clock; for the record of a refusal.
    answer: from the last step's rows and the database's clock (None where it is ours).
    outcome: what a refusal's record says was lost. within_s: bound on the answer.
    instead: what to send when a unique key says that our own earlier copy has committed.
    on_disk: whether it must outlast a loss of power by itself, or may wait for the next that must.
    """

    what: str
    term: Term
    at: datetime
    steps: tuple[Step, ...]
    answer: Callable[[Rows, datetime | None], T]
    outcome: str | None = None
    within_s: float = WRITE_S
    instead: Write[T] | None = None
    on_disk: bool = True


# ------------------------------------------------------------------ takeover


def settle(term: Term, settlement: Settlement) -> Write[tuple[DueRow, ...]]:
    """The takeover: open the term, sweep, write the backlog, answer with all that waits."""
    of_term = _of_term(term, now=settlement.now)
    waiting = Step("waiting_slots", of_term | {"put_back": PUT_BACK})
    steps = (
        _open_term(term, settlement),
        *_renames(of_term, settlement),
        *_sweep(of_term, settlement),
        *_orders(of_term, settlement),
        *_backlog(of_term, settlement),
        Step("end_older_terms", of_term),
        *([waiting] if settlement.sweep or settlement.entries else ()),
    )
    copy = Write("settle", term, settlement.now, (waiting,), _due_rows, within_s=SETTLE_S)
    return replace(copy, steps=steps, instead=copy)


def _open_term(term: Term, settlement: Settlement) -> Step:
    params = _of_term(term, now=settlement.now) | {
        "lease": term.lease,
        "elected_at": term.elected_at,
        "planned_to": settlement.planned_to,
    }
    return Step("open_term", params)


def _renames(of_term: Params, settlement: Settlement) -> Iterable[Step]:
    """All that the ledger has of a job; what is unfinished is held first, as a sweep holds it."""
    if settlement.renamed:
        yield Step("hold_unfinished", of_term)
    for query in ("rename_attempts", "rename_slots", "rename_gaps", "rename_jobs"):
        yield from _batch(query, of_term, settlement.renamed)


def _sweep(of_term: Params, settlement: Settlement) -> Iterable[Step]:
    if not settlement.sweep:
        return
    again = tuple((job,) for job in sorted(settlement.at_least_once))
    yield Step("hold_unfinished", of_term)
    yield Step("sweep_attempts", of_term)
    if settlement.skip:
        yield Step("sweep_went_back", of_term)
        return
    yield from _batch("sweep_running_to_due", {**of_term, "takeovers": TAKEOVERS}, again)
    yield Step("sweep_running", of_term)
    yield Step("sweep_waiting", of_term)


def _orders(of_term: Params, settlement: Settlement) -> Iterable[Step]:
    if settlement.skip:
        yield Step("drop_orders", {**of_term, "result": CommandResult.ROLLBACK.value})


def _backlog(of_term: Params, settlement: Settlement) -> Iterable[Step]:
    jobs = ((j.job, j.first_seen, j.effective_from, j.digest) for j in settlement.jobs)
    yield from _batch("put_jobs", of_term, jobs)
    as_of = {**of_term, "now": settlement.retired_at or settlement.now}
    yield from _batch("retire_jobs", as_of, ((job,) for job in settlement.retired))
    yield from _entries(of_term, settlement.entries, settlement.now)
    yield from _gaps(of_term, settlement.gaps)


def _due_rows(rows: Rows, _: datetime | None) -> tuple[DueRow, ...]:
    return tuple(
        DueRow(
            SlotKey(row["job"], to_time(row["scheduled_for"]), row["command_id"]),
            row["attempt"],
            Origin(row["origin"]),
            to_time_or_none(row["next_at"]),
            row["put_backs"],
        )
        for row in rows
    )


def rehearsal(election: str, at: datetime) -> tuple[Step, ...]:
    """The statements of a takeover, with values of their types: to be planned, never run."""
    term, slot = Term(election, 0, "", "", 0, at), SlotKey("", at)
    due = Entry(slot, State.DUE, next_at=at)
    jobs = (JobRecord("", at, at, ""),)
    past = Settlement(at, at, jobs, ("",), (due,), (), frozenset({""}))
    return settle(term, past).steps


# ------------------------------------------------------------------ claims


def take(term: Term, batch: Batch) -> Write[Taken]:
    """All claims, entries and gaps of one instant, and planned_to."""
    of_term = _of_term(term, now=batch.now)
    steps = (
        *_hold(of_term, batch),
        *_claims(of_term, batch.claims),
        *_entries(of_term, batch.entries, batch.now),
        *_gaps(of_term, batch.gaps),
        Step("plan_to", {**of_term, **_planned(batch.planned_to, batch.known)}),
        *_batch("claims_won", of_term, (_run(claim) for claim in batch.claims)),
    )
    return Write("claim", term, batch.now, steps, taken)


def plan_to(term: Term, batch: Batch) -> Write[Taken]:
    """The part of a claim that is not its rows, which a back end has its own way to write."""
    params = {**_of_term(term, now=batch.now), **_planned(batch.planned_to, batch.known)}
    return Write("claim", term, batch.now, (Step("plan_to", params),), taken)


def _hold(of_term: Params, batch: Batch) -> Iterable[Step]:
    """The rows that there are, in one order; not for a batch of one row, which has no other."""
    wanted: tuple[Claim | Entry, ...] = (*batch.claims, *batch.entries)
    held = [_slot(one.slot) for one in wanted if one.seen is not None]
    if len(wanted) > 1:
        yield from _batch("hold_waiting", of_term, held)


def _claims(of_term: Params, claims: Sequence[Claim]) -> Iterable[Step]:
    new = [(*_slot(c.slot), _origin(c.slot), c.run_id) for c in claims if c.seen is None]
    waiting = [(*_slot(c.slot), c.seen, c.run_id) for c in claims if c.seen is not None]
    yield from _batch("pause_new", of_term, (row[:-1] for row in new))
    yield from _batch("claim_new", of_term, new)
    not_a_try = {**of_term, "put_back": PUT_BACK}
    yield from _batch("pause_waiting", not_a_try, (row[:-1] for row in waiting))
    yield from _batch("claim_waiting", of_term, waiting)
    yield from _batch("new_attempts", of_term, (_run(claim) for claim in claims))


def taken(rows: Rows, _: datetime | None = None) -> Taken:
    won = {row["run_id"]: row["attempt"] for row in rows if row["state"] == State.RUNNING}
    return Taken(won, frozenset(row["run_id"] for row in rows) - won.keys())


def _entries(of_term: Params, entries: Sequence[Entry], now: datetime) -> Iterable[Step]:
    new = (
        (*_slot(e.slot), e.state.value, _value(e.reason), e.origin.value, e.next_at, _end(e, now))
        for e in entries
        if e.seen is None
    )
    seen = (
        (*_slot(e.slot), e.seen, e.state.value, _value(e.reason), e.next_at, _end(e, now))
        for e in entries
        if e.seen is not None
    )
    yield from _batch("new_entries", of_term, new)
    yield from _batch("end_entries", of_term, seen)


def _gaps(of_term: Params, gaps: Sequence[Gap]) -> Iterable[Step]:
    rows = ((g.job, g.first, g.last, g.slots, g.state.value, g.reason.value) for g in gaps)
    yield from _batch("new_gaps", of_term, rows)


# ------------------------------------------------------------------ the end of a run, of a term


_UNFINISHED = {State.DUE: "slot_due_again", State.RETRYING: "slot_retrying"}
"""The end of a run that is not the end of its slot."""


def finish(term: Term, finish: Finish) -> Write[Applied]:
    """The run's outcome on its slot and on its attempt."""
    result = finish.result
    params = _of_attempt(finish.slot, finish.attempt, finish.run_id) | {
        "state": finish.state.value,
        "reason": _value(finish.reason),
        "attempt_state": finish.attempt_state.value,
        "finished_at": result.finished_at,
        "exit_code": result.exit_code,
        "error": _storable(result.error),
        "output": _storable(result.output),
        "next_at": finish.next_at,
    }
    outcome = finish.attempt_state.value
    slot = _UNFINISHED.get(finish.state, "finish_slot")
    return _run_write("finish", term, slot, params, at=result.finished_at, outcome=outcome)


def put_back(term: Term, put_back: PutBack) -> Write[Applied]:
    """The claim undone: the attempt's number stays used."""
    params = _of_attempt(put_back.slot, put_back.attempt, put_back.run_id) | {
        "attempt_state": State.CANCELLED.value,
        "finished_at": put_back.now,
        "exit_code": None,
        "error": PUT_BACK,
        "output": None,
    }
    return _run_write("put_back", term, "slot_due_again", params, at=put_back.now)


def _run_write(
    what: str, term: Term, slot: str, params: Params, *, at: datetime, outcome: str | None = None
) -> Write[Applied]:
    names = (slot, "finish_attempt", "attempt_finished")
    steps = tuple(Step(name, params) for name in names)
    return Write(what, term, at, steps, _applied, outcome=outcome)


def heartbeat(
    term: Term,
    planned_to: datetime,
    now: datetime,
    *,
    known: datetime | None = None,
    runs: Iterable[Run] = (),
) -> Write[Applied]:
    """The term lives, and has planned up to here; the answer brings the orders that wait.

    known: what the term's row must show at least; planned_to is not below it.
    runs: those under way, whose attempts are seen alive with it.
    """
    params = {**_of_term(term, now=now), **_planned(planned_to, known)}
    alive = ((*_slot(run.slot), run.run_id) for run in runs)
    steps = (
        Step("heartbeat", params),
        *_batch("beat_attempts", params, alive),
        Step("term_and_orders", params),
    )
    return Write("heartbeat", term, now, steps, _beaten)


def _planned(planned_to: datetime, known: datetime | None) -> Params:
    return {"planned_to": planned_to, "known": known or _ANY_TIME}


def _beaten(rows: Rows, ledger_now: datetime | None) -> Applied:
    """One row per order, and one without an order if there is none; no row: the term's row is gone,
    or has not come up to our planned_to: what it showed was less than we knew."""
    orders = tuple(read_order(row) for row in rows if row["id"] is not None)
    return Applied(changed=bool(rows), ledger_now=ledger_now, orders=orders)


def answer_order(
    term: Term, command_id: str, result: CommandResult, now: datetime
) -> Write[Applied]:
    """What became of an operator's order."""
    params = _of_term(term, now=now) | {"command_id": command_id, "result": result.value}
    names = ("answer_order", "order_answered")
    return Write("command", term, now, tuple(Step(n, params) for n in names), _applied)


def carry_out(term: Term, errand: Errand, now: datetime) -> Write[Done]:
    """What an order asks of the jobs, and its answer."""
    params = errand_params(term, errand, now)
    slots = tuple(_batch("manual_slots", params, errand_rows(errand)))
    steps = (
        *_pause(errand, params),
        *_batch("put_manual", params, errand_rows(errand)),
        Step("answer_order", params),
        *(slots or (Step("order_answered", params),)),
    )
    return Write("command", term, now, steps, lambda rows, _: done_of(rows))


def _pause(errand: Errand, params: Params) -> Iterable[Step]:
    if errand.result is CommandResult.PAUSED:
        yield Step("pause_jobs", params)
    elif errand.result is CommandResult.RESUMED:
        yield Step("resume_jobs", params)


def close_term(term: Term, reason: str, now: datetime) -> Write[Applied]:
    """The term's end, unless one is written already."""
    params = _of_term(term, now=now) | {"reason": reason}
    names = ("close_term", "term_closed")
    steps = tuple(Step(n, params) for n in names)
    return Write("close_term", term, now, steps, _applied, on_disk=False)


def _applied(rows: Rows, ledger_now: datetime | None) -> Applied:
    return Applied(changed=bool(rows), ledger_now=ledger_now)


# ------------------------------------------------------------------ pieces


_KEY = itemgetter(slice(3))
"""The first columns of every batch are its key; none of them is ever None."""


def _batch(query: str, params: Params, rows: Iterable[tuple[Value, ...]]) -> Iterable[Step]:
    """The step, if there are rows; sorted, so that two copies lock in the same order."""
    if found := tuple(sorted(rows, key=_KEY)):
        yield Step(query, params, found)


def _of_term(term: Term, *, now: datetime) -> dict[str, Value]:
    return {
        "election": term.election,
        "fence": term.fence,
        "nonce": term.nonce,
        "node": term.node,
        "now": now,
    }


def _of_attempt(slot: SlotKey, attempt: int, run_id: str) -> dict[str, Value]:
    job, scheduled_for, command_id = _slot(slot)
    return {
        "job": job,
        "scheduled_for": scheduled_for,
        "command_id": command_id,
        "attempt": attempt,
        "run_id": run_id,
    }


def _slot(slot: SlotKey) -> tuple[str, datetime, str]:
    return slot.job, slot.scheduled_for, slot.command_id


def _run(claim: Claim) -> tuple[Value, ...]:
    return (*_slot(claim.slot), claim.run_id)


def _origin(slot: SlotKey) -> str:
    return (Origin.MANUAL if slot.command_id else Origin.SCHEDULE).value


def _end(entry: Entry, now: datetime) -> datetime | None:
    return None if entry.state is State.DUE else now


def _value(reason: State | Origin | Any) -> str | None:
    return None if reason is None else str(reason.value)


def _storable(text: str | None) -> str | None:
    """Job output as any database takes it: no NUL, no lone surrogates."""
    if text is None:
        return None
    return text.replace("\0", "\ufffd").encode("utf-8", "replace").decode("utf-8")
