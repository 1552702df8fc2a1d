"""What every ledger does, for one leader at a time."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from unittest.mock import ANY

import pytest

from cron_leader.core.model import (
    Applied,
    Claim,
    DueRow,
    Entry,
    Gap,
    JobRecord,
    Mark,
    Origin,
    Past,
    Reason,
    Refused,
    Run,
    SlotKey,
    State,
    Taken,
)
from cron_leader.errors import LedgerUnusable
from cron_leader.ledger import open_ledger
from tests.ledger.kit import (
    CLUSTER,
    ELECTION,
    T0,
    Lab,
    Leader,
    at,
    finish,
    nothing,
    result,
    settlement,
    slot,
)

RUN = Claim(slot(), "run-1")


# ------------------------------------------------------------------ opening


async def test_an_empty_ledger_is_refused_without_migrate_and_made_with_it(bare_url: str) -> None:
    ledger = open_ledger(bare_url)
    with pytest.raises(LedgerUnusable, match=r"db migrate|no such file|unable to open"):
        await ledger.open(fleet="default", shards=1, migrate=False)
    first = await ledger.open(fleet="default", shards=1, migrate=True)
    assert await ledger.open(fleet="default", shards=1, migrate=True) == first
    assert await ledger.identity() == first
    await ledger.close()
    await ledger.close()


async def test_another_fleet_and_other_shards_are_refused(lab: Lab) -> None:
    other = open_ledger(lab.url)
    with pytest.raises(LedgerUnusable, match="belongs to fleet 'default'"):
        await other.open(fleet="other", shards=1, migrate=False)
    with pytest.raises(LedgerUnusable, match="shards = 1"):
        await other.open(fleet="default", shards=2, migrate=False)
    await other.close()


async def test_a_schema_newer_than_the_program_is_refused(lab: Lab) -> None:
    lab.sql("UPDATE cron_leader_meta SET schema_version = 99")
    other = open_ledger(lab.url)
    with pytest.raises(LedgerUnusable, match="upgrade cron-leader"):
        await other.open(fleet="default", shards=1, migrate=True)
    await other.close()


# ------------------------------------------------------------------ the raise


async def test_a_raise_answers_the_revision_and_again_when_resent(lab: Lab) -> None:
    ledger, candidate = await lab.ledger(), lab.candidate("a")
    for _ in range(2):
        answer = await ledger.raise_fence(candidate, T0, waiting=nothing)
        assert answer == candidate.revision


async def test_a_lower_revision_is_refused_with_the_fence_that_stands(lab: Lab) -> None:
    old, new = lab.candidate("a"), lab.candidate("b")
    ledger = await lab.ledger()
    await ledger.raise_fence(new, T0, waiting=nothing)
    answer = await ledger.raise_fence(old, T0, waiting=nothing)
    assert isinstance(answer, Refused)
    assert (answer.what, answer.high, answer.history) == ("raise", new.revision, False)
    assert "fence rebase" in answer.text
    (refusal,) = lab.read().refusals()
    assert (refusal.what, refusal.fence, refusal.high) == ("raise", old.revision, new.revision)


async def test_the_same_revision_with_another_nonce_is_refused(lab: Lab) -> None:
    ledger, candidate = await lab.ledger(), lab.candidate("a")
    await ledger.raise_fence(candidate, T0, waiting=nothing)
    twin = type(candidate)(ELECTION, "other", "b", 9, candidate.revision, CLUSTER)
    assert isinstance(await ledger.raise_fence(twin, T0, waiting=nothing), Refused)


async def test_another_etcd_cluster_is_history_until_a_rebase(lab: Lab) -> None:
    ledger = await lab.ledger()
    high = lab.candidate("a").revision + 1000
    await ledger.raise_fence(
        type(lab.candidate("a"))(ELECTION, "old", "a", 1, high, CLUSTER), T0, waiting=nothing
    )
    foreign = lab.candidate("b", cluster=2**64 - 1)
    answer = await ledger.raise_fence(foreign, T0, waiting=nothing)
    assert isinstance(answer, Refused)
    assert answer.history
    assert "ffffffffffffffff" in answer.text
    row = lab.read().rebase(ELECTION)
    assert row is not None
    assert (row.offset, row.cluster) == (high, None)
    assert await ledger.raise_fence(foreign, T0, waiting=nothing) == high + foreign.revision


async def test_the_mark_is_the_fence_as_it_stands(lab: Lab) -> None:
    ledger, candidate = await lab.ledger(), lab.candidate("a")
    assert await ledger.mark(ELECTION) is None
    await ledger.raise_fence(candidate, T0, waiting=nothing)
    mark = await ledger.mark(ELECTION)
    assert mark is not None
    assert (mark.fence, mark.offset, mark.cluster) == (candidate.revision, 0, f"{CLUSTER:x}")
    lab.read().rebase(ELECTION)
    assert await ledger.mark(ELECTION) == Mark(candidate.revision, candidate.revision, None)


@pytest.mark.parametrize("raised", [True, False])
async def test_a_ledger_that_shows_less_than_etcd_remembers_is_refused_unchanged(
    lab: Lab, raised: bool
) -> None:
    ledger, old, new = await lab.ledger(), lab.candidate("a"), lab.candidate("b")
    if raised:
        await ledger.raise_fence(old, T0, waiting=nothing)
    before = await ledger.mark(ELECTION)
    answer = await ledger.raise_fence(replace(new, least=old.revision + 1), T0, waiting=nothing)
    assert isinstance(answer, Refused)
    assert (answer.high, answer.history) == (old.revision if raised else None, True)
    assert f"fence {old.revision + 1} raised in it" in answer.text
    assert await ledger.mark(ELECTION) == before
    (refusal,) = lab.read().refusals()
    assert (refusal.what, refusal.fence) == ("raise", new.revision)


async def test_a_ledger_that_shows_what_etcd_remembers_is_raised_and_a_resend_too(lab: Lab) -> None:
    ledger, old, new = await lab.ledger(), lab.candidate("a"), lab.candidate("b")
    await ledger.raise_fence(old, T0, waiting=nothing)
    for _ in range(2):
        after = replace(new, least=old.revision)
        assert await ledger.raise_fence(after, T0, waiting=nothing) == new.revision


async def test_the_database_tells_its_clock_and_history_where_it_has_its_own(lab: Lab) -> None:
    ledger = await lab.ledger()
    clock, timeline = await ledger.clock(), await ledger.timeline()
    if lab.url.startswith("sqlite"):
        assert (clock, timeline) == (None, None)
    else:
        assert clock is not None
        assert abs((clock - datetime.now(UTC)).total_seconds()) < 1
        assert timeline == "00000001"


# ------------------------------------------------------------------ claims


async def test_a_claim_is_won_once_and_a_resend_answers_the_same(lab: Lab) -> None:
    leader = await lab.leader(past=settlement())
    for _ in range(3):
        assert await leader.take(RUN) == Taken({"run-1": 1})
    assert await leader.take(Claim(RUN.slot, "run-2")) == Taken({})
    row = lab.slot(RUN.slot)
    assert row is not None
    assert (row.state, row.attempt, row.run_id, row.fence) == ("running", 1, "run-1", leader.fence)
    (attempt,) = lab.read().attempts()
    assert (attempt.attempt, attempt.run_id, attempt.state) == (1, "run-1", "running")


async def test_a_batch_writes_claims_entries_and_planned_to_together(lab: Lab) -> None:
    leader = await lab.leader(past=settlement())
    skipped = Entry(slot(1), State.SKIPPED, Reason.OVERLAP)
    waits = Entry(slot(2), State.DUE, next_at=at(9))
    manual = Claim(SlotKey("job", at(3), "cmd"), "run-m")
    taken = await leader.take(RUN, manual, entries=(skipped, waits), to=at(3))
    assert taken == Taken({"run-1": 1, "run-m": 1})
    assert [lab.states()[s] for s in (slot(), slot(1), slot(2), manual.slot)] == [
        "running", "skipped", "due", "running",
    ]  # fmt: skip
    rows = {row.scheduled_for: row for row in lab.read().slots()}
    assert rows[at(1)].reason == "overlap"
    assert rows[at(1)].finished_at == T0
    assert (rows[at(2)].next_at, rows[at(2)].finished_at) == (at(9), None)
    assert rows[at(3)].origin == "manual"
    assert lab.read().terms()[0].planned_to == at(3)


async def test_a_stretch_missed_by_a_leader_whose_gate_was_shut_is_one_gap_row(lab: Lab) -> None:
    """planned_to passes the stretch in the same transaction: unwritten, it would be unexplained."""
    leader = await lab.leader(past=settlement())
    gap = Gap("job", at(1), at(20), 20, Reason.COALESCED)
    for _ in range(2):
        assert await leader.take(gaps=(gap,), to=at(20)) == Taken({})
    (row,) = lab.read().gaps()
    assert (row.job, row.first, row.last, row.slots) == ("job", at(1), at(20), 20)
    assert (row.state, row.reason, row.fence) == ("missed", "coalesced", leader.fence)


async def test_a_stretch_in_a_blackout_is_a_gap_row_of_skipped_slots(lab: Lab) -> None:
    leader = await lab.leader(past=settlement())
    await leader.take(gaps=(Gap("job", at(1), at(20), 20, Reason.BLACKOUT, State.SKIPPED),))
    (row,) = lab.read().gaps()
    assert (row.slots, row.state, row.reason) == (20, "skipped", "blackout")


async def test_a_heartbeat_shows_which_runs_are_alive(lab: Lab) -> None:
    """Not one that has ended, nor what another run has made of the slot."""
    leader = await lab.leader(past=settlement())
    claims = [Claim(slot(n), f"run-{n}", None) for n in range(3)]
    await leader.take(*claims)
    await leader.finish(claims[1])
    runs = [Run(c.run_id, c.slot, 1, leader.term, ANY) for c in claims[:2]]
    runs.append(Run("another", claims[2].slot, 1, leader.term, ANY))
    await leader.ledger.heartbeat(leader.term, at(3), at(9), runs=runs)
    beats = {a.run_id: a.heartbeat_at for a in lab.read().attempts()}
    assert beats == {"run-0": at(9), "run-1": None, "run-2": None}


async def test_planned_to_never_falls(lab: Lab) -> None:
    leader = await lab.leader(past=settlement())
    await leader.take(to=at(5))
    await leader.take(to=at(4))
    await leader.ledger.heartbeat(leader.term, at(3), at(9))
    term = lab.read().terms()[0]
    assert (term.planned_to, term.heartbeat_at) == (at(5), at(9))
    assert (await leader.ledger.read_past(leader.term)).planned_to == at(5)


async def test_the_raise_brings_the_past_along_which_stands_until_the_term_settles(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    old = await lab.leader(past=settlement())
    await old.take(to=at(5))
    new = await lab.leader()
    look_back, asked = new.ledger.look_back, []
    monkeypatch.setattr(new.ledger, "look_back", lambda e: asked.append(e) or look_back(e))
    for _ in range(2):
        assert await new.ledger.read_past(new.term) == await look_back(ELECTION)
        assert not asked
    await new.settle(settlement())
    await new.ledger.read_past(new.term)
    assert asked == [ELECTION]


async def test_a_rehearsal_writes_nothing_and_neither_waits_for_a_leader_nor_holds_one_up(
    lab: Lab,
) -> None:
    leader = await lab.leader(past=settlement(entries=(Entry(slot(), State.DUE),)))
    follower = await lab.ledger()
    before = await leader.ledger.look_back(ELECTION)
    answers = await asyncio.gather(
        *(leader.take(to=at(second)) for second in range(1, 6)),
        *(follower.rehearse(ELECTION) for _ in range(5)),
    )
    assert answers == [Taken({})] * 5 + [None] * 5
    assert await leader.ledger.look_back(ELECTION) == replace(before, planned_to=at(5))
    reader = lab.read()
    assert [term.fence for term in reader.terms()] == [leader.fence]
    assert [job.job for job in reader.jobs()] == ["job"]
    assert not reader.refusals()


async def test_a_waiting_row_is_claimed_by_the_attempt_seen_and_by_no_other(lab: Lab) -> None:
    leader = await lab.leader(past=settlement(entries=(Entry(slot(), State.DUE),)))
    assert await leader.take(RUN) == Taken({})
    assert await leader.take(Claim(slot(), "run-x", seen=1)) == Taken({})
    seen = Claim(slot(), "run-2", seen=0)
    for _ in range(2):
        assert await leader.take(seen) == Taken({"run-2": 1})


async def test_a_row_that_runs_or_has_ended_is_not_claimed_by_whoever_saw_its_attempt(
    lab: Lab,
) -> None:
    leader = await lab.leader(past=settlement())
    await leader.take(RUN)
    again = Claim(slot(), "run-2", seen=1)
    for state in ("running", "succeeded"):
        assert await leader.take(again) == Taken({})
        assert lab.states() == {slot(): state}
        await leader.finish(RUN)
    assert [a.run_id for a in lab.read().attempts()] == ["run-1"]


async def test_a_waiting_row_can_be_ended_without_a_run(lab: Lab) -> None:
    leader = await lab.leader(past=settlement(entries=(Entry(slot(), State.DUE),)))
    ended = Entry(slot(), State.SKIPPED, Reason.OVERLAP, seen=0)
    for _ in range(2):
        await leader.take(entries=(ended,), now=at(4))
    row = lab.slot(slot())
    assert row is not None
    assert (row.state, row.reason, row.finished_at) == ("skipped", "overlap", at(4))


@pytest.mark.parametrize("seen", [None, 0])
async def test_a_paused_job_is_skipped_inside_the_claim(lab: Lab, seen: int | None) -> None:
    due = () if seen is None else (Entry(slot(), State.DUE),)
    leader = await lab.leader(past=settlement(entries=due))
    lab.sql("UPDATE cron_leader_job SET paused_until = '2026-03-01T13:00:00.000000Z'")
    for _ in range(2):
        assert await leader.take(Claim(slot(), "run-1", seen)) == Taken({}, frozenset({"run-1"}))
    row = lab.slot(slot())
    assert row is not None
    assert (row.state, row.reason, row.attempt) == ("skipped", "paused", 0)
    later = Claim(slot(3600), "run-2")
    assert await leader.take(later, now=at(3600)) == Taken({"run-2": 1})


async def test_a_slot_that_a_pause_keeps_from_its_next_try_has_failed(lab: Lab) -> None:
    leader = await lab.leader(past=settlement())
    first = Claim(slot(), "run-1")
    await leader.take(first)
    await leader.finish(first, state=State.RETRYING, attempt_state=State.FAILED, next_at=at(3))
    lab.sql("UPDATE cron_leader_job SET paused_until = '2026-03-01T13:00:00.000000Z'")
    for _ in range(2):
        again = await leader.take(Claim(slot(), "run-2", 1), now=at(4))
        assert again == Taken({}, frozenset({"run-2"}))
    row = lab.slot(slot())
    assert row is not None
    assert (row.state, row.reason, row.attempt) == ("failed", "paused", 1)


# ------------------------------------------------------------------ the end of a run


async def test_a_finish_is_recorded_once_and_its_resend_answers_the_same(lab: Lab) -> None:
    leader = await lab.leader(past=settlement())
    await leader.take(RUN)
    said = result(error="Traceback\0: \udcff boom", output="out")
    for _ in range(2):
        answer = await leader.finish(RUN, state=State.FAILED, result=said)
        assert isinstance(answer, Applied)
        assert answer.changed
    row, (attempt,) = lab.slot(RUN.slot), lab.read().attempts()
    assert row is not None
    assert (row.state, row.finished_at) == ("failed", at(1))
    assert (attempt.state, attempt.exit_code, attempt.output) == ("failed", 1, "out")
    assert attempt.error == "Traceback\ufffd: ? boom"


async def test_a_slot_to_be_tried_again_waits_over_a_takeover_with_its_attempt(lab: Lab) -> None:
    leader = await lab.leader(past=settlement())
    await leader.take(RUN)
    kept = {"attempt_state": State.FAILED, "next_at": at(9)}
    for _ in range(2):
        answer = await leader.finish(RUN, state=State.RETRYING, **kept)
        assert isinstance(answer, Applied)
        assert answer.changed
    row, (attempt,) = lab.slot(RUN.slot), lab.read().attempts()
    assert row is not None
    assert (row.state, row.attempt, row.next_at, row.finished_at) == ("retrying", 1, at(9), None)
    assert attempt.state == "failed"
    successor = await lab.leader("b")
    assert await successor.settle(settlement()) == (DueRow(slot(), 1, Origin.SCHEDULE, at(9)),)
    again = Claim(RUN.slot, "run-2", seen=1)
    assert await successor.take(again, now=at(9)) == Taken({"run-2": 2})


async def test_a_finish_of_another_run_changes_nothing(lab: Lab) -> None:
    leader = await lab.leader(past=settlement())
    await leader.take(RUN)
    for other in (finish(Claim(RUN.slot, "run-2")), finish(RUN, attempt=2)):
        answer = await leader.ledger.finish(leader.term, other)
        assert isinstance(answer, Applied)
        assert not answer.changed
    assert lab.states() == {RUN.slot: "running"}


async def test_a_put_back_leaves_the_slot_due_with_its_attempt_used(lab: Lab) -> None:
    leader = await lab.leader(past=settlement())
    await leader.take(RUN)
    for _ in range(2):
        answer = await leader.put_back(RUN)
        assert isinstance(answer, Applied)
        assert answer.changed
    row = lab.slot(RUN.slot)
    assert row is not None
    assert (row.state, row.attempt, row.run_id, row.started_at) == ("due", 1, None, None)
    assert lab.read().attempts()[0].state == "cancelled"
    assert await leader.take(RUN) == Taken({}), "a late copy of the claim takes nothing"
    assert await leader.take(Claim(RUN.slot, "run-2", seen=1)) == Taken({"run-2": 2})
    late = await leader.put_back(RUN)
    assert isinstance(late, Applied)
    assert lab.states() == {RUN.slot: "running"}, "a late copy of the put-back changes nothing"


async def test_a_new_leader_is_told_which_attempts_were_put_back_and_never_ran(lab: Lab) -> None:
    leader = await lab.leader(past=settlement())
    await leader.take(RUN)
    await leader.put_back(RUN)
    second = Claim(RUN.slot, "run-2", seen=1)
    await leader.take(second)
    shutdown = {"attempt_state": State.CANCELLED, "reason": Reason.SHUTDOWN}
    await leader.finish(second, attempt=2, state=State.DUE, **shutdown)
    successor = await lab.leader("b")
    (row,) = await successor.settle(settlement())
    assert row == DueRow(slot(), 2, Origin.SCHEDULE, None, put_backs=1)
    assert row.tries == 1


@pytest.mark.parametrize("waits", [False, True])
async def test_a_copy_of_a_claim_that_comes_after_its_put_back_takes_nothing(
    lab: Lab, waits: bool
) -> None:
    """Else it would run, in the ledger only, for ever: its sender has had its answer."""
    entries = (Entry(RUN.slot, State.DUE),) if waits else ()
    leader = await lab.leader(past=settlement(entries=entries))
    claim = Claim(RUN.slot, "run-1", 0 if waits else None)
    assert await leader.take(claim) == Taken({"run-1": 1})
    assert await leader.put_back(claim) == Applied(True, ANY)
    before = lab.slot(RUN.slot), lab.read().attempts()
    assert await leader.take(claim) == Taken({})
    assert (lab.slot(RUN.slot), lab.read().attempts()) == before
    assert await leader.take(Claim(RUN.slot, "run-2", 1)) == Taken({"run-2": 2})
    await leader.put_back(claim)
    assert lab.states() == {RUN.slot: "running"}


async def test_a_run_ended_by_a_shutdown_is_due_again_for_the_next_leader(lab: Lab) -> None:
    leader = await lab.leader(past=settlement())
    await leader.take(RUN)
    kept = {"attempt_state": State.CANCELLED, "reason": Reason.SHUTDOWN}
    for _ in range(2):
        answer = await leader.finish(RUN, state=State.DUE, **kept)
        assert isinstance(answer, Applied)
        assert answer.changed
    successor = await lab.leader("b")
    assert await successor.settle(settlement()) == (DueRow(slot(), 1, Origin.SCHEDULE, None),)


# ------------------------------------------------------------------ takeover


async def test_a_sweep_abandons_running_rows_and_adopts_waiting_ones(lab: Lab) -> None:
    old = await lab.leader(past=settlement(entries=(Entry(slot(5), State.DUE, next_at=at(7)),)))
    await old.take(RUN, Claim(slot(1), "done"))
    await old.finish(Claim(slot(1), "done"))
    new = await lab.leader("b")
    waiting = await new.settle(settlement(now=at(60)))
    assert waiting == (DueRow(slot(5), 0, Origin.SCHEDULE, at(7)),)
    swept, adopted, done = lab.slot(slot()), lab.slot(slot(5)), lab.slot(slot(1))
    assert swept is not None
    assert adopted is not None
    assert done is not None
    assert (swept.state, swept.reason, swept.finished_at) == (
        "abandoned", "lost_leadership", at(60),
    )  # fmt: skip
    assert (swept.fence, swept.node) == (old.fence, "a")
    assert (adopted.fence, adopted.node) == (new.fence, "b")
    assert (done.state, done.fence) == ("succeeded", old.fence)
    assert {a.run_id: a.state for a in lab.read().attempts()} == {
        "run-1": "abandoned", "done": "succeeded",
    }  # fmt: skip


async def _past(leader: Leader) -> Past:
    return await leader.ledger.read_past(leader.term)


async def test_a_takeover_reads_whether_older_terms_left_anything_unfinished(lab: Lab) -> None:
    """Where they did not, its settlement sweeps nothing."""
    first = await lab.leader(past=settlement())
    await first.take(RUN, Claim(slot(1), "done"))
    await first.finish(Claim(slot(1), "done"))
    second = await lab.leader("b")
    assert (await _past(second)).unfinished
    await second.settle(settlement())
    third = await lab.leader("c")
    assert not (await _past(third)).unfinished
    due = Entry(slot(5), State.DUE, next_at=at(7))
    past = replace(settlement(entries=(due,)), sweep=False)
    assert await third.settle(past) == (DueRow(slot(5), 0, Origin.SCHEDULE, at(7)),)
    assert (await _past(third)).unfinished is False
    assert (await _past(await lab.leader("d"))).unfinished


async def test_at_least_once_is_taken_over_twice_and_then_abandoned(lab: Lab) -> None:
    leader = await lab.leader(past=settlement())
    await leader.take(RUN)
    for takeover in (1, 2):
        leader = await lab.leader("b")
        (waiting,) = (await leader.settle(settlement(again=("job",)))) or ()
        assert isinstance(waiting, DueRow)
        assert waiting.attempt == takeover
        claim = Claim(slot(), f"again-{takeover}", seen=takeover)
        assert await leader.take(claim) == Taken({claim.run_id: takeover + 1})
    leader = await lab.leader("c")
    assert await leader.settle(settlement(again=("job",))) == ()
    assert lab.states() == {slot(): "abandoned"}
    assert [a.state for a in lab.read().attempts()] == ["abandoned"] * 3


async def test_a_settlement_writes_backlog_gaps_jobs_and_the_term(lab: Lab) -> None:
    gap = Gap("job", at(-900), at(-100), 17, Reason.NO_LEADER)
    entries = (
        Entry(slot(-50), State.MISSED, Reason.COALESCED, Origin.CATCHUP),
        Entry(slot(-40), State.DUE, None, Origin.CATCHUP),
    )
    first = await lab.leader("a", settlement(jobs=("job", "old")))
    second = await lab.leader("b")
    past = settlement(entries=entries, gaps=(gap,), retired=("old",), now=at(30))
    past = replace(past, retired_at=at(29))
    assert await second.settle(past) == (DueRow(slot(-40), 0, Origin.CATCHUP, None),)
    reader = lab.read()
    (row,) = reader.gaps()
    assert (row.first, row.last, row.slots, row.state, row.reason, row.fence) == (
        gap.first, gap.last, 17, "missed", "no_leader", second.fence,
    )  # fmt: skip
    assert [(j.job, j.retired_at) for j in reader.jobs()] == [("job", None), ("old", at(29))]
    new, old = reader.terms()
    assert (new.node, new.planned_to, new.ended_at) == ("b", at(30), None)
    assert (old.fence, old.ended_at, old.reason) == (first.fence, T0, "lease_expired")


async def test_a_gap_does_not_count_slots_that_have_rows_of_their_own(lab: Lab) -> None:
    leader = await lab.leader("a", settlement())
    # Behind a lost batch, so planned_to stayed below it.
    assert await leader.take(Claim(slot(5), "run-5", None), to=at(1))
    second = await lab.leader("b")
    gap = Gap("job", at(1), at(20), 20, Reason.NO_LEADER)
    await second.settle(settlement(gaps=(gap,), now=at(30)))
    (row,) = lab.read().gaps()
    assert (row.first, row.last, row.slots) == (at(1), at(20), 19)
    assert lab.states() == {slot(5): "abandoned"}


async def test_a_gap_that_begins_where_an_older_one_does_explains_all_of_its_slots(
    lab: Lab,
) -> None:
    """Written behind a lost batch, the older one was not known to planned_to."""
    leader = await lab.leader("a", settlement())
    await leader.take(gaps=(Gap("job", at(1), at(15), 15, Reason.COALESCED),), to=at(0))
    second = await lab.leader("b")
    longer = Gap("job", at(1), at(29), 29, Reason.NO_LEADER)
    await second.settle(settlement(gaps=(longer,), now=at(30)))
    shorter = Gap("job", at(1), at(12), 12, Reason.LIMIT)
    await second.take(gaps=(shorter,), to=at(31))
    (row,) = lab.read().gaps()
    assert (row.first, row.last, row.slots, row.reason) == (at(1), at(29), 29, "no_leader")
    assert row.fence == second.fence


OLD = [Claim(SlotKey("old", at(n)), f"run-{n}") for n in range(3)]


async def test_a_renamed_job_keeps_its_history_its_pause_and_what_waits(lab: Lab) -> None:
    gap = Gap("old", at(-900), at(-100), 17, Reason.NO_LEADER)
    first = await lab.leader("a", settlement(jobs=("old", "other"), gaps=(gap,)))
    waits = Entry(SlotKey("old", at(9)), State.DUE, next_at=at(9))
    await first.take(*OLD, Claim(SlotKey("other", at(0)), "run-9"), entries=(waits,))
    await first.finish(OLD[0])
    lab.sql("UPDATE cron_leader_job SET paused_why = 'rest' WHERE job = 'old'")
    second = await lab.leader("b")
    past = replace(settlement(jobs=(), again=("new",)), renamed=(("new", "old"),))
    waiting = await second.settle(past)
    assert isinstance(waiting, tuple)
    assert [row.slot for row in waiting] == [SlotKey("new", at(n)) for n in (1, 2, 9)]
    assert await second.settle(past) == waiting
    reader = lab.read()
    assert [(j.job, j.first_seen, j.retired_at, j.paused_why) for j in reader.jobs()] == [
        ("new", T0, None, "rest"),
        ("other", T0, None, None),
    ]
    assert [(g.job, g.slots) for g in reader.gaps()] == [("new", 17)]
    assert not reader.slots(job="old")
    states = {row.scheduled_for: row.state for row in reader.slots(job="new")}
    assert states == {at(0): "succeeded", at(1): "due", at(2): "due", at(9): "due"}
    attempts = {row.scheduled_for: row.state for row in reader.attempts(job="new")}
    assert attempts == {at(0): "succeeded", at(1): "abandoned", at(2): "abandoned"}
    assert len(reader.attempts(job="other")) == 1
    assert isinstance(await first.finish(OLD[1]), Refused)


async def test_what_a_job_of_the_new_name_has_already_stays_what_it_is(lab: Lab) -> None:
    """There was one once: a slot of both is the new one's, and the former's stays with it."""
    first = await lab.leader("a", settlement(jobs=("old",)))
    mine = Claim(SlotKey("new", at(1)), "run-new")
    await first.take(*OLD, mine)
    for claim in (*OLD, mine):
        await first.finish(claim)
    second = await lab.leader("b")
    await second.settle(replace(settlement(jobs=()), renamed=(("new", "old"),)))
    reader = lab.read()
    runs = {(row.job, row.scheduled_for): row.run_id for row in reader.slots()}
    kept = {("new", at(0)): "run-0", ("new", at(1)): "run-new", ("new", at(2)): "run-2"}
    assert runs == {**kept, ("old", at(1)): "run-1"}
    of_runs = {(row.job, row.scheduled_for): row.run_id for row in reader.attempts()}
    assert of_runs == runs


async def test_a_job_that_returns_keeps_its_first_sight_and_its_pause(lab: Lab) -> None:
    leader = await lab.leader(past=settlement())
    lab.sql("UPDATE cron_leader_job SET retired_at = first_seen, paused_why = 'rest'")
    leader = await lab.leader("b")
    past = await leader.ledger.read_past(leader.term)
    assert past.jobs["job"] == JobRecord("job", T0, T0, "digest", retired_at=T0)
    later = at(0) + timedelta(days=1)
    back = settlement(now=later)
    record = JobRecord("job", later, later, "new digest")
    await leader.settle(type(back)(later, later, (record,), (), (), (), frozenset()))
    (row,) = lab.read().jobs()
    assert (row.first_seen, row.effective_from, row.retired_at) == (T0, later, None)
    assert (row.digest, row.paused_why) == ("new digest", "rest")


async def test_a_settlement_sent_again_after_the_gate_opened_changes_nothing(lab: Lab) -> None:
    past = settlement(
        entries=(Entry(slot(), State.DUE),),
        gaps=(Gap("job", at(-90), at(-10), 12, Reason.LATE),),
    )
    leader = await lab.leader(past=past)
    await leader.take(Claim(slot(), "run-1", seen=0), Claim(slot(1), "run-2"))
    assert await leader.settle(past) == ()
    assert lab.states() == {slot(): "running", slot(1): "running"}


async def test_a_closed_term_keeps_its_first_reason(lab: Lab) -> None:
    leader = await lab.leader(past=settlement())
    for _ in range(2):
        answer = await leader.ledger.close_term(leader.term, "resigned", at(2))
        assert isinstance(answer, Applied)
        assert answer.changed
    other = await leader.ledger.close_term(leader.term, "stuck", at(3))
    assert isinstance(other, Applied)
    assert not other.changed
    await lab.leader("b", settlement())
    assert [t.reason for t in lab.read().terms()] == [None, "resigned"]


# ------------------------------------------------------------------ reads


async def test_the_newest_slot_of_each_job_is_read(lab: Lab) -> None:
    leader = await lab.leader(past=settlement(jobs=("job", "other", "idle")))
    await leader.take(RUN, Claim(slot(9), "r9"), Claim(slot(3, "other"), "r3"))
    newest = lab.read().last_slots()
    assert {job: row.scheduled_for for job, row in newest.items()} == {"job": at(9), "other": at(3)}
    assert len(lab.read().slots(limit=2)) == 2
    assert lab.read().identity() == await leader.ledger.identity()


async def test_a_backlog_of_thousands_settles_in_one_transaction(lab: Lab) -> None:
    entries = tuple(Entry(slot(i, f"j{i % 7}"), State.DUE, next_at=at(i)) for i in range(6_000))
    leader = await lab.leader()
    waiting = await leader.settle(settlement(entries=entries))
    assert isinstance(waiting, tuple)
    assert [row.slot for row in waiting] == [entry.slot for entry in entries]
