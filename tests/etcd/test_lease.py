"""The lease: anchored at the send, one keepalive in flight, lost on purpose when unwell."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path
from typing import Any

import pytest

from cron_leader.core.messages import (
    JoinFailed,
    KeyDeleted,
    LeaseRenewed,
    WatchBroken,
    WatchOpened,
)
from cron_leader.etcd.channel import Etcd
from cron_leader.etcd.codes import NoSpace
from cron_leader.etcd.embedded import EmbeddedEtcd, EtcdOptions
from cron_leader.etcd.lease import NS, measure_election_timeout
from cron_leader.etcd.stream import Stream
from tests.etcd_kit import CLOCK, Fleet, Hand, Proxy, fleet_of, freeze, thaw


async def test_a_late_reply_never_lengthens_the_term(shared_etcd: EmbeddedEtcd) -> None:
    held_s = 0.1
    async with (
        Proxy(shared_etcd.endpoint) as proxy,
        fleet_of(shared_etcd.endpoint, ttl_s=4) as fleet,
    ):
        proxy.hold_replies_s = held_s
        a = fleet.join("a", proxy.endpoint)
        for _ in range(2):  # the grant, then a keepalive
            renewed = await a.until(LeaseRenewed)
            assert renewed.sent_ns <= CLOCK.boot_ns() - held_s * NS
            assert renewed.ttl_ns == fleet.ttl_s * NS


class Watched(Etcd):
    """Counts what each keepalive stream was asked and what it answered."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.unanswered: list[int] = []

    async def open(self, method: str, *, timeout_s: float) -> Stream:
        stream = await super().open(method, timeout_s=timeout_s)
        if method == "Lease/LeaseKeepAlive":
            self._count(stream, len(self.unanswered))
            self.unanswered.append(0)
        return stream

    def _count(self, stream: Stream, at: int) -> None:
        send, receive = stream.send, stream.receive

        async def counted_send(request: Any, *, timeout_s: float) -> None:
            self.unanswered[at] += 1
            await send(request, timeout_s=timeout_s)

        async def counted_receive(*, timeout_s: float) -> Any:
            reply = await receive(timeout_s=timeout_s)
            self.unanswered[at] -= 1
            return reply

        stream.send = counted_send  # type: ignore[method-assign]
        stream.receive = counted_receive  # type: ignore[method-assign]


async def test_an_unanswered_keepalive_is_sent_again_only_on_a_fresh_stream(
    own_etcd: EmbeddedEtcd,
) -> None:
    async with fleet_of(own_etcd.endpoint) as fleet:
        a = fleet.join("a", kind=Watched)
        await a.until(WatchOpened)
        freeze(own_etcd)
        try:
            await a.until(WatchBroken)
        finally:
            thaw(own_etcd)
        await a.until(LeaseRenewed)
        assert isinstance(a.etcd, Watched)
        *given_up, last = a.etcd.unanswered
        assert len(given_up) >= 1
        assert all(count == 1 for count in given_up)
        assert last == 0


class Shortening(Etcd):
    """Its keepalives are answered with a second less than was asked for."""

    async def open(self, method: str, *, timeout_s: float) -> Stream:
        stream = await super().open(method, timeout_s=timeout_s)
        receive = stream.receive

        async def shortened(*, timeout_s: float) -> Any:
            reply = await receive(timeout_s=timeout_s)
            if method == "Lease/LeaseKeepAlive":
                reply.TTL -= 1
            return reply

        stream.receive = shortened  # type: ignore[method-assign]
        return stream


async def test_a_renewal_is_worth_the_ttl_in_its_own_reply(fleet: Fleet) -> None:
    a = fleet.join("a", kind=Shortening)
    granted, renewed = await a.until(LeaseRenewed), await a.until(LeaseRenewed)
    assert (granted.ttl_ns, renewed.ttl_ns) == (fleet.ttl_s * NS, (fleet.ttl_s - 1) * NS)


async def test_a_process_that_is_not_well_loses_its_lease(own_etcd: EmbeddedEtcd) -> None:
    async with fleet_of(own_etcd.endpoint, ttl_s=1) as fleet:
        a = fleet.join("a")
        await a.until(WatchOpened)
        a.well = False
        await a.until(KeyDeleted, timeout_s=5)


async def test_an_unreachable_etcd_fails_the_candidacy_at_once() -> None:
    async with fleet_of("127.0.0.1:1") as fleet:
        a = fleet.join("a")
        failed = await a.until(JoinFailed, timeout_s=5)
        assert (failed.reason, failed.permanent) == ("unreachable", False)
        assert "127.0.0.1:1" in failed.text
        assert "connection refused" in failed.text


async def fill(hand: Hand) -> None:
    """Until etcd has no room left."""
    while True:
        try:
            await hand.put(f"/fill/{CLOCK.boot_ns()}".encode(), b"x" * 10_000)
        except NoSpace:
            return


async def test_a_full_etcd_refuses_loudly_and_keeps_the_leader(tmp_path: Path) -> None:
    options = EtcdOptions(extra=("--quota-backend-bytes=65536",))
    with EmbeddedEtcd(tmp_path / "data", options=options) as etcd:
        async with fleet_of(etcd.endpoint) as fleet:
            leader = fleet.join("a")
            await leader.until(WatchOpened)
            await fill(Hand(fleet.client()))
            failed = await fleet.join("b").until(JoinFailed)
            assert (failed.reason, failed.permanent) == ("refused", False)
            assert "NOSPACE" in failed.text
            assert "no node can take over" in failed.text
            await leader.until(LeaseRenewed)


@pytest.mark.parametrize(("heartbeat_ms", "election_ms"), [(50, 500), (100, 1000)])
async def test_the_election_timeout_is_bounded_from_above(
    tmp_path: Path, heartbeat_ms: int, election_ms: int
) -> None:
    options = EtcdOptions(heartbeat_ms=heartbeat_ms, election_ms=election_ms)
    with EmbeddedEtcd(tmp_path / "data", options=options) as etcd:
        async with fleet_of(etcd.endpoint) as fleet:
            bound_ns = await measure_election_timeout(fleet.client())
            assert election_ms * 1_000_000 <= bound_ns <= election_ms * 1_500_000


def held() -> tuple[int, int, int]:
    """Tasks, file descriptors (where they can be counted) and threads of this process."""
    listing = Path("/proc/self/fd")
    fds = len(list(listing.iterdir())) if listing.is_dir() else 0
    return len(asyncio.all_tasks()), fds, threading.active_count()


async def gain_and_lose(fleet: Fleet, name: str) -> None:
    node = fleet.join(name)
    await node.until(WatchOpened)
    await node.leave()
    fleet.nodes.remove(node)
    await node.etcd.aclose()


async def test_a_hundred_terms_leave_no_task_descriptor_or_thread_behind(fleet: Fleet) -> None:
    for n in range(3):
        await gain_and_lose(fleet, f"warm-{n}")
    before = held()
    for n in range(100):
        await gain_and_lose(fleet, f"n{n}")
    assert all(now <= then for now, then in zip(held(), before, strict=True))
