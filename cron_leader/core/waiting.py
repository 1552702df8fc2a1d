"""Rows in the ledger that wait: for their time, for room, or for a run of their own job.

Catch-up stands apart, so that what waited for its own time does not queue behind the backlog.
Each job's waiting slots are counted from the moment their rows are on their way to the ledger:
`has_room` is the bound on them. Not decided here: whether a slot whose turn has come may start.
"""

from __future__ import annotations

import heapq
from collections import Counter
from datetime import datetime

from cron_leader.core.model import DueRow, Job, Origin, SlotKey

MOST_WAITING = 100_000
"""Slots that wait on one node, catch-up apart; a job's own bound is its `queue_limit`."""

_Rows = list[tuple[datetime, SlotKey, DueRow]]


class Waiting:
    """The waiting rows of one term, soonest first."""

    def __init__(self) -> None:
        self._timely: _Rows = []
        self._overdue: _Rows = []  # catch-up: at its pace
        self._parked: dict[str, _Rows] = {}
        self._held: Counter[tuple[str, bool]] = Counter()  # by job, and whether it is catch-up
        self._total = 0  # of those that are not catch-up

    # ------------------------------------------------------------------ the bound

    def has_room(self, job: Job, *, overdue: bool) -> bool:
        """Whether one more slot of a job may wait; catch-up is bounded by its own limit."""
        if overdue:
            return self._held[job.name, True] < job.catchup_limit
        return self._held[job.name, False] < job.queue_limit and self._total < MOST_WAITING

    def holds(self, job: str) -> bool:
        """Whether a slot of the job waits that is not catch-up."""
        return self._held[job, False] > 0

    def announce(self, job: str, origin: Origin) -> None:
        """A row is about to wait: it counts, and is added once it stands in the ledger."""
        self._count(job, origin, 1)

    def release(self, row: DueRow) -> None:
        """The row waits no longer."""
        self._count(row.slot.job, row.origin, -1)

    def _count(self, job: str, origin: Origin, by: int) -> None:
        overdue = origin is Origin.CATCHUP
        self._held[job, overdue] += by
        self._total += 0 if overdue else by
        if not self._held[job, overdue]:
            del self._held[job, overdue]

    # ------------------------------------------------------------------ their turn

    def add(self, row: DueRow) -> None:
        """An announced row, now in the ledger."""
        rows = self._overdue if row.origin is Origin.CATCHUP else self._timely
        heapq.heappush(rows, _by_time(row))

    def next_time(self, *, overdue: bool) -> datetime | None:
        """When the soonest row may start; parked ones have no time."""
        rows = self._overdue if overdue else self._timely
        return rows[0][0] if rows else None

    def pop(self, *, overdue: bool) -> DueRow:
        """The soonest row, which still counts as waiting until it is released."""
        return heapq.heappop(self._overdue if overdue else self._timely)[-1]

    # ------------------------------------------------------------------ behind their own job

    def park(self, row: DueRow) -> None:
        """Until a run of its own job ends."""
        heapq.heappush(self._parked.setdefault(row.slot.job, []), _by_time(row))

    def unpark(self, job: str) -> None:
        """The soonest parked row of a job may have its turn."""
        rows = self._parked.get(job)
        if rows is None:
            return
        self.add(heapq.heappop(rows)[-1])
        if not rows:
            del self._parked[job]

    def newest_parked(self, job: str) -> datetime | None:
        """The time of the latest parked slot of a job."""
        return max((slot.scheduled_for for _, slot, _ in self._parked.get(job, ())), default=None)

    def pop_replaced(self, newer: DueRow) -> list[DueRow]:
        """The parked rows that a newer slot of their job makes needless, taken out.

        Not one that an operator asked for, nor one that has been tried already.
        """
        rows = self._parked.pop(newer.slot.job, [])
        stay = [found for found in rows if not _is_replaced(found[-1], newer)]
        if stay:
            heapq.heapify(stay)
            self._parked[newer.slot.job] = stay
        return [row for *_, row in rows if _is_replaced(row, newer)]


def _is_replaced(row: DueRow, newer: DueRow) -> bool:
    older = row.slot.scheduled_for < newer.slot.scheduled_for
    return older and row.origin is not Origin.MANUAL and row.attempt == 0


def _by_time(row: DueRow) -> tuple[datetime, SlotKey, DueRow]:
    return row.next_at or row.slot.scheduled_for, row.slot, row
