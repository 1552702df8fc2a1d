"""`tick.transaction()`: the user's writes commit with the run's success under the fence, or not."""

from __future__ import annotations

import asyncio
import sqlite3
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import psycopg
import pytest

from cron_leader.core.model import Applied, State
from cron_leader.errors import CronLeaderError
from cron_leader.fencing import FenceMisuse, StaleFence
from cron_leader.fencing.transaction import Opener
from cron_leader.jobs import Tick
from tests.fencing.kit import opener, running, table, ticket
from tests.ledger.kit import Lab, result, soon, until_blocked

TABLE = "kit_effects"
COMMITTED = {"final": True, "isolation": "read committed"}


@pytest.fixture
def effects(lab: Lab) -> Iterator[Any]:
    """How many effects stand, as a table of the user's own."""
    with table(lab, TABLE, "n integer") as user:
        yield lambda: user.execute(f"SELECT count(*) FROM {TABLE}").fetchone()[0]


def write(connection: Any) -> None:
    connection.execute(f"INSERT INTO {TABLE} VALUES (1)")


async def test_the_effect_and_the_success_commit_together(lab: Lab, effects: Any) -> None:
    leader, claim = await running(lab)
    with opener(lab, leader, claim)(**COMMITTED) as db:
        write(db)
        assert lab.states() == {claim.slot: "running"}
    assert effects() == 1
    assert lab.states() == {claim.slot: "succeeded"}


async def test_an_exception_leaves_nothing(lab: Lab, effects: Any) -> None:
    leader, claim = await running(lab)
    with pytest.raises(ZeroDivisionError), opener(lab, leader, claim)(**COMMITTED) as db:  # noqa: PT012
        write(db)
        raise ZeroDivisionError
    assert effects() == 0
    assert lab.states() == {claim.slot: "running"}


async def test_a_deposed_run_commits_nothing(lab: Lab, effects: Any) -> None:
    leader, claim = await running(lab)
    await lab.leader("b")
    with (
        pytest.raises(StaleFence, match="newer leader"),
        opener(lab, leader, claim)(**COMMITTED) as db,
    ):
        write(db)
    assert effects() == 0
    assert lab.states() == {claim.slot: "running"}


@pytest.mark.parametrize("isolation", ["read committed", "repeatable read", "serializable"])
async def test_a_raise_in_mid_transaction_refuses_it_at_any_isolation(
    pglab: Lab, isolation: str
) -> None:
    leader, claim = await running(pglab)
    with table(pglab, TABLE, "n integer") as user:
        with (  # noqa: PT012
            pytest.raises(StaleFence),
            opener(pglab, leader, claim)(final=True, isolation=isolation) as db,
        ):
            write(db)
            await pglab.leader("b")  # is not kept waiting by the open transaction
        assert user.execute(f"SELECT count(*) FROM {TABLE}").fetchone() == (0,)


async def test_the_daemons_finish_adds_the_output_to_a_success_already_committed(
    lab: Lab, effects: Any
) -> None:
    leader, claim = await running(lab)
    with opener(lab, leader, claim)(**COMMITTED) as db:
        write(db)
    answer = await leader.finish(claim, result=result(output="done\n"))
    assert isinstance(answer, Applied)
    assert answer.changed
    with lab.read() as reader:
        (attempt,) = reader.attempts()
    assert (attempt.state, attempt.output) == ("succeeded", "done\n")


async def test_a_run_that_fails_after_its_commit_stays_succeeded_with_its_error(
    lab: Lab, effects: Any
) -> None:
    leader, claim = await running(lab)
    with opener(lab, leader, claim)(**COMMITTED) as db:
        write(db)
    await leader.finish(claim, state=State.FAILED, result=result(error="later"))
    assert lab.states() == {claim.slot: "succeeded"}
    with lab.read() as reader:
        (attempt,) = reader.attempts()
    assert (attempt.state, attempt.error) == ("succeeded", "later")


