"""`backfill`: run the slots of a stretch of the past that were never run.

A slot that was missed or skipped, or that lies before the job was known, is run; one that has run,
runs or waits, by whatever order, is left alone. Its own row keeps saying what became of it then. A
stretch of which retention may have deleted what ran is refused, unless the operator says --again.

Not promised: that retention deletes nothing more before the leader takes the order.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from itertools import islice
from typing import Annotated

import typer

from cron_leader import config as configuration
from cron_leader.cli import ordering, output, setup
from cron_leader.cli.lookup import reader_of
from cron_leader.cli.times import instant
from cron_leader.config import Config
from cron_leader.config.units import parse_rate
from cron_leader.core.model import Backfill, Job, State
from cron_leader.core.orders import MOST_SLOTS, slots_between
from cron_leader.ledger.orders import RATES
from cron_leader.ledger.views import Reader, SlotRow, Wanted

NEVER_RAN = frozenset({State.MISSED, State.SKIPPED})
MOST_ROWS = 100_000


@dataclass(frozen=True, slots=True)
class Plan:
    """A slot of the stretch: left as it is because of a row in this state, or run if None."""

    at: datetime
    state: str | None


def backfill(
    job: Annotated[str, typer.Argument(metavar="JOB")],
    first: Annotated[
        str, typer.Option("--from", metavar="TIME", help="The first slot (RFC 3339).")
    ],
    until: Annotated[
        str | None, typer.Option("--to", metavar="TIME", help="Slots before this; else now.")
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="List what would run, and order nothing.")
    ] = False,
    rate: Annotated[str, typer.Option(help="Starts at most so many: 5/s, 30/m.")] = "1/s",
    again: Annotated[
        bool, typer.Option("--again", help="Also what may have run, and been deleted since.")
    ] = False,
    config: setup.ConfigPath = None,
    key: ordering.Key = None,
    why: ordering.Why = None,
    wait: ordering.Wait = True,
    within: ordering.Within = "15s",
    as_json: setup.AsJson = False,
) -> None:
    """Run what was missed: the slots of a stretch that never ran, in order and at a pace."""
    loaded = setup.with_code_jobs(configuration.load(config, environ=os.environ))
    known, how = setup.named(loaded, job), ordering.patience(wait, within)
    asked = Backfill(ordering.key_of(key), job, *_stretch(first, until), _rate(rate))
    times = _slots(known, asked)
    with reader_of(loaded) as reader:
        if not again:
            _expect_known(reader, loaded, asked, times)
        if dry_run:
            _show_plan(_plans(reader, asked, times), as_json=as_json)
            return
        command = ordering.order(reader, loaded, asked, why, how)
        slots = [] if command.result is None else _of_command(reader, asked)
    said = f"{len(slots)} of {len(times)} slots of {job} are run at {rate}"
    more = {"slots": [slot.scheduled_for for slot in slots], "rate": asked.rate}
    ordering.show(command, more, said=said, as_json=as_json)


def _stretch(first: str, until: str | None) -> tuple[datetime, datetime]:
    since, to = instant(first, "UTC", "--from"), instant(until, "UTC", "--to")
    if to > datetime.now(UTC):
        raise typer.BadParameter(f"{until!r} is still to come", param_hint="--to")
    if since >= to:
        raise typer.BadParameter(f"{first!r} is not before the end", param_hint="--from")
    return since, to


def _rate(text: str) -> float:
    try:
        rate = parse_rate(text)
    except ValueError as error:
        raise typer.BadParameter(f"{text!r} is {error}", param_hint="--rate") from None
    if not RATES[0] <= rate <= RATES[1]:
        raise typer.BadParameter(
            f"{text!r} is beyond {RATES[1]:.0f}/s, or hardly any", param_hint="--rate"
        )
    return rate


def _slots(job: Job, asked: Backfill) -> Sequence[datetime]:
    times = tuple(islice(slots_between(job, asked.first, asked.until), MOST_SLOTS + 1))
    if len(times) > MOST_SLOTS:
        raise typer.BadParameter(
            f"that is more than {MOST_SLOTS} slots; the first {MOST_SLOTS} end with "
            f"`--to {output.utc(times[-1])}`",
            param_hint="--to",
        )
    return times


def _expect_known(
    reader: Reader, config: Config, asked: Backfill, times: Sequence[datetime]
) -> None:
    """Refuse slots that nothing is recorded of any more: they may have run."""
    row = reader.job(asked.job)
    kept_from = _kept_from(reader, config, asked.job)
    if row is None or not (old := [at for at in times if row.first_seen <= at < kept_from]):
        return
    wanted = Wanted(job=asked.job, since=asked.first, until=asked.until)
    told = {slot.scheduled_for for slot in reader.history(wanted, limit=MOST_ROWS)}
    gaps = reader.gaps(job=asked.job)
    if unknown := [
        at for at in old if at not in told and not any(g.first <= at <= g.last for g in gaps)
    ]:
        raise typer.BadParameter(
            f"retention may have deleted that slots up to {output.utc(unknown[-1])} ran; begin "
            "after that, or say --again to run them, a second time perhaps",
            param_hint="--from",
        )


def _kept_from(reader: Reader, config: Config, job: str) -> datetime:
    """Before this a slot's row may have been deleted: by its age, or as one of too many."""
    kept_from, limits = datetime.min.replace(tzinfo=UTC), config.ledger
    if limits.retention_ns is not None:
        kept_from = datetime.now(UTC) - timedelta(microseconds=limits.retention_ns // 1000)
    rows = reader.history(Wanted(job=job), limit=limits.keep) if limits.keep else ()
    return max(kept_from, rows[-1].scheduled_for) if len(rows) == limits.keep > 0 else kept_from


def _plans(reader: Reader, asked: Backfill, times: Sequence[datetime]) -> list[Plan]:
    ran = {row.scheduled_for: row.state for row in _rows(reader, asked)}
    return [Plan(at, ran.get(at)) for at in times]


def _rows(reader: Reader, asked: Backfill) -> list[SlotRow]:
    wanted = Wanted(job=asked.job, since=asked.first, until=asked.until)
    rows = reader.history(wanted, limit=MOST_ROWS)
    return [row for row in rows if row.state not in NEVER_RAN]


def _of_command(reader: Reader, asked: Backfill) -> list[SlotRow]:
    return [row for row in _rows(reader, asked)[::-1] if row.command_id == asked.command_id]


def _show_plan(plans: Sequence[Plan], *, as_json: bool) -> None:
    if as_json:
        output.print_json([{"scheduled_for": plan.at, "state": plan.state} for plan in plans])
        return
    if not plans:
        output.note("no slots in that stretch")
        return
    rows = [
        (output.when(plan.at), f"left alone: {plan.state}" if plan.state else "would run")
        for plan in plans
    ]
    output.columns(rows, "slot", "backfill")
