"""Jobs as bad as they come, one after another, and what they cost the daemon that runs them.

An inline job stands watch in the daemon's own loop: how late that comes round, at most. Its memory
is looked at from outside. That no term or lease ended is read from the node's events.
"""

from __future__ import annotations

import asyncio
import json
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import psutil

from bench.figures import Figure
from bench.inline import PATIENCE_S, node
from bench.setups import Place, write_config
from cron_leader.errors import CronLeaderError

APART_S = 5
"""From one to the next; each has ended by then."""

TOUCHED = 2 << 30
"""Bytes, each page written to; a quarter of it where memory is short, and the figure says so."""

_WATCH = '''
import asyncio, os, re, time
from pathlib import Path

async def watch(tick):
    """The longest the loop has been away, in ms, written down whenever it grew."""
    longest, last = 0.0, time.perf_counter()
    while not tick.cancelled:
        await asyncio.sleep(0.005)
        now = time.perf_counter()
        if now - last - 0.005 > longest:
            longest = now - last - 0.005
            Path(__file__).with_name("lag").write_text(str(1000 * longest))
        last = now

def hold_the_gil(tick):
    re.match("(a*)*b", "a" * 40)

def allocate(tick):
    pages = bytearray({touched})
    pages[::4096] = pages[::4096]

def double_fork(tick):
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            time.sleep(20)
        os._exit(0)
'''

_HOSTILE = {
    "holds the GIL": 'python = "hostile:hold_the_gil"',
    "allocates": 'python = "hostile:allocate"',
    "writes 1 GB": 'shell = "head -c 1073741824 /dev/zero"',
    "ignores SIGTERM": """shell = "trap '' TERM; while :; do sleep 1; done\"""",
    "double-forks": 'python = "hostile:double_fork"',
    "leaves a stopped child": 'shell = "sleep 20 & kill -STOP $!"',
}
_JOB = """
[[job]]
name = "{name}"
at = {at}
timeout = "2s"
grace = "500ms"
{work}
"""
_STANDS_WATCH = """
[[job]]
name = "watch"
at = {at}
python = "hostile:watch"
isolation = "inline"
drain = "0s"
"""
_LOSSES = frozenset({"term.ended", "lease.lost", "gate.closed"})


async def hostile(place: Place) -> list[Figure]:
    """Loop lag, growth and losses over all of them."""
    touched = TOUCHED if psutil.virtual_memory().available > 2 * TOUCHED else TOUCHED // 4
    first = datetime.now(UTC).replace(microsecond=0) + timedelta(seconds=2 * APART_S)
    _configure(place, first, touched)
    last = first + timedelta(seconds=APART_S * (len(_HOSTILE) + 1))
    async with node(place) as events:
        daemon = psutil.Process((await _first(events, "node.started"))["pid"])
        await _first(events, "run.started", job="watch")
        before = most = daemon.memory_info().rss
        while datetime.now(UTC) < last:
            await asyncio.sleep(0.1)
            most = max(most, daemon.memory_info().rss)
        told = _lines(events)
    lag_ms = float((place.folder / "lag").read_text())
    lost = sum(line["event"] in _LOSSES for line in told)
    ended = {line["job"]: line["outcome"] for line in told if line["event"] == "run.finished"}
    missing = {name.replace(" ", "-") for name in _HOSTILE} - ended.keys()
    beside = f"{touched / 2**30:g} GiB touched; " + ", ".join(sorted(set(ended.values())))
    name = "hostile jobs"
    return [
        Figure(f"{name}, the daemon's loop late (max)", lag_ms, 50, "ms", len(_HOSTILE), beside),
        Figure(f"{name}, the daemon grew", (most - before) / 2**20, 20, "MB", len(_HOSTILE)),
        Figure(f"{name}, leases or terms lost", lost, 0, "times", len(_HOSTILE), safety=True),
        Figure(f"{name} that did not end", len(missing), 0, "runs", len(_HOSTILE), safety=True),
    ]


def _configure(place: Place, first: datetime, touched: int) -> None:
    place.folder.joinpath("hostile.py").write_text(_WATCH.replace("{touched}", str(touched)))
    jobs = [_STANDS_WATCH.format(at=first.isoformat())]
    for number, (name, work) in enumerate(_HOSTILE.items(), start=1):
        at = first + timedelta(seconds=number * APART_S)
        jobs.append(_JOB.format(name=name.replace(" ", "-"), at=at.isoformat(), work=work))
    write_config(place, jobs)


async def _first(events: Path, event: str, **fields: str) -> dict[str, Any]:
    """The first such line of the node, once it is there. Raises CronLeaderError."""
    wanted = {"event": event, **fields}
    until = datetime.now(UTC) + timedelta(seconds=PATIENCE_S)
    while datetime.now(UTC) < until:
        for line in _lines(events):
            if wanted.items() <= line.items():
                return line
        await asyncio.sleep(0.1)
    raise CronLeaderError(f"no {event} within {PATIENCE_S:g} s")


def _lines(events: Path) -> list[dict[str, Any]]:
    """What the node has told so far, but for a line that is being written."""
    whole = events.read_text(encoding="utf-8").rpartition("\n")[0]
    return [json.loads(line) for line in whole.splitlines()]