async def test_a_slot_whose_success_is_committed_is_not_given_to_a_later_leader(
    lab: Lab, effects: Any
) -> None:
    leader, claim = await running(lab)
    with opener(lab, leader, claim)(**COMMITTED) as db:
        write(db)
    answer = await leader.finish(claim, state=State.DUE, attempt_state=State.CANCELLED)
    assert isinstance(answer, Applied)
    assert lab.states() == {claim.slot: "succeeded"}


async def test_blocks_before_the_last_commit_without_the_success(lab: Lab, effects: Any) -> None:
    leader, claim = await running(lab)
    open_ = opener(lab, leader, claim)
    with open_(final=False, isolation="read committed") as db:
        write(db)
    assert (effects(), lab.states()) == (1, {claim.slot: "running"})
    with open_(**COMMITTED) as db:
        write(db)
    assert (effects(), lab.states()) == (2, {claim.slot: "succeeded"})
    with pytest.raises(FenceMisuse, match="final=False"):
        open_(**COMMITTED)


async def test_a_run_whose_slot_has_moved_on_commits_nothing(lab: Lab, effects: Any) -> None:
    leader, claim = await running(lab)
    await leader.put_back(claim)
    with (
        pytest.raises(StaleFence, match="no longer this run's"),
        opener(lab, leader, claim)(**COMMITTED) as db,
    ):
        write(db)
    assert effects() == 0


async def test_a_run_that_was_ended_under_its_own_fence_writes_in_no_block(
    lab: Lab, effects: Any
) -> None:
    leader, claim = await running(lab)
    await leader.finish(claim, state=State.TIMED_OUT)
    with (
        pytest.raises(StaleFence, match="no longer this run's"),
        opener(lab, leader, claim)(final=False, isolation="read committed") as db,
    ):
        write(db)
    assert effects() == 0


@pytest.mark.parametrize("isolation", ["read committed", "repeatable read", "serializable"])
async def test_a_run_that_is_ended_in_mid_block_commits_nothing_at_any_isolation(
    pglab: Lab, isolation: str
) -> None:
    leader, claim = await running(pglab)
    with table(pglab, TABLE, "n integer") as user:
        with (  # noqa: PT012
            pytest.raises((StaleFence, psycopg.errors.SerializationFailure)),
            opener(pglab, leader, claim)(final=False, isolation=isolation) as db,
        ):
            write(db)
            await soon(leader.finish(claim, state=State.TIMED_OUT))
        assert user.execute(f"SELECT count(*) FROM {TABLE}").fetchone() == (0,)


@pytest.mark.parametrize("final", [True, False])
async def test_what_a_block_fails_by_is_told_however_the_answers_arrive(
    pglab: Lab, monkeypatch: pytest.MonkeyPatch, final: bool
) -> None:
    """psycopg may tell of the next statement instead, which the server did not run."""
    whole = psycopg.Connection.pipeline

    @contextmanager
    def one_by_one(connection: Any) -> Iterator[None]:
        try:
            with whole(connection):
                yield
        except psycopg.Error:
            raise psycopg.errors.PipelineAborted  # noqa: B904 - in its context

    monkeypatch.setattr(psycopg.Connection, "pipeline", one_by_one)
    leader, claim = await running(pglab)
    with (  # noqa: PT012
        pytest.raises(psycopg.errors.SerializationFailure),
        opener(pglab, leader, claim)(final=final, isolation="serializable") as db,
    ):
        db.execute("SELECT 1 FROM cron_leader_slot")
        await soon(leader.finish(claim, state=State.TIMED_OUT))


class Held(Opener):
    """Stops between its look at the slot and its guard, until it is let go."""

    looked = threading.Event()
    go = threading.Event()

    def _hold(self, connection: Any) -> Callable[[], bool]:
        goes_on = super()._hold(connection)

        def once_let_go() -> bool:
            self.looked.set()
            return self.go.wait(20) and goes_on()

        return once_let_go


