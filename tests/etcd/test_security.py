"""Least rights and what is missing of them; tokens renewed ahead; certificates replaced on disk."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import json
import os
import shutil
import subprocess
from collections.abc import AsyncIterator, Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from cron_leader.config import EtcdConfig
from cron_leader.core.messages import JoinFailed, LeaseRenewed, WatchOpened
from cron_leader.errors import ConfigError, EtcdRefused, EtcdUnavailable
from cron_leader.etcd.channel import Etcd
from cron_leader.etcd.codes import StaleToken
from cron_leader.etcd.embedded import EmbeddedEtcd, EtcdOptions
from cron_leader.etcd.lease import NS
from cron_leader.etcd.stream import Stream
from cron_leader.etcd.stubs import rpc
from cron_leader.etcd.survey import survey
from cron_leader.etcd.token import SIMPLE_TTL_S, lifetime_ns
from cron_leader.etcd.watch import KeyWatch, Patience, WatchEnded
from tests.etcd_kit import (
    CLOCK,
    PREFIX,
    Authority,
    Emitted,
    Fleet,
    Hand,
    Proxy,
    client,
    etcdctl,
    place_of,
    read,
    write,
)
from tests.guarded_kit import SECRET, as_root, change_password, grant_as_documented, guarded_etcd

TOKEN_TTL_S = 2


@pytest.fixture(scope="module")
def guarded(
    authority: Authority, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[EmbeddedEtcd]:
    """Authentication on; tokens are JWTs of two seconds."""
    key = authority.ca.replace(".pem", ".key")
    folder = tmp_path_factory.mktemp("guarded")
    public = subprocess.run(
        ["openssl", "pkey", "-in", key, "-pubout"], check=True, capture_output=True
    )
    (folder / "public").write_bytes(public.stdout)
    jwt = f"jwt,pub-key={folder}/public,priv-key={key},sign-method=ES256,ttl={TOKEN_TTL_S}s"
    with guarded_etcd(folder, f"--auth-token={jwt}") as etcd:
        yield etcd


@contextlib.asynccontextmanager
async def guarded_fleet(etcd: EmbeddedEtcd) -> AsyncIterator[Fleet]:
    """A fleet whose user, not there yet, is called as it is."""
    fleet = Fleet(etcd.endpoint)
    fleet._access.update(user=fleet.name, password=SECRET)
    try:
        yield fleet
    finally:
        await fleet.close()


def keys_of(fleet: Fleet) -> str:
    return f"{PREFIX}/{fleet.name}/"


# ------------------------------------------------------------------ rights


async def test_the_documented_rights_are_enough(guarded: EmbeddedEtcd) -> None:
    async with guarded_fleet(guarded) as fleet:
        grant_as_documented(guarded, keys_of(fleet), user=fleet.name)
        a = fleet.join("a")
        await a.until(WatchOpened)
        b = fleet.join("b")
        await b.until(LeaseRenewed)
        hand = Hand(fleet.client())
        await hand.until_there(place_of(b))
        seen = await survey(fleet.client(), PREFIX, fleet.name, 0)
        assert [s.node for s in seen.candidates] == ["a", "b"]
        await a.leave()
        await b.until(WatchOpened)
        await b.leave()
        assert not a.candidacy.may_hold
        assert not b.candidacy.may_hold
        assert await hand.get(place_of(b)) is None


@pytest.mark.parametrize(
    ("kind", "under", "lacks"),
    [
        ("write", "", "it may not read {fleet}raised/0;"),
        ("read", "", "it may not write {fleet}elections/0/"),
        ("readwrite", "elections/", "it may not read {fleet}raised/0;"),
        ("readwrite", "raised/", "it may not read {fleet}ledger;"),
    ],
)
async def test_a_right_that_is_missing_is_named(
    guarded: EmbeddedEtcd, kind: str, under: str, lacks: str
) -> None:
    async with guarded_fleet(guarded) as fleet:
        keys = keys_of(fleet)
        grant_as_documented(guarded, keys + under, user=fleet.name, kind=kind)
        failed = await fleet.join("a").until(JoinFailed)
        assert (failed.reason, failed.permanent) == ("refused", True)
        assert f"permission denied to user {fleet.name}" in failed.text
        assert lacks.format(fleet=keys) in failed.text


async def test_asking_for_what_is_missing_changes_nothing(guarded: EmbeddedEtcd) -> None:
    async with guarded_fleet(guarded) as fleet:
        grant_as_documented(guarded, keys_of(fleet), user=fleet.name)
        async with client(guarded.endpoint, user="root", password=SECRET) as root:
            hand = Hand(root)
            await hand.put(f"{PREFIX}/{fleet.name}/k".encode(), b"kept")
            mine, foreign = f"{PREFIX}/{fleet.name}/k".encode(), b"/foreign"
            txn = rpc.TxnRequest(
                success=[rpc.RequestOp(request_put=rpc.PutRequest(key=k)) for k in (mine, foreign)]
            )
            with pytest.raises(EtcdRefused) as refused:
                await fleet.client().call("KV/Txn", txn, timeout_s=5)
            assert "it may not write /foreign;" in str(refused.value)
            assert mine.decode() not in str(refused.value)
            assert (await hand.get(mine)).value == b"kept"
            assert await hand.get(foreign) is None


async def test_a_leader_whose_right_is_taken_gives_the_post_up(guarded: EmbeddedEtcd) -> None:
    async with guarded_fleet(guarded) as fleet, Proxy(guarded.endpoint) as proxy:
        grant_as_documented(guarded, keys_of(fleet), user=fleet.name)
        a = fleet.join("a", proxy.endpoint)
        await a.until(WatchOpened)
        as_root(guarded, "user", "revoke-role", fleet.name, fleet.name)
        proxy.cut()
        failed = await a.until(JoinFailed)
        assert "it may not read" in failed.text


async def test_a_denied_watch_ends_though_it_was_created(guarded: EmbeddedEtcd) -> None:
    async with guarded_fleet(guarded) as fleet:
        grant_as_documented(guarded, keys_of(fleet), user=fleet.name)
        etcd = fleet.client()
        patience = Patience.of(3 * NS, 2.0)
        with pytest.raises(WatchEnded) as ended:
            async with KeyWatch(etcd, [b"/no"], revision=1, patience=patience, clock=CLOCK) as it:
                await it.change()
        assert ended.value.why == "cancelled"


# ------------------------------------------------------------------ tokens


class Tokens(Etcd):
    """Counts logins, refusals of a token, and streams of keepalives."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.logins = self.refusals = self.streams = 0

    async def _authenticate(self, *args: Any) -> str:
        self.logins += 1
        return await super()._authenticate(*args)

    def _ended(self, address: str, failure: EtcdUnavailable | EtcdRefused) -> None:
        self.refusals += isinstance(failure, StaleToken)
        super()._ended(address, failure)

    async def open(self, method: str, *, timeout_s: float) -> Stream:
        self.streams += method == "Lease/LeaseKeepAlive"
        return await super().open(method, timeout_s=timeout_s)


