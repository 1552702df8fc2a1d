"""Tenants on one full node, with real runs: whose turn it is, and what a full pool records."""

from __future__ import annotations

from datetime import datetime
from pathlib import Path

from cron_leader.etcd.embedded import EmbeddedEtcd
from tests.kit import Town, town, until

TENANTS = """
[run]
max_parallel = 2
drain = "0s"

[[group]]
name = "acme"
max_parallel = 1

[[job]]
name = "acme-long"
every = "1s"
shell = "exec sleep 60"
grace = "0s"
group = "acme"
priority = 9

[[job]]
name = "acme-waits"
every = "1s"
shell = ":"
group = "acme"

[[job]]
name = "acme-skips"
every = "1s"
shell = ":"
group = "acme"
when_full = "skip"

[[job]]
name = "globex"
every = "500ms"
shell = ":"
group = "globex"
overlap = "queue"

[[job]]
name = "urgent"
every = "1s"
shell = ":"
priority = 5
overlap = "queue"
"""
BULK = """
[[job]]
name = "bulk-{}"
every = "200ms"
shell = "exec sleep 0.1"
group = "bulk"
overlap = "queue"
"""
BULKY = [BULK.format(n) for n in range(4)]


def starts(place: Town, job: str) -> list[tuple[datetime, datetime]]:
    """When its slots fell due, and when their runs had started; in that order."""
    lines = place.fleet.timeline.all("run.started", job=job)
    due = ((datetime.fromisoformat(str(line.fields["scheduled_for"])), line.at) for line in lines)
    return sorted(due, key=lambda each: each[1])


def turns(place: Town, job: str) -> list[tuple[datetime, datetime]]:
    """From when on a slot was its tenant's next one to when its run had started."""
    found = starts(place, job)
    before = [found[0][0], *(began for _, began in found)]
    return [(max(due, last), began) for (due, began), last in zip(found, before, strict=False)]


async def test_a_tenant_waits_for_one_run_of_another_and_a_full_pool_holds_up_its_own_jobs_only(
    tmp_path: Path, etcd: EmbeddedEtcd
) -> None:
    """acme's one place is taken for good; the node's other one is contended for by 20 runs a second
    of a tenant with a backlog, and a few of two that have none."""
    async with town(tmp_path, etcd.endpoint, jobs=TENANTS + "".join(BULKY)) as place:
        opened = await place.lead("a")
        full = await place.says("slot.skipped", since=opened.at, job="acme-skips")
        assert full.fields["reason"] == "limit"

        def contended() -> bool:
            return min(len(starts(place, job)) for job in ("globex", "urgent")) >= 3

        await until("turns of those without a backlog", contended)
        waiting = [row for row in place.slots() if row.state == "due"]
        assert len([row for row in waiting if row.job.startswith("bulk")]) > 5
        assert {row.attempt for row in waiting if row.job == "acme-waits"} == {0}
        assert not starts(place, "acme-waits")
        assert len(starts(place, "acme-long")) == 1
        bulk = [at for n in range(4) for _, at in starts(place, f"bulk-{n}")]
        for job, most in (("urgent", 1), ("globex", 2)):
            before = [sum(since < at < began for at in bulk) for since, began in turns(place, job)]
            assert sorted(before)[len(before) // 2] <= most, (job, before)
