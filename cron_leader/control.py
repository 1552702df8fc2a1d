"""Operators' orders, from any host that reaches the ledger: written there, and waited for.

An order is an unfenced insert into cron_leader_command, which is also the audit log: by whom, why,
when, what came of it, under which fence. The leader reads it with its next heartbeat, carries it
out and answers it in one guarded transaction. Not promised: that somebody leads.
"""

from __future__ import annotations

import getpass
import os
import re
import secrets
import socket
import time
from dataclasses import replace
from datetime import UTC, datetime

from cron_leader.core.model import Asked, CommandResult, Trigger
from cron_leader.errors import CronLeaderError
from cron_leader.ledger.orders import args_of
from cron_leader.ledger.views import CommandRow, Reader

POLL_S = 0.05

KEY = re.compile(r"[A-Za-z0-9._:-]{1,64}")
"""What may be the idempotency key of an order."""

CARRIED_OUT = frozenset(
    {
        CommandResult.TRIGGERED,
        CommandResult.PAUSED,
        CommandResult.RESUMED,
        CommandResult.BACKFILLING,
    }
)


class NotCarriedOut(CronLeaderError):
    """The order was refused, or nobody has answered it in time; exit code 1."""


def new_key() -> str:
    return secrets.token_hex(16)


def who() -> str:
    """The operator, for the audit log: what this host calls them. Nobody is authenticated."""
    try:
        user = getpass.getuser()
    except (KeyError, OSError):  # no such user: an arbitrary uid in a container
        user = str(os.getuid())
    return f"{user}@{socket.gethostname()}"


def command_of(asked: Asked, election: str, *, why: str | None) -> CommandRow:
    """The row of an order given now; a trigger's carries the time of its slot."""
    return CommandRow(
        id=asked.command_id,
        kind=type(asked).__name__.lower(),
        target=election,
        args=args_of(asked),
        who=who(),
        why=why,
        at=asked.at if isinstance(asked, Trigger) else datetime.now(UTC),
    )


def give(reader: Reader, command: CommandRow) -> CommandRow:
    """Put the order, once for its id; the row that stands: that of an earlier call, perhaps.

    Raises NotCarriedOut if the id is that of another order.
    """
    reader.order(command)
    (stands,) = reader.commands(id=command.id)
    if _asks(stands) != _asks(command):
        raise NotCarriedOut(
            f"key {command.id!r} is that of another order: {stands.kind} {stands.args} of "
            f"{stands.target}, by {stands.who}"
        )
    return stands


def _asks(command: CommandRow) -> tuple[str, str, str]:
    return command.kind, command.target, command.args


def answer(reader: Reader, command: CommandRow, within_s: float) -> CommandRow:
    """The order's row, once it was carried out. Raises NotCarriedOut: refused, or not in time."""
    end = time.monotonic() + within_s
    while (answered := _look(reader, command)).result is None:
        if time.monotonic() >= end:
            raise NotCarriedOut(
                f"no leader of {command.target} has answered within {within_s:g}s; "
                f"the order stands (command {command.id})"
            )
        time.sleep(POLL_S)
    if answered.result not in CARRIED_OUT:
        raise NotCarriedOut(f"the order came to nothing: {answered.result}")
    return answered


def _look(reader: Reader, command: CommandRow) -> CommandRow:
    """Retention may have taken the row of an old order that is given again."""
    found = reader.commands(id=command.id)
    return found[0] if found else replace(command, result="deleted by retention")
