"""The own key of a leader: watched from the last check on, read linearizably when in doubt.

Silence does not end a term; the key deleted, overwritten, or found in an older history does.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from enum import Enum, auto
from typing import Any

from cron_leader.clock import Clock
from cron_leader.core.messages import (
    Event,
    KeyDeleted,
    KeyOverwritten,
    Verified,
    WatchBroken,
    WatchOpened,
)
from cron_leader.errors import EtcdRefused, EtcdUnavailable
from cron_leader.etcd import requests
from cron_leader.etcd.channel import Etcd
from cron_leader.etcd.codes import Misconfigured
from cron_leader.etcd.keys import Seat
from cron_leader.etcd.lease import NS, hex_id
from cron_leader.etcd.line import Won
from cron_leader.etcd.watch import KeyWatch, Patience, WatchEnded
from cron_leader.events import Emit

PAUSE_S = 0.25
"""Between tries to read the own key, or to open a watch, again."""


class Standing(Enum):
    """What a linearizable read says of the own key."""

    HELD = auto()
    DELETED = auto()
    OVERWRITTEN = auto()


class Tenure:
    """Watches over one won election until the own key is no longer ours.

    watch: one on the own key that is open since before the last check; ours from now on.
    """

    def __init__(
        self,
        etcd: Etcd,
        seat: Seat,
        won: Won,
        *,
        watch: KeyWatch | None,
        report: Callable[[Event], None],
        clock: Clock,
        emit: Emit,
    ) -> None:
        self._etcd = etcd
        self._seat = seat
        self._won = won
        self._watch = watch
        self._report = report
        self._clock = clock
        self._emit = emit
        self._seen = won.read_at
        self._timeout_s = seat.renew_ns / 2 / NS
        self._patience = Patience.of(seat.ttl_ns, self._timeout_s)
        self._broken: str | None = None
        self._lease = hex_id(seat.lease)

    async def watch(self) -> None:
        """Report WatchOpened and WatchBroken in turn; return after KeyDeleted or KeyOverwritten.

        Raises EtcdRefused if the own key may not be read any more.
        """
        while True:
            try:
                deleted = await self._watch_once(self._seen + 1)
            except WatchEnded as ended:
                await self._on_broken(ended)
            else:
                self._tell(Standing.DELETED if deleted else Standing.OVERWRITTEN)
                return
            standing = await self._read_until_answered()
            if standing is not Standing.HELD:
                self._tell(standing)
                return

    async def verify(self) -> None:
        """One linearizable read: Verified, KeyDeleted or KeyOverwritten; nothing if unanswered."""
        sent_ns = self._clock.boot_ns()
        try:
            standing = await self._read()
        except (EtcdUnavailable, EtcdRefused):
            return
        if standing is Standing.HELD:
            self._report(Verified(self._seat.nonce, sent_ns))
        else:
            self._tell(standing)

    async def _watch_once(self, revision: int) -> bool:
        """Whether the key was deleted (else overwritten); raises WatchEnded."""
        inherited, self._watch = self._watch, None
        async with inherited or self._new_watch(revision) as watch:
            self._broken = None
            self._emit("watch.opened", lease=self._lease)
            self._report(WatchOpened(self._seat.nonce))
            while (change := await watch.change()).key != self._seat.place_key:
                pass  # of the one that was ahead
            return change.deleted

    def _new_watch(self, revision: int) -> KeyWatch:
        return KeyWatch(
            self._etcd,
            (self._seat.place_key,),
            revision=revision,
            patience=self._patience,
            clock=self._clock,
        )

    async def _read_until_answered(self) -> Standing:
        """Raises EtcdRefused where asking again cannot help: the right to read it was taken."""
        while True:
            try:
                return await self._read()
            except EtcdUnavailable:
                pass
            except EtcdRefused as error:
                if error.permanent and not isinstance(error, Misconfigured):
                    raise
            await asyncio.sleep(PAUSE_S)

    async def _read(self) -> Standing:
        seen = self._seen  # what a reply to a later read shows meanwhile does not count
        reply = await self._etcd.call(
            "KV/Range", requests.get(self._seat.place_key), timeout_s=self._timeout_s
        )
        return self._judge(reply, seen)

    def _judge(self, reply: Any, seen: int) -> Standing:
        """A store behind what was seen before it was asked was restored from a backup, and so was
        one of another id: the key in it is history's."""
        header = reply.header
        if header.revision < seen or header.cluster_id != self._won.cluster:
            return Standing.DELETED
        self._seen = max(self._seen, reply.header.revision)
        for kv in reply.kvs:
            if kv.create_revision == self._won.revision:
                held = kv.mod_revision == kv.create_revision and kv.lease == self._seat.lease
                return Standing.HELD if held else Standing.OVERWRITTEN
        return Standing.DELETED

    def _tell(self, standing: Standing) -> None:
        gone = KeyDeleted if standing is Standing.DELETED else KeyOverwritten
        self._report(gone(self._seat.nonce))

    async def _on_broken(self, ended: WatchEnded) -> None:
        """Tell it once per change; pause if it has not been open since the last time."""
        before, self._broken = self._broken, ended.why
        if before is not None:
            await asyncio.sleep(PAUSE_S)
        if before == ended.why:
            return
        if ended.why == "compacted":
            self._emit("watch.compacted", lease=self._lease)
        self._emit("watch.broken", reason=ended.why, error=str(ended), lease=self._lease)
        self._report(WatchBroken(self._seat.nonce, ended.why))
