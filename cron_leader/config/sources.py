"""Reading a configuration: the file, the environment over it, and ${ENV} within it."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from cron_leader.config.locate import KeyPath
from cron_leader.config.problems import Problem
from cron_leader.errors import ConfigError

FILE = "cron-leader.toml"
_PREFIX = "CRON_LEADER_"
_GIVEN_TO_RUNS = frozenset(
    {"JOB", "SCHEDULED_FOR", "FENCE", "NODE", "FLEET", "ATTEMPT", "RUN_DEADLINE"}
)
_MAY_HOLD_SECRETS = frozenset({"env", "headers"})
"""Of a job's keys."""
_LONGEST_INT = 20
_PLACEHOLDER = re.compile(r"\$(\$?)\{([^}]*)\}")


def find(path: Path | None, environ: Mapping[str, str], cwd: Path) -> Path:
    """--config, else $CRON_LEADER_CONFIG, else ./cron-leader.toml."""
    named = path or (
        Path(environ["CRON_LEADER_CONFIG"]) if environ.get("CRON_LEADER_CONFIG") else None
    )
    return cwd / (named or FILE) if not named or not named.is_absolute() else named


def shown(path: Path) -> str:
    """The path as people see it: relative to the working directory if it lies below it."""
    try:
        return str(path.relative_to(Path.cwd()))
    except (ValueError, OSError):
        return str(path)


def read(path: Path) -> tuple[str, dict[str, Any]]:
    """The file's text and document; ConfigError with the cure if it cannot be had."""
    name = shown(path)
    try:
        text = path.read_text(encoding="utf-8-sig")  # some editors begin with a byte order mark
    except FileNotFoundError:
        raise ConfigError(
            f"{name}: no such configuration file; write one with `cron-leader init`, "
            "or name it with --config or $CRON_LEADER_CONFIG"
        ) from None
    except UnicodeDecodeError as error:
        raise ConfigError(
            f"{name}: not UTF-8 text (byte {error.start}); save it as UTF-8"
        ) from None
    except OSError as error:
        raise ConfigError(f"{name}: cannot be read: {error.strerror}") from None
    try:
        return text, tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"{name}: not valid TOML: {error}") from None
    except RecursionError:
        raise ConfigError(f"{name}: nested too deeply; no key takes that") from None
    except ValueError:  # Python reads no number of more than 4300 digits
        raise ConfigError(f"{name}: a number of too many digits; no key takes that") from None


def overlay(
    document: Mapping[str, Any],
    environ: Mapping[str, str],
    kinds: Mapping[str, Mapping[str, str]],
) -> tuple[dict[str, Any], dict[KeyPath, str], list[Problem]]:
    """The document with CRON_LEADER_<SECTION>_<KEY> laid over it, and which variable set what.

    kinds: section -> key -> "int", "bool", "list" or anything else for text. Others are let
    pass (orchestrators inject their own), but for near misses of a key: those are typing errors.
    """
    merged = {name: dict(v) if isinstance(v, Mapping) else v for name, v in document.items()}
    keys = {
        f"{section}_{key}".upper(): (section, key)
        for section, fields in kinds.items()
        for key in fields
    }
    variables: dict[KeyPath, str] = {}
    problems: list[Problem] = []
    for variable in sorted(environ):
        name = variable.removeprefix(_PREFIX)
        if name == variable or name in _GIVEN_TO_RUNS:
            continue
        if name in keys:
            section, key = keys[name]
            value = _typed(environ[variable], kinds[section][key])
            table = merged.setdefault(section, {})
            if isinstance(table, dict):
                table[key] = value
                variables[section, key] = variable
        elif near := get_close_matches(name, keys, n=1, cutoff=0.85):
            variables[variable,] = variable
            problems.append(Problem((variable,), f"unknown; did you mean ${_PREFIX}{near[0]}?"))
    return merged, variables, problems


def _typed(text: str, kind: str) -> object:
    match kind:
        case "list":
            return [part.strip() for part in text.split(",") if part.strip()]
        case "bool":
            return {"true": True, "1": True, "false": False, "0": False}.get(text.lower(), text)
        case "int" if text.strip().isdecimal() and len(text) < _LONGEST_INT:
            return int(text)
        case _:
            return text


def interpolate(
    document: Mapping[str, Any], environ: Mapping[str, str]
) -> tuple[dict[str, Any], list[Problem]]:
    """${NAME} replaced where secrets may stand: [etcd], [ledger], fence targets, notices,
    the jobs' env and headers.

    `$${` stands for a literal `${`. A variable that is not set is a problem, never an empty text.
    """
    problems: list[Problem] = []

    def fill(value: Any, path: KeyPath) -> Any:
        match value:
            case str():
                return _fill(value, path, environ, problems)
            case list():
                tables = [
                    (*path, n) if isinstance(item, Mapping) else path
                    for n, item in enumerate(value)
                ]
                return [fill(item, at) for item, at in zip(value, tables, strict=True)]
            case Mapping():
                return {key: fill(item, (*path, key)) for key, item in value.items()}
            case _:
                return value

    filled = dict(document)
    for section in ("etcd", "ledger", "fence_target", "notify"):
        if section in filled:
            filled[section] = fill(filled[section], (section,))
    if isinstance(jobs := filled.get("job"), list):
        filled["job"] = [
            {**table, **{key: fill(table[key], ("job", index, key)) for key in secret}}
            if isinstance(table, Mapping) and (secret := _MAY_HOLD_SECRETS & table.keys())
            else table
            for index, table in enumerate(jobs)
        ]
    return filled, problems


def _fill(text: str, path: KeyPath, environ: Mapping[str, str], problems: list[Problem]) -> str:
    def value(match: re.Match[str]) -> str:
        escaped, name = match.groups()
        if escaped:
            return "${" + name + "}"
        if name not in environ:
            problems.append(
                Problem(
                    path, f"environment variable {name} is not set; write $${{ for a literal ${{"
                )
            )
            return ""
        return environ[name]

    return _PLACEHOLDER.sub(value, text)
