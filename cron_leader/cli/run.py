"""`cron-leader run`: becomes the supervisor, which starts the daemon. Imports next to nothing."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence

OPTIONS = ("--config", "--node-id", "--log-format", "--log-level")
FORMATS = ("console", "json")
LEVELS = ("info", "debug")
_CHOICES = {"--log-format": FORMATS, "--log-level": LEVELS}


def parse(args: Sequence[str]) -> dict[str, str] | None:
    """The options of `run` by name; None if Typer has to look (help, an error)."""
    options: dict[str, str] = {}
    rest = list(args)
    while rest:
        name, equals, value = rest.pop(0).partition("=")
        if not equals and rest:
            value = rest.pop(0)
        if name not in OPTIONS or not value or value.startswith("-"):
            return None
        if value not in _CHOICES.get(name, (value,)):
            return None
        options[name] = value
    return options


def start(options: Mapping[str, str]) -> int:
    """Replace this process by the supervisor; returns (126) only if that fails."""
    argv = command(options)
    sys.stdout.flush()
    try:
        os.execv(argv[0], argv)
    except OSError as error:
        print(f"error: {argv[0]}: cannot be started: {error.strerror}", file=sys.stderr)
        return 126


def command(options: Mapping[str, str]) -> list[str]:
    """The supervisor's command line, the daemon's behind "--"."""
    package = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    log_format = options.get("--log-format") or ("console" if sys.stdout.isatty() else "json")
    node = options.get("--node-id") or os.environ.get("NODE_ID") or _peek(options, "node", "id")
    fleet = _peek(options, "fleet", "name") or "default"
    labels = ["--fleet", fleet, *(["--node", node] if node else [])]
    supervisor = [sys.executable, "-S", "-E", os.path.join(package, "supervisor.py")]
    daemon = [sys.executable, "-m", "cron_leader"]
    said = {**options, "--log-format": log_format}
    given = [word for pair in said.items() for word in pair]
    return [*supervisor, "--log-format", log_format, *labels, "--", *daemon, *given]


def _peek(options: Mapping[str, str], section: str, key: str) -> str:
    """A plain `key = "text"` of the configuration, to label the supervisor's own few log lines.

    The daemon reads the file properly; doing so here too would cost every start 30 ms.
    """
    named = os.environ.get(f"CRON_LEADER_{section}_{key}".upper())
    if named:
        return named
    path = options.get("--config") or os.environ.get("CRON_LEADER_CONFIG") or "cron-leader.toml"
    try:
        with open(path, encoding="utf-8") as file:
            return _scan(file.read().splitlines(), section, key)
    except (OSError, UnicodeDecodeError):
        return ""


def _scan(lines: Sequence[str], section: str, key: str) -> str:
    table = ""
    for line in lines:
        name, equals, value = line.partition("=")
        if line.startswith("["):
            table = line.partition("#")[0].strip()
        elif equals and table == f"[{section}]" and name.strip() == key:
            text = value.strip()
            return text[1:].partition(text[0])[0] if text[:1] in {'"', "'"} else ""
    return ""
