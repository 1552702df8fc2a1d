"""`init` writes a first configuration, `check` looks at one as a node would before it starts."""

from __future__ import annotations

import difflib
import os
import shutil
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Annotated

import typer

from cron_leader import config as configuration
from cron_leader import runners
from cron_leader.cli import lint, output
from cron_leader.cli.herd import Herd, herd_of
from cron_leader.cli.lookup import reader_of
from cron_leader.config import Config, sources
from cron_leader.config.units import NS_PER_S, parse_duration, show_duration
from cron_leader.core.model import Catchup, CommandSpec, HttpSpec, Job, PythonSpec, ShellSpec
from cron_leader.core.schedule import At, Every
from cron_leader.errors import ConfigError, CronLeaderError, LedgerUnusable

ConfigPath = Annotated[
    Path | None,
    typer.Option("--config", help="Else $CRON_LEADER_CONFIG, else ./cron-leader.toml."),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]

_TTL_FOR_DEFAULTS_NS = 4 * NS_PER_S
"""The smallest ttl that `check_margin` accepts at etcd's default election timeout."""

TEMPLATE = """\
# cron-leader: the same file on every node. Check it with `cron-leader check`.
# Durations: "250ms", "10s", "1m30s", "2h", "7d". CRON_LEADER_<SECTION>_<KEY> beats this file.

[fleet]
name = "default"            # nodes of one name elect one leader
# prefix = "/cron-leader"   # of every key in etcd

# [node]
# id = "a"                  # a label; better given as NODE_ID=a or --node-id a

[lease]
ttl = "10s"                 # how long a vanished leader is waited for
# renew = "3s"              # default: ttl / 3
# margin = "2s"             # default: from etcd's election timeout, measured at start

[run]
drain = "30s"               # on SIGTERM: how long running jobs may take to end
# max_parallel = 64
# max_clock_skew = "5s"
# catchup_rate = "10/s"     # how fast slots missed during an outage are run

[etcd]
endpoints = ["127.0.0.1:2379"]
# ca = "ca.pem"             # makes it TLS
# cert = "client.pem"
# key = "client.key"
# server_name = "etcd"      # in the members' certificates; default: the endpoint's host
# user = "cron"
# password_file = "etcd-password"

[ledger]
url = "sqlite:///cron-leader.db"    # one machine, or a trial; relative to this file
# url = "postgresql://cron:${PGPASSWORD}@db.example/cron"
# retention = "30d"                 # how old rows get, or "off"
# keep = 10000                      # slots of one job that stay, or "off"
# ledger_rollback = "refuse"        # of a ledger that lost its end: or "skip", or "refire"

# [jobs]
# modules = ["pkg.mod"]     # where functions marked @job are

# [http]                    # needs the extra: pip install "cron-leader[dashboard]"
# listen = "127.0.0.1:8080" # /healthz, /readyz, /metrics, /api/v1/status
# token_file = "http-token" # for the status, when others can reach it

[[job]]
name = "hello"
cron = "* * * * *"          # or every = "30s", or at = "2030-01-01T09:00:00Z"
timezone = "UTC"
shell = 'echo "slot $CRON_LEADER_SCHEDULED_FOR under fence $CRON_LEADER_FENCE"'
# command = ["psql", "-f", "x.sql"]   # instead of shell: no shell in between
# python = "pkg.mod:function"         # or: called with a Tick
# timeout = "1h"
# grace = "10s"             # between SIGTERM and SIGKILL
# catchup = "latest"        # of slots missed: the latest, "all", or "none"
# catchup_limit = 100
# start_within = "5m"       # a slot older than this is missed, not run late
# delivery = "at-most-once" # or "at-least-once": run again if a leader died in mid-run
# on_lost_leadership = "kill"         # or "finish"
# env = { LANG = "C.UTF-8" }
# cwd = "."
"""


def init(
    path: Annotated[Path, typer.Argument(help="The file to write.")] = Path("cron-leader.toml"),
) -> None:
    """Write a commented configuration with one job, ready to run."""
    try:
        with path.open("x", encoding="utf-8") as file:
            file.write(TEMPLATE)
    except FileExistsError:
        raise ConfigError(
            f"{path}: exists already and is left alone; name another: cron-leader init OTHER.toml"
        ) from None
    except OSError as error:
        raise ConfigError(f"{path}: cannot be written: {error.strerror}") from None
    print(f"wrote {path}; next: cron-leader check, then NODE_ID=a cron-leader run")


