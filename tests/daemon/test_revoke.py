"""The supervisor revokes a dead daemon's lease on a real etcd, however etcd is reached."""

from __future__ import annotations

import base64
import errno
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from http.client import HTTPConnection
from pathlib import Path
from types import SimpleNamespace

import grpc
import pytest
from etcd3.etcdrpc import rpc_pb2, rpc_pb2_grpc

from cron_leader.config import EtcdConfig
from cron_leader.etcd.embedded import EmbeddedEtcd, EtcdOptions, Ports, find_etcd
from cron_leader.supervision.groups import Lease, boot_ns
from cron_leader.supervision.log import Log
from cron_leader.supervision.loop import Supervisor
from cron_leader.supervision.notify import Notify
from cron_leader.supervision.revoke import NOT_FOUND, OK, secret, try_revoke
from tests.daemon.supervised import SUPERVISOR, Supervised, endpoint

pytestmark = pytest.mark.skipif(not os.path.exists("/proc/self/stat"), reason="needs /proc")

LEASE = 0x6B2F_0000_0000_0007
TTL_S = 60


@pytest.fixture(scope="module")
def etcd(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedEtcd]:
    with EmbeddedEtcd(tmp_path_factory.mktemp("etcd") / "member") as member:
        yield member


@pytest.fixture
def node() -> Iterator[Supervised]:
    it = Supervised("--node", "a", "--fleet", "f")
    yield it
    it.close()


def ask(at: str, path: str, *, token: str = "", **body: object) -> dict[str, object]:
    """One call through etcd's JSON gateway; its answer, an error being one."""
    connection = HTTPConnection(at, timeout=5)
    headers = {"Authorization": token} if token else {}
    connection.request("POST", f"/v3/{path}", json.dumps(body), headers)
    answer: dict[str, object] = json.loads(connection.getresponse().read())
    connection.close()
    return answer


def grant(at: str) -> None:
    assert ask(at, "lease/grant", ID=str(LEASE), TTL=str(TTL_S))["TTL"] == str(TTL_S)


def is_gone(at: str) -> bool:
    return ask(at, "lease/timetolive", ID=str(LEASE))["TTL"] == "-1"


def told(*endpoints: str, **access: str) -> Lease:
    said = dict.fromkeys(("ca", "cert", "key", "user", "password")) | access
    return Lease(said | {"lease": LEASE, "ttl_ns": TTL_S * 10**9, "endpoints": endpoints})


def peak_kb(at: str, files: Mapping[str, str]) -> int:
    """Most memory, the supervisor's parts imported, of a process that revokes over TLS."""
    said = {**dict.fromkeys(("user", "password")), **files, "lease": LEASE, "ttl_ns": 1}
    script = (
        "import json, sys; sys.path.insert(0, sys.argv[1])\n"
        "from supervision import loop, start, revoke, groups\n"
        "lease = groups.Lease(json.loads(sys.argv[3]) | {'endpoints': [sys.argv[2]]})\n"
        "assert revoke.try_revoke('https://' + sys.argv[2], lease) in (0, 5)\n"
        "import re; print(re.search(r'VmHWM:\\s+(\\d+)', open('/proc/self/status').read())[1])\n"
    )
    argv = [sys.executable, "-S", "-E", "-c", script, str(SUPERVISOR.parent), at, json.dumps(said)]
    return int(subprocess.run(argv, check=True, capture_output=True, text=True).stdout)


# ------------------------------------------------------------------ plain


def test_a_dead_daemons_lease_is_revoked_at_once(etcd: EmbeddedEtcd, node: Supervised) -> None:
    grant(etcd.endpoint)
    node.lease(LEASE, etcd.endpoint, ttl_s=TTL_S)
    node.run()
    node.kill_daemon()
    node.event("supervisor.killed")
    revoked = node.event("supervisor.revoked")
    assert (revoked["lease"], revoked["ok"]) == (f"{LEASE:016x}", True)
    assert revoked["duration_ms"] < 1000
    assert is_gone(etcd.endpoint)
    assert node.exit_code() == 137


def test_a_daemon_that_left_by_itself_leaves_nothing_to_revoke(
    etcd: EmbeddedEtcd, node: Supervised
) -> None:
    grant(etcd.endpoint)
    node.lease(LEASE, etcd.endpoint)
    node.say("released", lease=LEASE)
    node.order(exit=0)
    assert node.exit_code() == 0
    assert not is_gone(etcd.endpoint)
    assert try_revoke(etcd.endpoint, told()) == OK


