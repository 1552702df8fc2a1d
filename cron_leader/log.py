"""Where events become lines: JSON for machines, a short coloured line for people.

A sink never raises and never stops a node: a line that cannot be written (reader gone, disk full)
is dropped. Plain ANSI and no Rich: this is imported by every node at start-up.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Any, TextIO

from cron_leader.events import DEBUG, Sink

Line = Mapping[str, Any]

_ENCODE = json.JSONEncoder(ensure_ascii=False, default=str).encode
"""As json.dumps, which would make an encoder for each line."""

_WARNINGS = frozenset(
    {
        "lease.lost", "watch.broken", "watch.compacted", "slot.missed", "ledger.uncertain",
        "config.drifted", "clock.stepped", "supervisor.killed", "run.not_started",
        "slot.failed",
    }
)  # fmt: skip
_ERRORS = frozenset({"ledger.refused", "ledger.unreachable", "etcd.unreachable"})


def json_sink(stream: TextIO, *, level: str = "info") -> Sink:
    """One JSON object a line. level "debug" shows the events of `events.DEBUG` too."""

    def sink(line: Line) -> None:
        if _shown(line, level):
            _write(stream, _ENCODE(line))

    return sink


def console_sink(stream: TextIO, *, level: str = "info", color: bool | None = None) -> Sink:
    """`21:56:38.123 a  gate.opened  leading: fence 42  key=value ...`, times in UTC.

    color None: on a terminal, unless NO_COLOR is set. Each node has its colour.
    """
    painted = wants_color(stream, os.environ) if color is None else color
    paint = _painter(painted)

    def sink(line: Line) -> None:
        if _shown(line, level):
            _write(stream, console_line(line, paint))

    return sink


def wants_color(stream: TextIO, environ: Mapping[str, str]) -> bool:
    """On a terminal, unless NO_COLOR is set or the terminal is dumb."""
    return stream.isatty() and not environ.get("NO_COLOR") and environ.get("TERM") != "dumb"


def set_title(stream: TextIO, title: str) -> None:
    """Name the terminal's window or tab (OSC 2); nothing if the stream is no terminal."""
    if stream.isatty() and os.environ.get("TERM") != "dumb":
        _write(stream, f"\x1b]2;{printable(title)}\x07", end="")


def _shown(line: Line, level: str) -> bool:
    return level == "debug" or line["event"] not in DEBUG


# ------------------------------------------------------------------ one console line

Paint = Callable[[str, str], str]

_PALETTE = ("36", "33", "35", "32", "34", "96", "93", "95", "92", "94")
_BOLD, _DIM, _RED, _YELLOW, _GREEN = "1", "2", "31", "33", "32"
_ALWAYS = frozenset({"ts", "event", "node", "fleet", "shard"})
_SAID_ELSEWHERE = frozenset({("node.stopped", "error")})
"""The same terminal has it as `error: ...` on stderr, where the process says why it failed."""
_SHORT = {"scheduled_for": "slot"}

_TEXTS: Mapping[str, str] = {
    "node.started": "up, pid {pid}",
    "node.stopping": "stopping",
    "node.stopped": "stopped",
    "term.campaigning": "in line for the leadership",
    "term.elected": "elected",
    "term.raised": "fence raised to {fence}",
    "term.ended": "not leading: {reason}",
    "gate.opened": "leading: fence {fence}",
    "gate.closed": "not starting runs: {reason}",
    "lease.lost": "lease lost",
    "run.started": "{job} started",
    "run.not_started": "{job} not started: {error}",
    "run.finished": "{job} {outcome}",
    "slot.missed": "{job} missed: {reason}",
    "slot.skipped": "{job} skipped: {reason}",
    "slot.failed": "{job} failed, and is not tried again: {reason}",
    "config.drifted": "other nodes are configured otherwise",
    "ledger.refused": "refused by the fence: {what}",
    "ledger.uncertain": "unknown whether the ledger has it: {what}",
    "ledger.unreachable": "ledger unreachable, trying on: {error}",
    "ledger.back": "ledger is back",
    "etcd.unreachable": "etcd unreachable, trying on: {error}",
    "etcd.back": "etcd is back",
}


def node_color(node: str) -> str:
    """The ANSI colour of a node: the same on every machine, and apart for a, b, c."""
    number = 0
    for letter in node:
        number = number * 31 + ord(letter)
    return _PALETTE[number % len(_PALETTE)]


def console_line(line: Line, paint: Paint) -> str:
    """Time, node, event, sentence, and the fields the sentence does not say.

    What a slot is called is shortened to its time of day, and that a run is the first is not told.
    """
    event, node = str(line["event"]), str(line["node"])
    text, said = _sentence(event, line)
    fields = [
        f"{paint(_SHORT.get(key, key) + '=', _DIM)}{_value(key, value)}"
        for key, value in line.items()
        if key not in _ALWAYS and key not in said and value is not None
        if (key, value) != ("attempt", 1) and (event, key) not in _SAID_ELSEWHERE
    ]
    time = paint(str(line["ts"])[11:23], _DIM)
    head = f"{time} {paint(node, node_color(node))}  {paint(f'{event:<16}', _DIM)}"
    return "  ".join([head, *([paint(text, _tone(line))] if text else []), *fields])


def _sentence(event: str, line: Line) -> tuple[str, set[str]]:
    """The sentence for an event, and the fields it uses; empty if a field it needs is not there."""
    template = _TEXTS.get(event, "")
    used = {part.partition("}")[0] for part in template.split("{")[1:]}
    if any(line.get(key) is None for key in used):
        return "", set()
    return template.format(**{key: printable(str(line[key])) for key in used}), used


def _tone(line: Line) -> str:
    """Red for what keeps a node from its work, yellow for what somebody may want to look at."""
    event = line["event"]
    if event in _ERRORS:
        return _RED
    if event in _WARNINGS or (event == "run.finished" and line.get("outcome") != "succeeded"):
        return _YELLOW
    return _GREEN if event == "gate.opened" else _BOLD


def _value(key: str, value: object) -> str:
    if key == "duration_ms" and isinstance(value, int | float):
        return f"{value:.0f}"
    if key == "lease" and isinstance(value, int):
        return f"{value:016x}"
    text = value if isinstance(value, str) else json.dumps(value, default=str)
    if key == "scheduled_for":
        text = _time_of_day(text)
    plain = printable(text)
    return json.dumps(plain, ensure_ascii=False) if " " in plain or not plain else plain


def _time_of_day(at: str) -> str:
    """HH:MM:SS, or HH:MM:SS.mmm, of an RFC 3339 time in UTC; its day is that of the line or near.

    What is no such time stays as it is.
    """
    try:
        when = datetime.fromisoformat(at)
    except ValueError:
        return at
    return when.time().isoformat("milliseconds" if when.microsecond else "seconds")


def printable(text: str) -> str:
    """On one line and without control characters: a job's error must not steer the terminal."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def _painter(color: bool) -> Paint:
    return (lambda text, code: f"\x1b[{code}m{text}\x1b[0m") if color else (lambda text, _: text)


def _write(stream: TextIO, text: str, *, end: str = "\n") -> None:
    try:
        try:
            stream.write(text + end)
        except UnicodeEncodeError:
            stream.write(_ascii(text) + end)
        stream.flush()
    except (OSError, ValueError):
        # The reader is gone, the disk is full, the stream is closed: logging must not end a term.
        return


def _ascii(text: str) -> str:
    """For a stream of another encoding: escaped as JSON does, so that JSON stays the same JSON."""
    return "".join(c if c.isascii() else json.dumps(c)[1:-1] for c in text)
