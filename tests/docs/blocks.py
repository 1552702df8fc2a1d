"""The fenced blocks of a Markdown page, and what a shell block says that can be checked unrun."""

from __future__ import annotations

import re
import shlex
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PAGES = sorted([ROOT / "README.md", *(ROOT / "docs").rglob("*.md"), *(ROOT / "chaos").glob("*.md")])

_FENCE = re.compile(r"^```(\w*)([^\n]*)\n(.*?)^```$", re.DOTALL | re.MULTILINE)
_ASSIGNMENT = re.compile(r"[A-Za-z_]\w*=.*")


@dataclass(frozen=True, slots=True)
class Block:
    """One fenced block. info: what stands behind the language, as `no-run`."""

    page: Path
    line: int
    language: str
    info: str
    text: str

    def __str__(self) -> str:
        return f"{self.page.relative_to(ROOT)}:{self.line}"


def blocks(page: Path) -> list[Block]:
    text = page.read_text(encoding="utf-8")
    return [
        Block(page, text.count("\n", 0, m.start()) + 1, m[1], m[2].strip(), m[3])
        for m in _FENCE.finditer(text)
    ]


def commands(script: str) -> list[list[str]]:
    """The commands of a shell block as words, without comments and leading assignments."""
    joined = script.replace("\\\n", " ")
    found = []
    for line in joined.splitlines():
        words = shlex.split(line, comments=True)
        while words and _ASSIGNMENT.fullmatch(words[0]):
            words.pop(0)
        if words:
            found.append(words)
    return found
