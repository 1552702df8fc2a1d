"""What becomes of an operator's order to the jobs: the errand for the ledger, as data.

Decided once, by the leader that reads it: carried out and answered in one transaction, an order is
lost or doubled by no change of leader. Not decided here: when its slots start (dispatch), who may
ask (whoever can write to the ledger).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Container, Iterator, Mapping
from datetime import UTC, datetime, timedelta
from itertools import islice
from typing import assert_never

from cron_leader.core.model import (
    Asked,
    Backfill,
    CommandResult,
    Entry,
    Errand,
    Job,
    Origin,
    Pause,
    Resume,
    SlotKey,
    State,
    Trigger,
)

MOST_SLOTS = 1_000
"""What one backfill may ask for: they are found, and written, in some ten milliseconds."""

MOST_KNOWN = 1_000
"""Orders remembered as read; a heartbeat brings a hundred, the oldest first."""

UNTIL_RESUMED = datetime(9999, 12, 31, tzinfo=UTC)
"""The end of a pause that has none."""

_TICK = timedelta.resolution


class Desk:
    """The orders of one term: carried out one at a time, so that of two backfills the second sees
    what the first has written; and each once, though it comes with every heartbeat."""

    def __init__(self) -> None:
        self._waiting: deque[Asked] = deque()
        self._out: str | None = None
        self._known: dict[str, None] = {}

    def put(self, order: Asked) -> bool:
        """Whether to ask for the next one: nothing is out, and this one is new."""
        if order.command_id not in self._known:
            self._known[order.command_id] = None
            self._waiting.append(order)
            if len(self._known) > MOST_KNOWN:
                del self._known[next(iter(self._known))]
        return self._out is None

    def next(self) -> Asked | None:
        """The oldest that waits; it is out until it is done."""
        order = self._waiting.popleft() if self._waiting else None
        self._out = None if order is None else order.command_id
        return order

    def done(self, command_id: str) -> None:
        assert command_id == self._out
        self._out = None


def errand_of(order: Asked, jobs: Mapping[str, Job], now: datetime, known_to: datetime) -> Errand:
    """The errand. known_to: every slot up to here has its row or gap row in the ledger by now; a
    later one is still the schedule's."""
    if not _known(order.job, jobs):
        return Errand(order.command_id, CommandResult.NO_SUCH_JOB)
    match order:
        case Trigger():
            return _trigger(order, now)
        case Pause(command_id, job, for_s):
            until = UNTIL_RESUMED if for_s is None else now + timedelta(seconds=for_s)
            return Errand(command_id, CommandResult.PAUSED, job, until)
        case Resume(command_id, job):
            return Errand(command_id, CommandResult.RESUMED, job, now)
        case Backfill():
            return _backfill(order, jobs[order.job], now, known_to)
        case _:
            assert_never(order)


def slots_between(job: Job, first: datetime, until: datetime) -> Iterator[datetime]:
    """The slots of [first, until), ascending."""
    at = job.schedule.next_after(first - _TICK)
    while at is not None and at < until:
        yield at
        at = job.schedule.next_after(at)


def _known(job: str | None, jobs: Container[str]) -> bool:
    return job is None or job in jobs


def _trigger(order: Trigger, now: datetime) -> Errand:
    slot = SlotKey(order.job, order.at, order.command_id)
    return Errand(
        order.command_id,
        CommandResult.TRIGGERED,
        order.job,
        slots=(_due(slot, now),),
        anew=True,
    )


def _backfill(order: Backfill, job: Job, now: datetime, known_to: datetime) -> Errand:
    until = min(order.until, known_to + _TICK)
    times = tuple(islice(slots_between(job, order.first, until), MOST_SLOTS + 1))
    if len(times) > MOST_SLOTS:
        return Errand(order.command_id, CommandResult.TOO_MANY, order.job)
    slots = tuple(
        _due(SlotKey(job.name, at, order.command_id), now + timedelta(seconds=n / order.rate))
        for n, at in enumerate(times)
    )
    return Errand(order.command_id, CommandResult.BACKFILLING, order.job, slots=slots)


def _due(slot: SlotKey, next_at: datetime) -> Entry:
    return Entry(slot, State.DUE, origin=Origin.MANUAL, next_at=next_at)
