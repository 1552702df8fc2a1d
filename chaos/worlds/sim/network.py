"""The way of one node to one service: slow, lossy, cut in one direction or both.

As TCP does, a message that meets a cut waits; when the cut is healed all of them arrive, long after
their senders gave up, or none does, for the connections were broken, and whoever holds one is told.
A lost packet costs a retransmission, not the message.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from chaos.gen import Draws
from chaos.worlds.sim.engine import MS, Do, Engine

RETRANSMIT_NS = 200 * MS


class Way:
    """Both directions of one node's traffic with one service."""

    __slots__ = (
        "_broken",
        "_draws",
        "_engine",
        "_epoch",
        "_held",
        "bit",
        "cuts",
        "delay_ms",
        "loss",
    )

    def __init__(
        self, engine: Engine, draws: Draws, broken: Callable[[Way], None] = lambda _: None
    ) -> None:
        """broken: called when its connections are."""
        self._engine, self._draws, self._broken = engine, draws, broken
        self.cuts = [0, 0]
        """How many cuts lie on it, out and in."""
        self.delay_ms = self.loss = self.bit = self._epoch = 0
        self._held: list[tuple[int, Do, tuple[Any, ...]]] = []

    def out(self, do: Do, *args: Any) -> None:
        self._send(0, do, args)

    def back(self, do: Do, *args: Any) -> None:
        self._send(1, do, args)

    def _send(self, direction: int, do: Do, args: tuple[Any, ...]) -> None:
        if self.cuts[direction]:
            self.bit += 1
            self._held.append((direction, do, args))
            return
        engine, takes_ns = self._engine, (300 + self._draws.bits() % 1_500) * 1_000
        if self.delay_ms or self.loss:
            takes_ns += self._worse_ns()
        engine.at(engine.now_ns + takes_ns, self._arrive, self._epoch, do, args)

    def _worse_ns(self) -> int:
        takes_ns = 0
        if self.delay_ms:
            self.bit += 1
            takes_ns += self._draws.below(self.delay_ms * MS)
        again_ns = RETRANSMIT_NS
        while self.loss and self._draws.percent(self.loss) and again_ns < 60 * RETRANSMIT_NS:
            self.bit += 1
            takes_ns, again_ns = takes_ns + again_ns, 2 * again_ns
        return takes_ns

    def _arrive(self, epoch: int, do: Do, args: tuple[Any, ...]) -> None:
        if epoch == self._epoch:
            do(*args)
        else:
            self.bit += 1

    def cut(self, *directions: int) -> None:
        for direction in directions:
            self.cuts[direction] += 1

    def heal(self, *directions: int) -> None:
        """What waited comes through, or its connection has been given up meanwhile."""
        for direction in directions:
            self.cuts[direction] -= 1
        if self._held and not self._draws.percent(60):
            self.reset()
        held, self._held = self._held, []
        for direction, do, args in held:
            self._send(direction, do, args)

    def reset(self) -> None:
        """Its connections break: whatever is under way is lost."""
        self.bit += 1
        self._epoch += 1
        self._held.clear()
        self._broken(self)