async def test_tokens_are_renewed_before_they_end_for_requests_and_for_streams(
    guarded: EmbeddedEtcd,
) -> None:
    async with guarded_fleet(guarded) as fleet:
        grant_as_documented(guarded, keys_of(fleet), user=fleet.name)
        a = fleet.join("a", kind=Tokens)
        etcd = a.etcd
        assert isinstance(etcd, Tokens)
        await a.until(WatchOpened)
        begun_ns = CLOCK.boot_ns()
        while CLOCK.boot_ns() - begun_ns < 2 * TOKEN_TTL_S * NS:
            await a.until(LeaseRenewed)
            await a.candidacy.verify()
        assert etcd.logins >= 3
        assert etcd.streams >= 2
        assert etcd.refusals == 0


async def test_with_its_token_ended_a_watch_is_opened_again(guarded: EmbeddedEtcd) -> None:
    async with guarded_fleet(guarded) as fleet, Proxy(guarded.endpoint) as proxy:
        grant_as_documented(guarded, keys_of(fleet), user=fleet.name)
        a = fleet.join("a", proxy.endpoint)
        await a.until(WatchOpened)
        a.etcd._token, a.etcd._token_due_ns = "ended", 1 << 62
        proxy.cut()
        await a.until(WatchOpened)
        await a.until(LeaseRenewed)
        assert not a.reports.of(JoinFailed)


