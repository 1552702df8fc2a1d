"""The faults: each is put in, taken out, and says how often it bit. A fault that bit nothing
proves nothing.

packets     of a host's traffic, by iptables and tc; Linux namespaces
streams     of a node's traffic, in the proxies that it goes through; anywhere
processes   of a node: frozen, killed, slow, restarted; its clock; its files
etcd        members, the keeping of keys, hands in them
ledger      the server, its disk, its answers
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Protocol

from chaos.faults.packets import Cut, CutBothWays, CutOneWay, Delay

__all__ = ["All", "Cut", "CutBothWays", "CutOneWay", "Delay", "Fault", "Once", "Stretch"]


class Fault(Protocol):
    name: str

    def inject(self) -> None: ...

    def heal(self) -> int:
        """Take it out; what it touched: packets, processes, keys. Idempotent: 0 when it is not
        in."""


class Once:
    """Something that is done in an instant. act: does it; how much it touched."""

    def __init__(self, name: str, act: Callable[[], int]) -> None:
        self.name, self._act, self._bites = name, act, 0

    def inject(self) -> None:
        self._bites = self._act()

    def heal(self) -> int:
        bites, self._bites = self._bites, 0
        return bites


class Stretch:
    """Something that is begun and ended. begin: how much it touched."""

    def __init__(self, name: str, begin: Callable[[], int], end: Callable[[], None]) -> None:
        self.name, self._begin, self._end = name, begin, end
        self._bites: int | None = None

    def inject(self) -> None:
        self._bites = self._begin()

    def heal(self) -> int:
        bites, self._bites = self._bites, None
        if bites is None:
            return 0
        self._end()
        return bites


class All:
    """Several faults as one: put in in this order, taken out in the other."""

    def __init__(self, name: str, faults: Iterable[Fault]) -> None:
        self.name, self._faults = name, tuple(faults)

    def inject(self) -> None:
        for fault in self._faults:
            fault.inject()

    def heal(self) -> int:
        return sum([fault.heal() for fault in reversed(self._faults)])
