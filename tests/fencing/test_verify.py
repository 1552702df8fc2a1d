"""`fence ddl`, `fence verify`: a guarded table passes, an unguarded one fails, no row changes."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest

from cron_leader.cli import main
from tests.fencing.kit import connect, table
from tests.ledger.kit import ELECTION, Lab

TABLE = "kit_totals"


@pytest.fixture
def db(lab: Lab) -> Iterator[Any]:
    with table(lab, TABLE, "day text PRIMARY KEY, total integer") as user:
        yield user
    if not lab.is_sqlite:
        lab.sql("DROP FUNCTION IF EXISTS cron_leader_fenced()")


@pytest.fixture
def config(lab: Lab, tmp_path: Path) -> list[str]:
    path = tmp_path / "cron-leader.toml"
    path.write_text(f'[ledger]\nurl = "{lab.url}"\n')
    assert ELECTION == "default/0"
    return ["--config", str(path)]


def statements(config: list[str], capsys: Any, *words: str) -> list[str]:
    capsys.readouterr()
    assert main(["fence", "ddl", TABLE, *words, "--json", *config]) == 0
    found: list[str] = json.loads(capsys.readouterr().out)["statements"]
    return found


async def raised(lab: Lab) -> int:
    return (await lab.leader("a")).fence


async def test_a_table_with_the_trigger_passes_and_keeps_its_rows(
    lab: Lab, db: Any, config: list[str], capsys: Any, thread: Any
) -> None:
    fence = await raised(lab)
    for statement in statements(config, capsys, "--trigger", "--key", "day"):
        db.execute(statement)
    db.execute(f"INSERT INTO {TABLE} VALUES ('mon', 1, {fence})")
    assert await thread(main, ["fence", "verify", TABLE, *config]) == 0
    assert "refused the stale fence" in capsys.readouterr().out
    assert db.execute(f"SELECT day, total, fence FROM {TABLE}").fetchall() == [("mon", 1, fence)]


async def test_the_trigger_refuses_a_deposed_leaders_new_key_and_a_forgotten_where(
    lab: Lab, db: Any, config: list[str], capsys: Any
) -> None:
    old = await raised(lab)
    for statement in statements(config, capsys, "--trigger"):
        db.execute(statement)
    db.execute(f"INSERT INTO {TABLE} VALUES ('mon', 1, {old})")
    new = await raised(lab)
    for stale in (
        f"INSERT INTO {TABLE} VALUES ('tue', 1, {old})",
        f"INSERT INTO {TABLE} (day, total) VALUES ('tue', 1)",
        f"UPDATE {TABLE} SET total = 2",
    ):
        with pytest.raises(Exception, match="cron_leader: "):
            db.execute(stale)
    db.execute(f"UPDATE {TABLE} SET total = 2, fence = {new}")
    assert db.execute(f"SELECT day, total, fence FROM {TABLE}").fetchall() == [("mon", 2, new)]


async def test_a_table_without_the_trigger_fails_and_is_told_the_cure(
    lab: Lab, db: Any, config: list[str], capsys: Any, thread: Any
) -> None:
    fence = await raised(lab)
    for statement in statements(config, capsys):
        db.execute(statement)
    db.execute(f"INSERT INTO {TABLE} VALUES ('mon', 1, 0)")
    assert await thread(main, ["fence", "verify", TABLE, *config]) == 1
    assert f"fence ddl {TABLE} --trigger" in capsys.readouterr().out
    assert db.execute(f"SELECT fence FROM {TABLE}").fetchone()[0] == 0 < fence


async def test_the_ledger_itself_passes(
    lab: Lab, config: list[str], capsys: Any, thread: Any
) -> None:
    await raised(lab)
    assert await thread(main, ["fence", "verify", "--json", *config]) == 0
    assert json.loads(capsys.readouterr().out)["guarded"] is True


async def test_the_ledger_fails_when_its_guard_is_gone(
    lab: Lab, config: list[str], capsys: Any, thread: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    await raised(lab)
    if lab.is_sqlite:
        text = "SELECT :fence AS fence, :nonce AS nonce WHERE :election <> ''"
        monkeypatch.setattr("cron_leader.fencing.SQLITE_GUARD", text)
    else:
        text = "SELECT 1, clock_timestamp() AS ledger_now"
        monkeypatch.setattr("cron_leader.fencing.POSTGRES_GUARD", text)
    assert await thread(main, ["fence", "verify", *config]) == 1
    assert "ACCEPTED" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("table", "text", "code"),
    [
        (TABLE, "fence", 1),
        ("kit_nowhere", "kit_nowhere", 1),
        ("x; DROP TABLE kit_totals", "is no name", 2),
    ],
)
async def test_what_cannot_be_tried_is_an_error_with_the_reason(
    lab: Lab, db: Any, config: list[str], capsys: Any, thread: Any, table: str, text: str, code: int
) -> None:
    await raised(lab)
    db.execute(f"INSERT INTO {TABLE} VALUES ('mon', 1)")
    assert await thread(main, ["fence", "verify", table, *config]) == code
    (told,) = capsys.readouterr().err.splitlines()
    assert told.startswith("error: ")
    assert text in told


@pytest.mark.parametrize("words", [["x; DROP TABLE y"], ["a.b.c"], [""], [TABLE, "--key", "a,,b"]])
def test_ddl_for_what_is_no_name_is_bad_usage_told_in_one_line(
    tmp_path: Path, capsys: Any, words: list[str]
) -> None:
    path = tmp_path / "cron-leader.toml"
    path.write_text("")
    assert main(["fence", "ddl", *words, "--config", str(path)]) == 2
    said = capsys.readouterr()
    assert said.out == ""
    (told,) = said.err.splitlines()
    assert told.startswith("error: fence ddl: ")
    assert "is no name" in told


async def test_a_quoted_and_qualified_table_is_fenced_and_a_row_without_a_fence_refused_there(
    lab: Lab, config: list[str], capsys: Any, thread: Any
) -> None:
    """A name that would inject SQL, were it not quoted."""
    fence = await raised(lab)
    odd = ("main." if lab.is_sqlite else "public.") + '"Kit; DROP TABLE ""x"" --"'
    ddl = ["fence", "ddl", odd, "--trigger", "--key", 'Per "day"', "--json", *config]
    with connect(lab.url) as user:
        try:
            user.execute(f'CREATE TABLE {odd} ("Per ""day""" text)')
            capsys.readouterr()
            assert await thread(main, ddl) == 0
            for statement in json.loads(capsys.readouterr().out)["statements"]:
                user.execute(statement)
            user.execute(f"INSERT INTO {odd} VALUES ('mon', {fence})")
            for statement in (
                f"INSERT INTO {odd} VALUES ('tue', NULL)",
                f"UPDATE {odd} SET fence = NULL",
                f"INSERT INTO {odd} VALUES ('mon', {fence})",
            ):
                with pytest.raises((sqlite3.IntegrityError, psycopg.errors.Error)):
                    user.execute(statement)
            assert await thread(main, ["fence", "verify", odd, *config]) == 0
            assert user.execute(f"SELECT * FROM {odd}").fetchall() == [("mon", fence)]
        finally:
            user.execute(f"DROP TABLE IF EXISTS {odd}")
            if not lab.is_sqlite:
                user.execute("DROP FUNCTION IF EXISTS cron_leader_fenced()")


