"""`fence`: the number that refuses deposed leaders, and its one repair."""

from __future__ import annotations

import os
import sys
from typing import Annotated, Any

import typer

from cron_leader import config as configuration
from cron_leader.cli import output, setup
from cron_leader.cli.lookup import reader_of
from cron_leader.errors import ConfigError
from cron_leader.ledger.views import FenceRow

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
