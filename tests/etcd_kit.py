"""Real etcds for tests, ways to disturb them, and candidacies whose reports can be waited for."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import os
import secrets
import shutil
import signal
import subprocess
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from http.client import HTTPConnection
from pathlib import Path
from typing import Any, TypeVar

from cron_leader.clock import SystemClock
from cron_leader.config import EtcdConfig
from cron_leader.core.messages import Event
from cron_leader.core.model import Mark
from cron_leader.etcd import requests
from cron_leader.etcd.channel import Etcd
from cron_leader.etcd.drift import Drift
from cron_leader.etcd.election import Candidacy
from cron_leader.etcd.embedded import (
    EmbeddedEtcd,
    EtcdOptions,
    Ports,
    _packaged_etcd,
    find_etcd,
)
from cron_leader.etcd.keys import Seat
from cron_leader.etcd.lease import NS, hex_id
from cron_leader.etcd.stubs import rpc

PREFIX = "/test"
TIMEOUT_S = 15.0
"""For signals that must come; never a pause."""

CLOCK = SystemClock()
QUICK = EtcdOptions(heartbeat_ms=20, election_ms=100)
"""For a member that is alone: it elects itself sooner."""
_fleets = itertools.count()
E = TypeVar("E")


def freeze(etcd: EmbeddedEtcd) -> None:
    os.kill(etcd.pid, signal.SIGSTOP)


def thaw(etcd: EmbeddedEtcd) -> None:
    os.kill(etcd.pid, signal.SIGCONT)


def status(member: EmbeddedEtcd) -> tuple[str, str]:
    """Its own id, and that of the member it takes for etcd's leader."""
    connection = HTTPConnection(member.endpoint, timeout=5)
    connection.request("POST", "/v3/maintenance/status", body=b"{}")
    said = json.loads(connection.getresponse().read())
    connection.close()
    return said["header"]["member_id"], said["leader"]


def leading(members: Sequence[EmbeddedEtcd]) -> EmbeddedEtcd:
    """The member that leads etcd."""
    return next(m for m in members if len({*status(m)}) == 1)


def binaries() -> list[Path]:
    """The one found first and, if it is another, the packaged one: usually 3.4 and 3.5."""
    packaged = _packaged_etcd()
    return list(dict.fromkeys(p for p in (find_etcd(), packaged) if p is not None))


@contextlib.contextmanager
def cluster(
    folder: Path,
    *,
    size: int = 3,
    options: EtcdOptions | None = None,
    binary: Path | None = None,
) -> Iterator[list[EmbeddedEtcd]]:
    """`size` members on loopback, all of them ready. binary None: the one found first."""
    ports = {f"m{i}": Ports.draw() for i in range(size)}
    members = [
        EmbeddedEtcd(folder / name, name=name, peers=ports, options=options, binary=binary)
        for name in ports
    ]
    try:
        for member in members:
            member.start()
        for member in members:
            member.wait_ready()
        yield members
    finally:
        for member in members:
            member.kill()


class Emitted:
    """Stands for the emitter: keeps what was said."""

    def __init__(self) -> None:
        self.lines: list[tuple[str, dict[str, object]]] = []

    def __call__(self, event: str, **fields: object) -> None:
        lease = fields.get("lease", f"{0:016x}")
        assert isinstance(lease, str), event
        assert len(lease) == 16, event
        self.lines.append((event, fields))

    def names(self) -> list[str]:
        return [name for name, _ in self.lines]


