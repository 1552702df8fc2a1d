"""The way to etcd: one channel per endpoint, rotated on our own evidence.

Promises a deadline and `hasleader` on every request, an error of errors.py whose text names
endpoint, cause and cure, and one event per change of reachability. gRPC's own balancing is not
used: a frozen member fails every call under pick_first and a third under round_robin. The channels
serve nothing but the election: lease and watch share them with no busy neighbour.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import grpc
import grpc.aio

from cron_leader.clock import Clock
from cron_leader.errors import ConfigError, EtcdRefused, EtcdUnavailable
from cron_leader.etcd import spare
from cron_leader.etcd.codes import AuthDisabled, Misconfigured, NotSent, StaleToken, to_error
from cron_leader.etcd.probe import mismatch
from cron_leader.etcd.spare import Spare
from cron_leader.etcd.stream import Stream
from cron_leader.etcd.stubs import rpc
from cron_leader.events import Emit

if TYPE_CHECKING:
    from cron_leader.config import EtcdConfig

# A frozen peer is noticed by http2.ping_timeout_ms (keepalive_timeout_ms alone does not do it);
# pings more often than every 5 s draw GOAWAY too_many_pings; the default reconnect backoff takes
# 28 s to recover from 45 s of refused connections, this one 0.4 s.
OPTIONS: Sequence[tuple[str, int]] = (
    ("grpc.keepalive_time_ms", 6000),
    ("grpc.http2.ping_timeout_ms", 2000),
    ("grpc.keepalive_timeout_ms", 2000),
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.http2.max_pings_without_data", 0),
    ("grpc.initial_reconnect_backoff_ms", 500),
    ("grpc.min_reconnect_backoff_ms", 1000),
    ("grpc.max_reconnect_backoff_ms", 2000),
    ("grpc.enable_http_proxy", 0),
)
_READS = frozenset({"KV/Range", "Lease/LeaseTimeToLive"})
_HAS_LEADER = ("hasleader", "true")
_STUBS = {
    "KV": rpc.KVStub,
    "Lease": rpc.LeaseStub,
    "Watch": rpc.WatchStub,
    "Auth": rpc.AuthStub,
}


class Etcd:
    """One client of one cluster. Methods are named "KV/Range", "Lease/LeaseGrant" and so on.

    Must be made inside the event loop it is used in. Several tasks may use it at once.
    """

    def __init__(self, config: EtcdConfig, *, clock: Clock, emit: Emit) -> None:
        tls, addresses = _addresses(config)
        credentials = _credentials(config) if tls else None
        self._tls = tls
        self._credentials = credentials
        self._clock = clock
        self._emit = emit
        self._user = config.user
        self._password = config.password
        self._token: str | None = None
        self._login = asyncio.Lock()
        self._endpoints = [_Endpoint(address, credentials) for address in addresses]
        self._at = 0
        self._failing: set[str] = set()
        self._unreachable = False

    async def call(self, method: str, request: Any, *, timeout_s: float) -> Any:
        """Send to the current endpoint, then to the others: a read until one answers, a write
        only while nothing was sent at all.

        timeout_s bounds each try. Raises EtcdUnavailable (a write perhaps applied, unless NotSent)
        or EtcdRefused (certainly not applied).
        """
        failures: list[EtcdUnavailable | EtcdRefused] = []
        for _ in self._endpoints:
            endpoint = self._endpoints[self._at]
            try:
                return await self._authenticated(endpoint, method, request, timeout_s)
            except (NotSent, Misconfigured) as failure:
                failures.append(failure)
            except EtcdUnavailable as failure:
                if method not in _READS:
                    raise
                failures.append(failure)
        raise _summary(failures)

    async def open(self, method: str, *, timeout_s: float) -> Stream:
        """A stream to the current endpoint; timeout_s bounds the login it may need first."""
        endpoint = self._endpoints[self._at]
        metadata = await self._metadata(endpoint, timeout_s)
        return Stream(
            endpoint.method(method)(metadata=metadata),
            endpoint.address,
            heard=self._answered,
            ended=self._ended,
        )

    def blame(self, address: str, text: str) -> None:
        """Evidence of our own that this endpoint does not answer: go on to the next one."""
        self._failed(address, text)

    def rotate(self, address: str) -> None:
        """Prefer another endpoint than `address` from now on, without calling it unreachable."""
        if self._endpoints[self._at].address == address:
            self._at = (self._at + 1) % len(self._endpoints)

    def spare(self) -> Spare:
        """A second connection to every endpoint, the caller's own to open and to close."""
        endpoints = [
            _Endpoint(endpoint.address, self._credentials, options=spare.OPTIONS)
            for endpoint in self._endpoints
        ]
        return Spare(endpoints, self._known_metadata)

    async def aclose(self) -> None:
        """Close the channels; streams must have been left before."""
        for endpoint in self._endpoints:
            await endpoint.channel.close(None)

    # -------------------------------------------------------------- one request

    async def _authenticated(
        self, endpoint: _Endpoint, method: str, request: Any, timeout_s: float
    ) -> Any:
        """One try, and one more after a fresh login if the token was stale."""
        metadata = await self._metadata(endpoint, timeout_s)
        try:
            return await self._once(endpoint, method, request, timeout_s, metadata)
        except StaleToken:
            if self._user is None:
                raise
        metadata = await self._metadata(endpoint, timeout_s)
        return await self._once(endpoint, method, request, timeout_s, metadata)

    async def _once(
        self,
        endpoint: _Endpoint,
        method: str,
        request: Any,
        timeout_s: float,
        metadata: Sequence[tuple[str, str]],
    ) -> Any:
        try:
            reply = await endpoint.method(method)(request, timeout=timeout_s, metadata=metadata)
        except grpc.aio.AioRpcError as foreign:
            failure = await self._explained(endpoint, to_error(foreign, endpoint.address))
            self._ended(endpoint.address, failure)
            raise failure from None
        self._answered(endpoint.address)
        return reply

    async def _explained(
        self, endpoint: _Endpoint, failure: EtcdUnavailable | EtcdRefused
    ) -> EtcdUnavailable | EtcdRefused:
        """The failure, or Misconfigured if a port that never answered speaks the other protocol."""
        if endpoint.answered or not isinstance(failure, NotSent):
            return failure
        cause = await mismatch(endpoint.address, tls=self._tls)
        if cause is None:
            return failure
        return Misconfigured(f"etcd {endpoint.address}: {cause}", permanent=True)

    # -------------------------------------------------------------- credentials

    async def _metadata(self, endpoint: _Endpoint, timeout_s: float) -> tuple[tuple[str, str], ...]:
        if self._user is None:
            return (_HAS_LEADER,)
        async with self._login:
            if self._token is None:
                self._token = await self._authenticate(endpoint, timeout_s)
        return self._known_metadata()

    def _known_metadata(self) -> tuple[tuple[str, str], ...]:
        return (_HAS_LEADER, ("token", self._token)) if self._token else (_HAS_LEADER,)

    async def _authenticate(self, endpoint: _Endpoint, timeout_s: float) -> str:
        """A token; "" if the cluster asks for none."""
        request = rpc.AuthenticateRequest(name=self._user, password=self._password or "")
        try:
            reply = await self._once(
                endpoint, "Auth/Authenticate", request, timeout_s, (_HAS_LEADER,)
            )
        except AuthDisabled:
            return ""
        return str(reply.token)

    # -------------------------------------------------------------- evidence

    def _ended(self, address: str, failure: EtcdUnavailable | EtcdRefused) -> None:
        match failure:
            case StaleToken():
                self._token = None
                self._answered(address)
            case EtcdUnavailable() | Misconfigured():
                self._failed(address, str(failure))
            case _:
                self._answered(address)

    def _failed(self, address: str, text: str) -> None:
        self.rotate(address)
        self._failing.add(address)
        if len(self._failing) == len(self._endpoints) and not self._unreachable:
            self._unreachable = True
            self._emit("etcd.unreachable", error=text)

    def _answered(self, address: str) -> None:
        self._failing.clear()
        for endpoint in self._endpoints:
            endpoint.answered |= endpoint.address == address
        if self._unreachable:
            self._unreachable = False
            self._emit("etcd.back")


