"""Reading a crontab (Debian's, and cronie's CRON_TZ): pure, text in, entries and remarks out.

Sources: crontab(5) of Debian's cron and of cronie. What cannot be read is a Remark, never lost.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

_SETTING = re.compile(r"""\s*(?P<q>["']?)(?P<name>[A-Za-z_]\w*)(?P=q)\s*=\s*(?P<value>.*?)\s*""")
_FIELD_HEADER = re.compile(r"#.*\bdow\b(?P<user>.*\buser\b)?.*\bcommand\b", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Entry:
    """One scheduled command. settings: the environment lines above it, the last of a name.

    expression: five fields or an @nickname. stdin: what stood after the first `%`, None if none.
    """

    line: int
    expression: str
    user: str | None
    command: str
    stdin: str | None
    settings: Mapping[str, str]
    comments: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Setting:
    """An environment line. It holds for the entries below it, which carry it too."""

    line: int
    name: str
    value: str


@dataclass(frozen=True, slots=True)
class Remark:
    """Something that has no counterpart, or needs a look. line 0: the file as a whole."""

    line: int
    text: str


def is_system(text: str, path: str) -> bool:
    """Whether entries have a user field: /etc/crontab, /etc/cron.d/*, or a header that says so."""
    if path == "/etc/crontab" or path.startswith("/etc/cron.d/"):
        return True
    headers = (_FIELD_HEADER.match(line.strip()) for line in text.splitlines())
    return any(header and header["user"] for header in headers)


def read_crontab(text: str, *, system: bool) -> Iterator[Entry | Setting | Remark]:
    """What the lines say, in order; a Remark for one that says nothing to cron."""
    settings: dict[str, str] = {}
    comments: list[str] = []
    for number, line in enumerate(text.splitlines(), start=1):
        stripped = line.strip()
        if stripped.startswith("#"):
            if not _FIELD_HEADER.match(stripped):
                comments.append(stripped.lstrip("#").strip())
            continue
        if match := _SETTING.fullmatch(line):
            settings[match["name"]] = _unquoted(match["value"])
            yield Setting(number, match["name"], settings[match["name"]])
        elif stripped:
            yield _entry(number, stripped, system, settings, comments)
        comments.clear()


def _entry(
    number: int, line: str, system: bool, settings: Mapping[str, str], comments: list[str]
) -> Entry | Remark:
    body = line[1:] if line[:1] == "-" else line  # a leading "-" only silences cron's own log
    times = 1 if body.startswith("@") else 5
    words = body.split(None, times + system)
    if len(words) < times + system + 1:
        return Remark(number, f"not a crontab line: {line}")
    command, stdin = _split_percent(words[-1])
    return Entry(
        line=number,
        expression=" ".join(words[:times]),
        user=words[times] if system else None,
        command=command,
        stdin=stdin,
        settings=dict(settings),
        comments=tuple(comments),
    )


def _split_percent(text: str) -> tuple[str, str | None]:
    r"""The command and its standard input: `%` is a newline, the first one ends the command, and
    `\%` is a plain `%`."""
    parts = [part.replace("\\%", "%") for part in re.split(r"(?<!\\)%", text)]
    return parts[0].strip(), "\n".join(parts[1:]) + "\n" if len(parts) > 1 else None


def _unquoted(value: str) -> str:
    if len(value) >= 2 and value[0] == value[-1] and value[0] in "\"'":
        return value[1:-1]
    return value


# ------------------------------------------------------------------ a name for an entry

_ASIDES = frozenset({"cd", "test", "[", ".", "source", "export", "sleep"})
_WRAPPERS = frozenset(
    {"sudo", "nice", "ionice", "env", "exec", "flock", "timeout", "nohup", "command", "if", "then"}
)
_READERS = re.compile(r"(sh|bash|dash|zsh|python[\d.]*|perl|php[\d.]*|ruby|node|run-parts)")
_LOCK_FOLDERS = ("/tmp/", "/var/lock/", "/run/", "/dev/")
_SUFFIX = re.compile(r"\.(sh|bash|py|pl|php|rb|js)$")


def name_of(command: str, taken: set[str]) -> str:
    """A job's name from what the command seems to run; made unique, and added to taken."""
    base = _slug(command)
    name, number = base, 1
    while name in taken:
        number += 1
        name = f"{base}-{number}"
    taken.add(name)
    return name


def _slug(command: str) -> str:
    pieces = [piece.split() for piece in re.split(r"[;&|()<>{}\n]+", command)]
    pieces = [piece for piece in pieces if piece]
    pieces = [piece for piece in pieces if piece[0] not in _ASIDES] or pieces
    words = [word for piece in pieces for word in piece if _may_name(word)]
    programs = [word.rpartition("/")[2] or word for word in words]
    chosen = next((word for word in programs if not _READERS.fullmatch(word)), "")
    text = _SUFFIX.sub("", chosen or (programs[0] if programs else "job"))
    return re.sub(r"[^A-Za-z0-9_.]+", "-", text).strip("-.")[:60] or "job"


def _may_name(word: str) -> bool:
    plain = re.fullmatch(r"[\w./~+@-]+", word) is not None
    return (
        plain
        and word[0] not in "-+"
        and not word.isdecimal()
        and word not in _WRAPPERS
        and not word.startswith(_LOCK_FOLDERS)
    )
