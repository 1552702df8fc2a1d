"""From validated [[job]] tables to Jobs."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cron_leader.config import request, schema
from cron_leader.config.blackouts import Named, read_blackout
from cron_leader.config.problems import Problem
from cron_leader.config.schedules import read_schedule
from cron_leader.config.units import NS_PER_S
from cron_leader.core.model import (
    BACKOFF_MAX_S,
    BACKOFF_S,
    Catchup,
    CommandSpec,
    Delivery,
    Isolation,
    Job,
    Limits,
    OnLostLeadership,
    Overlap,
    PythonSpec,
    RunnableSpec,
    ShellSpec,
    WhenFull,
)

_OF_A_PROCESS = frozenset({"cwd", "env", "user", "umask", "nice", "limits"})
_UNRELATED = frozenset(
    {
        "name", "cron", "every", "at", "timezone", "command", "shell", "python",
        "timeout", "grace", "drain", "env", "cwd", "group", "priority", "catchup", "catchup_limit",
    }
)  # fmt: skip
"""Keys of which none bears on another, but for those of the schedule."""
_SIDE_BY_SIDE = (Overlap.QUEUE, Overlap.ALLOW)

Values = Mapping[str, Any]
Report = Callable[[str, str], None]
"""Called with a key of the table ("" for the table itself) and the rule that does not hold."""


@dataclass(frozen=True, slots=True)
class Around:
    """What a job's table refers to. base: of relative paths; fleet: its name, for `H`; blackouts:
    those with a name."""

    base: Path
    fleet: str
    blackouts: Named

    def seed(self, job: str) -> str:
        """What `H` is drawn by."""
        return f"{self.fleet}/{job}"


def build_all(tables: Sequence[Any], around: Around) -> tuple[tuple[Job, ...], list[Problem]]:
    """The jobs that are right, and what is wrong with the others."""
    built: list[Job] = []
    problems: list[Problem] = []
    tables = tables if isinstance(tables, list | tuple) else ()
    for index, table in enumerate(tables):
        if not isinstance(table, Mapping):
            problems.append(Problem(("job", index), "must be a table"))
            continue
        values, invalid = schema.validate_job(table, index)
        problems += invalid
        if not invalid and (job := _job(values, index, around, problems)):
            built.append(job)
    return tuple(built), problems + _doubles(tables) + _ill_renamed(tables)


def _doubles(tables: Sequence[Any]) -> list[Problem]:
    """A problem for every job whose name an earlier one has."""
    problems, seen = [], set()
    for index, table in enumerate(tables):
        name = table.get("name") if isinstance(table, Mapping) else None
        if isinstance(name, str) and name in seen:
            problems.append(
                Problem(("job", index, "name"), "another job has this name; rename one")
            )
        elif isinstance(name, str):
            seen.add(name)
    return problems


def _ill_renamed(tables: Sequence[Any]) -> list[Problem]:
    """A problem for every former name that is still in use, or that two jobs claim."""
    problems: list[Problem] = []
    named = [(index, table) for index, table in enumerate(tables) if isinstance(table, Mapping)]
    names = (table.get("name") for _, table in named)
    used = {name for name in names if isinstance(name, str)}
    claimed: set[str] = set()
    for index, table in named:
        former = table.get("renamed_from")
        if not isinstance(former, str):
            continue
        if former in used:
            rule = f'"{former}" is still the name of a job; a job has one history: leave it out'
            problems.append(Problem(("job", index, "renamed_from"), rule))
        elif former in claimed:
            rule = f'another job is renamed from "{former}" too; keep one'
            problems.append(Problem(("job", index, "renamed_from"), rule))
        claimed.add(former)
    return problems


def _job(values: Values, index: int, around: Around, problems: list[Problem]) -> Job | None:
    """None if problems were found and appended."""
    before = len(problems)

    def report(key: str, rule: str) -> None:
        problems.append(Problem(("job", index, key) if key else ("job", index), rule))

    schedule = read_schedule(values, around.seed(values["name"]), report)
    spec = _spec(values, around.base, report)
    blackout = None
    if not values.keys() <= _UNRELATED:  # of 100,000 jobs most have nothing else
        blackout = read_blackout(values, around.blackouts, report)
        _check_relations(values, spec, report)
    if schedule is None or spec is None or len(problems) > before:
        return None
    return Job(
        name=values["name"],
        schedule=schedule,
        spec=spec,
        blackout=blackout,
        **_options(values, around.base),
    )


def _check_relations(values: Values, spec: RunnableSpec | None, report: Report) -> None:
    """Between keys that may stand beside each other only in some ways."""
    request.check(values, report)
    if values.get("isolation") == Isolation.INLINE and not isinstance(spec, PythonSpec):
        report("isolation", "inline is for python jobs; leave it out")
    elif values.get("isolation") == Isolation.INLINE:
        for key in sorted(_OF_A_PROCESS & values.keys()):
            report(key, 'a job of isolation = "inline" has no process of its own; leave it out')
    limit = values.get("start_within")
    if limit is not None and values.get("jitter", 0) >= limit > 0:
        report("jitter", "must be shorter than start_within, or slots are missed by their own time")
    if "max_parallel" in values and values.get("overlap") not in _SIDE_BY_SIDE:
        report(
            "max_parallel", 'goes with overlap = "queue" or "allow"; else it is one; leave it out'
        )
    _check_retries(values, spec, report)


_BACKOFF_NS = int(BACKOFF_S * NS_PER_S)
_BACKOFF_MAX_NS = int(BACKOFF_MAX_S * NS_PER_S)
_OF_RETRIES = ("backoff", "backoff_max", "retry_on", "retry_exit_codes", "retry_budget")


def _check_retries(values: Values, spec: RunnableSpec | None, report: Report) -> None:
    if not values.get("retries"):
        for key in (key for key in _OF_RETRIES if key in values):
            report(key, "goes with retries, which are 0; leave it out")
    if isinstance(spec, PythonSpec) and "retry_exit_codes" in values:
        report("retry_exit_codes", "is for programs; a python job has retry_on")
    if spec is not None and not isinstance(spec, PythonSpec) and "retry_on" in values:
        report("retry_on", "is for python jobs; a program has retry_exit_codes")
    if values.get("backoff", _BACKOFF_NS) > values.get("backoff_max", _BACKOFF_MAX_NS):
        report("backoff", "must not be longer than backoff_max, which is 5m unless given")


def _options(values: Values, base: Path) -> dict[str, Any]:
    """Keyword arguments of Job for the keys that are there; Job has the defaults."""
    if _OPTIONS.isdisjoint(values):
        return {}
    given = ((*READERS[key], value) for key, value in values.items() if key in READERS)
    options = {name: read(value) for name, read, value in given if value is not None}
    return options | {"cwd": str(base / values["cwd"])} if "cwd" in values else options


def _limits(values: Values) -> Limits:
    cpu_s = values.get("cpu")
    return Limits(cpu_s=cpu_s, **{key: values[key] for key in values if key != "cpu"})


def _seconds(ns: int) -> float:
    return ns / NS_PER_S


READERS: Mapping[str, tuple[str, Callable[[Any], object]]] = {
    "timeout": ("timeout_s", _seconds),
    "grace": ("grace_s", _seconds),
    "drain": ("drain_s", _seconds),
    "start_within": ("start_within_s", _seconds),
    "jitter": ("jitter_s", _seconds),
    "overlap": ("overlap", Overlap),
    "max_parallel": ("max_parallel", int),
    "queue_limit": ("queue_limit", int),
    "when_full": ("when_full", WhenFull),
    "group": ("group", str),
    "priority": ("priority", int),
    "retries": ("retries", int),
    "backoff": ("backoff_s", _seconds),
    "backoff_max": ("backoff_max_s", _seconds),
    "retry_on": ("retry_on", tuple),
    "retry_exit_codes": ("retry_exit_codes", tuple),
    "retry_budget": ("retry_budget", int),
    "catchup": ("catchup", Catchup),
    "catchup_limit": ("catchup_limit", int),
    "delivery": ("delivery", Delivery),
    "on_lost_leadership": ("on_lost_leadership", OnLostLeadership),
    "isolation": ("isolation", Isolation),
    "env": ("env", dict),
    "user": ("user", str),
    "umask": ("umask", int),
    "nice": ("nice", int),
    "limits": ("limits", _limits),
    "renamed_from": ("renamed_from", str),
}
"""For each key, but for cwd, the field of Job and how it is read."""

_OPTIONS = frozenset(READERS) | {"cwd"}


def _one_of(values: Values, names: tuple[str, ...], what: str, report: Report) -> str | None:
    given = [name for name in names if name in values]
    if len(given) == 1:
        return given[0]
    if given:
        report(given[1], f"has {' and '.join(given)}; keep one")
    else:
        report("", f"has no {what}; give one of {', '.join(names)}")
    return None


def _spec(values: Values, base: Path, report: Report) -> RunnableSpec | None:
    match _one_of(values, ("command", "shell", "python", "url"), "work", report):
        case "command" if not values["command"][0].strip():
            report("command", "its first item, the program, is empty")
            return None
        case "command":
            return CommandSpec(tuple(values["command"]))
        case "shell":
            return ShellSpec(values["shell"])
        case "python":
            return PythonSpec(values["python"])
        case "url":
            return request.read(values, base, report)
        case _:
            return None
