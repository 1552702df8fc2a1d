"""What `trigger`, `pause`, `resume` and `backfill` share: an order given, waited for, shown."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, TypeAlias

import typer

from cron_leader import control
from cron_leader.cli import output
from cron_leader.config import Config
from cron_leader.config.units import parse_duration
from cron_leader.core.model import Asked, CommandResult
from cron_leader.ledger.views import CommandRow, Reader

NS = 1_000_000_000

Why: TypeAlias = Annotated[
    str | None, typer.Option("--why", metavar="TEXT", help="Kept with the order in the ledger.")
]
Key: TypeAlias = Annotated[
    str | None,
    typer.Option("--key", help="Idempotency key: given again with it, the order is still one."),
]
Wait: TypeAlias = Annotated[bool, typer.Option(help="Wait until the leader has answered.")]
Within: TypeAlias = Annotated[
    str, typer.Option("--within", metavar="DURATION", help="Bound on that.")
]


@dataclass(frozen=True, slots=True)
class Patience:
    """Whether to wait for the answer, and how long."""

    wait: bool
    within_s: float


def patience(wait: bool, within: str) -> Patience:
    return Patience(wait, duration_ns("--within", within) / NS)


def duration_ns(option: str, text: str) -> int:
    """BadParameter unless it is a length of time."""
    try:
        return parse_duration(text)
    except ValueError as error:
        raise typer.BadParameter(f"{text!r} is {error}", param_hint=option) from None


def key_of(text: str | None) -> str:
    """The id of the command: the key given, or a new one."""
    if text is None:
        return control.new_key()
    if not control.KEY.fullmatch(text):
        raise typer.BadParameter(
            f"{text!r} is no key: up to 64 letters, digits and ._:-", param_hint="--key"
        )
    return text


def order(
    reader: Reader, config: Config, asked: Asked, why: str | None, how: Patience
) -> CommandRow:
    """Give it, and wait if asked to. Raises NotCarriedOut."""
    command = control.give(reader, control.command_of(asked, config.election, why=why))
    return control.answer(reader, command, how.within_s) if how.wait else command


def show(command: CommandRow, more: Mapping[str, Any], *, said: str, as_json: bool) -> None:
    """said: what was carried out, in words; while it is not known, that it is ordered."""
    if as_json:
        output.print_json({**_facts(command), **more})
        return
    if command.result is None:
        said = f"{command.kind} is ordered"
    output.console().print(output.styled(f"{said}: command {command.id}"))


def _facts(command: CommandRow) -> dict[str, Any]:
    """args.job is told as job: None for all."""
    return {
        "command": command.id,
        "kind": command.kind,
        "election": command.target,
        "job": json.loads(command.args)["job"],
        "who": command.who,
        "why": command.why,
        "at": command.at,
        "result": command.result and CommandResult(command.result),
        "fence": command.done_by_fence,
    }
