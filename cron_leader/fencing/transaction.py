"""`Tick.transaction()`: the user's writes, the run's success and the guard in one transaction.

The kit owns COMMIT. At the end of the block it writes that the attempt succeeded, so that whatever
happens afterwards nobody repeats the effect, and then the guard, last. A block that is not the
final one locks the run's slot instead: one that was ended, or replaced, under the same fence writes
nothing either. Refused: StaleFence, and nothing is committed. A block that ended the transaction
behind the kit's back is FenceMisuse; what it committed so was not fenced.

In a fence target the guard is as strong. That the run still goes on is read from the ledger just
before: a run that is ended between that read and COMMIT is not excluded, two databases are two
commits.

Not promised: effects outside this database, or a definite answer when the connection is lost at
COMMIT (psycopg.OperationalError): the daemon's own finish then reads what stands.
"""

from __future__ import annotations

import secrets
import sqlite3
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, closing, contextmanager
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Any, TypeAlias

from cron_leader import fencing
from cron_leader.fencing import FenceMisuse, StaleFence
from cron_leader.fencing.pipelines import pipeline

SQLITE_BUSY_S = 5.0
"""How long BEGIN waits for another's transaction."""

_SETTINGS = """
SELECT set_config('application_name', %(name)s, true),
    set_config('synchronous_commit', 'on', true),
    set_config('statement_timeout', %(left_ms)s, true),
    set_config('idle_in_transaction_session_timeout', %(ttl_ms)s, true),
    set_config('tcp_user_timeout', %(ttl_ms)s, true),
    set_config('cron_leader.mark', %(mark)s, true)
"""
_MARK = "SELECT current_setting('cron_leader.mark', true)"

_SUCCEED_SLOT = """
UPDATE cron_leader_slot SET state = 'succeeded', reason = NULL, finished_at = :now
WHERE job = :job AND scheduled_for = :scheduled_for AND command_id = :command_id
    AND state = 'running' AND attempt = :attempt AND run_id = :run_id
"""
_SUCCEED_ATTEMPT = """
UPDATE cron_leader_attempt SET state = 'succeeded', finished_at = :now
WHERE job = :job AND scheduled_for = :scheduled_for AND command_id = :command_id
    AND attempt = :attempt AND run_id = :run_id AND state = 'running'
"""
_GOES_ON = """
SELECT run_id FROM cron_leader_slot
WHERE job = :job AND scheduled_for = :scheduled_for AND command_id = :command_id
    AND state = 'running' AND attempt = :attempt AND run_id = :run_id
"""
_HOLD = _GOES_ON + "FOR SHARE"
"""Whoever ends or replaces the run waits for our COMMIT, or we find that they have."""

_NAMES = ("command_id", "scheduled_for", "attempt", "run_id", "job", "now")


@dataclass(frozen=True, slots=True)
class Ticket:
    """What a run needs to write under its fence; it travels in memory, never in an environment.

    url: the ledger's, with its password. ttl_s: of the lease: how long a frozen run may hold locks.
    targets: the URLs of the fence targets by name.
    """

    url: str = field(repr=False)
    election: str
    fence: int
    nonce: str = field(repr=False)
    job: str
    scheduled_for: datetime
    command_id: str
    attempt: int
    run_id: str
    ttl_s: float
    run_deadline: datetime
    targets: Mapping[str, str] = field(default_factory=dict, repr=False)


Ending: TypeAlias = "Callable[[Any], Callable[[], bool]]"
"""What is said on a connection after the user's writes, ahead of the guard; what it returns says,
once the answers are there, whether the run goes on."""


class Opener:
    """Opens the transactions of one run; one of them may be the final one: its COMMIT is told."""

    def __init__(self, ticket: Ticket, committed: Callable[[], None] = lambda: None) -> None:
        self._ticket, self._committed = ticket, committed
        self._succeeded = False

    def __call__(
        self, *, final: bool, isolation: str, target: str | None = None
    ) -> AbstractContextManager[Any]:
        """target: the success is not written there, so a block of its is never the final one."""
        if target is not None:
            return _connect(_at(self._ticket, target), self._look_in_ledger, isolation)
        if self._succeeded:
            raise FenceMisuse(
                "this run's success is already committed; give final=False to every "
                "transaction but the last"
            )
        return self._open(final, isolation)

    @contextmanager
    def _open(self, final: bool, isolation: str) -> Iterator[Any]:
        ending = self._succeed if final else self._hold
        with _connect(self._ticket, ending, isolation) as connection:
            yield connection
        self._succeeded = final
        if final:
            self._committed()

    def _succeed(self, connection: Any) -> Callable[[], bool]:
        slot = _run(connection, _SUCCEED_SLOT, self._ticket)
        _run(connection, _SUCCEED_ATTEMPT, self._ticket)
        return lambda: bool(slot.rowcount == 1)

    def _hold(self, connection: Any) -> Callable[[], bool]:
        return self._look(connection, _GOES_ON if _is_lite(connection) else _HOLD)

    def _look_in_ledger(self, _: Any) -> Callable[[], bool]:
        with _reading(self._ticket) as ledger:
            goes_on = self._look(ledger, _GOES_ON)()
        return lambda: goes_on

    def _look(self, connection: Any, text: str) -> Callable[[], bool]:
        found = _run(connection, text, self._ticket)
        return lambda: found.fetchone() is not None


