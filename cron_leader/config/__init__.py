"""The configuration: what `cron-leader.toml` and the environment say, frozen.

What is promised: a Config is complete and consistent, paths in it are absolute, and secrets do not
show in its repr. Whatever is wrong is a ConfigError with a line a finding: file and line, table,
key, value, rule, cure. Not promised: that anything it names can be reached, run or imported.

Importing this module is cheap; what validates is imported by `load` and `build_jobs`.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from pathlib import Path
from typing import Any

from cron_leader.config.secret import first_line
from cron_leader.config.units import NS_PER_S
from cron_leader.core.model import Job, Rollback
from cron_leader.errors import ConfigError

_DRIFT_NS = NS_PER_S // 5
"""Allowed for clock drift and for killing runs, on top of etcd's election timeout."""


@dataclass(frozen=True, slots=True)
class LeaseConfig:
    """margin_ns None: derived from etcd's election timeout once it is known (`check_margin`)."""

    ttl_ns: int
    renew_ns: int
    margin_ns: int | None


@dataclass(frozen=True, slots=True)
class RunConfig:
    """catchup_rate: runs a second started from the backlog."""

    drain_s: float
    max_parallel: int
    max_clock_skew_s: float
    catchup_rate: float


@dataclass(frozen=True, slots=True)
class EtcdConfig:
    """endpoints: host:port, or unix:// and an absolute path. ca, cert, key: absolute paths; ca set
    means TLS. server_name: the name in the members' certificates; None: the endpoint's own host.
    password: as it stood in password_file (an absolute path) when that was read first.
    """

    endpoints: tuple[str, ...]
    ca: str | None = None
    cert: str | None = None
    key: str | None = None
    server_name: str | None = None
    user: str | None = None
    password: str | None = field(default=None, repr=False)
    password_file: str | None = None

    def secret(self) -> str | None:
        """The password as its file has it now; the first one while the file has none to read."""
        if self.password_file is None:
            return self.password
        try:
            return first_line(self.password_file) or self.password
        except (OSError, UnicodeDecodeError):
            return self.password


@dataclass(frozen=True, slots=True)
class LedgerConfig:
    """url: sqlite:///<absolute path> (so four slashes) or postgresql://..., may hold a password.

    rollback: what a leader does with a ledger that lost its end. retention_ns: how old rows get;
    None: as old as they like. keep: slots of a job that stay; 0: all of them.
    """

    url: str = field(repr=False)
    migrate: bool
    rollback: Rollback = Rollback.REFUSE
    retention_ns: int | None = None
    keep: int = 0


@dataclass(frozen=True, slots=True)
class FenceTarget:
    """Another database that is told of every raise. url: as the ledger's."""

    name: str
    url: str = field(repr=False)


@dataclass(frozen=True, slots=True)
class HttpConfig:
    """Where health, metrics and status are served. host: without brackets, also for IPv6.

    token None: none was given.
    """

    host: str
    port: int
    token: str | None = field(default=None, repr=False)

    @property
    def loopback(self) -> bool:
        """Whether only this machine can reach it."""
        return is_loopback(self.host)


class On(StrEnum):
    """What a notice may be about."""

    FAILURE = "failure"
    RECOVERY = "recovery"
    MISSED = "missed"
    LONG = "long"


@dataclass(frozen=True, slots=True)
class Quota:
    """So many in a stretch of time."""

    count: int
    per_s: float


@dataclass(frozen=True, slots=True)
class NotifyConfig:
    """Whom to tell of what. jobs: names, or patterns with `*`; empty: all. Either webhook (a URL,
    perhaps a secret) or command, which runs in cwd. headers: of the webhook's request, and
    header_files: those whose value is a file's first line. body: the template of a webhook's JSON,
    None: all that is known. long_after_s: how long a run may take before it is told.
    """

    on: frozenset[On]
    jobs: tuple[str, ...]
    webhook: str | None = field(repr=False)
    command: tuple[str, ...]
    body: str | None
    at_most: Quota
    long_after_s: float | None
    cwd: str
    headers: tuple[tuple[str, str], ...] = field(default=(), repr=False)
    header_files: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, slots=True)
class Config:
    """Everything a node is told. digest: of what the nodes of a fleet must agree on.

    http None: nothing is served. groups: the most runs at once of a group's jobs, by its name.
    blackouts: the windows that jobs may name, for `build_jobs`.
    """

    path: Path | None
    node_id: str
    fleet: str
    prefix: str
    shards: int
    lease: LeaseConfig
    run: RunConfig
    etcd: EtcdConfig
    ledger: LedgerConfig
    modules: tuple[str, ...]
    jobs: tuple[Job, ...] = field(repr=False)
    digest: str
    http: HttpConfig | None = None
    notify: tuple[NotifyConfig, ...] = ()
    fence_targets: tuple[FenceTarget, ...] = ()
    groups: Mapping[str, int] = field(default_factory=dict)
    blackouts: Mapping[str, Mapping[str, Any] | None] = field(default_factory=dict, repr=False)

    @property
    def election(self) -> str:
        """The name under which fences are compared: `<fleet>/<shard>`."""
        return f"{self.fleet}/0"

    @property
    def base(self) -> Path:
        """The folder that relative paths, and the modules of [jobs], are relative to."""
        return self.path.parent if self.path is not None else Path.cwd()


