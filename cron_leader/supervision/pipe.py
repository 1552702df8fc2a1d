"""Our end of the socket pair to the daemon."""

from __future__ import annotations

import json

from .log import complain

TYPE_CHECKING = False  # typing itself would cost a megabyte
if TYPE_CHECKING:
    import socket
    from collections.abc import Iterator
    from typing import Any

LINE_MAX = 64 * 1024
"""A longer line is no message: the longest of ours, with credentials, is about 2 KiB."""


class Pipe:
    """Our end of the socket pair. Never blocks: a daemon that does not read loses its acks."""

    def __init__(self, sock: socket.socket) -> None:
        sock.setblocking(False)
        self.sock = sock
        self.open = True
        self._rest = b""

    def messages(self) -> Iterator[dict[str, Any]]:
        """All that the daemon has said by now; nothing more once `open` is False."""
        while chunk := self._receive():
            *lines, self._rest = (self._rest + chunk).split(b"\n")
            if len(self._rest) > LINE_MAX:
                self._rest = b""
            for line in lines:
                try:
                    yield json.loads(line)
                except ValueError:
                    complain("not a message", f"{len(line)} bytes")  # which may be a secret

    def ack(self, seq: int) -> None:
        try:
            self.sock.send(b'{"ack": %d}\n' % seq)
        except OSError:
            pass  # gone, or frozen with a full buffer: it will hear nothing, and start nothing

    def close(self) -> None:
        self.open = False
        self.sock.close()

    def _receive(self) -> bytes:
        try:
            chunk = self.sock.recv(LINE_MAX) if self.open else b""
        except BlockingIOError:
            return b""
        except OSError:
            chunk = b""
        self.open = bool(chunk)
        return chunk
