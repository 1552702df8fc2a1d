"""SQLite's own way for the usual claim, and ends of runs that share a transaction."""

from __future__ import annotations

import asyncio
import contextlib
import sqlite3
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from cron_leader.core.model import Applied, Claim, Refused, Taken
from cron_leader.ledger import sqlite
from tests.ledger.kit import Lab, Leader, at, finish, settlement, slot

CLAIMS = tuple(Claim(slot(n % 3, f"job-{n:03}"), f"run-{n}") for n in range(127))
"""Of every size of statement but the largest."""

JOBS = settlement(jobs=tuple(claim.slot.job for claim in CLAIMS))


@contextlib.asynccontextmanager
async def lab(folder: Path, name: str = "ledger") -> AsyncIterator[Lab]:
    async with contextlib.AsyncExitStack() as stack:
        yield Lab(f"sqlite:///{folder}/{name}.db", stack)


def rows(lab: Lab) -> list[list[tuple[Any, ...]]]:
    """All that a claim may write."""
    with contextlib.closing(sqlite3.connect(lab.url.removeprefix("sqlite:///"))) as db:
        return [
            db.execute(f"SELECT * FROM cron_leader_{table} ORDER BY 1, 2, 3, 4").fetchall()
            for table in ("slot", "attempt", "term")
        ]


async def short_and_long(folder: Path, harm: str | None = None) -> tuple[Taken, Taken]:
    """The answers of both ways, each to a leader of a ledger of its own; what they leave there is
    the same. harm: a statement that comes before."""
    answers, left = [], []
    for name in ("short", "long"):
        async with lab(folder, name) as one:
            leader = await one.leader(past=JOBS)
            if harm is not None:
                one.sql(harm)
            if name == "long":
                leader.step_by_step()
            answer = await leader.take(*CLAIMS, to=at(5))
            assert isinstance(answer, Taken)
            answers.append(answer)
            left.append(rows(one))
    assert left[0] == left[1]
    return answers[0], answers[1]


async def test_the_short_way_leaves_and_answers_what_the_long_one_does(tmp_path: Path) -> None:
    short, long = await short_and_long(tmp_path)
    assert short == long
    assert short.attempts == {claim.run_id: 1 for claim in CLAIMS}


@pytest.mark.parametrize(
    "pause",
    [
        "paused_until = '2026-03-01T13:00:00.000000Z'",
        "paused_from = '2026-03-01T11:00:00.000000Z', paused_until = '2026-03-01T12:00:00.000000Z'",
        "paused_from = '2026-03-01T12:00:01.000000Z', paused_until = '2026-03-01T12:00:01.500000Z'",
    ],
)
async def test_a_paused_job_is_skipped_and_the_others_run(tmp_path: Path, pause: str) -> None:
    harm = f"UPDATE cron_leader_job SET {pause} WHERE job = 'job-001'"
    short, long = await short_and_long(tmp_path, harm)
    assert short == long
    assert len(short.attempts) == (len(CLAIMS) if "12:00:00" in pause else len(CLAIMS) - 1)


async def test_a_claim_sent_again_is_answered_as_the_first_was(tmp_path: Path) -> None:
    async with lab(tmp_path) as one:
        leader = await one.leader(past=JOBS)
        first, left = await leader.take(*CLAIMS, to=at(5)), rows(one)
        assert (await leader.take(*CLAIMS, to=at(5)), rows(one)) == (first, left)
        more = Claim(slot(9, "job-000"), "more")
        mixed = await leader.take(CLAIMS[0], more, to=at(9))
        assert mixed == Taken({CLAIMS[0].run_id: 1, "more": 1})


async def test_a_slot_that_another_run_has_is_not_won(tmp_path: Path) -> None:
    async with lab(tmp_path) as one:
        leader = await one.leader(past=JOBS)
        await leader.take(CLAIMS[0])
        answer = await leader.take(Claim(CLAIMS[0].slot, "other"), CLAIMS[1])
        assert answer == Taken({CLAIMS[1].run_id: 1})


async def test_a_deposed_leader_is_refused_either_way(tmp_path: Path) -> None:
    async with lab(tmp_path) as one:
        old = await one.leader("a", JOBS)
        await old.take(*CLAIMS[:2])
        new = await one.leader("b", JOBS)
        left = rows(one)
        refused = Refused("claim", new.fence)
        assert await old.take(*CLAIMS[2:]) == refused
        ends = await asyncio.gather(*(old.finish(claim) for claim in CLAIMS[:2]))
        assert ends == [Refused("finish", new.fence)] * 2
        assert rows(one) == left


# ------------------------------------------------------------------ ends of runs


class Counted:
    """How often SQLite's transactions were begun."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.transactions = 0
        whole = sqlite.transaction

        def counted(*args: Any, **kwargs: Any) -> Any:
            self.transactions += 1
            return whole(*args, **kwargs)

        patch.setattr(sqlite, "transaction", counted)


async def ended(leader: Leader, claims: tuple[Claim, ...]) -> list[Applied | Refused]:
    return await asyncio.gather(*(leader.finish(claim) for claim in claims))


async def test_runs_that_end_together_share_transactions_of_a_bounded_size(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with lab(tmp_path) as one:
        leader = await one.leader(past=JOBS)
        await leader.take(*CLAIMS)
        counted = Counted(monkeypatch)
        assert await ended(leader, CLAIMS) == [Applied()] * len(CLAIMS)
        assert counted.transactions == -(-len(CLAIMS) // sqlite.TOGETHER)
        assert set(one.states().values()) == {"succeeded"}
        assert await leader.finish(CLAIMS[0]) == Applied()
        assert counted.transactions == 3


async def test_each_of_them_has_an_answer_of_its_own(tmp_path: Path) -> None:
    async with lab(tmp_path) as one:
        leader = await one.leader(past=JOBS)
        await leader.take(*CLAIMS[:2])
        stranger = Claim(CLAIMS[1].slot, "stranger")
        found = await ended(leader, (CLAIMS[0], stranger, CLAIMS[1]))
        assert found == [Applied(), Applied(changed=False), Applied()]


async def test_what_fails_one_of_them_fails_all_and_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with lab(tmp_path) as one:
        leader = await one.leader(past=JOBS)
        await leader.take(*CLAIMS[:3])
        left, whole = rows(one), sqlite.execute

        def fails(connection: sqlite3.Connection, step: Any) -> Any:
            if step.params.get("run_id") == CLAIMS[1].run_id:
                raise ZeroDivisionError
            return whole(connection, step)

        with monkeypatch.context() as patched:
            patched.setattr(sqlite, "execute", fails)
            ends = [leader.ledger.finish(leader.term, finish(claim)) for claim in CLAIMS[:3]]
            found = await asyncio.gather(*ends, return_exceptions=True)
        assert [type(error) for error in found] == [ZeroDivisionError] * 3
        assert rows(one) == left
        assert await ended(leader, CLAIMS[:3]) == [Applied()] * 3