class CountingEtcd(Etcd):
    """Keeps the methods it was asked for."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.asked: list[str] = []
        self._news = asyncio.Event()

    async def call(self, method: str, request: Any, *, timeout_s: float) -> Any:
        self.asked.append(method)
        self._news.set()
        return await super().call(method, request, timeout_s=timeout_s)

    async def until_asked(self, *methods: str) -> None:
        """Until these were the latest, in this order."""
        while tuple(self.asked[-len(methods) :]) != methods:
            self._news.clear()
            await self._news.wait()


class Recorder:
    """Stands for the daemon's inbox: keeps events, and waits for the next of a kind."""

    def __init__(self) -> None:
        self.events: list[Event] = []
        self._seen = 0
        self._news = asyncio.Event()

    def __call__(self, event: Event) -> None:
        self.events.append(event)
        self._news.set()

    def of(self, *kinds: type[E]) -> list[E]:
        return [event for event in self.events if isinstance(event, kinds)]

    async def until(self, *kinds: type[E], timeout_s: float = TIMEOUT_S) -> E:
        """The next event of these kinds after the one returned last."""
        try:
            async with asyncio.timeout(timeout_s):
                while True:
                    while self._seen < len(self.events):
                        event = self.events[self._seen]
                        self._seen += 1
                        if isinstance(event, kinds):
                            return event
                    self._news.clear()
                    await self._news.wait()
        except TimeoutError:
            wanted = " or ".join(kind.__name__ for kind in kinds)
            raise AssertionError(f"not within {timeout_s:g} s: {wanted}") from None


class Node:
    """A candidacy with what it needs, running in a task."""

    def __init__(self, etcd: Etcd, seat: Seat, emit: Emitted, mark: Mark | None) -> None:
        self.etcd = etcd
        self.seat = seat
        self.emit = emit
        self.well = True
        self.mark = mark
        self.reports = Recorder()
        self.candidacy = Candidacy(
            etcd,
            seat,
            report=self.reports,
            clock=CLOCK,
            emit=emit,
            may_renew=lambda: self.well,
            read_mark=self._read_mark,
            met=Drift(seat.node, seat.digest, emit=emit).met,
        )
        self.task = asyncio.create_task(self.candidacy.run(), name=f"node {seat.node}")

    async def until(self, *kinds: type[E], timeout_s: float = TIMEOUT_S) -> E:
        return await self.reports.until(*kinds, timeout_s=timeout_s)

    async def _read_mark(self) -> Mark | None:
        return self.mark

    async def leave(self) -> None:
        await self.candidacy.leave()
        await self.task


class Fleet:
    """Makes nodes of one fresh fleet, and closes whatever is left of them at the end."""

    def __init__(self, *endpoints: str, ttl_s: int = 3, **access: str) -> None:
        """access: what EtcdConfig has beside endpoints."""
        self.endpoints = endpoints
        self._access = access
        self.name = f"f{next(_fleets)}"
        self.ttl_s = ttl_s
        self.nodes: list[Node] = []
        self._clients: list[Etcd] = []

    def client(self, *endpoints: str, emit: Emitted | None = None, kind: type[Etcd] = Etcd) -> Etcd:
        config = EtcdConfig(endpoints or self.endpoints, **self._access)
        etcd = kind(config, clock=CLOCK, emit=emit or Emitted())
        self._clients.append(etcd)
        return etcd

    def join(
        self,
        name: str,
        *endpoints: str,
        ledger: str = "ledger-1",
        lease: int | None = None,
        kind: type[Etcd] = Etcd,
        mark: Mark | None = None,
        digest: str = "d",
    ) -> Node:
        seat = Seat(
            prefix=PREFIX,
            fleet=self.name,
            shard=0,
            node=name,
            nonce=secrets.token_hex(16),
            lease=lease or secrets.randbits(62) + 1,
            ttl_ns=self.ttl_s * NS,
            renew_ns=self.ttl_s * NS // 3,
            ledger_id=ledger,
            version="0",
            digest=digest,
        )
        emit = Emitted()
        node = Node(self.client(*endpoints, emit=emit, kind=kind), seat, emit, mark)
        self.nodes.append(node)
        return node

    async def close(self) -> None:
        await asyncio.gather(*(node.leave() for node in self.nodes))
        for client in self._clients:
            await client.aclose()


