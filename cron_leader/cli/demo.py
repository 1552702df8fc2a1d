"""`demo`: the promise shown on this machine in under a minute."""

from __future__ import annotations

from typing import Annotated

import typer


def demo(
    keep: Annotated[bool, typer.Option("--keep", help="Leave the fleet up until Ctrl-C.")] = False,
) -> int:
    """Three nodes on a real etcd: kill, freeze and replace the leader, then count the slots."""
    import asyncio

    from cron_leader.demo import main

    return asyncio.run(main(keep=keep))
