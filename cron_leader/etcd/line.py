"""The line of candidates: getting in, waiting for one's turn, the last check before leading.

Every decision rests on a linearizable read; a watch only says when to read again. A candidate waits
on the one just ahead of it, so that a departure wakes one node and not all. Source: the election
recipe of etcd's client, without its gap: it never looks at its own key again after waiting, so a
candidate frozen beyond its TTL leads with a key that is gone.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from cron_leader.clock import Clock
from cron_leader.core.model import Mark
from cron_leader.errors import EtcdRefused, EtcdUnavailable
from cron_leader.etcd import history, requests
from cron_leader.etcd.channel import Etcd
from cron_leader.etcd.codes import LeaseNotFound, StaleToken
from cron_leader.etcd.keys import Seat, nodes_prefix
from cron_leader.etcd.lease import NS
from cron_leader.etcd.survey import NodeInfo, node_of
from cron_leader.etcd.watch import KeyWatch, Patience, WatchEnded

PUT_TRIES = 3
"""Sends of the txn that puts the own key, before etcd counts as unreachable."""
PAUSE_S = 0.25
"""Between tries of a read while waiting in line."""


ReadMark = Callable[[], Awaitable[Mark | None]]
"""Reads the ledger's fence."""


class OutOfLine(Exception):
    """The candidacy cannot go on. reason: as in JoinFailed."""

    def __init__(self, reason: str, text: str, *, permanent: bool = False) -> None:
        super().__init__(text)
        self.reason = reason
        self.permanent = permanent


@dataclass(frozen=True, slots=True)
class Place:
    """A place in line. revision: of the own key; nodes: of the fleet, ourselves among them."""

    revision: int
    nodes: tuple[NodeInfo, ...]


@dataclass(frozen=True, slots=True)
class Won:
    """The last check found nobody ahead. revision: of the own key; read_at: the store's when it was
    read; least: the fence etcd remembers, the last one raised, for nobody is ahead any more;
    known: as in history.known."""

    revision: int
    read_at: int
    cluster: int
    least: int = 0
    known: datetime | None = None


@dataclass(frozen=True, slots=True)
class Behind:
    """The last check found somebody. key: the one just ahead; read_at: as in Won."""

    key: bytes
    read_at: int


