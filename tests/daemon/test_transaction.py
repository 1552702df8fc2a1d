"""`tick.transaction()` in a real fleet: the effect and the slot's success are one commit."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

from cron_leader.etcd.embedded import EmbeddedEtcd
from tests.kit import now, town

MODULE = """
from cron_leader import Tick, job

@job(every="1s", delivery="at-least-once")
def count(tick: Tick) -> None:
    with tick.transaction() as db:
        db.execute("CREATE TABLE IF NOT EXISTS effects (slot text PRIMARY KEY)")
        db.execute("INSERT INTO effects VALUES (?)", (tick.scheduled_for.isoformat(),))
    raise RuntimeError("after the commit")
"""


async def test_what_fails_after_its_commit_has_succeeded_and_is_done_once(
    tmp_path: Path, etcd: EmbeddedEtcd
) -> None:
    (tmp_path / "effects_job.py").write_text(MODULE)
    async with town(tmp_path, etcd.endpoint, jobs='[jobs]\nmodules = ["effects_job"]') as place:
        since = now()
        await place.lead("a", since=since)
        await place.says("run.finished", job="count", since=since)
        await place.fleet.stop()
        with closing(sqlite3.connect(place.ledger.removeprefix("sqlite:///"))) as db:
            (effects,) = db.execute("SELECT count(*) FROM effects").fetchone()
        ended = [slot for slot in place.slots("count") if slot.attempt]
        assert {slot.state for slot in ended} == {"succeeded"}
        assert effects == len(ended)
        assert "after the commit" in (place.attempts("count")[0].error or "")
