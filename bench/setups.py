"""A fleet to measure: embedded etcd, a ledger, one configuration file."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from cron_leader.demo.fleet import Fleet

TTL_S = 3

_HEAD = """\
[fleet]
name = "{name}"
[lease]
ttl = "{ttl}s"
[etcd]
endpoints = ["{endpoint}"]
[ledger]
url = "{ledger}"
"""

EVERY_SECOND = """
[[job]]
name = "second"
every = "1s"
shell = "true"
"""

EVERY_MINUTE = """
[[job]]
name = "minute"
cron = "* * * * *"
shell = "true"
"""

BUSY = """
[[job]]
name = "busy"
every = "200ms"
shell = "sleep 0.1"
[[job]]
name = "long"
every = "1s"
shell = "exec sleep 20"
"""
"""The 100 ms job of the figure, and one that is never over by itself when its node wakes."""


@dataclass(frozen=True, slots=True)
class Place:
    """Where a fleet lives. name: of the fleet, one for each ledger; folder: of its file."""

    name: str
    folder: Path
    endpoint: str
    ledger: str

    @property
    def config(self) -> Path:
        return self.folder / "cron-leader.toml"


def write_config(place: Place, jobs: Sequence[str], *, ttl_s: int = TTL_S) -> None:
    """The configuration of a fleet at `place` with these tables."""
    head = _HEAD.format(name=place.name, ttl=ttl_s, endpoint=place.endpoint, ledger=place.ledger)
    place.config.write_text(head + "".join(jobs))


@asynccontextmanager
async def fleet(place: Place, jobs: Sequence[str], *, ttl_s: int = TTL_S) -> AsyncIterator[Fleet]:
    """A fleet with these jobs and no node yet."""
    write_config(place, jobs, ttl_s=ttl_s)
    async with Fleet(place.config) as running:
        yield running
