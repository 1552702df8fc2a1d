"""The shape of `cron-leader.toml`: which keys exist, and what each value must be.

Written straight for pydantic's core, not as BaseModel classes: those cost 250 ms at start-up, this
50, and a node that takes over a post counts milliseconds. Relations between keys (renew <= ttl/3,
exactly one schedule) are not checked here but in `build`.
"""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Callable, Mapping
from typing import Any

from pydantic_core import SchemaValidator, ValidationError
from pydantic_core import core_schema as cs

from cron_leader.config import request
from cron_leader.config.locate import KeyPath
from cron_leader.config.problems import Problem
from cron_leader.config.units import NS_PER_S, parse_duration, parse_rate, parse_size, show_duration
from cron_leader.core.model import (
    Catchup,
    Delivery,
    Isolation,
    OnLostLeadership,
    Overlap,
    Rollback,
    WhenFull,
)
from cron_leader.core.schedule import DstFold, DstGap

Schema = cs.CoreSchema


def _after(parse: Callable[[str], object], shown: str = "text") -> Schema:
    """Text that a function reads. shown: what it is, in the table of options."""
    text = cs.str_schema(strict=True)
    return cs.no_info_after_validator_function(parse, text, metadata={"is": shown})


def _no_nul(text: str) -> str:
    if "\0" in text:
        raise ValueError("must not contain a NUL character")
    return text


def _matching(pattern: str, rule: str) -> Schema:
    compiled = re.compile(pattern)

    def check(text: str) -> str:
        if not compiled.fullmatch(text):
            raise ValueError(rule)
        return text

    return _after(check)


def _at_least(least_ns: int, rule: str) -> Schema:
    def check(text: str) -> int:
        ns = parse_duration(text)
        if ns < least_ns:
            raise ValueError(rule)
        return ns

    return _after(check, f"duration, {rule.removeprefix('must be ')}")


def _not_empty(text: str) -> str:
    if not text.strip():
        raise ValueError("must not be empty")
    return _no_nul(text)


def _start_within(text: str) -> int | None:
    return None if text == "none" else parse_duration(text)


def _retention(text: str) -> int | None:
    if text in {"0", "off"}:
        return None
    ns = parse_duration(text)
    if 0 < ns < _SHORTEST_RETENTION_NS:
        raise ValueError('must be at least 1h, or "off"')
    return ns or None


def _number_or_off(value: object) -> object:
    match value:
        case "0" | "off":
            return 0
        case str() if value.isascii() and value.isdecimal():
            return int(value)
        case _:
            return value


def _env(value: Mapping[str, str]) -> Mapping[str, str]:
    for name in value:
        if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", name):
            raise ValueError(f"{name!r} is no name of an environment variable")
        if name.startswith("CRON_LEADER_"):
            raise ValueError(f"{name}: names that begin with CRON_LEADER_ are set by cron-leader")
    return value


def _umask(text: str) -> int:
    if not re.fullmatch(r"[0-7]{3,4}", text):
        raise ValueError('must be three or four octal digits in quotes, as "027"')
    return int(text, 8)


def _cpu_s(text: str) -> int:
    seconds, rest = divmod(parse_duration(text), NS_PER_S)
    if rest or not seconds:
        raise ValueError("must be whole seconds, at least 1s")
    return seconds


def _memory(text: str) -> int:
    size = parse_size(text)
    if not _LEAST_MEMORY <= size < 2**62:
        raise ValueError("must be at least 16MiB")
    return size


def _one_of(*values: str) -> Schema:
    return cs.literal_schema([str(value) for value in values])


def _whole(least: int, most: int) -> Schema:
    return cs.int_schema(strict=True, ge=least, le=most)


def _texts(item: Schema) -> Schema:
    return cs.list_schema(item, strict=True, min_length=1)


def _table(fields: Mapping[str, Schema], *required: str) -> Schema:
    return cs.typed_dict_schema(
        {
            name: cs.typed_dict_field(schema, required=name in required)
            for name, schema in fields.items()
        },
        extra_behavior="forbid",
        strict=True,
    )


_TEXT = _after(_not_empty)
_ONE, _LIST = "<one>", "<list>"
_NAME, _WINDOW = "<name>", "<window>"
_SHAPES = frozenset({_ONE, _LIST, _NAME, _WINDOW})
"""Which of two shapes a value has; no part of a key's name."""


def _one_or_more(item: Schema) -> Schema:
    return cs.tagged_union_schema(
        {_ONE: item, _LIST: _texts(item)},
        discriminator=lambda value: _LIST if isinstance(value, list | tuple) else _ONE,
    )


