"""Rows in the ledger that wait: for their time, for room, or for a run of their own job.

Those whose time has come have their turn by their job's priority, and within one priority by
group, one row each in rotation. Within a priority catch-up comes last, so that what waited for its
own time does not queue behind the backlog.
Each job's waiting slots are counted from the moment their rows are on their way to the ledger:
`has_room` is the bound on them. Not decided here: whether a slot whose turn has come may start.
"""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Callable, Mapping
from datetime import datetime

from cron_leader.core.model import DueRow, Job, Origin, Overlap, SlotKey
from cron_leader.core.schedule import EPOCH

MOST_WAITING = 100_000
"""Slots that wait on one node, catch-up apart; a job's own bound is its `queue_limit`."""

_Rows = list[tuple[datetime, SlotKey, DueRow]]

Free = Callable[[DueRow], bool]
"""Whether its group has room for a row, or it needs none yet."""


class Lane:
    """Rows of one kind: those whose time has not come, soonest first, and the others by turn.

    A group that had its turn goes behind the others of its priority: one that waits sees each of
    them served once, at most, before itself.
    """

    def __init__(self, jobs: Mapping[str, Job], ripe_to: datetime = EPOCH) -> None:
        """ripe_to: up to here a row's time has come when it is added."""
        self._jobs, self._ripe_to = jobs, ripe_to
        self._later: _Rows = []
        self._ripe: dict[int, dict[str, _Rows]] = {}  # by priority, then group, in rotation
        self._replacing: Counter[str] = Counter()  # ripe rows of jobs under `replace`

    def add(self, row: DueRow) -> None:
        found = _by_time(row)
        if found[0] <= self._ripe_to:
            self._let_in(found)
        else:
            heapq.heappush(self._later, found)

    def __bool__(self) -> bool:
        """Whether it holds a row."""
        return bool(self._later or self._ripe)

    def any_ripe(self, now: datetime) -> bool:
        """Whether a row's time has come, room or none."""
        return bool(self._ripe) or bool(self._later and self._later[0][0] <= now)

    def next_time(self, free: Free) -> datetime | None:
        """When the soonest row may start; those of a group without room have no time."""
        heads = (rows[0] for groups in self._ripe.values() for rows in groups.values())
        times = [at for at, _, row in heads if free(row)]
        return min([*times, *(at for at, *_ in self._later[:1])], default=None)

    def turn(self, now: datetime, free: Free) -> tuple[int, str] | None:
        """Whose turn it is: a priority and a group; None if no row may start."""
        self.ripen(now)
        for priority in sorted(self._ripe, reverse=True):
            for group, rows in self._ripe[priority].items():
                at, _, row = rows[0]
                if at <= now and free(row):  # a clock may have been set back meanwhile
                    return priority, group
        return None

    def pop(self, priority: int, group: str) -> DueRow:
        """The soonest row of a group whose turn it is."""
        rows = self._ripe[priority].pop(group)
        row = heapq.heappop(rows)[-1]
        self._put(priority, group, rows)
        self._count(row, -1)
        return row

    def pop_replacing(self, now: datetime, replaces: Callable[[Job], bool]) -> list[DueRow]:
        """See `Waiting.pop_replacing`."""
        self.ripen(now)
        jobs = [job for name in self._replacing if replaces(job := self._jobs[name])]
        return [row for job in jobs for row in self._pop_all(job)]

    def _pop_all(self, job: Job) -> list[DueRow]:
        """The ripe rows of a job that has some; its group keeps its turn."""
        groups = self._ripe[job.priority]
        rows = groups[job.group]
        mine = sorted(found for found in rows if found[1].job == job.name)
        rows[:] = [found for found in rows if found[1].job != job.name]
        heapq.heapify(rows)
        if not rows:
            self._put(job.priority, job.group, groups.pop(job.group))
        del self._replacing[job.name]
        return [row for *_, row in mine]

    def ripens_at(self) -> datetime | None:
        """When the time of a row comes whose time has not come yet."""
        return self._later[0][0] if self._later else None

    def ripen(self, now: datetime) -> None:
        """Let in what has its time by now."""
        while self._later and self._later[0][0] <= now:
            self._let_in(heapq.heappop(self._later))

    def _let_in(self, found: tuple[datetime, SlotKey, DueRow]) -> None:
        job = self._jobs.get(found[1].job)
        priority, group = (job.priority, job.group) if job else (0, "")
        groups = self._ripe.setdefault(priority, {})
        heapq.heappush(groups.setdefault(group, []), found)
        self._count(found[-1], 1)

    def _put(self, priority: int, group: str, rows: _Rows) -> None:
        """Behind the other groups; not at all if it is empty."""
        groups = self._ripe[priority]
        if rows:
            groups[group] = rows
        elif not groups:
            del self._ripe[priority]

    def _count(self, row: DueRow, by: int) -> None:
        job = self._jobs.get(row.slot.job)
        if job is None or job.overlap is not Overlap.REPLACE:
            return
        self._replacing[job.name] += by
        if not self._replacing[job.name]:
            del self._replacing[job.name]


