"""A `@job` function's transaction, through the job host: its process, its ticket, its row."""

from __future__ import annotations

from pathlib import Path

from cron_leader.core.model import Run
from cron_leader.runners.context import LedgerAccess
from tests.fencing.kit import running, table
from tests.ledger.kit import Lab
from tests.runners.stage import Prepared, python, stage

MODULE = """
import os

def writes(tick):
    with tick.transaction() as db:
        db.execute("INSERT INTO kit_effects VALUES (1)")
    assert tick.guard["fence"] == tick.fence and tick.guard["nonce"] and tick.guard["election"]
    print(sorted(k for k, v in os.environ.items() if "nonce" in v or "://" in v))

async def waits(tick):
    with tick.transaction() as db:
        db.execute("INSERT INTO kit_effects VALUES (1)")
"""


async def test_a_python_run_writes_under_its_fence_and_its_environment_tells_nothing(
    lab: Lab, tmp_path: Path
) -> None:
    (tmp_path / "digests.py").write_text(MODULE)
    leader, claim = await running(lab)
    access = LedgerAccess(lab.url, 10.0)
    with table(lab, "kit_effects", "n integer") as user:
        job = python("digests:writes", name=claim.slot.job)
        async with stage(job, base=tmp_path, ledger=access) as s:
            run = Run(claim.run_id, claim.slot, 1, leader.term, job)
            s.runners.prepare(run)
            await s.until(Prepared, run)
            s.go(run)
            ended = await s.result(run)
            late = await s.play(job)
        assert (ended.error, ended.output) == (None, "[]\n")
        assert lab.states() == {claim.slot: "succeeded"}
        assert "StaleFence" in (late.error or ""), "another term's run"
        assert user.execute("SELECT count(*) FROM kit_effects").fetchone()[0] == 1


async def test_a_run_without_a_ledger_is_told_so(tmp_path: Path) -> None:
    (tmp_path / "digests.py").write_text(MODULE)
    job = python("digests:waits")
    async with stage(job, base=tmp_path) as s:
        ended = await s.play(job)
    assert "given no ledger" in (ended.error or "")
