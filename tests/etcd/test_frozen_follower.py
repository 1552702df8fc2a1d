"""A follower frozen past its TTL must never lead with the key it once had."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from pathlib import Path

from cron_leader.core.messages import WatchOpened
from cron_leader.etcd.keys import line_prefix
from cron_leader.etcd.lease import hex_id
from tests.etcd_kit import PREFIX, Fleet, Hand

LEASE = 0x5EED
SCRIPT = Path(__file__).with_name("frozen_follower.py")


async def test_a_follower_frozen_past_its_ttl_never_leads_with_its_dead_key(
    fleet: Fleet, hand: Hand
) -> None:
    leader = fleet.join("a")
    await leader.until(WatchOpened)
    follower = await asyncio.create_subprocess_exec(
        sys.executable,
        str(SCRIPT),
        fleet.endpoints[0],
        PREFIX,
        fleet.name,
        str(LEASE),
        stdout=asyncio.subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": str(SCRIPT.parents[2])},
    )
    key = line_prefix(PREFIX, fleet.name, 0) + hex_id(LEASE).encode()
    try:
        await hand.until_there(key)
        follower.send_signal(signal.SIGSTOP)
        await hand.until_gone(key)
        await leader.leave()
        follower.send_signal(signal.SIGCONT)
        async with asyncio.timeout(15):
            printed, _ = await follower.communicate()
    finally:
        if follower.returncode is None:
            follower.kill()
            await follower.wait()
    lines = [line.strip() for line in printed.decode().splitlines()]
    assert "JoinFailed lease_lost" in lines
    assert "Elected" not in lines