class Waiting:
    """The waiting rows of one term. jobs: those that have a priority and a group. ripe_to: as for a
    lane, so that a long backlog is put in order as it is read, not all at once at its first turn.
    """

    def __init__(self, jobs: Mapping[str, Job], ripe_to: datetime = EPOCH) -> None:
        self._timely = Lane(jobs, ripe_to)
        self._overdue = Lane(jobs, ripe_to)  # catch-up: at its pace
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

    def __bool__(self) -> bool:
        """Whether a row waits for its turn; parked ones have none."""
        return bool(self._timely) or bool(self._overdue)

    def any_ripe(self, now: datetime) -> bool:
        """Whether a row may have its turn, as far as that is a question of time."""
        return self._timely.any_ripe(now) or self._overdue.any_ripe(now)

    def add(self, row: DueRow) -> None:
        """An announced row, now in the ledger."""
        (self._overdue if row.origin is Origin.CATCHUP else self._timely).add(row)

    def next_time(self, free: Free, *, overdue: bool) -> datetime | None:
        """When the soonest row may start; parked ones have no time."""
        return (self._overdue if overdue else self._timely).next_time(free)

    def ripens_at(self) -> datetime | None:
        """When a row's time comes that has not come yet, catch-up apart."""
        return self._timely.ripens_at()

    def pop_replacing(
        self, now: datetime, replaces: Callable[[Job], bool], *, overdue: bool
    ) -> list[DueRow]:
        """The ripe rows that come to end a run of their job, and are given the room of that: they
        wait for nobody else's. replaces: whether a row of the job does. overdue: with catch-up."""
        rows = self._timely.pop_replacing(now, replaces)
        return rows + self._overdue.pop_replacing(now, replaces) if overdue else rows

    def pop(
        self, now: datetime, free: Free, *, overdue: bool, least: int | None = None
    ) -> DueRow | None:
        """The row whose turn it is, which still counts as waiting until it is released.

        overdue: whether it may be catch-up. least: only one that has its turn before a new slot of
        this priority. None: there is none.
        """
        found = [(self._timely, turn) for turn in [self._timely.turn(now, free)] if turn]
        if overdue and (turn := self._overdue.turn(now, free)):
            found.append((self._overdue, turn))
        if not found:
            return None
        lane, (priority, group) = max(found, key=lambda each: each[1][0])
        if least is not None and priority < least + (lane is self._overdue):
            return None
        return lane.pop(priority, group)

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

    def parks_newer(self, than: SlotKey) -> bool:
        """Whether a later slot of its job is parked; those of one order go one after another."""
        return any(
            slot.scheduled_for > than.scheduled_for
            and (slot.command_id != than.command_id or not slot.command_id)
            for _, slot, _ in self._parked.get(than.job, ())
        )

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
    return older and row.origin is not Origin.MANUAL and row.tries == 0


def _by_time(row: DueRow) -> tuple[datetime, SlotKey, DueRow]:
    return row.next_at or row.slot.scheduled_for, row.slot, row