async def test_a_login_that_fails_ahead_of_time_does_no_harm_yet(guarded: EmbeddedEtcd) -> None:
    async with client(guarded.endpoint, user="root", password=SECRET) as etcd:
        await write(etcd)
        token, etcd._token_due_ns, etcd._secret = etcd._token, 0, lambda: "wrong"
        await write(etcd)
        assert etcd._token == token
        assert etcd._token_due_ns > CLOCK.boot_ns()


async def test_a_password_replaced_in_its_file_is_the_one_of_the_next_login(
    guarded: EmbeddedEtcd, tmp_path: Path
) -> None:
    async with guarded_fleet(guarded) as fleet:
        grant_as_documented(guarded, keys_of(fleet), user=fleet.name)
        file = tmp_path / "password"
        file.write_text("not yet\n")
        fleet._access.update(password_file=str(file))
        etcd = fleet.client()
        with pytest.raises(EtcdRefused, match="wrong user or password"):
            await survey(etcd, PREFIX, fleet.name, 0)
        file.write_text(f"{SECRET}\n")
        await survey(etcd, PREFIX, fleet.name, 0)
        file.write_text("newer\n")
        change_password(guarded, fleet.name, "newer")
        await survey(etcd, PREFIX, fleet.name, 0)


async def test_authentication_turned_on_later_is_noticed(own_etcd: EmbeddedEtcd) -> None:
    async with client(own_etcd.endpoint, user="root", password=SECRET) as etcd:
        await write(etcd)
        for line in (f"user add root:{SECRET}", "role add root", "user grant-role root root"):
            etcdctl(own_etcd, *line.split())
        etcdctl(own_etcd, "auth", "enable")
        await write(etcd)


def jwt(**claims: float) -> str:
    middle = base64.urlsafe_b64encode(json.dumps(claims).encode()).rstrip(b"=").decode()
    return f"e30.{middle}.sig"


def test_a_token_is_used_for_four_fifths_of_its_life() -> None:
    now = datetime(2026, 1, 1, tzinfo=UTC)
    simple_ns = int(SIMPLE_TTL_S * 0.8 * NS)
    assert lifetime_ns(jwt(exp=now.timestamp() + 100), now) == 80 * NS
    for other in ("simple.42", "a.b.c", "", jwt(), jwt(exp=now.timestamp() - 5), "e30.W10.x"):
        assert lifetime_ns(other, now) == simple_ns


# ------------------------------------------------------------------ certificates


Pair = tuple[str, str]


def install(pair: Pair, folder: Path) -> None:
    """As a careful program does it: written beside, then renamed."""
    for source, name in zip(pair, ("cert", "key"), strict=True):
        shutil.copy(source, folder / "new")
        os.replace(folder / "new", folder / name)


@pytest.fixture
def mutual(authority: Authority, tmp_path: Path) -> Iterator[EmbeddedEtcd]:
    """TLS with certificates of `authority` on both sides; its own stand in tmp_path."""
    install(authority.sign("member", "IP:127.0.0.1"), tmp_path)
    extra = (
        f"--cert-file={tmp_path}/cert",
        f"--key-file={tmp_path}/key",
        "--client-cert-auth",
        f"--trusted-ca-file={authority.ca}",
    )
    with EmbeddedEtcd(tmp_path / "data", options=EtcdOptions(extra=extra, tls=True)) as etcd:
        yield etcd


