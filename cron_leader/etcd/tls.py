"""TLS to etcd: the configured files as gRPC's credentials, read again when they changed on disk.

Connections that stand are not touched; new ones take the new files. Files that do not work (half
written, a key of another certificate) are passed over, and looked at again later.
"""

from __future__ import annotations

import ssl
from pathlib import Path
from typing import TYPE_CHECKING

import grpc

from cron_leader.clock import Clock
from cron_leader.errors import ConfigError

if TYPE_CHECKING:
    from cron_leader.config import EtcdConfig

LOOK_NS = 10_000_000_000
"""Pause between looks at the disk; a connection that failed asks for one at once."""

_Stamp = tuple[tuple[int, int, int], ...]


class TlsFiles:
    """credentials: of the files as last read. edition: counts how often they were."""

    def __init__(self, config: EtcdConfig, *, clock: Clock) -> None:
        """Raises ConfigError if the files do not work."""
        self._paths = {"ca": config.ca, "cert": config.cert, "key": config.key}
        self._clock = clock
        self.edition = 0
        self._stamp = self._look()
        self._looked_ns = clock.boot_ns()
        self.credentials = self._read()

    def refresh(self) -> int:
        """Look at the disk if it is time; the edition."""
        now_ns = self._clock.boot_ns()
        if now_ns - self._looked_ns >= LOOK_NS:
            self._looked_ns = now_ns
            self._take_what_is_new()
        return self.edition

    def doubt(self) -> None:
        """A connection failed, perhaps because of the files: look at the next use."""
        self._looked_ns = self._clock.boot_ns() - LOOK_NS

    def _take_what_is_new(self) -> None:
        stamp = self._look()  # before they are read: what is written meanwhile is seen next time
        if not stamp or stamp == self._stamp:
            return
        try:
            self.credentials = self._read()
        except ConfigError:
            return
        self._stamp = stamp
        self.edition += 1

    def _look(self) -> _Stamp:
        """Empty if a file is missing."""
        try:
            found = [Path(path).stat() for path in self._paths.values() if path]
        except OSError:
            return ()
        return tuple((it.st_mtime_ns, it.st_size, it.st_ino) for it in found)

    def _read(self) -> grpc.ChannelCredentials:
        ca, cert, key = (_pem(name, path) for name, path in self._paths.items())
        self._check()
        return grpc.ssl_channel_credentials(ca, key, cert)

    def _check(self) -> None:
        """gRPC itself would find out at the first handshake only, and not say it well."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        ca, cert, key = self._paths.values()
        try:
            if ca:
                context.load_verify_locations(ca)
        except (OSError, ValueError) as error:
            raise ConfigError(f"[etcd] ca = {ca!r}: no certificate in it ({error})") from error
        try:
            if cert:
                context.load_cert_chain(cert, key, password=_no_password)
        except (OSError, ValueError) as error:
            raise ConfigError(
                f"[etcd] cert = {cert!r}, key = {key!r}: not a certificate and its own key, "
                f"in PEM and without a passphrase ({error})"
            ) from error


def _no_password() -> str:
    raise ValueError("it asks for a passphrase")


def _pem(name: str, path: str | None) -> bytes | None:
    if path is None:
        return None
    try:
        return Path(path).read_bytes()
    except OSError as error:
        raise ConfigError(f"[etcd] {name} = {path!r}: {error.strerror}; name a PEM file") from error
