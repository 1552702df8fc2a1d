"""The way to etcd: rotation on evidence, errors that name cause and cure, one event a change."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterator
from pathlib import Path

import pytest

from cron_leader.config import EtcdConfig
from cron_leader.errors import ConfigError, EtcdRefused, EtcdUnavailable
from cron_leader.etcd.channel import Etcd
from cron_leader.etcd.embedded import EmbeddedEtcd, EtcdOptions
from cron_leader.etcd.stubs import rpc
from tests.etcd_kit import (
    CLOCK,
    Authority,
    Emitted,
    client,
    cluster,
    freeze,
    leading,
    read,
    thaw,
    write,
)

DEAD = "127.0.0.1:1"


# ------------------------------------------------------------------ rotation


async def test_a_write_goes_on_to_the_next_endpoint_when_nothing_was_sent(
    shared_etcd: EmbeddedEtcd,
) -> None:
    emit = Emitted()
    async with client(DEAD, shared_etcd.endpoint, emit=emit) as etcd:
        await write(etcd)
    assert emit.names() == []


async def test_an_unanswered_write_is_not_sent_to_another_member(tmp_path: Path) -> None:
    """Though the others would answer: the frozen one does not lead etcd."""
    with cluster(tmp_path) as members:
        frozen, *others = sorted(members, key=lambda m: m is leading(members))
        async with client(*(m.endpoint for m in (frozen, *others))) as etcd:
            freeze(frozen)
            try:
                with pytest.raises(EtcdUnavailable, match="no answer in time"):
                    await write(etcd, timeout_s=0.5)
                await write(etcd, timeout_s=5)  # rotated: the next one goes elsewhere
            finally:
                thaw(frozen)


async def test_a_member_cut_from_its_peers_is_not_believed(tmp_path: Path) -> None:
    with cluster(tmp_path) as members:
        async with client(members[0].endpoint) as etcd:
            await read(etcd)
            for member in members[1:]:
                member.stop()
            said = ""
            while "this member has no leader" not in said:  # it notices after a few timeouts
                with pytest.raises(EtcdUnavailable) as failed:
                    await read(etcd, timeout_s=1)
                said = str(failed.value)


async def test_unreachable_and_back_are_said_once_a_change(own_etcd: EmbeddedEtcd) -> None:
    emit = Emitted()
    async with client(own_etcd.endpoint, emit=emit) as etcd:
        await read(etcd)
        own_etcd.stop()
        for _ in range(3):
            with pytest.raises(EtcdUnavailable):
                await read(etcd)
        own_etcd.start()
        own_etcd.wait_ready()
        for _ in range(50):
            with contextlib.suppress(EtcdUnavailable):
                await read(etcd)
                break
            await asyncio.sleep(0.1)
        await read(etcd)
    assert emit.names() == ["etcd.unreachable", "etcd.back"]
    assert own_etcd.endpoint in str(emit.lines[0][1]["error"])


async def test_a_refused_connection_names_endpoint_cause_and_cure() -> None:
    async with client(DEAD) as etcd:
        with pytest.raises(EtcdUnavailable) as failed:
            await read(etcd)
    assert str(failed.value) == (
        f"etcd {DEAD}: connection refused; is etcd running, and is [etcd] endpoints right?"
    )


async def test_a_host_that_does_not_resolve_is_named() -> None:
    async with client("no-such-host.invalid:2379") as etcd:
        with pytest.raises(EtcdUnavailable, match=r"no-such-host\.invalid:2379: the host name"):
            await read(etcd, timeout_s=5)


# ------------------------------------------------------------------ TLS


@pytest.fixture(scope="module")
def tls_etcd(
    authority: Authority, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[EmbeddedEtcd]:
    """Speaks TLS to clients, and asks for their certificates."""
    cert, key = authority.sign("server", "IP:127.0.0.1")
    extra = (
        f"--cert-file={cert}",
        f"--key-file={key}",
        "--client-cert-auth",
        f"--trusted-ca-file={authority.ca}",
    )
    folder = tmp_path_factory.mktemp("etcd")
    with EmbeddedEtcd(folder / "data", options=EtcdOptions(extra=extra, tls=True)) as etcd:
        yield etcd


async def test_mutual_tls_is_spoken(authority: Authority, tls_etcd: EmbeddedEtcd) -> None:
    cert, key = authority.sign("client", "DNS:client")
    async with client(tls_etcd.endpoint, ca=authority.ca, cert=cert, key=key) as etcd:
        await write(etcd)


async def refusal(etcd: Etcd) -> str:
    with pytest.raises(EtcdRefused) as refused:
        await read(etcd)
    assert refused.value.permanent
    return str(refused.value)


async def test_tls_asked_of_a_plain_port_is_refused_for_good(
    authority: Authority, shared_etcd: EmbeddedEtcd
) -> None:
    async with client(shared_etcd.endpoint, ca=authority.ca) as etcd:
        text = await refusal(etcd)
    assert f"etcd {shared_etcd.endpoint}: TLS asked of a plain port" in text


async def test_plain_to_a_tls_port_is_refused_for_good(tls_etcd: EmbeddedEtcd) -> None:
    async with client(tls_etcd.endpoint) as etcd:
        assert "a plain connection to a TLS port; set [etcd] ca" in await refusal(etcd)


async def test_a_missing_client_certificate_is_refused_for_good(
    authority: Authority, tls_etcd: EmbeddedEtcd
) -> None:
    async with client(tls_etcd.endpoint, ca=authority.ca) as etcd:
        assert "set [etcd] cert and key" in await refusal(etcd)


async def test_a_foreign_ca_is_refused_for_good(
    tls_etcd: EmbeddedEtcd, authority: Authority, tmp_path: Path
) -> None:
    other = Authority(tmp_path / "other")
    async with client(tls_etcd.endpoint, ca=other.ca) as etcd:
        assert "not signed by our CA" in await refusal(etcd)


async def test_one_misconfigured_endpoint_of_two_is_no_refusal(
    authority: Authority, shared_etcd: EmbeddedEtcd
) -> None:
    async with client(shared_etcd.endpoint, DEAD, ca=authority.ca) as etcd:
        with pytest.raises(EtcdUnavailable, match=r"TLS asked of a plain port.*refused"):
            await read(etcd)


async def test_a_missing_ca_file_is_a_configuration_error() -> None:
    with pytest.raises(ConfigError, match=r"\[etcd\] ca = '/no/such.pem'"):
        Etcd(EtcdConfig(("127.0.0.1:1",), ca="/no/such.pem"), clock=CLOCK, emit=Emitted())


# ------------------------------------------------------------------ user and password


@pytest.fixture
async def guarded_etcd(own_etcd: EmbeddedEtcd) -> EmbeddedEtcd:
    """With authentication: root/secret may all, guest/secret nothing."""
    async with client(own_etcd.endpoint) as etcd:
        for method, request in (
            ("UserAdd", rpc.AuthUserAddRequest(name="root", password="secret")),
            ("UserAdd", rpc.AuthUserAddRequest(name="guest", password="secret")),
            ("RoleAdd", rpc.AuthRoleAddRequest(name="root")),
            ("UserGrantRole", rpc.AuthUserGrantRoleRequest(user="root", role="root")),
            ("AuthEnable", rpc.AuthEnableRequest()),
        ):
            await etcd.call(f"Auth/{method}", request, timeout_s=5)
    return own_etcd


async def test_credentials_are_needed_and_checked(guarded_etcd: EmbeddedEtcd) -> None:
    at = guarded_etcd.endpoint
    async with client(at, user="root", password="secret") as etcd:
        await write(etcd)
    async with client(at) as etcd:
        assert "authentication is needed; set [etcd] user" in await refusal(etcd)
    async with client(at, user="root", password="wrong") as etcd:
        assert "wrong user or password" in await refusal(etcd)
    async with client(at, user="guest", password="secret") as etcd:
        assert "it may not read /test/k; grant this user's role" in await refusal(etcd)


async def test_a_token_forgotten_by_etcd_is_asked_for_again(guarded_etcd: EmbeddedEtcd) -> None:
    async with client(guarded_etcd.endpoint, user="root", password="secret") as etcd:
        await write(etcd)
        etcd._token = "forgotten"
        await write(etcd)
        assert etcd._token != "forgotten"


async def test_credentials_where_none_are_asked_do_no_harm(shared_etcd: EmbeddedEtcd) -> None:
    async with client(shared_etcd.endpoint, user="root", password="secret") as etcd:
        await write(etcd)
