"""From validated values to the frozen Config: defaults, paths, and the relations between keys."""

from __future__ import annotations

import difflib
import gc
import hashlib
import json
import math
import os
import re
import socket
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from cron_leader.config import (
    Config,
    EtcdConfig,
    FenceTarget,
    HttpConfig,
    LeaseConfig,
    LedgerConfig,
    RunConfig,
    schema,
    sources,
)
from cron_leader.config.blackouts import read_named
from cron_leader.config.endpoints import endpoint
from cron_leader.config.files import readable
from cron_leader.config.jobs import Around, build_all
from cron_leader.config.locate import KeyPath
from cron_leader.config.notify import build_all as notify_of
from cron_leader.config.problems import Problem, Source, others
from cron_leader.config.secret import first_line
from cron_leader.config.units import NS_PER_S, show_duration
from cron_leader.core.model import Job, Rollback

_S = NS_PER_S
Values = Mapping[str, Any]
Report = Callable[[KeyPath, str], None]


def load(path: Path, *, environ: Mapping[str, str], node_id: str | None) -> Config:
    """The configuration in the file at path, under the environment. Raises ConfigError."""
    with _uncollected():
        return _load(path, environ, node_id)


@contextmanager
def _uncollected() -> Iterator[None]:
    """Without the cyclic collector: what is read lives on, and walking over 100,000 jobs again and
    again while they grow is a fifth of the time."""
    collects = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if collects:
            gc.enable()


def _load(path: Path, environ: Mapping[str, str], node_id: str | None) -> Config:
    text, document = sources.read(path)
    kinds = {
        section: {key: field["type"] for key, field in fields.items()}
        for section, fields in schema.SECTIONS.items()
    }
    merged, variables, problems = sources.overlay(document, environ, kinds)
    source = Source(sources.shown(path), merged, text, variables)
    filled, unset = sources.interpolate(merged, environ)
    values, invalid = schema.validate_sections(filled)
    blackouts, ill_timed = read_named(filled.get("blackout", ()))
    around = Around(path.parent, _fleet(values), blackouts)
    built, wrong = build_all(filled.get("job", ()), around)
    problems += [*invalid, *ill_timed, *wrong]
    notify, wrong = notify_of(filled.get("notify", ()), path.parent)
    problems += wrong
    config = _config(values, path, problems)
    config = replace(
        config,
        fence_targets=_targets(filled, config, problems),
        groups=_groups(filled.get("group", ()), problems),
        blackouts=blackouts,
    )
    source.fail([*unset, *others(problems, unset)])
    return replace(
        config,
        node_id=_node(values, environ, node_id),
        jobs=built,
        notify=notify,
        digest=digest(merged),
    )


def jobs(tables: Sequence[Values], source: Source, around: Around) -> tuple[Job, ...]:
    """The jobs of [[job]] tables. Raises ConfigError with every problem found."""
    built, problems = build_all(tables, around)
    source.fail(problems)
    return built


