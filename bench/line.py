"""What standing in line costs, and what it must never do: crashes, freezes, crowds."""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import secrets
import signal
import urllib.request
from pathlib import Path

from bench.figures import GO, Figure, median
from bench.setups import EVERY_MINUTE, Place, fleet
from bench.waits import EVER, PATIENCE_S, both, in_line, ms, stand_by
from cron_leader.core.messages import WatchOpened
from cron_leader.demo.fleet import Fleet
from cron_leader.demo.processes import tree
from tests import etcd_kit

IDLE_TTL_S = 10
CROWD_TTL_S = 60
"""So long that no renewal falls into what is counted."""

FROZEN_TTL_S = 2
_RECEIVED = re.compile(r"^grpc_server_msg_received_total\{.*\} (\S+)$", re.MULTILINE)


async def next_dies_too(place: Place, times: int) -> list[Figure]:
    """SIGTERM to the leader, SIGKILL to the daemon of the next: until the third's gate opens."""
    samples: list[float] = []
    async with fleet(place, [EVERY_MINUTE]) as nodes:
        await both(nodes)
        await stand_by(nodes, "c")
        lead, following, third = "a", "b", "c"
        for _ in range(times):
            asked = nodes.signal(lead, signal.SIGTERM)
            nodes.kill_daemon(following)
            opened = await nodes.timeline.first(
                "gate.opened", node=third, since=asked, within_s=PATIENCE_S
            )
            samples.append(ms(opened.at - asked))
            for name in (lead, following):
                await nodes.ended(name)
                await stand_by(nodes, name)
            lead, following, third = third, lead, following
    name = "SIGTERM, next in line killed -> successor"
    beside = f"4452 ms: {GO}"
    return [
        Figure(f"{name} (median)", median(samples), 300, "ms", times, beside),
        Figure(f"{name} (max)", max(samples), 300, "ms", times),
    ]


async def phantoms(place: Place, times: int) -> Figure:
    """A follower sleeps past its TTL, then the leader leaves: wins with the lease that is gone."""
    won = 0
    async with fleet(place, [EVERY_MINUTE], ttl_s=FROZEN_TTL_S) as nodes:
        await both(nodes)
        lead, following = "a", "b"
        for _ in range(times):
            granted = nodes.timeline.last("lease.granted", node=following)
            assert granted is not None
            nodes.freeze(following)
            await asyncio.sleep(FROZEN_TTL_S + 2)  # etcd takes up to a second more to expire it
            nodes.signal(lead, signal.SIGTERM)
            await nodes.ended(lead)
            thawed = nodes.thaw(following)
            await nodes.timeline.first(
                "gate.opened", node=following, since=thawed, within_s=PATIENCE_S
            )
            lease = granted.fields["lease"]
            elected = nodes.timeline.all("term.elected", node=following, lease=lease)
            won += sum(line.at >= thawed for line in elected)
            await stand_by(nodes, lead)
            lead, following = following, lead
    beside = f"8 of 8: {GO}"
    return Figure("phantom elections", won, 0, "times", times, beside, safety=True)


async def requests(place: Place, seconds: float) -> Figure:
    """What an idle follower sends: it has a member of etcd to itself, which counts."""
    with etcd_kit.cluster(place.folder / "etcd") as members:
        apart = Place(place.name, place.folder, members[0].endpoint, place.ledger)
        environ = {**os.environ, "CRON_LEADER_ETCD_ENDPOINTS": members[1].endpoint}
        async with fleet(apart, [EVERY_MINUTE], ttl_s=IDLE_TTL_S) as nodes:
            await nodes.start("a")
            await nodes.leader(since=EVER, within_s=PATIENCE_S)
            async with Fleet(apart.config, environ=environ) as following:
                started = await following.start("b")
                await in_line(following, "b", since=started.at)
                await asyncio.sleep(IDLE_TTL_S / 2)
                before = await asyncio.to_thread(_received, members[1].endpoint)
                await asyncio.sleep(seconds)
                sent = await asyncio.to_thread(_received, members[1].endpoint) - before
    each = sent / (seconds / (IDLE_TTL_S / 3))
    name = "idle follower, requests to etcd per TTL/3"
    return Figure(name, each, 2, "", round(sent), f"1: {GO}")


def _received(endpoint: str) -> float:
    """Messages a member had from its clients, calls and streams alike."""
    with urllib.request.urlopen(f"http://{endpoint}/metrics", timeout=5) as page:
        return sum(map(float, _RECEIVED.findall(page.read().decode())))


async def crowd(place: Place, size: int) -> Figure:
    """One of many candidates resigns: how many others ask etcd anything, within a second."""
    async with etcd_kit.fleet_of(place.endpoint, ttl_s=CROWD_TTL_S) as town:
        town.name = f"crowd-{secrets.token_hex(4)}"
        hand = etcd_kit.Hand(town.client())
        counting: list[etcd_kit.CountingEtcd] = []
        for i in range(size):
            node = town.join(f"n{i}", kind=etcd_kit.CountingEtcd)
            assert isinstance(node.etcd, etcd_kit.CountingEtcd)
            counting.append(node.etcd)
            await hand.until_there(etcd_kit.place_of(node))
        await town.nodes[0].until(WatchOpened)
        await asyncio.sleep(2)
        asked = [len(etcd.asked) for etcd in counting]
        await town.nodes[0].leave()
        await town.nodes[1].until(WatchOpened)
        await asyncio.sleep(1)
        woken = sum(len(etcd.asked) > n for etcd, n in zip(counting[1:], asked[1:], strict=True))
    return Figure(f"{size} candidates, woken by one resign", woken, 1, "", size, f"1: {GO}")


def runs_below(supervisor: int, daemon: int) -> list[int]:
    """Processes of runs: whatever else a node's tree has is an interpreter of ours."""
    return [pid for pid in tree(supervisor) if pid not in (supervisor, daemon) and _foreign(pid)]


def _foreign(pid: int) -> bool:
    with contextlib.suppress(OSError):
        return b"python" not in Path(f"/proc/{pid}/cmdline").read_bytes()
    return False


def alive(pids: list[int]) -> int:
    """How many have not ended (a zombie has)."""
    found = 0
    for pid in pids:
        with contextlib.suppress(OSError):
            stat = Path(f"/proc/{pid}/stat").read_text()
            found += stat.rpartition(")")[2].split()[0] not in "ZX"
    return found
