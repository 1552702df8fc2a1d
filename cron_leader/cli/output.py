"""What every command shares: the two streams, JSON, exit codes, and errors as one line."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Sequence
from datetime import UTC, datetime
from enum import IntEnum
from typing import TYPE_CHECKING, Any

from cron_leader.errors import (
    ConfigError,
    CronLeaderError,
    EtcdRefused,
    EtcdUnavailable,
    LedgerUncertain,
    LedgerUnusable,
)
from cron_leader.log import printable

if TYPE_CHECKING:
    from rich.console import Console
    from rich.text import Text


class Exit(IntEnum):
    OK = 0
    FAILED = 1
    USAGE = 2
    UNREACHABLE = 3


def exit_code(error: CronLeaderError) -> Exit:
    """By whose fault it is: the user's input, a service that does not answer, or neither."""
    match error:
        case ConfigError():
            return Exit.USAGE
        case EtcdUnavailable() | LedgerUncertain():
            return Exit.UNREACHABLE
        case EtcdRefused(permanent=True) | LedgerUnusable(permanent=True):
            return Exit.USAGE
        case _:
            return Exit.FAILED


def complain(text: str) -> None:
    """Each line of the text on stderr, after "error: "."""
    for line in text.splitlines() or [""]:
        print(f"error: {printable(line)}", file=sys.stderr)


def note(text: str) -> None:
    """A remark that is not the command's output, on stderr."""
    print(f"note: {printable(text)}", file=sys.stderr)


def console() -> Console:
    """Rich on stdout. It honours NO_COLOR, and writes plain text to a pipe."""
    from rich.console import Console

    wide = not sys.stdout.isatty() and "COLUMNS" not in os.environ
    return Console(highlight=False, width=200 if wide else None)


def styled(*parts: str | tuple[str, str]) -> Text:
    """Text of plain parts and (part, style) pairs; nothing in it is read as markup."""
    from rich.text import Text

    plain = (
        printable(part) if isinstance(part, str) else (printable(part[0]), part[1])
        for part in parts
    )
    return Text.assemble(*plain)


def columns(rows: Sequence[Sequence[str | Text]], *titles: str) -> None:
    """Print rows under titles, without borders; a title ending in ">" is aligned right."""
    from rich.table import Table

    made = Table(box=None, pad_edge=False, header_style="bold")
    for title in titles:
        justify: Any = "right" if title.endswith(">") else "left"
        made.add_column(title.removesuffix(">"), justify=justify, overflow="fold")
    for row in rows:
        made.add_row(*(styled(cell) if isinstance(cell, str) else cell for cell in row))
    console().print(made)


def print_json(value: object) -> None:
    """Plain JSON, indented: for programs, and for `jq` by eye."""
    print(json.dumps(value, indent=2, ensure_ascii=False, default=_encode))


def _encode(value: object) -> object:
    if isinstance(value, datetime):
        return utc(value)
    raise TypeError(f"{type(value).__name__} is no JSON")


def utc(at: datetime) -> str:
    """RFC 3339 in UTC, as short as it can be: 2026-12-01T09:00:00Z."""
    return at.astimezone(UTC).replace(tzinfo=None).isoformat() + "Z"


def when(at: datetime | None, *, now: datetime | None = None) -> str:
    """For people: "2026-12-01 09:00:00Z", with how long until or since if now is given."""
    if at is None:
        return "-"
    precision = "milliseconds" if at.microsecond else "seconds"
    text = at.astimezone(UTC).replace(tzinfo=None).isoformat(" ", precision) + "Z"
    if now is None:
        return text
    gap = at - now
    apart = span(abs(gap).total_seconds())
    return f"{text} (in {apart})" if gap.total_seconds() >= 0 else f"{text} ({apart} ago)"


def span(seconds: float) -> str:
    """A length of time for people, two units at most: 430ms, 7.1s, 2m05s, 3h12m, 4d02h."""
    if seconds < 1:
        return f"{seconds * 1000:.0f}ms"
    if seconds < 60:
        return f"{seconds:.1f}s" if seconds < 9.95 else f"{seconds:.0f}s"
    for size, unit, below, small in (
        (86_400, "d", 3600, "h"),
        (3600, "h", 60, "m"),
        (60, "m", 1, "s"),
    ):
        if seconds >= size:
            whole, rest = divmod(int(seconds), size)
            return f"{whole}{unit}{rest // below:02d}{small}"
    raise AssertionError("unreachable: below a minute was answered above")


def one_line(text: str, most: int = 80) -> str:
    """The first line of a text, cut to fit."""
    line = text.strip().partition("\n")[0]
    return line if len(line) <= most else line[: most - 1] + "…"
