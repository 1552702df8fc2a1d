"""One address of etcd and the connection to it, made anew when the TLS files changed on disk."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import grpc
import grpc.aio

from cron_leader.etcd.stubs import rpc
from cron_leader.etcd.tls import TlsFiles

Option = tuple[str, int | str]

# A frozen peer is noticed by http2.ping_timeout_ms (keepalive_timeout_ms alone does not do it);
# pings more often than every 5 s draw GOAWAY too_many_pings; the default reconnect backoff takes
# 28 s to recover from 45 s of refused connections; this one, an attempt of 1 s and a pause of 1.2 s
# at most, makes 3 s from a heal to an open gate; a member that comes back under its name at another
# address would be looked up again after 30 s. Probing for bandwidth keeps a timer and a ping going
# for each reply: half the wake-ups of an idle follower, whose replies are a few bytes.
OPTIONS: Sequence[Option] = (
    ("grpc.keepalive_time_ms", 6000),
    ("grpc.http2.ping_timeout_ms", 2000),
    ("grpc.keepalive_timeout_ms", 2000),
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.http2.max_pings_without_data", 0),
    ("grpc.initial_reconnect_backoff_ms", 500),
    ("grpc.min_reconnect_backoff_ms", 1000),
    ("grpc.max_reconnect_backoff_ms", 1000),
    ("grpc.dns_min_time_between_resolutions_ms", 2000),
    ("grpc.http2.bdp_probe", 0),
    ("grpc.enable_http_proxy", 0),
)
_STUBS = {
    "KV": rpc.KVStub,
    "Lease": rpc.LeaseStub,
    "Watch": rpc.WatchStub,
    "Auth": rpc.AuthStub,
}


class Connection:
    """One channel and how many calls use it; once it is outdated, the last one closes it."""

    def __init__(self, channel: grpc.aio.Channel, edition: int) -> None:
        """edition: of the TLS files it was made with."""
        self.channel = channel
        self.edition = edition
        self.users = 0
        self.outdated = False
        self._stubs = {name: stub(channel) for name, stub in _STUBS.items()}

    def method(self, name: str) -> Callable[..., Any]:
        """The callable of "KV/Range" and the like."""
        service, _, method = name.partition("/")
        found: Callable[..., Any] = getattr(self._stubs[service], method)
        return found

    async def give_back(self) -> None:
        """The end of one use."""
        self.users -= 1
        if self.outdated and not self.users:
            await self.channel.close(None)


class Endpoint:
    """address: host:port, or unix:// and a path. answered: whether it ever did."""

    def __init__(
        self,
        address: str,
        files: TlsFiles | None,
        *,
        server_name: str | None = None,
        options: Sequence[Option] = OPTIONS,
    ) -> None:
        """files None: plain. server_name: in the certificate, if not the address's host."""
        self.address = address
        self.answered = False
        self._files = files
        self._options = (*options, *_names(address, server_name))
        self._connection = self._connect()
        self._outdated: list[Connection] = []

    @property
    def channel(self) -> grpc.aio.Channel:
        return self._connection.channel

    def method(self, name: str) -> Callable[..., Any]:
        """On the connection as it is."""
        return self._connection.method(name)

    async def take(self) -> Connection:
        """The connection, to be given back after one call; a new one if the TLS files changed."""
        if self._files is not None and self._files.refresh() != self._connection.edition:
            await self._replace()
        self._connection.users += 1
        return self._connection

    async def aclose(self) -> None:
        for connection in (self._connection, *self._outdated):
            await connection.channel.close(None)

    async def _replace(self) -> None:
        """Streams stay on the old one until they end."""
        old, self._connection = self._connection, self._connect()
        self._outdated = [one for one in (*self._outdated, old) if one.users]
        old.outdated = True
        if not old.users:
            await old.channel.close(None)

    def _connect(self) -> Connection:
        if self._files is None:
            return Connection(grpc.aio.insecure_channel(self.address, options=self._options), 0)
        channel = grpc.aio.secure_channel(
            self.address, self._files.credentials, options=self._options
        )
        return Connection(channel, self._files.edition)


def _names(address: str, server_name: str | None) -> list[Option]:
    """What a member is called in requests, and in its certificate."""
    name = server_name or ("localhost" if address.startswith("unix:") else None)
    if name is None:
        return []
    return [("grpc.default_authority", name), ("grpc.ssl_target_name_override", name)]
