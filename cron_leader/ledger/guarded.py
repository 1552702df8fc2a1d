"""What both ledgers do alike: a write is built in writes.py, sent by the back end, and answered."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from typing import Any, TypeVar

from cron_leader.core.model import (
    Applied,
    Batch,
    Candidate,
    CommandResult,
    Done,
    DueRow,
    Errand,
    Finish,
    JobRecord,
    Mark,
    Past,
    PutBack,
    Refused,
    Rollback,
    Run,
    Settlement,
    Taken,
    Term,
)
from cron_leader.ledger import noticed, retention, writes
from cron_leader.ledger.noticed import Failed
from cron_leader.ledger.retention import FIRST, Kept, Key, Page, Surplus
from cron_leader.ledger.sql import Params, to_time, to_time_or_none
from cron_leader.ledger.writes import Rows, Write

T = TypeVar("T")

MANY = 5_000
"""Rows that are gone through beside the event loop, which renews leases meanwhile."""

PAST_QUERIES = ("planned_to", "read_jobs")
"""What a new leader reads, for past_of."""


class GuardedLedger(ABC):
    """The writes of a term, each one `Write`; the back end has to send it."""

    _foreread: tuple[str, Past] | None = None
    """The past as it was read behind the raise of this nonce, in the same round trip. No older term
    writes any more, so it stands until the term itself writes."""

    @abstractmethod
    async def look_back(self, election: str) -> Past:
        """Read the past."""

    async def read_past(self, term: Term) -> Past:
        if self._foreread is not None and self._foreread[0] == term.nonce:
            return self._foreread[1]
        return await self.look_back(term.election)

    @abstractmethod
    async def write(self, write: Write[T]) -> T | Refused:
        """Send one guarded transaction; a refusal is recorded, best effort."""

    async def settle(self, term: Term, settlement: Settlement) -> tuple[DueRow, ...] | Refused:
        self._foreread = None
        rows = len(settlement.jobs) + len(settlement.entries) + len(settlement.gaps)
        return await self.write(await aside(rows, lambda: writes.settle(term, settlement)))

    async def take(self, term: Term, batch: Batch) -> Taken | Refused:
        return await self.write(writes.take(term, batch))

    async def heartbeat(
        self,
        term: Term,
        planned_to: datetime,
        now: datetime,
        *,
        known: datetime | None = None,
        runs: Sequence[Run] = (),
    ) -> Applied | Refused:
        return await self.write(writes.heartbeat(term, planned_to, now, known=known, runs=runs))

    async def answer_order(
        self, term: Term, command_id: str, result: CommandResult, now: datetime
    ) -> Applied | Refused:
        return await self.write(writes.answer_order(term, command_id, result, now))

    async def carry_out(self, term: Term, errand: Errand, now: datetime) -> Done | Refused:
        return await self.write(writes.carry_out(term, errand, now))

    async def finish(self, term: Term, finish: Finish) -> Applied | Refused:
        return await self.write(writes.finish(term, finish))

    async def put_back(self, term: Term, put_back: PutBack) -> Applied | Refused:
        return await self.write(writes.put_back(term, put_back))

    async def close_term(self, term: Term, reason: str, now: datetime) -> Applied | Refused:
        return await self.write(writes.close_term(term, reason, now))

    async def put_notice(self, term: Term, key: str, now: datetime) -> Applied | Refused:
        return await self.write(noticed.put_notice(term, key, now))

    async def failing(self, election: str, since: datetime) -> Sequence[Failed]:
        return noticed.failing_of(await self.read(*noticed.failing(election, since)))

    @abstractmethod
    async def read(self, query: str, params: Params) -> Rows:
        """One named statement that changes nothing."""

    async def surplus(self, election: str, after: str, keep: int) -> tuple[Surplus, ...]:
        return retention.surplus_of(await self.read(*retention.surplus(election, after, keep)))

    async def expired(
        self,
        election: str,
        kept: Kept,
        before: datetime,
        surplus: Surplus | None = None,
        *,
        page: Page = FIRST,
    ) -> tuple[Key, ...]:
        rows = await self.read(*retention.expired(election, kept, before, surplus, page=page))
        return retention.keys_of(kept, rows)

    async def trim(
        self, term: Term, kept: Kept, keys: tuple[Key, ...], now: datetime
    ) -> Applied | Refused:
        return await self.write(retention.trim(term, kept, keys, now))


def judge_raise(candidate: Candidate, rows: Rows) -> int | Refused:
    """The answer to a raise, from the fence row (if there is one) as it stands afterwards.

    Ours, by fence and nonce: now or by an earlier copy. `history` is set for another etcd cluster
    and for a ledger that went back, unless `ledger_rollback` admits that; whether a fence at or
    above ours means a restored etcd is the caller's to say.
    """
    shows_less = not rows or rows[0]["fence"] < candidate.least
    if shows_less and candidate.rollback is Rollback.REFUSE:
        high = rows[0]["fence"] if rows else None
        return Refused("raise", high, history=True, text=_went_back(candidate, high))
    (row,) = rows
    ours: int = row["offset"] + candidate.revision
    if row["fence"] == ours and row["nonce"] == candidate.nonce:
        return ours
    return Refused(
        "raise", row["fence"], history=_foreign(candidate, row), text=_refusal(candidate, row)
    )


def raise_params(candidate: Candidate, now: datetime) -> Params:
    return {
        "election": candidate.election,
        "revision": candidate.revision,
        "nonce": candidate.nonce,
        "cluster": cluster_text(candidate.cluster),
        "node": candidate.node,
        "now": now,
        "least": candidate.least,
        "rollback": candidate.rollback.value,
    }


def raise_queries(candidate: Candidate) -> tuple[str, ...]:
    """The statements of a raise, by name; the answer to the last one is for judge_raise."""
    if candidate.rollback is Rollback.REFUSE or not candidate.least:
        return "raise_fence", "read_fence"
    return "admit_went_back", "raise_fence", "read_fence"


def guard_params(term: Term) -> Params:
    return {"election": term.election, "fence": term.fence, "nonce": term.nonce}


def refusal_of(write: Write[T], refused: Refused) -> Params:
    """The record of a refused write of a term."""
    term = write.term
    return {
        "now": write.at,
        "election": term.election,
        "fence": term.fence,
        "high": refused.high,
        "node": term.node,
        "what": write.what,
        "outcome": write.outcome,
    }


def refusal_of_raise(candidate: Candidate, refused: Refused, now: datetime) -> Params:
    """The record of a refused raise; its fence is the bare revision."""
    return {
        "now": now,
        "election": candidate.election,
        "fence": candidate.revision,
        "high": refused.high,
        "node": candidate.node,
        "what": refused.what,
        "outcome": None,
    }


def cluster_text(cluster: int) -> str:
    """etcd's cluster id as etcd's own log lines show it."""
    return f"{cluster:x}"


def mark_of(rows: Rows) -> Mark | None:
    return Mark(rows[0]["fence"], rows[0]["offset"], rows[0]["cluster"]) if rows else None


def _went_back(candidate: Candidate, high: int | None) -> str:
    return (
        f"ledger refuses election {candidate.election}: its fence is {high or 'not there'}, but "
        f"etcd remembers fence {candidate.least} raised in it: the ledger went back (restored, or "
        "failed over to a copy that lagged); bring the newer one back, or go on without what it "
        'lost: [ledger] ledger_rollback = "skip" or "refire"'
    )


def _foreign(candidate: Candidate, row: Mapping[str, Any]) -> bool:
    return row["cluster"] not in (None, cluster_text(candidate.cluster))


def _refusal(candidate: Candidate, row: Mapping[str, Any]) -> str:
    election, fence, offset = candidate.election, row["fence"], row["offset"]
    if _foreign(candidate, row):
        fact = (
            f"its fence {fence} was raised under etcd cluster {row['cluster']}, "
            f"this is cluster {cluster_text(candidate.cluster)}"
        )
    else:
        fact = f"its fence is {fence}, ours {offset + candidate.revision} (offset {offset})"
    return (
        f"ledger refuses election {election}: {fact}; "
        "if etcd was restored or rebuilt, run `cron-leader fence rebase`"
    )


async def aside(rows: int, work: Callable[[], T]) -> T:
    """What becomes of so many rows: at once, or in a thread if they are many."""
    return await asyncio.to_thread(work) if rows > MANY else work()


def past_of(planned: Rows, jobs: Rows) -> Past:
    """What a new leader reads, from the two queries' rows."""
    row = planned[0]
    return Past(
        to_time_or_none(row["planned_to"]),
        {job["job"]: _job_record(job) for job in jobs},
        went_back_at=to_time_or_none(row["went_back_at"]) if _is_open(row) else None,
        skip=row["went_back"] == Rollback.SKIP,
        unfinished=bool(row["unfinished"]),
    )


def _is_open(row: Mapping[str, Any]) -> bool:
    """Whether a loss was found that no term has settled since."""
    lost_from, settled = row["went_back_from"], row["settled"]
    return lost_from is not None and (settled is None or settled < lost_from)


def _job_record(row: Mapping[str, Any]) -> JobRecord:
    return JobRecord(
        row["job"],
        to_time(row["first_seen"]),
        to_time(row["effective_from"]),
        row["digest"],
        to_time_or_none(row["retired_at"]),
        to_time_or_none(row["paused_from"]),
        to_time_or_none(row["paused_until"]),
    )
