"""Two nodes, one in line behind the other; and what is waited for."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta

from cron_leader.demo.fleet import Fleet, Line

PATIENCE_S = 15.0
NODES = ("a", "b")
EVER = datetime.min.replace(tzinfo=UTC)


async def both(nodes: Fleet) -> Line:
    """Both nodes up; the gate.opened event of the one that leads."""
    since = datetime.now(UTC)
    await nodes.start(NODES[0])
    lead = await nodes.leader(since=since, within_s=PATIENCE_S)
    await stand_by(nodes, NODES[1])
    return lead


async def stand_by(nodes: Fleet, name: str) -> None:
    started = await nodes.start(name)
    await in_line(nodes, name, since=started.at)


async def in_line(nodes: Fleet, name: str, *, since: datetime) -> None:
    """Until the node has its lease; a moment more, for its key to be written."""
    await nodes.timeline.first("lease.granted", node=name, since=since, within_s=PATIENCE_S)
    await asyncio.sleep(0.3)


def ms(delta: timedelta) -> float:
    return delta.total_seconds() * 1e3
