"""Where a key stands in a TOML text: tomllib keeps no line numbers, and an error wants one.

Best effort, used for messages only: when the text is laid out in a way not foreseen here, the
answer is the nearest enclosing table, or None.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping

KeyPath = tuple[str | int, ...]
"""("lease", "ttl"), or ("job", 2, "cron") for the third [[job]]."""

_HEADER = re.compile(r"\s*\[(\[?)\s*([\w.\"'-]+)\s*\]")
_MULTI_LINE = ('"""', "'''")
_QUOTED = re.compile(r"""\"{3}|'{3}|"(?:[^"\\]|\\.)*"|'[^']*'|#""")
_KEY = re.compile(r"\s*([\w.\"'-]+)\s*=")


def locate(text: str) -> dict[KeyPath, int]:
    """Every table and key of the text with its line number, from 1."""
    found: dict[KeyPath, int] = {}
    arrays: Counter[str] = Counter()
    table: KeyPath = ()
    inside: str | None = None
    for number, line in enumerate(text.split("\n"), start=1):
        if inside is None:
            if match := _HEADER.match(line):
                table = _table(match[2], is_array=bool(match[1]), arrays=arrays)
                found.setdefault(table, number)
                found.setdefault(table[:1], number)
            elif match := _KEY.match(line):
                found.setdefault((*table, *_split(match[1])), number)
        inside = _still_inside(line, inside)
    return found


def line_of(path: KeyPath, found: Mapping[KeyPath, int]) -> int | None:
    """The line of the key, else of the nearest table around it."""
    while path:
        if path in found:
            return found[path]
        path = path[:-1]
    return None


def _split(dotted: str) -> tuple[str, ...]:
    return tuple(part.strip("\"'") for part in dotted.split("."))


def _table(dotted: str, *, is_array: bool, arrays: Counter[str]) -> KeyPath:
    first, *rest = _split(dotted)
    if is_array and not rest:
        arrays[first] += 1
    index: KeyPath = (arrays[first] - 1,) if arrays[first] else ()
    return (first, *index, *rest)


def _still_inside(line: str, inside: str | None) -> str | None:
    """The multi-line quote that is open at the end of the line, if any."""
    at = 0
    while True:
        if inside is not None:
            end = line.find(inside, at)
            if end < 0:
                return inside
            at = end + len(inside)
        match = _QUOTED.search(line, at)
        if match is None or match[0] == "#":  # the rest is a comment
            return None
        at, inside = match.end(), match[0] if match[0] in _MULTI_LINE else None