def load(
    path: Path | None,
    *,
    environ: Mapping[str, str],
    node_id: str | None = None,
    cwd: Path | None = None,
) -> Config:
    """Read and check the configuration; ConfigError with a line for everything that is wrong.

    path None: $CRON_LEADER_CONFIG, else cron-leader.toml in cwd. Environment beats file.
    """
    from cron_leader.config import build, sources

    found = sources.find(path, environ, cwd or Path.cwd())
    return build.load(found, environ=environ, node_id=node_id)


def build_jobs(
    tables: Sequence[Mapping[str, object]],
    *,
    where: str,
    base: Path,
    fleet: str = "default",
    blackouts: Mapping[str, Mapping[str, Any] | None] | None = None,
) -> tuple[Job, ...]:
    """The jobs of tables with the keys of [[job]]; None values count as absent.

    where: names their origin in messages. base: what relative paths are relative to. fleet: its
    name, by which `H` is drawn. blackouts: of a Config, those that jobs may name.
    """
    from cron_leader.config import build
    from cron_leader.config.jobs import Around
    from cron_leader.config.problems import Source

    source = Source(where, {"job": list(tables)})
    return build.jobs(tables, source, Around(base, fleet, blackouts or {}))


def merge_jobs(config: Config, more: Sequence[Job]) -> Config:
    """The configuration with the jobs that code defines; ConfigError if a name, or a former one, is
    taken."""
    taken = {job.name for job in config.jobs}
    for job in more:
        if job.name in taken:
            raise ConfigError(
                f'job "{job.name}" is defined twice: rename the function\'s job, '
                f"or the [[job]] in {config.path}"
            )
        taken.add(job.name)
    _check_former_names((*config.jobs, *more))
    defined = "".join(f"\n{job.name} {job.schedule.digest}" for job in more)
    digest = hashlib.sha256((config.digest + defined).encode()).hexdigest()[:16]
    return replace(config, jobs=(*config.jobs, *more), digest=digest if more else config.digest)


def _check_former_names(jobs: Sequence[Job]) -> None:
    """ConfigError for one that is still in use, or that two jobs claim."""
    used: set[str | None] = {job.name for job in jobs}
    for job in jobs:
        former = job.renamed_from
        if former in used:
            raise ConfigError(
                f'job "{job.name}": renamed_from = "{former}" is the name of a job, or was claimed '
                "by another; a job has one history: leave it out"
            )
        if former is not None:
            used.add(former)


def is_loopback(host: str) -> bool:
    """Of an address, or a name; a name may lead anywhere, but for localhost."""
    from ipaddress import ip_address

    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def check_margin(lease: LeaseConfig, election_timeout_ns: int) -> int:
    """The margin in ns, now that etcd's election timeout is known.

    The margin covers the time in which a cut-off etcd leader still acknowledges keepalives, and
    what remains of the lease must hold a renewal and half of another. ConfigError otherwise, with
    the smallest ttl that fits.
    """
    least = election_timeout_ns + _DRIFT_NS
    margin = max(least, lease.ttl_ns // 5) if lease.margin_ns is None else lease.margin_ns
    timeout = f"etcd's election timeout is up to {_seconds(election_timeout_ns)}"
    if margin < least:
        raise ConfigError(
            f"[lease] margin = {_seconds(margin)}: {timeout}, so the margin must be at least "
            f"{_seconds(least)}; raise it, or leave it out"
        )
    if 3 * lease.renew_ns > 2 * (lease.ttl_ns - margin):
        raise ConfigError(
            f"[lease] ttl = {_seconds(lease.ttl_ns)}: {timeout}, so {_seconds(margin)} of it are "
            f"margin, and renewals every {_seconds(lease.renew_ns)} do not fit in the rest "
            f"(1.5 x renew <= ttl - margin); the smallest ttl that fits is "
            f"{_smallest_ttl_s(lease, least)}s"
        )
    return margin


def _smallest_ttl_s(lease: LeaseConfig, least_ns: int) -> int:
    """In seconds; renew follows ttl where it was left at its default of ttl / 3."""
    margin = least_ns if lease.margin_ns is None else lease.margin_ns
    if lease.renew_ns == lease.ttl_ns // 3:
        fits = 2 * margin
    else:
        fits = max(3 * lease.renew_ns // 2 + margin, 3 * lease.renew_ns)
    return math.ceil(fits / NS_PER_S)


def _seconds(ns: int) -> str:
    return f"{ns / NS_PER_S:.3g}s"
