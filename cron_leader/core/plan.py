"""Which slots fall due, which were missed or skipped and why: policy over schedules, as data.

`backlog` sorts the slots of one job in a stretch of time by the job's catch-up policy; `Agenda`
says whose turn it is. Neither goes through missed slots one by one: a job of 10 a second that was
down for a week has six million. Not decided here: overlap, capacity, pace (dispatch).
"""

from __future__ import annotations

import hashlib
import heapq
from collections.abc import Hashable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from itertools import count, islice, takewhile
from typing import TYPE_CHECKING, NamedTuple

from cron_leader.core.blackout import Stretch, stretches
from cron_leader.core.model import Catchup, DueRow, Entry, Gap, Job, Origin, Reason, SlotKey, State

if TYPE_CHECKING:
    from cron_leader.core.schedule import Schedule

LONGEST_LISTED = 10
"""A longer stretch of slots without a run is one gap row; a shorter one has a row for each."""

_TICK = timedelta.resolution

Pause = tuple[datetime, datetime]
"""From when until when a job is, or was, paused: [from, until)."""


@dataclass(frozen=True, slots=True)
class Backlog:
    """The slots of one job in a stretch of time: each is due, an entry, or inside a gap.

    due: ascending, and later than everything missed. entries: `missed`, or `skipped` for a
    blackout or a pause, ascending. gaps: at most one for each reason on each side of an end of a
    blackout or a pause; none reaches over another.
    """

    due: tuple[datetime, ...] = ()
    entries: tuple[Entry, ...] = ()
    gaps: tuple[Gap, ...] = ()


def backlog(
    job: Job,
    since: datetime,
    now: datetime,
    *,
    on_time: timedelta,
    lost_to: datetime | None = None,
    pause: Pause | None = None,
) -> Backlog:
    """What becomes of the slots in (since, now]; empty when the clock was set back before since.

    Those in a blackout or of a pause are skipped. Of the others, those up to `lost_to` are missed:
    the ledger went back, and they may have been run already. Slots older than `start_within` are
    missed as late, whatever the policy. Of the rest, `latest` keeps the newest and `all` the newest
    `catchup_limit`; `none` keeps what is at most `on_time` old.
    """
    span = _Span(job, pause)
    lost = Backlog()
    if lost_to is not None and since < lost_to:
        lost_to = min(lost_to, now)
        lost, since = _missed(span, Reason.ROLLBACK, since, lost_to), max(since, lost_to)
    fresh_from = _fresh_from(job, since, now)
    due, reason = _due(span, fresh_from, now, on_time)
    missed_to = due[0] - _TICK if due else now
    late = _missed(span, Reason.LATE, since, fresh_from)
    rest = _missed(span, reason, fresh_from, missed_to)
    dark = _missed(span, None, missed_to, now) if job.blackout or pause else Backlog()
    parts = (lost, late, rest, dark)
    entries = tuple(entry for part in parts for entry in part.entries)
    return Backlog(due, entries, tuple(gap for part in parts for gap in part.gaps))


