"""The way to etcd: one channel per endpoint, rotated on our own evidence.

Promises a deadline and `hasleader` on every request, an error of errors.py whose text names
endpoint, cause and cure, and one event per change of reachability. gRPC's own balancing is not
used: a frozen member fails every call under pick_first and a third under round_robin. The channels
serve nothing but the election: lease and watch share them with no busy neighbour.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import grpc
import grpc.aio

from cron_leader.clock import Clock
from cron_leader.errors import ConfigError, EtcdRefused, EtcdUnavailable
from cron_leader.etcd import requests, rights, spare
from cron_leader.etcd.codes import (
    GRANT,
    AuthDisabled,
    Denied,
    Misconfigured,
    NoToken,
    NotSent,
    StaleToken,
    to_error,
)
from cron_leader.etcd.endpoint import Endpoint
from cron_leader.etcd.probe import UNIX, mismatch
from cron_leader.etcd.seen import Seen
from cron_leader.etcd.spare import Spare
from cron_leader.etcd.stream import Stream
from cron_leader.etcd.stubs import rpc
from cron_leader.etcd.tls import TlsFiles
from cron_leader.etcd.token import RETRY_NS, lifetime_ns
from cron_leader.events import Emit

if TYPE_CHECKING:
    from cron_leader.config import EtcdConfig

_READS = frozenset({"KV/Range", "Lease/LeaseTimeToLive"})
_HAS_LEADER = ("hasleader", "true")


class Etcd:
    """One client of one cluster. Methods are named "KV/Range", "Lease/LeaseGrant" and so on.

    Must be made inside the event loop it is used in. Several tasks may use it at once.
    """

    def __init__(self, config: EtcdConfig, *, clock: Clock, emit: Emit) -> None:
        tls, addresses = _addresses(config)
        self._files = TlsFiles(config, clock=clock) if tls else None
        self._server_name = config.server_name
        self._clock = clock
        self._emit = emit
        self._user = config.user
        self._secret = config.secret
        self._token: str | None = None
        self._token_due_ns = 0
        self._login = asyncio.Lock()
        self._endpoints = [
            Endpoint(address, self._files, server_name=config.server_name) for address in addresses
        ]
        self._at = 0
        self._seen = Seen()
        self._lagging: set[str] = set()
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
                if not _only_reads(method, request):
                    raise
                failures.append(failure)
        raise _summary(failures)

    async def open(self, method: str, *, timeout_s: float) -> Stream:
        """A stream to the current endpoint; timeout_s bounds the login it may need first."""
        endpoint = self._endpoints[self._at]
        metadata = await self._metadata(endpoint, timeout_s)
        connection = await endpoint.take()
        return Stream(
            connection.method(method)(metadata=metadata),
            endpoint.address,
            heard=self._heard,
            ended=self._ended,
            left=connection.give_back,
            fresh_until_ns=self._token_due_ns if self._user is not None else None,
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
            Endpoint(
                endpoint.address,
                self._files,
                server_name=self._server_name,
                options=spare.OPTIONS,
            )
            for endpoint in self._endpoints
        ]
        return Spare(endpoints, self._known_metadata)

    async def aclose(self) -> None:
        """Close the channels; streams must have been left before."""
        for endpoint in self._endpoints:
            await endpoint.aclose()

    # -------------------------------------------------------------- one request

    async def _authenticated(
        self, endpoint: Endpoint, method: str, request: Any, timeout_s: float
    ) -> Any:
        """One try, and one more after a fresh login if the token was stale or is now asked for."""
        try:
            return await self._with_token(endpoint, method, request, timeout_s)
        except (StaleToken, NoToken):
            if self._user is None:
                raise
        return await self._with_token(endpoint, method, request, timeout_s)

    async def _with_token(
        self, endpoint: Endpoint, method: str, request: Any, timeout_s: float
    ) -> Any:
        metadata = await self._metadata(endpoint, timeout_s)
        try:
            return await self._once(endpoint, method, request, timeout_s, metadata)
        except Denied as denied:
            raise await self._named(denied, endpoint, method, request, timeout_s) from None

    async def _named(
        self, denied: Denied, endpoint: Endpoint, method: str, request: Any, timeout_s: float
    ) -> Denied:
        """The error with the missing right in it, if etcd can be got to tell."""

        async def ask(how: str, probe: Any) -> Any:
            return await self._once(endpoint, how, probe, timeout_s, self._known_metadata())

        lacks = await rights.lacking(ask, method, request)
        if not lacks:
            return denied
        text = f"etcd {endpoint.address}: permission denied to user {self._user}: {lacks}; {GRANT}"
        return Denied(text, permanent=True)

    async def _once(
        self,
        endpoint: Endpoint,
        method: str,
        request: Any,
        timeout_s: float,
        metadata: Sequence[tuple[str, str]],
    ) -> Any:
        connection = await endpoint.take()
        try:
            reply = await connection.method(method)(request, timeout=timeout_s, metadata=metadata)
        except grpc.aio.AioRpcError as foreign:
            failure = await self._explained(endpoint, to_error(foreign, endpoint.address))
            self._ended(endpoint.address, failure)
            raise failure from None
        finally:
            await connection.give_back()
        self._answered(endpoint.address)
        if self._lag(endpoint.address, reply) is not None:
            self.rotate(endpoint.address)
        return reply

    async def _explained(
        self, endpoint: Endpoint, failure: EtcdUnavailable | EtcdRefused
    ) -> EtcdUnavailable | EtcdRefused:
        """The failure, or Misconfigured if a port that never answered speaks the other protocol."""
        if endpoint.answered or not isinstance(failure, NotSent):
            return failure
        cause = await mismatch(endpoint.address, tls=self._files is not None)
        if cause is None:
            return failure
        return Misconfigured(f"etcd {endpoint.address}: {cause}", permanent=True)

    # -------------------------------------------------------------- credentials

    async def _metadata(self, endpoint: Endpoint, timeout_s: float) -> tuple[tuple[str, str], ...]:
        if self._user is None:
            return (_HAS_LEADER,)
        if not self._token_lasts():
            async with self._login:
                if not self._token_lasts(logging_in=False):
                    await self._log_in(endpoint, timeout_s)
        return self._known_metadata()

    def _token_lasts(self, *, logging_in: bool | None = None) -> bool:
        """Whether the token in hand will do; it does while another request fetches the next."""
        if self._token is None:
            return False
        busy = self._login.locked() if logging_in is None else logging_in
        return busy or self._clock.boot_ns() < self._token_due_ns

    async def _log_in(self, endpoint: Endpoint, timeout_s: float) -> None:
        """Fetch a token. Ahead of the end of one that still works, a failure does no harm yet."""
        now_ns, now = self._clock.boot_ns(), self._clock.wall()
        try:
            self._token = await self._authenticate(endpoint, timeout_s)
            self._token_due_ns = now_ns + lifetime_ns(self._token, now)
        except (EtcdUnavailable, EtcdRefused):
            if self._token is None:
                raise
            self._token_due_ns = self._clock.boot_ns() + RETRY_NS

    def _known_metadata(self) -> tuple[tuple[str, str], ...]:
        return (_HAS_LEADER, ("token", self._token)) if self._token else (_HAS_LEADER,)

    async def _authenticate(self, endpoint: Endpoint, timeout_s: float) -> str:
        """A token; "" if the cluster asks for none."""
        request = rpc.AuthenticateRequest(name=self._user, password=self._secret() or "")
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
            case StaleToken() | NoToken():
                self._token = None
                self._answered(address)
            case EtcdUnavailable() | Misconfigured():
                if self._files is not None:
                    self._files.doubt()
                self._failed(address, str(failure))
            case _:
                self._answered(address)

    def _heard(self, address: str, reply: Any) -> EtcdUnavailable | None:
        """A reply on a stream; the error to end it with if its member lags behind."""
        self._answered(address)
        if (lag := self._lag(address, reply)) is None:
            return None
        return EtcdUnavailable(f"etcd {address}: {lag}")

    def _lag(self, address: str, reply: Any) -> str | None:
        """How the member lags behind; None also if all do: then the store itself went back."""
        lag = self._seen.lag(reply.header, self._clock.boot_ns())
        if lag is None:
            self._lagging.discard(address)
            return None
        self._lagging.add(address)
        if len(self._lagging) < len(self._endpoints):
            return lag
        self._lagging.clear()
        self._seen.forget()
        return None

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


def _only_reads(method: str, request: Any) -> bool:
    return method in _READS or (method == "KV/Txn" and requests.only_reads(request))


def _summary(failures: Sequence[EtcdUnavailable | EtcdRefused]) -> EtcdUnavailable | EtcdRefused:
    """One error for all endpoints: permanent only if a person must act on every one of them."""
    text = "; ".join(dict.fromkeys(str(failure) for failure in failures))
    if all(isinstance(failure, Misconfigured) for failure in failures):
        return Misconfigured(text, permanent=True)
    if all(isinstance(failure, NotSent | Misconfigured) for failure in failures):
        return NotSent(text)
    return EtcdUnavailable(text)


def _addresses(config: EtcdConfig) -> tuple[bool, list[str]]:
    """Whether TLS is spoken, and the endpoints without their scheme, unless it is unix://."""
    schemes = {e.partition("://")[0] for e in config.endpoints if "://" in e}
    if "http" in schemes and (config.ca or config.cert or "https" in schemes):
        raise ConfigError(
            "[etcd] endpoints: http:// does not go with https://, ca or cert; use one protocol"
        )
    tls = bool(config.ca or config.cert or "https" in schemes)
    return tls, [
        e if e.startswith(UNIX) else e.rpartition("://")[2].rstrip("/") for e in config.endpoints
    ]
