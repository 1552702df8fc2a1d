"""Leaving while nothing comes back: what is asked arrives at etcd all the same."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from cron_leader.core.messages import Elected, LeaseRenewed, Left, WatchOpened
from cron_leader.errors import EtcdUnavailable
from cron_leader.etcd.election import LEAVE_S
from cron_leader.etcd.embedded import EmbeddedEtcd
from cron_leader.etcd.lease import NS
from tests.etcd_kit import CLOCK, Fleet, Hand, Node, Proxy, fleet_of

TTL_S = 60
"""Long past the test's end: nothing here is ended by a lease."""


@pytest.fixture
async def proxy(shared_etcd: EmbeddedEtcd) -> AsyncIterator[Proxy]:
    async with Proxy(shared_etcd.endpoint) as made:
        yield made


@pytest.fixture
async def fleet(shared_etcd: EmbeddedEtcd) -> AsyncIterator[Fleet]:
    async with fleet_of(shared_etcd.endpoint, ttl_s=TTL_S) as made:
        yield made


async def pair(fleet: Fleet, proxy: Proxy) -> tuple[Node, Node]:
    """A leader behind the proxy and the next in line, who is not."""
    a = fleet.join("a", proxy.endpoint)
    await a.until(WatchOpened)
    b = fleet.join("b")
    await b.until(LeaseRenewed)
    await Hand(fleet.client()).until_there(b.seat.place_key)
    return a, b


async def renew(a: Node, proxy: Proxy) -> None:
    """As at each renewal: the spare connections are opened."""
    a.candidacy._renewed(CLOCK.boot_ns(), TTL_S * NS)
    async with asyncio.timeout(5):
        while proxy.connections < 2:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        await asyncio.sleep(0.2)  # its greeting


async def test_a_leader_that_hears_nothing_frees_its_place_all_the_same(
    fleet: Fleet, proxy: Proxy
) -> None:
    a, b = await pair(fleet, proxy)
    proxy.drop_replies = True
    asked_ns = CLOCK.boot_ns()
    leaving = asyncio.create_task(a.leave())
    await b.until(Elected, timeout_s=5)
    assert (CLOCK.boot_ns() - asked_ns) / NS < 1
    await leaving
    assert a.reports.of(Left)
    assert (CLOCK.boot_ns() - asked_ns) / NS < LEAVE_S + 1
    assert a.candidacy.may_hold  # nobody has confirmed it: left to the supervisor, too


async def test_with_its_own_connection_broken_it_says_so_over_the_spare_one(
    fleet: Fleet, proxy: Proxy
) -> None:
    """As when TCP has given the connection up: no other can be opened without an answer."""
    a, b = await pair(fleet, proxy)
    await renew(a, proxy)
    proxy.drop_replies = True

    async def broken(*_: Any, **__: Any) -> None:
        raise EtcdUnavailable("no connection")

    a.etcd.call = broken  # type: ignore[method-assign, assignment]
    leaving = asyncio.create_task(a.leave())
    await b.until(Elected, timeout_s=5)
    await leaving


async def test_an_answer_over_the_spare_connection_counts(fleet: Fleet, proxy: Proxy) -> None:
    a, _ = await pair(fleet, proxy)
    await renew(a, proxy)

    async def nothing(*_: Any, **__: Any) -> None:
        await asyncio.sleep(TTL_S)

    a.etcd.call = nothing  # type: ignore[method-assign, assignment]
    await a.leave()
    assert not a.candidacy.may_hold


async def test_a_follower_and_a_leader_just_elected_have_one_connection(
    fleet: Fleet, proxy: Proxy
) -> None:
    a = fleet.join("a", proxy.endpoint)
    await a.until(WatchOpened)
    assert proxy.connections == 1
    async with Proxy(proxy.endpoint) as second:
        b = fleet.join("b", second.endpoint)
        await Hand(fleet.client()).until_there(b.seat.place_key)
        b.candidacy._renewed(CLOCK.boot_ns(), TTL_S * NS)
        await asyncio.sleep(0.2)
        assert second.connections == 1
        await b.leave()


async def test_leaving_in_order_uses_no_spare_connection(fleet: Fleet, proxy: Proxy) -> None:
    a, b = await pair(fleet, proxy)
    await renew(a, proxy)
    assert a.candidacy._spare is not None
    said: list[str] = []

    async def say(method: str, *_: Any, **__: Any) -> bool:
        said.append(method)
        return True

    a.candidacy._spare.say = say  # type: ignore[method-assign]
    await a.leave()
    await b.until(Elected)
    assert not said
