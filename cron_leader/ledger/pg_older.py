"""Who stands in a raise's way on Postgres: transactions of older terms, whose clients froze or are
about to be refused. The raise waits a moment, then has the server end them, again and again.

Not promised: that our role may. Whom it may not end, or cannot see, the server ends by the timeouts
that the transaction has set for itself.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

from cron_leader import fencing
from cron_leader.errors import CronLeaderError
from cron_leader.ledger.pg_sessions import Sessions

T = TypeVar("T")

LOOK_S = 0.1
"""After this long without an answer another connection looks whether the database is alive."""

PATIENCE_S = 0.1
"""After this long more, and then each time, what waits ends the backends of older terms."""

ASK_S = 3.0
"""What it may take to ask for their end."""

_END = """
SELECT a.pid, pg_terminate_backend(a.pid) AS ended
FROM pg_stat_activity AS a JOIN pg_roles AS r ON r.oid = a.usesysid
WHERE a.datname = current_database() AND a.pid <> pg_backend_pid()
    AND CASE WHEN a.application_name ~ %(pattern)s
        THEN split_part(a.application_name, ':', 3)::numeric < {fence}
        ELSE false END
    AND a.application_name <> %(own)s
    AND (pg_has_role(a.usesysid, 'MEMBER') OR pg_has_role('pg_signal_backend', 'MEMBER'))
    AND (NOT r.rolsuper OR (SELECT m.rolsuper FROM pg_roles AS m WHERE m.rolname = current_user))
"""
_END_BELOW = _END.format(fence="%(fence)s::bigint")
_END_BELOW_REVISION = _END.format(
    fence="""%(fence)s + coalesce((
            SELECT f."offset" FROM cron_leader_fence AS f WHERE f.election = %(election)s), 0)"""
)


async def until_known(
    raising: asyncio.Task[Any],
    waiting: Callable[[], None],
    answers: Callable[[], Awaitable[bool]],
    *,
    within_s: float,
) -> None:
    """Return once it is done, or is known to wait in a database that answers others: then `waiting`
    is called. Raises TimeoutError."""
    async with asyncio.timeout(within_s):
        while not (await asyncio.wait({raising}, timeout=LOOK_S))[0]:
            if await answers():
                waiting()
                return


async def push_past(waits: asyncio.Task[T], end_older: Callable[[], Awaitable[None]]) -> T:
    """The task's answer; whoever of the older terms may hold it up is ended again and again."""
    while not (await asyncio.wait({waits}, timeout=PATIENCE_S))[0]:
        await end_older()
    return waits.result()


async def end_older(
    sessions: Sessions, election: str, *, revision: int = 0, fence: int | None = None
) -> None:
    """Have the server end the transactions of this election below `fence`, or (in a ledger) below
    what `revision` will be. The name that tells them is theirs for the transaction only. Best
    effort."""
    number = revision if fence is None else fence
    params = {
        "election": election,
        "pattern": f"^cron_leader:{election}:[0-9]+$",
        "fence": number,
        "own": fencing.application_name(election, number),
    }
    text = _END_BELOW_REVISION if fence is None else _END_BELOW
    with contextlib.suppress(CronLeaderError):
        async with sessions.session(ASK_S) as connection:
            await connection.execute(text.encode(), params)
