"""Getting in line, waiting, winning: by linearizable reads, in order of arrival."""

from __future__ import annotations

import asyncio
import json
from datetime import UTC, datetime
from typing import Any

import pytest

from cron_leader.core.messages import Elected, JoinFailed, LeaseRenewed, Left, WatchOpened
from cron_leader.core.model import Mark
from cron_leader.etcd.channel import Etcd
from cron_leader.etcd.embedded import EmbeddedEtcd
from cron_leader.etcd.keys import line_prefix
from cron_leader.etcd.lease import hex_id
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
        await c.etcd.until_asked("KV/Txn", "KV/Txn")  # into the line, and one look at it
    looked = len(c.etcd.asked)
    await a.leave()
    await b.until(WatchOpened)
    await hand.get(place_of(c))
    assert len(c.etcd.asked) == looked


async def test_one_read_lies_between_a_departure_and_the_election(fleet: Fleet, hand: Hand) -> None:
    (a,) = await line_of(fleet, hand, "a")
    b = fleet.join("b", kind=CountingEtcd)
    assert isinstance(b.etcd, CountingEtcd)
    await hand.until_there(place_of(b))
    async with asyncio.timeout(5):
        await b.etcd.until_asked("KV/Txn", "KV/Txn")  # into the line, and one look at it
    before = len(b.etcd.asked)
    await a.leave()
    await b.until(Elected)
    assert b.etcd.asked[before:] == ["KV/Txn"]


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


async def test_a_place_on_our_lease_with_another_nonce_is_not_ours(
    fleet: Fleet, hand: Hand
) -> None:
    lease = 0x1234
    place = line_prefix(PREFIX, fleet.name, 0) + hex_id(lease).encode()

    class Squatted(Etcd):
        """Between grant and put, somebody puts the key, on the same lease."""

        async def call(self, method: str, request: Any, *, timeout_s: float) -> Any:
            reply = await super().call(method, request, timeout_s=timeout_s)
            if method == "Lease/LeaseGrant":
                await hand.put(place, b'{"nonce":"another"}', lease=lease)
            return reply

    a = fleet.join("a", lease=lease, kind=Squatted)
    failed = await a.until(JoinFailed)
    assert failed.reason == "refused"
    assert "belongs to somebody else" in failed.text
    assert not a.reports.of(Elected)


async def test_an_own_key_deleted_while_in_line_ends_the_candidacy(
    fleet: Fleet, hand: Hand
) -> None:
    _, b = await line_of(fleet, hand, "a", "b")
    await hand.delete(place_of(b))
    failed = await b.until(JoinFailed)
    assert (failed.reason, failed.permanent) == ("lease_lost", False)
    assert not await hand.lease_exists(b.seat.lease)


async def test_a_candidate_whose_key_is_gone_does_not_lead_when_its_turn_comes(
    fleet: Fleet, hand: Hand
) -> None:
    """Though its lease is alive: a keepalive would not tell."""
    a, b = await line_of(fleet, hand, "a", "b")
    await hand.delete(place_of(b))
    await a.leave()
    told = await b.until(Elected, JoinFailed)
    assert isinstance(told, JoinFailed)


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


# ------------------------------------------------------------------ history


async def _recorded(node: Node, hand: Hand, fence: int) -> None:
    await node.candidacy.record(fence, "00000001")
    kv = await hand.get(node.seat.raised_key)
    assert json.loads(kv.value) == {
        "fence": fence,
        "nonce": node.seat.nonce,
        "ledger_id": node.seat.ledger_id,
        "timeline": "00000001",
    }
    assert kv.lease == 0


async def test_the_next_leader_is_told_the_fence_that_was_recorded(
    fleet: Fleet, hand: Hand
) -> None:
    a, b = await line_of(fleet, hand, "a", "b")
    (first,) = a.reports.of(Elected)
    assert first.least == 0
    await _recorded(a, hand, 41)
    await a.leave()
    assert (await b.until(Elected)).least == 41


