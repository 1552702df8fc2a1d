"""The measurements, one function a figure (or a pair of them)."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path

import psutil

from bench import bare
from bench.figures import Figure, median, p99, ratio
from bench.setups import EVERY_MINUTE, EVERY_SECOND, TTL_S, Place, fleet
from cron_leader.demo.fleet import Fleet, Line
from tests.etcd_kit import Proxy

PATIENCE_S = 15.0
WATCHED_S = 1.5
"""How long a thawed node is watched for runs it should not start."""

SETTLED_S = 5.0
"""A follower idles this long before it is measured."""

IDLE_TTL_S = 10

NODES = ("a", "b")
EVER = datetime.min.replace(tzinfo=UTC)


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


async def crash(place: Place, times: int) -> list[Figure]:
    """SIGKILL to the leader's daemon, and to its supervisor, until the other node's gate opens."""
    async with fleet(place, [EVERY_MINUTE]) as nodes:
        lead = await _both(nodes)
        daemon, lead = await _kills(nodes, lead, times, nodes.kill_daemon)
        supervisor, _ = await _kills(
            nodes, lead, times, lambda name: nodes.signal(name, signal.SIGKILL)
        )
    return [
        Figure(f"SIGKILL of the {whom} -> successor ({of})", value, target, "ms", times)
        for whom, samples in (("daemon", daemon), ("supervisor", supervisor))
        for of, value, target in (("median", median(samples), 60), ("max", max(samples), 200))
    ]


async def _kills(
    nodes: Fleet, lead: Line, times: int, kill: Callable[[str], datetime]
) -> tuple[list[float], Line]:
    """How long each took to be succeeded, in ms; and who leads in the end."""
    samples: list[float] = []
    for _ in range(times):
        killed = kill(lead.node)
        new = await nodes.leader(since=killed, within_s=PATIENCE_S)
        samples.append(_ms(new.at - killed))
        await nodes.ended(lead.node)
        await _stand_by(nodes, lead.node)
        lead = new
    return samples, lead


async def one_way(place: Place, times: int) -> Figure:
    """A leader's requests reach etcd, answers stop: until the other node's gate opens."""
    samples: list[float] = []
    async with Proxy(place.endpoint) as proxy, fleet(place, [EVERY_MINUTE]) as nodes:
        environ = {**os.environ, "CRON_LEADER_ETCD_ENDPOINTS": proxy.endpoint}
        for _ in range(times):
            async with Fleet(place.config, environ=environ) as deaf:
                await deaf.start("deaf")
                await deaf.leader(since=EVER, within_s=PATIENCE_S)
                await _stand_by(nodes, "a")
                await asyncio.sleep(TTL_S / 3)  # its next renewal
                proxy.drop_replies, stopped = True, datetime.now(UTC)
                new = await nodes.leader(since=stopped, within_s=4 * PATIENCE_S)
                samples.append(_ms(new.at - stopped))
                nodes.signal("a", signal.SIGTERM)
                await nodes.ended("a")
                proxy.drop_replies = False
    target = (TTL_S - TTL_S / 5 + 1) * 1e3  # the margin is a fifth of the TTL at least
    return Figure("answers of etcd lost -> successor (max)", max(samples), target, "ms", times)


async def idle(place: Place, seconds: float, *, ledger: str) -> list[Figure]:
    """What a follower costs that only stands by, at the default TTL."""
    async with fleet(place, [EVERY_MINUTE], ttl_s=IDLE_TTL_S) as nodes:
        await _both(nodes)
        started = nodes.timeline.last("node.started", node=NODES[1])
        assert started is not None
        daemon = psutil.Process(started.fields["pid"])
        supervisor = psutil.Process(started.fields["supervisor_pid"])
        await asyncio.sleep(SETTLED_S)
        before = _cpu_s(daemon, supervisor)
        await asyncio.sleep(seconds)
        busy = 100 * (_cpu_s(daemon, supervisor) - before) / seconds
        small, both = _rss_mb(supervisor), _rss_mb(supervisor, daemon)
    count = round(seconds)
    return [
        Figure("supervisor, memory", small, 12, "MB", 1),
        Figure(f"idle follower, {ledger}, memory", both, 70, "MB", 1, "supervisor + daemon"),
        Figure(f"idle follower, {ledger}, CPU", busy, 0.25, "%", count, "of one core"),
    ]


def _cpu_s(*processes: psutil.Process) -> float:
    return float(sum(sum(process.cpu_times()[:2]) for process in processes))


def _rss_mb(*processes: psutil.Process) -> float:
    return float(sum(process.memory_info().rss for process in processes)) / 2**20


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
