"""Fleets of real node processes on a real etcd, with a ledger to look into."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from cron_leader.clock import SystemClock
from cron_leader.config import EtcdConfig
from cron_leader.demo.fleet import Fleet, Line
from cron_leader.etcd.channel import Etcd
from cron_leader.etcd.survey import Survey, survey
from cron_leader.ledger.views import AttemptRow, SlotRow, open_reader
from tests.etcd_kit import Emitted, Hand

SOON_S = 20.0
"""For what must come; never a pause."""

_numbers = itertools.count(1)

BEAT = """
[[job]]
name = "beat"
every = "1s"
command = ["true"]
"""


@dataclass
class Town:
    """A fleet, the file it runs on, its etcd and its ledger. access: as in EtcdConfig."""

    fleet: Fleet
    name: str
    config: Path
    endpoints: tuple[str, ...]
    ledger: str
    access: Mapping[str, str] = field(default_factory=dict)

    # ---------------------------------------------------------------- the nodes

    async def lead(self, node: str, *, since: datetime | None = None) -> Line:
        """Start a node and wait until it leads: its gate.opened."""
        since = since or now()
        await self.fleet.start(node)
        return await self.says("gate.opened", node=node, since=since)

    async def follow(self, node: str) -> Line:
        """Start a node and wait until it has a lease and stands in line."""
        since = now()
        await self.fleet.start(node)
        granted = await self.says("lease.granted", node=node, since=since)
        await self._in_line(node)
        return granted

    async def _in_line(self, node: str) -> None:
        """Until the key of the node's newest lease is there: a lease is granted before that."""
        async with self.client() as etcd, asyncio.timeout(SOON_S):
            while True:
                granted = self.fleet.timeline.last("lease.granted", node=node)
                seen = await survey(etcd, "/cron-leader", self.name, 0)
                leases = {f"{candidate.lease:016x}" for candidate in seen.candidates}
                if granted is not None and granted.fields["lease"] in leases:
                    return
                await asyncio.sleep(0.02)

    async def freeze(self, node: str) -> datetime:
        """Freeze its whole tree; not while it holds SQLite's write lock."""
        path = self.ledger.removeprefix("sqlite:///")
        if path == self.ledger:
            return self.fleet.freeze(node)
        return await self.fleet.freeze_between_writes(node, Path(path))

    async def says(
        self, event: str, *, since: datetime, within_s: float = SOON_S, **fields: object
    ) -> Line:
        return await self.fleet.timeline.first(event, since=since, within_s=within_s, **fields)

    # ---------------------------------------------------------------- etcd

    @contextlib.asynccontextmanager
    async def client(self) -> AsyncIterator[Etcd]:
        config = EtcdConfig(self.endpoints, **self.access)
        etcd = Etcd(config, clock=SystemClock(), emit=Emitted())
        try:
            yield etcd
        finally:
            await etcd.aclose()

    @contextlib.asynccontextmanager
    async def hand(self) -> AsyncIterator[Hand]:
        async with self.client() as etcd:
            yield Hand(etcd)

    async def survey(self) -> Survey:
        async with self.client() as etcd:
            return await survey(etcd, "/cron-leader", self.name, 0)

    async def keys(self) -> list[bytes]:
        """The keys in line, the leader's first."""
        prefix = f"/cron-leader/{self.name}/elections/0/"
        return [f"{prefix}{c.lease:016x}".encode() for c in (await self.survey()).candidates]

    async def line_of(self, count: int) -> list[bytes]:
        """The keys, once that many stand in line."""
        async with asyncio.timeout(SOON_S):
            while len(keys := await self.keys()) < count:  # noqa: ASYNC110
                await asyncio.sleep(0.02)
        return keys

    # ---------------------------------------------------------------- the ledger

    def slots(self, job: str | None = None) -> list[SlotRow]:
        """Oldest first."""
        with open_reader(self.ledger) as reader:
            return list(reversed(reader.slots(job=job)))

    def unexplained(self, job: str) -> set[datetime]:
        """Of a job that is due each second: slots between its first and its last row that have
        neither a row nor a gap row."""
        rows = {row.scheduled_for for row in self.slots(job)}
        with open_reader(self.ledger) as reader:
            gaps = [(gap.first, gap.last) for gap in reader.gaps()]
        first, last = min(rows), max(rows)
        seconds = range(int((last - first).total_seconds()) + 1)
        every = {first + timedelta(seconds=second) for second in seconds}
        return {at for at in every - rows if not any(a <= at <= b for a, b in gaps)}

    def attempts(self, job: str | None = None) -> list[AttemptRow]:
        with open_reader(self.ledger) as reader:
            return list(reversed(reader.attempts(job=job)))


@contextlib.asynccontextmanager
async def town(
    folder: Path,
    *endpoints: str,
    access: Mapping[str, str] | None = None,
    jobs: str = BEAT,
    ttl: str = "2s",
    ledger: str = "sqlite:///ledger.db",
    more: str = "",
) -> AsyncIterator[Town]:
    """A fresh fleet on an etcd; nothing is started yet, everything has ended afterwards.

    access: what [etcd] has beside endpoints.
    """
    access = access or {}
    name = f"town{next(_numbers)}"
    etcd = "".join(f'{key} = "{value}"\n' for key, value in access.items())
    config = folder / f"{name}.toml"
    config.write_text(
        f'[fleet]\nname = "{name}"\n[lease]\nttl = "{ttl}"\n'
        f"[etcd]\nendpoints = {json.dumps(endpoints)}\n{etcd}"
        f'[ledger]\nurl = "{ledger}"\n{more}\n{jobs}'
    )
    url = ledger.replace("sqlite:///", f"sqlite:///{folder}/")
    async with Fleet(config) as fleet:
        yield Town(fleet, name, config, endpoints, url, access)


def now() -> datetime:
    return datetime.now(UTC)


async def until(what: str, holds: Callable[[], bool]) -> None:
    """Wait until holds() is true: for what no event tells."""
    try:
        async with asyncio.timeout(SOON_S):
            while not holds():  # noqa: ASYNC110
                await asyncio.sleep(0.02)
    except TimeoutError:
        pytest.fail(f"not within {SOON_S:g} s: {what}")
