"""`why JOB TIME`: what should have happened at that time, who led, what was recorded, what was
refused, and what operators asked for around it; from the ledger and the configuration alone."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from typing import Annotated, Any

import typer

from cron_leader import config as configuration
from cron_leader.cli import output, setup
from cron_leader.cli.lookup import reader_of
from cron_leader.cli.state import expect_job, gap_fact, history_fact, with_code_jobs_if_possible
from cron_leader.cli.terms import end_of
from cron_leader.cli.times import instant
from cron_leader.config import Config
from cron_leader.core.model import UNFINISHED, Job, Reason, State
from cron_leader.core.schedule import zone_of
from cron_leader.ledger.views import (
    AttemptRow,
    CommandRow,
    GapRow,
    JobRow,
    Reader,
    RefusalRow,
    SlotRow,
    TermRow,
)
from cron_leader.status import Fact

AROUND = timedelta(minutes=1)
"""How far before the slot, and after its end, refusals and orders are looked for."""

MOST = 10
"""Refusals and orders that are told."""

MOST_READ = 100
"""Orders that are looked through for those to the job, or to all."""


class Verdict(StrEnum):
    """What is known of the instant; `verdict` in the JSON."""

    RECORDED = "recorded"
    IN_GAP = "in_gap"
    NO_SLOT = "no_slot"
    BEFORE = "before_effective"
    RETIRED = "retired"
    AHEAD = "not_planned_yet"
    DELETED = "deleted_by_retention"
    UNKNOWN = "schedule_unknown"
    UNEXPLAINED = "unexplained"


@dataclass(frozen=True, slots=True)
class Account:
    """All that is found about one instant of one job.

    job None: it is not configured any more. row None: no leader has seen the job. term: the newest
    that had been elected by then; next: the one after it, or the first if there was none.
    slots: the scheduled one first. planned_to None: nobody has led.
    """

    name: str
    at: datetime
    now: datetime
    job: Job | None
    row: JobRow | None
    term: TermRow | None
    next: TermRow | None
    planned_to: datetime | None
    slots: tuple[SlotRow, ...]
    attempts: tuple[AttemptRow, ...]
    gap: GapRow | None
    oldest: SlotRow | None
    kept_from: datetime | None
    refusals: tuple[RefusalRow, ...]
    orders: tuple[CommandRow, ...]

    @property
    def is_slot(self) -> bool | None:
        """By the schedule as it is configured now; None: there is none to ask."""
        if self.job is None:
            return None
        return self.job.schedule.next_after(self.at - timedelta.resolution) == self.at

    @property
    def dark_until(self) -> datetime | None:
        """The end of the blackout that it lies in, as it is configured now."""
        blackout = self.job and self.job.blackout
        return blackout.until(self.at) if blackout else None

    @property
    def led(self) -> bool:
        """Whether a term is known to have gone on at that time."""
        if self.term is None:
            return False
        goes_on = self.term.ended_at is None and self.next is None
        return goes_on or self.at <= end_of(self.term)


def why(
    job: Annotated[str, typer.Argument(help="Its name.")],
    time: Annotated[str, typer.Argument(help="RFC 3339; without an offset in the job's own zone.")],
    config: setup.ConfigPath = None,
    as_json: setup.AsJson = False,
) -> None:
    """Explain one slot: what should have happened, who led, what was recorded and refused."""
    loaded = with_code_jobs_if_possible(configuration.load(config, environ=os.environ))
    known = next((one for one in loaded.jobs if one.name == job), None)
    zone = zone_of(known.schedule) if known else "UTC"
    at = instant(time, zone, "TIME")
    with reader_of(loaded) as reader:
        expect_job(loaded, reader, job, with_code=True)
        account = look_into(reader, loaded, known, job, at, datetime.now(UTC))
    if as_json:
        output.print_json(facts_of(account))
    else:
        output.console().print(output.styled(" ".join(tell(account))), soft_wrap=False)


def look_into(
    reader: Reader, config: Config, job: Job | None, name: str, at: datetime, now: datetime
) -> Account:
    """Some ten reads, each by a key or an index."""
    election = config.election
    slots = reader.slots_at(name, at)
    term = reader.term_before(election, at)
    newest = reader.terms(election, limit=1)
    ends = [slot.finished_at for slot in slots if slot.finished_at is not None]
    since, until = at - AROUND, max([at, *ends]) + AROUND
    age_ns = config.ledger.retention_ns
    return Account(
        name=name,
        at=at,
        now=now,
        job=job,
        row=reader.job(name),
        term=term,
        next=reader.term_after(election, term.fence if term else 0),
        planned_to=newest[0].planned_to if newest else None,
        slots=slots,
        attempts=reader.attempts_of(slots),
        gap=reader.gap_over(name, at),
        oldest=reader.first_slot(name),
        kept_from=None if age_ns is None else now - timedelta(microseconds=age_ns // 1000),
        refusals=reader.refusals_between(since, until, limit=MOST),
        orders=_concerning(name, reader.commands_between(since, until, limit=MOST_READ)),
    )


def _concerning(job: str, orders: Iterable[CommandRow]) -> tuple[CommandRow, ...]:
    """The orders to this job, and those to no single one."""
    return tuple(order for order in orders if _job_of(order) in (None, job))[:MOST]


def verdict(account: Account) -> Verdict:
    """The first that applies: what is recorded comes before what should have been."""
    at, row = account.at, account.row
    if account.slots:
        return Verdict.RECORDED
    if account.is_slot is False:
        return Verdict.NO_SLOT
    if account.gap is not None:
        return Verdict.IN_GAP
    if row is not None and row.retired_at is not None and at > row.retired_at:
        return Verdict.RETIRED
    if account.planned_to is None or at > account.planned_to or row is None:
        return Verdict.AHEAD
    if at <= row.effective_from:
        return Verdict.BEFORE
    if _deleted(account):
        return Verdict.DELETED
    return Verdict.UNKNOWN if account.is_slot is None else Verdict.UNEXPLAINED


def _deleted(account: Account) -> bool:
    """Nothing as old as this is there any more, by age or by the number of the job's slots."""
    too_old = account.kept_from is not None and account.at < account.kept_from
    return too_old or (account.oldest is not None and account.at < account.oldest.scheduled_for)


