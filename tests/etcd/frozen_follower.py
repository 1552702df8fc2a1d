"""A follower in a process of its own, to be frozen: prints each event's name, one a line."""

from __future__ import annotations

import asyncio
import sys

from cron_leader.clock import SystemClock
from cron_leader.config import EtcdConfig
from cron_leader.core.messages import Event, JoinFailed
from cron_leader.etcd.channel import Etcd
from cron_leader.etcd.election import Candidacy
from cron_leader.etcd.keys import Seat
from cron_leader.etcd.lease import NS


async def main(endpoint: str, prefix: str, fleet: str, lease: int) -> None:
    clock = SystemClock()
    done = asyncio.Event()

    def report(event: Event) -> None:
        print(type(event).__name__, getattr(event, "reason", ""), flush=True)
        if isinstance(event, JoinFailed):
            done.set()

    etcd = Etcd(EtcdConfig((endpoint,)), clock=clock, emit=lambda event, **fields: None)
    seat = Seat(
        prefix, fleet, 0, "frozen", "nonce", lease, 2 * NS, 2 * NS // 3, "ledger-1", "0", "d"
    )

    async def no_mark() -> None:
        return None

    candidacy = Candidacy(
        etcd,
        seat,
        report=report,
        clock=clock,
        emit=etcd._emit,
        may_renew=lambda: True,
        read_mark=no_mark,
        met=lambda nodes: None,
    )
    await asyncio.wait(
        {asyncio.create_task(candidacy.run()), asyncio.create_task(done.wait())},
        return_when=asyncio.FIRST_COMPLETED,
    )
    await candidacy.leave()
    await etcd.aclose()


if __name__ == "__main__":
    endpoint, prefix, fleet, lease = sys.argv[1:]
    asyncio.run(main(endpoint, prefix, fleet, int(lease)))
