"""What systemd hears: a socket stands in for it, the supervisor and the daemon are real."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from cron_leader.demo.fleet import Fleet
from cron_leader.etcd.embedded import EmbeddedEtcd
from tests.daemon.supervised import PATIENCE_S, Supervised, group_exists
from tests.kit import SOON_S, Town, now, town

pytestmark = pytest.mark.skipif(not os.path.exists("/proc/self/stat"), reason="needs /proc")


class Systemd:
    """The socket that a unit's main process finds in $NOTIFY_SOCKET."""

    def __init__(self, address: str) -> None:
        """address: as in $NOTIFY_SOCKET."""
        self.address = address
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self.sock.bind("\0" + address[1:] if address.startswith("@") else address)
        self.sock.settimeout(PATIENCE_S)

    def heard(self) -> str:
        """The next thing said."""
        return self.sock.recv(4096).decode()

    def silent_for(self, seconds: float) -> bool:
        self.sock.settimeout(seconds)
        try:
            self.sock.recv(4096)
        except TimeoutError:
            return True
        finally:
            self.sock.settimeout(PATIENCE_S)
        return False

    def starting(self, **environ: str) -> tuple[str, ...]:
        """A command's prefix: starts it as systemd would; $$ stands for its own pid."""
        said = {"NOTIFY_SOCKET": self.address, **environ}
        settings = " ".join(f"{name}={value}" for name, value in said.items())
        return ("/bin/sh", "-c", f'{settings} exec "$@"', "sh")


@pytest.fixture(params=["path", "abstract"])
def systemd(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Systemd]:
    name = f"{tmp_path}/notify"
    it = Systemd(name if request.param == "path" else f"@cron-leader{name}")
    yield it
    it.sock.close()


@pytest.fixture
def watched(systemd: Systemd) -> Iterator[Supervised]:
    """Under a watchdog of 400 ms."""
    it = Supervised(prefix=systemd.starting(WATCHDOG_USEC="400000", WATCHDOG_PID="$$"))
    yield it
    it.close()


def test_ready_once_and_stopping_once(systemd: Systemd, watched: Supervised) -> None:
    watched.say("ready")
    watched.say("ready")
    assert systemd.heard() == "READY=1"
    os.kill(watched.pid, signal.SIGTERM)
    watched.told("signal")
    assert systemd.heard() == "STOPPING=1"
    watched.order(exit=0)
    assert watched.exit_code() == 0
    assert systemd.silent_for(0.05)


def test_a_daemon_that_dies_is_stopping_too(systemd: Systemd, watched: Supervised) -> None:
    watched.kill_daemon()
    assert systemd.heard() == "STOPPING=1"


def test_life_is_passed_on_at_half_the_watchdogs_period(
    systemd: Systemd, watched: Supervised
) -> None:
    for _ in range(50):
        watched.say("alive")
    assert systemd.heard() == "WATCHDOG=1"
    assert systemd.silent_for(0.25)
    watched.say("alive")
    assert systemd.heard() == "WATCHDOG=1"


@pytest.mark.parametrize("environ", [{}, {"WATCHDOG_USEC": "1000", "WATCHDOG_PID": "1"}])
def test_without_a_watchdog_for_us_life_is_not_told(
    systemd: Systemd, environ: dict[str, str]
) -> None:
    node = Supervised(prefix=systemd.starting(**environ))
    try:
        node.say("alive")
        node.say("ready")
        assert systemd.heard() == "READY=1"
    finally:
        node.close()


def test_nobody_below_inherits_the_way_to_systemd(systemd: Systemd, watched: Supervised) -> None:
    daemon = Path(f"/proc/{watched.daemon}/environ").read_text()
    assert "NOTIFY_SOCKET" not in daemon
    assert "WATCHDOG" not in daemon
    assert systemd.address in Path(f"/proc/{watched.pid}/environ").read_text()


def test_a_systemd_that_is_gone_or_full_stops_nothing(
    systemd: Systemd, watched: Supervised
) -> None:
    systemd.sock.close()
    watched.say("ready")
    pgid = watched.run()
    watched.kill_daemon()
    assert watched.exit_code() == 137
    assert not group_exists(pgid)


def test_a_watchdog_that_heard_nothing_takes_daemon_and_runs_down(watched: Supervised) -> None:
    pgid = watched.run(finish=True)
    os.kill(watched.daemon, signal.SIGSTOP)
    os.kill(watched.pid, signal.SIGABRT)
    assert watched.event("supervisor.killed")["reason"] == "signal"
    assert watched.exit_code() == 128 + signal.SIGABRT
    assert not group_exists(pgid)


async def test_a_node_is_ready_in_line_alive_while_it_moves_and_the_watchdog_hands_over(
    tmp_path: Path, etcd: EmbeddedEtcd
) -> None:
    systemd = Systemd(f"@cron-leader{tmp_path}")
    environ = {"NOTIFY_SOCKET": systemd.address, "WATCHDOG_USEC": "10000"}
    try:
        async with town(tmp_path, etcd.endpoint, ttl="60s") as place:
            watched = Fleet(place.config, environ={**os.environ, **environ})
            async with watched:
                await _live_and_be_aborted(systemd, watched, place)
    finally:
        systemd.sock.close()


async def _live_and_be_aborted(systemd: Systemd, watched: Fleet, place: Town) -> None:
    hear = asyncio.to_thread
    started = await watched.start("a")
    while (said := await hear(systemd.heard)) != "READY=1":
        assert said == "WATCHDOG=1"
    await watched.timeline.first("lease.granted", since=started.at, within_s=SOON_S)
    for _ in range(3):
        assert await hear(systemd.heard) == "WATCHDOG=1"
    await place.follow("b")
    os.kill(started.fields["pid"], signal.SIGSTOP)
    for _ in range(3):  # what was on its way
        if await hear(systemd.silent_for, 1.5):
            break
    assert await hear(systemd.silent_for, 1.5)
    aborted = now()
    watched.signal("a", signal.SIGABRT)
    assert await hear(systemd.heard) == "STOPPING=1"
    await place.says("gate.opened", node="b", since=aborted, within_s=5)  # of a TTL of 60
    assert await watched.ended("a") == 128 + signal.SIGABRT
