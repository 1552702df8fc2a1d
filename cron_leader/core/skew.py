"""How far our wall clock is from the ledger's, and what follows from it.

Slots are planned by the wall clock, and their rows are read by everybody else's: a node whose clock
is another one warns from WARN on, and starts nothing beyond the limit. A jump of our own clock
counts at once and not only with the next answer of the ledger.
"""

from __future__ import annotations

from datetime import timedelta
from enum import IntEnum

WARN = timedelta(seconds=1)


class Level(IntEnum):
    """How bad it is."""

    FINE = 0
    WARNED = 1
    TOO_MUCH = 2


class Skew:
    """What is known of it: nothing (no skew) until the ledger's clock was read once.

    most: beyond it no run may start.
    """

    def __init__(self, most: timedelta) -> None:
        self._most = most
        self._ahead: timedelta | None = None
        self._jumped_ns = -1
        self._told = Level.FINE

    def measured(self, ahead: timedelta, sent_ns: int) -> None:
        """The ledger's clock was asked at sent_ns (boot clock): ours is ahead by so much."""
        if sent_ns > self._jumped_ns:  # else it may compare with the clock as it was
            self._ahead = ahead

    def jumped(self, by: timedelta, boot_ns: int) -> None:
        """Our own clock was set ahead by so much."""
        self._jumped_ns = boot_ns
        if self._ahead is not None:
            self._ahead += by

    @property
    def too_much(self) -> bool:
        return self._ahead is not None and abs(self._ahead) > self._most

    def news(self) -> int | None:
        """The skew in ms (positive: our clock is ahead) if it must be told now: once per change."""
        if self._ahead is None or (level := self._level(abs(self._ahead))) is self._told:
            return None
        self._told = level
        return round(self._ahead / timedelta(milliseconds=1))

    def _level(self, skew: timedelta) -> Level:
        """It is fine again at half of WARN only: at the border it would be told each second."""
        if skew > self._most:
            return Level.TOO_MUCH
        if skew >= WARN:
            return Level.WARNED
        return Level.FINE if skew < WARN / 2 else min(self._told, Level.WARNED)
