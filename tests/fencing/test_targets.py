"""`[[fence_target]]`: another database refuses a deposed leader's writes as the ledger does."""

from __future__ import annotations

import asyncio
import json
import sqlite3
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import psycopg
import pytest

from cron_leader.cli import main
from cron_leader.clock import SystemClock
from cron_leader.config import FenceTarget, load
from cron_leader.core import messages as m
from cron_leader.core.model import Candidate, Claim, Refused
from cron_leader.errors import ConfigError, LedgerUncertain, LedgerUnusable
from cron_leader.fencing import FenceMisuse, StaleFence
from cron_leader.fencing.ddl import target_ddl
from cron_leader.fencing.transaction import Opener
from cron_leader.ledger.migrate import migration_sql
from cron_leader.ledger.targets import Targets
from cron_leader.scribe import Scribe
from tests import pg_kit
from tests.etcd_kit import Emitted, Recorder
from tests.fencing.kit import connect, ticket
from tests.ledger.kit import CLUSTER, ELECTION, T0, TIMEOUT_S, Lab, nothing, settlement, slot

READ = "SELECT election, fence, nonce, node FROM cron_leader_fence"


def candidate(revision: int, node: str = "a") -> Candidate:
    return Candidate(ELECTION, f"nonce-{revision}", node, 7, revision, CLUSTER)


@dataclass
class Beside:
    """A database that is not the ledger's, with a fence table and a table of effects."""

    url: str
    targets: Targets

    @property
    def given(self) -> FenceTarget:
        return FenceTarget("reports", self.url)

    def rows(self, text: str) -> list[tuple[Any, ...]]:
        with closing(connect(self.url)) as db:
            return [tuple(row) for row in db.execute(text).fetchall()]

    async def raise_(self, by: Candidate) -> Refused | None:
        return await self.targets.raise_fence(by, by.revision, T0, waiting=nothing)


@pytest.fixture(params=["sqlite", "postgres"])
async def beside(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Beside]:
    async with AsyncExitStack() as stack:
        if request.param == "sqlite":
            url = f"sqlite:///{tmp_path}/reports.db"
        else:
            server: pg_kit.Postgres = request.getfixturevalue("server")
            url = stack.enter_context(server.database())
        with closing(connect(url)) as db:
            for statement in target_ddl(lite=request.param == "sqlite"):
                db.execute(statement)
            db.execute("CREATE TABLE effects (n integer)")
        targets = Targets([FenceTarget("reports", url)])
        stack.push_async_callback(targets.close)
        yield Beside(url, targets)


# ------------------------------------------------------------------ the raise


async def test_a_raise_is_taken_once_and_may_be_sent_again(beside: Beside) -> None:
    assert await beside.raise_(candidate(5)) is None
    assert await beside.raise_(candidate(5)) is None
    assert await beside.raise_(candidate(9, "b")) is None
    assert beside.rows(READ) == [(ELECTION, 9, "nonce-9", "b")]


async def test_a_lower_raise_and_an_equal_one_of_another_are_refused(beside: Beside) -> None:
    await beside.raise_(candidate(9))
    lower = await beside.raise_(candidate(5))
    equal = await beside.raise_(replace(candidate(9), nonce="another"))
    for refused in (lower, equal):
        assert isinstance(refused, Refused)
        assert refused.high == 9
        assert "fence target reports shows fence 9" in refused.text
    assert beside.rows(READ) == [(ELECTION, 9, "nonce-9", "a")]


async def test_fences_of_other_elections_are_left_alone(beside: Beside) -> None:
    await beside.raise_(replace(candidate(9), election="other/0"))
    assert await beside.raise_(candidate(5)) is None
    assert len(beside.rows(READ)) == 2


async def test_a_target_without_its_table_is_told_with_the_cure(beside: Beside) -> None:
    with closing(connect(beside.url)) as db:
        db.execute("DROP TABLE cron_leader_fence")
    for ask in (beside.targets.probe(), beside.raise_(candidate(5))):
        with pytest.raises(LedgerUnusable, match=r"reports.*fence ddl --target") as told:
            await ask
        assert not told.value.permanent


@pytest.mark.parametrize(
    "url", ["sqlite:////nowhere/at/all.db", "postgresql://u:secret@127.0.0.1:1/none"]
)
async def test_a_target_that_is_not_there_is_named_without_its_password(url: str) -> None:
    targets = Targets([FenceTarget("reports", url)])
    with pytest.raises((LedgerUncertain, LedgerUnusable), match="fence target reports") as told:
        await targets.probe()
    assert "secret" not in str(told.value)
    assert not getattr(told.value, "permanent", False)