async def test_the_next_leader_is_told_what_the_ledger_was_known_to_hold(
    fleet: Fleet, hand: Hand
) -> None:
    a, b = await line_of(fleet, hand, "a", "b")
    known = datetime(2026, 3, 1, 12, 0, 0, 5, tzinfo=UTC)
    await a.candidacy.record(41, None, known)
    await a.leave()
    elected = await b.until(Elected)
    assert (elected.least, elected.known) == (41, known)


async def test_another_timeline_than_that_of_the_raise_before_is_told(
    fleet: Fleet, hand: Hand
) -> None:
    (a,) = await line_of(fleet, hand, "a")
    for timeline in ("00000001", "00000001", None, "00000001", "00000002"):
        await a.candidacy.record(41, timeline)
    told = [fields for event, fields in a.emit.lines if event == "ledger.failed_over"]
    assert told == [{"before": "00000001", "timeline": "00000002"}]


async def test_a_deposed_leader_records_nothing(fleet: Fleet, hand: Hand) -> None:
    a, b = await line_of(fleet, hand, "a", "b")
    await hand.delete(place_of(a))
    await b.until(Elected)
    await b.candidacy.record(42, None)
    await a.candidacy.record(41, None)
    assert json.loads((await hand.get(b.seat.raised_key)).value)["fence"] == 42


@pytest.mark.parametrize(
    "value",
    [
        b"{}",
        b"7",
        b"no JSON",
        b'{"ledger_id": "another", "fence": 99}',
        b'{"ledger_id": "ledger-1", "planned_to": "soon"}',
        b'{"ledger_id": "ledger-1", "planned_to": "2026-03-01T12:00:00"}',
    ],
)
async def test_a_record_of_another_ledger_or_by_another_hand_says_nothing(
    fleet: Fleet, hand: Hand, value: bytes
) -> None:
    probe = fleet.join("a")
    await probe.until(Elected)
    await hand.put(probe.seat.raised_key, value)
    b = fleet.join("b")
    await hand.until_there(place_of(b))
    await probe.leave()
    elected = await b.until(Elected)
    assert (elected.least, elected.known) == (0, None)


@pytest.mark.parametrize(
    ("mark", "said"),
    [
        (Mark(10**6, 0, None), "fence 1000000 is ahead of this etcd"),
        (Mark(1, 0, "abc"), "fence 1 was raised under etcd cluster abc, this is cluster"),
    ],
)
async def test_an_etcd_behind_the_ledgers_fence_or_another_one_keeps_a_node_out_of_line(
    fleet: Fleet, hand: Hand, mark: Mark, said: str
) -> None:
    node = fleet.join("a", mark=mark)
    failed = await node.until(JoinFailed)
    assert (failed.reason, failed.permanent) == ("history", True)
    assert said in failed.text
    assert "at revision " in failed.text
    assert "cron-leader fence rebase" in failed.text
    assert not node.reports.of(LeaseRenewed)
    assert await hand.get(place_of(node)) is None


@pytest.mark.parametrize(("mark", "shown"), [(None, "not there"), (Mark(40, 0, None), "40")])
async def test_a_ledger_behind_what_etcd_remembers_keeps_a_node_out_of_line(
    fleet: Fleet, hand: Hand, mark: Mark | None, shown: str
) -> None:
    (a,) = await line_of(fleet, hand, "a")
    await _recorded(a, hand, 41)
    b = fleet.join("b", mark=mark)
    failed = await b.until(JoinFailed)
    assert (failed.reason, failed.permanent) == ("history", True)
    assert f"fence is {shown}, but etcd remembers fence 41" in failed.text
    assert '[ledger] ledger_rollback = "skip" or "refire"' in failed.text


async def test_a_rebased_ledger_and_one_just_raised_are_of_one_piece_with_etcd(
    fleet: Fleet, hand: Hand
) -> None:
    (a,) = await line_of(fleet, hand, "a")
    (elected,) = a.reports.of(Elected)
    await _recorded(a, hand, elected.revision)
    for mark in (
        Mark(elected.revision, 0, f"{elected.cluster:x}"),
        Mark(10**6, 10**6, None),
        Mark(10**6 + elected.revision, 10**6, None),
    ):
        node = fleet.join("b", mark=mark)
        await node.until(LeaseRenewed)


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
