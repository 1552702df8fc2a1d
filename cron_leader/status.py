"""What a fleet's status is: the facts that `status --json` prints and a node serves over HTTP.

`facts_of` is pure: what etcd and the ledger said goes in, facts come out, their times as aware
datetimes. Keys are a contract: an addition is fine, a renaming is breaking.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from cron_leader.config import Config
from cron_leader.core.orders import UNTIL_RESUMED
from cron_leader.ledger.views import FenceRow, JobRow, Reader, SlotRow, TermRow

if TYPE_CHECKING:
    from cron_leader.etcd.survey import Standing, Survey

Fact = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class LedgerView:
    """term: the newest one of the election, ended or not. last: the newest slot of each job.

    fence None: nobody has led yet. paused: the jobs that were paused when it was read.
    """

    ledger_id: str
    term: TermRow | None
    last: Mapping[str, SlotRow]
    fence: FenceRow | None
    paused: Mapping[str, JobRow]


def read_ledger(reader: Reader, election: str) -> LedgerView:
    """What the ledger says of an election. Raises as Reader does."""
    terms = reader.terms(election, limit=1)
    return LedgerView(
        ledger_id=reader.identity().ledger_id,
        term=terms[0] if terms else None,
        last=reader.last_slots(),
        fence=reader.fence_row(election),
        paused={row.job: row for row in reader.paused(datetime.now(UTC))},
    )


def fence_is_ahead(etcd: Survey | None, ledger: LedgerView | None) -> bool:
    """Whether nobody leads, and nobody in this etcd could: the ledger would refuse its fence.

    So it is after etcd was rebuilt, or restored from an old snapshot; the cure is a rebase.
    """
    if etcd is None or etcd.candidates or ledger is None or ledger.fence is None:
        return False
    return ledger.fence.fence > ledger.fence.offset + etcd.revision


def facts_of(
    config: Config, etcd: Survey | None, ledger: LedgerView | None, now: datetime
) -> dict[str, Any]:
    """The facts at `now`; a key whose source is unreachable (None) is null."""
    term = ledger.term if ledger else None
    return {
        "fleet": config.fleet,
        "election": config.election,
        "ledger_id": ledger.ledger_id if ledger else None,
        "leader": _leader(etcd, term),
        "nodes": None if etcd is None else _nodes(etcd),
        "jobs": _jobs(config, ledger, now),
    }


def _leader(etcd: Survey | None, term: TermRow | None) -> Fact | None:
    """The first in line, and its term if the ledger has one of that lease.

    With etcd out of sight: the ledger's newest term, if it has not ended.
    """
    if etcd is None:
        return _term(term) if term and term.ended_at is None else None
    if not etcd.candidates:
        return None
    first = etcd.candidates[0]
    if term is not None and term.lease == first.lease and term.ended_at is None:
        return _term(term)
    return {"node": first.node, "lease": f"{first.lease:016x}", "fence": None, "since": None}


def _term(term: TermRow) -> Fact:
    return {
        "node": term.node,
        "lease": f"{term.lease:016x}",
        "fence": term.fence,
        "since": term.elected_at,
        "heartbeat": term.heartbeat_at,
        "planned_to": term.planned_to,
    }


def _nodes(etcd: Survey) -> list[Fact]:
    """In order of succession; then those that are not in line."""
    about = {node.lease: node for node in etcd.nodes}
    in_line = {standing.lease for standing in etcd.candidates}
    candidates = [
        {**_candidate(standing), "version": version, "config": digest}
        for standing in etcd.candidates
        for version, digest in [_said(about.get(standing.lease))]
    ]
    others = [
        {"node": node.node, "lease": f"{node.lease:016x}", "pid": None, "in_line_since": None}
        | {"version": node.version, "config": node.digest}
        for node in etcd.nodes
        if node.lease not in in_line
    ]
    return [*candidates, *others]


def _candidate(standing: Standing) -> Fact:
    return {
        "node": standing.node,
        "lease": f"{standing.lease:016x}",
        "pid": standing.pid,
        "in_line_since": standing.started_at,
    }


def _said(node: Any) -> tuple[str | None, str | None]:
    return (node.version, node.digest) if node else (None, None)


def _jobs(config: Config, ledger: LedgerView | None, now: datetime) -> list[Fact]:
    last = ledger.last if ledger else {}
    return [
        {
            "job": job.name,
            "last": slot_fact(last[job.name]) if job.name in last else None,
            "next": job.schedule.next_after(now),
            "paused": _paused(ledger, job.name, now),
            "group": job.group or None,
            "priority": job.priority,
        }
        for job in config.jobs
    ]


def _paused(ledger: LedgerView | None, job: str, now: datetime) -> Fact | None:
    """until None: until it is resumed."""
    row = ledger.paused.get(job) if ledger else None
    if row is None or row.paused_until is None or row.paused_until <= now:
        return None
    until = None if row.paused_until == UNTIL_RESUMED else row.paused_until
    return {"since": row.paused_from, "until": until, "why": row.paused_why}


def slot_fact(slot: SlotRow) -> dict[str, Any]:
    """One slot; its times are datetimes."""
    took = slot.finished_at - slot.started_at if slot.started_at and slot.finished_at else None
    return {
        "job": slot.job,
        "scheduled_for": slot.scheduled_for,
        "slots": 1,
        "state": slot.state,
        "reason": slot.reason,
        "origin": slot.origin,
        "node": slot.node,
        "fence": slot.fence,
        "attempt": slot.attempt,
        "started_at": slot.started_at,
        "finished_at": slot.finished_at,
        "duration_ms": took and round(took.total_seconds() * 1000),
    }
