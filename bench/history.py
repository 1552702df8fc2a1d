"""Big ledgers: looking back, retention beside claims, and taking over after an hour of nobody."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from datetime import UTC, datetime, timedelta
from functools import partial
from itertools import count
from typing import TypeVar

from bench.figures import Figure, median
from bench.setups import Place
from cron_leader.cli.state import history_facts
from cron_leader.cli.why import facts_of, look_into
from cron_leader.clock import SystemClock
from cron_leader.config import load
from cron_leader.core.model import (
    Batch,
    Candidate,
    Claim,
    Job,
    JobRecord,
    Refused,
    Settlement,
    ShellSpec,
    SlotKey,
    State,
    Term,
)
from cron_leader.core.schedule import Cron
from cron_leader.core.slices import Slices
from cron_leader.core.takeover import settling
from cron_leader.ledger import Ledger, open_ledger
from cron_leader.ledger.sql import Dialect, translate
from cron_leader.ledger.views import Reader, Wanted, open_reader
from cron_leader.upkeep import Policy, Upkeep

T = TypeVar("T")

JOBS = 1000
"""In the big ledger; each has a slot a minute."""

MINUTE = timedelta(minutes=1)

_NUMBERS = {
    "postgresql": "generate_series(0, {rows} - 1) AS s(n)",
    "sqlite": "(WITH RECURSIVE s(n) AS (SELECT 0 UNION ALL SELECT n + 1 FROM s "
    "WHERE n < {rows} - 1) SELECT n FROM s) AS s",
}
_TIME = {
    "postgresql": "timestamptz '{first}Z' + (n / {jobs}) * interval '1 minute'",
    "sqlite": "strftime('%Y-%m-%dT%H:%M:%S.000000Z', '{first}', '+' || (n / {jobs}) || ' minutes')",
}
_FILL = """
INSERT INTO cron_leader_slot (job, scheduled_for, command_id, election, fence, node, state, reason,
    origin, attempt, run_id, started_at, finished_at)
SELECT 'job-' || (n % {jobs}), at, '', 'bench/0', 1, 'a',
    CASE WHEN n % 5000 = 0 THEN 'failed' ELSE 'succeeded' END, NULL, 'schedule', 1,
    'run-' || n, at, at
FROM (SELECT n, {time} AS at FROM {numbers}) AS made
"""


_INDEXES = """
SELECT indexdef FROM pg_indexes
WHERE tablename = 'cron_leader_slot' AND indexname <> 'cron_leader_slot_pkey'
"""
_BARE = (
    """DO $$ DECLARE name text; BEGIN
    ALTER TABLE cron_leader_slot DROP CONSTRAINT cron_leader_slot_pkey;
    FOR name IN SELECT indexname FROM pg_indexes WHERE tablename = 'cron_leader_slot' LOOP
        EXECUTE 'DROP INDEX ' || name;
    END LOOP;
