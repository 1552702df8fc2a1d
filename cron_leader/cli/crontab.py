"""`import-crontab`: a crontab as [[job]] tables; what has no counterpart is said, not dropped."""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from cron_leader import config as configuration
from cron_leader.cli import output
from cron_leader.cli.crontab_file import Entry, Remark, Setting, is_system, name_of, read_crontab
from cron_leader.errors import ConfigError

_HEADER = """\
# Imported from {name} by `cron-leader import-crontab`.
# What differs from cron: a slot whose previous run still goes is skipped; a run is killed after
# `timeout` (1h unless set); of slots missed during an outage the latest is run (`catchup`); output
# is kept in the ledger, not mailed; runs are started as the user of the node, in its folder.
"""
_NO_COUNTERPART = {
    "MAILTO": "output is kept in the ledger, see `cron-leader history --output`; nothing is mailed",
    "MAILFROM": "nothing is mailed",
    "CONTENT_TYPE": "nothing is mailed",
    "CONTENT_TRANSFER_ENCODING": "nothing is mailed",
    "RANDOM_DELAY": "slots fire on time",
    "START_HOURS_RANGE": "put the hours into the expression",
    "LOGNAME": "runs belong to the user of the node",
    "USER": "runs belong to the user of the node",
}
_SPECIAL = {*_NO_COUNTERPART, "SHELL", "CRON_TZ"}


@dataclass(frozen=True, slots=True)
class Imported:
    """A [[job]] table in the making, and what is to be said about it."""

    line: int
    table: Mapping[str, object]
    comments: tuple[str, ...]
    remarks: tuple[str, ...]
    fault: str = ""


def import_crontab(
    file: Annotated[str, typer.Argument(metavar="FILE", help="A crontab; - reads stdin.")],
    system: Annotated[
        bool | None,
        typer.Option(
            "--system/--no-system", help="Entries have a user field. Else seen from the file."
        ),
    ] = None,
    timezone: Annotated[
        str | None, typer.Option(help="Of entries without CRON_TZ; else this machine's.")
    ] = None,
) -> None:
    """Print a crontab as TOML; on stderr, what has no counterpart."""
    name = "stdin" if file == "-" else file
    text = _read(file)
    zone = timezone or local_zone()
    if system is None:
        system = is_system(text, os.path.abspath(file))
    toml, remarks = translate(text, name=name, zone=zone, system=system)
    print(toml, end="")
    sys.stdout.flush()
    for remark in remarks:
        output.note(f"{name}:{remark.line}: {remark.text}")


def translate(text: str, *, name: str, zone: str, system: bool) -> tuple[str, list[Remark]]:
    """The TOML, which loads as a configuration, and everything a person should look at."""
    blocks = [_HEADER.format(name=_comment_text(name))]
    remarks: list[Remark] = []
    for part in _parts(text, zone, system):
        if isinstance(part, Remark):
            remarks.append(part)
            blocks.append(f"# line {part.line}: {_comment_text(part.text)}\n")
        else:
            said = [*part.remarks, *([f"left out: {part.fault}"] if part.fault else [])]
            remarks += [Remark(part.line, remark) for remark in said]
            blocks.append(_block(part, said))
    return "\n".join(blocks), remarks


def _parts(text: str, zone: str, system: bool) -> Iterator[Imported | Remark]:
    taken: set[str] = set()
    for part in read_crontab(text, system=system):
        match part:
            case Remark():
                yield part
            case Entry():
                yield _imported(part, zone, taken)
            case Setting(line, name, value) if name in _NO_COUNTERPART and value:
                why = _NO_COUNTERPART[name]
                yield Remark(line, f"{name}={value} has no counterpart: {why}")


