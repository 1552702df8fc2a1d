"""What etcd does to its clients in bad hours; docs/etcd-faults.md lists which test covers what."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest
from grpc import StatusCode

from cron_leader.core.messages import (
    Elected,
    JoinFailed,
    KeyDeleted,
    KeyOverwritten,
    LeaseLost,
    LeaseRenewed,
    WatchOpened,
)
from cron_leader.errors import EtcdUnavailable
from cron_leader.etcd.channel import Etcd
from cron_leader.etcd.codes import NotSent, from_status
from cron_leader.etcd.embedded import EmbeddedEtcd, EtcdOptions, Ports
from cron_leader.etcd.lease import NS
from tests.docs.blocks import ROOT
from tests.etcd_kit import (
    CLOCK,
    QUICK,
    Fleet,
    Hand,
    Node,
    client,
    cluster,
    etcdctl,
    fleet_of,
    freeze,
    leading,
    read,
    status,
    thaw,
    write,
)

PAGE = ROOT / "docs" / "etcd-faults.md"
ENDS = (KeyDeleted, KeyOverwritten, LeaseLost, JoinFailed)


# ------------------------------------------------------------------ lease


class Forgetful(Etcd):
    """Grants leases that are over at once."""

    async def call(self, method: str, request: Any, *, timeout_s: float) -> Any:
        reply = await super().call(method, request, timeout_s=timeout_s)
        if method == "Lease/LeaseGrant":
            reply.TTL = 0
        return reply


async def test_a_lease_over_as_soon_as_granted_fails_the_candidacy_not_the_node(
    fleet: Fleet, hand: Hand
) -> None:
    a = fleet.join("a", kind=Forgetful)
    failed = await a.until(JoinFailed)
    assert (failed.reason, failed.permanent) == ("lease_lost", False)
    assert not a.reports.of(LeaseRenewed)
    assert not await hand.lease_exists(a.seat.lease)


async def test_the_ttl_that_counts_is_the_one_in_the_reply(tmp_path: Path) -> None:
    with EmbeddedEtcd(tmp_path / "data", options=EtcdOptions(100, 1000)) as etcd:
        async with fleet_of(etcd.endpoint, ttl_s=1) as fleet:
            assert (await fleet.join("a").until(LeaseRenewed)).ttl_ns == 2 * NS


@pytest.mark.parametrize(
    "details",
    ["etcdserver: not a primary lessor", "context deadline exceeded", "etcdserver: request timed"],
)
def test_an_unknown_error_says_nothing_of_whether_it_was_applied(details: str) -> None:
    assert type(from_status(StatusCode.UNKNOWN, details, "e")) is EtcdUnavailable


async def test_two_nodes_of_one_name_are_two_candidates(fleet: Fleet, hand: Hand) -> None:
    first = fleet.join("same")
    await first.until(Elected)
    second = fleet.join("same")
    await hand.until_there(second.seat.place_key)
    assert not second.reports.of(Elected)
    await first.leave()
    await second.until(Elected)


# ------------------------------------------------------------------ a cluster of three


@pytest.fixture(scope="module")
def members(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[EmbeddedEtcd]]:
    with cluster(tmp_path_factory.mktemp("cluster")) as made:
        yield made


@pytest.fixture
async def leader(members: list[EmbeddedEtcd]) -> AsyncIterator[Node]:
    """Its lease outlives a few elections of etcd, but not a loss of it."""
    async with fleet_of(*(m.endpoint for m in members), ttl_s=4) as fleet:
        node = fleet.join("a")
        await node.until(WatchOpened)
        yield node


async def goes_on(leader: Node) -> None:
    """A renewal sent from now on is answered, the watch is open, and nothing has ended the term."""
    now_ns = CLOCK.boot_ns()
    while (await leader.until(LeaseRenewed)).sent_ns < now_ns:
        pass
    await leader.candidacy.verify()
    assert not leader.reports.of(*ENDS)


async def test_a_change_of_etcds_leader_between_keepalives_ends_no_term(
    members: list[EmbeddedEtcd], leader: Node
) -> None:
    for _ in range(3):
        old = leading(members)
        other = next(m for m in members if m is not old)
        etcdctl(old, "move-leader", f"{int(status(other)[0]):x}")
    await goes_on(leader)


async def test_a_frozen_leader_of_etcd_ends_no_term(
    members: list[EmbeddedEtcd], leader: Node
) -> None:
    frozen = leading(members)
    freeze(frozen)
    try:
        await goes_on(leader)
    finally:
        thaw(frozen)


async def test_members_killed_and_restarted_in_turn_end_no_term(
    members: list[EmbeddedEtcd], leader: Node
) -> None:
    for member in members[:2]:
        member.kill()
        member.start()
        await asyncio.to_thread(member.wait_ready)
    await goes_on(leader)


async def test_a_defragmentation_ends_no_term(members: list[EmbeddedEtcd], leader: Node) -> None:
    for member in members:
        await asyncio.to_thread(etcdctl, member, "defrag")
    await goes_on(leader)


async def test_a_learner_among_the_endpoints_is_passed_over(
    own_etcd: EmbeddedEtcd, tmp_path: Path
) -> None:
    ports = Ports.draw()
    url = f"http://127.0.0.1:{ports.peer}"
    said = etcdctl(own_etcd, "member", "add", "learner", "--learner", f"--peer-urls={url}")
    (peers,) = re.findall(r'ETCD_INITIAL_CLUSTER="(.*)"', said)
    options = EtcdOptions(
        QUICK.heartbeat_ms,
        QUICK.election_ms,
        (f"--initial-cluster={peers}", "--initial-cluster-state=existing"),
    )
    learner = EmbeddedEtcd(
        tmp_path / "learner", name="learner", peers={"learner": ports}, options=options
    )
    learner.start()
    try:
        async with client(learner.endpoint) as etcd:
            await until_it_says(etcd, "it is a learner")
            with pytest.raises(NotSent):
                await write(etcd)
        async with fleet_of(learner.endpoint, own_etcd.endpoint) as fleet:
            a = fleet.join("a")
            await a.until(WatchOpened)
            await goes_on(a)
    finally:
        learner.kill()


async def until_it_says(etcd: Etcd, words: str) -> None:
    async with asyncio.timeout(15):
        while True:
            try:
                await read(etcd)
            except EtcdUnavailable as error:
                if words in str(error):
                    return
            await asyncio.sleep(0.05)


# ------------------------------------------------------------------ the page


def rows() -> list[list[str]]:
    """Cells of the tables in docs/etcd-faults.md, without their heads."""
    lines = [line for line in PAGE.read_text().splitlines() if line.startswith("| ")]
    cells = [[cell.strip() for cell in line.strip("|").split(" | ")] for line in lines]
    return [row for row in cells if row[0] not in ("fault", "---")]


def named(row: list[str]) -> list[tuple[str, str]]:
    """File, without its ending, and function of the tests in the second cell."""
    return re.findall(r"`([\w/]+)::(test_\w+)`", row[1])


def has_test(module: str, name: str) -> bool:
    file = ROOT / "tests" / f"{module}.py"
    return file.exists() and f"def {name}(" in file.read_text()


@pytest.mark.parametrize("row", rows(), ids=lambda row: row[0][:50])
def test_every_fault_has_a_test_that_exists_or_a_reason(row: list[str]) -> None:
    assert len(row) == 2
    tests = named(row)
    assert tests or row[1].startswith("no test: ")
    for module, name in tests:
        assert has_test(module, name), f"{module}::{name} is not there"


def test_the_check_of_the_page_can_fail() -> None:
    assert not has_test("etcd/test_faults", "test_of_nothing")
    assert len(rows()) >= 25
