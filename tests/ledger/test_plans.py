"""What looks back, and what retention asks for, is found by an index: the database's own plans."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from cron_leader.core.model import State
from cron_leader.ledger import retention
from cron_leader.ledger.migrate import migration_sql
from cron_leader.ledger.retention import Kept, Surplus
from cron_leader.ledger.sql import Dialect, queries, to_array, to_text
from cron_leader.ledger.views import Reader, Wanted, open_reader
from cron_leader.upkeep import YOUNGEST
from tests import pg_kit

from .kit import ELECTION, T0

ROWS = 20_000
JOBS = 50
TABLES = ("cron_leader_slot", "cron_leader_attempt", "cron_leader_refusal", "cron_leader_command")
OLD = T0 - timedelta(minutes=ROWS // JOBS - 2)

FILL = """
INSERT INTO cron_leader_slot (job, scheduled_for, command_id, election, fence, node, state, origin,
    attempt, run_id, finished_at)
SELECT 'job-' || (n % {jobs}), {at}, '', 'default/0', n / 100, 'a',
    CASE WHEN n % 500 = 0 THEN 'failed' ELSE 'succeeded' END, 'schedule', 1, 'r' || n, {at}
FROM {numbers};
INSERT INTO cron_leader_attempt (job, scheduled_for, command_id, attempt, run_id, fence, node,
    state, started_at)
