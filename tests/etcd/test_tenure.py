"""The own key of a leader: what ends a term, and what only shuts the gate."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from cron_leader.core.messages import (
    Elected,
    KeyDeleted,
    KeyOverwritten,
    LeaseLost,
    LeaseRenewed,
    Left,
    Verified,
    WatchBroken,
    WatchOpened,
)
from cron_leader.errors import EtcdRefused
from cron_leader.etcd.channel import Etcd
from cron_leader.etcd.embedded import EmbeddedEtcd
from cron_leader.etcd.lease import NS
from cron_leader.etcd.stream import Stream
from cron_leader.etcd.tenure import PAUSE_S
from tests.etcd_kit import (
    CLOCK,
    PREFIX,
    Fleet,
    Hand,
    Node,
    Proxy,
    cluster,
    fleet_of,
    freeze,
    place_of,
    thaw,
)


@pytest.fixture
async def leader(fleet: Fleet) -> Node:
    node = fleet.join("a")
    await node.until(WatchOpened)
    return node


async def test_the_own_key_deleted_by_hand_ends_the_term(leader: Node, hand: Hand) -> None:
    await hand.delete(place_of(leader))
    await leader.until(KeyDeleted, timeout_s=5)
    assert not leader.reports.of(WatchBroken)
    assert await hand.lease_exists(leader.seat.lease)
    await leader.leave()
    assert not await hand.lease_exists(leader.seat.lease)


@pytest.mark.parametrize("bound", [False, True], ids=["without a lease", "with our lease"])
async def test_a_foreign_put_on_the_own_key_ends_the_term(
    leader: Node, hand: Hand, bound: bool
) -> None:
    await hand.put(place_of(leader), b"mine", lease=leader.seat.lease if bound else 0)
    await leader.until(KeyOverwritten, timeout_s=5)
    await leader.candidacy.verify()
    assert len(leader.reports.of(KeyOverwritten)) == 2  # a read sees it as the watch does
    await leader.leave()
    assert await hand.get(place_of(leader)) is None


async def test_a_key_deleted_and_put_again_by_hand_is_not_ours(leader: Node, hand: Hand) -> None:
    await hand.delete(place_of(leader))
    await hand.put(place_of(leader), b"mine", lease=leader.seat.lease)
    await leader.until(KeyDeleted, timeout_s=5)
    await leader.leave()
    assert not await hand.lease_exists(leader.seat.lease)


async def test_leaving_deletes_no_key_that_somebody_else_put(leader: Node, hand: Hand) -> None:
    await hand.delete(place_of(leader))
    await leader.until(KeyDeleted)
    await hand.put(place_of(leader), b"not yours")
    await leader.leave()
    kept = await hand.get(place_of(leader))
    assert kept is not None
    assert kept.value == b"not yours"


async def test_a_lease_revoked_by_hand_ends_the_term(leader: Node, hand: Hand) -> None:
    await hand.revoke(leader.seat.lease)
    await leader.until(KeyDeleted, timeout_s=5)
    await leader.until(LeaseLost, timeout_s=5)
    assert "lease.lost" in leader.emit.names()


async def test_verify_reads_the_own_key(leader: Node, hand: Hand) -> None:
    asked_ns = CLOCK.boot_ns()
    await leader.candidacy.verify()
    verified = await leader.until(Verified)
    assert asked_ns <= verified.sent_ns <= CLOCK.boot_ns()
    await hand.delete(place_of(leader))
    await leader.until(KeyDeleted)
    await leader.candidacy.verify()
    assert len(leader.reports.of(KeyDeleted)) == 2


async def test_a_frozen_etcd_shuts_the_watch_and_extends_no_deadline_but_ends_no_term(
    own_etcd: EmbeddedEtcd,
) -> None:
    async with fleet_of(own_etcd.endpoint) as fleet:
        a = fleet.join("a")
        await a.until(WatchOpened)
        freeze(own_etcd)
        try:
            frozen_ns = CLOCK.boot_ns()
            broken = await a.until(WatchBroken)
            noticed_s = (CLOCK.boot_ns() - frozen_ns) / NS
            assert all(r.sent_ns <= frozen_ns for r in a.reports.of(LeaseRenewed))
        finally:
            thaw(own_etcd)
        assert broken.why in {"silent", "lost"}  # our own patience, or gRPC's pings
        assert noticed_s < fleet.ttl_s * 5 / 6 + 0.5
        await a.until(WatchOpened)
        assert (await a.until(LeaseRenewed)).sent_ns > frozen_ns
        assert not a.reports.of(KeyDeleted, KeyOverwritten, LeaseLost)
        assert a.emit.names().count("etcd.unreachable") == 1
        assert a.emit.names().count("etcd.back") == 1


async def test_an_etcd_away_for_less_than_the_ttl_ends_no_term(own_etcd: EmbeddedEtcd) -> None:
    async with fleet_of(own_etcd.endpoint, ttl_s=5) as fleet:
        a = fleet.join("a")
        await a.until(WatchOpened)
        own_etcd.stop()
        broken = await a.until(WatchBroken)
        own_etcd.start()
        await a.until(WatchOpened)
        await a.until(LeaseRenewed)
        assert broken.why == "lost"
        assert not a.reports.of(KeyDeleted, KeyOverwritten, LeaseLost)


async def test_a_key_deleted_while_the_watch_was_broken_is_found_by_the_read(
    own_etcd: EmbeddedEtcd,
) -> None:
    async with fleet_of(own_etcd.endpoint) as fleet, Proxy(own_etcd.endpoint) as proxy:
        a = fleet.join("a", proxy.endpoint)
        await a.until(WatchOpened)
        proxy.refuse = True
        proxy.cut()
        await a.until(WatchBroken)
        await Hand(fleet.client()).delete(place_of(a))
        proxy.refuse = False
        await a.until(KeyDeleted)
        assert len(a.reports.of(WatchOpened)) == 1


async def test_a_compacted_watch_is_opened_again_further_on(own_etcd: EmbeddedEtcd) -> None:
    async with fleet_of(own_etcd.endpoint) as fleet, Proxy(own_etcd.endpoint) as proxy:
        hand = Hand(fleet.client())
        a = fleet.join("a", proxy.endpoint)
        await a.until(WatchOpened)
        proxy.hold_watch_requests = asyncio.Event()
        proxy.cut()
        await a.until(WatchBroken)
        await proxy.watch_request_held.wait()
        for _ in range(3):
            await hand.put(f"{PREFIX}/elsewhere".encode(), b"")
        await hand.compact()
        proxy.hold_watch_requests.set()
        proxy.hold_watch_requests = None
        await a.until(WatchOpened)
        await hand.delete(place_of(a))
        await a.until(KeyDeleted)
        assert "watch.compacted" in a.emit.names()


async def test_a_store_older_than_what_was_seen_ends_the_term(leader: Node, hand: Hand) -> None:
    tenure = leader.candidacy._tenure
    assert tenure is not None
    tenure._seen += 1000
    await leader.candidacy.verify()
    await leader.until(KeyDeleted, timeout_s=5)


class OutOfOrder(Etcd):
    """Holds the first read of one key back on its way home, until it is let go."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.hold = False
        self.held, self.go = asyncio.Event(), asyncio.Event()

    async def call(self, method: str, request: Any, *, timeout_s: float) -> Any:
        mine, self.hold = self.hold, False
        reply = await super().call(method, request, timeout_s=timeout_s)
        if mine:
            self.held.set()
            await self.go.wait()
        return reply


