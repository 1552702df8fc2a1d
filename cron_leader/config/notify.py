"""[[notify]] tables: whom to tell of what, and how often at most."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from cron_leader.config import NotifyConfig, On, Quota, request, schema
from cron_leader.config.locate import KeyPath
from cron_leader.config.problems import Problem
from cron_leader.config.units import NS_PER_S

WORDS = frozenset(
    {"on", "job", "scheduled_for", "attempt", "outcome", "reason", "error", "slots", "last"}
    | {"node", "fleet", "fence", "at", "suppressed", "text"}
)
"""What a notice tells, and what {word} may stand in a body."""

_WORD = re.compile(r"\{(\w+)\}")
_QUOTA = re.compile(r"([1-9][0-9]{0,5})/([smh])")
_PER_S = {"s": 1, "m": 60, "h": 3600}

Report = Callable[[str, str], None]


def build_all(tables: Sequence[Any], base: Path) -> tuple[tuple[NotifyConfig, ...], list[Problem]]:
    """The tables that are right, and what is wrong with the others."""
    built: list[NotifyConfig] = []
    problems: list[Problem] = []
    tables = tables if isinstance(tables, list | tuple) else ()
    for index, table in enumerate(tables):
        at: KeyPath = ("notify", index)
        if not isinstance(table, Mapping):
            problems.append(Problem(at, "must be a table"))
            continue
        values, wrong = schema.validate_notify(table, index)

        def report(key: str, rule: str, at: KeyPath = at, wrong: list[Problem] = wrong) -> None:
            wrong.append(Problem((*at, key) if key else at, rule))

        if not wrong:
            _check(values, report)
        made = None if wrong else _notify(values, base, report)
        problems += wrong
        if made is not None and not wrong:
            built.append(made)
    return tuple(built), problems


def _check(values: Mapping[str, Any], report: Report) -> None:
    if ("webhook" in values) == ("command" in values):
        report("", "needs a webhook or a command: one of them")
    if not values.get("command", ["program"])[0].strip():
        report("command", "its first item, the program, is empty")
    if not _is_url(values.get("webhook", "http://host")):
        report("webhook", "must be an http:// or https:// URL")
    if "body" in values and "webhook" not in values:
        report("body", "is for webhooks; a command reads JSON on its standard input")
    if "headers" in values and "webhook" not in values:
        report("headers", "go with a webhook; leave them out")
    for word in _WORD.findall(values.get("body", "")):
        if word not in WORDS:
            report("body", f"{{{word}}} is not known; known here: {', '.join(sorted(WORDS))}")
    if (On.LONG in values.get("on", ())) != ("long_after" in values):
        report("long_after", 'goes with on = ["long"]: give both, or none')
    if "at_most" in values and not _QUOTA.fullmatch(values["at_most"]):
        report("at_most", 'is no such bound; write "10/m", "1/s" or "100/h"')


def _is_url(text: str) -> bool:
    try:
        url = urlsplit(text)
        return url.scheme in {"http", "https"} and bool(url.hostname) and url.port != 0
    except ValueError:
        return False


def _notify(values: Mapping[str, Any], base: Path, report: Report) -> NotifyConfig:
    headers, header_files = request.headers_of(values, base, report)
    count, unit = values.get("at_most", "30/m").split("/")
    after = values.get("long_after")
    return NotifyConfig(
        on=frozenset(On(on) for on in values.get("on", (On.FAILURE, On.RECOVERY))),
        jobs=tuple(values.get("jobs", ())),
        webhook=values.get("webhook"),
        command=tuple(values.get("command", ())),
        body=values.get("body"),
        at_most=Quota(int(count), float(_PER_S[unit])),
        long_after_s=None if after is None else after / NS_PER_S,
        cwd=str(base),
        headers=headers,
        header_files=header_files,
    )