@contextlib.asynccontextmanager
async def fleet_of(*endpoints: str, ttl_s: int = 3, **access: str) -> AsyncIterator[Fleet]:
    fleet = Fleet(*endpoints, ttl_s=ttl_s, **access)
    try:
        yield fleet
    finally:
        await fleet.close()


class Hand:
    """An operator with etcdctl."""

    def __init__(self, etcd: Etcd) -> None:
        self._etcd = etcd

    async def put(self, key: bytes, value: bytes, *, lease: int = 0) -> int:
        request = rpc.PutRequest(key=key, value=value, lease=lease)
        return int((await self._call("KV/Put", request)).header.revision)

    async def delete(self, key: bytes) -> None:
        await self._call("KV/DeleteRange", rpc.DeleteRangeRequest(key=key))

    async def get(self, key: bytes) -> Any:
        """The key-value, or None."""
        kvs = (await self._call("KV/Range", requests.get(key))).kvs
        return kvs[0] if kvs else None

    async def grant(self, ttl_s: int) -> int:
        return int((await self._call("Lease/LeaseGrant", rpc.LeaseGrantRequest(TTL=ttl_s))).ID)

    async def revoke(self, lease: int) -> None:
        await self._call("Lease/LeaseRevoke", rpc.LeaseRevokeRequest(ID=lease))

    async def lease_exists(self, lease: int) -> bool:
        reply = await self._call("Lease/LeaseTimeToLive", rpc.LeaseTimeToLiveRequest(ID=lease))
        return bool(reply.TTL > 0)

    async def compact(self) -> None:
        """Everything up to a revision made for the purpose."""
        revision = await self.put(b"/test/compacted", b"")
        await self._call("KV/Compact", rpc.CompactionRequest(revision=revision, physical=True))

    async def until_there(self, key: bytes) -> None:
        await self._until(key, there=True)

    async def until_gone(self, key: bytes) -> None:
        await self._until(key, there=False)

    async def _until(self, key: bytes, *, there: bool) -> None:
        async with asyncio.timeout(TIMEOUT_S):
            while True:
                if (await self.get(key) is not None) is there:
                    return
                await asyncio.sleep(0.02)

    async def _call(self, method: str, request: Any) -> Any:
        return await self._etcd.call(method, request, timeout_s=5.0)


class Proxy:
    """A TCP proxy on loopback that can lose or hold back what passes.

    on_request(data) is called with what the client sends before it is passed on. refuse: new
    connections are closed at once. drop_replies: requests pass, what comes back does not, not even
    the greeting of a new connection. hold_watch_requests: what asks for a watch waits for this
    event.
    """

    def __init__(self, target: str) -> None:
        host, _, port = target.rpartition(":")
        self._target = (host, int(port))
        self._pumps: set[asyncio.Task[None]] = set()
        self._writers: set[asyncio.StreamWriter] = set()
        self._server: asyncio.Server | None = None
        self.on_request: Callable[[bytes], None] = lambda data: None
        self.cut_at_next_reply = False
        self.hold_replies_s = 0.0
        self.refuse = False
        self.drop_replies = False
        self.hold_watch_requests: asyncio.Event | None = None
        self.watch_request_held = asyncio.Event()
        self.connections = 0

    async def __aenter__(self) -> Proxy:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        return self

    async def __aexit__(self, *exc: object) -> None:
        assert self._server is not None
        self._server.close()
        self.cut()
        if self._pumps:
            await asyncio.wait(self._pumps)
        await self._server.wait_closed()

    @property
    def endpoint(self) -> str:
        assert self._server is not None
        return f"127.0.0.1:{self._server.sockets[0].getsockname()[1]}"

    def cut(self) -> None:
        """Close every connection that is open."""
        for writer in tuple(self._writers):
            writer.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        if self.refuse:
            writer.close()
            return
        try:
            far_reader, far_writer = await asyncio.open_connection(*self._target)
        except OSError:
            writer.close()
            return
        self._writers |= {writer, far_writer}
        for pump in (self._up(reader, far_writer), self._down(far_reader, writer)):
            task = asyncio.create_task(pump)
            self._pumps.add(task)
            task.add_done_callback(self._pumps.discard)

    async def _up(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):
            while data := await reader.read(65536):
                self.on_request(data)
                if self.hold_watch_requests is not None and b"Watch" in data:
                    self.watch_request_held.set()
                    await self.hold_watch_requests.wait()
                writer.write(data)
                await writer.drain()
        writer.close()
        self._writers.discard(writer)

    async def _down(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):
            while data := await reader.read(65536):
                if self.cut_at_next_reply:
                    self.cut_at_next_reply = False
                    self.cut()
                    break
                if self.drop_replies:
                    continue
                if self.hold_replies_s:
                    await asyncio.sleep(self.hold_replies_s)
                writer.write(data)
                await writer.drain()
        writer.close()
        self._writers.discard(writer)