def test_a_late_word_that_a_lease_is_released_does_not_spare_the_next_one(
    etcd: EmbeddedEtcd, node: Supervised
) -> None:
    node.lease(LEASE - 1, etcd.endpoint)
    grant(etcd.endpoint)
    node.lease(LEASE, etcd.endpoint)
    node.say("released", lease=LEASE - 1)
    node.run()
    node.kill_daemon()
    node.event("supervisor.killed")
    assert node.event("supervisor.revoked")["ok"]
    assert is_gone(etcd.endpoint)


def test_a_second_signal_revokes_too(etcd: EmbeddedEtcd, node: Supervised) -> None:
    grant(etcd.endpoint)
    node.lease(LEASE, etcd.endpoint)
    os.kill(node.pid, signal.SIGTERM)
    node.told("signal")
    os.kill(node.pid, signal.SIGTERM)
    assert node.event("supervisor.revoked")["ok"]
    assert node.exit_code() == 143
    assert is_gone(etcd.endpoint)


def test_one_endpoint_that_answers_is_enough(etcd: EmbeddedEtcd, node: Supervised) -> None:
    grant(etcd.endpoint)
    closed = f"127.0.0.1:{Ports.draw().client}"
    with endpoint() as silent:
        node.lease(LEASE, silent.address, closed, f"http://{etcd.endpoint}", ttl_s=TTL_S)
        node.kill_daemon()
        revoked = node.event("supervisor.revoked")
    assert revoked["ok"]
    assert revoked["duration_ms"] < 1000
    assert is_gone(etcd.endpoint)


