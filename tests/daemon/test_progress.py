"""A leader that does not come round gives the post up, and says why."""

from __future__ import annotations

from pathlib import Path

from cron_leader.etcd.embedded import EmbeddedEtcd
from tests.kit import now, town, until

TTL_S = 2
BLOCKED_S = 2 * TTL_S + 1

BLOCKING = f"""
import pathlib, time
async def once(tick):
    mark = pathlib.Path(__file__).with_name("blocked")
    if not mark.exists():
        mark.write_text(tick.node)
        time.sleep({BLOCKED_S})
"""
JOBS = '[[job]]\nname = "block"\nevery = "1s"\npython = "blocking:once"\nisolation = "inline"\n'


async def test_a_loop_blocked_by_an_inline_job_loses_the_post_on_purpose_and_says_stuck(
    tmp_path: Path, etcd: EmbeddedEtcd
) -> None:
    (tmp_path / "blocking.py").write_text("async def once(tick): pass\n")
    async with town(tmp_path, etcd.endpoint, jobs=JOBS, ttl=f"{TTL_S}s") as place:
        (tmp_path / "blocking.py").write_text(BLOCKING)
        opened = await place.lead("a")
        await place.fleet.start("b")
        await until("blocked", (tmp_path / "blocked").exists)
        since = now()
        successor = await place.says("gate.opened", since=since, node="b")
        assert (successor.at - since).total_seconds() < 2 * TTL_S + 1
        ended = await place.says("term.ended", since=since, node="a")
        assert ended.at > successor.at  # it was asleep when it was succeeded
        assert ended.fields["reason"] == "stuck"
        assert ended.fields["fence"] == opened.fields["fence"]
        lagged = await place.says("loop.lagged", since=since, node="a")
        assert lagged.fields["lag_ms"] > TTL_S * 1000
        assert lagged.fields["ttl_ms"] == TTL_S * 1000
        await place.says("term.campaigning", since=ended.at, node="a")
        lost = [row for row in place.slots("block") if row.state == "abandoned"]
        assert [(row.node, row.reason) for row in lost] == [("a", "lost_leadership")]