class Authority:
    """A throw-away CA and what it signs, by the openssl program."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        folder.mkdir()
        self._openssl("req", "-x509", *self._fresh("ca"), "-subj", "/CN=ca", "-days", "2")

    def sign(self, name: str, san: str) -> tuple[str, str]:
        """Paths of certificate and key."""
        (self._folder / "ext").write_text(f"subjectAltName={san}")
        self._openssl("req", *self._fresh(name, "csr"), "-subj", f"/CN={name}")
        self._openssl(
            "x509", "-req", "-in", f"{name}.csr", "-CA", "ca.pem", "-CAkey", "ca.key",
            "-CAcreateserial", "-out", f"{name}.pem", "-days", "2", "-extfile", "ext",
        )  # fmt: skip
        return str(self._folder / f"{name}.pem"), str(self._folder / f"{name}.key")

    @property
    def ca(self) -> str:
        return str(self._folder / "ca.pem")

    def _fresh(self, name: str, kind: str = "pem") -> list[str]:
        curve = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"]
        return [*curve, "-keyout", f"{name}.key", "-out", f"{name}.{kind}"]

    def _openssl(self, *args: str) -> None:
        subprocess.run(["openssl", *args], cwd=self._folder, check=True, capture_output=True)


@contextlib.asynccontextmanager
async def client(
    *endpoints: str, emit: Emitted | None = None, **config: str
) -> AsyncIterator[Etcd]:
    etcd = Etcd(EtcdConfig(endpoints, **config), clock=CLOCK, emit=emit or Emitted())
    try:
        yield etcd
    finally:
        await etcd.aclose()


async def read(etcd: Etcd, timeout_s: float = 2.0) -> int:
    reply = await etcd.call("KV/Range", requests.get(b"/test/k"), timeout_s=timeout_s)
    return int(reply.header.revision)


async def write(etcd: Etcd, timeout_s: float = 2.0) -> None:
    await etcd.call("KV/Put", rpc.PutRequest(key=b"/test/k", value=b""), timeout_s=timeout_s)


def etcdctl(etcd: EmbeddedEtcd, *words: str, user: str = "", said: str = "") -> str:
    """What etcdctl prints, given `said` to read."""
    program = shutil.which("etcdctl") or str(find_etcd().parent / "etcdctl")
    env = {"ETCDCTL_API": "3", "ETCDCTL_ENDPOINTS": etcd.endpoint}
    env |= {"ETCDCTL_USER": user} if user else {}
    done = subprocess.run(
        [program, *words], env=env, input=said, text=True, capture_output=True, timeout=20
    )
    assert done.returncode == 0, (words, done.stderr)
    return done.stdout


def place_of(node: Node) -> bytes:
    return node.seat.place_key


def lease_hex(node: Node) -> str:
    return hex_id(node.seat.lease)
