"""A hundred thousand cron jobs: read from TOML, and their next slots found."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from bench.figures import Figure

JOBS = 100_000
DUE = 1_000

_PROGRAM = """
import json, resource, sys, time
from datetime import UTC, datetime, timedelta
from pathlib import Path

from cron_leader.config import load
from cron_leader.core.plan import Agenda

begun = time.monotonic()
jobs = load(Path(sys.argv[1]), environ={}).jobs
loaded_s = time.monotonic() - begun
now = datetime(2026, 1, 1, tzinfo=UTC)
agenda = Agenda(jobs, dict.fromkeys((job.name for job in jobs), now))
due, spent = 0, 0.0
while due < int(sys.argv[2]):
    now += timedelta(minutes=1)
    begun = time.monotonic()
    due += len(agenda.pop_due(now))
    spent += time.monotonic() - begun
peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
peak_mb = peak / (1 << 20 if sys.platform == "darwin" else 1 << 10)
print(json.dumps({"loaded_s": loaded_s, "peak_mb": peak_mb, "due": due, "spent_ms": 1000 * spent}))
"""


def load(folder: Path) -> list[Figure]:
    """In a process of its own: the peak of memory is one's for life."""
    path = folder / "load.toml"
    path.write_text("".join(_table(n) for n in range(JOBS)), encoding="utf-8")
    command = [sys.executable, "-c", _PROGRAM, str(path), str(DUE)]
    ran = subprocess.run(command, check=True, capture_output=True, text=True)
    said = json.loads(ran.stdout)
    per_thousand = said["spent_ms"] * 1000 / said["due"]
    return [
        Figure(f"{JOBS:,} cron jobs loaded", said["loaded_s"], 10, "s", 1),
        Figure(f"{JOBS:,} cron jobs, peak memory", said["peak_mb"], 300, "MB", 1),
        Figure("next slots of 1,000 due jobs", per_thousand, 20, "ms", said["due"]),
    ]


def _table(n: int) -> str:
    """Half of them spread by a hash, a quarter in a zone whose clock changes."""
    cron = "H H * * *" if n % 2 else f"{n % 60} {n // 60 % 24} * * *"
    zone = "" if n % 4 else 'timezone = "Europe/Warsaw"\n'
    return f'[[job]]\nname = "job-{n}"\ncron = "{cron}"\n{zone}command = ["true"]\n'