def digest(document: Mapping[str, Any]) -> str:
    """Identifies what a fleet's nodes must agree on; ${ENV} is not filled in: no secrets."""
    shared = {
        key: document[key]
        for key in ("fleet", "lease", "run", "jobs", "job", "group", "blackout")
        if key in document
    }
    if targets := document.get("fence_target"):
        shared["fence_target"] = sorted(str(target["name"]) for target in targets)
    text = json.dumps(shared, sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


# ------------------------------------------------------------------ sections


def _config(values: Values, path: Path, problems: list[Problem]) -> Config:
    """The sections; what is wrong between their keys is appended to problems."""

    def report(at: KeyPath, rule: str) -> None:
        problems.append(Problem(at, rule))

    fleet = values.get("fleet", {})
    return Config(
        path=path,
        node_id="",
        fleet=_fleet(values),
        prefix=fleet.get("prefix", "/cron-leader"),
        shards=fleet.get("shards", 1),
        lease=_lease(values.get("lease", {}), report),
        run=_run(values.get("run", {})),
        etcd=_etcd(values.get("etcd", {}), path.parent, report),
        ledger=_ledger(values.get("ledger", {}), path.parent, report),
        modules=tuple(values.get("jobs", {}).get("modules", ())),
        jobs=(),
        digest="",
        http=_http(values.get("http", {}), path.parent, report),
    )


def _fleet(values: Values) -> str:
    return str(values.get("fleet", {}).get("name", "default"))


def _node(values: Values, environ: Mapping[str, str], node_id: str | None) -> str:
    """--node-id, $NODE_ID, [node] id (or its variable), host-pid."""
    given = node_id or environ.get("NODE_ID")
    if not given:
        return str(values.get("node", {}).get("id") or f"{socket.gethostname()}-{os.getpid()}")
    _, problems = schema.validate_sections({"node": {"id": given}})
    name = "--node-id" if node_id else "NODE_ID"
    Source("environment" if name == "NODE_ID" else "command line", {name: given}).fail(
        [Problem((name,), problem.rule) for problem in problems]
    )
    return given


def _lease(values: Values, report: Report) -> LeaseConfig:
    ttl, margin = values.get("ttl", 10 * _S), values.get("margin")
    renew = values.get("renew", ttl // 3)
    if ttl % _S:
        whole = show_duration(math.ceil(ttl / _S) * _S)
        report(("lease", "ttl"), f"etcd counts leases in whole seconds; write {whole}")
    if renew > ttl / 3:
        report(
            ("lease", "renew"),
            f"must be at most ttl / 3 = {show_duration(ttl // 3)}; shorten it, or leave it out",
        )
    if margin is not None and margin >= ttl:
        report(
            ("lease", "margin"),
            f"must be shorter than ttl ({show_duration(ttl)}); leave it out to have it measured",
        )
    elif margin is not None and 3 * renew > 2 * (ttl - margin):
        report(
            ("lease", "margin"),
            f"leaves no time to renew: 1.5 x renew ({show_duration(renew)}) must fit in ttl - "
            f"margin ({show_duration(ttl - margin)}); raise ttl, or shorten margin",
        )
    return LeaseConfig(ttl_ns=ttl, renew_ns=renew, margin_ns=margin)


def _run(values: Values) -> RunConfig:
    return RunConfig(
        drain_s=values.get("drain", 30 * _S) / _S,
        max_parallel=values.get("max_parallel", 64),
        max_clock_skew_s=values.get("max_clock_skew", 5 * _S) / _S,
        catchup_rate=values.get("catchup_rate", 10.0),
    )


def _etcd(values: Values, base: Path, report: Report) -> EtcdConfig:
    files = {
        key: readable(values[key], base, partial(report, ("etcd", key))) if key in values else None
        for key in ("ca", "cert", "key", "password_file")
    }
    secured = values.get("ca") is not None
    endpoints = tuple(
        endpoint(text, base, secured=secured, wrong=partial(report, ("etcd", "endpoints")))
        for text in values.get("endpoints", ["127.0.0.1:2379"])
    )
    for one, other in (("cert", "key"), ("key", "cert"), ("cert", "ca"), ("server_name", "ca")):
        if one in values and other not in values:
            report(("etcd", one), f"needs [etcd] {other} as well")
    for one, other in (("user", "password_file"), ("password_file", "user")):
        if one in values and other not in values:
            report(("etcd", one), f"needs [etcd] {other} as well")
    return EtcdConfig(
        endpoints=endpoints,
        ca=files["ca"],
        cert=files["cert"],
        key=files["key"],
        server_name=values.get("server_name"),
        user=values.get("user"),
        password=_first_line(files["password_file"], ("etcd", "password_file"), report),
        password_file=files["password_file"],
    )


def _first_line(file: str | None, at: KeyPath, report: Report) -> str | None:
    """The secret in a file."""
    if file is None or not os.path.isfile(file) or not os.access(file, os.R_OK):
        return None
    try:
        secret = first_line(file)
    except (OSError, UnicodeDecodeError):
        report(at, "cannot be read as text")
        return None
    if not secret:
        report(at, "its first line, the secret, is empty")
        return None
    return secret


def _targets(filled: Values, config: Config, problems: list[Problem]) -> tuple[FenceTarget, ...]:
    """The fence targets; what is wrong with them is appended to problems."""

    def report(at: KeyPath, rule: str) -> None:
        problems.append(Problem(at, rule))

    found: dict[str, FenceTarget] = {}
    tables = filled.get("fence_target", ())
    for index, table in enumerate(tables if isinstance(tables, list) else ()):
        values, wrong = schema.validate_target(table, index)
        problems += wrong
        if wrong:
            continue
        at: KeyPath = ("fence_target", index)
        url = _database(values["url"], config.base, partial(report, (*at, "url")))
        if values["name"] in found:
            report((*at, "name"), "is the name of another fence target, too")
        if url == config.ledger.url:
            report((*at, "url"), "is the ledger's, which is fenced as it is; leave the target out")
        found[values["name"]] = FenceTarget(values["name"], url)
    return tuple(found.values())


def _groups(tables: Any, problems: list[Problem]) -> Mapping[str, int]:
    """The bound of each group by its name; what is wrong with them is appended to problems."""
    found: dict[str, int] = {}
    for index, table in enumerate(tables if isinstance(tables, list) else ()):
        values, wrong = schema.validate_group(table, index)
        problems += wrong
        if wrong:
            continue
        if values["name"] in found:
            rule = "another group has this name; keep one"
            problems.append(Problem(("group", index, "name"), rule))
        found[values["name"]] = values["max_parallel"]
    return found


def _ledger(values: Values, base: Path, report: Report) -> LedgerConfig:
    url = values.get("url", "sqlite:///cron-leader.db")
    return LedgerConfig(
        url=_database(url, base, partial(report, ("ledger", "url"))),
        migrate=values.get("migrate", True),
        retention_ns=values.get("retention", 30 * 86_400 * _S),
        keep=values.get("keep", 10_000),
        rollback=Rollback(values.get("ledger_rollback", Rollback.REFUSE)),
    )


def _database(url: str, base: Path, wrong: Callable[[str], None]) -> str:
    """The URL of a ledger or a fence target, as it is opened."""
    if url != url.encode(errors="replace").decode():
        wrong("must be text in UTF-8")
        return url
    scheme, separator, rest = url.partition("://")
    match scheme:
        case "sqlite":
            return _sqlite(rest, base, wrong)
        case "postgresql" | "postgres" if separator:
            return url
    near = difflib.get_close_matches(scheme, ("sqlite", "postgresql"), n=1, cutoff=0.75)
    hint = f"did you mean {near[0]}? " if near else ""
    wrong(f"unknown scheme; {hint}use sqlite:///file.db or postgresql://user@host/database")
    return url


def _sqlite(rest: str, base: Path, wrong: Callable[[str], None]) -> str:
    """sqlite:/// and an absolute path, of one that may be relative to the file."""
    name = rest.removeprefix("/")
    if not rest.startswith("/") or not name:
        wrong("must be sqlite:///file.db (relative to this file) or sqlite:////absolute/file.db")
    elif name == ":memory:":
        wrong("a database in memory is gone with its process; name a file: sqlite:///file.db")
    return f"sqlite:///{(base / name).absolute()}"


_LISTEN = re.compile(r"(?:([^\s:/\[\]]+)|\[([0-9a-fA-F:.]+)\]):([0-9]{1,5})")


def _http(values: Values, base: Path, report: Report) -> HttpConfig | None:
    """None unless listen is set."""
    at: KeyPath = ("http", "token_file")
    given = values.get("token_file")
    file = None if given is None else readable(given, base, partial(report, at))
    token = _first_line(file, at, report)
    if "listen" not in values:
        if file is not None:
            report(at, "needs [http] listen as well")
        return None
    match = _LISTEN.fullmatch(values["listen"])
    if match is None or not 0 < int(match[3]) < 1 << 16:
        report(("http", "listen"), "must be host:port, as 127.0.0.1:8080, [::1]:8080, 0.0.0.0:8080")
        return None
    return HttpConfig(match[1] or match[2], int(match[3]), token)
