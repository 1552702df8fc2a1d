"""Whether a fleet's nodes agree on their configuration, as each says of itself in etcd.

Looked at by the node that gets in line, in the same transaction that puts its key: of two nodes
that differ, the later one sees the other. Nobody asks in between, and a difference that ends is not
told.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable

from cron_leader.etcd.survey import NodeInfo
from cron_leader.events import Emit

NAMED = 10
"""So many nodes are named at most, for each configuration that differs."""


class Drift:
    """Tells of each other configuration in the fleet, once while it is there.

    node: our own name; what stands under it is of an earlier life of ours. digest: our own.
    """

    def __init__(self, node: str, digest: str, *, emit: Emit) -> None:
        self._node, self._digest, self._emit = node, digest, emit
        self._told: set[str] = set()

    def met(self, nodes: Iterable[NodeInfo]) -> None:
        """These are the nodes of the fleet, as we got in line."""
        others = defaultdict(list)
        for it in nodes:
            if it.node != self._node and it.digest != self._digest:
                others[it.digest].append(it.node)
        for digest in sorted(others.keys() - self._told):
            nodes_so = sorted(others[digest])[:NAMED]
            self._emit("config.drifted", digest=self._digest, other=digest, nodes=nodes_so)
        self._told = set(others)