@pytest.fixture
def mine(tmp_path: Path) -> Path:
    """Where the client's files are."""
    folder = tmp_path / "mine"
    folder.mkdir()
    return folder


def files(folder: Path, ca: str) -> dict[str, str]:
    shutil.copy(ca, folder / "ca")
    return {name: str(folder / name) for name in ("ca", "cert", "key")}


async def test_a_client_certificate_replaced_on_disk_is_taken(
    authority: Authority, mutual: EmbeddedEtcd, mine: Path, tmp_path: Path
) -> None:
    install(Authority(tmp_path / "other").sign("client", "DNS:client"), mine)
    async with client(mutual.endpoint, **files(mine, authority.ca)) as etcd:
        with pytest.raises(EtcdRefused):
            await read(etcd)
        install(authority.sign("client", "DNS:client"), mine)
        await read(etcd)


async def test_a_new_authority_is_followed_when_the_connection_is_made_again(
    authority: Authority, mutual: EmbeddedEtcd, mine: Path, tmp_path: Path
) -> None:
    install(authority.sign("client", "DNS:client"), mine)
    async with (
        Proxy(mutual.endpoint) as proxy,
        client(proxy.endpoint, **files(mine, authority.ca)) as etcd,
    ):
        await read(etcd)
        newer = Authority(tmp_path / "newer")
        install(newer.sign("member", "IP:127.0.0.1"), tmp_path)
        proxy.cut()
        with pytest.raises(EtcdRefused, match="not signed by our CA"):
            await refused(etcd)
        shutil.copy(newer.ca, mine / "ca")
        await read(etcd)


async def refused(etcd: Etcd) -> None:
    """Read until that is refused."""
    async with asyncio.timeout(10):
        while True:
            with contextlib.suppress(EtcdUnavailable):
                await read(etcd)
            await asyncio.sleep(0.05)


async def test_half_a_pair_is_passed_over_and_open_streams_go_on(
    authority: Authority, mutual: EmbeddedEtcd, mine: Path
) -> None:
    install(authority.sign("first", "DNS:client"), mine)
    async with client(mutual.endpoint, **files(mine, authority.ca)) as etcd:
        (end,) = etcd._endpoints
        old = end.channel
        async with await etcd.open("Watch/Watch", timeout_s=5) as stream:
            look: Callable[[], None] = etcd._files.doubt  # type: ignore[union-attr]
            cert, key = authority.sign("second", "DNS:client")
            shutil.copy(cert, mine / "cert")
            look()
            await read(etcd)
            assert end.channel is old
            shutil.copy(key, mine / "key")
            look()
            await read(etcd)
            assert end.channel is not old
            progress = rpc.WatchRequest(create_request=rpc.WatchCreateRequest(key=b"/test/k"))
            await stream.send(progress, timeout_s=5)
            assert (await stream.receive(timeout_s=5)).created
            (kept,) = end._outdated
        assert not kept.users


def test_files_that_do_not_go_together_are_a_configuration_error(
    authority: Authority, mine: Path
) -> None:
    install(authority.sign("one", "DNS:client"), mine)
    shutil.copy(authority.sign("two", "DNS:client")[1], mine / "key")
    with pytest.raises(ConfigError, match="not a certificate and its own key"):
        Etcd(EtcdConfig(("127.0.0.1:1",), **files(mine, authority.ca)), clock=CLOCK, emit=Emitted())
    (mine / "ca").write_text("nothing")
    with pytest.raises(ConfigError, match="no certificate in it"):
        Etcd(EtcdConfig(("127.0.0.1:1",), ca=str(mine / "ca")), clock=CLOCK, emit=Emitted())