# ------------------------------------------------------------------ for programs


def facts_of(account: Account) -> dict[str, Any]:
    """What --json prints; `text` is the paragraph."""
    job, row = account.job, account.row
    return {
        "job": account.name,
        "time": account.at,
        "verdict": verdict(account),
        "is_slot": account.is_slot,
        "blackout_until": account.dark_until,
        "slot_before": job and job.schedule.prev_before(account.at),
        "slot_after": job and job.schedule.next_after(account.at),
        "first_seen": row and row.first_seen,
        "effective_from": row and row.effective_from,
        "retired_at": row and row.retired_at,
        "planned_to": account.planned_to,
        "leader": _term_fact(account.term) if account.led else None,
        "leaderless": None if account.led else _leaderless(account),
        "slots": [history_fact(slot, _attempts(account, slot)) for slot in account.slots],
        "gap": account.gap and gap_fact(account.gap),
        "refusals": [_fields(r, "at", "fence", "high", "node", "what") for r in account.refusals],
        "orders": [
            _fields(o, "at", "kind", "target", "who", "why", "done_by_fence", "result")
            for o in account.orders
        ],
        "text": " ".join(tell(account)),
    }


def _term_fact(term: TermRow | None) -> Fact | None:
    names = ("fence", "node", "elected_at", "ended_at", "reason")
    return None if term is None else _fields(term, *names)


def _leaderless(account: Account) -> Mapping[str, datetime | None]:
    """The stretch without a leader around the instant; null: it has no end that is known."""
    return {
        "from": None if account.term is None else end_of(account.term),
        "to": None if account.next is None else account.next.elected_at,
    }


