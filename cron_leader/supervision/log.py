"""What the supervisor prints: events on stdout in the daemon's formats, complaints on stderr."""

from __future__ import annotations

import os
import select
import time


class Log:
    """One line an event on stdout, in the daemon's own formats."""

    def __init__(self, form: str, node: str, fleet: str) -> None:
        self._console = form == "console"
        self._base = {"node": node, "fleet": fleet}

    def __call__(self, event: str, **fields: object) -> None:
        seconds, rest = divmod(time.time_ns(), 1_000_000_000)
        at = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(seconds)) + f".{rest // 1000:06}Z"
        if self._console:
            said = " ".join(f"{name}={value}" for name, value in fields.items())
            line = f"{at[11:23]} {self._base['node']}  {event:<16}  {said}"
        else:
            import json  # not before the daemon is on its way

            line = json.dumps({"ts": at, "event": event, **self._base, **fields})
        write(1, line)


def write(fd: int, line: str) -> None:
    """Write a line, unless nobody reads: a full pipe must not keep us from the next deadline."""
    try:
        if select.select([], [fd], [], 0)[1]:
            os.write(fd, line.encode() + b"\n")
    except OSError:
        pass


def complain(what: str, line: object) -> None:
    write(2, f"cron-leader supervisor: {what}: {str(line)[:80]}")