def _imported(entry: Entry, zone: str, taken: set[str]) -> Imported:
    settings = entry.settings
    env = {key: _literal(value) for key, value in settings.items() if key not in _SPECIAL}
    table: dict[str, object] = {
        "name": name_of(entry.command, taken),
        "cron": entry.expression,
        "timezone": settings.get("CRON_TZ", zone),
        **_work(entry),
        **({"cwd": settings["HOME"]} if settings.get("HOME") else {}),
        **({"env": env} if env else {}),
    }
    return Imported(
        entry.line, table, entry.comments, tuple(_remarks(entry)), fault=_fault(entry, table)
    )


def _remarks(entry: Entry) -> Iterator[str]:
    if entry.user is not None:
        yield f"user {entry.user}: runs belong to the user of the node; run a fleet as {entry.user}"
    if "TZ" in entry.settings and "CRON_TZ" not in entry.settings:
        yield "TZ is set for the run only, as cron does; for the schedule set timezone"


def _fault(entry: Entry, table: Mapping[str, object]) -> str:
    """Why the entry cannot be a job; empty if it can."""
    if entry.expression.lower() == "@reboot":
        return "@reboot has no counterpart: a fleet has no boot; use the init system"
    if "~" in entry.expression:
        return f"{entry.expression}: random ranges have no counterpart; choose a fixed time"
    try:
        configuration.build_jobs([table], where="", base=Path())
    except ConfigError as error:
        return re.sub(r'^: \[\[job\]\] "[^"]*" ', "", str(error).partition("\n")[0])
    return ""


def _work(entry: Entry) -> Mapping[str, object]:
    """shell, or command where the crontab names a shell of its own."""
    script = entry.command
    if entry.stdin is not None:
        end = "CRON_STDIN"
        while end in entry.stdin:
            end += "_"
        script = f"{{ {script}\n}} <<'{end}'\n{entry.stdin}{end}\n"
    shell = entry.settings.get("SHELL", "/bin/sh")
    return {"shell": script} if shell == "/bin/sh" else {"command": [shell, "-c", script]}


def _literal(value: str) -> str:
    """Environment values are taken as they are by cron; ours fill in ${NAME}."""
    return value.replace("${", "$${")


# ------------------------------------------------------------------ TOML


def _block(job: Imported, said: Sequence[str]) -> str:
    """The table with its comments; commented out as a whole if it cannot be a job."""
    notes = [f"# {_comment_text(text)}" for text in job.comments if text]
    notes += [f"# line {job.line}: {_comment_text(text)}" for text in said]
    lines = ["[[job]]", *(f"{key} = {_toml(value)}" for key, value in job.table.items())]
    if job.fault:
        lines = [f"# {line}" for line in lines]
    return "\n".join([*notes, *lines]) + "\n"


def _toml(value: object) -> str:
    match value:
        case Mapping():
            return "{ " + ", ".join(f"{key} = {_toml(item)}" for key, item in value.items()) + " }"
        case list():
            return "[" + ", ".join(_toml(item) for item in value) + "]"
        case _:
            # A JSON text is a TOML basic string, but for DEL.
            return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")


def _comment_text(text: str) -> str:
    """On one line, of characters that a TOML comment may hold."""
    return "".join(c if c.isprintable() or c == "\t" else " " for c in text)


# ------------------------------------------------------------------ input


def _read(file: str) -> str:
    try:
        data = sys.stdin.buffer.read() if file == "-" else Path(file).read_bytes()
    except OSError as error:
        raise ConfigError(f"{file}: cannot be read: {error.strerror}") from None
    try:
        return data.decode()
    except UnicodeDecodeError:
        return data.decode("latin-1")


def local_zone() -> str:
    """The machine's zone by name: $TZ, /etc/timezone, the link /etc/localtime; else UTC."""
    named = os.environ.get("TZ", "").lstrip(":")
    if named and not named.startswith("/"):
        return named
    try:
        return Path("/etc/timezone").read_text(encoding="utf-8").strip() or "UTC"
    except (OSError, UnicodeDecodeError):
        _, found, name = os.path.realpath("/etc/localtime").partition("zoneinfo/")
        return name if found else "UTC"
