"""Table names as people write them, made safe to stand in SQL."""

from __future__ import annotations

import re

from cron_leader.fencing import FenceMisuse

_NAME = re.compile(r'(?:"(?:[^"\0]|"")+"|[A-Za-z_][A-Za-z0-9_$]*)')
_TABLE = re.compile(rf"{_NAME.pattern}(?:\.{_NAME.pattern})?")


def quoted(name: str) -> str:
    """A column's name, taken literally, as an SQL identifier. Raises FenceMisuse."""
    if not name or "\0" in name:
        raise FenceMisuse(f"{name!r} is no name of a column")
    return '"' + name.replace('"', '""') + '"'


def table(text: str, *, folded: bool) -> str:
    """`name`, `schema.name` or `"Quoted"."Parts"` as SQL; what is not quoted is plain words.

    folded: unquoted words mean their lower case, as in Postgres. Raises FenceMisuse.
    """
    if not _TABLE.fullmatch(text):
        raise FenceMisuse(
            f"table {text!r} is no name: write name, schema.name, or put what is no plain word "
            'in double quotes ("Odd name")'
        )
    return ".".join(_part(part, folded=folded) for part in _NAME.findall(text))


def parts(target: str) -> list[str]:
    """The quoted parts of what `table` has made."""
    return _NAME.findall(target)


def _part(part: str, *, folded: bool) -> str:
    if part.startswith('"'):
        return part
    return f'"{part.lower() if folded else part}"'
