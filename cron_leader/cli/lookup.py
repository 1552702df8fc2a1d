"""What etcd and the ledger say of a fleet, each asked for itself: one may be out of reach."""

from __future__ import annotations

from contextlib import ExitStack
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
    """Open the ledger for reading. Raises LedgerUncertain (also for one that nobody has made yet,
    on either database), LedgerUnusable."""
    url = config.ledger.url
    file = Path(url.removeprefix("sqlite:///"))
    if url.startswith("sqlite:///") and file.parent.is_dir() and not file.exists():
        raise _not_there(str(file), config)
    with ExitStack() as stack:
        reader = stack.enter_context(open_reader(url))
        if not reader.is_made():
            raise _not_there(reader.where, config)
        stack.pop_all()
        return reader


def _not_there(where: str, config: Config) -> LedgerUncertain:
    first = "the first node makes it (`cron-leader run`), or " if config.ledger.migrate else "run "
    return LedgerUncertain(f"ledger {where}: not there yet; {first}`cron-leader db migrate`")


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
