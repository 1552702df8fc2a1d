"""May this process start a run now?

The gate is open only while the lease deadline lies ahead AND the own key is watched and untouched
AND this term's raise succeeded AND the past is settled. The deadline counts from the instant a
renewal was *sent*: the server cannot have started the lease's TTL earlier, so a reply that comes
late is worth less, never more. Not promised: that nothing happens between asking and acting (a
process may freeze there); the ledger's fence refuses what such a run writes.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from enum import StrEnum


class CloseReason(StrEnum):
    """Why the gate is closed; the first that applies, in the order of `Gate.closed`."""

    DEADLINE = "deadline"
    WATCH = "watch"
    NOT_RAISED = "not_raised"
    NOT_SETTLED = "not_settled"
    CLOCK_JUMP = "clock_jump"
    CLOCK_SKEW = "clock_skew"
    STOPPING = "stopping"
    SUPERVISOR = "supervisor"


@dataclass(frozen=True, slots=True)
class Gate:
    """One term's gate; a new term starts with a new one, all closed.

    deadline_ns, sent_ns, jumped_ns: boot clock. sent_ns: when the newest acknowledged renewal was
    sent. jumped_ns: when the wall clock last jumped, None once leadership was proven again.
    """

    deadline_ns: int = 0
    sent_ns: int = 0
    watching: bool = False
    raised: bool = False
    settled: bool = False
    jumped_ns: int | None = None
    skewed: bool = False
    stopping: bool = False
    unsupervised: bool = False
    shut: CloseReason | None = field(init=False, compare=False)
    """The first reason that does not depend on the time: it is asked for far oftener than a gate
    changes."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "shut", self._shut())

    def _shut(self) -> CloseReason | None:
        if not self.watching:
            return CloseReason.WATCH
        if not self.raised:
            return CloseReason.NOT_RAISED
        if not self.settled:
            return CloseReason.NOT_SETTLED
        if self.jumped_ns is not None:
            return CloseReason.CLOCK_JUMP
        if self.skewed:
            return CloseReason.CLOCK_SKEW
        if self.stopping:
            return CloseReason.STOPPING
        return CloseReason.SUPERVISOR if self.unsupervised else None

    def closed(self, boot_ns: int) -> CloseReason | None:
        """The first reason not to start a run at boot_ns, or None: the gate is open."""
        return CloseReason.DEADLINE if boot_ns >= self.deadline_ns else self.shut

    def renewed(self, sent_ns: int, ttl_ns: int, margin_ns: int) -> Gate:
        """After a reply to a renewal sent at sent_ns. An older request's reply changes nothing."""
        if sent_ns < self.sent_ns:
            return self
        return replace(self, sent_ns=sent_ns, deadline_ns=sent_ns + ttl_ns - margin_ns)

    def verified(self, sent_ns: int) -> Gate:
        """After a linearizable read of the own key, sent at sent_ns, found it untouched.

        Ends a clock jump if both the read and a renewal were sent after it.
        """
        if self.jumped_ns is None or min(sent_ns, self.sent_ns) < self.jumped_ns:
            return self
        return replace(self, jumped_ns=None)
