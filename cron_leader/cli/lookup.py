"""What etcd and the ledger say of a fleet, each asked for itself: one may be out of reach."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from cron_leader.clock import SystemClock
from cron_leader.config import Config
from cron_leader.errors import CronLeaderError, LedgerUncertain
from cron_leader.ledger.views import Reader, open_reader
from cron_leader.status import LedgerView, read_ledger

if TYPE_CHECKING:
    from cron_leader.etcd.survey import Survey


@dataclass(frozen=True, slots=True)
class Found:
    """None where there is an error instead."""

    etcd: Survey | None
    ledger: LedgerView | None
    errors: tuple[CronLeaderError, ...]


def look(config: Config) -> Found:
    """Ask both; never raises for one that does not answer."""
    import asyncio

    errors: list[CronLeaderError] = []
    etcd: Survey | None = None
    ledger: LedgerView | None = None
    try:
        etcd = asyncio.run(_survey(config))
    except CronLeaderError as error:
        errors.append(error)
    try:
        ledger = _read_ledger(config)
    except CronLeaderError as error:
        errors.append(error)
    return Found(etcd, ledger, tuple(errors))


def reader_of(config: Config) -> Reader:
    """Open the ledger for reading. Raises LedgerUncertain, LedgerUnusable."""
    url = config.ledger.url
    file = Path(url.removeprefix("sqlite:///"))
    if url.startswith("sqlite:///") and file.parent.is_dir() and not file.exists():
        raise LedgerUncertain(
            f"ledger {file}: not there yet; the first node makes it "
            "(`cron-leader run`), or `cron-leader db migrate`"
        )
    return open_reader(url)


async def _survey(config: Config) -> Survey:
    # gRPC is slow to load, and a wrong `etcd3` package is refused here: in this command's words.
    from cron_leader.etcd.channel import Etcd
    from cron_leader.etcd.survey import survey

    etcd = Etcd(config.etcd, clock=SystemClock(), emit=_silent)
    try:
        return await survey(etcd, config.prefix, config.fleet, shard=0)
    finally:
        await etcd.aclose()


def _silent(event: str, **fields: object) -> None:
    """A one-shot command says errors in its own words."""


def _read_ledger(config: Config) -> LedgerView:
    with reader_of(config) as reader:
        return read_ledger(reader, config.election)
