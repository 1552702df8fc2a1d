"""Paused time is not missed time, where somebody leads either: what a term says of its slots."""

from __future__ import annotations

from datetime import datetime, timedelta

import pytest

from cron_leader.core import messages as m
from cron_leader.core.model import (
    Asked,
    CommandResult,
    Done,
    Errand,
    JobRecord,
    Past,
    Pause,
    Resume,
    State,
)
from cron_leader.core.pauses import Pauses
from tests.core.driver import T0, Driver, job

SHUT_S = 4.0
"""How long the gate is shut: slots of so many seconds are dealt with at once when it opens."""


def at(seconds: float) -> datetime:
    return T0 + timedelta(seconds=seconds)


def shut(d: Driver, seconds: float = SHUT_S) -> list[tuple[int, str, str | None]]:
    """What became of the slots of a time with a shut gate, but for those that were claimed."""
    d.step(m.WatchBroken(d.nonce, "silent"))
    d.after(seconds)
    d.renew()
    d.step(m.WatchOpened(d.nonce))
    entries = [entry for take in d.all(m.Take) for entry in take.batch.entries]
    return [
        (round((e.slot.scheduled_for - T0).total_seconds()), e.state, e.reason) for e in entries
    ]


def order(d: Driver, asked: Asked, *, changed: bool = True) -> None:
    d.step(m.Ordered(d.nonce, asked))
    errand = d.asked(m.CarryOut).errand
    d.step(m.ErrandDone(d.nonce, errand.command_id, Done(changed)))


PAUSED = [(second, State.SKIPPED, "paused") for second in (1, 2, 3, 4)]
MISSED = [(second, State.MISSED, "coalesced") for second in (1, 2, 3)]


def test_slots_of_a_pause_are_skipped_by_a_leader_whose_gate_was_shut_then() -> None:
    digest = job().schedule.digest
    known = JobRecord("beat", T0, T0, digest, paused_from=at(-60), paused_until=at(60))
    assert shut(Driver().lead(Past(T0, {"beat": known}))) == PAUSED


@pytest.mark.parametrize("name", ["beat", None])
def test_and_so_are_those_of_a_pause_that_was_ordered_in_its_term(name: str | None) -> None:
    d = Driver().lead()
    order(d, Pause("c1", name))
    assert shut(d) == PAUSED


def test_what_lies_behind_the_end_of_a_pause_is_missed_or_run() -> None:
    d = Driver().lead()
    order(d, Pause("c1", "beat", 2.5))
    assert shut(d) == [*PAUSED[:2], (3, State.MISSED, "coalesced")]
    assert len(d.asked(m.Take).batch.claims) == 1


def test_a_pause_that_another_leader_answered_for_is_not_known_here() -> None:
    d = Driver().lead()
    order(d, Pause("c1", "beat"), changed=False)
    assert shut(d) == MISSED


def test_a_resumed_job_is_not_paused_any_more() -> None:
    d = Driver().lead()
    order(d, Pause("c1", "beat"))
    order(d, Resume("c2", "beat"))
    assert shut(d) == MISSED


# ------------------------------------------------------------------ as the ledger has it


def paused(job: str | None, until: float) -> Errand:
    return Errand("c", CommandResult.PAUSED, job, at(until))


def resumed(job: str | None) -> Errand:
    return Errand("c", CommandResult.RESUMED, job, at(0))


def test_a_pause_on_top_of_one_goes_on_from_where_that_began() -> None:
    pauses = Pauses({"a": (at(-9), at(9)), "b": (at(-9), at(-5))})
    pauses.carried_out(paused(None, 60), at(0))
    assert [pauses.of(name) for name in "abc"] == [
        (at(-9), at(60)),
        (at(0), at(60)),
        (at(0), at(60)),
    ]


def test_a_resume_ends_what_goes_on_and_leaves_what_is_over() -> None:
    pauses = Pauses({"a": (at(-9), at(9)), "b": (at(-9), at(-5))})
    pauses.carried_out(paused("c", 60), at(1))
    for name in (None, "d"):
        pauses.carried_out(resumed(name), at(2))
    assert [pauses.of(name) for name in "abcd"] == [
        (at(-9), at(2)),
        (at(-9), at(-5)),
        (at(1), at(2)),
        None,
    ]


def test_one_job_is_resumed_out_of_a_pause_of_all() -> None:
    pauses = Pauses({})
    pauses.carried_out(paused(None, 60), at(0))
    pauses.carried_out(resumed("a"), at(2))
    assert [pauses.of(name) for name in "ab"] == [(at(0), at(2)), (at(0), at(60))]


@pytest.mark.parametrize("result", [CommandResult.TRIGGERED, CommandResult.BACKFILLING])
def test_other_orders_pause_nothing(result: CommandResult) -> None:
    pauses = Pauses({})
    pauses.carried_out(Errand("c", result, "a", at(9)), at(0))
    assert pauses.of("a") is None
