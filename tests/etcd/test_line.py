"""Getting in line, waiting, winning: by linearizable reads, in order of arrival."""

from __future__ import annotations

import asyncio

from cron_leader.core.messages import Elected, JoinFailed, LeaseRenewed, Left, WatchOpened
from cron_leader.etcd.embedded import EmbeddedEtcd
from cron_leader.etcd.survey import survey
from tests.etcd_kit import PREFIX, CountingEtcd, Fleet, Hand, Node, Proxy, fleet_of, place_of


async def line_of(fleet: Fleet, hand: Hand, *names: str) -> list[Node]:
    """Nodes in line in this order, the first one elected."""
    nodes = []
    for name in names:
        nodes.append(fleet.join(name))
        await hand.until_there(place_of(nodes[-1]))
    await nodes[0].until(WatchOpened)
    return nodes


async def test_candidates_are_elected_in_the_order_in_which_they_got_in_line(
    each_etcd: EmbeddedEtcd,
) -> None:
    async with fleet_of(each_etcd.endpoint) as fleet:
        hand = Hand(fleet.client())
        a, b, c = await line_of(fleet, hand, "a", "b", "c")
        await a.leave()
        second = await b.until(Elected)
        assert not c.reports.of(Elected)
        await b.leave()
        third = await c.until(Elected)
        (first,) = a.reports.of(Elected)
        assert first.revision < second.revision < third.revision
        assert first.cluster == third.cluster != 0


async def test_a_departure_in_mid_line_elects_nobody(fleet: Fleet, hand: Hand) -> None:
    a, b, c = await line_of(fleet, hand, "a", "b", "c")
    await b.leave()
    assert not c.reports.of(Elected, JoinFailed)
    await a.leave()
    await c.until(Elected)


async def test_a_departure_wakes_only_the_next_in_line(fleet: Fleet, hand: Hand) -> None:
    a, b = await line_of(fleet, hand, "a", "b")
    c = fleet.join("c", kind=CountingEtcd)
    assert isinstance(c.etcd, CountingEtcd)
    await hand.until_there(place_of(c))
    async with asyncio.timeout(5):
        await c.etcd.until_asked("KV/Txn", "KV/Range")  # into the line, and one look at it
    looked = len(c.etcd.asked)
    await a.leave()
    await b.until(WatchOpened)
    await hand.get(place_of(c))
    assert len(c.etcd.asked) == looked


async def test_the_lease_is_trusted_before_the_candidate_is_elected(
    fleet: Fleet, hand: Hand
) -> None:
    (a,) = await line_of(fleet, hand, "a")
    kinds = [type(event) for event in a.reports.events[:3]]
    assert kinds == [LeaseRenewed, Elected, WatchOpened]
    assert a.emit.names() == ["lease.granted", "watch.opened"]


async def test_the_fence_is_the_create_revision_of_the_own_key(fleet: Fleet, hand: Hand) -> None:
    (a,) = await line_of(fleet, hand, "a")
    (elected,) = a.reports.of(Elected)
    assert (await hand.get(place_of(a))).create_revision == elected.revision


async def test_a_put_whose_reply_is_lost_is_read_back_and_accepted_by_its_nonce(
    shared_etcd: EmbeddedEtcd,
) -> None:
    async with Proxy(shared_etcd.endpoint) as proxy, fleet_of(shared_etcd.endpoint) as fleet:

        def lose_the_first_put(data: bytes) -> None:
            if b"/elections/0/" in data:
                proxy.cut_at_next_reply = True
                proxy.on_request = lambda data: None

        proxy.on_request = lose_the_first_put
        a = fleet.join("a", proxy.endpoint)
        elected = await a.until(Elected)
        found = await Hand(fleet.client()).get(place_of(a))
        assert proxy.connections > 1
        assert (found.create_revision, found.version) == (elected.revision, 1)


