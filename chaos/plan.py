"""A plan: which faults, on whom, when, for how long. Printed before a run, replayed after it.

The names of faults and targets are a closed list, the same in every world; a world says which of
them it can do. Not decided here: what a target is at the instant of the fault (the world finds out
then, and records it), what a fault does to the system (the world).
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, replace
from enum import StrEnum
from pathlib import Path
from typing import Any


class Fault(StrEnum):
    """What is done. `amount`, where it has a meaning, is given with its unit."""

    # -- the network of a node
    CUT = "cut"
    """Nothing in, nothing out."""
    CUT_OUT = "cut-out"
    """One way: the node hears, and is not heard."""
    CUT_IN = "cut-in"
    """One way: the node is heard, and does not hear."""
    CUT_ETCD = "cut-etcd"
    """From etcd only, the ledger stays in reach: the dangerous one."""
    CUT_LEDGER = "cut-ledger"
    RESET = "reset"
    """Its connections are reset, once."""
    LOSS = "loss"
    """amount: packets lost, in percent."""
    DELAY = "delay"
    """amount: milliseconds on each packet, at most; drawn anew for each (jitter)."""
    RATE = "rate"
    """amount: kilobits per second."""
    LINK_DOWN = "link-down"

    # -- its processes and clocks
    FREEZE_DAEMON = "freeze-daemon"
    FREEZE_NODE = "freeze-node"
    """Daemon, supervisor and runs."""
    KILL_DAEMON = "kill-daemon"
    KILL_SUPERVISOR = "kill-supervisor"
    KILL_NODE = "kill-node"
    """Daemon, supervisor and runs at one blow."""
    RESTART = "restart"
    """Asked to stop, and started again once it has."""
    ROLLING_RESTART = "rolling-restart"
    """So each node, one after the other."""
    SLOW = "slow"
    """amount: percent of the CPU that is left."""
    CLOCK_STEP = "clock-step"
    """amount: milliseconds that the wall clock is set forward (below 0: back), then set right."""
    CLOCK_DRIFT = "clock-drift"
    """amount: parts per million that the node's clocks go too fast."""
    CONFIG_CHANGE = "config-change"
    DISK_FULL = "disk-full"

    # -- etcd
    ETCD_KILL = "etcd-kill"
    ETCD_FREEZE = "etcd-freeze"
    ETCD_ISOLATE = "etcd-isolate"
    """A member loses its peers; its clients still reach it."""
    ETCD_MOVE_LEADER = "etcd-move-leader"
    ETCD_QUORUM_LOSS = "etcd-quorum-loss"
    ETCD_COMPACT = "etcd-compact"
    ETCD_DEFRAG = "etcd-defrag"
    ETCD_NOSPACE = "etcd-nospace"
    ETCD_RESTORE = "etcd-restore"
    """amount: milliseconds the restored snapshot is old. The ledger's fence is rebased after it."""
    LEASE_REVOKE = "lease-revoke"
    KEY_DELETE = "key-delete"
    FOREIGN_PUT = "foreign-put"

    # -- the ledger
    LEDGER_FREEZE = "ledger-freeze"
    LEDGER_RESTART = "ledger-restart"
    LEDGER_LOST_COMMIT = "ledger-lost-commit"
    """The next commits of the target are made, and their answers lost."""
    LEDGER_LATE_COPY = "ledger-late-copy"
    """The first copies of the target's next writes arrive after the second."""
    LEDGER_RESTORE = "ledger-restore"
    """amount: milliseconds the restored backup is old."""

    # -- what operators do
    ORDER = "order"
    """amount: which of ORDERS is given to the leader."""


class Target(StrEnum):
    """On whom; found out when the fault is put in, and recorded then."""

    LEADER = "leader"
    FOLLOWER = "follower"
    NEXT = "next"
    """Next in line."""
    ONE = "one"
    MINORITY = "minority"
    MAJORITY = "majority"
    ALL = "all"
    RING = "ring"
    """Each node keeps half of its ways to etcd and the ledger, another half each."""
    ETCD_LEADER = "etcd-leader"
    ETCD_MEMBER = "etcd-member"
    ETCD = "etcd"
    """The whole cluster."""
    LEDGER = "ledger"


ORDERS = ("step-down", "trigger", "pause", "resume", "backfill")
ETCD_FAULTS = frozenset(fault for fault in Fault if fault.startswith("etcd-"))
LEDGER_FAULTS = frozenset({Fault.LEDGER_FREEZE, Fault.LEDGER_RESTART, Fault.LEDGER_RESTORE})
"""Those of the ledger itself; its other faults befall one node's writes."""


@dataclass(frozen=True, slots=True)
class Move:
    """One fault. at_ms: since the start of the run; for_ms 0: an instant; amount: see Fault.

    pick: which of those that fit the target, counted round; so that a plan draws nothing later.
    """

    at_ms: int
    fault: Fault
    target: Target
    for_ms: int = 0
    amount: int = 0
    pick: int = 0

    @property
    def end_ms(self) -> int:
        return self.at_ms + self.for_ms

    def __str__(self) -> str:
        lasts = f" for {self.for_ms / 1000:g} s" if self.for_ms else ""
        amount = f" ({self.amount})" if self.amount else ""
        return f"{self.at_ms / 1000:8.3f} s  {self.fault} {self.target}{amount}{lasts}"


@dataclass(frozen=True, slots=True)
class Plan:
    """A whole run. seed also seeds what the simulated world itself draws (latencies, run times);
    luck: which of many such draws, 0 the first."""

    seed: int
    time_ms: int
    nodes: int = 3
    jobs: int = 10
    ttl_s: int = 10
    moves: tuple[Move, ...] = ()
    luck: int = 0

    def having(self, moves: Iterable[Move]) -> Plan:
        """The same run with these faults only."""
        return replace(self, moves=tuple(moves))


def show(plan: Plan) -> str:
    """For people."""
    head = (
        f"seed {plan.seed}: {plan.time_ms / 1000:g} s, {plan.nodes} nodes, {plan.jobs} jobs, "
        f"TTL {plan.ttl_s} s, {len(plan.moves)} faults" + (f", luck {plan.luck}" * bool(plan.luck))
    )
    return "\n".join([head, *map(str, plan.moves)])


def save(plan: Plan, path: Path) -> None:
    raw = asdict(plan)
    if not plan.luck:
        del raw["luck"]
    path.write_text(json.dumps(raw, indent=1) + "\n", encoding="utf-8")


def load(path: Path) -> Plan:
    """Raises ValueError or KeyError on what `save` did not write."""
    raw: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return Plan(**{**raw, "moves": tuple(map(_move, raw["moves"]))})


def _move(raw: Mapping[str, Any]) -> Move:
    return Move(**{**raw, "fault": Fault(raw["fault"]), "target": Target(raw["target"])})
