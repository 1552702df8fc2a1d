"""trigger, pause, resume and backfill: what they order, what they say of the answer."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from cron_leader.core.model import (
    Applied,
    Asked,
    Batch,
    Candidate,
    Claim,
    Entry,
    Errand,
    Gap,
    JobRecord,
    Reason,
    Settlement,
    SlotKey,
    State,
    Term,
)
from cron_leader.core.orders import MOST_SLOTS, errand_of
from cron_leader.core.schedule import Every
from cron_leader.ledger import Ledger, open_ledger
from cron_leader.ledger.views import CommandRow, open_reader
from tests.core.driver import job

from .conftest import Cli, Ran

MINUTE = timedelta(minutes=1)
NOW = datetime.now(UTC).replace(second=0, microsecond=0)
JOBS = {"digest": job("digest", schedule=Every(MINUTE))}
ORDERS = (
    ("trigger", "digest"),
    ("pause", "digest"),
    ("resume", "digest"),
    ("backfill", "digest", "--from", (NOW - 3 * MINUTE).isoformat(), "--to", NOW.isoformat()),
)


def utc(at: datetime) -> str:
    return at.replace(tzinfo=None).isoformat() + "Z"


class Leader:
    """A term of this ledger: it answers what it is told to, as a node would."""

    def __init__(self, ledger: Ledger) -> None:
        self.ledger = ledger
        self.term = Term("default/0", 7, "n", "a", 1, NOW)

    async def lead(self) -> Leader:
        await self.ledger.open(fleet="default", shards=1, migrate=True)
        candidate = Candidate("default/0", "n", "a", 1, 7, 1)
        await self.ledger.raise_fence(candidate, NOW, waiting=lambda: None)
        past = tuple(
            Entry(SlotKey("digest", NOW - n * MINUTE), State.MISSED, Reason.COALESCED)
            for n in (2, 3)
        )
        jobs = (JobRecord("digest", NOW, NOW, "every 1m"),)
        settlement = Settlement(NOW, NOW, jobs, (), past, (), frozenset())
        await self.ledger.settle(self.term, settlement)
        ran = Claim(SlotKey("digest", NOW - MINUTE), "run-1")
        await self.ledger.take(self.term, Batch((ran,), (), NOW, NOW))
        return self

    async def orders(self) -> tuple[Asked, ...]:
        answer = await self.ledger.heartbeat(self.term, NOW, NOW)
        assert isinstance(answer, Applied)
        return answer.orders  # type: ignore[return-value]

    async def obey(self) -> Errand:
        """Carry out the next order that comes."""
        async with asyncio.timeout(15):
            while not (orders := await self.orders()):  # noqa: ASYNC110
                await asyncio.sleep(0.02)
        errand = errand_of(orders[0], JOBS, datetime.now(UTC), NOW)
        await self.ledger.carry_out(self.term, errand, datetime.now(UTC))
        return errand


def configure(ledger: str) -> None:
    Path("cron-leader.toml").write_text(
        f'[ledger]\nurl = "sqlite:///{ledger}"\n[etcd]\nendpoints = ["127.0.0.1:1"]\n'
        '[[job]]\nname = "digest"\nevery = "1m"\nshell = ":"\n'
        '[[job]]\nname = "gone"\nevery = "1m"\nshell = ":"\n'
    )


@pytest.fixture
async def leader(folder: Path) -> AsyncIterator[Leader]:
    configure("cron-leader.db")
    ledger = open_ledger(f"sqlite:///{folder}/cron-leader.db")
    try:
        yield await Leader(ledger).lead()
    finally:
        await ledger.close()


async def command(cli: Cli, *args: str) -> Ran:
    """In a thread: it waits for what this loop answers."""
    return await asyncio.to_thread(cli, *args)


async def obeyed(cli: Cli, leader: Leader, *args: str) -> Ran:
    ran, _ = await asyncio.gather(command(cli, *args), leader.obey())
    return ran


def given(folder: Path) -> tuple[CommandRow, ...]:
    with open_reader(f"sqlite:///{folder}/cron-leader.db") as reader:
        return reader.commands()


async def paused_of(cli: Cli) -> dict[str, Any] | None:
    """What `status` says of the job's pause."""
    facts = json.loads((await command(cli, "status", "--json")).out)["jobs"]
    found: dict[str, Any] | None = facts[0]["paused"]
    return found


# ------------------------------------------------------------------ all four


@pytest.mark.parametrize("args", ORDERS, ids=lambda args: args[0])
async def test_an_order_is_written_with_who_gave_it_and_why(
    cli: Cli, folder: Path, leader: Leader, args: tuple[str, ...]
) -> None:
    ran = await command(cli, *args, "--no-wait", "--why", "disk full", "--key", "k1")
    assert (ran.code, ran.err) == (0, "")
    assert ran.out == f"{args[0]} is ordered: command k1\n"
    (row,) = given(folder)
    assert (row.id, row.kind, row.target, row.why) == ("k1", args[0], "default/0", "disk full")
    assert "@" in row.who
    assert row.result is None


