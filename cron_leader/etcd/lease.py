"""The lease: granted once, renewed while the process is well, trusted from the moment of sending.

A renewal's deadline counts from the *send* of its request on the boot-time clock, so a late reply
never lengthens it. One keepalive is in flight at a time; one that goes unanswered ends its stream,
for a second request on the same stream could be taken as answered by the reply to the first, and
trust would be anchored too late. Does not decide when the term is over: the gate does.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass

from cron_leader.clock import Clock, next_beat
from cron_leader.errors import EtcdRefused, EtcdUnavailable
from cron_leader.etcd.channel import Etcd
from cron_leader.etcd.codes import LeaseNotFound
from cron_leader.etcd.stream import Stream
from cron_leader.etcd.stubs import rpc
from cron_leader.events import Emit

NS = 1_000_000_000
MEASURE_S = 3.0
RETRY_S = 0.5
"""Longest pause before a new stream is tried after one failed."""


async def measure_election_timeout(etcd: Etcd) -> int:
    """An upper bound of etcd's election timeout E in ns; raises as Etcd.call does.

    etcd lifts a TTL below ceil(floor(1.5 x ticks) x heartbeat) to that; E is ticks x heartbeat, at
    least five ticks. The floor costs at most half a tick, E / 10: so E <= TTL / 1.4, not / 1.5.
    """
    reply = await etcd.call("Lease/LeaseGrant", rpc.LeaseGrantRequest(TTL=1), timeout_s=MEASURE_S)
    try:
        await etcd.call(
            "Lease/LeaseRevoke", rpc.LeaseRevokeRequest(ID=reply.ID), timeout_s=MEASURE_S
        )
    except (EtcdUnavailable, EtcdRefused):
        pass  # it has no keys, and ends by itself
    return int(reply.TTL * NS * 10 // 14)


@dataclass(frozen=True, slots=True)
class Terms:
    """What is asked of a lease.

    id: drawn by us. ttl_ns: whole seconds. renew_ns: from one renewal to the next; the first comes
    sooner.
    """

    id: int
    ttl_ns: int
    renew_ns: int

    @property
    def timeout_s(self) -> float:
        """How long any one request waits for its reply."""
        return self.renew_ns / 2 / NS


class Lease:
    """One lease from grant to revoke.

    renewed(sent_ns, ttl_ns) is called at each acknowledged grant and keepalive; may_renew() False
    holds renewals back (the process is not well, and loses the lease on purpose).
    """

    def __init__(
        self,
        etcd: Etcd,
        terms: Terms,
        *,
        renewed: Callable[[int, int], None],
        may_renew: Callable[[], bool],
        clock: Clock,
        emit: Emit,
    ) -> None:
        self._etcd = etcd
        self._terms = terms
        self._renewed = renewed
        self._may_renew = may_renew
        self._clock = clock
        self._emit = emit
        self._sent_ns = 0

    async def grant(self) -> bool:
        """Ask for the lease; False if etcd let it expire at once. Raises as Etcd.call does."""
        self._sent_ns = self._clock.boot_ns()
        reply = await self._etcd.call(
            "Lease/LeaseGrant",
            rpc.LeaseGrantRequest(TTL=self._terms.ttl_ns // NS, ID=self._terms.id),
            timeout_s=self._terms.timeout_s,
        )
        if reply.TTL <= 0:
            return False
        self._emit("lease.granted", ttl_s=reply.TTL, **self._told())
        self._renewed(self._sent_ns, reply.TTL * NS)
        return True

    async def keep(self) -> None:
        """Renew until etcd says that the lease is gone; then return."""
        while True:
            if await self._keep_on_one_stream():
                self._emit("lease.lost", lease=hex_id(self._terms.id))
                return
            await asyncio.sleep(min(RETRY_S, self._terms.renew_ns / 8 / NS))

    async def revoke(self, *, timeout_s: float) -> None:
        """Raises as Etcd.call does; a lease already gone is success."""
        try:
            await self._etcd.call(
                "Lease/LeaseRevoke",
                rpc.LeaseRevokeRequest(ID=self._terms.id),
                timeout_s=timeout_s,
            )
        except LeaseNotFound:
            pass

    async def _keep_on_one_stream(self) -> bool:
        """Renew over one stream until it fails or has aged (False), or the lease is gone (True)."""
        try:
            stream = await self._etcd.open("Lease/LeaseKeepAlive", timeout_s=self._terms.timeout_s)
            async with stream:
                while True:
                    await self._until_due()
                    if not await self._renew(stream):
                        return True
                    if stream.fresh_until_ns is not None and self._sent_ns >= stream.fresh_until_ns:
                        return False
        except (EtcdUnavailable, EtcdRefused):
            return False  # reported once per change by the channel

    async def _until_due(self) -> None:
        """Wait for the next renewal's time, and beyond it for the process to be well."""
        while True:
            wait_ns = next_beat(self._sent_ns, self._terms.renew_ns) - self._clock.boot_ns()
            if wait_ns <= 0 and self._may_renew():
                return
            await asyncio.sleep(max(wait_ns, self._terms.renew_ns // 8) / NS)

    async def _renew(self, stream: Stream) -> bool:
        """One keepalive and its reply; False if the lease is gone."""
        request = rpc.LeaseKeepAliveRequest(ID=self._terms.id)
        sent_ns = self._clock.boot_ns()
        try:
            await stream.send(request, timeout_s=self._terms.timeout_s)
            reply = await stream.receive(timeout_s=self._terms.timeout_s)
        except TimeoutError:
            text = f"etcd {stream.endpoint}: no reply to a keepalive"
            self._etcd.blame(stream.endpoint, text)
            raise EtcdUnavailable(text) from None
        if self._terms.id != reply.ID:
            raise EtcdUnavailable(f"etcd {stream.endpoint}: a reply for another lease")
        if reply.TTL <= 0:
            return False
        self._sent_ns = sent_ns
        self._emit("lease.renewed", **self._told())
        self._renewed(sent_ns, reply.TTL * NS)
        return True

    def _told(self) -> dict[str, object]:
        """duration_ms: since the request was sent, from when the lease counts."""
        took_ns = self._clock.boot_ns() - self._sent_ns
        return {"lease": hex_id(self._terms.id), "duration_ms": round(took_ns / 1e6, 3)}


def hex_id(lease: int) -> str:
    """As etcdctl prints it, and as it stands in the keys."""
    return f"{lease:016x}"
