"""Where a node stands, why its terms end, and the durations it keeps: the words of node.py."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum

from cron_leader.core.dispatch import Pool
from cron_leader.core.gate import CloseReason
from cron_leader.core.value import value


class Phase(StrEnum):
    """Where the node stands; the values are shown by `status`."""

    OUT = "out of line"
    PROBING = "probing"
    JOINING = "in line"
    RAISING = "raising"
    SETTLING = "settling"
    LEADING = "leading"
    CLOSING = "closing"
    LEAVING = "leaving"
    STOPPED = "stopped"


class EndReason(StrEnum):
    """Why a term ended (event term.ended)."""

    RESIGNED = "resigned"
    STOPPING = "stopping"
    LEASE_LOST = "lease_lost"
    KEY_DELETED = "key_deleted"
    KEY_OVERWRITTEN = "key_overwritten"
    DEADLINE = "deadline"
    REFUSED = "refused"
    LEDGER_UNREACHABLE = "ledger_unreachable"
    RAISE_FAILED = "raise_failed"
    WRONG_LEDGER = "wrong_ledger"
    STUCK = "stuck"
    SUPERVISOR_GONE = "supervisor_gone"
    HISTORY = "history"


SHUT_BY: Mapping[EndReason, CloseReason] = {
    EndReason.STOPPING: CloseReason.STOPPING,
    EndReason.RESIGNED: CloseReason.STOPPING,
    EndReason.LEASE_LOST: CloseReason.DEADLINE,
    EndReason.KEY_DELETED: CloseReason.WATCH,
    EndReason.KEY_OVERWRITTEN: CloseReason.WATCH,
    EndReason.DEADLINE: CloseReason.DEADLINE,
    EndReason.STUCK: CloseReason.DEADLINE,
    EndReason.REFUSED: CloseReason.NOT_RAISED,
    EndReason.LEDGER_UNREACHABLE: CloseReason.NOT_SETTLED,
    EndReason.SUPERVISOR_GONE: CloseReason.SUPERVISOR,
}
"""What shuts the gate when a term ends so; the other ends come before it has opened."""

UNRECORDED = frozenset(
    {EndReason.REFUSED, EndReason.LEDGER_UNREACHABLE, EndReason.RAISE_FAILED, EndReason.HISTORY}
)
"""Ends that the ledger already refuses, or cannot be told."""


@value
class Limits:
    """Durations of one node. margin_ns is what the deadline lies before the lease's own end."""

    ttl_ns: int
    margin_ns: int
    drain_s: float
    max_clock_skew_s: float
    pool: Pool