@pytest.mark.parametrize(
    ("args", "said"),
    list(zip(ORDERS, ("triggered", "paused", "resumed", "backfilling"), strict=True)),
)
async def test_an_order_is_answered_with_what_was_done_under_which_fence(
    cli: Cli, leader: Leader, args: tuple[str, ...], said: str
) -> None:
    ran = await obeyed(cli, leader, *args, "--json")
    assert (ran.code, ran.err) == (0, "")
    facts = json.loads(ran.out)
    assert (facts["kind"], facts["job"], facts["result"]) == (args[0], "digest", said)
    assert facts["fence"] == 7


@pytest.mark.parametrize("args", ORDERS, ids=lambda args: args[0])
async def test_an_order_given_again_with_its_key_is_still_one(
    cli: Cli, folder: Path, leader: Leader, args: tuple[str, ...]
) -> None:
    first = await obeyed(cli, leader, *args, "--key", "k1")
    again = await command(cli, *args, "--key", "k1")
    assert again == first
    assert len(given(folder)) == 1


async def test_a_key_of_another_order_is_refused(cli: Cli, folder: Path, leader: Leader) -> None:
    await command(cli, "pause", "digest", "--no-wait", "--key", "k1")
    ran = await command(cli, "trigger", "digest", "--key", "k1")
    assert (ran.code, ran.out) == (1, "")
    assert "key 'k1' is that of another order: pause" in ran.err
    assert len(given(folder)) == 1


@pytest.mark.parametrize("args", ORDERS, ids=lambda args: args[0])
async def test_an_order_not_answered_in_time_is_exit_1_and_stands(
    cli: Cli, folder: Path, leader: Leader, args: tuple[str, ...]
) -> None:
    ran = await command(cli, *args, "--within", "100ms", "--key", "k1")
    assert (ran.code, ran.out) == (1, "")
    assert ran.err == (
        "error: no leader of default/0 has answered within 0.1s; the order stands (command k1)\n"
    )


async def test_an_order_that_came_to_nothing_is_exit_1(cli: Cli, leader: Leader) -> None:
    ran = await obeyed(cli, leader, "trigger", "gone")
    assert (ran.code, ran.out, ran.err) == (
        1,
        "",
        "error: the order came to nothing: no such job\n",
    )


@pytest.mark.parametrize(
    ("args", "error"),
    [
        (("trigger", "digset"), "did you mean digest?"),
        (("pause", "digset"), "did you mean digest?"),
        (("resume", "digset"), "did you mean digest?"),
        (("backfill", "digset", "--from", "2026-01-01"), "did you mean digest?"),
        (("trigger",), "Missing argument 'JOB'"),
        (("trigger", "digest", "--key", "a b"), "'a b' is no key"),
        (("trigger", "digest", "--within", "soon"), "--within"),
        (("pause",), "give a JOB, or --all"),
        (("resume",), "give a JOB, or --all"),
        (("pause", "digest", "--all"), "give a JOB, or --all"),
        (("pause", "digest", "--for", "soon"), "--for"),
        (("pause", "digest", "--for", "0s"), "--for"),
        (("pause", "digest", "--for", "4000d"), "--for"),
        (("backfill", "digest"), "--from"),
        (("backfill", "digest", "--from", "today"), "--from 'today': not a time"),
        (("backfill", "digest", "--from", "2026-01-02", "--to", "2026-01-01"), "--from"),
        (("backfill", "digest", "--from", "2026-01-01", "--to", "2999-01-01"), "still to come"),
        (("backfill", "digest", "--from", "2026-01-01", "--rate", "fast"), "--rate"),
        (("backfill", "digest", "--from", "2026-01-01", "--rate", "9999/s"), "--rate"),
        (("backfill", "digest", "--from", "2026-01-01"), f"more than {MOST_SLOTS} slots"),
    ],
    ids=lambda case: " ".join(case) if isinstance(case, tuple) else "",
)
async def test_what_makes_no_sense_is_wrong_usage_and_orders_nothing(
    cli: Cli, folder: Path, leader: Leader, args: tuple[str, ...], error: str
) -> None:
    ran = await command(cli, *args)
    assert (ran.code, ran.out, ran.err.count("\n")) == (2, "", 1)
    assert error in ran.err
    assert given(folder) == ()


async def test_without_a_ledger_nothing_is_ordered_and_that_is_exit_3(
    cli: Cli, leader: Leader
) -> None:
    configure("other.db")
    for args in ORDERS:
        assert (await command(cli, *args)).code == 3


# ------------------------------------------------------------------ each


