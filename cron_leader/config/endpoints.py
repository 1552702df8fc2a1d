"""The addresses of etcd's members as people write them: host:port, URLs, unix sockets."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from pathlib import Path

_HOST_PORT = re.compile(r"(?:[^\s:/@?#\[\]]+|\[[0-9a-fA-F:.]+\]):([0-9]{1,5})/?")
_PLAIN, _TLS = frozenset({"http", "unix"}), frozenset({"https", "unixs"})
_LONGEST_SOCKET = 103
"""Bytes in the path of a unix socket: 107 on Linux, 103 on macOS."""


def endpoint(text: str, base: Path, *, secured: bool, wrong: Callable[[str], None]) -> str:
    """host:port, or unix:// and an absolute path; what is not right is told to `wrong`.

    base: what the path of a socket is relative to. secured: a CA is configured.
    """
    scheme, _, rest = text.rpartition("://")
    if scheme not in {"", *_PLAIN, *_TLS}:
        wrong(f"{text}: unknown scheme; write host:port, http://, https:// or unix:///path")
    elif scheme in _TLS and not secured:
        wrong(f"{text}: TLS needs [etcd] ca, the file of the authority to trust")
    elif scheme in _PLAIN and secured:
        wrong(f"{text}: plain, but [etcd] ca is set; write {scheme}s:// or take ca out")
    elif scheme.startswith("unix"):
        return _socket(rest, base, wrong)
    elif not (match := _HOST_PORT.fullmatch(rest)) or not 0 < int(match[1]) < 1 << 16:
        wrong(f"{text}: must be host:port, as 127.0.0.1:2379 or [::1]:2379")
    return rest.rstrip("/")


def _socket(path: str, base: Path, wrong: Callable[[str], None]) -> str:
    if not path:
        wrong("unix://: names no socket; write unix:///run/etcd.sock")
    found = str((base / path).absolute())
    if len(os.fsencode(found)) > _LONGEST_SOCKET:
        wrong(f"{found}: longer than the {_LONGEST_SOCKET} bytes a socket's path may have")
    return f"unix://{found}"
