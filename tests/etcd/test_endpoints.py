"""Every way to write an endpoint reaches etcd, for the node and for its supervisor; sick members
are left, and found again."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
import tempfile
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest
from etcd3.etcdrpc import rpc_pb2 as pb
from grpc import StatusCode
from grpc.aio import AioRpcError

from cron_leader.config.endpoints import endpoint
from cron_leader.core.messages import KeyDeleted, LeaseLost, LeaseRenewed, WatchBroken, WatchOpened
from cron_leader.errors import EtcdRefused, EtcdUnavailable
from cron_leader.etcd import requests
from cron_leader.etcd.channel import Etcd
from cron_leader.etcd.embedded import EmbeddedEtcd, EtcdOptions, Ports
from cron_leader.etcd.endpoint import OPTIONS, Endpoint
from cron_leader.etcd.lease import NS
from cron_leader.etcd.seen import SETTLED_NS, Seen
from cron_leader.etcd.tenure import PAUSE_S
from cron_leader.supervision.groups import Lease
from cron_leader.supervision.revoke import NOT_FOUND, try_revoke
from tests.etcd_kit import (
    CLOCK,
    QUICK,
    Authority,
    Proxy,
    client,
    cluster,
    fleet_of,
    freeze,
    read,
    thaw,
    write,
)

SOCKET = "localhost:1"
"""As etcd 3.4 and 3.5 want it: relative, and in the form of host:port."""


def has_ipv6() -> bool:
    try:
        with socket.socket(socket.AF_INET6) as it:
            it.bind(("::1", 0))
    except OSError:
        return False
    return True


def by_supervisor(at: str, **access: str) -> int | None:
    """The status of a revoke of a lease that is not there."""
    said = dict.fromkeys(("ca", "cert", "key", "user", "password")) | access
    return try_revoke(at, Lease(said | {"lease": 1, "ttl_ns": NS, "endpoints": [at]}))


# ------------------------------------------------------------------ addresses


@pytest.fixture(scope="module")
def many_ways() -> Iterator[tuple[int, Path]]:
    """Port and socket of an etcd that listens on both loopback addresses and on a socket."""
    with tempfile.TemporaryDirectory() as short:
        ports = Ports.draw()
        urls = [f"http://127.0.0.1:{ports.client}", f"unix://{SOCKET}"]
        urls += [f"http://[::1]:{ports.client}"] if has_ipv6() else []
        options = EtcdOptions(
            QUICK.heartbeat_ms, QUICK.election_ms, (f"--listen-client-urls={','.join(urls)}",)
        )
        folder = Path(short) / "d"
        with EmbeddedEtcd(folder, name="m", peers={"m": ports}, options=options):
            yield ports.client, folder / SOCKET


@pytest.mark.parametrize(
    "written",
    ["localhost:{port}", "http://127.0.0.1:{port}/", "[::1]:{port}", "unix://{path}"],
)
async def test_an_endpoint_is_reached_however_it_is_written(
    many_ways: tuple[int, Path], written: str
) -> None:
    if "::1" in written and not has_ipv6():
        pytest.skip("this machine has no IPv6")
    port, path = many_ways
    given = written.format(port=port, path=path)
    at = endpoint(given, Path("/"), secured=False, wrong=pytest.fail)
    async with client(at) as etcd:
        await write(etcd)
    for form in (given, at):
        assert await asyncio.to_thread(by_supervisor, form) == NOT_FOUND


async def test_a_socket_nobody_listens_on_is_named(tmp_path: Path) -> None:
    async with client(f"unix://{tmp_path}/none") as etcd:
        with pytest.raises(EtcdUnavailable, match=f"etcd unix://{tmp_path}/none: "):
            await read(etcd)
    assert by_supervisor(f"unix://{tmp_path}/none") is None


def _strict(**kwargs: Any) -> ssl.SSLContext:
    """As `ssl.create_default_context` from Python 3.13 on."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    if kwargs:
        context.load_verify_locations(**kwargs)
    context.verify_flags |= ssl.VERIFY_X509_STRICT
    return context


async def test_the_name_in_the_certificate_may_differ_from_the_endpoint(
    authority: Authority, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ssl, "create_default_context", _strict)
    cert, key = authority.sign("renamed", "DNS:etcd.internal")
    extra = (f"--cert-file={cert}", f"--key-file={key}")
    with EmbeddedEtcd(tmp_path / "d", options=EtcdOptions(extra=extra, tls=True)) as member:
        named = {"ca": authority.ca, "server_name": "etcd.internal"}
        async with client(member.endpoint, **named) as etcd:
            await write(etcd)
        assert await asyncio.to_thread(by_supervisor, member.endpoint, **named) == NOT_FOUND
        async with client(member.endpoint, ca=authority.ca) as etcd:
            with pytest.raises(EtcdRefused, match="for another host name"):
                await read(etcd)
        assert await asyncio.to_thread(by_supervisor, member.endpoint, ca=authority.ca) is None


