"""The heartbeat that goes ahead of a slot.

After a quiet second everything on a claim's way has gone to rest: processors and their caches, the
connection, the disk. A term's heartbeat goes the same way, and goes each second in any case; so it
goes just before a slot, early enough to be answered by then, and the claim finds all of it awake.

Not promised: anything. A slot ahead of which no heartbeat went is claimed in the same way, later by
a millisecond or two.
"""

from __future__ import annotations

from collections import deque
from datetime import timedelta

MILLISECOND_NS = 1_000_000
LEAST_NS = 2 * MILLISECOND_NS
MOST_NS = 10 * MILLISECOND_NS
"""A ledger that needs longer would be busy with the heartbeat when the claim comes."""
REMEMBERED = 8
"""Heartbeats: the slowest of them says how early the next has to go. One that is late holds the
claim up, and one that is early leaves the ledger time to go to rest again."""
AWAKE_NS = 20 * MILLISECOND_NS
"""So long after a heartbeat there is no need of another."""
APART_NS = 250 * MILLISECOND_NS
"""Between two that go ahead: many slots a second keep all awake, and the disk busy enough."""


class Ahead:
    """When the heartbeat of one term has to go to be ahead of a slot."""

    def __init__(self) -> None:
        self._sent_ns = self._ahead_ns = 0
        self._took_ns: deque[int] = deque(maxlen=REMEMBERED)

    def sent(self, boot_ns: int) -> None:
        """A heartbeat goes, whatever for."""
        self._sent_ns = boot_ns

    def called(self, boot_ns: int) -> None:
        """One goes because a slot is near."""
        self._ahead_ns = boot_ns

    def answered(self, boot_ns: int) -> None:
        """It was answered; the next one may take as long."""
        self._took_ns.append(boot_ns - self._sent_ns)

    def lead(self, boot_ns: int, left: timedelta) -> timedelta | None:
        """How long before a slot that is `left` away the heartbeat goes; None: none goes ahead."""
        if not self._took_ns:
            return None
        lead_ns = max(LEAST_NS, *self._took_ns)
        lead = timedelta(microseconds=lead_ns // 1000)
        if lead_ns > MOST_NS or left <= lead:
            return None
        goes_ns = boot_ns + (left - lead) // timedelta(microseconds=1) * 1000
        rested = goes_ns - self._sent_ns >= AWAKE_NS and goes_ns - self._ahead_ns >= APART_NS
        return lead if rested else None