def check(
    config: ConfigPath = None,
    strict: Annotated[
        bool, typer.Option("--strict", help="Look for what is allowed and hardly meant; exit 1.")
    ] = False,
    against: Annotated[
        Path | None, typer.Option(metavar="OLD", help="Show how slots differ from this file's.")
    ] = None,
    horizon: Annotated[str, typer.Option(help="How far --against looks ahead.")] = "7d",
    as_json: AsJson = False,
) -> None:
    """Validate the configuration, and that what the jobs need is there. Needs no etcd."""
    loaded = with_code_jobs(configuration.load(config, environ=os.environ))
    problems = [*_unreadable(loaded), *_cannot_start(loaded, os.environ)]
    if problems:
        raise ConfigError("\n".join(problems))
    now = datetime.now(UTC)
    warnings = _warnings(loaded, now)
    for warning in warnings:
        output.note(warning)
    herd = herd_of(loaded.jobs, now) if strict else None
    found = _findings(loaded, herd) if herd else []
    changed = _changes(against, loaded, now, horizon) if against else []
    if as_json:
        facts = {"ok": not found, "digest": loaded.digest, "warnings": warnings}
        facts["jobs"] = [_fact(job, now) for job in loaded.jobs]
        if herd:
            facts["findings"] = [finding.fact() for finding in found]
            facts["herd"] = herd.fact(loaded.jobs, loaded.run.max_parallel)
        facts |= {"changes": [change.fact() for change in changed]} if against else {}
        output.print_json(facts)
    else:
        _print_jobs(loaded, now)
        if herd:
            print("\n".join(herd.lines(loaded.jobs, loaded.run.max_parallel)))
        _print_findings(found)
        if against:
            _print_changes(changed, horizon)
    if found:
        raise typer.Exit(output.Exit.FAILED)


def _findings(config: Config, herd: Herd) -> list[lint.Finding]:
    found = lint.findings(config, herd)
    try:
        with reader_of(config) as reader:
            return found + lint.overlaps(config, reader, herd.since)
    except CronLeaderError as error:
        output.note(f"how long runs usually take is not known: {error}")
        return found


