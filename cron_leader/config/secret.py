"""Passwords that stand in files, where they can be replaced while a node runs."""

from __future__ import annotations

from pathlib import Path


def first_line(file: str) -> str:
    """The secret in a file; "" if it has none. Raises OSError, UnicodeDecodeError."""
    lines = Path(file).read_text(encoding="utf-8").splitlines()
    return lines[0] if lines else ""
