"""The ledger: the one place where a slot is taken and a run is recorded, under the fence.

What it promises: once `raise_fence` of a newer term has committed, no write of an older term
commits (P1); a slot has at most one accepted run per attempt (P3). What it does not: anything about
effects outside the database. Two back ends, one Protocol, one conformance suite.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import datetime
from typing import Protocol

from cron_leader.core.model import (
    Applied,
    Batch,
    Candidate,
    CommandResult,
    Done,
    DueRow,
    Errand,
    Finish,
    LedgerId,
    Mark,
    Past,
    PutBack,
    Refused,
    Run,
    Settlement,
    Taken,
    Term,
)
from cron_leader.errors import LedgerUnusable
from cron_leader.ledger.noticed import Failed
from cron_leader.ledger.retention import FIRST, Kept, Key, Page, Surplus


class Ledger(Protocol):
    """Every method may raise LedgerUncertain (send the *same* again) or LedgerUnusable.

    All writes are idempotent under resend: the same arguments sent twice, or a late first copy
    committing after the second, change nothing more and answer as the first would have.
    """

    async def open(self, *, fleet: str, shards: int, migrate: bool) -> LedgerId:
        """Connect, migrate if asked, record fleet and shards if new; idempotent.

        Raises LedgerUnusable when the schema is missing (say `db migrate`), newer than the
        program, or belongs to another fleet.
        """

    async def identity(self) -> LedgerId:
        """Whose it is, one read."""

    async def clock(self) -> datetime | None:
        """The cheap probe, one read of our own tables: the database's clock; None where it is ours
        (SQLite)."""

    async def timeline(self) -> str | None:
        """Which history of the database this is, for the record; None where there is but one."""

    async def mark(self, election: str) -> Mark | None:
        """The fence as it stands; None before the first raise."""

    async def rehearse(self, election: str) -> None:
        """Make a takeover quick that may come: what its statements need is loaded. Writes nothing,
        locks nobody out; costs milliseconds, and is worth it once for each wait in line."""

    async def raise_fence(
        self, candidate: Candidate, now: datetime, *, waiting: Callable[[], None]
    ) -> int | Refused:
        """Lift the fence; the fence now held, or Refused: also for a fence below candidate.least,
        which means that the ledger itself went back. `waiting` is called when it waits on a
        lock held by another (the ledger itself being alive)."""

    async def read_past(self, term: Term) -> Past: ...

    async def settle(self, term: Term, settlement: Settlement) -> tuple[DueRow, ...] | Refused:
        """The takeover transaction, then every unfinished waiting row of our fence."""

    async def take(self, term: Term, batch: Batch) -> Taken | Refused: ...

    async def heartbeat(
        self,
        term: Term,
        planned_to: datetime,
        now: datetime,
        *,
        known: datetime | None = None,
        runs: Sequence[Run] = (),
    ) -> Applied | Refused:
        """The term lives, and its `runs`; the answer brings the orders that nobody answered yet.

        Unchanged: the term's row is gone, or shows less than `known`; the ledger went back.
        """

    async def answer_order(
        self, term: Term, command_id: str, result: CommandResult, now: datetime
    ) -> Applied | Refused:
        """Answer an operator's order, once; unchanged: it was another's to answer, or is gone."""

    async def carry_out(self, term: Term, errand: Errand, now: datetime) -> Done | Refused:
        """Do what an order asks of the jobs and answer it, once and in one transaction."""

    async def finish(self, term: Term, finish: Finish) -> Applied | Refused: ...

    async def put_back(self, term: Term, put_back: PutBack) -> Applied | Refused: ...

    async def close_term(self, term: Term, reason: str, now: datetime) -> Applied | Refused: ...

    async def put_notice(self, term: Term, key: str, now: datetime) -> Applied | Refused:
        """Take the key of a notice; unchanged: it was taken before, by whomever."""

    async def failing(self, election: str, since: datetime) -> Sequence[Failed]:
        """The failed slots after `since` of jobs that have not succeeded since, oldest first."""

    async def surplus(self, election: str, after: str, keep: int) -> tuple[Surplus, ...]:
        """The next few jobs by name after `after`; empty: there are no more."""

    async def expired(
        self,
        election: str,
        kept: Kept,
        before: datetime,
        surplus: Surplus | None = None,
        *,
        page: Page = FIRST,
    ) -> tuple[Key, ...]:
        """The oldest rows of one kind that may go, at most a page: final before `before`."""

    async def trim(
        self, term: Term, kept: Kept, keys: tuple[Key, ...], now: datetime
    ) -> Applied | Refused:
        """Delete rows that `expired` named."""

    async def close(self) -> None: ...


def open_ledger(url: str, *, ttl_s: float | None = None) -> Ledger:
    """The back end for `sqlite:///path` or `postgresql://...`; nothing is opened yet.

    ttl_s: of the lease: a transaction whose client froze is ended by Postgres after as long.
    """
    scheme = url.partition(":")[0]
    if scheme == "sqlite":
        from cron_leader.ledger.sqlite import SqliteLedger

        return SqliteLedger(url)
    if scheme in {"postgresql", "postgres"}:
        from cron_leader.ledger.postgres import PostgresLedger

        return PostgresLedger(url) if ttl_s is None else PostgresLedger(url, frozen_s=ttl_s)
    raise LedgerUnusable(
        f"ledger url {scheme!r}: unknown scheme; use sqlite:///file.db or postgresql://host/db"
    )