def _changes(old: Path, new: Config, now: datetime, horizon: str) -> list[lint.Change]:
    try:
        ahead = timedelta(microseconds=parse_duration(horizon) // 1000)
    except ValueError as error:
        raise ConfigError(f"--horizon {horizon!r}: {error}") from None
    before = with_code_jobs(configuration.load(old, environ=os.environ))
    return lint.changes(before, new, now, ahead)


def _print_findings(found: Iterable[lint.Finding]) -> None:
    for finding in found:
        about = f'[[job]] "{finding.job}" ' if finding.job else ""
        print(f"{finding.kind}: {about}{finding.text}")


def _print_changes(changed: Sequence[lint.Change], horizon: str) -> None:
    rows = [
        (
            change.job,
            *(str(len(slots)) for slots in (change.gained, change.lost, change.moved)),
            output.when(min((*change.gained, *change.lost, *(old for old, _ in change.moved)))),
        )
        for change in changed
    ]
    if rows:
        output.columns(rows, "job", "gained", "lost", "moved", "first")
    else:
        print(f"no slot of the next {horizon} differs")


def _print_jobs(loaded: Config, now: datetime) -> None:
    rows = [
        (job.name, describe(job), output.when(job.schedule.next_after(now), now=now))
        for job in loaded.jobs
    ]
    if rows:
        output.columns(rows, "job", "runs", "next")
    else:
        output.note("no jobs: add a [[job]] table, or [jobs] modules")
    count = len(loaded.jobs)
    print(f"{place(loaded)}: ok, {count} job{'s' if count != 1 else ''}")


def with_code_jobs(config: Config) -> Config:
    """The configuration and the jobs its modules define; ConfigError if one does not import."""
    if not config.modules and not any(isinstance(job.spec, PythonSpec) for job in config.jobs):
        return config
    import asyncio

    return asyncio.run(runners.with_code_jobs(config))[0]


def named(config: Config, name: str) -> Job:
    """The job of that name; ConfigError with the nearest one if there is none."""
    by_name = {job.name: job for job in config.jobs}
    if name in by_name:
        return by_name[name]
    raise no_such_job(name, by_name, place(config))


def no_such_job(name: str, known: Iterable[str], where: str) -> ConfigError:
    """The error to raise, with the nearest name."""
    near = difflib.get_close_matches(name, list(known), n=1)
    hint = f"did you mean {near[0]}?" if near else "`cron-leader check` lists them"
    return ConfigError(f"no job {name!r} in {where}; {hint}")


def place(config: Config) -> str:
    """The configuration's file as people see it."""
    return sources.shown(config.path) if config.path else "configuration"


def describe(job: Job) -> str:
    """What a job runs, in a few words."""
    match job.spec:
        case CommandSpec(argv):
            return output.one_line(" ".join(argv), 40)
        case ShellSpec(script):
            return output.one_line(script, 40)
        case PythonSpec(target):
            return target
        case HttpSpec(url, method):
            return output.one_line(f"{method} {url}", 40)


def _fact(job: Job, now: datetime) -> Mapping[str, object]:
    return {"job": job.name, "runs": describe(job), "next": job.schedule.next_after(now)}


def _unreadable(config: Config) -> list[str]:
    """What keeps the ledger and the fence targets from being opened, as far as their URLs tell."""
    targets = ((f'[[fence_target]] "{one.name}"', one.url) for one in config.fence_targets)
    databases = (("[ledger]", config.ledger.url), *targets)
    return [f"{table} url: {why}" for table, url in databases if (why := _unusable(url))]


def _unusable(url: str) -> str:
    """Why a database cannot be opened; empty if nothing is known."""
    if url.startswith("sqlite:///"):
        return _unwritable(Path(url.removeprefix("sqlite:///")))
    from cron_leader.ledger.pg_dsn import place

    try:
        place(url)
    except LedgerUnusable as error:
        return str(error)
    return ""


def _unwritable(file: Path) -> str:
    """What keeps a SQLite file from being written."""
    folder = file.parent
    if not folder.is_dir():
        return f"the folder {folder} does not exist; create it"
    if file.is_dir():
        return f"{file} is a folder; name a file in it"
    if not os.access(file if file.exists() else folder, os.W_OK):
        return f"{file} cannot be written by this user; change owner or url"
    return ""


def _warnings(config: Config, now: datetime) -> list[str]:
    """What is allowed, and may not be what is meant."""
    found = [
        f'{place(config)}: [[job]] "{job.name}" at = {output.utc(job.schedule.when)} is past: '
        "it will not fire any more"
        for job in config.jobs
        if isinstance(job.schedule, At) and job.schedule.when <= now
    ]
    rate = config.run.catchup_rate
    found += [
        f'{place(config)}: [[job]] "{job.name}" catchup = "all": slots fall due as fast as '
        f"[run] catchup_rate = {rate:g}/s starts those that were missed; a backlog never drains"
        for job in config.jobs
        if isinstance(job.schedule, Every)
        and job.catchup is Catchup.ALL
        and job.schedule.period.total_seconds() * rate <= 1
    ]
    found += [f"{place(config)}: {text}" for text in _odd_groups(config)]
    ttl_ns = config.lease.ttl_ns
    if ttl_ns < _TTL_FOR_DEFAULTS_NS:
        found.append(
            f"{place(config)}: [lease] ttl = {show_duration(ttl_ns)}: etcd's defaults need "
            f"{show_duration(_TTL_FOR_DEFAULTS_NS)}; nodes start only if etcd elects faster"
        )
    return found


def _odd_groups(config: Config) -> list[str]:
    """Groups without a table where others have one, and tables without a job: one of two names may
    be misspelt."""
    used: dict[str, str] = {}
    for job in config.jobs:
        used.setdefault(job.group, job.name)
    bare = [group for group in used if group and group not in config.groups and config.groups]
    idle = [group for group in config.groups if group not in used]
    rule = "no [[group]] has this name, so its runs have no bound of their own"
    return [
        f'[[job]] "{used[group]}" group = "{group}": {rule}{_nearest(group, config.groups)}'
        for group in bare
    ] + [f'[[group]] "{group}": no job is of it{_nearest(group, used)}' for group in idle]


def _nearest(name: str, known: Iterable[str]) -> str:
    near = difflib.get_close_matches(name, [each for each in known if each], n=1)
    return f"; did you mean {near[0]}?" if near else ""


def _cannot_start(config: Config, environ: Mapping[str, str]) -> list[str]:
    return [
        f'{place(config)}: [[job]] "{job.name}" {why}'
        for job in config.jobs
        if (why := _missing(job, environ))
    ]


def _missing(job: Job, environ: Mapping[str, str]) -> str:
    """What a run of the job would not find; empty if all is there."""
    if job.cwd is not None and not Path(job.cwd).is_dir():
        return f"cwd = {job.cwd!r}: no such folder"
    if why := runners.unmet(job):
        return why
    if not isinstance(job.spec, CommandSpec):
        return ""
    program = job.spec.argv[0]
    path = job.env.get("PATH", environ.get("PATH", os.defpath))
    found = Path(job.cwd or ".") / program if "/" in program else program
    if shutil.which(str(found), path=path):
        return ""
    return (
        f"command {program!r}: not found on PATH, or not executable; install it, write its full "
        "path, or set env.PATH"
    )