INSERT_OPEN = {
    True: "DROP TRIGGER kit_totals_cron_leader_fenced_insert",
    False: "ALTER TABLE kit_totals DISABLE TRIGGER cron_leader_fenced; "
    "CREATE CONSTRAINT TRIGGER half AFTER UPDATE ON kit_totals "
    "DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION cron_leader_fenced('default/0')",
}


async def test_a_trigger_on_updates_alone_lets_an_insert_through_and_that_is_told(
    lab: Lab, db: Any, config: list[str], capsys: Any, thread: Any
) -> None:
    fence = await raised(lab)
    for statement in statements(config, capsys, "--trigger", "--key", "day"):
        db.execute(statement)
    db.execute(f"INSERT INTO {TABLE} VALUES ('mon', 1, {fence})")
    for statement in INSERT_OPEN[lab.is_sqlite].split("; "):
        db.execute(statement)
    assert await thread(main, ["fence", "verify", TABLE, "--json", *config]) == 1
    said = json.loads(capsys.readouterr().out)
    assert said["accepted"] == ["INSERT"]
    assert "accepted the stale fence" in said["text"]
    assert db.execute(f"SELECT day, total, fence FROM {TABLE}").fetchall() == [("mon", 1, fence)]


async def test_a_row_that_cannot_be_inserted_anew_is_told_and_the_rest_is_tried(
    pglab: Lab, tmp_path: Path, capsys: Any, thread: Any
) -> None:
    """A generated column, an identity and a child row are no obstacle, ON DELETE RESTRICT is."""
    fence = await raised(pglab)
    path = tmp_path / "cron-leader.toml"
    path.write_text(f'[ledger]\nurl = "{pglab.url}"\n')
    verify = ["fence", "verify", TABLE, "--config", str(path)]
    with connect(pglab.url) as user:
        try:
            user.execute(
                f"CREATE TABLE {TABLE} (id integer GENERATED ALWAYS AS IDENTITY PRIMARY KEY, "
                "twice integer GENERATED ALWAYS AS (2 * total) STORED, total integer)"
            )
            for statement in statements(["--config", str(path)], capsys, "--trigger"):
                user.execute(statement)
            user.execute(f"INSERT INTO {TABLE} (total, fence) VALUES (1, {fence})")
            user.execute(f"CREATE TABLE kit_child AS SELECT id FROM {TABLE}")
            child = f"ALTER TABLE kit_child ADD CONSTRAINT of FOREIGN KEY (id) REFERENCES {TABLE}"
            user.execute(child)
            assert await thread(main, verify) == 0
            assert "by UPDATE and INSERT" in capsys.readouterr().out
            user.execute("ALTER TABLE kit_child DROP CONSTRAINT of")
            user.execute(f"{child} ON DELETE RESTRICT")
            assert await thread(main, verify) == 0
            assert "by UPDATE; INSERT could not be tried: " in capsys.readouterr().out
            assert user.execute(f"SELECT id, twice, fence FROM {TABLE}").fetchall() == [
                (1, 2, fence)
            ]
        finally:
            user.execute(f"DROP TABLE IF EXISTS kit_child, {TABLE}")
            user.execute("DROP FUNCTION IF EXISTS cron_leader_fenced()")


async def test_before_the_first_raise_there_is_nothing_to_verify(
    lab: Lab, config: list[str], capsys: Any, thread: Any
) -> None:
    assert await thread(main, ["fence", "verify", *config]) == 1
    assert "no leader has raised" in capsys.readouterr().err