def start_of(job: Job, at: datetime) -> datetime:
    """When a slot's run is to start: up to `jitter` late, before the next slot and any blackout.

    Drawn by a hash of the job's name and the slot, so that it is the same on each node.
    """
    if not job.jitter_s:
        return at
    ends = (job.schedule.next_after(at), job.blackout and job.blackout.clear_to(at))
    most = min([timedelta(seconds=job.jitter_s), *(end - at for end in ends if end)])
    digest = hashlib.sha256(f"{job.name} {at.isoformat()}".encode()).digest()
    return at + int.from_bytes(digest[:8], "big") * (most // _TICK) // (1 << 64) * _TICK


def held_to(job: Job, row: DueRow, now: datetime) -> datetime | None:
    """The end of the blackout that a waiting row may not start in; None: it may, if it is one that
    an operator asked for, or if there is none."""
    if job.blackout is None or row.origin is Origin.MANUAL:
        return None
    return job.blackout.until(now)


def policy_of(job: Job) -> Hashable:
    """All of a job that `backlog` looks at, but for its name: equal ones have equal backlogs."""
    return job.schedule, job.catchup, job.catchup_limit, job.start_within_s, job.blackout


def renamed(found: Backlog, name: str) -> Backlog:
    """The same backlog of another job."""
    entries = tuple(
        Entry(SlotKey(name, entry.slot.scheduled_for), entry.state, entry.reason)
        for entry in found.entries
    )
    gaps = tuple(
        Gap(name, gap.first, gap.last, gap.slots, gap.reason, gap.state) for gap in found.gaps
    )
    return Backlog(found.due, entries, gaps)


def _fresh_from(job: Job, since: datetime, now: datetime) -> datetime:
    """The instant up to which, inclusive, slots are too late for `start_within`; >= since."""
    limit_s = job.start_within_s
    if limit_s is None or limit_s >= (now - since).total_seconds():
        return since
    return now - timedelta(seconds=limit_s) - _TICK


@dataclass(frozen=True, slots=True)
class _Part:
    """Some of (after, upto], of whose slots all are skipped for this reason, or none is."""

    after: datetime
    upto: datetime
    skipped: Reason | None


@dataclass(frozen=True, slots=True)
class _Span:
    """A job, and the times at which its slots are skipped."""

    job: Job
    pause: Pause | None

    def parts(self, after: datetime, upto: datetime) -> Iterator[_Part]:
        """(after, upto] in parts, ascending. Of a blackout in a pause it is the blackout that is
        told, as where somebody leads: that is looked at first."""
        for stretch in stretches(self.job.blackout, after, upto):
            if stretch.dark:
                yield _Part(stretch.after, stretch.upto, Reason.BLACKOUT)
            else:
                yield from self._light(stretch)

    def _light(self, stretch: Stretch) -> Iterator[_Part]:
        """A stretch in no blackout: before the pause, in it, after it."""
        after = stretch.after
        opens, closes = self.pause or (stretch.upto + _TICK, stretch.upto + _TICK)
        edges = ((opens - _TICK, None), (closes - _TICK, Reason.PAUSED), (stretch.upto, None))
        for edge, reason in edges:
            upto = min(edge, stretch.upto)
            if after < upto:
                yield _Part(after, upto, reason)
                after = upto


def _due(
    span: _Span, since: datetime, now: datetime, on_time: timedelta
) -> tuple[tuple[datetime, ...], Reason]:
    """The slots of (since, now] to run, ascending, and the reason why older ones are missed."""
    job = span.job
    if job.catchup is Catchup.LATEST:
        return _newest(span, since, now, 1), Reason.COALESCED
    if job.catchup is Catchup.ALL:
        return _newest(span, since, now, job.catchup_limit), Reason.LIMIT
    punctual = max(since, now - on_time - _TICK)
    return _newest(span, punctual, now, None), Reason.NO_LEADER


def _newest(span: _Span, since: datetime, now: datetime, limit: int | None) -> tuple[datetime, ...]:
    """The last `limit` slots of (since, now] not to be skipped, ascending; all of them if None."""
    parts = reversed([*span.parts(since, now)])
    schedule = span.job.schedule
    newest = (at for part in parts if not part.skipped for at in _latest(schedule, part))
    return tuple(islice(newest, limit))[::-1]


def _latest(schedule: Schedule, part: _Part) -> Iterator[datetime]:
    """The slots of a stretch, descending."""
    return takewhile(lambda at: at > part.after, _backwards(schedule, part.upto))


def _backwards(schedule: Schedule, upto: datetime) -> Iterator[datetime]:
    at = schedule.prev_before(upto + _TICK)
    while at is not None:
        yield at
        at = schedule.prev_before(at)


def _missed(span: _Span, reason: Reason | None, after: datetime, upto: datetime) -> Backlog:
    """The slots of (after, upto] as missed for a reason (None: they have a run), but for those that
    are skipped."""
    parts = [
        _without_run(span.job, part, reason)
        for part in span.parts(after, upto)
        if part.skipped or reason
    ]
    entries = tuple(entry for part in parts for entry in part.entries)
    return Backlog(entries=entries, gaps=tuple(gap for part in parts for gap in part.gaps))


def _without_run(job: Job, part: _Part, reason: Reason | None) -> Backlog:
    """The slots of a part: an entry each, or one gap."""
    state, why = (State.SKIPPED, part.skipped) if part.skipped else (State.MISSED, reason)
    first = job.schedule.next_after(part.after)
    if first is None or first > part.upto:
        return Backlog()
    slots = job.schedule.count(part.after, part.upto)
    if slots > LONGEST_LISTED:
        last = next(_backwards(job.schedule, part.upto))
        assert why is not None
        return Backlog(gaps=(Gap(job.name, first, last, slots, why, state),))
    times = [*_latest(job.schedule, part)][::-1]
    return Backlog(entries=tuple(Entry(SlotKey(job.name, at), state, why) for at in times))


class Turn(NamedTuple):
    """A job with slots in (since, the instant asked for]. only: the one slot, if there is but one;
    of more, `backlog` says which those are."""

    job: Job
    since: datetime
    only: datetime | None


def is_punctual(job: Job, at: datetime, now: datetime, on_time: timedelta) -> bool:
    """Whether a slot that is alone in its stretch of time is due, and the policies agree on it."""
    late, limit_s = now - at, job.start_within_s
    if late > on_time or job.blackout is not None:
        return False
    return limit_s is None or late <= timedelta(seconds=limit_s)


class Agenda:
    """Every job's next slot, soonest first.

    What is handed out for a job tiles its time: each interval begins where the last one ended, so
    no slot is handed out twice or left out, however often or seldom one asks, and a clock that
    is set back finds nothing until it has caught up. A job whose schedule has ended leaves.
    """

    def __init__(self, jobs: Iterable[Job], since: Mapping[str, datetime]) -> None:
        """since: for each job's name, the instant up to which its slots are dealt with."""
        self._heap: list[tuple[datetime, int, Job, datetime]] = []
        self._orders = count()
        for job in jobs:
            self.add(job, since[job.name])

    def add(self, job: Job, since: datetime) -> None:
        """One more job. since: as above."""
        at = job.schedule.next_after(since)
        if at is not None:
            heapq.heappush(self._heap, (at, next(self._orders), job, since))

    def next_time(self) -> datetime | None:
        """The soonest slot not yet handed out; None if there will be none."""
        return self._heap[0][0] if self._heap else None

    def pop_due(self, now: datetime) -> list[Turn]:
        """The jobs with slots in (since, now]; soonest first, then as given."""
        due, heap = [], self._heap
        while heap and heap[0][0] <= now:
            at, order, job, since = heap[0]
            following = job.schedule.next_after(at)
            alone = following is None or following > now
            due.append(Turn(job, since, at if alone else None))
            if not alone:
                following = job.schedule.next_after(now)
            if following is None:
                heapq.heappop(heap)
            else:
                heapq.heapreplace(heap, (following, order, job, now))
        return due
