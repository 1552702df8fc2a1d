"""What a job asks of this node beyond its program: another user, limits, how urgent it is.

Asked before a node starts, and by `check`: better no node than one that fails each run. A run is
told the same (`bounds`), and finds out for itself whether it can have it: users come and go.
"""

from __future__ import annotations

import os
import resource
from collections.abc import Mapping
from functools import cache
from importlib.util import find_spec

from cron_leader.core.model import HttpSpec, Job
from cron_leader.runners.wrapper import RLIMITS, account

_CAP_SETGID, _CAP_SETUID = 6, 7


def bounds(job: Job) -> Mapping[str, object]:
    """What the wrapper, or the fork of a job host, is told to set; empty if nothing is asked."""
    limits = {name: value for name, value in _limits(job).items() if value is not None}
    asked = {"user": job.user, "umask": job.umask, "nice": job.nice, "limits": limits}
    return {key: value for key, value in asked.items() if value not in (None, {})}


def unmet(job: Job) -> str:
    """What this node cannot give the job, and the cure; empty if it can."""
    return _library(job) or _user(job) or _nice(job) or _limit(job)


def _library(job: Job) -> str:
    if isinstance(job.spec, HttpSpec) and not _has_httpx():
        return 'url: the library httpx is missing; pip install "cron-leader[http]"'
    return ""


@cache
def _has_httpx() -> bool:
    return find_spec("httpx") is not None


def _user(job: Job) -> str:
    if job.user is None:
        return ""
    try:
        name, uid, gid, _ = account(job.user)
    except LookupError as error:
        return f'user = "{job.user}": {error.args[0]}; create it, or name another'
    if (uid, gid) == (os.geteuid(), os.getegid()) or _may_switch():
        return ""
    return (
        f'user = "{job.user}": only root may start runs as {name}, and this is uid '
        f"{os.geteuid()}; start the node as root, or leave user out"
    )


def _nice(job: Job) -> str:
    own = os.getpriority(os.PRIO_PROCESS, 0)
    if job.nice is None or job.nice >= own or os.geteuid() == 0:
        return ""
    return f"nice = {job.nice}: only root may go below the node's own {own}; raise it"


def _limit(job: Job) -> str:
    for name, value in _limits(job).items():
        if value is None:
            continue
        kind = getattr(resource, RLIMITS[name], None)
        if kind is None:
            return f"limits.{name}: this platform has no {RLIMITS[name]}; leave it out"
        hard = resource.getrlimit(kind)[1]
        if value > hard != resource.RLIM_INFINITY and os.geteuid() != 0:
            return f"limits.{name} = {value}: the node itself has {hard}; lower it"
    return ""


def _limits(job: Job) -> Mapping[str, int | None]:
    """By the names of the configuration."""
    asked = job.limits
    return {
        "cpu": asked.cpu_s,
        "memory": asked.memory,
        "files": asked.files,
        "processes": asked.processes,
    }


def _may_switch() -> bool:
    """Whether this process may become another user: root mostly is, but not in every container."""
    try:
        with open("/proc/self/status", encoding="ascii", errors="replace") as status:
            (held,) = [int(line.split()[1], 16) for line in status if line.startswith("CapEff:")]
    except (OSError, ValueError):
        return os.geteuid() == 0
    return bool(held >> _CAP_SETUID & held >> _CAP_SETGID & 1)
