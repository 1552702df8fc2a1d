"""The verdict: computed from the ledger's published tables by SQL of its own, not by the code that
wrote them; what should be there is computed from the schedules.

A slot is explained by its row or by a gap row that spans it. Only slots up to `planned_to` count:
later ones are nobody's yet.
"""

from __future__ import annotations

import sqlite3
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from cron_leader.core.model import UNFINISHED, Job
from cron_leader.demo.acts import Failover


@dataclass(frozen=True, slots=True)
class SlotRow:
    job: str
    scheduled_for: datetime
    state: str
    node: str
    fence: int


@dataclass(frozen=True, slots=True)
class GapRow:
    """first and last inclusive."""

    job: str
    first: datetime
    last: datetime


@dataclass(frozen=True, slots=True)
class TermRow:
    """ended_at None: still leading."""

    fence: int
    node: str
    elected_at: datetime
    ended_at: datetime | None
    reason: str | None


@dataclass(frozen=True, slots=True)
class Evidence:
    """What the ledger says. known: when each job was first planned for.

    doubled_runs: attempts of a slot with more than one run. refused, accepted: writes of a term
    after a newer one was elected. marks: what the one-second job's runs wrote down themselves.
    """

    planned_to: datetime
    known: Mapping[str, datetime]
    slots: tuple[SlotRow, ...]
    gaps: tuple[GapRow, ...]
    terms: tuple[TermRow, ...]
    doubled_runs: int
    refused: int
    accepted: int
    marks: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Check:
    """One line of the verdict. wanted: for the reader."""

    what: str
    found: str
    wanted: str
    holds: bool


def collect(ledger: Path, marks: Path) -> Evidence:
    """Read everything in one transaction, so that it is one state of the ledger."""
    with closing(sqlite3.connect(f"file:{ledger}?mode=ro", uri=True)) as db:
        db.execute("BEGIN")
        (planned_to,) = db.execute("SELECT max(planned_to) FROM cron_leader_term").fetchone()
        known = db.execute("SELECT job, effective_from FROM cron_leader_job")
        slots = db.execute(
            "SELECT job, scheduled_for, state, node, fence FROM cron_leader_slot"
            " WHERE command_id = ''"
        )
        gaps = db.execute('SELECT job, "first", "last" FROM cron_leader_gap')
        terms = db.execute(
            "SELECT fence, node, elected_at, ended_at, reason FROM cron_leader_term ORDER BY fence"
        )
        return Evidence(
            planned_to=_time(planned_to),
            known={job: _time(at) for job, at in known},
            slots=tuple(SlotRow(job, _time(at), *rest) for job, at, *rest in slots),
            gaps=tuple(GapRow(job, _time(first), _time(last)) for job, first, last in gaps),
            terms=tuple(
                TermRow(fence, node, _time(elected), ended and _time(ended), reason)
                for fence, node, elected, ended, reason in terms
            ),
            doubled_runs=_count(db, _DOUBLED),
            refused=_count(db, _REFUSED),
            accepted=_count(db, _ACCEPTED),
            marks=tuple(marks.read_text().splitlines()) if marks.exists() else (),
        )


_DOUBLED = """
SELECT count(*) FROM (
    SELECT 1 FROM cron_leader_attempt
    GROUP BY job, scheduled_for, command_id, attempt HAVING count(*) > 1)
"""
_REFUSED = "SELECT count(*) FROM cron_leader_refusal WHERE fence < high"
_ACCEPTED = """
SELECT count(*) FROM cron_leader_attempt AS a
WHERE a.state IN ('succeeded', 'failed', 'timed_out') AND EXISTS (
    SELECT 1 FROM cron_leader_term AS t
    WHERE t.fence > a.fence AND t.elected_at < a.finished_at)
"""


def expected(evidence: Evidence, jobs: Sequence[Job]) -> Iterator[tuple[str, datetime]]:
    """Every slot there must be an explanation for, by job and time."""
    for job in jobs:
        at = job.schedule.next_after(evidence.known.get(job.name, evidence.planned_to))
        while at is not None and at <= evidence.planned_to:
            yield job.name, at
            at = job.schedule.next_after(at)


def unfinished(evidence: Evidence) -> int:
    return sum(slot.state in UNFINISHED for slot in evidence.slots)


def judge(
    evidence: Evidence, jobs: Sequence[Job], failovers: Sequence[Failover]
) -> tuple[Check, ...]:
    due = set(expected(evidence, jobs))
    rows = Counter((slot.job, slot.scheduled_for) for slot in evidence.slots)
    counted = {slot: n for slot, n in rows.items() if slot[1] <= evidence.planned_to}
    in_gaps = {slot for slot in due - set(rows) if _in_gap(slot, evidence.gaps)}
    again = len(evidence.marks) - len(set(evidence.marks))
    return (
        Check("slots expected", str(len(due)), "> 0", bool(due)),
        Check("slots with a row, in a gap", f"{len(counted)}, {len(in_gaps)}", "all", True),
        _none("slots unexplained", len(due - set(rows) - in_gaps)),
        _none("rows beyond the schedule", len(set(counted) - due)),
        _none(
            "duplicates: rows or runs", sum(n - 1 for n in rows.values()) + evidence.doubled_runs
        ),
        _none("slots run twice, by their own marks", again),
        _none("slots left unfinished", unfinished(evidence)),
        Check("stale writes refused", str(evidence.refused), ">= 1", evidence.refused > 0),
        _none("stale writes accepted", evidence.accepted),
        *(_timely(failover) for failover in failovers),
        *(_exit(failover, failover.exited) for failover in failovers if failover.exited),
    )


def _none(what: str, found: int) -> Check:
    return Check(what, str(found), "0", found == 0)


def _timely(failover: Failover) -> Check:
    return Check(
        f"failover, {failover.what} {failover.old} -> {failover.new}",
        f"{failover.took_ms:.0f} ms",
        f"< {failover.bound_ms:.0f} ms (promised: {failover.promised})",
        failover.took_ms < failover.bound_ms,
    )


def _exit(failover: Failover, exited: tuple[int, int]) -> Check:
    found, wanted = exited
    what = f"exit code of {failover.old} after {failover.what}"
    return Check(what, str(found), str(wanted), found == wanted)


def _in_gap(slot: tuple[str, datetime], gaps: Sequence[GapRow]) -> bool:
    job, at = slot
    return any(gap.job == job and gap.first <= at <= gap.last for gap in gaps)


def _count(db: sqlite3.Connection, query: str) -> int:
    return int(db.execute(query).fetchone()[0])


def _time(text: str) -> datetime:
    return datetime.fromisoformat(text).astimezone(UTC)
