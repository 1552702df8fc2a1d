"""`step-down`: ask the leader to hand the post over, and wait until another node has it.

The order travels through the ledger, aimed at the fence that leads now: whoever leads later does
not obey it. Not promised: that somebody else is still in line by the time the leader reads it.
"""

from __future__ import annotations

import json
import os
import time
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Annotated, Any

import typer

from cron_leader import config as configuration
from cron_leader import control
from cron_leader.cli import output, setup
from cron_leader.cli.lookup import Found, look, reader_of
from cron_leader.config import Config
from cron_leader.config.units import parse_duration, show_duration
from cron_leader.core.model import CommandKind, CommandResult
from cron_leader.errors import CronLeaderError
from cron_leader.ledger.orders import LONGEST_AWAY_S
from cron_leader.ledger.views import CommandRow, Reader, TermRow
from cron_leader.status import facts_of

NS = 1_000_000_000
POLL_S = 0.05
SLACK_S = 15.0
"""What a handover may take beyond `drain` and a ttl: the order is read, a run's grace passes."""


class NotObeyed(CronLeaderError):
    """Nobody steps down, or not in time; exit code 1."""


@dataclass(frozen=True, slots=True)
class Aim:
    """The term that is to end. rivals: whether somebody else is in line; None: not known."""

    election: str
    node: str
    fence: int
    rivals: bool | None


@dataclass(frozen=True, slots=True)
class Handover:
    """What came of it. ms: from the order to this, by our clock. successor None: not waited for."""

    ended: TermRow | None
    successor: TermRow | None
    ms: int | None


def step_down(
    config: setup.ConfigPath = None,
    away: Annotated[
        str, typer.Option("--for", help="How long it stays out of line; 0: joins again at once.")
    ] = "60s",
    why: Annotated[str | None, typer.Option(help="Kept with the order in the ledger.")] = None,
    force: Annotated[
        bool, typer.Option("--force", help="Even if nobody else is in line, or etcd is away.")
    ] = False,
    wait: Annotated[bool, typer.Option(help="Wait until another node leads.")] = True,
    within: Annotated[
        str | None, typer.Option(metavar="DURATION", help="Bound on that; else drain + ttl + 15s.")
    ] = None,
    as_json: setup.AsJson = False,
) -> None:
    """Have the leader let its runs end, hand over to the next in line, and stay away a while."""
    away_ns = _duration("--for", away)
    if away_ns > LONGEST_AWAY_S * NS:
        raise typer.BadParameter(
            f"{away!r} is longer than {LONGEST_AWAY_S / 86_400:.0f}d", param_hint="--for"
        )
    loaded = configuration.load(config, environ=os.environ)
    bound_s = _bound_s(loaded) if within is None else _duration("--within", within) / NS
    aim = _aim(loaded, look(loaded), force=force)
    command = _command(aim, away_ns, why)
    with reader_of(loaded) as reader:
        asked = time.monotonic()
        reader.order(command)
        done = Handover(None, None, None)
        if wait:
            done = _await(reader, command, aim, asked, bound_s)
    if as_json:
        output.print_json(_facts(command, aim, done))
    else:
        output.console().print(output.styled(_sentence(command, aim, done, away_ns)))


def _duration(option: str, text: str) -> int:
    try:
        return parse_duration("0s" if text == "0" else text)
    except ValueError as error:
        raise typer.BadParameter(f"{text!r} is {error}", param_hint=option) from None


def _bound_s(config: Config) -> float:
    return config.run.drain_s + config.lease.ttl_ns / NS + SLACK_S


# ------------------------------------------------------------------ whom to ask


def _aim(config: Config, found: Found, *, force: bool) -> Aim:
    if found.ledger is None or (found.etcd is None and not force):
        raise found.errors[0]
    leader = facts_of(config, found.etcd, found.ledger, datetime.now(UTC))["leader"]
    if leader is None:
        raise NotObeyed(f"nobody leads {config.election}")
    if leader["fence"] is None:
        raise NotObeyed(f"{leader['node']} is elected and has no term yet: ask again in a moment")
    rivals = None if found.etcd is None else len(found.etcd.candidates) > 1
    if not rivals and not force:
        raise NotObeyed(
            f"nobody else is in line of fleet {config.fleet}: if {leader['node']} left, nobody "
            "would run jobs; start another node, or --force"
        )
    return Aim(config.election, leader["node"], leader["fence"], rivals)


def _command(aim: Aim, away_ns: int, why: str | None) -> CommandRow:
    return CommandRow(
        id=control.new_key(),
        kind=CommandKind.STEP_DOWN.value,
        target=aim.election,
        args=json.dumps({"for_s": away_ns / NS, "fence": aim.fence}),
        who=control.who(),
        why=why,
        at=datetime.now(UTC),
    )


# ------------------------------------------------------------------ what became of it


def _await(reader: Reader, command: CommandRow, aim: Aim, asked: float, bound_s: float) -> Handover:
    while time.monotonic() < asked + bound_s:
        if _obeyed(reader, command):
            ended, successor = _terms(reader, aim)
            if successor or (ended and not aim.rivals):
                return Handover(ended, successor, round((time.monotonic() - asked) * 1000))
        time.sleep(POLL_S)
    raise NotObeyed(
        f"{aim.node} has not handed over within {show_duration(int(bound_s * NS))}: "
        f"its runs may still be ending; the order stands (command {command.id})"
    )


def _obeyed(reader: Reader, command: CommandRow) -> bool:
    """Whether the leader does as told; raises NotObeyed if it says no."""
    found = reader.commands(id=command.id)
    result = found[0].result if found else None
    if result not in (None, CommandResult.STEPPING_DOWN):
        raise NotObeyed(f"the order came to nothing: {result}")
    return result is not None


def _terms(reader: Reader, aim: Aim) -> tuple[TermRow | None, TermRow | None]:
    """The term asked to end, if it has ended; the one after it, if there is one."""
    terms = reader.terms(aim.election, limit=10)
    ended = [term for term in terms if term.fence == aim.fence and term.ended_at]
    later = [term for term in terms if term.fence > aim.fence]
    return next(iter(ended), None), later[-1] if later else None


def _gap_ms(done: Handover) -> int | None:
    """From the old term's end to the election of the next, by the clocks of the two nodes."""
    if done.ended is None or done.ended.ended_at is None or done.successor is None:
        return None
    return round((done.successor.elected_at - done.ended.ended_at).total_seconds() * 1000)


def _facts(command: CommandRow, aim: Aim, done: Handover) -> dict[str, Any]:
    to = done.successor
    return {
        "command": command.id,
        "election": aim.election,
        "from": {"node": aim.node, "fence": aim.fence},
        "to": to and {"node": to.node, "fence": to.fence},
        "ms": done.ms,
        "handover_ms": _gap_ms(done),
    }


def _sentence(command: CommandRow, aim: Aim, done: Handover, away_ns: int) -> str:
    if done.ms is None:
        return f"{aim.node} (fence {aim.fence}) is asked to step down: command {command.id}"
    if done.successor is None:
        away = show_duration(away_ns)
        return f"{aim.node} stepped down after {done.ms} ms and is out of line for {away}"
    to = done.successor
    said = f"{to.node} leads {aim.election} under fence {to.fence}, {done.ms} ms after the order"
    gap = _gap_ms(done)
    return said if gap is None else f"{said}; the handover took {gap} ms"
