"""The heartbeat that goes ahead of a slot."""

from __future__ import annotations

from datetime import timedelta

import pytest

from cron_leader.core import messages as m
from cron_leader.core.ahead import APART_NS, AWAKE_NS, LEAST_NS, MOST_NS, REMEMBERED, Ahead
from cron_leader.core.model import Applied
from tests.core.driver import Driver, job

MS = 1_000_000
SECOND = timedelta(seconds=1)


def ahead(*, took_ns: int, rested_ns: int = 1_000 * MS) -> timedelta | None:
    """The lead over a slot a second away, after one heartbeat that took so long."""
    beat = Ahead()
    beat.sent(5_000 * MS)
    beat.answered(5_000 * MS + took_ns)
    return beat.lead(4_000 * MS + rested_ns, SECOND)


@pytest.mark.parametrize(
    ("took_ns", "lead_ms"),
    [(0, 2), (1 * MS, 2), (4 * MS, 4), (MOST_NS, 10), (MOST_NS + 1, None), (900 * MS, None)],
)
def test_it_goes_as_long_before_as_the_last_one_took(took_ns: int, lead_ms: float | None) -> None:
    expected = None if lead_ms is None else timedelta(milliseconds=lead_ms)
    assert ahead(took_ns=took_ns) == expected


def test_of_the_last_ones_the_slowest_counts() -> None:
    beat = Ahead()
    for took_ns in (7 * MS, *(3 * MS,) * (REMEMBERED - 1)):
        beat.sent(0)
        beat.answered(took_ns)
    assert beat.lead(5_000 * MS, SECOND) == timedelta(milliseconds=7)
    beat.answered(3 * MS)
    assert beat.lead(5_000 * MS, SECOND) == timedelta(milliseconds=3)


def test_none_goes_ahead_before_one_was_answered() -> None:
    assert Ahead().lead(5_000 * MS, SECOND) is None


def test_none_goes_ahead_of_a_slot_that_is_here() -> None:
    beat = Ahead()
    beat.sent(0)
    beat.answered(0)
    lead = timedelta(microseconds=LEAST_NS // 1000)
    tick = timedelta(microseconds=1)
    assert beat.lead(5_000 * MS, lead + tick) == lead
    assert beat.lead(5_000 * MS, lead) is None
    assert beat.lead(5_000 * MS, -SECOND) is None


def test_none_goes_right_behind_another() -> None:
    assert ahead(took_ns=0, rested_ns=2 * MS + AWAKE_NS) is not None
    assert ahead(took_ns=0, rested_ns=2 * MS + AWAKE_NS - MS) is None


def test_a_crowd_of_slots_has_few_ahead() -> None:
    beat = Ahead()
    beat.sent(0)
    beat.answered(0)
    beat.called(1_000 * MS)
    left = timedelta(milliseconds=10)
    at_ns = 1_000 * MS + APART_NS - 8 * MS  # it would go 8 ms from then
    assert beat.lead(at_ns, left) is not None
    assert beat.lead(at_ns - MS, left) is None


def leader() -> Driver:
    """Half a second before a slot, its first heartbeat answered within a millisecond."""
    d = Driver(jobs=[job()]).lead()
    d.after(1.0)
    d.grant(d.asked(m.Take))
    d.boot_ns += MS
    d.step(m.HeartbeatAnswered(d.nonce, Applied(), d.wall))
    d.after(0.5)
    return d


def test_the_heartbeat_goes_when_a_slot_is_near_and_the_next_a_second_later() -> None:
    d = leader()
    slot = d.node.wake_wall()
    assert slot is not None
    near = d.node.near_wall(slot)
    assert near == slot - timedelta(milliseconds=2)
    d.after((near - d.wall).total_seconds(), m.SlotNear())
    d.asked(m.Heartbeat)
    assert d.node.near_wall(slot) is None  # it is under way
    d.step(m.HeartbeatAnswered(d.nonce, Applied(), d.wall))
    assert d.node.near_wall(slot) is None  # it has gone
    assert not d.all(m.Heartbeat)
    d.after(0.5)
    assert not d.all(m.Heartbeat)
    d.after(0.5)
    d.asked(m.Heartbeat)


def test_one_that_is_under_way_is_the_one_that_goes_ahead() -> None:
    d = leader()
    d.after(0.48)
    d.step(m.SlotNear())
    d.asked(m.Heartbeat)
    d.step(m.SlotNear())
    assert not d.all(m.Heartbeat)
    d.step(m.HeartbeatAnswered(d.nonce, Applied(), d.wall))
    assert not d.all(m.Heartbeat)


def test_outside_a_term_a_near_slot_means_nothing() -> None:
    d = Driver()
    d.join()
    assert not d.step(m.SlotNear())
