"""The ledger's own costs: claims beside bare INSERTs, a raise beside 32 workers, SQLite's rate."""

from __future__ import annotations

import asyncio
import contextlib
import sqlite3
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Iterator
from datetime import UTC, datetime, timedelta

import psycopg

from bench.figures import Figure, median, ratio
from cron_leader.core.model import (
    Batch,
    Candidate,
    Claim,
    Refused,
    Settlement,
    SlotKey,
    Taken,
    Term,
)
from cron_leader.ledger import Ledger, open_ledger
from cron_leader.ledger.pg_dsn import with_defaults

ELECTION = "bench/0"
SLOTS = 1_000
WORKERS = 32
READERS = 2
RATE = 200
"""Claims a second that a leader on SQLite should manage, one commit each."""

_BARE_TABLE = "CREATE TABLE bare_slot (LIKE cron_leader_slot INCLUDING ALL)"
_BARE_HEAD = (
    "INSERT INTO bare_slot (job, scheduled_for, command_id, election, fence, node, state, origin, "
    "attempt, run_id, started_at) VALUES "
)
_BARE_ROW = "(%s, %s, '', 'bench/0', 1, 'a', 'running', 'schedule', 1, %s, %s)"

_WORKERS = """
import asyncio, logging, sys
import psycopg
from cron_leader import fencing

FENCE = "SELECT fence, nonce FROM cron_leader_fence WHERE election = 'bench/0'"

async def work(number):
    connection = await psycopg.AsyncConnection.connect(
        sys.argv[1], autocommit=True, prepare_threshold=None
    )
    guard = None
    while True:
        if guard is None:
            fence, nonce = await (await connection.execute(FENCE)).fetchone()
            guard = {"election": "bench/0", "fence": fence, "nonce": nonce}
        try:
            async with connection.pipeline():
                await connection.execute("BEGIN")
                await connection.execute("INSERT INTO work VALUES (%s)", (number,))
                await connection.execute(fencing.POSTGRES_GUARD, guard)
                await connection.execute("COMMIT")
        except psycopg.Error as error:
            if error.sqlstate != fencing.REFUSED:
                raise
            await connection.execute("ROLLBACK")
            guard = None

async def main():
    logging.getLogger("psycopg").setLevel(logging.ERROR)  # refused pipelines are what is wanted
    tasks = [asyncio.create_task(work(number)) for number in range(int(sys.argv[2]))]
    print("ready", flush=True)
    await asyncio.gather(*tasks)

asyncio.run(main())
"""
"""Fenced transactions without a pause, under whatever term stands: each raise finds them at it."""

_READER = """
import sys, time
from cron_leader.ledger.views import open_reader

with open_reader(sys.argv[1]) as reader:
    print("ready", flush=True)
    while True:
        reader.last_slots()
        reader.slots(limit=20)
        time.sleep(0.01)
"""
"""What a follower's page and `status` read, a hundred times a second."""


class _Leader:
    """A settled leader, and its claims."""

    def __init__(self, ledger: Ledger) -> None:
        self.ledger = ledger
        self.now = datetime.now(UTC)
        self._revision = 0
        self._slots = 0

    async def rise(self) -> float:
        """ms of one raise, by a newer candidate each time."""
        self._revision += 1
        candidate = Candidate(ELECTION, f"n{self._revision}", "a", 1, self._revision, 1)
        self.term = Term(ELECTION, self._revision, candidate.nonce, "a", 1, self.now)
        begun = time.perf_counter()
        answer = await self.ledger.raise_fence(candidate, self.now, waiting=lambda: None)
        assert answer == self._revision
        return 1000 * (time.perf_counter() - begun)

    async def settle(self) -> None:
        settlement = Settlement(self.now, self.now, (), (), (), (), frozenset())
        assert not isinstance(await self.ledger.settle(self.term, settlement), Refused)

    def batch(self, slots: int) -> Batch:
        """Slots of one instant; the next call's instant is later."""
        self._slots += 1
        at = self.now + timedelta(milliseconds=self._slots)
        names = (f"job-{n}" for n in range(slots))
        claims = tuple(Claim(SlotKey(job, at), f"{job}/{self._slots}") for job in names)
        return Batch(claims, (), at, at)

    async def claim(self, slots: int) -> float:
        """ms of one batch."""
        batch = self.batch(slots)
        begun = time.perf_counter()
        taken = await self.ledger.take(self.term, batch)
        spent = 1000 * (time.perf_counter() - begun)
        assert isinstance(taken, Taken)
        assert len(taken.attempts) == slots
        return spent