async def test_the_end_of_a_run_waits_for_a_block_that_has_looked_and_is_about_to_commit(
    pglab: Lab,
) -> None:
    """The run's slot is locked by the look: a plain read would let both through, in this order."""
    leader, claim = await running(pglab)
    held = Held(ticket(pglab, leader, claim))

    def block() -> None:
        with held(final=False, isolation="read committed") as db:
            db.execute("UPDATE cron_leader_job SET paused_why = 'written' WHERE job = 'job'")

    committing = asyncio.create_task(asyncio.to_thread(block))
    await soon(asyncio.to_thread(held.looked.wait))
    finishing = asyncio.create_task(leader.finish(claim, state=State.TIMED_OUT))
    try:
        await until_blocked(pglab.url, beside=finishing)
    finally:
        held.go.set()
        await soon(committing)
    assert isinstance(await soon(finishing), Applied)
    assert pglab.states() == {claim.slot: "timed_out"}


@pytest.mark.parametrize("ends", ["COMMIT", "ROLLBACK", "COMMIT; BEGIN"])
async def test_a_block_that_ends_its_transaction_by_itself_is_told_so(
    lab: Lab, effects: Any, ends: str
) -> None:
    leader, claim = await running(lab)
    errors = (FenceMisuse, sqlite3.DatabaseError)
    with pytest.raises(errors), opener(lab, leader, claim)(**COMMITTED) as db:  # noqa: PT012
        write(db)
        for statement in ends.split("; "):
            db.execute(statement)
    assert lab.states() == {claim.slot: "running"}
    if lab.is_sqlite:
        assert effects() == 0, "SQLite does not even let it"


async def test_the_commit_methods_of_the_connection_are_refused(lab: Lab, effects: Any) -> None:
    leader, claim = await running(lab)
    errors = (psycopg.ProgrammingError, sqlite3.DatabaseError)
    with pytest.raises(errors), opener(lab, leader, claim)(**COMMITTED) as db:  # noqa: PT012
        write(db)
        db.commit()
    assert effects() == 0


async def test_a_swallowed_error_of_a_statement_is_no_success(pglab: Lab) -> None:
    leader, claim = await running(pglab)
    with (
        pytest.raises(FenceMisuse, match="swallowed"),
        opener(pglab, leader, claim)(**COMMITTED) as db,
        pytest.raises(psycopg.Error),
    ):
        db.execute("SELECT 1 / 0")
    assert pglab.states() == {claim.slot: "running"}


async def test_a_frozen_block_holds_the_database_for_a_ttl_and_no_run_longer_than_it_has(
    pglab: Lab,
) -> None:
    leader, claim = await running(pglab)
    with opener(pglab, leader, claim)(**COMMITTED) as db:
        shown = {
            name: db.execute(f"SHOW {name}").fetchone()[0]
            for name in (
                "idle_in_transaction_session_timeout",
                "application_name",
                "synchronous_commit",
            )
        }
        left = db.execute("SELECT setting::int FROM pg_settings WHERE name = 'statement_timeout'")
        assert 0 < left.fetchone()[0] <= 60_000
    assert shown == {
        "idle_in_transaction_session_timeout": "10s",
        "application_name": f"cron_leader:{leader.term.election}:{leader.fence}",
        "synchronous_commit": "on",
    }


async def test_an_isolation_that_does_not_exist_is_refused(pglab: Lab) -> None:
    leader, claim = await running(pglab)
    open_ = opener(pglab, leader, claim)
    with pytest.raises(FenceMisuse, match="not one of"), open_(final=True, isolation="chaos"):
        pass


def test_a_test_hands_its_own_connection() -> None:
    with sqlite3.connect(":memory:") as mine, Tick.for_test(transaction=mine).transaction() as db:
        assert db is mine
    mine.close()
    with pytest.raises(RuntimeError, match="for_test"):
        Tick.for_test().transaction()


def test_the_errors_are_ours() -> None:
    assert issubclass(StaleFence, CronLeaderError)
    assert issubclass(FenceMisuse, CronLeaderError)
