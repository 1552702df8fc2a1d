"""`db`: the ledger's schema."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer

from cron_leader import config as configuration
from cron_leader.cli import output, setup
from cron_leader.config import Config
from cron_leader.core.model import LedgerId
from cron_leader.errors import LedgerUncertain, LedgerUnusable
from cron_leader.ledger import open_ledger
from cron_leader.ledger.views import open_reader

app = typer.Typer(help="The ledger's schema.", no_args_is_help=True)


@app.callback()
def group() -> None:
    """Keeps `db migrate` a command of a group although it is the only one."""


@app.command()
def migrate(
    config: setup.ConfigPath = None,
    sql: Annotated[bool, typer.Option("--sql", help="Print the SQL, and touch nothing.")] = False,
    as_json: setup.AsJson = False,
) -> None:
    """Bring the ledger's tables up to this release. Safe to repeat, and beside running nodes."""
    loaded = configuration.load(config, environ=os.environ)
    if sql:
        print(_sql(loaded), end="")
        return
    import asyncio

    before = _version(loaded)
    identity = asyncio.run(_migrate(loaded))
    if as_json:
        output.print_json(
            {
                "ledger_id": identity.ledger_id,
                "fleet": identity.fleet,
                "schema_version": identity.schema_version,
            }
        )
    else:
        print(
            f"ledger {identity.ledger_id} of fleet {identity.fleet}: "
            f"schema {identity.schema_version}, {_change(before, identity.schema_version)}"
        )


def _change(before: int | None, after: int) -> str:
    if before is None:
        return "created"
    return "up to date" if before == after else f"migrated from {before}"


def _sql(config: Config) -> str:
    """What `db migrate` would run; all of it where the ledger cannot be asked for its version."""
    from cron_leader.ledger.migrate import migration_sql

    try:
        since = _version(config) or 0
    except LedgerUncertain as error:
        output.note(f"{error}; this is the SQL for a new ledger")
        since = 0
    return migration_sql(config.ledger.url, since=since)


def _version(config: Config) -> int | None:
    """The schema the ledger has, None if it has none yet. Raises LedgerUncertain."""
    url = config.ledger.url
    if url.startswith("sqlite:///") and not Path(url.removeprefix("sqlite:///")).exists():
        return None
    try:
        with open_reader(url) as reader:
            return reader.identity().schema_version
    except LedgerUnusable:
        return None


async def _migrate(config: Config) -> LedgerId:
    ledger = open_ledger(config.ledger.url)
    try:
        return await ledger.open(fleet=config.fleet, shards=config.shards, migrate=True)
    finally:
        await ledger.close()
