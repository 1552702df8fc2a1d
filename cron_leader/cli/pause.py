"""`pause` and `resume`: no scheduled run of a job, or of any, starts for a while."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated, TypeAlias

import typer

from cron_leader import config as configuration
from cron_leader.cli import ordering, setup
from cron_leader.cli.lookup import reader_of
from cron_leader.cli.state import expect_job
from cron_leader.core.model import Asked, Pause, Resume
from cron_leader.ledger.orders import LONGEST_PAUSE_S
from cron_leader.ledger.views import CommandRow

Named: TypeAlias = Annotated[str | None, typer.Argument(metavar="[JOB]")]
All: TypeAlias = Annotated[
    bool, typer.Option("--all", help="Every job there is now, in place of one.")
]


def pause(
    job: Named = None,
    every: All = False,
    away: Annotated[
        str | None, typer.Option("--for", metavar="DURATION", help="Else until it is resumed.")
    ] = None,
    config: setup.ConfigPath = None,
    key: ordering.Key = None,
    why: ordering.Why = None,
    wait: ordering.Wait = True,
    within: ordering.Within = "15s",
    as_json: setup.AsJson = False,
) -> None:
    """Start no scheduled run for a while; its slots are skipped, and not caught up afterwards."""
    _expect_one(job, every)
    asked = Pause(ordering.key_of(key), job, None if away is None else _seconds(away))
    command = _order(config, asked, why, ordering.patience(wait, within))
    until = "until it is resumed" if away is None else f"for {away}"
    said = f"{job or 'every job'} is paused {until}"
    ordering.show(command, {"for_s": asked.for_s}, said=said, as_json=as_json)


def resume(
    job: Named = None,
    every: All = False,
    config: setup.ConfigPath = None,
    key: ordering.Key = None,
    why: ordering.Why = None,
    wait: ordering.Wait = True,
    within: ordering.Within = "15s",
    as_json: setup.AsJson = False,
) -> None:
    """End a pause before its time."""
    _expect_one(job, every)
    asked = Resume(ordering.key_of(key), job)
    command = _order(config, asked, why, ordering.patience(wait, within))
    ordering.show(command, {}, said=f"{job or 'every job'} is resumed", as_json=as_json)


def _expect_one(job: str | None, every: bool) -> None:
    if (job is None) != every:
        raise typer.BadParameter("give a JOB, or --all: one of them")


def _seconds(away: str) -> float:
    for_s = ordering.duration_ns("--for", away) / ordering.NS
    if not 0 < for_s <= LONGEST_PAUSE_S:
        raise typer.BadParameter(
            f"{away!r} is not between nothing and {LONGEST_PAUSE_S / 86_400:.0f}d",
            param_hint="--for",
        )
    return for_s


def _order(
    config: Path | None, asked: Asked, why: str | None, how: ordering.Patience
) -> CommandRow:
    loaded = configuration.load(config, environ=os.environ)
    with reader_of(loaded) as reader:
        if asked.job is not None:
            expect_job(loaded, reader, asked.job)
        return ordering.order(reader, loaded, asked, why, how)
