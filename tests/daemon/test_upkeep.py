"""A real leader deletes what retention lets go, and ticks on."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

from cron_leader.etcd.embedded import EmbeddedEtcd
from cron_leader.ledger import open_ledger
from cron_leader.ledger.sql import to_text
from cron_leader.ledger.views import open_reader
from tests.kit import BEAT, now, town, until

OLD = timedelta(hours=2)


async def test_a_leader_deletes_old_slots_and_the_slots_of_today_stay(
    tmp_path: Path, etcd: EmbeddedEtcd
) -> None:
    more = 'retention = "1h"\nkeep = "off"'  # of [ledger], the last table before it
    async with town(tmp_path, etcd.endpoint, jobs=BEAT, more=more) as place:
        ledger = open_ledger(place.ledger)
        await ledger.open(fleet=place.name, shards=1, migrate=True)
        await ledger.close()
        old = to_text(now() - OLD)
        with open_reader(place.ledger) as reader:
            reader._database.run(
                "INSERT INTO cron_leader_slot (job, scheduled_for, command_id, election, fence, "
                "node, state, origin, attempt, finished_at) VALUES "
                f"('beat', '{old}', '', '{place.name}/0', 1, 'z', 'succeeded', 'schedule', 1, "
                f"'{old}')",
                {},
            )
            await place.lead("a")
            ran = await place.says("run.finished", since=now() - OLD)
            await until("the old slot is gone", lambda: not _of(place.slots("beat"), "z"))
            assert ran.fields["scheduled_for"] in {
                to_text(row.scheduled_for) for row in place.slots("beat")
            }


def _of(rows: list, node: str) -> list:  # type: ignore[type-arg]
    return [row for row in rows if row.node == node]
