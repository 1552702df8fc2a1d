"""Inline jobs: a thousand due each second beside APScheduler, and one beside a bare timer.

Late is the time from a slot to the first statement of its function, by the wall clock, in the
process that runs it. The node writes its events to a file: nobody works beside it to read them.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import signal
import sqlite3
import subprocess
import sys
import time
from array import array
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from datetime import timedelta
from pathlib import Path

import psycopg

from bench.figures import Figure, Skipped, median, p99
from bench.setups import Place, write_config
from cron_leader.clock import SystemClock, WallTimer
from cron_leader.errors import CronLeaderError

JOBS = 1_000
WARM_UP_S = 2
"""Not counted, of either scheduler: caches fill, and the first batch of a term is its first."""

PATIENCE_S = 30.0
STOP_S = 10.0

_RUN = "import sys; from cron_leader.cli import main; sys.exit(main())"

_MARKS = '''
import time
from array import array
from pathlib import Path

late, file = array("d"), Path(__file__).with_name("late")

def note(tick):
    """Seconds since the slot, kept until there are so many: a file is not opened for each."""
    late.append(time.time() - tick.scheduled_for.timestamp())
    if len(late) >= {every}:
        with file.open("ab") as stream:
            late.tofile(stream)
        del late[:]

async def inline(tick):
    note(tick)

def process(tick):
    note(tick)
'''

_APSCHEDULER = """
import asyncio, sys, time
from array import array
from datetime import UTC, datetime, timedelta
from apscheduler.schedulers.asyncio import AsyncIOScheduler

jobs, seconds = map(int, sys.argv[1:])
late = array("d")
first = datetime.now(UTC).replace(microsecond=0) + timedelta(seconds=2)

async def work(since):
    now = time.time()  # each run is less than a second late, or the figure is beyond all bounds
    late.append((now - since) % 1)

async def main():
    scheduler = AsyncIOScheduler(timezone=UTC)
    for number in range(jobs):
        scheduler.add_job(work, "interval", seconds=1, start_date=first, args=[first.timestamp()],
            id=str(number), misfire_grace_time=None)
    scheduler.start()
    while len(late) < jobs * seconds:
        await asyncio.sleep(0.1)
    late.tofile(sys.stdout.buffer)

