"""Following a key: silence is an end, refusals are seen, old events are dropped."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from cron_leader.etcd.embedded import EmbeddedEtcd
from cron_leader.etcd.lease import NS
from cron_leader.etcd.stubs import rpc
from cron_leader.etcd.watch import KeyWatch, Patience, WatchEnded
from tests.etcd_kit import CLOCK, Fleet, Hand, cluster, fleet_of, freeze, thaw

KEY, OTHER = b"/test/watched", b"/test/other"
QUICK = Patience(ask_ns=NS // 5, silence_ns=NS // 2, open_s=2.0)


def watch(fleet: Fleet, revision: int) -> KeyWatch:
    return KeyWatch(fleet.client(), (KEY, OTHER), revision=revision, patience=QUICK, clock=CLOCK)


async def test_the_first_change_of_any_followed_key_is_told(each_etcd: EmbeddedEtcd) -> None:
    async with fleet_of(each_etcd.endpoint) as fleet:
        hand = Hand(fleet.client())
        start = await hand.put(OTHER, b"1")
        async with watch(fleet, start + 1) as watching:
            put = await hand.put(OTHER, b"2")
            change = await watching.change()
            assert (change.key, change.deleted, change.revision) == (OTHER, False, put)
            await hand.delete(OTHER)
            assert (await watching.change()).deleted


async def test_what_happened_before_the_watch_began_is_delivered_from_the_revision_on(
    fleet: Fleet, hand: Hand
) -> None:
    await hand.put(KEY, b"1")
    second = await hand.put(KEY, b"2")
    async with watch(fleet, second) as watching:
        assert (await watching.change()).revision == second


async def test_a_quiet_key_is_no_silence(each_etcd: EmbeddedEtcd) -> None:
    async with fleet_of(each_etcd.endpoint) as fleet:
        hand = Hand(fleet.client())
        start = await hand.put(KEY, b"1")
        begun_ns = CLOCK.boot_ns()
        async with watch(fleet, start + 1) as watching:
            changing = asyncio.create_task(watching.change())
            done, _ = await asyncio.wait({changing}, timeout=1.5)
            assert not done
            await hand.put(KEY, b"2")
            await changing
        assert CLOCK.boot_ns() - begun_ns > QUICK.silence_ns * 2


async def test_a_frozen_etcd_is_silence(own_etcd: EmbeddedEtcd) -> None:
    async with fleet_of(own_etcd.endpoint) as fleet:
        async with watch(fleet, 1) as watching:
            freeze(own_etcd)
            frozen_ns = CLOCK.boot_ns()
            try:
                with pytest.raises(WatchEnded) as ended:
                    await watching.change()
            finally:
                thaw(own_etcd)
        assert ended.value.why == "silent"
        assert CLOCK.boot_ns() - frozen_ns < QUICK.ask_ns + QUICK.silence_ns + NS


async def test_a_member_that_lost_its_peers_ends_the_watch_long_before_patience_does(
    tmp_path: Path,
) -> None:
    with cluster(tmp_path) as members:
        async with fleet_of(members[0].endpoint) as fleet:
            patient = Patience(ask_ns=60 * NS, silence_ns=60 * NS, open_s=5.0)
            async with KeyWatch(
                fleet.client(), (KEY,), revision=1, patience=patient, clock=CLOCK
            ) as watching:
                for member in members[1:]:
                    member.stop()
                changing = asyncio.create_task(watching.change())
                done, _ = await asyncio.wait({changing}, timeout=8)
                assert done, "a member without a leader is still listened to"
                with pytest.raises(WatchEnded, match="no leader") as ended:
                    await changing
        assert ended.value.why == "lost"


async def test_a_compacted_revision_ends_the_watch_though_it_was_created(
    own_etcd: EmbeddedEtcd,
) -> None:
    async with fleet_of(own_etcd.endpoint) as fleet:
        hand = Hand(fleet.client())
        await hand.put(KEY, b"1")
        await hand.compact()
        with pytest.raises(WatchEnded) as ended:
            async with watch(fleet, 1) as watching:
                await watching.change()
        assert ended.value.why == "compacted"


async def test_events_older_than_asked_are_dropped(fleet: Fleet, hand: Hand) -> None:
    """A cluster reset to an older state delivers them to whoever asks for a later revision."""
    start = await hand.put(KEY, b"1")
    async with watch(fleet, start + 1) as watching:
        old = rpc.WatchResponse()
        old.events.add().kv.mod_revision = start
        watching._take(old)
        revision = await hand.put(KEY, b"2")
        assert (await watching.change()).revision == revision
