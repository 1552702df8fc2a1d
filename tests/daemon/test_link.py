"""The daemon's end of the pipe: against a socket the test holds, and against the supervisor."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from cron_leader.link import FD_VARIABLE, UNREAD_MAX, Link
from tests.daemon.supervised import PATIENCE_S, SUPERVISOR, eventually


@dataclass(frozen=True, slots=True)
class Etcd:
    endpoints: tuple[str, ...] = ("127.0.0.1:2379",)
    ca: str | None = "ca.pem"
    cert: str | None = None
    key: str | None = None
    server_name: str | None = "etcd"
    user: str | None = "root"
    password: str | None = "secret"
    password_file: str | None = "/etc/secret"


class Far:
    """The supervisor's end, played by the test."""

    def __init__(self, sock: socket.socket, number: int) -> None:
        """number: the descriptor of the other end."""
        sock.setblocking(False)
        self.sock = sock
        self.number = number
        self.gone = asyncio.Event()
        self._rest = b""

    async def hear(self) -> dict[str, Any]:
        """The next message."""
        async with asyncio.timeout(PATIENCE_S):
            while b"\n" not in self._rest:
                self._rest += await asyncio.get_running_loop().sock_recv(self.sock, 65536)
        line, _, self._rest = self._rest.partition(b"\n")
        said: dict[str, Any] = json.loads(line)
        return said

    def ack(self, said: dict[str, Any]) -> None:
        self.sock.send(b'{"ack": %d}\n' % said["seq"])


@pytest.fixture
async def far() -> AsyncIterator[Far]:
    ours, theirs = socket.socketpair()
    number = theirs.detach()
    os.set_inheritable(number, True)
    os.environ[FD_VARIABLE] = str(number)
    with ours:
        yield Far(ours, number)
    os.environ.pop(FD_VARIABLE, None)


@pytest.fixture
async def link(far: Far) -> AsyncIterator[Link]:
    it = await Link.from_environment(on_gone=far.gone.set)
    assert it is not None
    yield it
    it.close()


def register(link: Link, run_id: str, timeout_s: float = PATIENCE_S) -> asyncio.Task[bool]:
    return asyncio.create_task(
        link.register(run_id, 4711, 99, may_finish=True, timeout_s=timeout_s)
    )


async def test_without_the_variable_there_is_no_link() -> None:
    assert await Link.from_environment(on_gone=lambda: None) is None


async def test_no_run_inherits_the_link(far: Far, link: Link) -> None:
    assert FD_VARIABLE not in os.environ
    listing = await asyncio.create_subprocess_exec(
        "ls", "-l", "/dev/fd/", stdout=asyncio.subprocess.PIPE, close_fds=False
    )
    inherited = (await listing.communicate())[0].decode()
    assert f"socket:[{os.fstat(far.number).st_ino}]" not in inherited


async def test_a_lease_is_told_with_all_that_revoking_it_takes(far: Far, link: Link) -> None:
    telling = asyncio.create_task(link.lease(7, ttl_ns=10**10, etcd=Etcd()))
    said = await far.hear()
    far.ack(said)
    assert await telling
    assert said == {
        "op": "lease", "seq": said["seq"], "lease": 7, "ttl_ns": 10**10, "ca": "ca.pem",
        "endpoints": ["127.0.0.1:2379"], "cert": None, "key": None, "server_name": "etcd",
        "user": "root", "password": "secret", "password_file": "/etc/secret",
    }  # fmt: skip


async def test_acknowledgements_find_their_registrations_in_any_order(far: Far, link: Link) -> None:
    first, second = register(link, "one"), register(link, "two")
    said = [await far.hear(), await far.hear()]
    assert said[0] == {"op": "run", "seq": said[0]["seq"], "run": "one", "pgid": 4711, "start": 99,
                       "finish": True}  # fmt: skip
    far.ack(said[1])
    assert await second
    assert not first.done()
    far.ack(said[0])
    assert await first


