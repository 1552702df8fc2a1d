"""Names and values of a fleet's keys in etcd. Others may read them; their form is a contract.

    <prefix>/<fleet>/elections/<shard>/<lease>   a candidate's place in line   JSON, on its lease
    <prefix>/<fleet>/nodes/<lease>               what a node is                JSON, on its lease
    <prefix>/<fleet>/ledger                      the id of the fleet's ledger  text, no lease
    <prefix>/<fleet>/raised/<shard>              the fence raised last         JSON, no lease

<lease> is the lease's id as 16 hex digits, as etcdctl prints it.
"""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from datetime import datetime

from cron_leader.core.model import Rollback
from cron_leader.etcd.lease import hex_id
from cron_leader.events import timestamp


@dataclass(frozen=True, slots=True)
class Seat:
    """Who stands for what. nonce: of the term hoped for; lease: drawn by us, told before the grant.

    ttl_ns: whole seconds, asked of etcd; renew_ns <= ttl_ns / 3. version, digest and handlers are
    for the other nodes to read. rollback: what this node does with a ledger that went back.
    """

    prefix: str
    fleet: str
    shard: int
    node: str
    nonce: str
    lease: int
    ttl_ns: int
    renew_ns: int
    ledger_id: str
    version: str
    digest: str
    handlers: tuple[str, ...] = ()
    rollback: Rollback = Rollback.REFUSE

    @property
    def place_key(self) -> bytes:
        """The own key: its create_revision is the fence's base."""
        return line_prefix(self.prefix, self.fleet, self.shard) + hex_id(self.lease).encode()

    @property
    def node_key(self) -> bytes:
        return nodes_prefix(self.prefix, self.fleet) + hex_id(self.lease).encode()

    @property
    def ledger_key(self) -> bytes:
        return ledger_key(self.prefix, self.fleet)

    @property
    def raised_key(self) -> bytes:
        return raised_key(self.prefix, self.fleet, self.shard)

    @property
    def line(self) -> bytes:
        return line_prefix(self.prefix, self.fleet, self.shard)

    def place_value(self, started_at: datetime) -> bytes:
        return _json(
            node=self.node, nonce=self.nonce, pid=os.getpid(), started_at=timestamp(started_at)
        )

    def raised_value(self, fence: int, timeline: str | None, known: datetime | None) -> bytes:
        """known: the planned_to of a ledger that was away; there only then."""
        away = {} if known is None else {"planned_to": known.isoformat()}
        return _json(
            fence=fence,
            nonce=self.nonce,
            ledger_id=self.ledger_id,
            timeline=timeline,
            **away,
        )

    def node_value(self) -> bytes:
        return _json(
            node=self.node,
            version=self.version,
            digest=self.digest,
            handlers=list(self.handlers),
            state="candidate",
        )


def line_prefix(prefix: str, fleet: str, shard: int) -> bytes:
    return f"{prefix}/{fleet}/elections/{shard}/".encode()


def nodes_prefix(prefix: str, fleet: str) -> bytes:
    return f"{prefix}/{fleet}/nodes/".encode()


def ledger_key(prefix: str, fleet: str) -> bytes:
    return f"{prefix}/{fleet}/ledger".encode()


def raised_key(prefix: str, fleet: str, shard: int) -> bytes:
    return f"{prefix}/{fleet}/raised/{shard}".encode()


def _json(**fields: object) -> bytes:
    return json.dumps(fields, separators=(",", ":")).encode()