async def test_a_place_taken_by_somebody_else_is_not_ours(fleet: Fleet, hand: Hand) -> None:
    lease = 0x1234
    other = fleet.join("a", lease=0x777)
    await other.until(Elected)
    foreign = await hand.grant(20)
    await hand.put(place_of(other).replace(b"0777", b"1234"), b"{}", lease=foreign)
    b = fleet.join("b", lease=lease)
    failed = await b.until(JoinFailed)
    assert failed.reason == "refused"
    assert "belongs to somebody else" in failed.text
    assert not await hand.lease_exists(lease)


async def test_an_own_key_deleted_while_in_line_ends_the_candidacy(
    fleet: Fleet, hand: Hand
) -> None:
    _, b = await line_of(fleet, hand, "a", "b")
    await hand.delete(place_of(b))
    failed = await b.until(JoinFailed)
    assert (failed.reason, failed.permanent) == ("lease_lost", False)
    assert not await hand.lease_exists(b.seat.lease)


async def test_an_own_key_overwritten_while_in_line_ends_the_candidacy(
    fleet: Fleet, hand: Hand
) -> None:
    a, b = await line_of(fleet, hand, "a", "b")
    await hand.put(place_of(b), b"mine now")
    assert (await b.until(JoinFailed)).reason == "lease_lost"
    await a.leave()
    assert not b.reports.of(Elected)


async def test_a_lease_revoked_while_in_line_ends_the_candidacy(fleet: Fleet, hand: Hand) -> None:
    a, b = await line_of(fleet, hand, "a", "b")
    await hand.revoke(b.seat.lease)
    assert (await b.until(JoinFailed)).reason == "lease_lost"
    await a.leave()
    assert not b.reports.of(Elected)


async def test_a_key_without_a_lease_is_not_in_line_and_is_cleaned_up(
    fleet: Fleet, hand: Hand
) -> None:
    debris = f"{PREFIX}/{fleet.name}/elections/0/debris".encode()
    await hand.put(debris, b"left by somebody")
    a = fleet.join("a")
    await a.until(Elected)
    assert await hand.get(debris) is None


async def test_a_node_with_another_ledger_does_not_get_in_line(fleet: Fleet, hand: Hand) -> None:
    (a,) = await line_of(fleet, hand, "a")
    stranger = fleet.join("b", ledger="ledger-2")
    failed = await stranger.until(JoinFailed)
    assert (failed.reason, failed.permanent) == ("wrong_ledger", True)
    assert "ledger-1" in failed.text
    assert "ledger-2" in failed.text
    assert not stranger.reports.of(LeaseRenewed)
    assert not a.reports.of(JoinFailed)


async def test_a_ledger_stored_while_waiting_in_line_is_still_compared(
    fleet: Fleet, hand: Hand
) -> None:
    a, b = await line_of(fleet, hand, "a", "b")
    await hand.put(a.seat.ledger_key, b"ledger-9")
    await a.leave()
    assert (await b.until(JoinFailed)).reason == "wrong_ledger"
    assert await hand.get(place_of(b)) is None


async def test_leaving_takes_keys_and_lease_out_of_etcd(fleet: Fleet, hand: Hand) -> None:
    a, b = await line_of(fleet, hand, "a", "b")
    for node in (b, a):
        await node.leave()
        assert isinstance(node.reports.events[-1], Left)
        assert await hand.get(place_of(node)) is None
        assert await hand.get(node.seat.node_key) is None
        assert not await hand.lease_exists(node.seat.lease)


async def test_leaving_twice_reports_left_once(fleet: Fleet, hand: Hand) -> None:
    (a,) = await line_of(fleet, hand, "a")
    await asyncio.gather(a.leave(), a.leave())
    await a.leave()
    assert len(a.reports.of(Left)) == 1


async def test_a_survey_lists_the_leader_first_then_the_line(fleet: Fleet, hand: Hand) -> None:
    a, b = await line_of(fleet, hand, "a", "b")
    seen = await survey(fleet.client(), PREFIX, fleet.name, 0)
    assert [s.node for s in seen.candidates] == ["a", "b"]
    assert [s.lease for s in seen.candidates] == [a.seat.lease, b.seat.lease]
    assert {n.node for n in seen.nodes} == {"a", "b"}
    assert seen.ledger_id == "ledger-1"
