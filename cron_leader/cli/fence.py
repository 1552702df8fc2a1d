"""`fence`: the number that refuses deposed leaders, and its one repair."""

from __future__ import annotations

import os
import sys
from contextlib import closing
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated, Any

import typer

from cron_leader import config as configuration
from cron_leader.cli import output, setup
from cron_leader.cli.lookup import reader_of
from cron_leader.config import Config
from cron_leader.core.model import Refused, Term
from cron_leader.errors import ConfigError
from cron_leader.fencing import FenceMisuse
from cron_leader.ledger import open_ledger
from cron_leader.ledger.views import FenceRow

if TYPE_CHECKING:
    from cron_leader.fencing.verify import Verdict

app = typer.Typer(help="The fence that refuses deposed leaders.", no_args_is_help=True)


@app.command()
def show(config: setup.ConfigPath = None, as_json: setup.AsJson = False) -> None:
    """Show the fence of the election, who raised it, and the writes it refused last."""
    loaded = configuration.load(config, environ=os.environ)
    with reader_of(loaded) as reader:
        row = reader.fence_row(loaded.election)
        refusals = reader.refusals(loaded.election, limit=20)
    if as_json:
        refused = [
            {"at": r.at, "node": r.node, "fence": r.fence, "high": r.high, "what": r.what}
            for r in refusals
        ]
        output.print_json({"fence": row and _fact(row), "refusals": refused})
        return
    if row is None:
        output.note(f"no leader has raised a fence for {loaded.election} yet")
        return
    output.console().print(output.styled(_sentence(row)))
    if refusals:
        rows = [
            (output.when(r.at), r.node, str(r.fence), str(r.high or "-"), r.what) for r in refusals
        ]
        output.columns(rows, "refused at", "node", "its fence>", "stood at>", "write")


Target = Annotated[
    str | None,
    typer.Option("--target", metavar="NAME", help="In this fence target, not in the ledger."),
]


@app.command()
def ddl(
    table: Annotated[
        str | None,
        typer.Argument(help='name, schema.name, or "Quoted"; none: what the target itself needs.'),
    ] = None,
    key: Annotated[
        str | None, typer.Option(metavar="A,B", help="Columns to make unique, for upserts.")
    ] = None,
    trigger: Annotated[
        bool, typer.Option("--trigger", help="Refuse stale writes that forget the WHERE.")
    ] = False,
    target: Target = None,
    config: setup.ConfigPath = None,
    as_json: setup.AsJson = False,
) -> None:
    """Print the SQL that gives a table a fence, or makes a fence target; touches nothing."""
    from cron_leader.fencing import ddl as sql

    loaded = configuration.load(config, environ=os.environ)
    lite = _url(loaded, target).startswith("sqlite:")
    if table is not None:
        try:
            statements = sql.ddl(
                table,
                lite=lite,
                key=tuple(key.split(",")) if key else (),
                trigger=loaded.election if trigger else None,
            )
        except FenceMisuse as error:
            raise ConfigError(f"fence ddl: {error}") from None
    elif target is not None:
        statements = sql.target_ddl(lite=lite)
    else:
        raise ConfigError("fence ddl: name a table, or --target NAME, or both")
    if as_json:
        output.print_json({"table": table, "target": target, "statements": statements})
    else:
        print("\n".join(f"{statement};" for statement in statements))


@app.command()
def verify(
    table: Annotated[str | None, typer.Argument(help="Else the ledger itself.")] = None,
    target: Target = None,
    config: setup.ConfigPath = None,
    as_json: setup.AsJson = False,
) -> int:
    """Send a stale fence through the real path; exit 1 unless it is refused. Changes no table."""
    loaded = configuration.load(config, environ=os.environ)
    if table is not None:
        _expect_name(table)
        verdict = _verify_table(loaded, table, _url(loaded, target))
    elif target is None:
        verdict = _verify_ledger(loaded)
    else:
        raise ConfigError("fence verify --target: name a table in it")
    if as_json:
        fact = {"table": table, "target": target, "guarded": verdict.guarded}
        output.print_json(fact | {"accepted": verdict.accepted, "text": verdict.text})
    else:
        print(verdict.text)
    return output.Exit.OK if verdict.guarded else output.Exit.FAILED


