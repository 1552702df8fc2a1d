"""The usual claim on Postgres, of slots that have no row yet, as one call of `cron_leader_claim`.

That function, made by the migrations, writes what `writes.take` does statement by statement, and
asks the guard last: one transaction in one statement, whose plans the server keeps. Not promised:
an isolation other than READ COMMITTED, which it refuses (`OTHER_ISOLATION`).
"""

from __future__ import annotations

import json

from psycopg.pq.abc import PGresult

from cron_leader import fencing
from cron_leader.core.model import Batch, Claim, Term
from cron_leader.ledger.sql import to_array
from cron_leader.ledger.writes import Rows

OTHER_ISOLATION = "CL002"
"""SQLSTATE where the database's default is not READ COMMITTED."""

CUT_SHORT = "57014"
"""SQLSTATE where a statement timeout, the role's say, ended it: one statement cannot pin its own.
Nothing was done; statement by statement it is pinned."""

CLAIM = b"SELECT run_id, attempt, state FROM cron_leader_claim($1, $2, $3, $4, $5)"

COMPILE = """
DO $$BEGIN
    PERFORM cron_leader_claim('{"within_ms": 1, "frozen_ms": 0, "election": "", "fence": 0}',
        '{}', '{}', '{}', '{}');
EXCEPTION WHEN OTHERS THEN NULL; END$$
"""
"""A claim of nothing, refused by the guard: this server process has both functions planned."""


def is_fresh(batch: Batch) -> bool:
    """Whether it is nothing but slots that have no row yet, as far as we know."""
    if batch.entries or batch.gaps or not batch.claims:
        return False
    return all(claim.seen is None for claim in batch.claims)


def claim_params(term: Term, batch: Batch, *, within_ms: int, frozen_ms: int) -> list[bytes]:
    """For CLAIM. within_ms: the longest wait for a lock; frozen_ms: for its answer to be taken.

    Sorted by slot, so that two copies lock in the same order.
    """
    claims = sorted(batch.claims, key=_key)
    given = {
        "name": fencing.application_name(term.election, term.fence),
        "within_ms": within_ms,
        "frozen_ms": frozen_ms,
        "election": term.election,
        "fence": term.fence,
        "nonce": term.nonce,
        "node": term.node,
        "now": batch.now.isoformat(),
        "planned_to": batch.planned_to.isoformat(),
        "known": batch.known and batch.known.isoformat(),
    }
    texts = (
        json.dumps(given),
        to_array([claim.slot.job for claim in claims]),
        to_array([claim.slot.scheduled_for for claim in claims]),
        to_array([claim.slot.command_id for claim in claims]),
        to_array([claim.run_id for claim in claims]),
    )
    return [text.encode() for text in texts]


def rows_of(answer: PGresult) -> Rows:
    """What CLAIM was answered with."""
    return [
        {
            "run_id": _text(answer, row, 0),
            "attempt": int(_text(answer, row, 1)),
            "state": _text(answer, row, 2),
        }
        for row in range(answer.ntuples)
    ]


def _text(answer: PGresult, row: int, column: int) -> str:
    value = answer.get_value(row, column)
    assert value is not None
    return value.decode()


def _key(claim: Claim) -> tuple[object, ...]:
    return claim.slot.job, claim.slot.scheduled_for, claim.slot.command_id
