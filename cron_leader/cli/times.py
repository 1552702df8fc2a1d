"""`next`: when things fire, for the configured jobs or for a schedule given on the spot."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime, tzinfo
from itertools import islice
from pathlib import Path
from typing import Annotated
from zoneinfo import ZoneInfo

import typer

from cron_leader import config as configuration
from cron_leader.cli import output, setup
from cron_leader.config.schedules import YEARS, is_near
from cron_leader.core.cron import spread
from cron_leader.core.model import Job, Reason
from cron_leader.core.schedule import Schedule, zone_of
from cron_leader.errors import ConfigError

_NAMELESS = "schedule"


@dataclass(frozen=True, slots=True)
class Fire:
    """One fire time; job is None for a schedule given on the command line.

    skipped: it lies in a blackout of the job.
    """

    at: datetime
    zone: tzinfo
    job: str | None = None
    skipped: bool = False

    def fact(self) -> Mapping[str, str]:
        """What --json prints of it."""
        name = {} if self.job is None else {"job": self.job}
        local = self.at.astimezone(self.zone)
        facts = {**name, "local": local.isoformat(), "utc": output.utc(self.at)}
        return {**facts, "skipped": Reason.BLACKOUT} if self.skipped else facts


def next_times(
    jobs: Annotated[
        list[str] | None, typer.Argument(metavar="[JOB]...", help="Only these; else all.")
    ] = None,
    config: setup.ConfigPath = None,
    cron: Annotated[
        str | None, typer.Option(metavar="EXPR", help="This expression, and no configuration.")
    ] = None,
    every: Annotated[
        str | None, typer.Option(metavar="DURATION", help="This interval, and no configuration.")
    ] = None,
    timezone: Annotated[str, typer.Option(help="Zone of --cron and of a naive --after.")] = "UTC",
    named: Annotated[
        str | None, typer.Option("--job", metavar="NAME", help="Draw the H of --cron for this job.")
    ] = None,
    fleet: Annotated[str, typer.Option(help="And in this fleet.")] = "default",
    after: Annotated[
        str | None, typer.Option(metavar="TIME", help="RFC 3339; else now. Fires come after it.")
    ] = None,
    count: Annotated[int, typer.Option("-n", min=1, max=100_000, help="How many, each.")] = 5,
    as_json: setup.AsJson = False,
) -> None:
    """Print when the jobs, or a schedule given here, fire next."""
    start = instant(after, timezone)
    if cron is not None or every is not None:
        if jobs or (cron and every):
            raise typer.BadParameter("give JOBs, or --cron, or --every: one of them")
        schedule = _given(cron, every, timezone, seed=(fleet, named or _NAMELESS))
        if cron and named is None and spread(cron, "") != cron:
            output.note("H is drawn by fleet and job: --job NAME (and --fleet) gives a job's times")
        fires = _fires_of(schedule, None, start, count)
    else:
        fires = _fires_of_jobs(config, jobs or [], start, count)
    if as_json:
        output.print_json([fire.fact() for fire in fires])
    else:
        _show(fires)


def _given(
    cron: str | None, every: str | None, zone: str, seed: tuple[str, str] = ("default", _NAMELESS)
) -> Schedule:
    """A schedule from the command line, under the rules of the configuration.

    seed: the fleet's name and the job's, for `H`.
    """
    fleet, name = seed
    kind, value = ("cron", cron) if cron is not None else ("every", every)
    table: dict[str, object] = {"name": name, kind: value, "shell": ":"}
    if kind == "cron":
        table["timezone"] = zone
    try:
        where = "command line"
        (job,) = configuration.build_jobs([table], where=where, base=Path(), fleet=fleet)
    except ConfigError as error:
        text = str(error).replace(f'{where}: [[job]] "{name}" ', "--")
        raise ConfigError(text.replace(f"--{kind} =", f"--{kind}")) from None
    return job.schedule


def _fires_of_jobs(
    config: Path | None, names: list[str], start: datetime, count: int
) -> list[Fire]:
    loaded = setup.with_code_jobs(configuration.load(config, environ=os.environ))
    wanted = [setup.named(loaded, name) for name in names] or loaded.jobs
    fires = [
        replace(fire, skipped=_is_dark(job, fire.at))
        for job in wanted
        for fire in _fires_of(job.schedule, job.name, start, count)
    ]
    return sorted(fires, key=lambda fire: (fire.at, fire.job))


def _is_dark(job: Job, at: datetime) -> bool:
    return job.blackout is not None and job.blackout.until(at) is not None


def _fires_of(schedule: Schedule, job: str | None, start: datetime, count: int) -> list[Fire]:
    zone: tzinfo = ZoneInfo(zone_of(schedule))
    return [Fire(at, zone, job) for at in islice(_after(schedule, start), count)]


def _after(schedule: Schedule, start: datetime) -> Iterator[datetime]:
    at = schedule.next_after(start)
    while at is not None:
        yield at
        at = schedule.next_after(at)


def instant(text: str | None, zone: str, what: str = "--after") -> datetime:
    """In UTC; a naive text is read in the zone. ConfigError for what is no time, or too far off."""
    if text is None:
        return datetime.now(UTC)
    try:
        at = datetime.fromisoformat(text)
    except ValueError:
        raise ConfigError(
            f"{what} {text!r}: not a time; write 2026-12-01T09:00:00Z or 2026-12-01T09:00"
        ) from None
    if not is_near(at):
        raise ConfigError(f"{what} {text!r}: must lie in the years {YEARS.start} to {YEARS[-1]}")
    if at.tzinfo is None:
        _given("* * * * *", None, zone)  # for its message, should the zone be unknown
        at = at.replace(tzinfo=ZoneInfo(zone))
    return at.astimezone(UTC)


def _show(fires: list[Fire]) -> None:
    now = datetime.now(UTC)
    rows = [
        (
            *([] if fire.job is None else [fire.job]),
            fire.at.astimezone(fire.zone).isoformat(sep=" "),
            output.when(fire.at, now=now) + (" (blackout)" if fire.skipped else ""),
        )
        for fire in fires
    ]
    if not rows:
        output.note("nothing fires any more")
        return
    named = [] if fires[0].job is None else ["job"]
    output.columns(rows, *named, "local", "utc")