def _attempts(account: Account, slot: SlotRow) -> list[AttemptRow]:
    return [a for a in account.attempts if a.command_id == slot.command_id]


def _fields(row: object, *names: str) -> dict[str, Any]:
    return {name: getattr(row, name) for name in names}


# ------------------------------------------------------------------ for people


def tell(account: Account) -> Iterator[str]:
    """The paragraph, sentence by sentence."""
    yield _expected(account)
    yield _leader(account)
    yield from _recorded(account)
    yield from _refused(account.refusals)
    yield from _ordered(account.orders)


def _expected(account: Account) -> str:
    name, at = account.name, output.when(account.at)
    if account.job is None:
        return f"{name} is not configured any more, so whether {at} was a slot is not known."
    if account.is_slot:
        dark = f", in a blackout until {output.when(account.dark_until)}"
        return f"{at} is a slot of {name}{dark if account.dark_until else ''}."
    schedule = account.job.schedule
    before, after = schedule.prev_before(account.at), schedule.next_after(account.at)
    return (
        f"{at} is no slot of {name}: the nearest are {output.when(before)} "
        f"and {output.when(after)}."
    )


def _leader(account: Account) -> str:
    term, after = account.term, account.next
    if account.led:
        assert term is not None
        since = f"since {output.when(term.elected_at)}"
        until = f" until {output.when(term.ended_at)} ({term.reason})" if term.ended_at else ""
        return f"{term.node} led then, under fence {term.fence}, {since}{until}."
    if term is None and after is None:
        return "Nobody has led yet."
    if term is None:
        assert after is not None
        return f"No term that is still recorded had begun; the first is of {_elected(after)}."
    gone = f"the term of {term.node}, fence {term.fence}, had ended at {output.when(end_of(term))}"
    reason = f" ({term.reason})" if term.reason else ""
    came = f", and {_elected(after)}" if after else ", and nobody has been elected since"
    return f"Nobody led then: {gone}{reason}{came}."


def _elected(term: TermRow) -> str:
    return f"{term.node}, elected at {output.when(term.elected_at)} under fence {term.fence}"


def _recorded(account: Account) -> Iterator[str]:
    row, planned_to = account.row, output.when(account.planned_to)
    match verdict(account):
        case Verdict.RECORDED:
            for slot in account.slots:
                yield _slot(slot)
                yield from _tries(_attempts(account, slot))
        case Verdict.IN_GAP:
            assert account.gap is not None
            yield _gap(account.gap)
        case Verdict.BEFORE:
            assert row is not None
            yield (
                f"Nothing was due: the fleet has known {account.name} since "
                f"{output.when(row.first_seen)}, and its schedule counts from "
                f"{output.when(row.effective_from)}."
            )
        case Verdict.RETIRED:
            assert row is not None
            yield (
                "The job is no longer configured. Whoever led up to "
                f"{output.when(row.retired_at)} knew it; from then on nothing was due."
            )
        case Verdict.AHEAD if row is None:
            yield f"No leader knows {account.name} yet; its slots count from when one does."
        case Verdict.AHEAD:
            yield f"It is not dealt with yet: the ledger is planned up to {planned_to}."
        case Verdict.DELETED:
            yield "What was recorded of it has been deleted by retention."
        case Verdict.UNEXPLAINED:
            yield "Nothing is recorded of it, which should not be: was the schedule another one?"
        case Verdict.NO_SLOT | Verdict.UNKNOWN:
            yield "Nothing is recorded."


def _slot(slot: SlotRow) -> str:
    what = f"The slot that command {slot.command_id} asked for" if slot.command_id else "Its slot"
    by = f"{slot.node} under fence {slot.fence}"
    if State(slot.state) in UNFINISHED:
        return f"{what} is {slot.state}, with {by}{_when(' for', slot.next_at)}."
    ended = f"{_when(' at', slot.finished_at)}, by {by}"
    return f"{what} was recorded as {slot.state}{ended}{_because(slot.state, slot.reason)}."


