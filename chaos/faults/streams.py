"""Faults of what passes through proxies: see worlds/proxies.py for what they can show."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial

from chaos.worlds.proxies import Link, Proxies, Way


class Hindered:
    """So many ways, each made worse by `put` and better again by `take`."""

    def __init__(
        self,
        name: str,
        proxies: Proxies,
        ways: Iterable[Way],
        put: Callable[[Way], None],
        take: Callable[[Way], None],
    ) -> None:
        self.name, self._proxies, self._ways = name, proxies, tuple(ways)
        self._put, self._take, self._in = put, take, False

    def inject(self) -> None:
        self._in = True
        self._proxies.change(lambda: self._each(self._put))

    def heal(self) -> int:
        """How many chunks were held up."""
        if not self._in:
            return 0
        self._in = False
        self._proxies.change(lambda: self._each(self._take))
        return sum(way.taken() for way in self._ways)

    def _each(self, act: Callable[[Way], None]) -> None:
        for way in self._ways:
            act(way)


def cut(name: str, proxies: Proxies, ways: Iterable[Way]) -> Hindered:
    """What is sent there waits."""
    return Hindered(name, proxies, ways, partial(_more_cuts, 1), partial(_more_cuts, -1))


def worse(name: str, proxies: Proxies, ways: Iterable[Way], **by: int) -> Hindered:
    """Each of these qualities of the ways is so bad; see Way."""
    return Hindered(name, proxies, ways, partial(_set, by), partial(_set, dict.fromkeys(by, 0)))


def _more_cuts(by: int, way: Way) -> None:
    way.cuts += by


def _set(qualities: dict[str, int], way: Way) -> None:
    for name, value in qualities.items():
        setattr(way, name, value)


class AnswersLost:
    """What is sent arrives, and no answer ever: the connections end with the fault."""

    name = "answers lost"

    def __init__(self, proxies: Proxies, link: Link) -> None:
        self._proxies, self._link = proxies, link
        self._cut = cut(self.name, proxies, (link.back,))

    def inject(self) -> None:
        self._cut.inject()

    def heal(self) -> int:
        """Reset first: or they would be delivered after all."""
        self._proxies.change(self._link.reset)
        return self._cut.heal()


class LateCopies:
    """Over the connections there are, what is sent arrives only when the fault ends, though its
    sender has given them up and said it again over others."""

    name = "late copies"

    def __init__(self, proxies: Proxies, link: Link) -> None:
        self._proxies, self._link, self._in = proxies, link, False

    def inject(self) -> None:
        self._in = True
        self._proxies.change(self._begin)

    def heal(self) -> int:
        if not self._in:
            return 0
        self._in = False
        self._proxies.change(self._end)
        return self._link.out.taken()

    def _begin(self) -> None:
        self._link.late += 1
        for pair in self._link.pairs:
            pair.old = True

    def _end(self) -> None:
        self._link.late -= 1


def reset(proxies: Proxies, links: Sequence[Link]) -> int:
    """Their connections are broken, and both sides told; how many there were."""
    return proxies.change(lambda: sum(link.reset() for link in links))
