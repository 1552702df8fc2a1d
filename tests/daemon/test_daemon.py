"""The daemon inside the test's own process, where nothing it leaves behind can hide."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import socket
import threading
from collections.abc import AsyncIterator, Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from cron_leader.clock import SystemClock
from cron_leader.config import load
from cron_leader.core import ahead
from cron_leader.core.messages import (
    Event,
    HeartbeatAnswered,
    LedgerFailed,
    SlotNear,
    StopAsked,
)
from cron_leader.daemon import Daemon
from cron_leader.etcd.channel import Etcd
from cron_leader.etcd.codes import NoSpace
from cron_leader.etcd.embedded import EmbeddedEtcd, EtcdOptions
from cron_leader.etcd.lease import measure_election_timeout
from cron_leader.events import Emitter
from cron_leader.link import FD_VARIABLE
from tests.kit import BEAT, Town, town, until


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
    """Tasks, descriptors, threads (not of the loop's pool: it grows with what is asked at once)."""
    threads = [t for t in threading.enumerate() if not t.name.startswith("asyncio_")]
    return len(asyncio.all_tasks()), len(os.listdir("/dev/fd")), len(threads)


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


async def test_a_heartbeat_goes_ahead_of_a_slot(
    tmp_path: Path, etcd: EmbeddedEtcd, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However slow the ledger is on a busy machine; BEAT is due at whole seconds."""
    monkeypatch.setattr(ahead, "MOST_NS", 900_000_000)
    async with town(tmp_path, etcd.endpoint) as place:
        ear = Ear()
        daemon = _daemon(place, ear)
        inbox, taken = asyncio.Queue[Event](), daemon.post

        def post(event: Event) -> None:
            inbox.put_nowait(event)
            taken(event)

        monkeypatch.setattr(daemon, "post", post)
        running = asyncio.create_task(daemon.run())
        async with asyncio.timeout(20):
            while await inbox.get() != SlotNear():
                pass
            while not isinstance(await inbox.get(), HeartbeatAnswered):
                pass
        daemon.post(StopAsked(15))
        assert (await running).code == 0


class SlowSupervisor:
    """The other end of the daemon's link; acknowledges when told to."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer

    async def told_of_a_lease(self) -> int:
        """The number to acknowledge it by."""
        async with asyncio.timeout(20):
            while (said := json.loads(await self._reader.readline()))["op"] != "lease":
                pass
        return int(said["seq"])

    def acknowledge(self, seq: int) -> None:
        self._writer.write(json.dumps({"ack": seq}).encode() + b"\n")

    def close(self) -> None:
        self._writer.close()


@pytest.fixture
async def supervisor(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[SlowSupervisor]:
    ours, theirs = socket.socketpair()
    monkeypatch.setenv(FD_VARIABLE, str(theirs.detach()))
    made = SlowSupervisor(*await asyncio.open_connection(sock=ours))
    yield made
    made.close()


async def test_a_candidacy_left_before_the_supervisor_knows_its_lease_never_begins(
    tmp_path: Path, etcd: EmbeddedEtcd, supervisor: SlowSupervisor
) -> None:
    async with town(tmp_path, etcd.endpoint, jobs=BEAT.replace("1s", "1h")) as place:
        ear = Ear()
        daemon = _daemon(place, ear)
        running = asyncio.create_task(daemon.run())
        left = await supervisor.told_of_a_lease()
        daemon.post(LedgerFailed("away for a moment"))
        kept = await supervisor.told_of_a_lease()
        supervisor.acknowledge(left)
        supervisor.acknowledge(kept)
        await ear.until(lambda: "gate.opened" in ear.counts)
        assert len(await place.keys()) == 1
        daemon.post(StopAsked(15))
        assert (await running).code == 0


async def test_an_etcd_without_room_is_waited_for_and_told_once(tmp_path: Path) -> None:
    options = EtcdOptions(extra=("--quota-backend-bytes=65536",))
    with EmbeddedEtcd(tmp_path / "etcd", options=options) as full:
        async with town(tmp_path, full.endpoint) as place, place.hand() as hand:
            with contextlib.suppress(NoSpace):
                while True:
                    await hand.put(b"/fill", b"x" * 10_000)
            ear = Ear()
            daemon = _daemon(place, ear)
            tries = 0

            async def counted(etcd: Etcd) -> int:
                nonlocal tries
                tries += 1
                return await measure_election_timeout(etcd)

            with pytest.MonkeyPatch.context() as patch:
                patch.setattr("cron_leader.daemon.measure_election_timeout", counted)
                running = asyncio.create_task(daemon.run())
                await ear.until(lambda: "etcd.unreachable" in ear.counts)
                await until("tried again", lambda: tries > 2)
            assert ear.counts["etcd.unreachable"] == 1
            daemon.post(StopAsked(15))
            assert (await running).code == 0


async def test_a_signal_while_the_job_host_imports_ends_the_start(
    tmp_path: Path, etcd: EmbeddedEtcd
) -> None:
    slow = "import pathlib, time\npathlib.Path('importing').touch()\ntime.sleep(60)\n"
    (tmp_path / "slow.py").write_text(slow.replace("'importing'", repr(f"{tmp_path}/importing")))
    job = BEAT.replace('command = ["true"]', 'python = "slow:job"')
    async with town(tmp_path, etcd.endpoint, jobs=job) as place:
        daemon = _daemon(place, Ear())
        running = asyncio.create_task(daemon.run())
        await until("importing", (tmp_path / "importing").exists)
        daemon.post(StopAsked(15))
        async with asyncio.timeout(10):
            assert (await running).code == 0
        assert asyncio.all_tasks() == {asyncio.current_task()}
