"""The world of network namespaces: etcd members, one Postgres and the nodes, each on a host of its
own behind one switch. Root only; must be entered through `contain.enter`. Scenarios are played in
`Netns`, plans at `site`.

It promises real packets, real processes and one clock. Not other machines: one kernel, one disk.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self

from chaos import workloads
from chaos.faults.packets import has_netem
from chaos.op import History, OneClock
from chaos.workloads import FLEET, PREFIX, Workload
from chaos.worlds import contain, hosts
from chaos.worlds.network import PacketNetwork
from chaos.worlds.nodes import Launcher, Node, Place
from chaos.worlds.rig import Site, Wanted, services_at
from chaos.worlds.services import EtcdCluster, Postgres, find_etcd, seat
from chaos.worlds.witnesses import EtcdWitness, LedgerWitness
from cron_leader.ledger import open_ledger

NODES = {"a": "n1", "b": "n2", "c": "n3"}
MEMBERS = ("e1", "e2", "e3")
ADDRESSES = {
    **{name: f"10.77.0.{11 + i}" for i, name in enumerate(MEMBERS)},
    "pg": "10.77.0.20",
    **{name: f"10.77.0.{31 + i}" for i, name in enumerate(NODES.values())},
}
SCRATCH = Path("/run/chaos")
"""On the private tmpfs: gone with the namespaces."""


@dataclass(frozen=True, slots=True)
class Setting:
    """What a world is made for. launch: how a node's program is started. election_ms: etcd's
    election timeout, ten heartbeats; every_ms: between two slots of each job."""

    out: Path
    ttl_s: int
    launch: Launcher
    election_ms: int = 1000
    every_ms: int = workloads.EVERY_MS


class Netns:
    """Use as a context manager: services are up and the ledger is migrated on entry; on exit the
    nodes are stopped and the witnesses have testified."""

    def __init__(self, setting: Setting, history: History, clock: OneClock) -> None:
        self.setting, self.history, self.clock = setting, history, clock
        self.nodes: dict[str, Node] = {}

    def __enter__(self) -> Self:
        contain.prepare()
        SCRATCH.mkdir()
        self.hosts = hosts.build(ADDRESSES)
        out = self.setting.out
        self._workload = Workload(effects=out / "effects.jsonl", release=SCRATCH / "release")
        self._etcd = EtcdCluster([seat(self.hosts[name]) for name in MEMBERS], SCRATCH, out)
        election_ms = self.setting.election_ms
        self._etcd.start(heartbeat_ms=election_ms // 10, election_ms=election_ms)
        postgres = Postgres(self.hosts["pg"], SCRATCH, out)
        postgres.start()
        self._watch(postgres)
        self._place = Place(out, self._configure(postgres), self.history, self.clock)
        return self

    def _watch(self, postgres: Postgres) -> None:
        asyncio.run(_migrate(postgres.url))
        by_address = {ADDRESSES[host]: node for node, host in NODES.items()}
        self._ledger_witness = LedgerWitness(postgres.url, by_address, self.clock)
        self._ledger_witness.install()
        place = (self.history, self.clock)
        elections = f"{PREFIX}/{FLEET}/elections/"
        self._etcd_witness = EtcdWitness(self._etcd.endpoints, elections, place)
        self._etcd_witness.start()

    def _configure(self, postgres: Postgres) -> Path:
        path = self.setting.out / "cron-leader.toml"
        endpoints = self._etcd.endpoints
        text = self._workload.config(
            endpoints=endpoints,
            ledger=postgres.url,
            ttl_s=self.setting.ttl_s,
            every_ms=self.setting.every_ms,
        )
        path.write_text(text, encoding="utf-8")
        return path

    def host_of(self, node: str) -> hosts.Host:
        return self.hosts[NODES[node]]

    def start_node(self, name: str) -> None:
        self.nodes[name] = Node(name, self.host_of(name), self._place, self.setting.launch)

    def release(self) -> None:
        """The runs of the job `late` may end now."""
        self._workload.release.touch()

    def stop_nodes(self, last: str | None = None) -> None:
        """All of them, `last` at the end: when the leader goes last nobody takes over."""
        for name in sorted(self.nodes, key=lambda name: name == last):
            self.nodes.pop(name).stop()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop_nodes()
        self._etcd_witness.close()
        for op in (*self._workload.noted(), *self._ledger_witness.testimony()):
            self.history.add(op)


@contextmanager
def site(wanted: Wanted) -> Iterator[Site]:
    """Services up, nodes not. What is left of it ends with the namespaces. Raises NotHere."""
    contain.prepare()
    SCRATCH.mkdir()
    addresses = _addresses(wanted)
    built = hosts.build(addresses)
    members = {name: built[name] for name in MEMBERS[: wanted.members]}
    nodes = {node: built[_host(node)] for node in wanted.nodes}
    binary = find_etcd(wanted.etcd)
    cluster = EtcdCluster([seat(host) for host in members.values()], SCRATCH, wanted.out, binary)
    cluster.start(heartbeat_ms=wanted.election_ms // 10, election_ms=wanted.election_ms)
    postgres = Postgres(built["pg"], SCRATCH, wanted.out)
    postgres.start()
    found = services_at(cluster.endpoints, postgres.url, wanted)
    yield Site(
        scratch=SCRATCH,
        nodes=nodes,
        cluster=cluster,
        url=postgres.url,
        network=PacketNetwork(nodes, members, netem=has_netem()),
        environ=dict.fromkeys(wanted.nodes, found),
        postgres=postgres,
        clients={host.address: node for node, host in nodes.items()},
    )


def _addresses(wanted: Wanted) -> dict[str, str]:
    members = {name: ADDRESSES[name] for name in MEMBERS[: wanted.members]}
    nodes = {_host(node): f"10.77.0.{31 + n}" for n, node in enumerate(wanted.nodes)}
    return {**members, "pg": ADDRESSES["pg"], **nodes}


def _host(node: str) -> str:
    return f"node-{node}"


async def _migrate(url: str) -> None:
    ledger = open_ledger(url)
    try:
        await ledger.open(fleet=FLEET, shards=1, migrate=True)
    finally:
        await ledger.close()
