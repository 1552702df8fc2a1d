"""What etcd and the ledger say of the fleet, asked on connections of its own and with deadlines.

Not on the daemon's: those serve the election. The ledger's reader blocks, so it works aside.
"""

from __future__ import annotations

import asyncio
import json
from datetime import UTC, datetime
from typing import TypeVar

from cron_leader.clock import Clock
from cron_leader.config import Config
from cron_leader.errors import CronLeaderError, EtcdUnavailable, LedgerUncertain
from cron_leader.etcd.channel import Etcd
from cron_leader.etcd.survey import Survey, survey
from cron_leader.ledger.views import open_reader
from cron_leader.status import LedgerView, facts_of, read_ledger
from cron_leader.web.aside import Single, aside

T = TypeVar("T")

ANSWER_S = 3.0
"""For etcd, and for the ledger, at the same time."""


class Lookout:
    """Must be made inside the event loop it is used in."""

    def __init__(self, config: Config, *, clock: Clock) -> None:
        self._config, self._clock = config, clock
        self._etcd = Etcd(config.etcd, clock=clock, emit=_silent)
        self._ledger = Single(lambda: aside(self._ledger_or_error))
        self._status = Single(self._ask)

    async def status(self) -> bytes:
        """What `status --json` prints. Never raises for a service that does not answer."""
        return await self._status.get(within_s=10 * ANSWER_S)

    async def vacant_s(self, fence: int, opened: datetime) -> float | None:
        """How long before `opened` the term before that of `fence` had ended; None: not known.

        A crashed term has ended with its last heartbeat, so this is good to a second.
        """
        try:
            return await aside(lambda: self._vacant_s(fence, opened))
        except CronLeaderError:
            return None

    async def aclose(self) -> None:
        self._status.cancel()
        self._ledger.cancel()
        await self._etcd.aclose()

    # ------------------------------------------------------------------ the two services

    async def _ask(self) -> bytes:
        etcd, ledger = await asyncio.gather(self._ask_etcd(), self._ask_ledger())
        return await aside(lambda: self._page(etcd, ledger))

    async def _ask_etcd(self) -> Survey | CronLeaderError:
        config = self._config
        try:
            async with asyncio.timeout(ANSWER_S):
                return await survey(self._etcd, config.prefix, config.fleet, shard=0)
        except TimeoutError:
            return EtcdUnavailable(f"etcd: no answer within {ANSWER_S:g} s")
        except CronLeaderError as error:
            return error

    async def _ask_ledger(self) -> LedgerView | CronLeaderError:
        try:
            return await self._ledger.get(within_s=ANSWER_S)
        except TimeoutError:
            return LedgerUncertain(f"ledger: no answer within {ANSWER_S:g} s")

    # ------------------------------------------------------------------ aside

    def _page(self, etcd: Survey | CronLeaderError, ledger: LedgerView | CronLeaderError) -> bytes:
        """Aside as well: the next times of many jobs take a while."""
        facts = facts_of(self._config, _known(etcd), _known(ledger), self._clock.wall())
        errors = [str(said) for said in (etcd, ledger) if isinstance(said, CronLeaderError)]
        return json.dumps({**facts, "errors": errors}, indent=2, default=_encode).encode()

    def _ledger_or_error(self) -> LedgerView | CronLeaderError:
        """The error as a value: it may come when nobody waits for it any more."""
        try:
            with open_reader(self._config.ledger.url) as reader:
                return read_ledger(reader, self._config.election)
        except CronLeaderError as error:
            return error

    def _vacant_s(self, fence: int, opened: datetime) -> float | None:
        with open_reader(self._config.ledger.url) as reader:
            terms = reader.terms(self._config.election, limit=2)
        if len(terms) < 2 or terms[0].fence != fence:
            return None
        ended = terms[1].ended_at or terms[1].heartbeat_at
        return (opened - ended).total_seconds()


def _known(said: T | CronLeaderError) -> T | None:
    return None if isinstance(said, CronLeaderError) else said


def _encode(value: object) -> str:
    if isinstance(value, datetime):
        return value.astimezone(UTC).replace(tzinfo=None).isoformat() + "Z"
    raise TypeError(f"{type(value).__name__} is no JSON")


def _silent(event: str, **fields: object) -> None:
    """The daemon tells of outages; a page that was asked for says its own errors."""
