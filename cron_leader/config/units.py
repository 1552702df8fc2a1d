"""Durations, rates and sizes as people write them: "1m30s", "10/s", "512MiB".

Whole nanoseconds and whole bytes inside.
"""

from __future__ import annotations

import re

NS_PER_S = 1_000_000_000
_UNIT_NS = {
    "d": 86_400 * NS_PER_S,
    "h": 3_600 * NS_PER_S,
    "m": 60 * NS_PER_S,
    "s": NS_PER_S,
    "ms": 1_000_000,
}
_MAX_NS = 3_660 * _UNIT_NS["d"]
_PART = r"(?:([0-9]{1,9})%s)?"
_DURATION = re.compile("".join(_PART % unit for unit in ("d", "h", "m(?!s)", "s", "ms")))
_UNIT_BYTES = {"kB": 10**3, "MB": 10**6, "GB": 10**9, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30}
_SIZE = re.compile(rf"([0-9]{{1,9}}) ?({'|'.join(_UNIT_BYTES)})")
_RATE = re.compile(r"([0-9]{1,9}(?:\.[0-9]{1,6})?)/([smh])")


def parse_duration(text: str) -> int:
    """Nanoseconds of "10s", "1m30s", "250ms", "2h", "7d"; ValueError says what is accepted."""
    match = _DURATION.fullmatch(text.strip())
    if not text.strip() or match is None:
        raise ValueError('not a duration; write "10s", "1m30s", "250ms", "2h" or "7d"')
    total = sum(
        int(count) * unit_ns
        for count, unit_ns in zip(match.groups(), _UNIT_NS.values(), strict=True)
        if count
    )
    if total > _MAX_NS:
        raise ValueError("longer than ten years")
    return total


def show_duration(ns: int) -> str:
    """The shortest text that `parse_duration` reads back; below a millisecond is cut off."""
    parts = []
    for unit, unit_ns in _UNIT_NS.items():
        count, ns = divmod(ns, unit_ns)
        if count:
            parts.append(f"{count}{unit}")
    return "".join(parts) or "0s"


def parse_size(text: str) -> int:
    """Bytes of "512MiB", "2GB", "64kB"; ValueError says what is accepted."""
    match = _SIZE.fullmatch(text.strip())
    if match is None:
        raise ValueError('not a size; write "512MiB", "2GiB" or "100MB"')
    return int(match[1]) * _UNIT_BYTES[match[2]]


def parse_rate(text: str) -> float:
    """Per second, of "10/s", "30/m", "100/h"; ValueError says what is accepted."""
    match = _RATE.fullmatch(text.strip())
    if match is None or float(match[1]) <= 0:
        raise ValueError('not a rate; write "10/s", "30/m" or "100/h"')
    return float(match[1]) * NS_PER_S / _UNIT_NS[match[2]]
