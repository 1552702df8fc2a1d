"""Following a few keys from one revision on, over one stream; silence is an end, not health.

Asks for a progress report every `ask_ns`; one left unanswered for `silence_ns` ends the watch. A
reply is credited to the oldest open question, so a late one proves no more than it does. etcd may
answer before a pending event (3.4.23) or not at all while the watcher lags (3.5): a progress report
says that the stream lives, never that nothing happened.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Any

from cron_leader.clock import Clock, next_beat
from cron_leader.errors import EtcdRefused, EtcdUnavailable
from cron_leader.etcd.channel import Etcd
from cron_leader.etcd.lease import NS
from cron_leader.etcd.stream import Stream
from cron_leader.etcd.stubs import rpc


@dataclass(frozen=True, slots=True)
class Change:
    """The first thing that happened to a followed key."""

    key: bytes
    deleted: bool
    revision: int


@dataclass(frozen=True, slots=True)
class Patience:
    """ask_ns: longest pause between questions; silence_ns: longest wait for a reply; open_s: to
    begin."""

    ask_ns: int
    silence_ns: int
    open_s: float

    @classmethod
    def of(cls, ttl_ns: int, open_s: float) -> Patience:
        return cls(ttl_ns // 3, ttl_ns // 2, open_s)


class WatchEnded(Exception):
    """Nothing is known of the keys from here on. why: silent, compacted, cancelled or lost."""

    def __init__(self, why: str, text: str) -> None:
        super().__init__(text)
        self.why = why


class KeyWatch:
    """`async with` it, at which etcd has confirmed the watch; then await `change()`. One that is
    open already may be entered again, by whoever takes it over: it ends when that one leaves it.

    revision: the first one wanted; older events, which a reset cluster may deliver, are dropped.
    etcd confirms a watch of compacted revisions too, and ends it within its next round (100 ms).
    """

    def __init__(
        self, etcd: Etcd, keys: Sequence[bytes], *, revision: int, patience: Patience, clock: Clock
    ) -> None:
        self._etcd = etcd
        self._keys = keys
        self._revision = revision
        self._patience = patience
        self._clock = clock
        self._stream: Stream | None = None
        self._asked: deque[int] = deque()
        self._next_ask_ns = 0
        self._early: deque[Change] = deque()

    async def __aenter__(self) -> KeyWatch:
        if self._stream is None:
            await self._open()
        return self

    async def _open(self) -> None:
        try:
            self._stream = await self._etcd.open("Watch/Watch", timeout_s=self._patience.open_s)
        except (EtcdUnavailable, EtcdRefused) as error:
            raise WatchEnded("lost", str(error)) from None
        try:
            await self._create(self._stream)
        except BaseException:
            await self.aclose()
            raise

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.aclose()

    @property
    def alive(self) -> bool:
        """Open, and not known to have ended."""
        return self._stream is not None and not self._stream.over

    async def change(self) -> Change:
        """The next change of a followed key; raises WatchEnded."""
        assert self._stream is not None
        while not self._early:
            self._check_silence(self._stream)
            await self._ask_if_due(self._stream)
            try:
                reply = await self._stream.receive(timeout_s=self._until_next())
            except TimeoutError:
                continue
            except (EtcdUnavailable, EtcdRefused) as error:
                raise WatchEnded("lost", str(error)) from None
            self._take(reply)
        return self._early.popleft()

    async def _create(self, stream: Stream) -> None:
        """Ask for every key and wait until each one is confirmed."""
        try:
            for key in self._keys:
                create = rpc.WatchCreateRequest(key=key, start_revision=self._revision)
                await stream.send(
                    rpc.WatchRequest(create_request=create), timeout_s=self._patience.open_s
                )
            created = 0
            while created < len(self._keys):
                reply = await stream.receive(timeout_s=self._patience.open_s)
                created += reply.created
                self._take(reply)
        except TimeoutError:
            raise self._silent(stream) from None
        except (EtcdUnavailable, EtcdRefused) as error:
            raise WatchEnded("lost", str(error)) from None
        self._next_ask_ns = next_beat(self._clock.boot_ns(), self._patience.ask_ns)

    def _take(self, reply: Any) -> None:
        """Look at `canceled` first: a refused watch is `created` and `canceled` at once."""
        if reply.canceled:
            why = "compacted" if reply.compact_revision else "cancelled"
            raise WatchEnded(
                why, f"the watch was {why}: {reply.cancel_reason or 'no reason given'}"
            )
        if self._asked:
            self._asked.popleft()
        self._early.extend(
            Change(event.kv.key, event.type == event.DELETE, event.kv.mod_revision)
            for event in reply.events
            if event.kv.mod_revision >= self._revision
        )

    async def _ask_if_due(self, stream: Stream) -> None:
        now_ns = self._clock.boot_ns()
        if now_ns < self._next_ask_ns:
            return
        self._asked.append(now_ns)
        self._next_ask_ns = next_beat(now_ns, self._patience.ask_ns)
        request = rpc.WatchRequest(progress_request=rpc.WatchProgressRequest())
        try:
            await stream.send(request, timeout_s=self._patience.open_s)
        except TimeoutError:
            raise self._silent(stream) from None
        except (EtcdUnavailable, EtcdRefused) as error:
            raise WatchEnded("lost", str(error)) from None

    def _check_silence(self, stream: Stream) -> None:
        if self._asked and self._clock.boot_ns() - self._asked[0] >= self._patience.silence_ns:
            raise self._silent(stream)

    def _until_next(self) -> float:
        """Seconds to the next question or to the end of patience, whichever comes first."""
        wake_ns = self._next_ask_ns
        if self._asked:
            wake_ns = min(wake_ns, self._asked[0] + self._patience.silence_ns)
        return max(0.0, (wake_ns - self._clock.boot_ns()) / NS)

    def _silent(self, stream: Stream) -> WatchEnded:
        self._etcd.rotate(stream.endpoint)
        return WatchEnded("silent", f"etcd {stream.endpoint}: the watch is silent")

    async def aclose(self) -> None:
        """Idempotent."""
        stream, self._stream = self._stream, None
        if stream is not None:
            await stream.__aexit__(None, None, None)
