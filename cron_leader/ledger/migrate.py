"""Forward-only migrations: which there are, which a ledger needs, and who a ledger belongs to.

All that is missing is one transaction with the version it leads to: it is there, or it is not. A
migration only adds (columns that may be NULL, tables, indexes, functions of other names): nodes of
the release before, which look at the version when they start and not again, go on beside it. One
that starts later is refused. Not promised: a way back.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from cron_leader.core.model import LedgerId
from cron_leader.errors import LedgerUnusable
from cron_leader.ledger.sql import Dialect

POSTGRES_LOCK = "SELECT pg_advisory_xact_lock(hashtextextended('cron_leader:migrate', 0))"
"""First in a migration: nodes that start at once, and people with the SQL, take turns."""

POSTGRES_PATIENCE = "SET LOCAL lock_timeout = '1s'"
"""Then: a change that waits for somebody's long transaction holds up the leader's writes behind it,
so it is given up long before a TTL, and tried again."""

FOLDER = Path(__file__).with_name("migrations")


def migrations(dialect: Dialect, *, since: int = 0) -> tuple[str, ...]:
    """The SQL of every migration after schema version `since`, in order (version = number)."""
    files = sorted(FOLDER.glob(f"*.{dialect.value}.sql"))
    return tuple(f.read_text(encoding="utf-8") for f in files if _number(f) > since)


def newest(dialect: Dialect) -> int:
    """The schema version this program writes."""
    return max(_number(f) for f in FOLDER.glob(f"*.{dialect.value}.sql"))


def _number(file: Path) -> int:
    return int(file.name.partition("_")[0])


def migration_sql(url: str, *, since: int = 0) -> str:
    """One script, one transaction: for people who let no program run DDL (`db migrate --sql`).

    A comment if the ledger has all of it. For psql, and for `sqlite3 -bail` (which otherwise goes
    on after an error, and would commit what succeeded).
    """
    dialect = Dialect.SQLITE if url.startswith("sqlite:") else Dialect.POSTGRES
    if not (wanted := migrations(dialect, since=since)):
        return "-- up to date: nothing to do\n"
    if dialect is Dialect.SQLITE:
        return "\n".join(("BEGIN IMMEDIATE;\n", *wanted, "COMMIT;\n"))
    head = f"BEGIN;\n{POSTGRES_LOCK};\n{POSTGRES_PATIENCE};\n"
    return "\n".join((head, *wanted, "COMMIT;\n"))


def check_version(found: int | None, dialect: Dialect, *, where: str) -> bool:
    """Whether the schema is current; None: there is none. Raises LedgerUnusable if newer."""
    known = newest(dialect)
    if found is not None and found > known:
        raise LedgerUnusable(
            f"ledger {where} has schema {found}, this program knows {known}: upgrade cron-leader"
        )
    return found == known


def not_migrated(found: int | None, *, where: str) -> LedgerUnusable:
    state = "has no cron_leader tables" if found is None else f"has the old schema {found}"
    return LedgerUnusable(
        f"ledger {where} {state}: run `cron-leader db migrate` (with --sql it prints the SQL for "
        "whoever may), or set [ledger] migrate = true"
    )


def check_owner(found: LedgerId, *, fleet: str, shards: int, where: str) -> LedgerId:
    """The ledger's identity, if it is this fleet's. Raises LedgerUnusable."""
    if found.fleet != fleet:
        raise LedgerUnusable(
            f"ledger {where} belongs to fleet {found.fleet!r}, this node is of {fleet!r}: "
            "give each fleet a ledger (database, schema or file) of its own"
        )
    if found.shards != shards:
        raise LedgerUnusable(
            f"ledger {where} records shards = {found.shards}, this node has shards = {shards}: "
            "all nodes of a fleet need the same [fleet] shards"
        )
    return found


def identity_of(rows: Sequence[Mapping[str, Any]]) -> LedgerId:
    """The one row of cron_leader_meta. Raises LedgerUnusable if somebody deleted it."""
    if not rows:
        raise LedgerUnusable("cron_leader_meta is empty: restore the ledger, or start a new one")
    row = rows[0]
    return LedgerId(row["ledger_id"], row["fleet"], row["shards"], row["schema_version"])