def test_no_process_to_be_had_for_one_endpoint_does_not_keep_the_others_from_revoking(
    etcd: EmbeddedEtcd, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nor the supervisor from passing on the daemon's status."""
    grant(etcd.endpoint)
    ours, theirs = socket.socketpair()
    read, write = os.pipe()
    signals = SimpleNamespace(fd=read, take=lambda: iter(()))
    supervisor = Supervisor(
        os.getpid(), ours, signals=signals, log=Log("json", "a", "f"), notify=Notify("", 0)
    )
    forks = iter([OSError(errno.EAGAIN, "no process"), None])

    def fork(real: Callable[[], int] = os.fork) -> int:
        if error := next(forks):
            raise error
        return real()

    monkeypatch.setattr(os, "fork", fork)
    until_ns = boot_ns() + 5 * 10**9
    assert supervisor._revoke(told("127.0.0.1:1", etcd.endpoint), until_ns) == ""
    assert is_gone(etcd.endpoint)
    for end in (ours, theirs):
        end.close()
    for fd in (read, write):
        os.close(fd)


def test_a_lease_that_was_never_granted_counts_as_gone(
    etcd: EmbeddedEtcd, node: Supervised
) -> None:
    node.lease(LEASE, etcd.endpoint, ttl_s=TTL_S)
    node.kill_daemon()
    assert node.event("supervisor.revoked")["ok"]


def test_when_etcd_is_down_it_gives_up_after_one_ttl(node: Supervised) -> None:
    node.lease(LEASE, f"127.0.0.1:{Ports.draw().client}", ttl_s=0.5)
    node.kill_daemon()
    revoked = node.event("supervisor.revoked")
    assert (revoked["ok"], revoked["error"]) == (False, "no endpoint has confirmed it")
    assert 500 <= revoked["duration_ms"] < 2000
    assert node.exit_code() == 137


def test_etcd_is_tried_again_until_it_is_back(tmp_path: Path, node: Supervised) -> None:
    with EmbeddedEtcd(tmp_path / "member") as member:
        grant(member.endpoint)
        os.kill(member.pid, signal.SIGSTOP)
        node.lease(LEASE, member.endpoint, ttl_s=TTL_S)
        node.kill_daemon()
        os.kill(member.pid, signal.SIGCONT)
        assert node.event("supervisor.revoked")["ok"]
        assert is_gone(member.endpoint)


# ------------------------------------------------------------------ passwords, TLS


@pytest.fixture(scope="module")
def pki(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A CA, and a certificate it signed for both ends."""
    if not shutil.which("openssl"):
        if os.environ.get("CRON_LEADER_REQUIRE_ALL") == "1":
            pytest.fail("needs openssl")
        pytest.skip("needs openssl")
    place = tmp_path_factory.mktemp("pki")
    (place / "ext").write_text("subjectAltName=IP:127.0.0.1,DNS:localhost\n")
    for line in (
        "req -x509 -newkey rsa:2048 -nodes -keyout ca.key -out ca.pem -days 2 -subj /CN=ca",
        "req -newkey rsa:2048 -nodes -keyout node.key -out node.csr -subj /CN=node",
        "x509 -req -in node.csr -CA ca.pem -CAkey ca.key -CAcreateserial -days 2 -extfile ext"
        " -out node.pem",
        "rsa -in ca.key -pubout -out ca.pub",
    ):
        subprocess.run(["openssl", *line.split()], cwd=place, check=True, capture_output=True)
    return place


def test_with_a_user_it_authenticates_first(tmp_path: Path, pki: Path, node: Supervised) -> None:
    signed = f"--auth-token=jwt,pub-key={pki}/ca.pub,priv-key={pki}/ca.key,sign-method=RS256"
    with EmbeddedEtcd(tmp_path / "member", options=EtcdOptions(extra=[signed])) as member:
        at = member.endpoint
        for path, body in (
            ("user/add", {"name": "root", "password": "secret"}),
            ("role/add", {"name": "root"}),
            ("user/grant", {"user": "root", "role": "root"}),
            ("enable", {}),
        ):
            ask(at, f"auth/{path}", **body)
        token = str(ask(at, "auth/authenticate", name="root", password="secret")["token"])
        assert len(token) > 127
        ask(at, "lease/grant", token=token, ID=str(LEASE), TTL=str(TTL_S))
        key = base64.b64encode(b"guarded").decode()
        ask(at, "kv/put", token=token, key=key, value=key, lease=str(LEASE))
        assert try_revoke(at, told()) not in (OK, NOT_FOUND)
        assert try_revoke(at, told(user="root", password="wrong")) not in (OK, NOT_FOUND)
        replaced = tmp_path / "password"  # after the lease was told
        node.lease(LEASE, at, user="root", password="older", password_file=str(replaced))
        replaced.write_text("secret\n")
        node.kill_daemon()
        assert node.event("supervisor.revoked")["ok"]
        assert "kvs" not in ask(at, "kv/range", token=token, key=key)


@pytest.mark.parametrize(
    ("written", "meant"),
    [("new\r\nignored\n", "new"), ("new", "new"), ("", "told"), (None, "told")],
)
def test_the_password_is_the_one_in_its_file_while_that_has_one(
    tmp_path: Path, written: str | None, meant: str
) -> None:
    file = tmp_path / "password"
    if written is not None:
        file.write_bytes(written.encode())
    access = {"user": "root", "password": "told", "password_file": str(file)}
    assert secret(told(**access)) == EtcdConfig((), **access).secret() == meant


def test_with_client_certificates_it_speaks_tls(
    tmp_path: Path, pki: Path, node: Supervised
) -> None:
    files = {"ca": f"{pki}/ca.pem", "cert": f"{pki}/node.pem", "key": f"{pki}/node.key"}
    at = f"127.0.0.1:{Ports.draw().client}"
    peer = f"http://127.0.0.1:{Ports.draw().peer}"
    argv = [str(find_etcd()), f"--data-dir={tmp_path}/data", f"--initial-cluster=default={peer}",
            f"--listen-peer-urls={peer}", f"--initial-advertise-peer-urls={peer}",
            f"--listen-client-urls=https://{at}", f"--advertise-client-urls=https://{at}",
            f"--trusted-ca-file={files['ca']}", f"--cert-file={files['cert']}",
            f"--key-file={files['key']}", "--client-cert-auth", "--logger=zap"]  # fmt: skip
    with (tmp_path / "log").open("wb") as log, subprocess.Popen(argv, stderr=log) as member:
        try:
            secrets = (Path(files[name]).read_bytes() for name in ("ca", "key", "cert"))
            with grpc.secure_channel(at, grpc.ssl_channel_credentials(*secrets)) as channel:
                leases = rpc_pb2_grpc.LeaseStub(channel)
                leases.LeaseGrant(
                    rpc_pb2.LeaseGrantRequest(ID=LEASE, TTL=TTL_S), timeout=20, wait_for_ready=True
                )
                node.lease(LEASE, f"https://{at}", **files)
                node.kill_daemon()
                assert node.event("supervisor.revoked")["ok"]
                left = leases.LeaseTimeToLive(rpc_pb2.LeaseTimeToLiveRequest(ID=LEASE), timeout=5)
                assert left.TTL == -1
            assert try_revoke(at, told()) is None
            assert peak_kb(at, files) <= 20 * 1024
        finally:
            member.kill()
