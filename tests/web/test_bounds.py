"""What strangers and slow services can take from a node: a bounded amount, and never its loop."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import threading
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any, cast

import pytest

from cron_leader.clock import SystemClock
from cron_leader.config import Config, load
from cron_leader.daemon import Daemon
from cron_leader.etcd.embedded import Ports
from cron_leader.events import Emitter
from cron_leader.web import server as web_server
from cron_leader.web import serving
from cron_leader.web.aside import Single, aside
from tests.web.kit import Answer, ask, snapshot


class Still:
    """Stands for a daemon: a leader that never changes."""

    snapshot = staticmethod(snapshot)


@contextlib.asynccontextmanager
async def site(folder: Path, *, ledger: str = "sqlite:///l.db") -> AsyncIterator[Config]:
    """The pages of a still leader whose etcd is away, in this process."""
    ports = Ports.draw()
    (folder / "c.toml").write_text(
        f'[http]\nlisten = "127.0.0.1:{ports.client}"\n[ledger]\nurl = "{ledger}"\n'
        f'[etcd]\nendpoints = ["127.0.0.1:{ports.peer}"]\n'
    )
    config, clock = load(folder / "c.toml", environ={}, node_id="a"), SystemClock()
    emit = Emitter("a", config.fleet, wall=clock.wall)
    async with serving(config, cast(Daemon, Still()), clock=clock, emit=emit):
        yield config


async def get(config: Config, path: str) -> Answer:
    assert config.http is not None
    return await asyncio.to_thread(ask, f"http://127.0.0.1:{config.http.port}{path}")


async def test_a_ledger_that_takes_connections_and_says_nothing_costs_a_deadline(
    tmp_path: Path,
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"postgresql://x@127.0.0.1:{silent.getsockname()[1]}/x"
        async with site(tmp_path, ledger=url) as config:
            asked = [asyncio.create_task(get(config, "/api/v1/status")) for _ in range(5)]
            await asyncio.sleep(0)
            assert (await get(config, "/readyz")).status == 200
            assert not any(task.done() for task in asked)
            answers = await asyncio.gather(*asked)
        silent.setblocking(False)
        assert sum(1 for _ in _accepted(silent)) == 1
    for answer in answers:
        assert answer.status == 200
        assert answer.json["nodes"] is None
        assert len(answer.json["errors"]) == 2


def _accepted(listener: socket.socket) -> Iterator[None]:
    """One for each connection that was made."""
    with contextlib.suppress(BlockingIOError):
        while True:
            listener.accept()[0].close()
            yield


def _aside() -> int:
    return sum(thread.name == "web-aside" for thread in threading.enumerate())


async def test_connections_beyond_the_bound_are_dropped_and_those_before_are_served(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(web_server, "MOST_CONNECTIONS", 3)
    async with site(tmp_path) as config:
        assert config.http is not None
        idle = [await _connect(config.http.port) for _ in range(3)]
        with pytest.raises((ConnectionError, OSError)):
            await get(config, "/healthz")
        _, writer = idle.pop()
        await _close(writer)
        answers = [await _once_free(config)]
        assert answers[0].status == 200
        for _, writer in idle:
            await _close(writer)


async def _once_free(config: Config) -> Answer:
    """The server learns a moment later that a connection has gone."""
    async with asyncio.timeout(10):
        while True:
            with contextlib.suppress(OSError):
                return await get(config, "/healthz")
            await asyncio.sleep(0.02)


async def test_a_request_that_never_comes_is_not_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(web_server, "LONGEST_S", 0.2)
    async with site(tmp_path) as config:
        assert config.http is not None
        reader, writer = await _connect(config.http.port)
        writer.write(b"GET /healthz HT")
        async with asyncio.timeout(10):
            with contextlib.suppress(ConnectionError):
                assert await reader.read() == b""
        await _close(writer)


async def _connect(port: int) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    return await asyncio.open_connection("127.0.0.1", port)


async def _close(writer: asyncio.StreamWriter) -> None:
    writer.close()
    with contextlib.suppress(ConnectionError):
        await writer.wait_closed()


async def test_nothing_is_left_behind_and_the_port_is_free_again(tmp_path: Path) -> None:
    before = asyncio.all_tasks()
    async with site(tmp_path) as config:
        assert (await get(config, "/metrics")).status == 200
    assert asyncio.all_tasks() == before
    assert config.http is not None
    web_server.bind(config.http).close()


# ------------------------------------------------------------------ aside


async def test_work_aside_leaves_the_loop_free_and_hands_on_what_it_raises() -> None:
    go = threading.Event()
    waiting = asyncio.create_task(aside(lambda: go.wait(10)))
    await asyncio.sleep(0.01)
    go.set()
    assert await waiting

    def broken() -> None:
        raise LookupError("nothing there")

    with pytest.raises(LookupError, match="nothing there"):
        await aside(broken)


async def test_work_aside_that_nobody_waits_for_harms_nobody() -> None:
    go = threading.Event()
    waiting = asyncio.create_task(aside(lambda: go.wait(10)))
    await asyncio.sleep(0.01)
    waiting.cancel()
    go.set()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    while _aside():  # noqa: ASYNC110
        await asyncio.sleep(0.01)


async def test_who_asks_while_work_is_under_way_gets_its_answer() -> None:
    begun: list[asyncio.Future[Any]] = []

    async def work() -> Any:
        begun.append(asyncio.get_running_loop().create_future())
        return await begun[-1]

    single = Single(work)
    with pytest.raises(TimeoutError):
        await single.get(within_s=0.01)
    asked = [asyncio.create_task(single.get(within_s=10)) for _ in range(3)]
    await asyncio.sleep(0)
    begun[0].set_result("the same")
    assert await asyncio.gather(*asked) == ["the same"] * 3
    assert len(begun) == 1
    again = asyncio.create_task(single.get(within_s=10))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    begun[1].set_result("another")
    assert await again == "another"