# ------------------------------------------------------------------ members that lag


def header(term: int, revision: int) -> pb.ResponseHeader:
    return pb.ResponseHeader(raft_term=term, revision=revision)


def test_a_member_lags_if_it_does_not_show_what_was_known_for_a_while() -> None:
    seen = Seen()
    for n in range(3):
        assert seen.lag(header(5, 100), (n + 1) * SETTLED_NS) is None
    now_ns = 4 * SETTLED_NS
    assert "raft term 4 after 5" in str(seen.lag(header(4, 200), now_ns))
    assert "revision 99 after 100" in str(seen.lag(header(5, 99), now_ns))
    assert seen.lag(header(5, 100), now_ns) is None
    assert seen.lag(header(0, 0), now_ns) is None


def test_replies_out_of_order_are_no_lag() -> None:
    seen = Seen()
    now_ns = 10 * SETTLED_NS
    for n in range(100):
        assert seen.lag(header(5, 100 + n), now_ns + n) is None
        assert seen.lag(header(4, 90 + n), now_ns + n) is None


class Doctored(Etcd):
    """Takes one member's replies for older than they are."""

    lagging = ""

    def _lag(self, address: str, reply: pb.RangeResponse) -> str | None:
        if address == self.lagging:
            reply.header.raft_term -= 1
        return super()._lag(address, reply)


async def test_a_member_in_an_older_raft_term_is_left(tmp_path: Path) -> None:
    with cluster(tmp_path, options=QUICK) as members:
        async with fleet_of(*(m.endpoint for m in members), ttl_s=3) as fleet:
            a = fleet.join("a", kind=Doctored)
            assert isinstance(a.etcd, Doctored)
            await a.until(WatchOpened)
            for _ in range(2):  # until what was seen is known for a while
                await a.until(LeaseRenewed)
            a.etcd.lagging = members[0].endpoint
            await a.until(LeaseRenewed)
            await a.candidacy.verify()
            assert a.etcd._endpoints[a.etcd._at].address != members[0].endpoint
            assert not a.reports.of(KeyDeleted, LeaseLost)


async def test_a_store_that_went_back_on_all_members_is_believed(
    shared_etcd: EmbeddedEtcd,
) -> None:
    async with client(shared_etcd.endpoint) as etcd:
        etcd._seen._settled = etcd._seen._settling = (1000, 1 << 60)
        etcd._seen._at_ns = CLOCK.boot_ns()
        await read(etcd)
        assert etcd._seen._settled == (0, 0)


# ------------------------------------------------------------------ members that are cut off


class Peers:
    """Three members whose talk among each other goes through proxies, one before each."""

    def __init__(self, folder: Path, proxies: dict[str, Proxy], ports: dict[str, Ports]) -> None:
        self.proxies = proxies
        urls = {name: f"http://{proxy.endpoint}" for name, proxy in proxies.items()}
        everybody = ",".join(f"{name}={url}" for name, url in urls.items())
        self.members = {
            name: EmbeddedEtcd(
                folder / name,
                name=name,
                peers=ports,
                options=EtcdOptions(
                    extra=(
                        f"--initial-cluster={everybody}",
                        f"--initial-advertise-peer-urls={urls[name]}",
                    )
                ),
            )
            for name in ports
        }

    def cut_off(self, name: str, member_id: int) -> None:
        """Nothing from its peers reaches it any more, nor they it; clients do."""
        sender = f"X-Server-From: {member_id:x}\r".encode()

        def drop(data: bytes) -> None:
            if sender in data:
                raise ConnectionError

        for proxy in self.proxies.values():
            proxy.on_request = drop
        self.proxies[name].refuse = True
        for proxy in self.proxies.values():
            proxy.cut()


@pytest.fixture
async def peers(tmp_path: Path) -> AsyncIterator[Peers]:
    ports = {f"m{i}": Ports.draw() for i in range(3)}
    async with contextlib.AsyncExitStack() as stack:
        proxies = {
            name: await stack.enter_async_context(Proxy(f"127.0.0.1:{at.peer}"))
            for name, at in ports.items()
        }
        made = Peers(tmp_path, proxies, ports)
        try:
            for member in made.members.values():
                member.start()
            for member in made.members.values():
                await asyncio.to_thread(member.wait_ready)
            yield made
        finally:
            for member in made.members.values():
                member.kill()