asyncio.run(main())
"""


def marks(folder: Path, *, every: int) -> Path:
    """A module `marks` of functions that note how late they are; the file of what they noted."""
    folder.joinpath("marks.py").write_text(_MARKS.replace("{every}", str(every)))
    return folder / "late"


@contextlib.asynccontextmanager
async def node(place: Place) -> AsyncIterator[Path]:
    """One node of the configuration at `place`; the file of its events. Ended with the block."""
    events = place.folder / "events.jsonl"
    with events.open("wb") as stream:
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-c", _RUN, "run"),
            *("--config", str(place.config), "--node-id", "a", "--log-format", "json"),
            stdin=asyncio.subprocess.DEVNULL,
            stdout=stream,
            cwd=place.folder,
            start_new_session=True,
        )
    try:
        yield events
    finally:
        with contextlib.suppress(ProcessLookupError):
            process.send_signal(signal.SIGTERM)
        try:
            await asyncio.wait_for(process.wait(), STOP_S)
        except TimeoutError:
            process.kill()
            await process.wait()


async def noted(file: Path, count: int, *, within_s: float) -> list[float]:
    """So many marks, in ms; waits for them. Raises CronLeaderError."""
    until = time.monotonic() + within_s
    while len(found := _read(file)) < count:
        if time.monotonic() > until:
            raise CronLeaderError(f"{len(found)} of {count} runs in {within_s:g} s")
        await asyncio.sleep(0.2)
    return found[:count]


def _read(file: Path) -> list[float]:
    return _ms(file.read_bytes()) if file.exists() else []


def _ms(raw: bytes) -> list[float]:
    found = array("d")
    found.frombytes(raw)
    return [1e3 * late for late in found]


# ------------------------------------------------------------------ a thousand each second


async def crowd(place: Place, seconds: int) -> Sequence[Figure | Skipped]:
    """A ledger row a slot and one a run here; none there. Skipped where the machine does not keep
    up: then there is no lateness to speak of."""
    late = marks(place.folder, every=JOBS)
    table = (
        '[[job]]\nname = "job-{}"\nevery = "1s"\npython = "marks:inline"\nisolation = "inline"\n'
    )
    head = f"[run]\nmax_parallel = {2 * JOBS}\n"
    write_config(place, [head, *(table.format(number) for number in range(JOBS))])
    counted, warm_up = JOBS * seconds, JOBS * WARM_UP_S
    name = f"{JOBS:,} inline jobs a second"
    try:
        async with node(place):
            ours = await noted(late, counted + warm_up, within_s=2 * seconds + PATIENCE_S)
        theirs = await asyncio.to_thread(_apscheduler, seconds + WARM_UP_S)
    except (CronLeaderError, subprocess.TimeoutExpired) as error:
        return [Skipped(name, str(error).rpartition("'")[2].strip())]
    ours, theirs = ours[warm_up:], theirs[warm_up:]
    beside = f"median {median(ours):.1f} ms; APScheduler: {median(theirs):.1f}, {p99(theirs):.1f}"
    ratio = p99(ours) / p99(theirs)
    return [
        Figure(f"{name}, late (p99)", p99(ours), 25, "ms", counted, beside),
        Figure(f"{name}, by APScheduler's", ratio, 0.5, "x", counted, "without a ledger"),
    ]


def _apscheduler(seconds: int) -> list[float]:
    command = [sys.executable, "-c", _APSCHEDULER, str(JOBS), str(seconds)]
    ran = subprocess.run(command, check=True, capture_output=True, timeout=4 * seconds + PATIENCE_S)
    return _ms(ran.stdout)


# ------------------------------------------------------------------ one each second


Insert = Callable[[int], Awaitable[object]]


async def boundary(
    place: Place, seconds: int, *, name: str, targets: tuple[float, float]
) -> list[Figure]:
    """Of a second to its run's first statement, the claim between the two. Half a second off and
    beside it: a bare timer, and one row that is inserted and committed when it fires."""
    late = marks(place.folder, every=1)
    job = '[[job]]\nname = "beat"\nevery = "1s"\npython = "marks:inline"\nisolation = "inline"\n'
    write_config(place, [job])
    timer: list[float] = []
    committed: list[float] = []
    async with node(place):
        await noted(late, WARM_UP_S, within_s=PATIENCE_S)
        async with _bare_insert(place) as insert:
            beside = asyncio.ensure_future(_bare(timer, committed, insert))
            found = await noted(late, WARM_UP_S + seconds, within_s=seconds + PATIENCE_S)
            beside.cancel()
            await asyncio.gather(beside, return_exceptions=True)
    ours = found[WARM_UP_S:]
    what = f'every = "1s" inline, claimed, {name}, late'
    bare = f"a bare timer: {median(timer):.2f}; and a bare INSERT: {median(committed):.2f}"
    bare_p99 = f"{p99(timer):.2f}; {p99(committed):.2f}"
    return [
        Figure(f"{what} (median)", median(ours), targets[0], "ms", seconds, bare),
        Figure(f"{what} (p99)", p99(ours), targets[1], "ms", seconds, bare_p99),
    ]


async def _bare(timer: list[float], committed: list[float], insert: Insert) -> None:
    """How late, in ms, the wall timer alone is, and a commit by then, until cancelled."""
    fired, clock = asyncio.Event(), SystemClock()
    wall_timer = WallTimer(asyncio.get_running_loop(), fired.set, lambda: None)
    try:
        while True:
            at = clock.wall().replace(microsecond=500_000)
            wall_timer.set(at := at if at > clock.wall() else at + timedelta(seconds=1))
            await fired.wait()
            timer.append((clock.wall() - at) / timedelta(milliseconds=1))
            await insert(len(timer))
            committed.append((clock.wall() - at) / timedelta(milliseconds=1))
            fired.clear()
    finally:
        wall_timer.close()


@contextlib.asynccontextmanager
async def _bare_insert(place: Place) -> AsyncIterator[Insert]:
    """Commits a row of one number to a table of its own in the ledger's database."""
    if not place.ledger.startswith("sqlite"):
        async with await psycopg.AsyncConnection.connect(place.ledger, autocommit=True) as server:
            await server.execute("CREATE TABLE bare (number integer)")
            yield lambda number: server.execute("INSERT INTO bare VALUES (%s)", (number,))
        return
    file = place.folder / place.ledger.removeprefix("sqlite:///")
    with contextlib.closing(sqlite3.connect(file, isolation_level=None)) as bare:
        bare.execute("PRAGMA synchronous = FULL")
        bare.execute("CREATE TABLE bare (number)")
        _grow_wal(bare)

        async def insert(number: int) -> None:
            bare.execute("INSERT INTO bare VALUES (?)", (number,))

        yield insert


def _grow_wal(connection: sqlite3.Connection) -> None:
    """To the size it has after a node's first minutes, and then keeps: while it grows, each commit
    costs the file system one of its own."""
    connection.execute("INSERT INTO bare VALUES (zeroblob(8000000))")
    connection.execute("DELETE FROM bare")


# ------------------------------------------------------------------ in processes of their own


async def starts(place: Place, seconds: int) -> list[Figure]:
    """A python job's slot to the first statement of its function, and a command's to its exec."""
    late = marks(place.folder, every=1)
    python = '[[job]]\nname = "python"\nevery = "1s"\npython = "marks:process"\n'
    command = '[[job]]\nname = "command"\nevery = "1s"\nanchor = 2026-01-01T00:00:00.5Z\n'
    write_config(place, [python, command, 'command = ["true"]\n'])
    async with node(place) as events:
        found = await noted(late, WARM_UP_S + seconds, within_s=seconds + PATIENCE_S)
    entered = found[WARM_UP_S:]
    execed = _started(events, "command")[WARM_UP_S:]
    return [
        Figure("python job, slot -> its function (median)", median(entered), 5, "ms", seconds),
        Figure("command, slot -> exec (median)", median(execed), 5, "ms", len(execed)),
    ]


def _started(events: Path, job: str) -> list[float]:
    """late_ms of the job's runs, as their node told them."""
    lines = map(json.loads, events.read_text(encoding="utf-8").splitlines())
    told = (line for line in lines if line["event"] == "run.started" and line["job"] == job)
    return [line["late_ms"] for line in told]
