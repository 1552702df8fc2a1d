"""A run of a leader, and what it may open."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from datetime import UTC, datetime, timedelta
from typing import Any

import psycopg

from cron_leader.core.model import Claim
from cron_leader.fencing.transaction import Opener, Ticket
from tests.ledger.kit import Lab, Leader, settlement, slot


def connect(url: str) -> Any:
    """A user's own connection, autocommitting."""
    if url.startswith("sqlite"):
        return sqlite3.connect(url.removeprefix("sqlite:///"), isolation_level=None)
    return psycopg.connect(url, autocommit=True)


@contextmanager
def table(lab: Lab, name: str, columns: str) -> Iterator[Any]:
    """A table of the user's own in the ledger's database, by a connection of theirs; then it is
    gone."""
    with closing(connect(lab.url)) as user:
        user.execute(f"CREATE TABLE {name} ({columns})")
        try:
            yield user
        finally:
            user.execute(f"DROP TABLE {name}")


async def running(lab: Lab, node: str = "a") -> tuple[Leader, Claim]:
    """A leader with one claimed slot."""
    leader = await lab.leader(node, settlement())
    claim = Claim(slot(), f"run-{node}")
    await leader.take(claim)
    return leader, claim


def ticket(lab: Lab, leader: Leader, claim: Claim) -> Ticket:
    return Ticket(
        url=lab.url,
        election=leader.term.election,
        fence=leader.fence,
        nonce=leader.term.nonce,
        job=claim.slot.job,
        scheduled_for=claim.slot.scheduled_for,
        command_id=claim.slot.command_id,
        attempt=1,
        run_id=claim.run_id,
        ttl_s=10.0,
        run_deadline=datetime.now(UTC) + timedelta(minutes=1),
    )


def opener(lab: Lab, leader: Leader, claim: Claim) -> Opener:
    return Opener(ticket(lab, leader, claim))
