"""A ledger that lost its end: refused, or gone on with, skipping or running again what it lost.

Here the end is lost by hand; test_standby.py loses it by a real fail-over.
"""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Iterable
from contextlib import AsyncExitStack, closing
from dataclasses import replace
from pathlib import Path

import pytest

from cron_leader.core.model import (
    Applied,
    Candidate,
    Claim,
    DueRow,
    Entry,
    Past,
    Refused,
    Rollback,
    SlotKey,
    State,
    Taken,
)
from tests.ledger.kit import ELECTION, T0, Lab, Leader, at, batch, nothing, settlement, slot

GOES_ON = (Rollback.SKIP, Rollback.REFIRE)


def after(lab: Lab, least: int, rollback: Rollback) -> Candidate:
    """The next candidate of a fleet whose etcd remembers `least`."""
    return replace(lab.candidate("next"), least=least, rollback=rollback)


async def rise(lab: Lab, candidate: Candidate) -> Leader:
    leader = Leader(await lab.ledger(), candidate)
    await leader.rise()
    return leader


async def past(leader: Leader) -> Past:
    return await leader.ledger.read_past(leader.term)


@pytest.mark.parametrize("rollback", GOES_ON)
async def test_the_new_fence_is_above_what_etcd_remembers_and_a_resend_changes_nothing(
    lab: Lab, rollback: Rollback
) -> None:
    old = await lab.leader("old", settlement())
    candidate = after(lab, lab.candidate("lost").revision, rollback)
    ledger = await lab.ledger()
    raised = [await ledger.raise_fence(candidate, at(n), waiting=nothing) for n in (5, 9)]
    assert raised == [candidate.revision] * 2
    seen = await past(Leader(ledger, candidate))
    assert (seen.went_back_at, seen.skip) == (at(5), rollback is Rollback.SKIP)
    assert isinstance(await old.take(Claim(slot(), "late")), Refused)


@pytest.mark.parametrize("rollback", GOES_ON)
@pytest.mark.parametrize("row", [True, False], ids=["restored", "wiped"])
async def test_an_offset_that_was_lost_too_is_made_good(
    lab: Lab, rollback: Rollback, row: bool
) -> None:
    """After a rebase fences are larger than revisions; the copy is from before the rebase."""
    if row:
        await lab.leader("old", settlement())
    candidate = after(lab, 5_000, rollback)
    leader = await rise(lab, candidate)
    assert leader.fence == 5_000 + candidate.revision
    mark = await leader.ledger.mark(ELECTION)
    assert mark is not None
    assert (mark.fence, mark.offset) == (leader.fence, 5_000)
    assert (await past(leader)).went_back_at == T0


@pytest.mark.parametrize("rollback", GOES_ON)
async def test_a_ledger_that_shows_all_is_raised_as_ever(lab: Lab, rollback: Rollback) -> None:
    old = await lab.leader("old", settlement())
    leader = await rise(lab, after(lab, old.fence, rollback))
    assert (await past(leader)).went_back_at is None


@pytest.mark.parametrize("rollback", GOES_ON)
async def test_a_stale_candidate_is_refused_all_the_same(lab: Lab, rollback: Rollback) -> None:
    await lab.leader("old", settlement())
    stale, newer = (after(lab, 5_000, rollback) for _ in range(2))
    leader = await rise(lab, newer)
    answer = await leader.ledger.raise_fence(stale, T0, waiting=nothing)
    assert isinstance(answer, Refused)
    assert isinstance(await leader.settle(settlement()), tuple)


@pytest.mark.parametrize("rollback", GOES_ON)
async def test_another_etcd_cluster_is_refused_whatever_the_answer(
    lab: Lab, rollback: Rollback
) -> None:
    old = await lab.leader("old", settlement())
    ledger = await lab.ledger()
    before = await ledger.mark(ELECTION)
    foreign = replace(after(lab, old.fence + 50, rollback), cluster=7)
    answer = await ledger.raise_fence(foreign, T0, waiting=nothing)
    assert isinstance(answer, Refused)
    assert answer.history
    assert await ledger.mark(ELECTION) == before


async def test_a_leader_that_dies_before_it_settles_leaves_the_loss_to_the_next(lab: Lab) -> None:
    old = await lab.leader("old", settlement())
    first = await rise(lab, after(lab, old.fence + 1, Rollback.SKIP))
    second = await rise(lab, after(lab, first.fence, Rollback.SKIP))
    seen = await past(second)
    assert (seen.went_back_at, seen.skip) == (T0, True)  # although the fence shows enough by now
    assert isinstance(await second.settle(settlement(now=at(9))), tuple)
    assert (await past(second)).went_back_at is None


def _unfinished() -> tuple[Claim, ...]:
    return tuple(Claim(slot(n), f"run-{n}") for n in (1, 2))


