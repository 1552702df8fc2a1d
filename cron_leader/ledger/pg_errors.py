"""psycopg's errors in our words, once: no definite answer, or a ledger a person has to mend.

A failed connection carries no SQLSTATE, so the server's English text is read; a server that speaks
another language is retried instead, with its words in the log.
"""

from __future__ import annotations

import re

import psycopg

from cron_leader.errors import CronLeaderError, LedgerUncertain, LedgerUnusable
from cron_leader.ledger.pg_dsn import redact

_BY_STATE = {
    "28": "check user and password in [ledger] url",
    "3D": "create the database, or correct [ledger] url",
    "42501": "grant it, or have the owner run `cron-leader db migrate --sql`",
    "42P01": "the tables are gone or not on the search_path: run `cron-leader db migrate`",
    "42883": "the guard function is gone: run `cron-leader db migrate` on a fresh schema",
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
_UNKNOWN_OUTCOME = ("08", "25P03", "25P04", "40", "53", "55", "57", "58")


def translate(error: BaseException, where: str) -> CronLeaderError:
    """The exception to raise for what psycopg, the socket or our deadline raised."""
    if isinstance(error, CronLeaderError):
        return error
    if isinstance(error, TimeoutError):
        return LedgerUncertain(f"ledger {where}: no answer in time")
    text = one_line(error)
    state = getattr(error, "sqlstate", None) or _state_from(text)
    if state is None:
        return _stateless(error, f"ledger {where}: {text}")
    if cure := _PASSING.get(state):
        return LedgerUnusable(f"ledger {where}: {text}; {cure}", permanent=False)
    if cure := _BY_STATE.get(state) or _BY_STATE.get(state[:2]):
        return LedgerUnusable(f"ledger {where}: {text}; {cure}")
    if state.startswith(_UNKNOWN_OUTCOME):
        return LedgerUncertain(f"ledger {where}: {text}")
    return LedgerUnusable(f"ledger {where}: unexpected error {state}: {text}")


def _stateless(error: BaseException, text: str) -> CronLeaderError:
    if isinstance(error, psycopg.OperationalError | psycopg.InterfaceError | OSError):
        return LedgerUncertain(text)
    return LedgerUnusable(text)


def _state_from(text: str) -> str | None:
    return next((state for pattern, state in _BY_TEXT if pattern.search(text)), None)


def one_line(error: BaseException) -> str:
    """The last thing the server or libpq said, without passwords."""
    diagnosis = getattr(error, "diag", None)
    primary = diagnosis.message_primary if diagnosis else None
    lines = [line.strip() for line in str(primary or error).splitlines() if line.strip()]
    return redact(lines[-1] if lines else type(error).__name__)
