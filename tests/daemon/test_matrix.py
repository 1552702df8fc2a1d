"""Whatever ends a term, on each etcd at hand, a single member and three."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from itertools import product
from pathlib import Path

import pytest

from cron_leader.etcd.embedded import EtcdOptions
from tests.etcd_kit import QUICK, binaries, cluster
from tests.kit import Town, now, town

SIZES = {1: QUICK, 3: EtcdOptions()}
TTL_S = 2


@pytest.fixture(
    scope="module",
    params=product(binaries(), SIZES),
    ids=lambda it: f"{it[0].parent.name}-{it[1]}",
)
def endpoints(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[list[str]]:
    binary, size = request.param
    folder = tmp_path_factory.mktemp("etcd")
    with cluster(folder, size=size, options=SIZES[size], binary=binary) as members:
        yield [member.endpoint for member in members]


async def test_whatever_ends_a_term_the_other_node_leads_and_no_slot_is_lost(
    tmp_path: Path, endpoints: list[str]
) -> None:
    async with town(tmp_path, *endpoints, ttl=f"{TTL_S}s") as place:
        await place.lead("a")
        await place.follow("b")
        await _its_key_is_deleted(place, "a", "b")
        await _its_lease_is_revoked(place, "b", "a")
        await _it_is_told_to_stop(place, "a", "b")
        await place.follow("a")
        await _its_daemon_is_killed(place, "b", "a")
        await place.follow("b")
        await _it_is_frozen_and_wakes(place, "a", "b")
        await place.says("run.finished", since=now(), node="b", outcome="succeeded")
        await place.fleet.stop()
        assert not place.unexplained("beat")


async def _its_key_is_deleted(place: Town, old: str, new: str) -> None:
    since = now()
    async with place.hand() as hand:
        await hand.delete((await place.line_of(2))[0])
    ended = await place.says("term.ended", since=since, node=old)
    assert ended.fields["reason"] == "key_deleted"
    await place.says("gate.opened", since=since, node=new)


async def _its_lease_is_revoked(place: Town, old: str, new: str) -> None:
    await place.line_of(2)
    since = now()
    async with place.hand() as hand:
        await hand.revoke((await place.survey()).candidates[0].lease)
    ended = await place.says("term.ended", since=since, node=old)
    assert ended.fields["reason"] in {"key_deleted", "lease_lost"}
    await place.says("gate.opened", since=since, node=new)


async def _it_is_told_to_stop(place: Town, old: str, new: str) -> None:
    await place.line_of(2)
    since = place.fleet.signal(old, signal.SIGTERM)
    await place.says("gate.opened", since=since, node=new)
    assert await place.fleet.ended(old) == 0
    ended = place.fleet.timeline.last("term.ended", node=old)
    assert ended is not None
    assert ended.fields["reason"] == "stopping"


async def _its_daemon_is_killed(place: Town, old: str, new: str) -> None:
    since = place.fleet.kill_daemon(old)
    assert await place.fleet.ended(old) == 128 + signal.SIGKILL
    revoked = place.fleet.timeline.last("supervisor.revoked", node=old)
    assert revoked is not None
    assert revoked.fields["ok"]
    await place.says("gate.opened", since=since, node=new)


async def _it_is_frozen_and_wakes(place: Town, old: str, new: str) -> None:
    last = place.fleet.timeline.last("gate.opened", node=old)
    assert last is not None
    since = await place.freeze(old)
    await place.says("gate.opened", since=since, node=new)
    thawed = place.fleet.thaw(old)
    await place.says("term.campaigning", since=thawed, node=old)
    late = place.fleet.timeline.all("run.started", node=old, fence=last.fields["fence"])
    assert not [line for line in late if line.at >= thawed]
