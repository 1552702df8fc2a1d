"""The usual claim on SQLite: slots that have no row yet and fell due at one instant.

It writes what `writes.take` writes for such a batch, in a third of the time: rows are bound as
values and not read from JSON, and nothing is read back. The transaction holds the write lock, so as
many rows made as were asked for means that all of them are ours. Any other count (a pause, an
earlier copy of this very claim) makes nothing: such a batch goes the long way.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Sequence
from functools import cache

from cron_leader.core.model import Batch, Origin, State, Taken, Term
from cron_leader.ledger.sql import to_text

SIZES = (500, 100, 20, 5, 1)
"""Rows of one statement: few texts, so that each stays compiled."""

Row = tuple[str, str, str]
"""Job, scheduled_for, run_id."""

_SLOTS = f"""
INSERT INTO cron_leader_slot (job, scheduled_for, command_id, election, fence, node, state, origin,
    attempt, run_id, started_at)
SELECT b.job, b.scheduled_for, '', ?1, ?2, ?3, '{State.RUNNING.value}', '{Origin.SCHEDULE.value}',
    1, b.run_id, ?4
FROM batch AS b LEFT JOIN cron_leader_job AS j ON j.job = b.job AND (j.paused_until > ?4
    OR (b.scheduled_for >= j.paused_from AND b.scheduled_for < j.paused_until))
WHERE j.job IS NULL
ON CONFLICT DO NOTHING
"""
_ATTEMPTS = f"""
INSERT INTO cron_leader_attempt
    (job, scheduled_for, command_id, attempt, run_id, fence, node, state, started_at)
SELECT b.job, b.scheduled_for, '', 1, b.run_id, ?2, ?3, '{State.RUNNING.value}', ?4
FROM batch AS b WHERE ?1 IS NOT NULL
ON CONFLICT DO NOTHING
"""


def is_fresh(batch: Batch) -> bool:
    """Whether it is nothing but slots of schedules that have no row yet, as far as we know."""
    if batch.entries or batch.gaps:
        return False
    return all(claim.seen is None and not claim.slot.command_id for claim in batch.claims)


def insert_fresh(connection: sqlite3.Connection, term: Term, batch: Batch) -> Taken | None:
    """Within a transaction, behind the guard: all of the claims, or None, to be rolled back."""
    of_term = (term.election, term.fence, term.node, to_text(batch.now))
    for rows in _chunks(_rows(batch)):
        flat = [value for row in rows for value in row]
        for head in (_SLOTS, _ATTEMPTS):
            before = connection.total_changes
            connection.execute(_text(head, len(rows)), (*of_term, *flat))
            if connection.total_changes - before != len(rows):
                return None
    return Taken(dict.fromkeys((claim.run_id for claim in batch.claims), 1), frozenset())


def _rows(batch: Batch) -> list[Row]:
    """In the order of the table's key: neighbours go to the same page."""
    texts = {at: str(to_text(at)) for at in {c.slot.scheduled_for for c in batch.claims}}
    return sorted((c.slot.job, texts[c.slot.scheduled_for], c.run_id) for c in batch.claims)


def _chunks(rows: Sequence[Row]) -> Iterator[Sequence[Row]]:
    start = 0
    for size in SIZES:
        while len(rows) - start >= size:
            yield rows[start : start + size]
            start += size


@cache
def _text(statement: str, rows: int) -> str:
    """The statement over so many rows, bound behind what it has of the term."""
    marks = (f"(?{n}, ?{n + 1}, ?{n + 2})" for n in range(5, 5 + 3 * rows, 3))
    values = ", ".join(marks)
    return f"WITH batch (job, scheduled_for, run_id) AS (VALUES {values}){statement}"
