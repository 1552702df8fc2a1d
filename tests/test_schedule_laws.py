"""Laws of schedules and plans, over every zone of the time zone data, from 1970 to 2100."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from functools import cache
from itertools import pairwise
from zoneinfo import available_timezones

from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from cron_leader.core.blackout import Blackout, Hours
from cron_leader.core.cron import read_cron
from cron_leader.core.model import Catchup, CommandSpec, Job, Reason
from cron_leader.core.plan import Agenda, Backlog, backlog
from cron_leader.core.schedule import (
    Cron,
    DstFold,
    DstGap,
    Every,
    Schedule,
    Union,
    clock_changes,
    parse_cron,
)

TICK, HOUR = timedelta.resolution, timedelta(hours=1)
SPAN = timedelta(hours=9)
FIRST, LAST = datetime(1970, 1, 1, tzinfo=UTC), datetime(2100, 1, 1, tzinfo=UTC)
ZONES = sorted(available_timezones() - {"localtime"})
EXPRESSIONS = (
    "*/20 * * * *",
    "*/30 */2 * * *",
    "0 * * * *",
    "30 2 * * *",
    "0,15 0-3 * * *",
    "5 1,2,3 * * *",
    "0 0 * * *",
    "30 * 1-7 * sun",
    "*/40 */10 1-3 * * *",
)


@cache
def turns(zone: str) -> tuple[datetime, ...]:
    """Changes of the clock in a few years: then and now."""
    years = (1986, 2026)
    spans = ((datetime(y, 1, 1, tzinfo=UTC), datetime(y + 1, 1, 1, tzinfo=UTC)) for y in years)
    return tuple(at for span in spans for at in clock_changes(zone, *span))


@st.composite
def crons(draw: st.DrawFn) -> Cron:
    return parse_cron(
        draw(st.sampled_from(EXPRESSIONS)),
        draw(st.sampled_from(ZONES)),
        dst_gap=draw(st.sampled_from([None, *DstGap])),
        dst_fold=draw(st.sampled_from([None, *DstFold])),
    )


@st.composite
def moments(draw: st.DrawFn, zone: str) -> datetime:
    """An instant, half of them near a change of the zone's clock."""
    near = turns(zone)
    seconds = st.integers(-SPAN // timedelta(seconds=1), 7200)
    if draw(st.booleans()) and near:
        turn: datetime = draw(st.sampled_from(near))
        return turn + timedelta(seconds=draw(seconds))
    span = int((LAST - FIRST).total_seconds())
    return FIRST + timedelta(seconds=draw(st.integers(0, span)))


@st.composite
def cases(draw: st.DrawFn) -> tuple[Schedule, datetime]:
    cron = draw(crons())
    at = draw(moments(cron.zone))
    if draw(st.booleans()):
        return cron, at
    return Union((cron, Every(timedelta(minutes=draw(st.integers(7, 90)))))), at


laws = settings(
    max_examples=50,
    derandomize=True,
    deadline=None,
    database=None,
    suppress_health_check=[HealthCheck.too_slow],
)


def walk(schedule: Schedule, after: datetime, upto: datetime) -> Iterator[datetime]:
    at = schedule.next_after(after)
    while at is not None and at <= upto:
        yield at
        at = schedule.next_after(at)


@laws
@given(cases())
@example((parse_cron("0 * * * *", "Australia/Lord_Howe"), datetime(2026, 10, 3, 12, tzinfo=UTC)))
@example((parse_cron("5 1,2,3 * * *", "Europe/Warsaw"), datetime(2026, 10, 24, 22, tzinfo=UTC)))
def test_next_after_rises_prev_before_inverts_it_and_count_agrees(
    case: tuple[Schedule, datetime],
) -> None:
    schedule, start = case
    slots = list(walk(schedule, start, start + SPAN))
    assert all(start < at for at in slots[:1])
    for at, later in pairwise(slots):
        assert at < later
        assert schedule.prev_before(later) == at
        assert schedule.next_after(later - TICK) == later
        assert schedule.prev_before(at + (later - at) / 2) == at
    assert schedule.count(start, start + SPAN) == len(slots)


def planned(found: Backlog, schedule: Schedule) -> list[datetime]:
    """The slots that a backlog accounts for."""
    gaps = [at for gap in found.gaps for at in walk(schedule, gap.first - TICK, gap.last)]
    assert len(gaps) == sum(gap.slots for gap in found.gaps)
    return [*found.due, *(entry.slot.scheduled_for for entry in found.entries), *gaps]


def check_pause(
    found: Backlog,
    schedule: Schedule,
    pause: tuple[datetime, datetime] | None,
    blackout: Blackout | None,
) -> None:
    """What is paused is skipped for that, and nothing else is, but that a blackout comes first."""
    told = {entry.slot.scheduled_for: entry.reason for entry in found.entries}
    for gap in found.gaps:
        told |= dict.fromkeys(walk(schedule, gap.first - TICK, gap.last), gap.reason)
    for at in planned(found, schedule):
        paused = pause is not None and pause[0] <= at < pause[1]
        dark = blackout is not None and blackout.until(at) is not None
        assert (told.get(at) is Reason.PAUSED) == (paused and not dark)


@laws
@given(
    case=cases(),
    steps=st.lists(st.integers(-3 * 3600, 7 * 3600), min_size=1, max_size=8),
    catchup=st.sampled_from(list(Catchup)),
    start_within_s=st.sampled_from([None, 0.0, 1800.0]),
    dark=st.booleans(),
    paused_h=st.none() | st.tuples(st.integers(-2, 12), st.integers(1, 9)),
)
@example(
    case=(Every(HOUR), FIRST),
    steps=[4 * 3600, -3600, 7200],
    catchup=Catchup.ALL,
    start_within_s=None,
    dark=False,
    paused_h=(1, 2),
)
def test_no_slot_is_left_out_or_doubled_however_time_is_split_and_the_clock_steps(
    case: tuple[Schedule, datetime],
    steps: list[int],
    catchup: Catchup,
    start_within_s: float | None,
    dark: bool,
    paused_h: tuple[int, int] | None,
) -> None:
    schedule, start = case
    from_h, for_h = paused_h or (0, 0)
    pause = (start + from_h * HOUR, start + (from_h + for_h) * HOUR) if paused_h else None
    hours = Hours(read_cron("0 0 * * *").falls_on, start.time(), (start + HOUR).time())
    job = Job(
        "j",
        schedule,
        CommandSpec(("true",)),
        catchup=catchup,
        catchup_limit=2,
        start_within_s=start_within_s,
        blackout=Blackout((hours,)) if dark else None,
    )
    agenda, now, top, seen = Agenda([job], {"j": start}), start, start, []
    for step in steps:
        now += timedelta(seconds=step)
        top = max(top, now)
        for one, since, _ in agenda.pop_due(now):
            found = backlog(one, since, now, on_time=timedelta(0), pause=pause)
            assert found == backlog(one, since, now, on_time=timedelta(0), pause=pause)
            seen += planned(found, schedule)
            check_pause(found, schedule, pause, job.blackout)
    assert sorted(seen) == list(walk(schedule, start, top))