class _Endpoint:
    """One address, its channel, and whether it ever answered."""

    def __init__(
        self,
        address: str,
        credentials: grpc.ChannelCredentials | None,
        *,
        options: Sequence[tuple[str, int]] = OPTIONS,
    ) -> None:
        self.address = address
        self.answered = False
        if credentials is None:
            self.channel = grpc.aio.insecure_channel(address, options=options)
        else:
            self.channel = grpc.aio.secure_channel(address, credentials, options=options)
        self._stubs = {name: stub(self.channel) for name, stub in _STUBS.items()}

    def method(self, name: str) -> Callable[..., Any]:
        service, _, method = name.partition("/")
        found: Callable[..., Any] = getattr(self._stubs[service], method)
        return found


def _summary(failures: Sequence[EtcdUnavailable | EtcdRefused]) -> EtcdUnavailable | EtcdRefused:
    """One error for all endpoints: permanent only if a person must act on every one of them."""
    text = "; ".join(dict.fromkeys(str(failure) for failure in failures))
    if all(isinstance(failure, Misconfigured) for failure in failures):
        return EtcdRefused(text, permanent=True)
    if all(isinstance(failure, NotSent | Misconfigured) for failure in failures):
        return NotSent(text)
    return EtcdUnavailable(text)


def _addresses(config: EtcdConfig) -> tuple[bool, list[str]]:
    """Whether TLS is spoken, and the endpoints as host:port."""
    schemes = {e.partition("://")[0] for e in config.endpoints if "://" in e}
    if "http" in schemes and (config.ca or config.cert or "https" in schemes):
        raise ConfigError(
            "[etcd] endpoints: http:// does not go with https://, ca or cert; use one protocol"
        )
    tls = bool(config.ca or config.cert or "https" in schemes)
    return tls, [e.rpartition("://")[2].rstrip("/") for e in config.endpoints]


def _credentials(config: EtcdConfig) -> grpc.ChannelCredentials:
    return grpc.ssl_channel_credentials(
        root_certificates=_pem("ca", config.ca),
        private_key=_pem("key", config.key),
        certificate_chain=_pem("cert", config.cert),
    )


def _pem(name: str, path: str | None) -> bytes | None:
    if path is None:
        return None
    try:
        return Path(path).read_bytes()
    except OSError as error:
        raise ConfigError(f"[etcd] {name} = {path!r}: {error.strerror}; name a PEM file") from error
