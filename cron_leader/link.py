"""The daemon's end of the pipe to its supervisor: what it must know to act in our place.

Nothing here blocks: a supervisor that is frozen costs an acknowledgement, never the loop. The
words on the wire are told in supervisor.py.
"""

from __future__ import annotations

import asyncio
import json
import os
import socket
from collections.abc import Callable
from itertools import count
from typing import Protocol

FD_VARIABLE = "CRON_LEADER_SUPERVISOR_FD"

LEASE_ACK_S = 1.0
"""How long a lease waits for its acknowledgement."""
UNREAD_MAX = 1 << 20
"""A supervisor that leaves this much unread, hours of it, will not be back: it counts as gone."""


class Access(Protocol):
    """How to reach etcd, as configured."""

    @property
    def endpoints(self) -> tuple[str, ...]: ...
    @property
    def ca(self) -> str | None: ...
    @property
    def cert(self) -> str | None: ...
    @property
    def key(self) -> str | None: ...
    @property
    def server_name(self) -> str | None: ...
    @property
    def user(self) -> str | None: ...
    @property
    def password(self) -> str | None: ...
    @property
    def password_file(self) -> str | None: ...


class Link:
    """Tells the supervisor, and says once when it is gone (`on_gone`; not after `close`)."""

    def __init__(self, sock: socket.socket, *, on_gone: Callable[[], None]) -> None:
        sock.setblocking(False)
        self._sock = sock
        self._on_gone = on_gone
        self._loop = asyncio.get_running_loop()
        self._loop.add_reader(sock, self._readable)
        self._open = True
        self._unsent = bytearray()
        self._unread = b""
        self._seq = count(1)
        self._waiting: dict[int, asyncio.Future[bool]] = {}

    @classmethod
    async def from_environment(cls, *, on_gone: Callable[[], None]) -> Link | None:
        """The link whose descriptor the supervisor left in the environment; None without one.

        Taken out of the environment, and closed on exec: no run inherits either.
        """
        number = os.environ.pop(FD_VARIABLE, None)
        if number is None:
            return None
        os.set_inheritable(int(number), False)
        return cls(socket.socket(fileno=int(number)), on_gone=on_gone)

    async def lease(self, lease: int, *, ttl_ns: int, etcd: Access) -> bool:
        """Tell of a lease before it is granted (again, if need be); whether it was acknowledged."""
        return await self._ask(
            LEASE_ACK_S,
            op="lease",
            lease=lease,
            ttl_ns=ttl_ns,
            endpoints=list(etcd.endpoints),
            ca=_text(etcd.ca),
            cert=_text(etcd.cert),
            key=_text(etcd.key),
            server_name=etcd.server_name,
            user=etcd.user,
            password=etcd.password,
            password_file=etcd.password_file,
        )

    def deadline(self, boot_ns: int) -> None:
        """The lease holds until then (boot clock), unless renewed."""
        self._tell(op="deadline", boot_ns=boot_ns)

    async def register(
        self, run_id: str, pgid: int, start: int, *, may_finish: bool, timeout_s: float
    ) -> bool:
        """Tell of a run's group before it may exec; whether it was acknowledged in time.

        start: its leader's start time, field 22 of /proc/PID/stat, 0 if unknown. Not
        acknowledged, or cancelled, it is forgotten again and the caller must not let it run.
        """
        known = False
        try:
            known = await self._ask(
                timeout_s, op="run", run=run_id, pgid=pgid, start=start, finish=may_finish
            )
        finally:
            if not known:
                self.ended(run_id)
        return known

    def ended(self, run_id: str) -> None:
        """The group is gone: its number may soon be another's."""
        self._tell(op="end", run=run_id)

    def released(self, lease: int) -> None:
        """This lease is revoked: nothing of it is left to revoke."""
        self._tell(op="released", lease=lease)

    def ready(self) -> None:
        """The node stands in line, or leads."""
        self._tell(op="ready")

    def alive(self) -> None:
        """The node's loop came round."""
        self._tell(op="alive")

    def close(self) -> None:
        """Hang up, without a report. Idempotent."""
        if not self._open:
            return
        self._open = False
        self._loop.remove_reader(self._sock)
        self._loop.remove_writer(self._sock)
        self._sock.close()
        for waiter in self._waiting.values():
            if not waiter.done():
                waiter.set_result(False)

    async def _ask(self, timeout_s: float, **said: object) -> bool:
        seq, waiter = next(self._seq), self._loop.create_future()
        self._waiting[seq] = waiter
        try:
            self._tell(seq=seq, **said)
            async with asyncio.timeout(timeout_s):
                return self._open and await waiter
        except TimeoutError:
            return False
        finally:
            del self._waiting[seq]

    def _tell(self, **said: object) -> None:
        if not self._open:
            return
        idle = not self._unsent
        self._unsent += json.dumps(said).encode() + b"\n"
        if len(self._unsent) > UNREAD_MAX:
            self._lost()
        elif idle:
            self._flush()

    def _flush(self) -> None:
        try:
            del self._unsent[: self._sock.send(self._unsent)]
        except BlockingIOError:
            pass
        except OSError:
            self._lost()
            return
        if self._unsent:
            self._loop.add_writer(self._sock, self._flush)
        else:
            self._loop.remove_writer(self._sock)

    def _readable(self) -> None:
        try:
            chunk = self._sock.recv(65536)
        except BlockingIOError:
            return
        except OSError:
            chunk = b""
        if not chunk:
            self._lost()
            return
        *lines, self._unread = (self._unread + chunk).split(b"\n")
        for line in lines:
            waiter = self._waiting.get(json.loads(line)["ack"])
            if waiter is not None and not waiter.done():
                waiter.set_result(True)

    def _lost(self) -> None:
        self.close()
        self._loop.call_soon(self._on_gone)  # never from within a caller's own call


def _text(path: object) -> str | None:
    return None if path is None else str(path)