async def test_a_raise_that_waits_for_a_lock_says_so(beside: Beside) -> None:
    await beside.raise_(candidate(5))
    waits = asyncio.Event()
    with closing(connect(beside.url)) as db:
        db.execute("BEGIN")
        db.execute("UPDATE cron_leader_fence SET node = 'frozen'")
        raising = asyncio.create_task(
            beside.targets.raise_fence(candidate(9), 9, T0, waiting=waits.set)
        )
        await asyncio.wait_for(waits.wait(), TIMEOUT_S)
        db.execute("ROLLBACK")
    try:
        assert await raising is None
    except LedgerUncertain:  # SQLite gives a try up; the scribe sends the next one
        assert await beside.raise_(candidate(9)) is None


async def test_with_no_target_nobody_is_asked() -> None:
    targets = Targets()
    await targets.probe()
    assert await targets.raise_fence(candidate(5), 5, T0, waiting=nothing) is None
    await targets.close()


async def test_the_guard_printed_for_a_target_is_the_ledgers() -> None:
    (guard,) = (s for s in target_ddl(lite=False) if "FUNCTION" in s)
    of_ledger = migration_sql("postgresql://x")
    assert guard.partition("$$")[2].strip() in of_ledger


# ------------------------------------------------------------------ the scribe


async def test_the_gate_hears_of_the_raise_only_once_the_targets_are_raised_too(
    beside: Beside, tmp_path: Path
) -> None:
    with closing(connect(beside.url)) as db:
        db.execute("ALTER TABLE cron_leader_fence RENAME TO away")
    emit = Emitted()
    async with AsyncExitStack() as stack:
        ledger = await Lab(f"sqlite:///{tmp_path}/ledger.db", stack).ledger()
        posted = Recorder()
        scribe = Scribe(ledger, post=posted, clock=SystemClock(), emit=emit, targets=beside.targets)
        raising = asyncio.create_task(scribe.perform(m.Raise(candidate(5))))
        failed = await posted.until(m.LedgerFailed)
        assert "fence target reports" in failed.text
        assert not failed.permanent
        assert not posted.of(m.Raised)
        with closing(connect(beside.url)) as db:
            db.execute("ALTER TABLE away RENAME TO cron_leader_fence")
        raised = await posted.until(m.Raised)
        await raising
    assert raised.answer == 5
    assert beside.rows(READ) == [(ELECTION, 5, "nonce-5", "a")]


# ------------------------------------------------------------------ a run's own writes


async def running(lab: Lab, beside: Beside) -> Opener:
    """A leader with one claimed slot, raised in the target as well."""
    leader = await lab.leader("a", settlement())
    claim = Claim(slot(), "run-a")
    await leader.take(claim)
    told = replace(ticket(lab, leader, claim), targets={"reports": beside.url})
    by = Candidate(ELECTION, told.nonce, "a", 7, told.fence, CLUSTER)
    assert await beside.raise_(by) is None
    return Opener(told)


@pytest.fixture
async def own(tmp_path: Path) -> AsyncIterator[Lab]:
    async with AsyncExitStack() as stack:
        yield Lab(f"sqlite:///{tmp_path}/ledger.db", stack)


async def test_a_transaction_in_a_target_commits_without_the_success(
    own: Lab, beside: Beside
) -> None:
    open_ = await running(own, beside)
    for _ in range(2):
        with open_(final=True, isolation="read committed", target="reports") as db:
            db.execute("INSERT INTO effects VALUES (1)")
    assert beside.rows("SELECT count(*) FROM effects") == [(2,)]
    assert list(own.states().values()) == ["running"]
    with open_(final=True, isolation="read committed"):
        pass
    assert list(own.states().values()) == ["succeeded"]


async def test_a_deposed_runs_write_to_a_target_is_refused_though_its_key_is_new(
    own: Lab, beside: Beside
) -> None:
    open_ = await running(own, beside)
    assert await beside.raise_(candidate(900, "b")) is None
    with (
        pytest.raises(StaleFence, match="nothing was committed"),
        open_(final=True, isolation="read committed", target="reports") as db,
    ):
        db.execute("INSERT INTO effects VALUES (1)")
    assert beside.rows("SELECT count(*) FROM effects") == [(0,)]


async def test_a_run_that_was_ended_under_its_own_fence_writes_in_no_target(
    own: Lab, beside: Beside
) -> None:
    """The target cannot know; the kit asks the ledger before it commits there."""
    open_ = await running(own, beside)
    own.sql("UPDATE cron_leader_slot SET state = 'timed_out'")
    with (
        pytest.raises(StaleFence, match="no longer this run's"),
        open_(final=True, isolation="read committed", target="reports") as db,
    ):
        db.execute("INSERT INTO effects VALUES (1)")
    assert beside.rows("SELECT count(*) FROM effects") == [(0,)]


