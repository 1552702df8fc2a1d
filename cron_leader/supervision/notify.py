"""What systemd is told, as the main process of a unit with Type=notify and WatchdogSec=.

Source: sd_notify(3): one datagram of NAME=value lines to the socket in $NOTIFY_SOCKET, whose name
begins with @ if it is abstract. Nothing here waits for systemd, or fails without it.
"""

from __future__ import annotations

import os
import socket

from .groups import boot_ns
from .log import complain

TYPE_CHECKING = False  # typing itself would cost a megabyte
if TYPE_CHECKING:
    from collections.abc import MutableMapping


class Notify:
    """Says READY=1 and STOPPING=1 once, and WATCHDOG=1 twice in a watchdog's period."""

    def __init__(self, address: str, period_ns: int) -> None:
        """address: "" if nobody listens; period_ns: 0 without a watchdog."""
        self._address = "\0" + address[1:] if address.startswith("@") else address
        self._period_ns = period_ns if address else 0
        self._said: set[str] = set()
        self._alive_ns = 0

    @classmethod
    def take(cls, environ: MutableMapping[str, str]) -> Notify:
        """As the environment says; what it says is for this process alone, so it is taken out."""
        address = environ.pop("NOTIFY_SOCKET", "")
        period_us = environ.pop("WATCHDOG_USEC", "")
        whose = environ.pop("WATCHDOG_PID", "")
        ours = whose in ("", str(os.getpid())) and period_us.isdigit()
        known = address if address[:1] in ("/", "@") else ""
        return cls(known, int(period_us) * 1000 if ours else 0)

    def ready(self) -> None:
        self._once("READY=1")

    def stopping(self) -> None:
        self._once("STOPPING=1")

    def alive(self) -> None:
        """The daemon's loop came round; passed on once half the period has gone by."""
        now = boot_ns()
        if self._period_ns and now - self._alive_ns >= self._period_ns // 2:
            self._alive_ns = now
            self._send("WATCHDOG=1")

    def _once(self, line: str) -> None:
        if self._address and line not in self._said:
            self._said.add(line)
            self._send(line)

    def _send(self, line: str) -> None:
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as link:
                link.setblocking(False)
                link.sendto(line.encode(), self._address)
        except OSError as error:
            complain(f"cannot tell systemd {line}", error.strerror)