async def _restored(lab: Lab) -> Leader:
    """A term with a slot that waits, one under way, and one tried and waiting again."""
    waits = Entry(slot(3), State.DUE, next_at=at(3))
    old = await lab.leader("old", settlement(entries=(waits,)))
    one, two = _unfinished()
    assert isinstance(await old.take(one, two), Taken)
    assert isinstance(await old.put_back(two), Applied)
    return old


def _keys(rows: Iterable[DueRow]) -> set[SlotKey]:
    return {row.slot for row in rows}


async def test_skip_runs_nothing_that_waits_in_the_restored_ledger(lab: Lab) -> None:
    old = await _restored(lab)
    leader = await rise(lab, after(lab, old.fence + 1, Rollback.SKIP))
    past = replace(settlement(again=("job",), now=at(9)), skip=True)
    for _ in range(2):  # and a second copy says the same
        assert await leader.settle(past) == ()
    with lab.read() as reader:
        ended = {r.scheduled_for: (r.state, r.reason, r.finished_at) for r in reader.slots()}
        attempts = [row.state for row in reader.attempts()]
    assert ended == {
        at(1): ("abandoned", "rollback", at(9)),
        at(2): ("abandoned", "rollback", at(9)),
        at(3): ("missed", "rollback", at(9)),
    }
    assert sorted(attempts) == ["abandoned", "cancelled"]


async def test_refire_runs_what_waits_and_at_least_once_what_ran(lab: Lab) -> None:
    old = await _restored(lab)
    leader = await rise(lab, after(lab, old.fence + 1, Rollback.REFIRE))
    waiting = await leader.settle(settlement(again=("job",), now=at(9)))
    assert isinstance(waiting, tuple)
    assert _keys(waiting) == {slot(1), slot(2), slot(3)}


# ------------------------------------------------------------------ the sitting leader


async def test_a_heartbeat_finds_what_was_acknowledged_and_is_gone(lab: Lab) -> None:
    leader = await lab.leader("a", settlement())
    beat = await leader.ledger.heartbeat(leader.term, at(2), at(2), known=T0)
    assert isinstance(beat, Applied)
    assert beat.changed
    assert isinstance(await leader.take(Claim(slot(3), "run"), to=at(3)), Taken)
    lab.sql(_planned_to("2026-03-01T12:00:02.000000Z"))
    for _ in range(2):
        beat = await leader.ledger.heartbeat(leader.term, at(4), at(4), known=at(3))
        assert isinstance(beat, Applied)
        assert not beat.changed
    lab.sql(_planned_to("2026-03-01T12:00:03.000000Z"))
    beat = await leader.ledger.heartbeat(leader.term, at(4), at(4), known=at(3))
    assert isinstance(beat, Applied)
    assert beat.changed


async def test_a_heartbeat_finds_that_its_term_is_gone(lab: Lab) -> None:
    leader = await lab.leader("a", settlement())
    lab.sql("DELETE FROM cron_leader_term")
    beat = await leader.ledger.heartbeat(leader.term, at(1), at(1), known=T0)
    assert isinstance(beat, Applied)
    assert not beat.changed


async def test_a_claim_does_not_cover_up_what_is_gone(lab: Lab) -> None:
    """It may come before the next heartbeat, and be answered."""
    leader = await lab.leader("a", settlement())
    late = replace(batch(Claim(slot(4), "run"), to=at(4)), known=at(3))
    assert isinstance(await leader.ledger.take(leader.term, late), Taken)
    beat = await leader.ledger.heartbeat(leader.term, at(5), at(5), known=at(4))
    assert isinstance(beat, Applied)
    assert not beat.changed


def _planned_to(when: str) -> str:
    return f"UPDATE cron_leader_term SET planned_to = '{when}'"


async def test_an_older_copy_of_the_file_put_in_place_under_a_leader_refuses_it(
    tmp_path: Path,
) -> None:
    """By its own contents: the copy is written into the live file, as a restore tool would."""
    async with AsyncExitStack() as stack:
        lab = Lab(f"sqlite:///{tmp_path}/ledger.db", stack)
        old = await lab.leader("old", settlement())
        await asyncio.to_thread(_copy, tmp_path / "ledger.db", tmp_path / "older.db")
        leader = await lab.leader("new", settlement())
        await asyncio.to_thread(_copy, tmp_path / "older.db", tmp_path / "ledger.db")
        answer = await leader.take(Claim(slot(), "run"))
        assert isinstance(answer, Refused)
        assert answer.high == old.fence
        assert isinstance(await old.take(Claim(slot(), "run")), Taken)  # as durable as the ledger
        risen = await rise(lab, after(lab, leader.fence, Rollback.SKIP))
        assert isinstance(await old.take(Claim(slot(1), "run-1")), Refused)
        assert risen.fence > leader.fence


def _copy(source: Path, target: Path) -> None:
    with closing(sqlite3.connect(source)) as ours, closing(sqlite3.connect(target)) as theirs:
        ours.backup(theirs)
