"""What is wrong with a configuration, one line a finding: place, key, value, rule, cure."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

from cron_leader.config.locate import KeyPath, line_of, locate
from cron_leader.errors import ConfigError

_LONGEST = 60
_LONGEST_RULE = 2_000
_MOST_LINES = 100
_SECRET = re.compile(r"(?<=://)(?:[^\"\\\s]|\\.)*(?=@)|(?<=password=)[^&\"]*")
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029]")
"""What would make two lines of one, or speak to a terminal."""
_HIDDEN = frozenset({"env", "headers", "webhook"})


@dataclass(frozen=True, slots=True)
class Problem:
    """One finding. path: ("lease", "ttl") or ("job", 2, "cron"); rule: what holds, and the cure."""

    path: KeyPath
    rule: str


@dataclass(frozen=True, slots=True)
class Source:
    """Where a document came from, to name the place of a problem.

    name: the file, or the module of `@job` functions. text: the file's, for line numbers.
    variables: paths that the environment set, with the variable's name.
    """

    name: str
    document: Mapping[str, Any]
    text: str = ""
    variables: Mapping[KeyPath, str] | None = None

    def fail(self, problems: Sequence[Problem]) -> None:
        """Raise ConfigError with every problem, a line each, up to a bound; nothing if there is
        none."""
        if problems:
            found = locate(self.text)
            each = dict.fromkeys(problems)
            ordered = sorted(each, key=lambda problem: line_of(problem.path, found) or 0)
            lines = [self._line(problem, found) for problem in ordered[:_MOST_LINES]]
            if more := len(ordered) - len(lines):
                lines.append(f"{self.name}: and {more} more")
            raise ConfigError("\n".join(lines))

    def _line(self, problem: Problem, found: Mapping[KeyPath, int]) -> str:
        return _CONTROL.sub(lambda match: repr(match[0])[1:-1], self._told(problem, found))

    def _told(self, problem: Problem, found: Mapping[KeyPath, int]) -> str:
        section, key = _split(problem.path, self.document)
        variable = (self.variables or {}).get(problem.path[:2])
        shown, rule = _shown(self.document, problem.path), _SECRET.sub("***", problem.rule)
        if variable:
            return f"${variable}{shown}: {rule}"
        number = line_of(problem.path, found)
        place = f"{self.name}:{number}" if number else self.name
        what = " ".join(word for word in (self._table(section), key) if word)
        return f"{place}: {what}{shown}: {_cut(rule, _LONGEST_RULE)}"

    def _table(self, section: KeyPath) -> str:
        """[lease], or [[job]] "digest" (its number where it has no name)."""
        match section:
            case ("job", int(index)):
                jobs = self.document.get("job", ())
                table = jobs[index] if index < len(jobs) else {}
                name = table.get("name") if isinstance(table, Mapping) else None
                if not isinstance(name, str) or not name:
                    return f"[[job]] number {index + 1}"
                return f"[[job]] {_cut(json.dumps(name, ensure_ascii=False), _LONGEST)}"
            case (str(name), int(index)):
                return f"[[{name}]] number {index + 1}"
            case (str(name),):
                return f"[{name}]"
            case _:
                return ""


def others(problems: Sequence[Problem], first: Sequence[Problem]) -> list[Problem]:
    """The problems of values in which none of `first` was found: what else is said of such a value
    follows from that."""
    known = {problem.path for problem in first}
    return [one for one in problems if known.isdisjoint(accumulate((part,) for part in one.path))]


def _split(path: KeyPath, document: Mapping[str, Any]) -> tuple[KeyPath, str]:
    """The table a path belongs to, and the key in it."""
    if len(path) == 1:
        name, value = str(path[0]), document.get(str(path[0]))
        if _is_array(value):
            return (), f"[[{name}]]"
        return (path, "") if isinstance(value, Mapping) else ((), name)
    size = 2 if isinstance(path[1], int) else 1
    return path[:size], ".".join(str(part) for part in path[size:] if isinstance(part, str))


def _is_array(value: object) -> bool:
    """Whether it is an array of tables."""
    return isinstance(value, list) and any(isinstance(item, Mapping) for item in value)


def _shown(document: Any, path: KeyPath) -> str:
    """` = value` as TOML would write it, without secrets; empty if there is no plain value."""
    value = document
    for part in path:
        try:
            value = value[part]
        except (KeyError, IndexError, TypeError):
            return ""
    if isinstance(value, Mapping) or _is_array(value) or _HIDDEN.intersection(path):
        return ""
    try:
        text = json.dumps(value, ensure_ascii=False, default=str)
    except ValueError:  # Python shows no number of more than 4300 digits
        return ""
    return f" = {_cut(_SECRET.sub('***', text), _LONGEST)}"


def _cut(text: str, most: int) -> str:
    """It may quote what somebody pasted in the wrong place."""
    return text if len(text) <= most else text[: most - 3] + "..."
