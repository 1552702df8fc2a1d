"""What a node shows over HTTP: health, readiness, metrics, and the fleet's status.

Off unless `[http] listen` is set; until then nothing of it is imported. It only looks on: nothing
it does changes what the node decides, and none of its work is done where the node's loop would
have to wait for it. Not promised: a defence against those who may reach the port; it is bounded
in connections, their age and the size of a request, and no more. Keep it inside.
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING

from cron_leader.errors import ConfigError

if TYPE_CHECKING:
    from cron_leader.clock import Clock
    from cron_leader.config import Config
    from cron_leader.daemon import Daemon
    from cron_leader.events import Emitter

EXTRA = 'pip install "cron-leader[dashboard]"'


@contextlib.asynccontextmanager
async def serving(
    config: Config, daemon: Daemon, *, clock: Clock, emit: Emitter
) -> AsyncIterator[None]:
    """Serve on `[http] listen` from here to the end of the block; nothing if it is not set.

    Raises ConfigError if the extra is not installed, or the address cannot be had.
    """
    if config.http is None:
        yield
        return
    try:
        from cron_leader.web import server
    except ModuleNotFoundError as error:
        if (error.name or "").startswith("cron_leader"):
            raise
        raise ConfigError(
            f"[http] listen: serving needs the extra dashboard, and {error.name} is not "
            f"installed: {EXTRA}; or take [http] out"
        ) from error
    async with server.serving(config, config.http, daemon, clock=clock, emit=emit):
        yield