async def test_a_member_that_takes_connections_but_is_cut_from_its_peers_is_left(
    peers: Peers,
) -> None:
    sick, *others = peers.members.values()
    async with client(sick.endpoint) as alone:
        reply = await alone.call("KV/Range", requests.get(b"/test/k"), timeout_s=5)
    async with fleet_of(*(m.endpoint for m in (sick, *others)), ttl_s=9) as fleet:
        a = fleet.join("a")
        await a.until(WatchOpened)
        peers.cut_off("m0", reply.header.member_id)
        await a.until(WatchBroken)
        broken_ns = CLOCK.boot_ns()
        await a.until(WatchOpened)
        assert (CLOCK.boot_ns() - broken_ns) / NS <= fleet.ttl_s / 3
        while (await a.until(LeaseRenewed)).sent_ns < broken_ns:
            pass
        assert not a.reports.of(KeyDeleted, LeaseLost)
        assert a.etcd._endpoints[a.etcd._at].address != sick.endpoint
        async with client(sick.endpoint) as alone:
            with pytest.raises(EtcdUnavailable):
                await read(alone)


# ------------------------------------------------------------------ healing


def test_the_pauses_between_connects_leave_room_in_three_seconds() -> None:
    options = dict(OPTIONS)
    attempt_ms = int(options["grpc.min_reconnect_backoff_ms"])
    longest_ms = int(options["grpc.max_reconnect_backoff_ms"]) * 1.2  # gRPC's jitter
    assert attempt_ms + longest_ms + 2 * PAUSE_S * 1000 <= 3000


async def test_after_a_heal_of_the_network_a_leader_is_back_within_three_seconds(
    own_etcd: EmbeddedEtcd,
) -> None:
    async with fleet_of(own_etcd.endpoint, ttl_s=30) as fleet, Proxy(own_etcd.endpoint) as proxy:
        a = fleet.join("a", proxy.endpoint)
        await a.until(WatchOpened)
        proxy.refuse = True
        proxy.cut()
        await a.until(WatchBroken)
        await asyncio.sleep(3)  # long enough for the pauses between connects to be at their longest
        proxy.refuse = False
        healed_ns = CLOCK.boot_ns()
        await a.until(WatchOpened)
        assert (CLOCK.boot_ns() - healed_ns) / NS <= 3
        assert not a.reports.of(KeyDeleted, LeaseLost)


async def test_quorum_lost_and_back_a_leader_is_back_within_three_seconds(tmp_path: Path) -> None:
    """Its member has no leader meanwhile, and says so: whoever asked it goes on to another."""
    with cluster(tmp_path) as members:
        async with fleet_of(*(m.endpoint for m in members), ttl_s=20) as fleet:
            a = fleet.join("a")
            await a.until(WatchOpened)
            for member in members[1:]:
                freeze(member)
            try:
                await a.until(WatchBroken)
                await until_left(a.etcd, members[0].endpoint)
            finally:
                for member in members[1:]:
                    thaw(member)
            healed_ns = CLOCK.boot_ns()
            await a.until(WatchOpened)
            assert (CLOCK.boot_ns() - healed_ns) / NS <= 3
            assert not a.reports.of(KeyDeleted, LeaseLost)


async def until_left(etcd: Etcd, address: str) -> None:
    async with asyncio.timeout(15):
        while etcd._endpoints[etcd._at].address == address:
            with contextlib.suppress(EtcdUnavailable):
                await read(etcd, timeout_s=0.5)
            await asyncio.sleep(0.05)


# ------------------------------------------------------------------ pings

LEAST_PAUSE_MS = 5000
"""etcd's own --grpc-keepalive-min-time, unless told otherwise: who pings oftener is sent away."""
PING_TIMES = (
    "grpc.keepalive_time_ms",
    "grpc.http2.ping_timeout_ms",
    "grpc.keepalive_timeout_ms",
)


def test_pings_are_no_oftener_than_etcd_bears() -> None:
    assert dict(OPTIONS)["grpc.keepalive_time_ms"] > LEAST_PAUSE_MS


async def test_a_ping_that_a_frozen_etcd_does_not_answer_ends_the_connection(
    own_etcd: EmbeddedEtcd,
) -> None:
    """With our own options, but for their times: a stream that nobody asks anything ends."""
    options = [(key, 200 if key in PING_TIMES else value) for key, value in OPTIONS]
    endpoint = Endpoint(own_etcd.endpoint, None, options=options)
    call = endpoint.method("Watch/Watch")()
    try:
        await call.write(pb.WatchRequest(create_request=pb.WatchCreateRequest(key=b"/test/k")))
        assert (await call.read()).created
        freeze(own_etcd)
        with pytest.raises(AioRpcError) as ended:
            await asyncio.wait_for(call.read(), 10)
        assert ended.value.code() is StatusCode.UNAVAILABLE
    finally:
        thaw(own_etcd)
        call.cancel()
        await endpoint.aclose()