async def test_a_read_answered_after_a_later_one_shows_no_older_store(
    fleet: Fleet, hand: Hand
) -> None:
    a = fleet.join("a", kind=OutOfOrder)
    assert isinstance(a.etcd, OutOfOrder)
    await a.until(WatchOpened)
    a.etcd.hold = True
    slow = asyncio.create_task(a.candidacy.verify())
    await a.etcd.held.wait()
    await hand.put(f"{PREFIX}/elsewhere".encode(), b"")
    await a.candidacy.verify()
    a.etcd.go.set()
    await slow
    assert len(a.reports.of(Verified)) == 2
    assert not a.reports.of(KeyDeleted)


class NoWatch(Etcd):
    """Answers everything but a watch, once told so."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.denied = False
        self.tries = 0
        self.tried = asyncio.Event()

    async def open(self, method: str, *, timeout_s: float) -> Stream:
        if method == "Watch/Watch" and self.denied:
            self.tries += 1
            self.tried.set()
            raise EtcdRefused("no watch for you")
        return await super().open(method, timeout_s=timeout_s)


async def test_a_watch_that_does_not_open_is_tried_at_intervals_and_told_once(
    own_etcd: EmbeddedEtcd,
) -> None:
    async with fleet_of(own_etcd.endpoint, ttl_s=5) as fleet, Proxy(own_etcd.endpoint) as proxy:
        a = fleet.join("a", proxy.endpoint, kind=NoWatch)
        assert isinstance(a.etcd, NoWatch)
        await a.until(WatchOpened)
        a.etcd.denied = True
        begun_ns = CLOCK.boot_ns()
        proxy.cut()
        async with asyncio.timeout(10):
            while a.etcd.tries < 5:
                a.etcd.tried.clear()
                await a.etcd.tried.wait()
        assert (CLOCK.boot_ns() - begun_ns) / NS > 3 * PAUSE_S
        assert a.emit.names().count("watch.broken") == 1
        a.etcd.denied = False
        await a.until(WatchOpened)


async def test_a_leader_survives_the_freeze_of_the_member_it_talks_to(tmp_path: Path) -> None:
    with cluster(tmp_path) as members:
        async with fleet_of(*(m.endpoint for m in members), ttl_s=5) as fleet:
            a = fleet.join("a")
            await a.until(WatchOpened)
            freeze(members[0])
            try:
                await a.until(WatchBroken)
                await a.until(WatchOpened)
                sent = (await a.until(LeaseRenewed)).sent_ns
                assert sent > a.reports.of(LeaseRenewed)[0].sent_ns
                assert not a.reports.of(KeyDeleted, LeaseLost)
                assert "etcd.unreachable" not in a.emit.names()
                await a.leave()
                b = fleet.join("b", members[0].endpoint, members[1].endpoint)
                await b.until(Elected)
            finally:
                thaw(members[0])


async def test_leaving_a_frozen_etcd_ends_within_its_bound(own_etcd: EmbeddedEtcd) -> None:
    async with fleet_of(own_etcd.endpoint) as fleet:
        a = fleet.join("a")
        await a.until(WatchOpened)
        freeze(own_etcd)
        try:
            begun_ns = CLOCK.boot_ns()
            await a.leave()
            took_s = (CLOCK.boot_ns() - begun_ns) / NS
        finally:
            thaw(own_etcd)
        assert isinstance(a.reports.events[-1], Left)
        assert took_s < fleet.ttl_s / 2 + 0.5
        await Hand(fleet.client()).until_gone(place_of(a))
