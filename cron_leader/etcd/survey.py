"""What etcd says of a fleet, for people: who stands in line, which nodes, which ledger."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from cron_leader.etcd import requests
from cron_leader.etcd.channel import Etcd
from cron_leader.etcd.keys import ledger_key, line_prefix, nodes_prefix

SURVEY_S = 3.0


@dataclass(frozen=True, slots=True)
class Standing:
    """One candidate. revision: its key's create_revision; started_at: RFC 3339, as it wrote it."""

    node: str
    lease: int
    revision: int
    pid: int | None
    started_at: str | None


@dataclass(frozen=True, slots=True)
class NodeInfo:
    """What a node says of itself."""

    node: str
    lease: int
    version: str
    digest: str
    handlers: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Survey:
    """candidates: the leader, then in order of succession. ledger_id None: none stored yet.

    revision: etcd's own; the next candidate's key gets a greater one.
    """

    candidates: tuple[Standing, ...]
    nodes: tuple[NodeInfo, ...]
    ledger_id: str | None
    revision: int


async def survey(etcd: Etcd, prefix: str, fleet: str, shard: int) -> Survey:
    """Three linearizable reads; raises as Etcd.call does."""
    line = await _read(etcd, requests.get_prefix(line_prefix(prefix, fleet, shard)))
    nodes = await _read(etcd, requests.get_prefix(nodes_prefix(prefix, fleet)))
    ledger = await _read(etcd, requests.get(ledger_key(prefix, fleet)))
    in_line = sorted((kv for kv in line.kvs if kv.lease), key=lambda kv: kv.create_revision)
    return Survey(
        tuple(_standing(kv) for kv in in_line),
        tuple(node_of(kv) for kv in nodes.kvs),
        ledger.kvs[0].value.decode(errors="replace") if ledger.kvs else None,
        line.header.revision,
    )


async def _read(etcd: Etcd, request: Any) -> Any:
    return await etcd.call("KV/Range", request, timeout_s=SURVEY_S)


def _standing(kv: Any) -> Standing:
    said = _fields(kv.value)
    return Standing(
        str(said.get("node", "?")),
        kv.lease,
        kv.create_revision,
        said.get("pid"),
        said.get("started_at"),
    )


def node_of(kv: Any) -> NodeInfo:
    """What stands under a key of nodes_prefix."""
    said = _fields(kv.value)
    return NodeInfo(
        str(said.get("node", "?")),
        kv.lease,
        str(said.get("version", "?")),
        str(said.get("digest", "?")),
        tuple(said.get("handlers", ())),
    )


def _fields(value: bytes) -> dict[str, Any]:
    """The JSON object in `value`; empty if somebody wrote something else there."""
    try:
        said = json.loads(value)
    except ValueError:
        return {}
    return said if isinstance(said, dict) else {}
