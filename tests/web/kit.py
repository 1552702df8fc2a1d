"""Nodes that serve, and a client of plain urllib to ask them."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import urllib.error
import urllib.request
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass
from typing import Any

from prometheus_client.parser import text_string_to_metric_families

from cron_leader.core.gate import CloseReason, Gate
from cron_leader.core.standing import Phase
from cron_leader.daemon import Snapshot
from cron_leader.demo.fleet import Fleet, Line
from cron_leader.etcd.embedded import Ports
from tests.kit import SOON_S, Town, now

S = 1_000_000_000

_opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
"""Whatever proxy the environment names is not for loopback."""


@dataclass(frozen=True, slots=True)
class Answer:
    status: int
    headers: Mapping[str, str]
    text: str

    @property
    def json(self) -> Any:
        return json.loads(self.text)


def ask(url: str, body: bytes | None = None, **headers: str) -> Answer:
    """GET, or POST of a body."""
    request = urllib.request.Request(url, body, headers)
    try:
        with _opener.open(request, timeout=15) as reply:
            return Answer(reply.status, dict(reply.headers), reply.read().decode())
    except urllib.error.HTTPError as refused:
        with refused:
            return Answer(refused.code, dict(refused.headers), refused.read().decode())


def numbers(page: str) -> dict[str, float]:
    """The samples of a metrics page: `name{label=value}` -> number, without the common prefix."""
    return {
        sample.name.removeprefix("cron_leader_") + _labels(sample.labels): sample.value
        for family in text_string_to_metric_families(page)
        for sample in family.samples
    }


def _labels(labels: Mapping[str, str]) -> str:
    inner = ",".join(f"{name}={value}" for name, value in labels.items())
    return f"{{{inner}}}" if inner else ""


def snapshot(
    phase: Phase | None = Phase.LEADING,
    *,
    fence: int | None = 7,
    gate: Gate | None = None,
    boot_ns: int = 100 * S,
) -> Snapshot:
    """A leader's with an open gate and 3 s of lease left, unless said otherwise."""
    gate = gate or Gate(deadline_ns=boot_ns + 3 * S, watching=True, raised=True, settled=True)
    closed = gate.closed(boot_ns) if phase is Phase.LEADING else CloseReason.NOT_RAISED
    return Snapshot(phase, fence, gate, closed, boot_ns)


@dataclass(slots=True)
class Served:
    """One node, and the address it serves on."""

    town: Town
    name: str
    fleet: Fleet
    port: int

    async def get(self, path: str, **headers: str) -> Answer:
        return await asyncio.to_thread(ask, f"http://127.0.0.1:{self.port}{path}", **headers)

    async def until(self, path: str, holds: Callable[[Answer], bool]) -> Answer:
        """The first answer of which this holds: for what no event tells."""
        async with asyncio.timeout(SOON_S):
            while True:
                with contextlib.suppress(urllib.error.URLError):
                    if holds(answer := await self.get(path)):
                        return answer
                await asyncio.sleep(0.05)

    async def becomes(self, path: str, status: int) -> Answer:
        return await self.until(path, lambda answer: answer.status == status)

    async def metrics(self) -> dict[str, float]:
        return numbers((await self.get("/metrics")).text)

    async def counts(self, name: str) -> dict[str, float]:
        """The metrics once this one is not 0."""
        page = await self.until("/metrics", lambda answer: numbers(answer.text)[name] != 0)
        return numbers(page.text)

    async def start(self, event: str) -> Line:
        """Start the node and wait for this event."""
        since = now()
        await self.fleet.start(self.name)
        return await self.fleet.timeline.first(event, since=since, within_s=SOON_S)


@contextlib.asynccontextmanager
async def served(town: Town, name: str, *, host: str = "127.0.0.1") -> AsyncIterator[Served]:
    """A node of the town that serves; not started yet, ended afterwards."""
    port = Ports.draw().client
    clean = {k: v for k, v in os.environ.items() if not k.startswith("CRON_LEADER_")}
    environ = clean | {"CRON_LEADER_HTTP_LISTEN": f"{host}:{port}"}
    async with Fleet(town.config, environ=environ) as fleet:
        yield Served(town, name, fleet, port)
