"""A client that stops in the middle of a fenced transaction, and a raise that must pass it."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import replace

import psycopg
import pytest

from cron_leader import fencing
from cron_leader.config import FenceTarget
from cron_leader.core.model import Claim
from cron_leader.fencing.ddl import target_ddl
from cron_leader.ledger import Ledger, open_ledger, postgres
from cron_leader.ledger.targets import Targets
from tests.ledger.kit import ELECTION, T0, Lab, Leader, settlement, slot, soon
from tests.pg_kit import Postgres

pytestmark = pytest.mark.usefixtures("server")

LONG_S = 30.0
"""A TTL that no test waits for."""

HOLDER = """
import sys, psycopg
from cron_leader import fencing
from cron_leader.ledger import postgres
url, election, fence, nonce, frozen_s, guarded = sys.argv[1:]
name = fencing.application_name(election, int(fence))
with psycopg.connect(url, autocommit=True) as db:
    for text, params in postgres._begin(name, 60, float(frozen_s)):
        db.execute(text, params)
    db.execute("UPDATE cron_leader_job SET paused_why = 'stale' WHERE job = 'job'")
    db.execute("UPDATE cron_leader_slot SET run_id = run_id")
    if guarded == "yes":
        db.execute("SELECT cron_leader_guard(%s, %s, %s)", (election, int(fence), nonce))
    print("holding", flush=True)
    sys.stdin.readline()
    try:
        db.execute("COMMIT")
        print("committed")
    except psycopg.Error as error:
        print(type(error).__name__)
"""


@contextlib.contextmanager
def frozen_holder(
    url: str, leader: Leader, *, guarded: bool, frozen_s: float = LONG_S, election: str = ELECTION
) -> Iterator[subprocess.Popen[str]]:
    """A process of its own, stopped inside a transaction of this term: before its last statement,
    or between that and COMMIT."""
    words = (url, election, leader.fence, leader.candidate.nonce, frozen_s)
    argv = [sys.executable, "-c", HOLDER, *map(str, words), "yes" if guarded else "no"]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL}
    with subprocess.Popen(argv, text=True, **pipes) as holder:  # type: ignore[call-overload]
        try:
            assert holder.stdout.readline() == "holding\n"
            holder.send_signal(signal.SIGSTOP)
            yield holder
        finally:
            holder.send_signal(signal.SIGCONT)  # if it is still there
            holder.kill()


def written(lab: Lab) -> str | None:
    """What the holder wanted to write, as it stands."""
    with psycopg.connect(lab.url) as db:
        row = db.execute("SELECT paused_why FROM cron_leader_job WHERE job = 'job'").fetchone()
    assert row is not None
    return row[0]  # type: ignore[no-any-return]


class Waits:
    """Counts how often a raise says that it waits."""

    def __init__(self) -> None:
        self.told = 0

    def __call__(self) -> None:
        self.told += 1


@pytest.fixture
async def successor(pglab: Lab) -> AsyncIterator[Callable[..., Ledger]]:
    """Makes ledgers as another node opens them."""
    async with contextlib.AsyncExitStack() as stack:

        def opened(url: str = pglab.url, *, ttl_s: float = LONG_S) -> Ledger:
            ledger = open_ledger(url, ttl_s=ttl_s)
            stack.push_async_callback(ledger.close)
            return ledger

        yield opened


async def test_a_holder_frozen_before_its_last_statement_delays_no_raise(
    pglab: Lab, successor: Callable[..., Ledger]
) -> None:
    old, waits = await pglab.leader("a", settlement()), Waits()
    with frozen_holder(pglab.url, old, guarded=False) as holder:
        c = pglab.candidate("b")
        assert await soon(successor().raise_fence(c, T0, waiting=waits)) == c.revision
        assert not waits.told
        holder.send_signal(signal.SIGCONT)
        assert holder.communicate("go\n")[0] == "committed\n"
    # It never asked the guard: the kit and the ledger always do, and are refused then.
    assert written(pglab) == "stale"


async def test_a_holder_frozen_after_its_guard_is_ended_by_the_raise_that_waits_for_it(
    pglab: Lab, successor: Callable[..., Ledger]
) -> None:
    old, waits = await pglab.leader("a", settlement()), Waits()
    with frozen_holder(pglab.url, old, guarded=True, frozen_s=3.0) as holder:
        c = pglab.candidate("b")
        assert await soon(successor().raise_fence(c, T0, waiting=waits)) == c.revision
        assert waits.told == 1
        holder.send_signal(signal.SIGCONT)
        assert holder.communicate("go\n")[0] == "AdminShutdown\n"  # and no timeout of the server's
    assert written(pglab) is None


async def test_a_run_frozen_over_the_row_of_its_slot_is_ended_by_the_settlement_that_waits_for_it(
    pglab: Lab,
) -> None:
    """Before its last statement: the raise has passed it by."""
    old = await pglab.leader("a", settlement())
    claim = Claim(slot(), "run-1", None)
    await old.take(claim)
    with frozen_holder(pglab.url, old, guarded=False, frozen_s=3.0) as holder:
        new = await pglab.leader("b")
        assert await soon(new.settle(settlement())) == ()
        holder.send_signal(signal.SIGCONT)
        assert holder.communicate("go\n")[0] == "AdminShutdown\n"
    assert pglab.states() == {claim.slot: "abandoned"}


async def test_after_a_rebase_the_holder_is_told_from_the_newer_term_by_the_offset(
    pglab: Lab, successor: Callable[..., Ledger]
) -> None:
    """Its fence is far above the candidate's bare revision, and below the fence that will be."""
    old = await pglab.leader("a", settlement())
    pglab.sql('UPDATE cron_leader_fence SET "offset" = 1000, cluster = NULL')
    newer = await pglab.leader("b", settlement())
    assert newer.fence > 1000 > old.fence
    with frozen_holder(pglab.url, newer, guarded=True):
        c = pglab.candidate("c")
        answer = await soon(successor().raise_fence(c, T0, waiting=Waits()))
        assert answer == c.revision + 1000