def _connect(ticket: Ticket, ending: Ending, isolation: str) -> AbstractContextManager[Any]:
    opened = _sqlite if ticket.url.startswith("sqlite:") else _postgres
    return opened(ticket, ending, isolation)


def _at(ticket: Ticket, target: str) -> Ticket:
    """The ticket for another database."""
    if target not in ticket.targets:
        known = ", ".join(sorted(ticket.targets)) or "none"
        raise FenceMisuse(f"there is no [[fence_target]] {target!r} (known: {known})")
    return replace(ticket, url=ticket.targets[target])


def _refused(ticket: Ticket) -> StaleFence:
    return StaleFence(
        f"fence {ticket.fence} of {ticket.election} is refused: a newer leader has raised it; "
        "nothing was committed"
    )


def _not_ours(ticket: Ticket) -> StaleFence:
    return StaleFence(
        f"the slot {ticket.job} {ticket.scheduled_for.isoformat()} is no longer this run's (it was "
        "ended, or replaced): nothing was committed"
    )


def _ended_behind() -> FenceMisuse:
    return FenceMisuse(
        "the block ended its transaction by itself (COMMIT or ROLLBACK); what it committed was not "
        "fenced. Leave COMMIT to tick.transaction(), and raise an exception to roll back"
    )


# ------------------------------------------------------------------ Postgres


@contextmanager
def _postgres(ticket: Ticket, ending: Ending, isolation: str) -> Iterator[Any]:
    import psycopg

    level = _level(isolation)
    with _session(ticket) as connection:
        connection.isolation_level = level
        try:
            with ExitStack() as stack:
                mark = secrets.token_hex(16)
                _begin(connection, stack, _settings(ticket, mark))
                yield connection
                _end(connection, mark, ending, ticket)
                _commit(connection, stack, _guard_params(ticket))
        except psycopg.errors.SerializationFailure as error:
            if _deposed(connection, ticket):
                raise _refused(ticket) from error
            raise
        except psycopg.Error as error:
            if error.sqlstate == fencing.REFUSED:
                raise _refused(ticket) from None
            raise


def _begin(connection: Any, stack: ExitStack, settings: Mapping[str, str]) -> None:
    """BEGIN and what holds in it, in one round trip; the stack ends it."""
    from psycopg import Transaction

    with pipeline(connection):
        # Not connection.transaction(): within a pipeline that waits for BEGIN.
        stack.enter_context(Transaction(connection))
        connection.execute(_SETTINGS, settings)


def _commit(connection: Any, stack: ExitStack, guard: Mapping[str, Any]) -> None:
    """The guard and COMMIT, in one round trip: the server skips it if the guard refuses."""
    from psycopg import Error
    from psycopg.pq import TransactionStatus

    try:
        with pipeline(connection):
            connection.execute(fencing.POSTGRES_GUARD, guard)
            stack.close()
    except Error:
        if connection.pgconn.transaction_status == TransactionStatus.INERROR:
            connection.execute("ROLLBACK")
        raise


def _session(ticket: Ticket) -> Any:
    import psycopg

    return psycopg.connect(_conninfo(ticket), autocommit=True, prepare_threshold=None)


def _level(isolation: str) -> Any:
    from psycopg import IsolationLevel

    try:
        return IsolationLevel[isolation.upper().replace(" ", "_")]
    except KeyError:
        known = ", ".join(level.name.lower().replace("_", " ") for level in IsolationLevel)
        raise FenceMisuse(f"isolation {isolation!r} is not one of {known}") from None


def _conninfo(ticket: Ticket) -> str:
    from psycopg import conninfo

    said = conninfo.conninfo_to_dict(ticket.url)
    defaults = {"connect_timeout": 3, "keepalives_idle": 2, "keepalives_interval": 2}
    added = {name: value for name, value in defaults.items() if name not in said}
    return conninfo.make_conninfo(ticket.url, **added)


