"""The daemon inside the test's own process, where nothing it leaves behind can hide."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from cron_leader.clock import SystemClock
from cron_leader.config import load
from cron_leader.core.messages import StopAsked
from cron_leader.daemon import Daemon
from cron_leader.etcd.embedded import EmbeddedEtcd
from cron_leader.events import Emitter
from tests.kit import Town, town, until


class Ear:
    """Hears the daemon's events and counts those of a name."""

    def __init__(self) -> None:
        self.counts: dict[str, int] = {}
        self._heard = asyncio.Event()

    def __call__(self, line: Mapping[str, Any]) -> None:
        self.counts[line["event"]] = self.counts.get(line["event"], 0) + 1
        self._heard.set()

    async def until(self, holds: Callable[[], bool]) -> None:
        async with asyncio.timeout(20):
            while not holds():
                self._heard.clear()
                await self._heard.wait()


def _daemon(place: Town, ear: Ear) -> Daemon:
    config = load(place.config, environ={}, node_id="a")
    emit = Emitter("a", config.fleet, wall=SystemClock().wall)
    emit.subscribe(ear)
    return Daemon(config, clock=SystemClock(), emit=emit)


def _belongings() -> tuple[int, int, int]:
    """Tasks, descriptors, threads."""
    return len(asyncio.all_tasks()), len(os.listdir("/dev/fd")), threading.active_count()


async def test_a_hundred_terms_leave_no_task_descriptor_or_thread_behind(
    tmp_path: Path, etcd: EmbeddedEtcd
) -> None:
    async with town(tmp_path, etcd.endpoint) as place, place.hand() as hand:
        ear = Ear()
        daemon = _daemon(place, ear)
        running = asyncio.create_task(daemon.run())
        before = None
        for term in range(1, 101):
            await ear.until(lambda term=term: ear.counts.get("gate.opened", 0) >= term)
            if term == 10:
                before = _belongings()
            await hand.delete((await place.keys())[0])
        assert before is not None
        await ear.until(lambda: ear.counts["gate.opened"] >= 101)
        await until(  # runs and requests of the last term are still ending
            "no more than after ten terms",
            lambda: all(a <= b for a, b in zip(_belongings(), before, strict=True)),
        )
        daemon.post(StopAsked(15))
        done = await running
        assert done.code == 0


async def test_a_bug_in_a_part_ends_the_daemon_and_is_told(
    tmp_path: Path, etcd: EmbeddedEtcd
) -> None:
    async with town(tmp_path, etcd.endpoint) as place:
        ear = Ear()
        daemon = _daemon(place, ear)
        loop = asyncio.get_running_loop()
        told: list[dict[str, Any]] = []
        loop.set_exception_handler(lambda _, context: told.append(context))
        running = asyncio.create_task(daemon.run())
        await ear.until(lambda: "gate.opened" in ear.counts)

        async def broken() -> None:
            raise LookupError("a part broke")

        daemon.spawn(broken())
        done = await running
        assert done.code == 1
        assert "a part broke" in done.text
        assert told