class Line:
    """One candidate's way through the line of one election."""

    def __init__(self, etcd: Etcd, seat: Seat, *, clock: Clock) -> None:
        self._etcd = etcd
        self._seat = seat
        self._clock = clock
        self._timeout_s = seat.renew_ns / 2 / NS
        self._patience = Patience.of(seat.ttl_ns, self._timeout_s)

    async def check_ledger(self, read_mark: ReadMark) -> None:
        """Refuse to get in line with a ledger other than the fleet's, or when etcd's history and
        the ledger's are not of one piece; raises as Etcd.call and read_mark do."""
        record = await self._call("KV/Range", requests.get(self._seat.raised_key))
        mark = await read_mark()
        reply = await self._call("KV/Range", requests.get(self._seat.ledger_key))
        self._compare_ledger(reply.kvs)
        least = history.remembered(record.kvs, self._seat)
        if text := history.mismatch(mark, reply.header, least, self._seat):
            raise OutOfLine("history", text, permanent=True)

    async def get_in(self, started_at: datetime) -> Place:
        """Put the own key, and what we are; who else is there.

        Sent again as it is while the outcome is unknown: if an earlier copy was applied, the txn
        reads the key back, and it counts only with our own nonce in it.
        """
        seat = self._seat
        value = seat.place_value(started_at)
        nodes = requests.read_prefix(nodes_prefix(seat.prefix, seat.fleet))
        request = requests.when(
            [requests.created_at(seat.place_key, 0)],
            [
                requests.put(seat.place_key, value, lease=seat.lease),
                requests.put(seat.node_key, seat.node_value(), lease=seat.lease),
                nodes,
            ],
            [requests.read(seat.place_key), nodes],
        )
        reply = await self._insist(request)
        fleet = tuple(node_of(kv) for kv in reply.responses[-1].response_range.kvs)
        if reply.succeeded:
            return Place(int(reply.header.revision), fleet)
        (found,) = reply.responses[0].response_range.kvs
        if found.value != value or found.lease != seat.lease:
            raise OutOfLine(
                "refused", f"the key {seat.place_key.decode()} belongs to somebody else"
            )
        return Place(int(found.create_revision), fleet)

    async def win(self, revision: int) -> tuple[Won, KeyWatch | None]:
        """Wait until nobody is ahead of the key we put at `revision`.

        With it comes the watch that was waited on, if it lives: it has followed the own key since
        before the last check, and is the caller's to leave. Opening another takes milliseconds.
        """
        watch: KeyWatch | None = None
        try:
            while True:
                found = await self.last_check(revision)
                if watch is not None and (isinstance(found, Behind) or not watch.alive):
                    await watch.aclose()
                    watch = None
                if isinstance(found, Won):
                    return found, watch
                watch = await self._wait(found)
        except BaseException:
            if watch is not None:
                await watch.aclose()
            raise

    async def last_check(self, revision: int) -> Won | Behind:
        """The look at the line that a term begins with, unless somebody is ahead.

        One linearizable read for all that must be known, since every round trip counts in a
        handover: who is in line, the fleet's ledger, the last raise.
        """
        while True:
            reply = await self._look()
            line, ledger, record = (part.response_range.kvs for part in reply.responses)
            ahead = self._ahead(line, revision)
            if ahead is not None:
                return Behind(ahead, reply.header.revision)
            if ledger:
                break
            await self._name_ledger(revision)
        self._compare_ledger(ledger)
        least = history.remembered(record, self._seat)
        known = history.known(record, self._seat)
        return Won(revision, reply.header.revision, reply.header.cluster_id, least, known)

    async def _name_ledger(self, revision: int) -> None:
        """The first leader of a fleet names its ledger; whatever is there is for the next look."""
        seat = self._seat
        request = requests.when(
            [
                requests.created_at(seat.ledger_key, 0),
                requests.created_at(seat.place_key, revision),
            ],
            [requests.put(seat.ledger_key, seat.ledger_id.encode())],
        )
        await self._insist(request)

    async def record_raise(
        self, revision: int, fence: int, timeline: str | None, known: datetime | None
    ) -> str | None:
        """Let etcd remember what we raised, while the key we put at `revision` is there; the
        database's timeline of the raise before, None: not known. Raises as Etcd.call does."""
        seat = self._seat
        request = requests.when(
            [requests.created_at(seat.place_key, revision)],
            [
                requests.read(seat.raised_key),
                requests.put(seat.raised_key, seat.raised_value(fence, timeline, known)),
            ],
        )
        reply = await self._call("KV/Txn", request)
        if not reply.succeeded:
            return None
        return history.timeline(reply.responses[0].response_range.kvs, seat)

    # -------------------------------------------------------------- reading the line

    async def _look(self) -> Any:
        """All keys of the election, the fleet's ledger, the last raise, as they stand at one
        revision; asked until etcd answers; the lease says how long."""
        seat = self._seat
        request = requests.reads(
            requests.get_prefix(seat.line, keys_only=True),
            requests.get(seat.ledger_key),
            requests.get(seat.raised_key),
        )
        while True:
            try:
                reply = await self._call("KV/Txn", request)
            except (EtcdUnavailable, StaleToken):
                await asyncio.sleep(PAUSE_S)
                continue
            await self._clean(reply.responses[0].response_range.kvs)
            return reply

    def _ahead(self, kvs: Any, revision: int) -> bytes | None:
        """The key just ahead of ours; raises OutOfLine if ours is not as we put it."""
        line = sorted((kv for kv in kvs if kv.lease), key=lambda kv: kv.create_revision)
        own = next((kv for kv in line if kv.key == self._seat.place_key), None)
        if own is None or own.create_revision != revision:
            raise self._own_key_gone()
        if own.mod_revision != revision or own.lease != self._seat.lease:
            raise OutOfLine("lease_lost", "the own key was overwritten by somebody while in line")
        before = [kv.key for kv in line if kv.create_revision < revision]
        return before[-1] if before else None

    async def _clean(self, kvs: Any) -> None:
        """Delete keys without a lease: nobody stands behind them, and they would stay for ever."""
        for kv in kvs:
            if not kv.lease:
                request = requests.when(
                    [requests.modified_at(kv.key, kv.mod_revision)], [requests.delete(kv.key)]
                )
                try:
                    await self._call("KV/Txn", request)
                except (EtcdUnavailable, EtcdRefused):
                    return  # whoever reads the line next tries again

    async def _wait(self, behind: Behind) -> KeyWatch | None:
        """Until something happens to the key ahead or to our own: the watch that said so, still
        open; None if it ended."""
        keys = (self._seat.place_key, behind.key)
        watch = KeyWatch(
            self._etcd,
            keys,
            revision=behind.read_at + 1,
            patience=self._patience,
            clock=self._clock,
        )
        try:
            async with AsyncExitStack() as unless_heard:
                await unless_heard.enter_async_context(watch)
                await watch.change()
                unless_heard.pop_all()
                return watch
        except WatchEnded as ended:
            if ended.why != "silent":
                await asyncio.sleep(PAUSE_S)
            return None

    # -------------------------------------------------------------- asking

    async def _call(self, method: str, request: Any) -> Any:
        return await self._etcd.call(method, request, timeout_s=self._timeout_s)

    async def _insist(self, request: Any) -> Any:
        """Send an idempotent txn until its outcome is known, PUT_TRIES times at most."""
        for left in reversed(range(PUT_TRIES)):
            try:
                return await self._call("KV/Txn", request)
            except LeaseNotFound as error:
                raise OutOfLine("lease_lost", str(error)) from None
            except EtcdUnavailable:
                if not left:
                    raise
        raise AssertionError("unreachable")

    def _compare_ledger(self, kvs: Any) -> None:
        seat = self._seat
        for kv in kvs:
            if kv.value != seat.ledger_id.encode():
                raise OutOfLine(
                    "wrong_ledger",
                    f"fleet {seat.fleet} keeps its ledger as {kv.value.decode(errors='replace')}, "
                    f"but this node's ledger is {seat.ledger_id}: set [ledger] url to the fleet's "
                    "ledger, or give this node another [fleet] name",
                    permanent=True,
                )

    def _own_key_gone(self) -> OutOfLine:
        return OutOfLine("lease_lost", "the own key is gone: the lease ended, or it was deleted")