_TEXT_OR_TEXTS = _one_or_more(_TEXT)
_DURATION = _after(parse_duration, "duration")
_POSITIVE = _at_least(1, "must be longer than 0s")
_NODE = _matching(
    r"[^\s\x00-\x1f\x7f-\x9f\ud800-\udfff]{1,64}",
    "must be 1 to 64 characters of UTF-8 without spaces",
)
_FLEET = _matching(r"[a-z0-9-]{1,24}", "must be 1 to 24 of a-z, 0-9 and -")
_PREFIX = _matching(r"(/[^/\s\x00\ud800-\udfff]+)+", 'must start with "/" and must not end with it')
_JOB = _matching(r"\w[\w.:@-]{0,127}", "must be 1 to 128 letters, digits and . : @ _ -")
_MODULE = _matching(r"[^\W\d]\w*(\.[^\W\d]\w*)*", 'must be the name of a module: "pkg.mod"')
_FUNCTION = _matching(
    r"[^\W\d]\w*(\.[^\W\d]\w*)*:[^\W\d]\w*(\.[^\W\d]\w*)*", 'must be "pkg.mod:function"'
)

_USER = _matching(r"[^\s:\x00-\x1f\x7f]+(:[^\s:\x00-\x1f\x7f]+)?", 'must be "user" or "user:group"')

_LEAST_MEMORY = 16 * 2**20
"""Below, not even an interpreter that is to start the job has room."""

LIMITS: Mapping[str, Schema] = {
    "cpu": _after(_cpu_s),
    "memory": _after(_memory),
    "files": _whole(16, 1_000_000_000),
    "processes": _whole(1, 1_000_000_000),
}
_EXCEPTION = _matching(r"[^\W\d]\w*(\.[^\W\d]\w*)*", 'must be an exception: "ValueError"')

WINDOW: Mapping[str, Schema] = {
    "from": cs.any_schema(),
    "to": cs.any_schema(),
    "days": _TEXT_OR_TEXTS,
    "cron": _TEXT,
    "duration": _POSITIVE,
    "holidays": _TEXT,
    "region": _TEXT,
    "timezone": _TEXT,
}

_BLACKOUT = cs.tagged_union_schema(
    {_NAME: _JOB, _WINDOW: _table(WINDOW)},
    discriminator=lambda value: _NAME if isinstance(value, str) else _WINDOW,
    metadata={"is": "name or table"},
)

_SHORTEST_RETENTION_NS = 3600 * NS_PER_S
"""A late copy of a claim must find its slot's row."""
_KEEP = cs.no_info_before_validator_function(_number_or_off, _whole(0, 1_000_000_000))

SECTIONS: Mapping[str, Mapping[str, Schema]] = {
    "node": {"id": _NODE},
    "fleet": {"name": _FLEET, "prefix": _PREFIX, "shards": _whole(1, 1)},
    "lease": {
        "ttl": _at_least(NS_PER_S, "must be at least 1s"),
        "renew": _POSITIVE,
        "margin": _POSITIVE,
    },
    "run": {
        "drain": _DURATION,
        "max_parallel": _whole(1, 100_000),
        "max_clock_skew": _POSITIVE,
        "catchup_rate": _after(parse_rate),
    },
    "etcd": {
        "endpoints": _texts(_TEXT),
        "ca": _TEXT,
        "cert": _TEXT,
        "key": _TEXT,
        "server_name": _TEXT,
        "user": _TEXT,
        "password_file": _TEXT,
    },
    "ledger": {
        "url": _TEXT,
        "migrate": cs.bool_schema(strict=True),
        "ledger_rollback": _one_of(*Rollback),
        "retention": _after(_retention),
        "keep": _KEEP,
    },
    "jobs": {"modules": cs.list_schema(_MODULE, strict=True)},
    "http": {"listen": _TEXT, "token_file": _TEXT},
}

_HEADERS = cs.no_info_after_validator_function(
    request.headers, cs.dict_schema(cs.str_schema(strict=True), cs.any_schema(), strict=True)
)

NOTIFY: Mapping[str, Schema] = {
    "on": _texts(_one_of("failure", "recovery", "missed", "long")),
    "jobs": _texts(_TEXT),
    "webhook": _TEXT,
    "headers": _HEADERS,
    "command": _texts(_after(_no_nul)),
    "body": _TEXT,
    "at_most": _TEXT,
    "long_after": _POSITIVE,
}

FENCE_TARGET: Mapping[str, Schema] = {
    "name": _matching(r"[a-z0-9][a-z0-9_-]{0,62}", "must be 1 to 63 of a-z, 0-9, - and _"),
    "url": _TEXT,
}

_MOST_URGENT = 1_000_000
"""The bound on a priority, either way."""

BLACKOUT: Mapping[str, Schema] = {"name": _JOB, **WINDOW}

GROUP: Mapping[str, Schema] = {"name": _JOB, "max_parallel": _whole(1, 100_000)}

