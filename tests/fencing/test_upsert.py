"""`fenced_upsert`, with no daemon and no ledger: any table that has a key and a fence column."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from cron_leader.fencing import FenceMisuse, fenced_upsert
from tests.fencing.kit import table
from tests.ledger.kit import Lab

TABLE = "kit_rows"
KEY = {"day": "2026-03-01", "shop": 7}


@pytest.fixture
def db(lab: Lab) -> Iterator[Any]:
    columns = "day text, shop integer, total integer, fence bigint, UNIQUE (day, shop)"
    with table(lab, TABLE, columns) as user:
        yield user


def total(db: Any) -> int:
    return int(db.execute(f"SELECT total FROM {TABLE}").fetchone()[0])


def test_one_leader_writes_twice_and_an_older_one_never_again(db: Any) -> None:
    assert fenced_upsert(db, TABLE, KEY, {"total": 1}, 5)
    assert fenced_upsert(db, TABLE, KEY, {"total": 2}, 5)
    assert fenced_upsert(db, TABLE, KEY, {"total": 3}, 6)
    assert not fenced_upsert(db, TABLE, KEY, {"total": 4}, 5)
    assert total(db) == 3


def test_a_row_without_a_fence_is_older_than_any(db: Any) -> None:
    db.execute(f"INSERT INTO {TABLE} VALUES ('2026-03-01', 7, 1, NULL)")
    assert fenced_upsert(db, TABLE, KEY, {"total": 2}, 0)
    assert total(db) == 2


@pytest.mark.parametrize("fence", [-1, 2**63, True, "5", 1.0, None])
def test_a_fence_that_is_no_bigint_is_refused(db: Any, fence: Any) -> None:
    with pytest.raises(FenceMisuse, match="no whole number"):
        fenced_upsert(db, TABLE, KEY, {"total": 1}, fence)


def test_the_largest_fence_is_taken(db: Any) -> None:
    assert fenced_upsert(db, TABLE, KEY, {"total": 1}, 2**63 - 1)


@pytest.mark.parametrize(
    ("key", "values", "text"),
    [
        ({}, {"total": 1}, "key is empty"),
        (KEY, {}, "values is empty"),
        (KEY, {"fence": 9}, "fence is given twice"),
        (KEY, {"shop": 8}, "shop is given twice"),
        ({"shop": 7}, {"total": 1}, "unique index on the key is missing"),
        (KEY, {"totl": 1}, "a column is missing"),
    ],
)
def test_what_does_not_fit_the_table_is_told_with_the_cure(
    db: Any, key: Any, values: Any, text: str
) -> None:
    with pytest.raises(FenceMisuse, match=text):
        fenced_upsert(db, TABLE, key, values, 1)


def test_a_table_without_a_fence_column_is_told_which_command_makes_one(db: Any) -> None:
    with pytest.raises(FenceMisuse, match="cron-leader fence ddl kit_rows"):
        fenced_upsert(db, TABLE, KEY, {"total": 1}, 1, column="epoch")


def test_a_table_that_is_not_there_is_told(db: Any) -> None:
    with pytest.raises(FenceMisuse, match="no such table"):
        fenced_upsert(db, "kit_nowhere", KEY, {"total": 1}, 1)


@pytest.mark.parametrize(
    "name",
    [
        "kit_rows; DROP TABLE kit_rows",
        "kit_rows AS x",
        "kit_rows--",
        '"kit_rows',
        "",
        "a.b.c",
        "kit rows",
        'kit_rows" (day) VALUES (1); --',
    ],
)
def test_a_name_that_is_none_reaches_no_database(db: Any, name: str) -> None:
    with pytest.raises(FenceMisuse, match="is no name"):
        fenced_upsert(db, name, KEY, {"total": 1}, 1)


def test_a_column_named_to_inject_is_a_column_that_is_missing(db: Any) -> None:
    with pytest.raises(FenceMisuse, match="a column is missing"):
        fenced_upsert(db, TABLE, KEY, {'total" = 1; DROP TABLE kit_rows; --%s': 1}, 1)
    db.execute(f"SELECT 1 FROM {TABLE}")


def test_quoted_and_qualified_names_are_taken(db: Any, lab: Lab) -> None:
    schema = "main" if lab.is_sqlite else "public"
    odd = '"Kit; ""odd"" %s"'
    db.execute(f'CREATE TABLE {odd} (id integer PRIMARY KEY, "Per %" integer, fence bigint)')
    try:
        assert fenced_upsert(db, f"{schema}.{odd}", {"id": 1}, {"Per %": 50}, 3)
        assert not fenced_upsert(db, odd, {"id": 1}, {"Per %": 60}, 2)
        assert db.execute(f'SELECT "Per %" FROM {odd}').fetchone()[0] == 50
    finally:
        db.execute(f"DROP TABLE {odd}")


def test_an_unquoted_name_is_read_as_the_database_reads_it(db: Any) -> None:
    assert fenced_upsert(db, "KIT_ROWS", KEY, {"total": 1}, 1)


def test_it_stays_in_the_callers_transaction(db: Any) -> None:
    db.execute("BEGIN")
    assert fenced_upsert(db, TABLE, KEY, {"total": 1}, 1)
    db.execute("ROLLBACK")
    assert db.execute(f"SELECT count(*) FROM {TABLE}").fetchone()[0] == 0