END $$""",
    "SET maintenance_work_mem = '256MB'",
)
_AS_BEFORE = (
    "ALTER TABLE cron_leader_slot ADD PRIMARY KEY (job, scheduled_for, command_id)",
    "VACUUM ANALYZE",
    "CHECKPOINT",
)
"""Filled without its indexes, which are made at once when it is full: ten million rows take some
minutes instead of half an hour. What is left to be written then is not to be measured."""


class Ledgerful:
    """A ledger of `rows` slots, the newest of this minute, and the leader of it."""

    def __init__(self, ledger: Ledger, reader: Reader, url: str, rows: int) -> None:
        self.ledger, self.reader, self.rows = ledger, reader, rows
        self.kind = url.partition(":")[0]
        self.newest = datetime.now(UTC).replace(second=0, microsecond=0)
        self.first = self.newest - (rows // JOBS - 1) * MINUTE
        self.term = Term("bench/0", 2, "nonce", "b", 1, datetime.now(UTC))

    def fill(self) -> None:
        first = self.first.replace(tzinfo=None).isoformat()
        text = _FILL.format(
            jobs=JOBS,
            numbers=_NUMBERS[self.kind].format(rows=self.rows),
            time=_TIME[self.kind].format(first=first, jobs=JOBS),
        )
        dialect, run = self.reader._database.dialect, self.reader._database.run
        if dialect is Dialect.SQLITE:
            run(text, {})
            run("ANALYZE", {})
            return
        indexes = [str(row["indexdef"]) for row in run(_INDEXES, {})]
        for statement in (*_BARE, translate(dialect, text), *indexes, *_AS_BEFORE):
            run(statement, {})

    async def lead(self) -> None:
        candidate = Candidate("bench/0", "nonce", "b", 1, 2, 1)
        await self.ledger.raise_fence(candidate, datetime.now(UTC), waiting=lambda: None)
        jobs = tuple(
            JobRecord(f"job-{n}", self.first - MINUTE, self.first - MINUTE, "digest")
            for n in range(JOBS)
        )
        now = self.newest
        answer = await self.ledger.settle(
            self.term, Settlement(now, now, jobs, (), (), (), frozenset())
        )
        assert not isinstance(answer, Refused)

    async def claim(self, number: int) -> float:
        """ms of one claim."""
        slot = SlotKey("claimed", self.newest + timedelta(milliseconds=number))
        claim = Claim(slot, f"c{number}")
        batch = Batch((claim,), (), slot.scheduled_for, slot.scheduled_for)
        return await _timed(self.ledger.take(self.term, batch))


@contextlib.asynccontextmanager
async def _ledgerful(url: str, rows: int) -> AsyncIterator[Ledgerful]:
    ledger = open_ledger(url)
    try:
        await ledger.open(fleet="bench", shards=1, migrate=True)
        with open_reader(url) as reader:
            full = Ledgerful(ledger, reader, url, rows)
            full.fill()
            await full.lead()
            yield full
    finally:
        await ledger.close()


async def _timed(work: Awaitable[object]) -> float:
    began = time.perf_counter()
    answer = await work
    assert not isinstance(answer, Refused)
    return (time.perf_counter() - began) * 1e3


# ------------------------------------------------------------------ looking back, and retention

_CONFIG = """
[fleet]
name = "bench"
[[job]]
name = "job-7"
cron = "* * * * *"
shell = ":"
"""


async def big(place: Place, rows: int, *, name: str) -> list[Figure]:
    """`history` and `why`, and then retention of a tenth while claims go on."""
    place.config.write_text(_CONFIG)
    async with _ledgerful(place.ledger, rows) as full:
        looks = _looks(place, full, name)
        return [*looks, *await _retention(full, rows, name)]


def _looks(place: Place, full: Ledgerful, name: str) -> list[Figure]:
    wants = {
        "history": Wanted(),
        "history of a job": Wanted(job="job-7"),
        "history, failed": Wanted(states=(State.FAILED,)),
        "history, cancelled": Wanted(states=(State.CANCELLED,)),
        "history of a node": Wanted(node="a"),
        "history of a term": Wanted(fence=1),
        "history, long ago": Wanted(until=full.first + MINUTE),
    }
    config = load(place.config, environ={})
    took: dict[str, float] = {}
    for filters, wanted in wants.items():
        took[filters] = _slowest(partial(history_facts, full.reader, wanted, 20))
    middle = full.first + (full.newest - full.first) // MINUTE // 2 * MINUTE
    now = datetime.now(UTC)
    took["why"] = _slowest(
        lambda: facts_of(look_into(full.reader, config, config.jobs[0], "job-7", middle, now))
    )
    slowest = max(took, key=took.__getitem__)
    what = f"{full.rows:,} slots, {name}"
    return [
        Figure(f"history, {what}", took["history"], 100, "ms", 3),
        Figure(f"why, {what}", took["why"], 100, "ms", 3),
        Figure(f"slowest filter, {what}", took[slowest], 100, "ms", 3, slowest),
    ]


def _slowest(look: Callable[[], object]) -> float:
    """ms, the slowest of three: the first one fills the caches."""
    samples = []
    for _ in range(3):
        began = time.perf_counter()
        look()
        samples.append((time.perf_counter() - began) * 1e3)
    return max(samples)


async def _retention(full: Ledgerful, rows: int, name: str) -> list[Figure]:
    """Claims while a tenth is deleted: a while beside it, a while without, so that whatever else
    the machine does meets both."""
    going = rows // 10
    turns = _Turns(full, going)
    deleting = asyncio.ensure_future(turns.run())
    took: dict[bool, list[float]] = {True: [], False: []}
    for number in count():
        beside = turns.on
        took[beside].append(await full.claim(number))
        await asyncio.sleep(0.005)
        if deleting.done() and len(took[False]) >= len(took[True]):
            break
    rate = going / await deleting
    alone, beside_it = took[False], took[True]
    said = f"alone {max(alone):.1f} ms (median {median(alone):.1f}); {rate:,.0f} rows/s"
    title = f"a claim beside retention of {going:,} rows, {name} (max)"
    return [Figure(title, max(beside_it), max(alone) + 50, "ms", len(beside_it), said)]


class _Turns:
    """Retention of the oldest rows, a while on, a while off."""

    WHILE_S = 1.0

    def __init__(self, full: Ledgerful, going: int) -> None:
        self.on = False
        age = datetime.now(UTC) - (full.first + going // JOBS * MINUTE)
        self._upkeep = Upkeep(
            full.ledger,
            Policy(age, 0),
            leading=lambda: full.term if self.on else None,
            clock=SystemClock(),
            emit=_silent,
        )

    async def run(self) -> float:
        """Until nothing is left; the seconds it was on."""
        spent_s = 0.0
        while True:
            self.on, began = True, time.perf_counter()
            round_ = asyncio.ensure_future(self._upkeep.round())
            await asyncio.wait({round_}, timeout=self.WHILE_S)
            self.on = False
            done = await round_
            spent_s += time.perf_counter() - began
            if done:
                return spent_s
            await asyncio.sleep(self.WHILE_S)


def _silent(event: str, **fields: object) -> None:
    """Nothing is told."""


# ------------------------------------------------------------------ taking over


async def takeover(ledger: str, size: int, *, name: str) -> list[Figure]:
    """An hour without a leader: to read, decide and write what became of every job's slots."""
    opened, jobs = open_ledger(ledger), _jobs(size)
    now = datetime.now(UTC)
    try:
        await opened.open(fleet="bench", shards=1, migrate=True)
        await _succeed(opened, 1, jobs, now - timedelta(hours=1))
        began = time.perf_counter()
        lags: list[float] = []
        looking = asyncio.ensure_future(_watch_loop(lags))
        decided = await _succeed(opened, 2, jobs, now)
        took = (time.perf_counter() - began) * 1e3
        looking.cancel()
    finally:
        await opened.close()
    beside = f"deciding {decided:.0f} ms; loop late by {max(lags):.0f} ms at most"
    return [Figure(f"an hour's gap of {size:,} jobs, {name}", took, 10_000, "ms", 1, beside)]