async def test_only_older_terms_of_the_same_election_are_ended(pglab: Lab) -> None:
    await pglab.leader("a", settlement())
    names = {
        "older": fencing.application_name(ELECTION, 90),
        "own": fencing.application_name(ELECTION, 500),
        "newer": fencing.application_name(ELECTION, 501),
        "another election": fencing.application_name("default/1", 90),
        "another fleet": fencing.application_name("x-default/0", 90),
        "cut off": f"cron_leader:{ELECTION}:",
        "no fence": f"cron_leader:{ELECTION}:9o",
        "somebody": "psql",
    }
    async with contextlib.AsyncExitStack() as stack:
        held = {}
        for what, name in names.items():
            connection = await psycopg.AsyncConnection.connect(pglab.url, application_name=name)
            held[what] = await stack.enter_async_context(connection)
            await held[what].execute("SELECT 1")
        ledger = postgres.PostgresLedger(pglab.url)
        stack.push_async_callback(ledger.close)
        candidate = replace(pglab.candidate("b"), revision=500)
        await ledger._end_older(candidate.election, revision=candidate.revision)
        alive = set()
        for what, connection in held.items():
            with contextlib.suppress(psycopg.OperationalError):
                await connection.execute("SELECT 1")
                alive.add(what)
    assert set(names) - alive == {"older"}