async def test_a_trigger_says_the_slot_that_explains_it(cli: Cli, leader: Leader) -> None:
    ran = await obeyed(cli, leader, "trigger", "digest", "--key", "k1", "--json")
    slot = json.loads(ran.out)["scheduled_for"]
    ran = await command(cli, "why", "digest", slot)
    assert (ran.err, ran.code) == ("", 0)
    said = " ".join(ran.out.split())
    assert "The slot that command k1 asked for is due" in said
    assert "ordered trigger of digest: triggered." in said


async def test_a_pause_shows_in_the_status_until_it_is_resumed(cli: Cli, leader: Leader) -> None:
    ran = await obeyed(cli, leader, "pause", "digest", "--for", "2h", "--why", "disk full")
    assert ran.out.startswith("digest is paused for 2h: command ")
    paused = await paused_of(cli)
    assert paused is not None
    length = datetime.fromisoformat(paused["until"]) - datetime.fromisoformat(paused["since"])
    assert abs(length - timedelta(hours=2)) < MINUTE
    assert paused["why"] == "disk full"
    assert ": disk full" in (await command(cli, "status")).out
    ran = await obeyed(cli, leader, "resume", "digest")
    assert ran.out.startswith("digest is resumed: command ")
    assert await paused_of(cli) is None


async def test_a_pause_of_all_goes_on_until_it_is_resumed(cli: Cli, leader: Leader) -> None:
    ran = await obeyed(cli, leader, "pause", "--all")
    assert ran.out.startswith("every job is paused until it is resumed: command ")
    paused = await paused_of(cli)
    assert paused is not None
    assert paused["until"] is None
    assert "paused until resumed" in (await command(cli, "status")).out


async def test_a_dry_run_lists_what_would_run_and_orders_nothing(
    cli: Cli, folder: Path, leader: Leader
) -> None:
    ran = await command(cli, *ORDERS[-1], "--dry-run", "--json")
    assert json.loads(ran.out) == [
        {"scheduled_for": utc(NOW - 3 * MINUTE), "state": None},
        {"scheduled_for": utc(NOW - 2 * MINUTE), "state": None},
        {"scheduled_for": utc(NOW - MINUTE), "state": "running"},
    ]
    ran = await command(cli, *ORDERS[-1], "--dry-run")
    assert ran.out.count("would run") == 2
    assert "left alone: running" in ran.out
    assert given(folder) == ()


async def test_a_dry_run_of_an_empty_stretch_says_so(cli: Cli, leader: Leader) -> None:
    ends = ("2026-01-01T00:00:10", "2026-01-01T00:00:20")
    ran = await command(cli, "backfill", "digest", "--from", ends[0], "--to", ends[1], "--dry-run")
    assert (ran.code, ran.out, ran.err) == (0, "", "note: no slots in that stretch\n")


@pytest.mark.parametrize(("limits", "ago"), [('retention = "1h"', 120), ("keep = 1", 0)])
async def test_a_stretch_of_which_retention_may_have_deleted_what_ran_is_refused_unless_again(
    cli: Cli, folder: Path, leader: Leader, limits: str, ago: int
) -> None:
    """The job is known for ten minutes; rows tell of its last slots, a gap of three before them."""
    then = NOW - ago * MINUTE
    gap = Gap("digest", then - 8 * MINUTE, then - 6 * MINUTE, 3, Reason.NO_LEADER)
    known = Batch((), (), NOW, NOW, (gap,))
    await leader.ledger.take(leader.term, known)
    with open_reader(f"sqlite:///{folder}/cron-leader.db") as reader:
        seen = {"at": then - 10 * MINUTE}
        reader._database.run("UPDATE cron_leader_job SET first_seen = :at", seen)
    (folder / "cron-leader.toml").write_text(
        (folder / "cron-leader.toml").read_text().replace("[ledger]", f"[ledger]\n{limits}")
    )

    async def tried(first: int, until: int, *words: str) -> Ran:
        ends = ("--from", utc(then - first * MINUTE), "--to", utc(then - until * MINUTE))
        return await command(cli, "backfill", "digest", *ends, "--dry-run", *words)

    refused = await tried(9, 3)
    assert refused.code == 2
    assert f"that slots up to {utc(then - 4 * MINUTE)} ran" in refused.err
    assert "--again" in refused.err
    assert (await tried(9, 3, "--again")).out.count("would run") == 6
    assert (await tried(8, 6)).code == 0, "the gap tells of them"
    assert (await tried(15, 11)).code == 0, "the job was not known then"
    assert given(folder) == ()


async def test_a_backfill_says_which_slots_it_runs(cli: Cli, leader: Leader) -> None:
    ran = await obeyed(cli, leader, *ORDERS[-1], "--key", "k1", "--rate", "30/m")
    assert ran.out == "2 of 3 slots of digest are run at 30/m: command k1\n"
    ran = await command(cli, *ORDERS[-1], "--key", "k1", "--rate", "30/m", "--json")
    facts = json.loads(ran.out)
    assert facts["slots"] == [utc(NOW - 3 * MINUTE), utc(NOW - 2 * MINUTE)]
    assert facts["rate"] == 0.5
