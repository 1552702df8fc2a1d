"""The measurements, one function a figure (or a pair of them)."""

from __future__ import annotations

import asyncio
import signal
import sys
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path

from bench import bare
from bench.figures import Figure, median, p99, ratio
from bench.setups import EVERY_MINUTE, EVERY_SECOND, TTL_S, Place, fleet
from cron_leader.demo.fleet import Fleet, Line

PATIENCE_S = 15.0
WATCHED_S = 1.5
"""How long a thawed node is watched for runs it should not start."""

NODES = ("a", "b")


def version(times: int) -> Figure:
    """`cron-leader --version`, spawn to exit."""
    script = Path(sys.executable).with_name("cron-leader")
    took = bare.command([str(script), "--version"], times)
    beside = ratio(took, bare.interpreter(times), "python -c pass")
    return Figure("cron-leader --version", took, 120, "ms", times, beside)


async def start(place: Place, times: int, *, name: str, target_ms: float) -> Figure:
    """Exec of `cron-leader run` to its gate opening, alone in a fleet that has run before."""
    samples: list[float] = []
    async with fleet(place, [EVERY_MINUTE]) as nodes:
        for _ in range(times + 1):  # the first makes the ledger, and does not count
            began = datetime.now(UTC)
            await nodes.start("a")
            opened = await nodes.leader(since=began, within_s=PATIENCE_S)
            samples.append(_ms(opened.at - began))
            nodes.signal("a", signal.SIGTERM)
            await nodes.ended("a")
    took = median(samples[1:])
    beside = ratio(took, bare.first_call(place.endpoint, times), "a bare grpc.aio call")
    return Figure(f"exec -> gate open, {name}", took, target_ms, "ms", times, beside)


async def handover(place: Place, times: int) -> Figure:
    """SIGTERM to the leader until the other node's gate opens."""
    samples: list[float] = []
    async with fleet(place, [EVERY_MINUTE]) as nodes:
        lead = await _both(nodes)
        for _ in range(times):
            asked = nodes.signal(lead.node, signal.SIGTERM)
            new = await nodes.leader(since=asked, within_s=PATIENCE_S)
            samples.append(_ms(new.at - asked))
            await nodes.ended(lead.node)
            await _stand_by(nodes, lead.node)
            lead = new
    return Figure("SIGTERM -> successor's gate open", median(samples), 30, "ms", times)


async def crash(place: Place, times: int) -> Figure:
    """SIGKILL to the leader's daemon until the other node's gate opens."""
    samples: list[float] = []
    async with fleet(place, [EVERY_MINUTE]) as nodes:
        lead = await _both(nodes)
        for _ in range(times):
            killed = nodes.kill_daemon(lead.node)
            new = await nodes.leader(since=killed, within_s=PATIENCE_S)
            samples.append(_ms(new.at - killed))
            await nodes.ended(lead.node)
            await _stand_by(nodes, lead.node)
            lead = new
    return Figure("SIGKILL of the daemon -> successor", median(samples), 300, "ms", times)


async def frozen(place: Place, times: int, *, told: Callable[[int], None]) -> tuple[Figure, Figure]:
    """The leader's tree frozen past its TTL and thawed: runs it starts once awake; the failover."""
    late, samples = 0, list[float]()
    async with fleet(place, [EVERY_SECOND]) as nodes:
        lead = await _both(nodes)
        for done in range(times):
            stood = nodes.freeze(lead.node)
            new = await nodes.leader(since=stood, within_s=PATIENCE_S)
            samples.append(_ms(new.at - stood))
            thawed = nodes.thaw(lead.node)
            await asyncio.sleep(WATCHED_S)
            runs = nodes.timeline.all("run.started", node=lead.node, fence=lead.fields["fence"])
            late += sum(line.at >= thawed for line in runs)
            await _in_line(nodes, lead.node, since=thawed)
            lead = new
            told(done + 1)
    return (
        Figure("runs started by a thawed old leader", late, 0, "runs", times, safety=True),
        Figure("freeze -> successor", median(samples), (TTL_S + 1) * 1e3, "ms", times),
    )


async def alignment(place: Place, minutes: float) -> list[Figure]:
    """How late slots start, before a failover and after it."""
    async with fleet(place, [EVERY_SECOND, EVERY_MINUTE]) as nodes:
        lead = await _both(nodes)
        await asyncio.sleep(minutes * 60)
        asked = nodes.signal(lead.node, signal.SIGTERM)
        new = await nodes.leader(since=asked, within_s=PATIENCE_S)
        await asyncio.sleep(minutes * 60)
        return [
            _lateness(nodes, job, text, line)
            for line in (lead, new)
            for job, text in (("second", 'every = "1s"'), ("minute", "* * * * *"))
        ]


def _lateness(nodes: Fleet, job: str, text: str, lead: Line) -> Figure:
    fence = lead.fields["fence"]
    late = [
        line.fields["late_ms"] for line in nodes.timeline.all("run.started", job=job, fence=fence)
    ]
    name = f"late, {text}, leader {lead.node} (p99)"
    return Figure(name, p99(late), 20, "ms", len(late), f"median {median(late):.1f} ms")


# ---------------------------------------------------------------------- two nodes, one in line


async def _both(nodes: Fleet) -> Line:
    """Both nodes up; the gate.opened event of the one that leads."""
    since = datetime.now(UTC)
    await nodes.start(NODES[0])
    lead = await nodes.leader(since=since, within_s=PATIENCE_S)
    await _stand_by(nodes, NODES[1])
    return lead


async def _stand_by(nodes: Fleet, name: str) -> None:
    started = await nodes.start(name)
    await _in_line(nodes, name, since=started.at)


async def _in_line(nodes: Fleet, name: str, *, since: datetime) -> None:
    """Until the node has its lease; a moment more, for its key to be written."""
    await nodes.timeline.first("lease.granted", node=name, since=since, within_s=PATIENCE_S)
    await asyncio.sleep(0.3)


def _ms(delta: timedelta) -> float:
    return delta.total_seconds() * 1e3