@contextlib.asynccontextmanager
async def _leader(url: str) -> AsyncIterator[_Leader]:
    ledger = open_ledger(url)
    try:
        await ledger.open(fleet="bench", shards=1, migrate=True)
        leader = _Leader(ledger)
        await leader.rise()
        await leader.settle()
        yield leader
    finally:
        await ledger.close()


async def claims(url: str, times: int) -> list[Figure]:
    """Ours and the bare INSERT in turn: what else the machine does meets both. The same driver with
    the same options, indexes and durability; the INSERT, too, is one round trip and commits."""
    async with _leader(url) as leader:
        bare = await psycopg.AsyncConnection.connect(
            with_defaults(url), autocommit=True, prepare_threshold=None
        )
        async with bare:
            await bare.execute(_BARE_TABLE)
            many = await _beside(leader, bare, SLOTS, 3 * times)
            one = await _beside(leader, bare, 1, 20 * times)
    return [
        _compared(f"{SLOTS:,} slots of one instant claimed", 3, *many),
        _compared("one slot claimed", 1.5, *one),
    ]


async def _beside(
    leader: _Leader, bare: psycopg.AsyncConnection, slots: int, times: int
) -> tuple[list[float], list[float]]:
    ours: list[float] = []
    theirs: list[float] = []
    for turn in range(times + 1):
        claimed = await leader.claim(slots)
        inserted = await _timed(_insert(bare, leader.batch(slots)))
        if turn:  # the first warms both connections up
            ours.append(claimed)
            theirs.append(inserted)
    return ours, theirs


async def _insert(bare: psycopg.AsyncConnection, batch: Batch) -> None:
    rows = [(c.slot.job, c.slot.scheduled_for, c.run_id, batch.now) for c in batch.claims]
    text = _BARE_HEAD + ", ".join([_BARE_ROW] * len(rows))
    await bare.execute(text.encode(), [value for row in rows for value in row])


def _compared(name: str, target: float, ours: list[float], bare: list[float]) -> Figure:
    """How many times as long as the bare INSERT of the same rows, by their medians."""
    took, least = median(ours), median(bare)
    beside = f"{took:.1f} ms beside {least:.1f} ms of a bare INSERT"
    return Figure(f"{name}, Postgres", took / least, target, "x", len(ours), beside)


async def raises(url: str, times: int) -> Figure:
    async with _leader(url) as leader:
        alone = [await leader.rise() for _ in range(times)]
        async with await psycopg.AsyncConnection.connect(url, autocommit=True) as other:
            await other.execute("CREATE TABLE work (number integer)")
        with _children(_WORKERS, [[url, str(WORKERS)]]):
            busy = []
            for _ in range(times):
                await asyncio.sleep(0.2)  # let all of them commit under the new term
                busy.append(await leader.rise())
    beside = ratio(median(busy), median(alone), "a raise alone")
    name = f"raise beside {WORKERS} workers that commit, Postgres"
    return Figure(name, median(busy), 100, "ms", len(busy), beside)


async def rate(url: str, times: int) -> Figure:
    """One slot a commit, one after the other."""
    async with _leader(url) as leader:
        file = url.removeprefix("sqlite:///")
        with contextlib.closing(sqlite3.connect(file, isolation_level=None)) as bare:
            bare.execute("PRAGMA synchronous = FULL")
            bare.execute("CREATE TABLE bare (number INTEGER)")
            with _children(_READER, [[url]] * READERS):
                spent, least = [], []
                for number in range(20 * times):
                    spent.append(await leader.claim(1))
                    begun = time.perf_counter()
                    bare.execute("INSERT INTO bare VALUES (?)", (number,))
                    least.append(1000 * (time.perf_counter() - begun))
    mean, bare_mean = sum(spent) / len(spent), sum(least) / len(least)
    name = f"one slot claimed beside {READERS} readers, SQLite"
    beside = f"{1000 / mean:.0f} claims/s; a bare INSERT there: {bare_mean:.1f} ms"
    return Figure(name, mean, 1000 / RATE, "ms", len(spent), beside)


@contextlib.contextmanager
def _children(program: str, arguments: list[list[str]]) -> Iterator[None]:
    """Processes of their own, ready; ended with the block."""
    with contextlib.ExitStack() as stack:
        for given in arguments:
            command = [sys.executable, "-c", program, *given]
            child = stack.enter_context(subprocess.Popen(command, stdout=subprocess.PIPE))
            stack.callback(child.kill)
            assert child.stdout is not None
            assert child.stdout.readline() == b"ready\n"
        yield


async def _timed(work: Awaitable[object]) -> float:
    begun = time.perf_counter()
    await work
    return 1000 * (time.perf_counter() - begun)