def _expect_name(table: str) -> None:
    """Raises ConfigError for what is no name, before any database is asked."""
    from cron_leader.fencing import names

    try:
        names.table(table, folded=True)
    except FenceMisuse as error:
        raise ConfigError(f"fence verify: {error}") from None


def _verify_ledger(config: Config) -> Verdict:
    import asyncio

    from cron_leader.fencing.verify import Verdict

    with reader_of(config) as reader:
        row = reader.fence_row(config.election)
    if row is None:
        raise FenceMisuse(f"no leader has raised a fence for {config.election} yet")
    refused = asyncio.run(_refuses(config, row))
    said = "refused" if refused else "ACCEPTED"
    text = f"the ledger {said} the stale fence {row.fence - 1} (raised: {row.fence})"
    return Verdict(refused, text)


async def _refuses(config: Config, row: FenceRow) -> bool:
    """A heartbeat of the term before, as a deposed leader would send it: it names no term that
    exists, so it changes nothing even if it is let pass. The refusal is recorded, as any."""
    now = datetime.now(UTC)
    stale = Term(row.election, row.fence - 1, "fence verify", "fence-verify", 0, now)
    ledger = open_ledger(config.ledger.url)
    try:
        return isinstance(await ledger.heartbeat(stale, now, now), Refused)
    finally:
        await ledger.close()


def _url(config: Config, target: str | None) -> str:
    """The database that is meant. Raises ConfigError."""
    if target is None:
        return config.ledger.url
    urls = {known.name: known.url for known in config.fence_targets}
    if target not in urls:
        known = ", ".join(sorted(urls)) or "none"
        raise ConfigError(f"there is no [[fence_target]] {target!r} (known: {known})")
    return urls[target]


def _verify_table(config: Config, table: str, url: str) -> Verdict:
    from cron_leader.fencing.verify import verify_table

    if url.startswith("sqlite:"):
        import sqlite3

        path = url.removeprefix("sqlite:///")
        with closing(sqlite3.connect(path, isolation_level=None)) as connection:
            return verify_table(connection, table, config.election)
    import psycopg

    with psycopg.connect(url, autocommit=True) as session:
        return verify_table(session, table, config.election)


@app.command()
def rebase(
    config: setup.ConfigPath = None,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    as_json: setup.AsJson = False,
) -> None:
    """After etcd was rebuilt or restored: let the next fence count on from the one that stands."""
    loaded = configuration.load(config, environ=os.environ)
    if not yes:
        if not sys.stdin.isatty():
            raise ConfigError("fence rebase: nobody to ask; repeat with --yes")
        typer.confirm(
            f"Has the etcd of {loaded.election} been rebuilt or restored, and is no node leading?",
            abort=True,
        )
    with reader_of(loaded) as reader:
        row = reader.rebase(loaded.election)
    if as_json:
        output.print_json({"fence": row and _fact(row)})
    elif row is None:
        output.note(f"no leader has raised a fence for {loaded.election} yet: nothing to rebase")
    else:
        output.console().print(output.styled(f"rebased. {_sentence(row)}"))


def _fact(row: FenceRow) -> dict[str, Any]:
    return {
        "election": row.election,
        "fence": row.fence,
        "offset": row.offset,
        "cluster": row.cluster,
        "node": row.node,
        "raised_at": row.raised_at,
    }


def _sentence(row: FenceRow) -> str:
    return (
        f"{row.election}: fence {row.fence} (offset {row.offset}), raised by {row.node} at "
        f"{output.when(row.raised_at)}, etcd cluster {row.cluster or 'any'}"
    )
