"""May this node be counted on? In line it stands by; leading, it must tick."""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING

from cron_leader.core.standing import Phase

if TYPE_CHECKING:
    from cron_leader.daemon import Snapshot


class Unready(StrEnum):
    """Why not. The values are a contract."""

    STARTING = "starting"
    STOPPING = "stopping"
    NOT_IN_LINE = "not_in_line"
    NOT_TICKING = "not_ticking"
    ETCD = "etcd_unreachable"
    LEDGER = "ledger_unreachable"


def unready(seen: Snapshot, *, etcd_up: bool, ledger_up: bool) -> tuple[Unready, ...]:
    """Everything that speaks against it; empty: ready."""
    own = _standing(seen)
    if own in (Unready.STARTING, Unready.STOPPING):
        return (own,)
    checks = ((own, own), (not etcd_up, Unready.ETCD), (not ledger_up, Unready.LEDGER))
    return tuple(reason for wrong, reason in checks if wrong and reason)


def _standing(seen: Snapshot) -> Unready | None:
    match seen.phase:
        case None:
            return Unready.STARTING
        case _ if seen.gate.stopping or seen.phase is Phase.STOPPED:
            return Unready.STOPPING
        case Phase.LEADING if seen.closed is None:
            return None
        case Phase.JOINING if seen.boot_ns < seen.gate.deadline_ns:
            return None
        case Phase.RAISING | Phase.SETTLING | Phase.LEADING:
            return Unready.NOT_TICKING
        case _:
            return Unready.NOT_IN_LINE