JOB: Mapping[str, Schema] = {
    "name": _JOB,
    "renamed_from": _JOB,
    "cron": _TEXT_OR_TEXTS,
    "every": _at_least(NS_PER_S // 10, "must be at least 100ms"),
    "at": cs.any_schema(metadata={"is": "time or list of times"}),
    "timezone": _TEXT,
    "anchor": cs.any_schema(),
    "start": cs.any_schema(),
    "end": cs.any_schema(),
    "dst_gap": _one_of(*DstGap),
    "dst_fold": _one_of(*DstFold),
    "command": _texts(_after(_no_nul)),
    "shell": _TEXT,
    "python": _FUNCTION,
    "url": _TEXT,
    "method": _one_of(*request.METHODS),
    "headers": _HEADERS,
    "body": _TEXT,
    "expected_status": _texts(_whole(200, 599)),
    "follow_redirects": cs.bool_schema(strict=True),
    "ca": _TEXT,
    "cert": _TEXT,
    "key": _TEXT,
    "env": cs.no_info_after_validator_function(
        _env, cs.dict_schema(cs.str_schema(strict=True), _after(_no_nul), strict=True)
    ),
    "cwd": _TEXT,
    "user": _USER,
    "umask": _after(_umask),
    "nice": _whole(-20, 19),
    "limits": _table(LIMITS),
    "timeout": _POSITIVE,
    "grace": _DURATION,
    "drain": _DURATION,
    "overlap": _one_of(*Overlap),
    "max_parallel": _whole(1, 100_000),
    "queue_limit": _whole(1, 100_000),
    "when_full": _one_of(*WhenFull),
    "group": _JOB,
    "priority": _whole(-_MOST_URGENT, _MOST_URGENT),
    "catchup": _one_of(*Catchup),
    "catchup_limit": _whole(1, 100_000),
    "start_within": _after(_start_within, "duration, `none`"),
    "retries": _whole(0, 1_000),
    "backoff": _POSITIVE,
    "backoff_max": _POSITIVE,
    "retry_on": _texts(_EXCEPTION),
    "retry_exit_codes": _texts(_whole(1, 255)),
    "retry_budget": _whole(1, 100_000),
    "jitter": _DURATION,
    "blackout": _one_or_more(_BLACKOUT),
    "delivery": _one_of(*Delivery),
    "on_lost_leadership": _one_of(*OnLostLeadership),
    "isolation": _one_of(*Isolation),
}

_DURATIONS = frozenset(
    {"ttl", "renew", "margin", "drain", "max_clock_skew", "every", "timeout", "grace", "duration"}
) | {"start_within", "retention", "jitter", "backoff", "backoff_max", "cpu", "long_after"}
_SHORTEST_S, _LONGEST_S = 0.001, 10 * 365 * 86_400
"""The numbers that are taken for seconds somebody forgot to say."""


_TABLES: Mapping[str, Schema] = {name: _table(fields) for name, fields in SECTIONS.items()}
_JOB_TABLE = SchemaValidator(_table(JOB, "name"))


_LISTS = ("job", "group", "blackout", "fence_target", "notify")
"""Tables that are written with two brackets."""


def validate_sections(document: Mapping[str, Any]) -> tuple[dict[str, Any], list[Problem]]:
    """The values of every section but [[job]], converted; a section with a problem is left out."""
    values: dict[str, Any] = {}
    problems: list[Problem] = []
    for name, table in document.items():
        if name in _TABLES and isinstance(table, list):
            cure = (
                "a job's table is [[job]]: write [[job]]" if name == "jobs" else f"write [{name}]"
            )
            problems.append(Problem((name,), cure))
        elif name in _TABLES:
            values[name], wrong = _validate(SchemaValidator(_TABLES[name]), table, (name,))
            problems += wrong
        elif name in _LISTS and not isinstance(table, list):
            problems.append(Problem((name,), f"must be written [[{name}]], with two brackets"))
        elif name not in _LISTS:
            problems.append(Problem((name,), _unknown(name, [*SECTIONS, *_LISTS])))
    return values, problems


def validate_job(table: Mapping[str, Any], index: int) -> tuple[dict[str, Any], list[Problem]]:
    """The values of one [[job]] table, converted; a key set to None counts as absent."""
    given = {key: value for key, value in table.items() if value is not None}
    return _validate(_JOB_TABLE, given, ("job", index))


def validate_notify(table: Mapping[str, Any], index: int) -> tuple[dict[str, Any], list[Problem]]:
    """The values of one [[notify]] table."""
    return _validate(SchemaValidator(_table(NOTIFY)), table, ("notify", index))


def validate_group(table: object, index: int) -> tuple[dict[str, Any], list[Problem]]:
    """The values of one [[group]] table."""
    return _validate(SchemaValidator(_table(GROUP, *GROUP)), table, ("group", index))


def validate_blackout(table: object, index: int) -> tuple[dict[str, Any], list[Problem]]:
    """The values of one [[blackout]] table."""
    return _validate(SchemaValidator(_table(BLACKOUT, "name")), table, ("blackout", index))


def validate_target(table: object, index: int) -> tuple[dict[str, Any], list[Problem]]:
    """The values of one [[fence_target]] table."""
    at: KeyPath = ("fence_target", index)
    given = table if isinstance(table, Mapping) else {}
    unknown = [key for key in given if key not in FENCE_TARGET]
    problems = [Problem((*at, key), _unknown(key, list(FENCE_TARGET))) for key in unknown]
    problems += [
        Problem((*at, key), "is missing; a fence target needs a name and a url")
        for key in FENCE_TARGET
        if key not in given
    ]
    if problems:
        return {}, problems
    return _validate(SchemaValidator(_table(FENCE_TARGET)), given, at)


def _validate(
    validator: SchemaValidator, value: object, at: KeyPath
) -> tuple[dict[str, Any], list[Problem]]:
    try:
        return validator.validate_python(value), []
    except ValidationError as error:
        details = error.errors(include_url=False)
    return {}, [Problem((*at, *_key(detail)), _rule(detail, at)) for detail in details]


def _key(detail: Any) -> KeyPath:
    return tuple(part for part in detail["loc"] if part not in _SHAPES)


def _rule(detail: Any, at: KeyPath) -> str:
    """Our sentence for one finding of pydantic."""
    context = detail.get("ctx", {})
    match detail["type"]:
        case "extra_forbidden":
            return _unknown(str(detail["loc"][-1]), list(_siblings(detail, at)))
        case "missing":
            return _absent(at)
        case "string_type":
            return f"must be text in quotes{_quoted(detail)}"
        case "int_type" | "int_from_float":
            return "must be a whole number"
        case "bool_type":
            return "must be true or false"
        case "list_type" | "tuple_type":
            return f"must be a list{_listed(detail['input'])}"
        case "dict_type":
            return "must be a table of keys and values"
        case "too_short":
            return "must not be empty"
        case "literal_error":
            return _choice(detail["input"], context["expected"])
        case "greater_than_equal":
            return f"must be at least {context['ge']}"
        case "less_than_equal" if detail["loc"][-1] == "shards":
            return "this release runs one election per fleet; set shards = 1"
        case "less_than_equal":
            return f"must be at most {context['le']}"
        case "value_error":
            return str(context["error"])
        case _:
            return str(detail["msg"])


def _absent(at: KeyPath) -> str:
    if at[0] == "group":
        return "is missing; a group needs a name and max_parallel"
    if at[0] == "blackout":
        return "is missing; a blackout needs a name"
    return "is missing; every job needs a name"


def _siblings(detail: Any, at: KeyPath) -> Mapping[str, Schema]:
    """The keys that may stand where an unknown one was found."""
    if at[0] != "job":
        lists = {"notify": NOTIFY, "group": GROUP, "blackout": BLACKOUT}
        return {**lists, **SECTIONS}[str(at[0])]
    inner = {"limits": LIMITS, "blackout": WINDOW}
    return inner.get(detail["loc"][0], JOB) if len(detail["loc"]) > 1 else JOB


def _unknown(key: str, known: list[str]) -> str:
    near = difflib.get_close_matches(key.lower(), known, n=1, cutoff=0.6)
    hint = f"did you mean {near[0]}?" if near else f"known here: {', '.join(known)}"
    return f"unknown key; {hint}"


def _choice(given: object, expected: str) -> str:
    names = re.findall(r"'([^']*)'", expected)
    by_lower = {name.lower(): name for name in names}
    near = []
    if isinstance(given, str):
        near = difflib.get_close_matches(given.lower(), by_lower, n=1, cutoff=0.5)
    hint = f"; did you mean {by_lower[near[0]]}?" if near and len(names) > 1 else ""
    return f"must be {' or '.join(names)}{hint}"


def _quoted(detail: Any) -> str:
    """The cure for a bare number where a duration is meant; else nothing."""
    given = detail["input"]
    is_number = type(given) in {int, float} and _SHORTEST_S <= given <= _LONGEST_S
    if not is_number or detail["loc"][-1] not in _DURATIONS:
        return ""
    cure = f"{given}s" if isinstance(given, int) else show_duration(round(given * NS_PER_S))
    return f'; write "{cure}"'


def _listed(given: object) -> str:
    """The cure for one item where a list is meant; else nothing."""
    is_number = type(given) is int and abs(given) < _LONGEST_S
    is_item = isinstance(given, str) or is_number
    return f": [{json.dumps(given, ensure_ascii=False)}]" if is_item else ""
