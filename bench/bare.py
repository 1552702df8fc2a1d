"""What figures are compared with: an interpreter that does nothing, and a first call to etcd."""

from __future__ import annotations

import subprocess
import sys
import time

from bench.figures import median

# What any client of etcd in Python pays before its first answer.
_CALL = """
import asyncio, sys
import grpc
from cron_leader.etcd.stubs import rpc
async def main():
    async with grpc.aio.insecure_channel(sys.argv[1]) as channel:
        await rpc.KVStub(channel).Range(rpc.RangeRequest(key=b"x"))
asyncio.run(main())
"""


def interpreter(times: int) -> float:
    """ms of `python -c pass`."""
    return command([sys.executable, "-c", "pass"], times)


def first_call(endpoint: str, times: int) -> float:
    """ms of an interpreter that imports gRPC and reads one key."""
    return command([sys.executable, "-c", _CALL, endpoint], times)


def command(argv: list[str], times: int) -> float:
    """Median ms from spawn to exit 0; one run more, not counted, warms the caches."""
    samples = []
    for _ in range(times + 1):
        began = time.perf_counter()
        subprocess.run(argv, check=True, capture_output=True)
        samples.append((time.perf_counter() - began) * 1e3)
    return median(samples[1:])
