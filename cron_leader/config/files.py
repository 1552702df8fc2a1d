"""Files that a configuration names: found beside it, and looked at once, at load."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path


def readable(text: str, base: Path, wrong: Callable[[str], None]) -> str:
    """The path; that nobody could read it is told to `wrong`. base: what it is relative to."""
    path = base / text
    if not os.path.isfile(path):  # Path.is_file raises for a name that is too long
        wrong(f"{path}: {'is not a file' if os.path.exists(path) else 'no such file'}")
    elif not os.access(path, os.R_OK):
        wrong(f"{path}: cannot be read by this user")
    return str(path)
