"""psycopg's errors in our words, once: no definite answer, or a ledger a person has to mend.

A failed connection carries no SQLSTATE, so the server's English text is read; a server that speaks
another language is retried instead, with its words in the log.
"""

from __future__ import annotations

import re

import psycopg

from cron_leader.errors import (
    CronLeaderError,
    LedgerNotCommitted,
    LedgerUncertain,
    LedgerUnusable,
)
from cron_leader.ledger.pg_dsn import redact

_BY_STATE = {
    "28": "check user and password in [ledger] url",
    "3D": "create the database, or correct [ledger] url",
    "42501": "grant it, or have the owner run `cron-leader db migrate --sql`",
    "42P01": "the tables are gone or not on the search_path: run `cron-leader db migrate`",
    "42883": "a function of the ledger is gone: run `cron-leader db migrate` on a fresh schema",
    "3F": "create the schema, or correct the search_path of the role",
}
_PASSING = {
    "53100": "the disk of the database is full: free space",
    "25006": "the server is read-only (a standby?): point [ledger] url at the primary",
}
_BY_TEXT = (
    (re.compile(r"password authentication failed|no password supplied|pg_hba\.conf"), "28"),
    (re.compile(r"role .* does not exist"), "28"),
    (re.compile(r"database .* does not exist"), "3D"),
    (re.compile(r"permission denied for database"), "42501"),
)
_ROLLED_BACK = ("25P03", "25P04", "40001", "40P01", "53", "55", "57014")
_UNKNOWN_OUTCOME = ("08", "40", "57", "58")


def translate(error: BaseException, where: str, *, sent: bool = True) -> CronLeaderError:
    """The exception to raise for what psycopg, the socket or our deadline raised.

    sent: whether there was a connection for it to be sent on.
    """
    if isinstance(error, CronLeaderError):
        return error
    unknown = LedgerUncertain if sent else LedgerNotCommitted
    if isinstance(error, TimeoutError):
        return unknown(f"ledger {where}: no answer in time")
    text = one_line(error)
    state = getattr(error, "sqlstate", None) or _state_from(text)
    if state is None:
        is_passing = isinstance(error, psycopg.OperationalError | psycopg.InterfaceError | OSError)
        return (unknown if is_passing else LedgerUnusable)(f"ledger {where}: {text}")
    if cure := _PASSING.get(state):
        return LedgerUnusable(f"ledger {where}: {text}; {cure}", permanent=False)
    if cure := _BY_STATE.get(state) or _BY_STATE.get(state[:2]):
        return LedgerUnusable(f"ledger {where}: {text}; {cure}")
    if state.startswith(_ROLLED_BACK):
        return LedgerNotCommitted(f"ledger {where}: {text}")
    if state.startswith(_UNKNOWN_OUTCOME):
        return unknown(f"ledger {where}: {text}")
    return LedgerUnusable(f"ledger {where}: unexpected error {state}: {text}")


def _state_from(text: str) -> str | None:
    return next((state for pattern, state in _BY_TEXT if pattern.search(text)), None)


def one_line(error: BaseException) -> str:
    """The last thing the server or libpq said, without passwords."""
    diagnosis = getattr(error, "diag", None)
    primary = diagnosis.message_primary if diagnosis else None
    lines = [line.strip() for line in str(primary or error).splitlines() if line.strip()]
    return redact(lines[-1] if lines else type(error).__name__)
