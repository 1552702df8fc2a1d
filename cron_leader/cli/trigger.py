"""`trigger`: run a job now, once, in a slot of its own, whatever its schedule says."""

from __future__ import annotations

import os
from datetime import UTC, datetime
from typing import Annotated

import typer

from cron_leader import config as configuration
from cron_leader.cli import ordering, output, setup
from cron_leader.cli.lookup import reader_of
from cron_leader.cli.state import expect_job
from cron_leader.core.model import Trigger


def trigger(
    job: Annotated[str, typer.Argument(metavar="JOB")],
    config: setup.ConfigPath = None,
    key: ordering.Key = None,
    why: ordering.Why = None,
    wait: ordering.Wait = True,
    within: ordering.Within = "15s",
    as_json: setup.AsJson = False,
) -> None:
    """Run a job now, also while it is paused; it waits for a run of the job that goes on."""
    loaded = configuration.load(config, environ=os.environ)
    how = ordering.patience(wait, within)
    asked = Trigger(ordering.key_of(key), job, datetime.now(UTC))
    with reader_of(loaded) as reader:
        expect_job(loaded, reader, job)
        command = ordering.order(reader, loaded, asked, why, how)
    said = f"{job} is triggered, slot {output.utc(command.at)}"
    ordering.show(command, {"scheduled_for": command.at}, said=said, as_json=as_json)
