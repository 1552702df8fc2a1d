"""uvicorn inside the daemon's loop: no signal handlers, no logging of its own, bounded.

The listener is bound before the daemon starts and closed after it has ended, so that a probe sees
a node start, drain and stop. If the server breaks, the node goes on and its probes fail.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import socket
from collections.abc import AsyncIterator, Iterator, Mapping
from datetime import datetime
from typing import Any

import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from cron_leader import __version__
from cron_leader.clock import Clock
from cron_leader.config import Config, HttpConfig
from cron_leader.daemon import Daemon
from cron_leader.errors import ConfigError
from cron_leader.events import Emitter
from cron_leader.web.app import make_app
from cron_leader.web.board import Board
from cron_leader.web.look import Lookout

PROBE_S = 0.25
"""How often the loop's lag is measured."""
MOST_CONNECTIONS = 64
LONGEST_S = 60.0
"""The life of a connection, whatever its client does or leaves undone."""
CLOSE_S = 1


@contextlib.asynccontextmanager
async def serving(
    config: Config, http: HttpConfig, daemon: Daemon, *, clock: Clock, emit: Emitter
) -> AsyncIterator[None]:
    """Serve until the block is left. Raises ConfigError if the address cannot be had."""
    listener = bind(http)
    board = Board((job.name for job in config.jobs), daemon.snapshot)
    lookout = Lookout(config, clock=clock)
    vacancy = _Vacancy(board, lookout)
    emit.subscribe(board.hear)
    emit.subscribe(vacancy.hear)
    about = {"node": config.node_id, "fleet": config.fleet, "version": __version__}
    server = _server(make_app(http, board, about=about, status=lookout.status))
    tasks = [
        _watched(server.serve(sockets=[listener]), "the HTTP listener failed"),
        _watched(_measure_lag(board, clock), "measuring the loop's lag failed"),
    ]
    try:
        yield
    finally:
        server.should_exit = True
        tasks[1].cancel()
        vacancy.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await lookout.aclose()


def bind(http: HttpConfig) -> socket.socket:
    """The listening socket. Raises ConfigError."""
    family = socket.AF_INET6 if ":" in http.host else socket.AF_INET
    try:
        return socket.create_server((http.host, http.port), family=family)
    except OSError as error:
        where = f"[{http.host}]" if ":" in http.host else http.host
        raise ConfigError(f"[http] listen = {where}:{http.port}: {_why(error)}") from error


def _why(error: OSError) -> str:
    match error.errno:
        case errno.EADDRINUSE:
            return "another process listens there; end it, or choose another port"
        case errno.EACCES:
            return "this user may not listen there; choose a port from 1024 on"
        case errno.EADDRNOTAVAIL:
            return "no address of this machine; use 127.0.0.1, or 0.0.0.0 for all"
        case _:
            return error.strerror or str(error)


# ------------------------------------------------------------------ the server


class _Server(uvicorn.Server):
    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Signals are the daemon's."""
        yield


class _Bounded(H11Protocol):
    """At most MOST_CONNECTIONS at once, none older than LONGEST_S: uvicorn itself waits for ever
    for a request that does not come, and a daemon out of descriptors loses its lease."""

    _end: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        if len(self.connections) > MOST_CONNECTIONS:
            transport.abort()
        else:
            self._end = self.loop.call_later(LONGEST_S, transport.abort)

    def connection_lost(self, exc: Exception | None) -> None:
        if self._end is not None:
            self._end.cancel()
        super().connection_lost(exc)


def _server(app: Any) -> _Server:
    config = uvicorn.Config(
        app,
        http=_Bounded,
        ws="none",
        lifespan="off",
        log_config=None,
        log_level="error",
        access_log=False,
        server_header=False,
        timeout_keep_alive=20,
        timeout_graceful_shutdown=CLOSE_S,
    )
    return _Server(config)


# ------------------------------------------------------------------ beside it


async def _measure_lag(board: Board, clock: Clock) -> None:
    while True:
        due_ns = clock.boot_ns() + int(PROBE_S * 1e9)
        await asyncio.sleep(PROBE_S)
        board.sample(max(0, clock.boot_ns() - due_ns))


class _Vacancy:
    """When a term opens its gate: for how long nobody had led, as the ledger knows it."""

    def __init__(self, board: Board, lookout: Lookout) -> None:
        self._board, self._lookout = board, lookout
        self._fence: int | None = None
        self._asking: asyncio.Task[None] | None = None

    def hear(self, line: Mapping[str, Any]) -> None:
        if line["event"] != "gate.opened" or line["fence"] == self._fence:
            return
        self._fence = line["fence"]
        self.cancel()
        asked = self._ask(line["fence"], datetime.fromisoformat(line["ts"]))
        self._asking = _watched(asked, "reading the term before failed")

    async def _ask(self, fence: int, opened: datetime) -> None:
        vacant_s = await self._lookout.vacant_s(fence, opened)
        if vacant_s is not None:
            self._board.took_over(vacant_s)

    def cancel(self) -> None:
        if self._asking is not None:
            self._asking.cancel()


def _watched(work: Any, message: str) -> asyncio.Task[None]:
    """A task whose failure is told and ends nothing else."""
    loop = asyncio.get_running_loop()
    task: asyncio.Task[None] = loop.create_task(work)

    def told(done: asyncio.Task[None]) -> None:
        if not done.cancelled() and (error := done.exception()) is not None:
            loop.call_exception_handler({"message": message, "exception": error, "task": done})

    task.add_done_callback(told)
    return task
