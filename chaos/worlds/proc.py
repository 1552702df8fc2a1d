"""The world of plain processes: no root, any system. etcd, nodes and a Postgres (or a SQLite file)
on loopback, each node behind TCP proxies of its own, where its network is struck.

It promises real processes and one clock. Not packets: see proxies.py for what stands for lost ones.
"""

from __future__ import annotations

import shutil
import socket
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from chaos.worlds.hosts import Here
from chaos.worlds.network import Links, ProxyNetwork
from chaos.worlds.proxies import Proxies
from chaos.worlds.rig import Site, Wanted, services_at
from chaos.worlds.services import EtcdCluster, NotHere, Postgres, Seat, find_etcd

HERE = "127.0.0.1"


@contextmanager
def site(wanted: Wanted) -> Iterator[Site]:
    """Services up, nodes not; nothing of it is left afterwards. Raises NotHere."""
    scratch = Path(tempfile.mkdtemp(prefix="cl-chaos-"))
    scratch.chmod(0o711)  # a Postgres that may not be root's finds its own folder in it
    cluster = _etcd(wanted, scratch)
    postgres = None
    try:
        cluster.start(heartbeat_ms=wanted.election_ms // 10, election_ms=wanted.election_ms)
        postgres = _postgres(wanted, scratch)
        with Proxies() as proxies:
            yield _site(wanted, scratch, cluster, postgres, proxies)
    finally:
        if postgres is not None:
            postgres.stop()
        cluster.stop()
        shutil.rmtree(scratch, ignore_errors=True)


def _site(
    wanted: Wanted, scratch: Path, cluster: EtcdCluster, postgres: Postgres | None, proxies: Proxies
) -> Site:
    sources = {node: _source(number) for number, node in enumerate(wanted.nodes)}
    links = {
        node: Links(
            {name: proxies.link(seat.client) for name, seat in cluster.seats.items()},
            proxies.link(postgres.at, source=sources[node]) if postgres else None,
        )
        for node in wanted.nodes
    }
    url = postgres.url if postgres else f"sqlite:///{scratch / 'ledger.db'}"
    environ = {node: _environ(wanted, links[node], url, postgres) for node in wanted.nodes}
    return Site(
        scratch=scratch,
        nodes={node: Here(node) for node in wanted.nodes},
        cluster=cluster,
        url=url,
        network=ProxyNetwork(proxies, links),
        environ=environ,
        postgres=postgres,
        clients={source: node for node, source in sources.items() if source},
        connections=proxies.connections,
    )


def _environ(
    wanted: Wanted, links: Links, url: str, postgres: Postgres | None
) -> Mapping[str, str]:
    endpoints = [f"{HERE}:{link.listens}" for link in links.etcd.values()]
    if postgres is not None and links.ledger is not None:
        url = url.replace(postgres.at, f"{HERE}:{links.ledger.listens}")
    return services_at(endpoints, url, wanted)


def _source(number: int) -> str:
    """Of a node's connections to Postgres, which so knows them apart; where loopback has but one
    address they are told by their terms."""
    return f"127.0.0.{11 + number}" if sys.platform == "linux" else ""


def _etcd(wanted: Wanted, scratch: Path) -> EtcdCluster:
    names = [f"e{number + 1}" for number in range(wanted.members)]
    ports = iter(_free_ports(2 * len(names)))
    seats = [
        Seat(name, Here(name), f"{HERE}:{next(ports)}", f"{HERE}:{next(ports)}") for name in names
    ]
    return EtcdCluster(seats, scratch, wanted.out, find_etcd(wanted.etcd))


def _postgres(wanted: Wanted, scratch: Path) -> Postgres | None:
    """None: the ledger is a SQLite file, because that was asked for, or there is no Postgres."""
    if wanted.sqlite:
        return None
    try:
        (port,) = _free_ports(1)
        made = Postgres(Here("postgres"), scratch, wanted.out, port=port, boxed=False)
        made.start()
    except (NotHere, OSError):
        if wanted.sqlite is None:
            return None
        raise
    return made


def _free_ports(count: int) -> list[int]:
    """Nobody listens there at this moment."""
    probes = [socket.socket() for _ in range(count)]
    try:
        for probe in probes:
            probe.bind((HERE, 0))
        return [int(probe.getsockname()[1]) for probe in probes]
    finally:
        for probe in probes:
            probe.close()
