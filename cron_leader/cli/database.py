"""`db`: the ledger's schema."""

from __future__ import annotations

import os
from typing import Annotated

import typer

from cron_leader import config as configuration
from cron_leader.cli import output, setup
from cron_leader.config import Config
from cron_leader.core.model import LedgerId
from cron_leader.ledger import open_ledger

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
        from cron_leader.ledger.migrate import migration_sql

        print(migration_sql(loaded.ledger.url), end="")
        return
    import asyncio

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
            f"schema {identity.schema_version}, up to date"
        )


async def _migrate(config: Config) -> LedgerId:
    ledger = open_ledger(config.ledger.url)
    try:
        return await ledger.open(fleet=config.fleet, shards=config.shards, migrate=True)
    finally:
        await ledger.close()