async def test_a_role_that_may_end_nobody_waits_for_the_server_to_end_the_holder(
    pglab: Lab, server: Postgres, successor: Callable[..., Ledger]
) -> None:
    """As long as the holder's TTL: the settings of its transaction say so."""
    old, waits = await pglab.leader("a", settlement()), Waits()
    server.run(
        "DROP ROLE IF EXISTS successor",
        "CREATE ROLE successor LOGIN",
    )
    server.run(
        "GRANT ALL ON ALL TABLES IN SCHEMA public TO successor",
        database="ready",
    )
    try:
        with frozen_holder(pglab.url, old, guarded=True, frozen_s=1.0):
            c = pglab.candidate("b")
            ledger = successor(server.url("ready").replace("postgres@", "successor@"))
            assert await soon(ledger.raise_fence(c, T0, waiting=waits)) == c.revision
            assert waits.told == 1
        assert written(pglab) is None
        await ledger.close()
    finally:
        server.run("DROP OWNED BY successor", database="ready")
        server.run("DROP ROLE successor")


@pytest.fixture
def reports(server: Postgres) -> Iterator[str]:
    """A fence target: it has the fence and the guard, and tables of its own."""
    with server.database() as url:
        with psycopg.connect(url, autocommit=True) as db:
            for statement in target_ddl(lite=False):
                db.execute(statement)
            db.execute("CREATE TABLE cron_leader_job (job text, paused_why text)")
            db.execute("CREATE TABLE cron_leader_slot (run_id text)")
            db.execute("INSERT INTO cron_leader_job VALUES ('job', NULL)")
        yield url


@pytest.mark.parametrize("guarded", [False, True], ids=["before", "after"])
async def test_a_holder_frozen_in_a_target_delays_no_raise_or_is_ended_by_it(
    pglab: Lab, reports: str, guarded: bool
) -> None:
    old, waits = Leader(await pglab.ledger(), pglab.candidate("a")), Waits()
    targets = Targets([FenceTarget("reports", reports)])
    try:
        assert await targets.raise_fence(old.candidate, old.fence, T0, waiting=waits) is None
        with frozen_holder(reports, old, guarded=guarded, frozen_s=3.0) as holder:
            c = pglab.candidate("b")
            raising = targets.raise_fence(c, c.revision, T0, waiting=waits)
            assert await soon(raising) is None
            assert waits.told == guarded
            holder.send_signal(signal.SIGCONT)
            ended = holder.communicate("go\n")[0]
        # Before it, nobody waited; it never asked the guard, which would have refused it.
        assert ended == ("AdminShutdown\n" if guarded else "committed\n")
    finally:
        await targets.close()


WORKERS = 32
IN_BETWEEN = 10 * WORKERS
"""Commits while the raise is on its way. A fair queue lets each worker through once."""


async def test_a_raise_is_not_starved_by_workers_that_keep_committing(pglab: Lab) -> None:
    old = await pglab.leader("a", settlement())
    ledger, c, commits, refused = await pglab.ledger(), pglab.candidate("b"), 0, 0
    warm, starved = asyncio.Event(), asyncio.Event()

    async def work() -> None:
        nonlocal commits, refused
        guard = "SELECT cron_leader_guard(%s, %s, %s)"
        async with await psycopg.AsyncConnection.connect(pglab.url, autocommit=True) as db:
            while not starved.is_set():
                try:
                    async with db.transaction():
                        await db.execute(guard, (ELECTION, old.fence, old.candidate.nonce))
                        await db.execute("SELECT pg_sleep(0.02)")
                except psycopg.Error as error:
                    refused += error.sqlstate == fencing.REFUSED
                    return
                commits += 1
                if commits > WORKERS:
                    warm.set()
                if commits > 2 * WORKERS + IN_BETWEEN:
                    starved.set()

    async with asyncio.TaskGroup() as workers:
        for _ in range(WORKERS):
            workers.create_task(work())
        await soon(warm.wait())
        raising = asyncio.create_task(ledger.raise_fence(c, T0, waiting=Waits()))
        counting = asyncio.create_task(starved.wait())
        await soon(asyncio.wait({raising, counting}, return_when=asyncio.FIRST_COMPLETED))
        counting.cancel()
        through = raising.done()
    assert through, f"{commits} commits, and no raise"
    assert await raising == c.revision
    assert refused == WORKERS
