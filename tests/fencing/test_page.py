"""docs/fencing.md: its Python runs, its psql script refuses, its job loads (see tests/docs)."""

from __future__ import annotations

import sqlite3
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy
from sqlalchemy.orm import Session

from cron_leader.jobs import Tick
from cron_leader.ledger.guarded import guard_params
from tests import pg_kit
from tests.docs.blocks import ROOT, blocks
from tests.fencing.kit import table
from tests.ledger.kit import Lab

PAGE = blocks(ROOT / "docs/fencing.md")


def shown(language: str) -> list[str]:
    return [block.text for block in PAGE if block.language == language]


def test_the_functions_shown_do_what_is_said() -> None:
    names: dict[str, Any] = {}
    for text in shown("python"):
        exec(text, names)
    db = sqlite3.connect(":memory:", isolation_level=None)
    db.execute("CREATE TABLE sessions (expires_at text)")
    db.execute("CREATE TABLE totals (day text PRIMARY KEY, total integer, fence integer)")
    db.execute("INSERT INTO sessions VALUES ('2000-01-01')")
    names["expire_sessions"](Tick.for_test(transaction=db))
    assert db.execute("SELECT count(*) FROM sessions").fetchone() == (0,)
    assert names["publish"](db, "mon", 1, 7)
    assert not names["publish"](db, "mon", 2, 6)
    db.close()


async def test_a_late_commit_of_sqlalchemys_is_refused_and_one_under_the_raised_fence_is_not(
    pglab: Lab,
) -> None:
    names: dict[str, Any] = {}
    for shown_text in shown("python"):
        exec(shown_text, names)
    leaders = [await pglab.leader(node) for node in ("a", "b")]
    late, current = (replace(Tick.for_test(), _guard=guard_params(by.term)) for by in leaders)
    engine = sqlalchemy.create_engine(pglab.url.replace("postgresql://", "postgresql+psycopg://"))
    insert = sqlalchemy.text("INSERT INTO kit_orm VALUES (1)")
    with table(pglab, "kit_orm", "n integer") as user:
        try:
            with names["fenced"](Session(engine), late) as session:
                session.execute(insert)
                with pytest.raises(sqlalchemy.exc.DBAPIError) as told:
                    session.commit()
            assert told.value.orig.sqlstate == "CL001"
            assert user.execute("SELECT count(*) FROM kit_orm").fetchone() == (0,)
            with names["fenced"](Session(engine), current) as session:
                session.execute(insert)
                session.commit()
            assert user.execute("SELECT count(*) FROM kit_orm").fetchone() == (1,)
        finally:
            engine.dispose()


async def test_the_psql_script_commits_under_the_raised_fence_and_not_under_an_older(
    pglab: Lab, tmp_path: Path
) -> None:
    psql = [f / "psql" for f in pg_kit.installed().values() if (f / "psql").exists()]
    if not psql:
        pytest.skip("psql is not on this machine")
    (script,) = shown("sql")
    (tmp_path / "purge.sql").write_text(script)
    old = (await pglab.leader("a")).fence
    new = (await pglab.leader("b")).fence

    def run(fence: int) -> int:
        words = ["-X", "-q", "-v", "ON_ERROR_STOP=1", "-v", f"fence={fence}", "-f", "purge.sql"]
        return subprocess.run(
            [psql[0], *words, pglab.url], cwd=tmp_path, capture_output=True
        ).returncode

    with table(pglab, "sessions", "expires_at timestamptz") as user:
        user.execute("INSERT INTO sessions VALUES ('2000-01-01')")
        assert run(old) != 0
        assert user.execute("SELECT count(*) FROM sessions").fetchone() == (1,)
        assert run(new) == 0
        assert user.execute("SELECT count(*) FROM sessions").fetchone() == (0,)
