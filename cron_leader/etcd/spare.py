"""Connections kept idle for a leader's last word, for when its requests still arrive at etcd but no
answer comes back.

Such a loss ends the connection in use: gRPC's pings and TCP's own limit on what is unacknowledged,
both wanted for the loss of a member, close it within seconds, and none can be opened without an
answer. An idle one owes nobody an answer: what is written to it arrives.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import grpc.aio

OPTIONS: Sequence[tuple[str, int]] = (
    ("grpc.client_idle_timeout_ms", 2**31 - 1),
    ("grpc.use_local_subchannel_pool", 1),
    ("grpc.initial_reconnect_backoff_ms", 500),
    ("grpc.max_reconnect_backoff_ms", 2000),
    ("grpc.enable_http_proxy", 0),
)
"""No keepalive: nothing on our side may close it."""


class Endpoint(Protocol):
    @property
    def channel(self) -> grpc.aio.Channel: ...

    def method(self, name: str) -> Callable[..., Any]: ...


class Spare:
    """One connection to each endpoint, in use by nobody else. `connect` opens them."""

    def __init__(
        self, endpoints: Sequence[Endpoint], metadata: Callable[[], Sequence[tuple[str, str]]]
    ) -> None:
        """metadata: of the moment of sending; no login is made here."""
        self._endpoints = endpoints
        self._metadata = metadata

    def connect(self) -> None:
        """Open what is not open, beside the caller; again and again, for members restart."""
        for endpoint in self._endpoints:
            endpoint.channel.get_state(try_to_connect=True)

    async def say(self, method: str, request: Any, *, timeout_s: float) -> bool:
        """Send to every endpoint at once, what may be applied more than once; whether any answered
        that it was."""
        calls = [
            asyncio.ensure_future(_once(endpoint, method, request, self._metadata(), timeout_s))
            for endpoint in self._endpoints
        ]
        try:
            return any([await call for call in asyncio.as_completed(calls)])
        finally:
            for call in calls:
                call.cancel()

    async def aclose(self) -> None:
        for endpoint in self._endpoints:
            await endpoint.channel.close(None)


async def _once(
    endpoint: Endpoint,
    method: str,
    request: Any,
    metadata: Sequence[tuple[str, str]],
    timeout_s: float,
) -> bool:
    try:
        await endpoint.method(method)(request, timeout=timeout_s, metadata=metadata)
    except grpc.aio.AioRpcError:
        return False
    return True
