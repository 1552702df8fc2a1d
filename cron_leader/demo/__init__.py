"""`cron-leader demo`: the promise kept, on this machine, in under a minute.

A real etcd, a SQLite ledger in a temporary folder, three real nodes. One leads; it is asked to
stop, then killed, then frozen with a run in flight. The verdict is read off the ledger.
"""

from __future__ import annotations

import asyncio
import os
import signal
import tempfile
from collections.abc import Awaitable, Callable
from pathlib import Path

from rich.console import Console

from cron_leader.config import load
from cron_leader.demo import acts, report, verdict
from cron_leader.demo.acts import HELD_JOB, HELD_S, TTL_S, Act, Stage
from cron_leader.demo.fleet import Fleet
from cron_leader.etcd.embedded import EmbeddedEtcd

SETTLE_S = 8.0
"""For runs in flight to end before the ledger is judged."""

_CONFIG = """\
# What `cron-leader demo` runs. NODE_ID tells the nodes apart.
[fleet]
name = "demo"
[lease]
ttl = "{ttl}s"
[run]
drain = "5s"
[etcd]
endpoints = ["{endpoint}"]
[ledger]
url = "sqlite:///ledger.db"

[[job]] # leaves a mark of its own, so that a slot run twice would show
name = "tick"
every = "1s"
shell = 'echo "$CRON_LEADER_SCHEDULED_FOR" >> marks'
cwd = "."

[[job]]
name = "date"
every = "5s"
command = ["date", "-u"]

[[job]] # outlives its term, so that a deposed leader has something to write
name = "{held}"
every = "4s"
shell = "sleep {held_s}"
on_lost_leadership = "finish"
"""

_ACTS: tuple[Callable[[Stage], Awaitable[Act]], ...] = (
    acts.steady,
    acts.resignation,
    acts.crash,
    acts.freeze,
)


async def main(*, keep: bool = False, console: Console | None = None) -> int:
    """Play the acts and judge; 0 only if everything holds. keep: stay up until Ctrl-C."""
    out = console or Console(highlight=False)
    loop = asyncio.get_running_loop()  # SIGTERM ends it as Ctrl-C does: what was started is stopped
    loop.add_signal_handler(signal.SIGTERM, os.kill, os.getpid(), signal.SIGINT)
    with (
        tempfile.TemporaryDirectory(prefix="cron-leader-demo-") as temporary,
        EmbeddedEtcd(Path(temporary) / "etcd") as etcd,
    ):
        folder = Path(temporary)
        config = folder / "cron-leader.toml"
        config.write_text(
            _CONFIG.format(ttl=TTL_S, endpoint=etcd.endpoint, held=HELD_JOB, held_s=HELD_S)
        )
        out.print(
            f"three nodes, an etcd and a SQLite ledger in {folder}; TTL {TTL_S} s", soft_wrap=True
        )
        async with Fleet(config) as fleet:
            holds = await _play(fleet, config, out)
            if keep:
                await _stay(out, config)
    return 0 if holds else 1


async def _play(fleet: Fleet, config: Path, out: Console) -> bool:
    ledger = config.with_name("ledger.db")
    stage = await acts.open_stage(fleet, ledger)
    played: list[Act] = []
    for number, act in enumerate(_ACTS, start=1):
        played.append(await act(stage))
        report.tell(out, number, played[-1])
    jobs = load(config, environ={}).jobs
    evidence = await _settled(ledger, config.with_name("marks"))
    report.show_slots(out, evidence, jobs)
    report.show_terms(out, evidence)
    failovers = [act.failover for act in played if act.failover is not None]
    return report.show_verdict(out, verdict.judge(evidence, jobs, failovers))


async def _settled(ledger: Path, marks: Path) -> verdict.Evidence:
    """A moment at which no run is in flight; the last one looked at, if none came."""
    loop = asyncio.get_running_loop()
    until = loop.time() + SETTLE_S
    while True:
        evidence = await asyncio.to_thread(verdict.collect, ledger, marks)
        if not verdict.unfinished(evidence) or loop.time() > until:
            return evidence
        await asyncio.sleep(0.1)


async def _stay(out: Console, config: Path) -> None:
    """Until Ctrl-C, or SIGTERM."""
    out.print(
        f"the fleet stays up: cron-leader status --config {config} (Ctrl-C ends it)",
        soft_wrap=True,
    )
    asked = asyncio.Event()
    loop = asyncio.get_running_loop()
    for sig in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(sig, asked.set)
    await asked.wait()