async def test_a_registration_not_acknowledged_in_time_is_taken_back(far: Far, link: Link) -> None:
    assert not await register(link, "late", timeout_s=0.01)
    said = await far.hear()
    assert await far.hear() == {"op": "end", "run": "late"}
    far.ack(said)
    again = register(link, "next")
    far.ack(await far.hear())
    assert await again


async def test_a_cancelled_registration_is_taken_back(far: Far, link: Link) -> None:
    waiting = register(link, "run")
    await far.hear()
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    assert await far.hear() == {"op": "end", "run": "run"}


async def test_news_need_no_acknowledgement(far: Far, link: Link) -> None:
    link.deadline(123)
    link.ended("run")
    link.released(7)
    assert await far.hear() == {"op": "deadline", "boot_ns": 123}
    assert await far.hear() == {"op": "end", "run": "run"}
    link.ready()
    link.alive()
    assert await far.hear() == {"op": "released", "lease": 7}
    assert await far.hear() == {"op": "ready"}
    assert await far.hear() == {"op": "alive"}


async def test_the_supervisors_death_is_told_once_and_fails_what_waits(
    far: Far, link: Link
) -> None:
    waiting = register(link, "run")
    await far.hear()
    far.sock.close()
    assert not await waiting
    async with asyncio.timeout(PATIENCE_S):
        await far.gone.wait()
    far.gone.clear()
    link.deadline(1)
    link.released(7)
    assert not await register(link, "another")
    assert not far.gone.is_set()


async def test_hanging_up_is_not_told(far: Far, link: Link) -> None:
    waiting = register(link, "run")
    await far.hear()
    link.close()
    link.close()
    assert not await waiting
    assert not far.gone.is_set()


async def test_a_frozen_supervisor_delays_nothing_and_loses_nothing(far: Far, link: Link) -> None:
    count = 20_000  # far more than the socket holds
    for number in range(count):
        link.deadline(number)
    for number in range(count):
        assert (await far.hear())["boot_ns"] == number


async def test_one_frozen_for_good_counts_as_gone(far: Far, link: Link) -> None:
    for _ in range(UNREAD_MAX // 10):
        link.ended("run")
    async with asyncio.timeout(PATIENCE_S):
        await far.gone.wait()


DAEMON = f"""
import asyncio, os, signal, subprocess, sys
sys.path[:0] = {sys.path!r}
from cron_leader.link import Link
from tests.daemon.test_link import Etcd

async def main():
    gone = asyncio.Event()
    link = await Link.from_environment(on_gone=gone.set)
    assert await link.lease(7, ttl_ns=10**9, etcd=Etcd(endpoints=(), ca=None))
    link.deadline(1 << 62)
    run = subprocess.Popen(["sleep", "300"], start_new_session=True)
    assert await link.register("r", run.pid, 0, may_finish=True, timeout_s=5)
    print(os.getpid(), run.pid, flush=True)
    await gone.wait()
    run.kill()
    print("gone", flush=True)

asyncio.run(main())
"""


@pytest.mark.skipif(not os.path.exists("/proc/self/stat"), reason="needs /proc")
@pytest.mark.parametrize("killed", ["daemon", "supervisor"])
def test_when_either_dies_the_other_kills_the_runs(killed: str, tmp_path: Path) -> None:
    script = tmp_path / "daemon.py"
    script.write_text(DAEMON)
    argv = [sys.executable, "-S", "-E", str(SUPERVISOR), "--", sys.executable, str(script)]
    with subprocess.Popen(argv, stdout=subprocess.PIPE, text=True) as supervisor:
        assert supervisor.stdout
        daemon, run = map(int, supervisor.stdout.readline().split())
        if killed == "daemon":
            os.kill(daemon, signal.SIGKILL)
            assert supervisor.wait(PATIENCE_S) == 137
        else:
            supervisor.kill()
            assert supervisor.stdout.readline() == "gone\n"
        eventually(lambda: not Path(f"/proc/{run}").exists())