def _settings(ticket: Ticket, mark: str) -> Mapping[str, str]:
    left_s = max((ticket.run_deadline - datetime.now(UTC)).total_seconds(), 1.0)
    return {
        "name": fencing.application_name(ticket.election, ticket.fence),
        "left_ms": str(min(int(left_s * 1000), 2**31 - 1)),
        "ttl_ms": str(max(int(ticket.ttl_s * 1000), 1)),
        "mark": mark,
    }


def _end(connection: Any, mark: str, ending: Ending, ticket: Ticket) -> None:
    """The ending, in one round trip, if the transaction is still the one we began, and whole; in
    one that the block began it is rolled back. Raises FenceMisuse or StaleFence."""
    from psycopg.pq import TransactionStatus

    status = connection.pgconn.transaction_status
    if status == TransactionStatus.INERROR:
        raise FenceMisuse("a statement of the block failed, and its error was swallowed")
    if status != TransactionStatus.INTRANS:
        raise _ended_behind()
    with pipeline(connection):
        marked = connection.execute(_MARK)
        goes_on = ending(connection)
    if marked.fetchone()[0] != mark:
        connection.execute("ROLLBACK")
        raise _ended_behind()
    if not goes_on():
        raise _not_ours(ticket)


def _deposed(connection: Any, ticket: Ticket) -> bool:
    """After a conflict: whether it was the raise of a newer leader."""
    row = connection.execute(
        _psycopg(fencing.SQLITE_GUARD), {"election": ticket.election}
    ).fetchone()
    return row is None or tuple(row) != (ticket.fence, ticket.nonce)


def _psycopg(text: str) -> str:
    """`:name` parameters as psycopg writes them."""
    for name in (*_NAMES, "election"):
        text = text.replace(f":{name}", f"%({name})s")
    return text


# ------------------------------------------------------------------ SQLite


@contextmanager
def _sqlite(ticket: Ticket, ending: Ending, isolation: str) -> Iterator[sqlite3.Connection]:
    """Nobody else writes from BEGIN IMMEDIATE on, so the guard may come first."""
    del isolation  # SQLite has one: serializable
    connection = _file(ticket)
    try:
        connection.execute("PRAGMA synchronous = FULL")
        connection.execute("BEGIN IMMEDIATE")
        held = connection.execute(fencing.SQLITE_GUARD, _guard_params(ticket)).fetchone()
        if held is None or tuple(held) != (ticket.fence, ticket.nonce):
            raise _refused(ticket)
        connection.set_authorizer(_no_transaction_control)
        yield connection
        connection.set_authorizer(None)
        if not connection.in_transaction:
            raise _ended_behind()
        if not ending(connection)():
            raise _not_ours(ticket)
        connection.execute("COMMIT")
    finally:
        connection.close()  # rolls back what is open


def _no_transaction_control(action: int, *_: object) -> int:
    return sqlite3.SQLITE_DENY if action == sqlite3.SQLITE_TRANSACTION else sqlite3.SQLITE_OK


def _file(ticket: Ticket) -> sqlite3.Connection:
    path = ticket.url.removeprefix("sqlite:///")
    return sqlite3.connect(path, isolation_level=None, timeout=SQLITE_BUSY_S)


def _text(at: datetime) -> str:
    """As the ledger stores times in SQLite."""
    return at.astimezone(UTC).replace(tzinfo=None).isoformat(timespec="microseconds") + "Z"


# ------------------------------------------------------------------ both


def _is_lite(connection: Any) -> bool:
    return isinstance(connection, sqlite3.Connection)


def _reading(ticket: Ticket) -> AbstractContextManager[Any]:
    """A connection to the ticket's database, outside any transaction."""
    return closing(_file(ticket) if ticket.url.startswith("sqlite:") else _session(ticket))


def _run(connection: Any, text: str, ticket: Ticket) -> Any:
    """One of the statements above, about the ticket's run."""
    params = _params(ticket, datetime.now(UTC))
    if not _is_lite(connection):
        return connection.execute(_psycopg(text), params)
    return connection.execute(
        text, {name: _text(v) if isinstance(v, datetime) else v for name, v in params.items()}
    )


def _params(ticket: Ticket, now: datetime) -> dict[str, Any]:
    return {
        "job": ticket.job,
        "scheduled_for": ticket.scheduled_for,
        "command_id": ticket.command_id,
        "attempt": ticket.attempt,
        "run_id": ticket.run_id,
        "now": now,
    }


def _guard_params(ticket: Ticket) -> dict[str, Any]:
    return {"election": ticket.election, "fence": ticket.fence, "nonce": ticket.nonce}