def _gap(gap: GapRow) -> str:
    stretch = f"{output.when(gap.first)} to {output.when(gap.last)}"
    by = f"under fence {gap.fence}"
    return (
        f"It is one of {gap.slots} slots from {stretch} that were recorded as {gap.state} "
        f"{by}{_because(gap.state, gap.reason)}."
    )


def _because(state: str, reason: str | None) -> str:
    if reason is None:
        return ""
    return f": {_OF_A_RUN.get((state, reason)) or IN_WORDS.get(reason, reason)} ({reason})"


_OF_A_RUN: Mapping[tuple[str, str], str] = {
    (State.CANCELLED, Reason.OVERLAP): "a newer slot of the job replaced it",
    (State.FAILED, Reason.OVERLAP): "a newer slot of the job replaced it before its next attempt",
    (State.FAILED, Reason.LATE): "its next attempt would come later than start_within allows",
    (State.FAILED, Reason.PAUSED): "the job was paused when its next attempt was due",
    (State.FAILED, Reason.NO_HANDLER): "its job left the configuration before its next attempt",
}
"""Of slots that have been tried."""

IN_WORDS: Mapping[str, str] = {
    Reason.OVERLAP: "another run of its job went at that time",
    Reason.BLACKOUT: "it lies in a blackout",
    Reason.PAUSED: "the job was paused",
    Reason.LIMIT: "there was more to do than a limit allows",
    Reason.NO_HANDLER: "the job was taken out of the configuration",
    Reason.NO_LEADER: "nobody led, and the job does not catch up",
    Reason.COALESCED: "nobody led, and a newer slot was run instead",
    Reason.LATE: "its turn came later than start_within allows",
    Reason.LOST_LEADERSHIP: "its leader was lost while it ran",
    Reason.OPERATOR: "an operator asked for it",
    Reason.SHUTDOWN: "its node was asked to stop, and the drain did not suffice",
    Reason.ROLLBACK: "the ledger lost its end, and what was in it may have been done already",
}


def _tries(attempts: Iterable[AttemptRow]) -> Iterator[str]:
    for attempt in reversed([*attempts]):
        started = output.when(attempt.started_at)
        code = "" if attempt.exit_code is None else f", exit code {attempt.exit_code}"
        said = "" if attempt.error is None else output.one_line(attempt.error, 100)
        error = f": {said}" if said and not code.endswith(f" {said}") else ""
        alive = "" if attempt.finished_at else _when(", seen alive at", attempt.heartbeat_at)
        yield (
            f"Attempt {attempt.attempt} was claimed by {attempt.node} at {started} and is "
            f"{attempt.state}{_when(' since', attempt.finished_at)}{alive}{code}{error}."
        )


def _refused(refusals: Iterable[RefusalRow]) -> Iterator[str]:
    for refusal in refusals:
        high = "none" if refusal.high is None else str(refusal.high)
        lost = f" (outcome {refusal.outcome})" if refusal.outcome else ""
        yield (
            f"At {output.when(refusal.at)} a {refusal.what} of {refusal.node} under fence "
            f"{refusal.fence} was refused, the fence being {high}{lost}."
        )


def _ordered(orders: Iterable[CommandRow]) -> Iterator[str]:
    for order in orders:
        reason = f" ({order.why})" if order.why else ""
        result = order.result or "not answered"
        yield (
            f"At {output.when(order.at)} {order.who} ordered {order.kind} of "
            f"{_aim(order)}{reason}: {result}."
        )


def _aim(order: CommandRow) -> str:
    """The job it names, else the election."""
    return _job_of(order) or order.target


def _job_of(order: CommandRow) -> str | None:
    try:
        match json.loads(order.args):
            case {"job": str(job)}:
                return job
    except ValueError:  # written by hand
        pass
    return None


def _when(word: str, at: datetime | None) -> str:
    return "" if at is None else f"{word} {output.when(at)}"
