"""`tick.transaction()` in a real fleet: the effect and the slot's success are one commit."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

from cron_leader.etcd.embedded import EmbeddedEtcd
from cron_leader.fencing.ddl import target_ddl
from tests.kit import now, town, until

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
        told = await place.says("run.finished", job="count", since=since)
        assert told.fields["outcome"] == "succeeded", "as the ledger has it"
        assert "after the commit" in str(told.fields["error"])
        await place.fleet.stop()
        with closing(sqlite3.connect(place.ledger.removeprefix("sqlite:///"))) as db:
            (effects,) = db.execute("SELECT count(*) FROM effects").fetchone()
        ended = [slot for slot in place.slots("count") if slot.attempt]
        assert {slot.state for slot in ended} == {"succeeded"}
        assert effects == len(ended)
        assert "after the commit" in (place.attempts("count")[0].error or "")


TWICE = """
import time
from pathlib import Path
from cron_leader import Tick, job
from cron_leader.fencing import StaleFence

@job(every="1s", on_lost_leadership="finish")
def report(tick: Tick) -> None:
    folder = Path(__file__).parent
    with tick.transaction(target="reports") as db:
        db.execute("INSERT INTO effects VALUES ('first', ?)", (tick.fence,))
    (folder / f"written-{tick.fence}").touch()
    while not (folder / "deposed").exists():
        time.sleep(0.01)
    try:
        with tick.transaction(target="reports") as db:
            db.execute("INSERT INTO effects VALUES ('late', ?)", (tick.fence,))
    except StaleFence:
        (folder / f"refused-{tick.fence}").touch()
"""


async def test_a_fence_target_refuses_a_run_of_a_deposed_leader_once_the_next_one_has_its_gate_open(
    tmp_path: Path, etcd: EmbeddedEtcd
) -> None:
    (tmp_path / "twice_job.py").write_text(TWICE)
    target = tmp_path / "reports.db"
    target_table = f'[[fence_target]]\nname = "reports"\nurl = "sqlite:///{target}"\n'
    jobs = f'{target_table}[jobs]\nmodules = ["twice_job"]'
    with closing(sqlite3.connect(target, isolation_level=None)) as reports:
        reports.execute("CREATE TABLE effects (which text, fence integer)")
        async with town(tmp_path, etcd.endpoint, jobs=jobs) as place, place.hand() as hand:
            since = now()
            await place.fleet.start("a")
            away = await place.says("ledger.unreachable", node="a", since=since)
            assert "fence target reports" in str(away.fields["error"])
            for statement in target_ddl(lite=True):
                reports.execute(statement)
            await place.says("ledger.back", node="a", since=since)
            opened = await place.says("gate.opened", node="a", since=since)
            old = opened.fields["fence"]
            assert reports.execute("SELECT fence FROM cron_leader_fence").fetchone() == (old,)
            await until("the first write", (tmp_path / f"written-{old}").exists)
            await place.follow("b")
            since = now()
            await hand.delete((await place.line_of(2))[0])
            new = (await place.says("gate.opened", node="b", since=since)).fields["fence"]
            (tmp_path / "deposed").touch()
            await until("the refusal", (tmp_path / f"refused-{old}").exists)
            late = reports.execute("SELECT fence FROM effects WHERE which = 'late'").fetchall()
            assert (old,) not in late
            assert reports.execute("SELECT fence FROM cron_leader_fence").fetchone() == (new,)
