"""The instants at which an idle node does what it does from time to time."""

from hypothesis import given
from hypothesis import strategies as st

from cron_leader.clock import next_beat

TIMES = st.integers(0, 10**18)
PERIODS = st.integers(1, 10**11)
PHASES = st.integers(0, 2**64)


@given(TIMES, PERIODS, PHASES)
def test_the_next_beat_is_ahead_and_no_further_than_a_period(now: int, period: int, phase: int):
    assert now < next_beat(now, period, phase) <= now + period


@given(TIMES, PERIODS, PHASES)
def test_beats_are_a_period_apart_whenever_one_asks(now: int, period: int, phase: int):
    beat = next_beat(now, period, phase)
    assert next_beat(beat, period, phase) == beat + period
    assert next_beat(beat - 1, period, phase) == beat


@given(TIMES, PERIODS, PHASES, st.integers(1, 20))
def test_at_a_beat_of_a_longer_period_there_is_one_of_the_shorter(
    now: int, period: int, phase: int, times: int
):
    beat = next_beat(now, period * times, phase)
    assert next_beat(beat - 1, period, phase) == beat
