"""What may befall a node's traffic, in either world: by proxies, or by packets."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Protocol

from chaos import plan
from chaos.faults import All, Fault, Once, packets, streams
from chaos.worlds.hosts import SWITCH, Host
from chaos.worlds.proxies import Link, Proxies, Way
from chaos.worlds.services import CLIENT_PORT, PEER_PORT, POSTGRES_PORT


@dataclass(frozen=True, slots=True)
class Ways:
    """Which of a node's ways. out: what it sends; back: what it is sent. members: of etcd, None:
    all."""

    etcd: bool = True
    ledger: bool = True
    out: bool = True
    back: bool = True
    members: tuple[str, ...] | None = None


class Network(Protocol):
    """Makes faults; none is in yet."""

    @property
    def can(self) -> frozenset[plan.Fault]: ...

    def cut(self, node: str, ways: Ways) -> Fault: ...

    def reset(self, node: str) -> Fault: ...

    def loss(self, node: str, percent: int) -> Fault: ...

    def delay(self, node: str, most_ms: int) -> Fault: ...

    def rate(self, node: str, kbit: int) -> Fault: ...

    def link_down(self, node: str) -> Fault: ...

    def answers_lost(self, node: str) -> Fault: ...

    def late_copies(self, node: str) -> Fault: ...

    def isolate(self, member: str) -> Fault: ...


F = plan.Fault
_BOTH = frozenset(
    {F.CUT, F.CUT_OUT, F.CUT_IN, F.CUT_ETCD, F.CUT_LEDGER, F.RESET, F.LOSS, F.DELAY, F.RATE}
)
_OF_A_SERVER = frozenset({F.CUT_LEDGER, F.LEDGER_LOST_COMMIT, F.LEDGER_LATE_COPY})
"""A ledger that is a file has no ways to it."""
BY_PROXIES = _BOTH | _OF_A_SERVER
BY_PACKETS = _BOTH | {F.LINK_DOWN, F.LEDGER_LOST_COMMIT, F.ETCD_ISOLATE}


# ------------------------------------------------------------------ proxies


@dataclass(frozen=True, slots=True)
class Links:
    """One node's: to each member of etcd, and to the ledger if that is a server."""

    etcd: Mapping[str, Link]
    ledger: Link | None

    def all(self) -> list[Link]:
        return [*self.etcd.values(), *([self.ledger] if self.ledger else [])]


class ProxyNetwork:
    """Of the `proc` world."""

    def __init__(self, proxies: Proxies, links: Mapping[str, Links]) -> None:
        self._proxies, self._links = proxies, links
        served = all(each.ledger for each in links.values())
        self._can = BY_PROXIES if served else BY_PROXIES - _OF_A_SERVER

    @property
    def can(self) -> frozenset[plan.Fault]:
        return self._can

    def cut(self, node: str, ways: Ways) -> Fault:
        return streams.cut("cut", self._proxies, self._ways(node, ways))

    def reset(self, node: str) -> Fault:
        return Once("reset", partial(streams.reset, self._proxies, self._links[node].all()))

    def loss(self, node: str, percent: int) -> Fault:
        return streams.worse("loss", self._proxies, self._ways(node, Ways()), loss=percent)

    def delay(self, node: str, most_ms: int) -> Fault:
        ways = self._ways(node, Ways(back=False))
        return streams.worse("delay", self._proxies, ways, delay_ms=most_ms)

    def rate(self, node: str, kbit: int) -> Fault:
        ways = self._ways(node, Ways(back=False))
        return streams.worse("rate", self._proxies, ways, kbit=kbit)

    def link_down(self, node: str) -> Fault:
        raise NotImplementedError("a proxy has no link")

    def answers_lost(self, node: str) -> Fault:
        return streams.AnswersLost(self._proxies, self._to_ledger(node))

    def late_copies(self, node: str) -> Fault:
        return streams.LateCopies(self._proxies, self._to_ledger(node))

    def isolate(self, member: str) -> Fault:
        raise NotImplementedError("members talk to each other without a proxy")

    def _to_ledger(self, node: str) -> Link:
        link = self._links[node].ledger
        assert link is not None
        return link

    def _ways(self, node: str, ways: Ways) -> list[Way]:
        links = self._links[node]
        wanted = [
            link
            for name, link in links.etcd.items()
            if ways.etcd and (ways.members is None or name in ways.members)
        ]
        if ways.ledger and links.ledger is not None:
            wanted.append(links.ledger)
        return [
            way
            for link in wanted
            for way, hit in ((link.out, ways.out), (link.back, ways.back))
            if hit
        ]


# ------------------------------------------------------------------ packets


class PacketNetwork:
    """Of the `netns` world: nodes, and members of etcd, on hosts of their own."""

    can = BY_PACKETS

    def __init__(
        self, nodes: Mapping[str, Host], members: Mapping[str, Host], *, netem: bool
    ) -> None:
        """netem: whether the kernel can delay packets itself."""
        self._nodes, self._members, self._netem = nodes, members, netem

    def cut(self, node: str, ways: Ways) -> Fault:
        if ways.members is not None:
            return All("cut", self._from_some(node, ways.members))
        return packets.Dropped("cut", self._nodes[node], _directions(ways), _ports(ways))

    def reset(self, node: str) -> Fault:
        return Once("reset", partial(packets.reset, self._nodes[node], _ports(Ways())))

    def loss(self, node: str, percent: int) -> Fault:
        both, ports = _directions(Ways()), _ports(Ways())
        return packets.Dropped("loss", self._nodes[node], both, ports, percent=percent)

    def delay(self, node: str, most_ms: int) -> Fault:
        host = self._nodes[node]
        if self._netem:
            return packets.Netem(Host(SWITCH, ""), host.name, most_ms)
        return packets.Delay(host, _ports(Ways()), most_ms, jitter=True)

    def rate(self, node: str, kbit: int) -> Fault:
        return packets.Rate(self._nodes[node], kbit)

    def link_down(self, node: str) -> Fault:
        return packets.LinkDown(self._nodes[node])

    def answers_lost(self, node: str) -> Fault:
        return packets.AnswersLost(self._nodes[node], POSTGRES_PORT)

    def late_copies(self, node: str) -> Fault:
        raise NotImplementedError("one connection's packets are not told from another's")

    def isolate(self, member: str) -> Fault:
        return packets.Isolated(self._members[member], PEER_PORT)

    def _from_some(self, node: str, members: Sequence[str]) -> Iterator[Fault]:
        for member in members:
            to = ("-d", self._members[member].address)
            yield packets.Dropped("cut", self._nodes[node], (packets.OUT,), (CLIENT_PORT,), only=to)


def _directions(ways: Ways) -> list[packets.Way]:
    return [way for way, hit in ((packets.OUT, ways.out), (packets.BACK, ways.back)) if hit]


def _ports(ways: Ways) -> list[int]:
    wanted = ((CLIENT_PORT, ways.etcd), (POSTGRES_PORT, ways.ledger))
    return [port for port, hit in wanted if hit]
