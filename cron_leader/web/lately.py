"""The worst of the last minute.

Not since the last scrape: two scrapers, or a person with curl, would then take it from each other.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from functools import reduce

STEP_NS = 5_000_000_000
STEPS = 12


class Lately:
    """The extreme (`min` or `max`) of the values seen in the last STEPS x STEP_NS, to a step."""

    def __init__(self, extreme: Callable[[float, float], float]) -> None:
        self._extreme = extreme
        self._seen: deque[tuple[int, float]] = deque(maxlen=STEPS + 1)

    def see(self, value: float, boot_ns: int) -> None:
        """boot_ns never falls from one call to the next."""
        step = boot_ns // STEP_NS
        if self._seen and self._seen[-1][0] == step:
            value = self._extreme(value, self._seen.pop()[1])
        self._seen.append((step, value))

    def worst(self, boot_ns: int) -> float | None:
        """None if nothing was seen lately."""
        oldest = boot_ns // STEP_NS - STEPS
        values = [value for step, value in self._seen if step >= oldest]
        return reduce(self._extreme, values) if values else None
