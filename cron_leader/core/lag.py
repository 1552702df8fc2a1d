"""Is the TTL long enough for this machine? A rule of thumb: three times the worst loop lag fits in.

A daemon's loop that comes round late renews late. Beyond the rule the next hiccup costs a term.
"""

from __future__ import annotations

FACTOR = 3


class Lag:
    """The worst lateness of a loop so far, against one TTL."""

    def __init__(self, ttl_ns: int) -> None:
        self._ttl_ns = ttl_ns
        self.worst_ns = 0

    def see(self, lag_ns: int) -> bool:
        """Whether this one must be told: the worst so far, and more than the TTL bears."""
        if lag_ns <= self.worst_ns:
            return False
        self.worst_ns = lag_ns
        return FACTOR * lag_ns > self._ttl_ns