async def test_a_target_nobody_configured_is_told_with_those_there_are(
    own: Lab, beside: Beside
) -> None:
    open_ = await running(own, beside)
    with pytest.raises(FenceMisuse, match=r"'report'.*known: reports"):
        open_(final=True, isolation="read committed", target="report")


# ------------------------------------------------------------------ configuration and commands


def configured(folder: Path, text: str) -> Path:
    path = folder / "cron-leader.toml"
    path.write_text(text)
    return path


def test_a_target_is_configured_by_name_and_its_secret_is_in_no_repr(tmp_path: Path) -> None:
    text = '[[fence_target]]\nname = "reports"\nurl = "postgresql://u:${PW}@db/reports"\n'
    config = load(configured(tmp_path, text), environ={"PW": "secret"})
    assert config.fence_targets == (FenceTarget("reports", "postgresql://u:secret@db/reports"),)
    assert "secret" not in repr(config)


@pytest.mark.parametrize(
    ("text", "rule"),
    [
        ('name = "a"', "url: is missing"),
        ('url = "sqlite:///a.db"', "name: is missing"),
        ('name = "a"\nurl = "mysql://db"', "unknown scheme"),
        ('name = "a"\nurl = "sqlite:///cron-leader.db"', "is the ledger's"),
        ('name = "a"\nurl = "postgresql://${PW}@db/r"', "[[fence_target]] number 1 url = "),
        ('name = "A b"\nurl = "sqlite:///a.db"', "must be 1 to 63"),
        ('name = "a"\nurl = "sqlite:///a.db"\nurll = "x"', "did you mean url?"),
        (
            'name = "a"\nurl = "sqlite:///a.db"\n[[fence_target]]\nname = "a"\nurl = "sqlite:///b"',
            "name of another",
        ),
    ],
)
def test_a_target_that_cannot_be_meant_is_refused_with_the_rule(
    tmp_path: Path, text: str, rule: str
) -> None:
    with pytest.raises(ConfigError) as told:
        load(configured(tmp_path, f"[[fence_target]]\n{text}\n"), environ={})
    assert rule in str(told.value)


def test_one_pair_of_brackets_is_told(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"\[\[fence_target\]\], with two brackets"):
        load(configured(tmp_path, '[fence_target]\nname = "a"\n'), environ={})


@pytest.fixture
def options(beside: Beside, tmp_path: Path) -> list[str]:
    text = f'[[fence_target]]\nname = "reports"\nurl = "{beside.url}"\n'
    return ["--target", "reports", "--config", str(configured(tmp_path, text))]


def test_the_ddl_of_a_target_makes_it_one_and_may_be_run_again(
    beside: Beside, options: list[str], capsys: Any
) -> None:
    assert main(["fence", "ddl", "--json", *options]) == 0
    statements = json.loads(capsys.readouterr().out)["statements"]
    with closing(connect(beside.url)) as db:
        db.execute("DROP TABLE cron_leader_fence")
        for statement in [*statements, *statements]:
            db.execute(statement)
    assert beside.rows(READ) == []


async def test_a_table_in_a_target_is_fenced_and_verified_there(
    beside: Beside, options: list[str], capsys: Any
) -> None:
    await beside.raise_(candidate(5))
    assert main(["fence", "ddl", "effects", "--trigger", "--json", *options]) == 0
    with closing(connect(beside.url)) as db:
        for statement in json.loads(capsys.readouterr().out)["statements"]:
            db.execute(statement)
        db.execute("INSERT INTO effects VALUES (1, 5)")
        with pytest.raises((sqlite3.Error, psycopg.Error), match="cron_leader: "):
            db.execute("INSERT INTO effects VALUES (2, 4)")
    assert main(["fence", "verify", "effects", *options]) == 0
    assert "refused the stale fence 4 (raised: 5)" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["ddl"], "name a table, or --target"),
        (["ddl", "--target", "report"], "known: reports"),
        (["verify", "--target", "reports"], "name a table in it"),
    ],
)
def test_commands_that_name_no_target_say_what_is_missing(
    tmp_path: Path, capsys: Any, words: list[str], told: str
) -> None:
    path = configured(tmp_path, '[[fence_target]]\nname = "reports"\nurl = "sqlite:///r.db"\n')
    assert main(["fence", *words, "--config", str(path)]) == 2
    assert told in capsys.readouterr().err
