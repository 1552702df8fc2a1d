"""What becomes of a leader that loses etcd both ways: `python -m chaos cuts`, as figures.

The history of a series in which a promise was broken stays in chaos/out.
"""

from __future__ import annotations

import asyncio
import json
import shutil
import sys
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

from bench.figures import GO, Figure, Skipped
from chaos.__main__ import OUT
from chaos.cuts import TALLY, Tally

SETTINGS = ((2, 500), (5, 1000))
"""TTL in seconds, etcd's election timeout in milliseconds."""


async def cuts(folder: Path, count: int) -> Sequence[Figure | Skipped]:
    """`count` cuts at each setting."""
    found: list[Figure | Skipped] = []
    for ttl_s, election_ms in SETTINGS:
        found += await _series(folder / f"ttl-{ttl_s}", count, ttl_s, election_ms)
    return found


async def _series(
    out: Path, count: int, ttl_s: int, election_ms: int
) -> Sequence[Figure | Skipped]:
    name = f"cut from etcd both ways, TTL {ttl_s} s"
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "chaos", "cuts", "--out", str(out), "--count", str(count)),
        *("--ttl", str(ttl_s), "--election-ms", str(election_ms)),
        stdout=asyncio.subprocess.DEVNULL,
        stderr=asyncio.subprocess.PIPE,
    )
    _, told = await process.communicate()
    if process.returncode == 2:
        return [Skipped(name, told.decode().strip().rpartition("\n")[2])]
    tally = Tally(**json.loads((out / TALLY).read_text(encoding="utf-8")))
    if not tally.clean:
        shutil.copytree(out, OUT / f"bench-{datetime.now(UTC):%Y%m%dT%H%M%S}-{out.name}")
    beside = f"28 of 70: {GO}"
    return [
        Figure(f"{name}: two open gates", tally.two_gates, 0, "times", tally.cuts, beside, True),
        Figure(f"{name}: stale runs", tally.stale_runs, 0, "runs", tally.cuts, safety=True),
        *(Figure(f"{name}: {text}", 1, 0, "times", 1, safety=True) for text in tally.broken),
    ]