def _jobs(size: int) -> dict[str, Job]:
    """Some a minute, some an hour, some a day, as fleets have them: sixty schedules."""
    kinds = [Cron("* * * * *"), *(Cron(f"{m} * * * *") for m in range(1, 40))]
    kinds += [Cron(f"30 {hour} * * *", "Europe/Warsaw") for hour in range(20)]
    names = (f"job-{n}" for n in range(size))
    return {name: Job(name, kinds[n % 60], ShellSpec(":")) for n, name in enumerate(names)}


async def _succeed(ledger: Ledger, fence: int, jobs: dict[str, Job], now: datetime) -> float:
    """Raise, read the past, settle it; ms of deciding."""
    candidate = Candidate("bench/0", f"nonce-{fence}", "a", 1, fence, 1)
    term = Term("bench/0", fence, candidate.nonce, "a", 1, now)
    await ledger.raise_fence(candidate, now, waiting=lambda: None)
    past = await ledger.read_past(term)
    began = time.perf_counter()
    settlement = await _sliced(settling(jobs, past, now))
    decided = (time.perf_counter() - began) * 1e3
    assert not isinstance(await ledger.settle(term, settlement), Refused)
    return decided


async def _sliced(work: Slices[T]) -> T:
    """As a node does it: its loop comes round between two slices."""
    results: list[T] = []

    def kept() -> Slices[None]:
        results.append((yield from work))

    for _ in kept():
        await asyncio.sleep(0)
    return results[0]


async def _watch_loop(lags: list[float]) -> None:
    """How late, in ms, the event loop comes round."""
    while True:
        began = time.perf_counter()
        await asyncio.sleep(0.01)
        lags.append((time.perf_counter() - began) * 1e3 - 10)
