"""What the supervisor prints: events on stdout in the daemon's formats, complaints on stderr."""

from __future__ import annotations

import os
import select
import time
from collections.abc import Mapping


class Log:
    """One line an event on stdout, in the daemon's own formats."""

    def __init__(self, form: str, node: str, fleet: str) -> None:
        self._console = form == "console"
        self._base = {"node": node, "fleet": fleet}

    def __call__(self, event: str, **fields: object) -> None:
        seconds, rest = divmod(time.time_ns(), 1_000_000_000)
        at = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(seconds)) + f".{rest // 1000:06}Z"
        if self._console:
            line = console_line(at, self._base["node"], event, fields)
        else:
            import json  # not before the daemon is on its way

            line = json.dumps({"ts": at, "event": event, **self._base, **fields})
        write(1, line)


def console_line(at: str, node: str, event: str, fields: Mapping[str, object]) -> str:
    """As `cron_leader.log` lays it out: time, node, event, sentence, the fields not yet said."""
    rest = dict(fields)
    match event:
        case "supervisor.killed":
            runs = rest.pop("runs")
            sentence = f"killed {runs} run{'' if runs == 1 else 's'}: {rest.pop('reason')}"
        case "supervisor.revoked" if rest.pop("ok"):
            sentence = "gave the daemon's lease back"
        case "supervisor.revoked":
            sentence = f"could not give the daemon's lease back: {rest.pop('error')}"
        case _:
            sentence = ""
    said = (f"{name}={value}" for name, value in rest.items())
    return "  ".join([f"{at[11:23]} {node}  {event:<16}", *([sentence] if sentence else []), *said])


def write(fd: int, line: str) -> None:
    """Write a line, unless nobody reads: a full pipe must not keep us from the next deadline."""
    try:
        if select.select([], [fd], [], 0)[1]:
            os.write(fd, line.encode() + b"\n")
    except OSError:
        pass


def complain(what: str, line: object) -> None:
    write(2, f"cron-leader supervisor: {what}: {str(line)[:80]}")