SELECT job, scheduled_for, command_id, 1, run_id, fence, node, state, scheduled_for
FROM cron_leader_slot;
INSERT INTO cron_leader_job (job, election, first_seen, effective_from, digest)
SELECT 'job-' || n, 'default/0', {at}, {at}, 'd' FROM {numbers} WHERE n < {jobs};
INSERT INTO cron_leader_refusal (at, election, fence, node, what)
SELECT {at}, 'default/0', 1, 'a', 'claim' FROM {numbers};
INSERT INTO cron_leader_command (id, kind, target, args, who, at, result)
SELECT 'c' || n, 'step-down', 'default/0', '', 'op', {at}, 'x' FROM {numbers};
ANALYZE
"""


def _fill(reader: Reader, numbers: str, at: str) -> None:
    for statement in FILL.format(jobs=JOBS, at=at, numbers=numbers).split(";"):
        text = statement if reader._database.dialect is Dialect.SQLITE else _doubled(statement)
        reader._database.run(text, {})


def _doubled(statement: str) -> str:
    return statement.replace("%", "%%")


@pytest.fixture(scope="module", params=["sqlite", "postgres"])
def full(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Reader]:
    """A ledger of some size, its statistics known."""
    if request.param == "sqlite":
        path = tmp_path_factory.mktemp("plans") / "ledger.db"
        yield from _sqlite(path)
        return
    servers: dict[int, pg_kit.Postgres] = request.getfixturevalue("servers")
    if not servers:
        pytest.skip("no Postgres on this machine")
    server = servers[max(servers)]
    with server.database() as url:
        server.run(migration_sql(url), database=url.rpartition("/")[2])
        with open_reader(url) as reader:
            numbers = f"generate_series(0, {ROWS} - 1) AS s(n)"
            at = f"timestamptz '{T0.isoformat()}' - (n / {JOBS}) * interval '1 minute'"
            _fill(reader, numbers, at)
            yield reader


def _sqlite(path: Path) -> Iterator[Reader]:
    import sqlite3

    with closing(sqlite3.connect(path)) as made:
        made.executescript(migration_sql("sqlite:"))
    with open_reader(f"sqlite:///{path}") as reader:
        first = to_text(T0)
        numbers = (
            "(WITH RECURSIVE s(n) AS (SELECT 0 UNION ALL SELECT n + 1 FROM s "
            f"WHERE n < {ROWS} - 1) SELECT n FROM s)"
        )
        at = f"strftime('%Y-%m-%dT%H:%M:%S.000000Z', '{first}', '-' || (n / {JOBS}) || ' minutes')"
        _fill(reader, numbers, at)
        yield reader


def plans(reader: Reader, look: Callable[[Reader], object]) -> list[str]:
    """The plan of every statement that a look sends, instead of its rows."""
    real, found = reader._database, []
    sqlite = real.dialect is Dialect.SQLITE

    class Explaining:
        dialect = real.dialect

        def run(self, text: str, params: Any) -> Sequence[Mapping[str, Any]]:
            how = "EXPLAIN QUERY PLAN " if sqlite else "EXPLAIN "
            found.extend(
                str(row["detail" if sqlite else "QUERY PLAN"])
                for row in real.run(how + text, params)
            )
            return real.run(text, params)

        def close(self) -> None: ...

    look(Reader(Explaining()))
    return found


def scanned(plan: Sequence[str]) -> list[str]:
    """The steps that read a whole table (SQLite: SCAN x, but USING an index it stops in time)."""
    return [
        line
        for line in plan
        if any(f"Seq Scan on {table}" in line or f"SCAN {table}" in line for table in TABLES)
        and " USING " not in line.replace("Seq Scan", "")
    ]


def _read(query: str, params: Any) -> Callable[[Reader], object]:
    return lambda reader: reader._database.run(
        queries(reader._database.dialect)[query].text, params
    )


def _trim(query: str) -> Callable[[Reader], object]:
    """Ten rows that there are not."""
    keys = [(f"gone-{n}", T0, "") for n in range(10)]

    def look(reader: Reader) -> object:
        known = queries(reader._database.dialect)[query]
        columns = zip(known.columns, zip(*keys, strict=True), strict=True)
        batch = json.dumps([[to_text(value) for value in key] for key in keys])
        arrays = {name: to_array(values) for name, values in columns}
        return reader._database.run(known.text, {**arrays, "batch": batch})

    return look


LOOKS: dict[str, Callable[[Reader], object]] = {
    "history": lambda r: r.history(Wanted(), limit=20),
    "history of a job": lambda r: r.history(Wanted(job="job-7"), limit=20),
    "history of what failed": lambda r: r.history(Wanted(states=(State.FAILED,)), limit=20),
    "history of what runs": lambda r: r.history(Wanted(states=(State.RUNNING,)), limit=20),
    "history of a node": lambda r: r.history(Wanted(node="a"), limit=20),
    "history of a term": lambda r: r.history(Wanted(fence=3), limit=20),
    "history of a day": lambda r: r.history(Wanted(since=OLD, until=T0), limit=20),
    "attempts": lambda r: r.attempts_of(r.history(Wanted(job="job-7"), limit=20)),
    "gaps": lambda r: r.gap_history(Wanted(), limit=20),
    "why: slots": lambda r: r.slots_at("job-7", T0),
    "why: oldest": lambda r: r.first_slot("job-7"),
    "why: refusals": lambda r: r.refusals_between(T0, T0, limit=10),
    "why: orders": lambda r: r.commands_between(T0, T0, limit=10),
    "status": lambda r: r.last_slots(),
    "expired slots": _read(*retention.expired(ELECTION, Kept.SLOTS, OLD)),
    "expired refusals": _read(*retention.expired(ELECTION, Kept.REFUSALS, OLD)),
    "expired orders": _read(*retention.expired(ELECTION, Kept.COMMANDS, OLD)),
    "expired jobs": _read(*retention.expired(ELECTION, Kept.JOBS, OLD)),
    "expired slots of a job": _read(
        *retention.expired(ELECTION, Kept.SLOTS, T0 - YOUNGEST, Surplus("job-7", OLD))
    ),
    "slots to trim": _trim("trim_slots"),
    "attempts to trim": _trim("trim_attempts"),
    "surplus": _read(*retention.surplus(ELECTION, "", 100)),
}


@pytest.mark.parametrize("look", LOOKS)
def test_it_is_found_by_an_index(full: Reader, look: str) -> None:
    plan = plans(full, LOOKS[look])
    assert plan
    assert scanned(plan) == [], "\n".join(plan)


def test_the_check_sees_a_table_that_is_read_whole(full: Reader) -> None:
    text = "SELECT job FROM cron_leader_slot WHERE run_id = 'x'"
    assert scanned(plans(full, lambda r: r._database.run(text, {})))
