"""Operators' orders in cron_leader_command: how they are written there, read, and carried out.

The args of an order are JSON. Whatever an operator's own hand may have written there is an order
that is not understood: it never stops the heartbeat that brings it.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any

from cron_leader.core.model import (
    Asked,
    Backfill,
    CommandKind,
    Done,
    DueRow,
    Errand,
    Order,
    Origin,
    Pause,
    Resume,
    SlotKey,
    Term,
    Trigger,
)
from cron_leader.ledger.sql import Value, to_time, to_time_or_none

LONGEST_AWAY_S = 30 * 86_400.0
"""A step-down for longer than that is a misunderstanding."""

LONGEST_PAUSE_S = 10 * 365 * 86_400.0
"""A longer pause is one until resumed."""

RATES = (1e-4, 1e3)
"""Slots of a backfill per second: the least and the most."""


def args_of(asked: Asked) -> str:
    """As read_order() reads them."""
    match asked:
        case Trigger(_, job) | Resume(_, job):
            args: dict[str, object] = {"job": job}
        case Pause(_, job, for_s):
            args = {"job": job, "for_s": for_s}
        case Backfill(_, job, first, until, rate):
            stretch = {"first": first.isoformat(), "until": until.isoformat()}
            args = {"job": job, **stretch, "rate": rate}
    return json.dumps(args)


def read_order(row: Mapping[str, Any]) -> Order | Asked:
    """From id, kind, args and at. One that cannot be read is an Order without a fence."""
    command_id = row["id"]
    try:
        found = _read(command_id, row["kind"], json.loads(row["args"]), row["at"])
    except (ValueError, OverflowError, RecursionError):
        found = None
    return found or Order(command_id, None)


def _read(command_id: str, kind: str, args: object, at: str | datetime) -> Order | Asked | None:
    match kind, args:
        case CommandKind.STEP_DOWN, {"fence": int(fence), "for_s": int() | float() as for_s} if (
            0 <= for_s <= LONGEST_AWAY_S
        ):
            return Order(command_id, fence, int(for_s * 1e9))
        case CommandKind.TRIGGER, {"job": str(job)}:
            return Trigger(command_id, job, to_time(at))
        case CommandKind.PAUSE, {"job": str() | None as job, "for_s": None}:
            return Pause(command_id, job)
        case CommandKind.PAUSE, {"job": str() | None as job, "for_s": int() | float() as for_s} if (
            0 < for_s <= LONGEST_PAUSE_S
        ):
            return Pause(command_id, job, float(for_s))
        case CommandKind.RESUME, {"job": str() | None as job}:
            return Resume(command_id, job)
        case CommandKind.BACKFILL, {"job": str(job), "rate": int() | float() as rate} if (
            RATES[0] <= rate <= RATES[1]
        ):
            return _backfill(command_id, job, float(rate), args)
        case _:
            return None


def _backfill(command_id: str, job: str, rate: float, args: object) -> Backfill | None:
    match args:
        case {"first": str(first), "until": str(until)}:
            ends = datetime.fromisoformat(first), datetime.fromisoformat(until)
            if all(end.tzinfo is not None for end in ends):
                return Backfill(command_id, job, *ends, rate)
    return None


# ------------------------------------------------------------------ carried out


def errand_params(term: Term, errand: Errand, now: datetime) -> dict[str, Value]:
    return {
        "election": term.election,
        "fence": term.fence,
        "node": term.node,
        "now": now,
        "command_id": errand.command_id,
        "result": errand.result.value,
        "job": errand.job,
        "until": errand.paused_until,
        "anew": int(errand.anew),
    }


def errand_rows(errand: Errand) -> Iterable[tuple[Value, ...]]:
    return ((e.slot.job, e.slot.scheduled_for, e.slot.command_id, e.next_at) for e in errand.slots)


def done_of(rows: Sequence[Mapping[str, Any]]) -> Done:
    """A row for each slot written, and one without a slot if there is none; no row: the order was
    another's to answer."""
    slots = tuple(
        DueRow(
            SlotKey(row["job"], to_time(row["scheduled_for"]), row["command_id"]),
            row["attempt"],
            Origin.MANUAL,
            to_time_or_none(row["next_at"]),
        )
        for row in rows
        if row.get("job") is not None
    )
    return Done(bool(rows), slots)
