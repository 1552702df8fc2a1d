"""How many processes to keep started ahead: as many as the largest batch seen lately needed.

A run that finds no spare waits 10-20 ms for an interpreter to start, or 1-2 for the job host to
fork; a spare costs a few megabytes.
"""

from __future__ import annotations

STOCK_AFTER_S = 0.05
"""Starting a process stops the loop for 1-3 ms: not while runs are starting."""

LEAST, MOST = 2, 8
"""Bounds on the spares of a leader; of a batch larger than MOST the rest start cold."""

FEWER_AFTER_NS = 65 * 60 * 1_000_000_000
"""One spare fewer after this long without a batch as large; hourly batches are remembered."""


class Demand:
    """The largest batch seen lately. All times are of the boot clock."""

    def __init__(self, now_ns: int) -> None:
        self._largest = LEAST
        self._since_ns = now_ns

    def batch(self, size: int, now_ns: int) -> None:
        """So many runs were asked for at one instant."""
        if size >= self.spares(now_ns):
            self._largest = min(max(size, LEAST), MOST)
            self._since_ns = now_ns

    def spares(self, now_ns: int) -> int:
        """How many to keep, LEAST to MOST."""
        return max(self._largest - (now_ns - self._since_ns) // FEWER_AFTER_NS, LEAST)
