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
from bench.figures import GO, Figure, median, p99, ratio
from bench.line import alive, runs_below
from bench.setups import BUSY, EVERY_MINUTE, EVERY_SECOND, TTL_S, Place, fleet
from bench.waits import EVER, NODES, PATIENCE_S, both, in_line, ms, stand_by
from cron_leader.demo.fleet import Fleet, Line
from tests.etcd_kit import Proxy

WATCHED_S = 1.5
"""How long a thawed node is watched for runs it should not start."""

SETTLED_S = 5.0
"""A follower idles this long before it is measured."""

IDLE_TTL_S = 10
FROZEN_TTL_S = 5


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
            samples.append(ms(opened.at - began))
            nodes.signal("a", signal.SIGTERM)
            await nodes.ended("a")
    took = median(samples[1:])
    beside = ratio(took, bare.first_call(place.endpoint, times), "a bare grpc.aio call")
    return Figure(f"exec -> gate open, {name}", took, target_ms, "ms", times, beside)


async def handover(place: Place, times: int, *, name: str) -> list[Figure]:
    """SIGTERM to the leader until the other node's gate opens; the slots that fall into it."""
    samples: list[float] = []
    late: list[float] = []
    async with fleet(place, [EVERY_SECOND]) as nodes:
        lead = await both(nodes)
        for _ in range(times):
            asked = nodes.signal(lead.node, signal.SIGTERM)
            new = await nodes.leader(since=asked, within_s=PATIENCE_S)
            samples.append(ms(new.at - asked))
            run = await nodes.timeline.first("run.started", since=new.at, within_s=PATIENCE_S)
            runs = nodes.timeline.all("run.started")
            late += [line.fields["late_ms"] for line in runs if asked <= line.at <= run.at]
            await nodes.ended(lead.node)
            await stand_by(nodes, lead.node)
            lead = new
    beside = f"3.9 ms to elected: {GO}"
    return [
        Figure(f"SIGTERM -> successor, {name}", median(samples), 15, "ms", times, beside),
        Figure(f"slots over the handover, {name}, late (max)", max(late), 50, "ms", len(late)),
    ]


async def crash(place: Place, times: int) -> list[Figure]:
    """SIGKILL to the leader's daemon, and to its supervisor, until the other node's gate opens."""
    async with fleet(place, [EVERY_MINUTE]) as nodes:
        lead = await both(nodes)
        daemon, lead = await _kills(nodes, lead, times, nodes.kill_daemon)
        supervisor, _ = await _kills(
            nodes, lead, times, lambda name: nodes.signal(name, signal.SIGKILL)
        )
    return [
        Figure(f"SIGKILL of the {whom} -> successor ({of})", value, target, "ms", times, beside)
        for whom, samples in (("daemon", daemon), ("supervisor", supervisor))
        for of, value, target, beside in (
            ("median", median(samples), 60, f"8096 ms at TTL 10: {GO}"),
            ("max", max(samples), 200, ""),
        )
    ]


async def _kills(
    nodes: Fleet, lead: Line, times: int, kill: Callable[[str], datetime]
) -> tuple[list[float], Line]:
    """How long each took to be succeeded, in ms; and who leads in the end."""
    samples: list[float] = []
    for _ in range(times):
        killed = kill(lead.node)
        new = await nodes.leader(since=killed, within_s=PATIENCE_S)
        samples.append(ms(new.at - killed))
        await nodes.ended(lead.node)
        await stand_by(nodes, lead.node)
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
                await stand_by(nodes, "a")
                await asyncio.sleep(TTL_S / 3)  # its next renewal
                proxy.drop_replies, stopped = True, datetime.now(UTC)
                new = await nodes.leader(since=stopped, within_s=4 * PATIENCE_S)
                samples.append(ms(new.at - stopped))
                nodes.signal("a", signal.SIGTERM)
                await nodes.ended("a")
                proxy.drop_replies = False
    target = (TTL_S - TTL_S / 5 + 1) * 1e3
    beside = f"5600 ms at TTL 5: {GO}"  # and our margin is a fifth of the TTL at least
    return Figure(
        "answers of etcd lost -> successor (max)", max(samples), target, "ms", times, beside
    )


async def idle(place: Place, seconds: float, *, ledger: str) -> list[Figure]:
    """What a follower costs that only stands by, at the default TTL."""
    async with fleet(place, [EVERY_MINUTE], ttl_s=IDLE_TTL_S) as nodes:
        await both(nodes)
        started = nodes.timeline.last("node.started", node=NODES[1])
        assert started is not None
        daemon = psutil.Process(started.fields["pid"])
        supervisor = psutil.Process(started.fields["supervisor_pid"])
        await asyncio.sleep(SETTLED_S)
        before = _cpu_s(daemon, supervisor)
        await asyncio.sleep(seconds)
        busy = 100 * (_cpu_s(daemon, supervisor) - before) / seconds
        small, whole = _rss_mb(supervisor), _rss_mb(supervisor, daemon)
    count = round(seconds)
    beside = f"of one core; 0.05 %: {GO}"
    return [
        Figure("supervisor, memory", small, 12, "MB", 1),
        Figure(f"idle follower, {ledger}, memory", whole, 70, "MB", 1, f"11 MB: {GO}"),
        Figure(f"idle follower, {ledger}, CPU", busy, 0.25, "%", count, beside),
    ]


def _cpu_s(*processes: psutil.Process) -> float:
    return float(sum(sum(process.cpu_times()[:2]) for process in processes))


def _rss_mb(*processes: psutil.Process) -> float:
    return float(sum(process.memory_info().rss for process in processes)) / 2**20


async def frozen(place: Place, times: int, *, told: Callable[[int], None]) -> list[Figure]:
    """The leader's tree frozen 1.5 TTL and thawed: runs it starts, runs that live; the failover."""
    late, left, caught = 0, 0, 0
    samples: list[float] = []
    async with fleet(place, [BUSY], ttl_s=FROZEN_TTL_S) as nodes:
        lead = await both(nodes)
        await asyncio.sleep(1.5)
        for done in range(times):
            stood = await nodes.freeze_between_writes(lead.node, place.folder / "ledger.db")
            started = nodes.timeline.last("node.started", node=lead.node)
            assert started is not None
            runs = runs_below(started.fields["supervisor_pid"], started.fields["pid"])
            caught += len(runs)
            new = await nodes.leader(since=stood, within_s=PATIENCE_S)
            samples.append(ms(new.at - stood))
            over = stood + timedelta(seconds=1.5 * FROZEN_TTL_S)
            await asyncio.sleep(max(0.0, (over - datetime.now(UTC)).total_seconds()))
            thawed = nodes.thaw(lead.node)
            await asyncio.sleep(0.1)
            left += alive(runs)
            await asyncio.sleep(WATCHED_S)
            begun = nodes.timeline.all("run.started", node=lead.node, fence=lead.fields["fence"])
            late += sum(line.at >= thawed for line in begun)
            await in_line(nodes, lead.node, since=thawed)
            lead = new
            told(done + 1)
    beside = f"38 of 50: {GO}"
    target = (FROZEN_TTL_S + 1) * 1e3
    return [
        Figure("runs started by a thawed old leader", late, 0, "runs", times, beside, safety=True),
        Figure("runs alive 100 ms after the thaw", left, 0, "runs", caught, safety=True),
        Figure("freeze -> successor", median(samples), target, "ms", times),
    ]


async def alignment(place: Place, minutes: float) -> list[Figure]:
    """How late slots start, before a failover and after it."""
    async with fleet(place, [EVERY_SECOND, EVERY_MINUTE]) as nodes:
        lead = await both(nodes)
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
