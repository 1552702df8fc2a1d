"""What all runs of a daemon share, and what one run is told: its environment, its Tick."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Protocol

from cron_leader.clock import Clock
from cron_leader.core.messages import Event
from cron_leader.core.model import Run
from cron_leader.events import timestamp

_HANDED_ON = ("PATH", "HOME", "LANG", "TZ")
_INTERPRETER = ("LD_LIBRARY_PATH", "DYLD_LIBRARY_PATH", "PYTHONHOME")


class Registrar(Protocol):
    """The daemon's link to its supervisor, as far as runs go."""

    async def register(
        self, run_id: str, pgid: int, start: int, *, may_finish: bool, timeout_s: float
    ) -> bool:
        """Tell the supervisor of a run's group before it may exec; whether it acknowledged."""

    def ended(self, run_id: str) -> None:
        """The group is gone: forget it."""


@dataclass(frozen=True, slots=True)
class LedgerAccess:
    """What python runs need to write under their fence. url may hold a password.

    targets: the URLs of the fence targets by name.
    """

    url: str = field(repr=False)
    ttl_s: float
    targets: Mapping[str, str] = field(default_factory=dict, repr=False)


@dataclass(frozen=True, slots=True)
class Context:
    """ledger None: tick.transaction() is not to be had. link None: unsupervised, a registration
    counts as acknowledged. environ: the daemon's own,
    of which a run is given PATH, HOME, LANG and TZ only."""

    node: str
    fleet: str
    clock: Clock
    report: Callable[[Event], None]
    link: Registrar | None
    ack_timeout_s: float
    environ: Mapping[str, str]
    ledger: LedgerAccess | None = None


def handed_on(environ: Mapping[str, str]) -> dict[str, str]:
    """What every run gets of the daemon's environment: nothing that could be a secret."""
    return {"PATH": os.defpath} | {key: environ[key] for key in _HANDED_ON if key in environ}


def for_interpreter(environ: Mapping[str, str]) -> dict[str, str]:
    """What wrappers and job hosts start with: the same, and what the interpreter needs to load."""
    needed = {key: environ[key] for key in _INTERPRETER if key in environ}
    return handed_on(environ) | needed


def environment(run: Run, context: Context, run_deadline: datetime) -> dict[str, str]:
    """A run's environment, but for HOME, USER and LOGNAME of the user it is to become: those are
    known to its process only. The job's own `env` cannot change the CRON_LEADER_ names."""
    given = handed_on(context.environ)
    if run.job.user is not None:
        given.pop("HOME", None)
    return (
        given
        | dict(run.job.env)
        | {
            "CRON_LEADER_JOB": run.job.name,
            "CRON_LEADER_SCHEDULED_FOR": timestamp(run.slot.scheduled_for),
            "CRON_LEADER_FENCE": str(run.term.fence),
            "CRON_LEADER_NODE": context.node,
            "CRON_LEADER_FLEET": context.fleet,
            "CRON_LEADER_ATTEMPT": str(run.attempt),
            "CRON_LEADER_RUN_DEADLINE": timestamp(run_deadline),
        }
    )
