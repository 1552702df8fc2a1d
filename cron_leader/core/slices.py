"""Work that is too long for one step, as a generator: resumed until it returns its result.

In between the node looks at its deadlines, and its process at everything else: leases are renewed
while a hundred thousand jobs are looked at. Sliced or whole, the result is the same.
"""

from __future__ import annotations

from collections.abc import Generator
from typing import TypeVar

T = TypeVar("T")

Slices = Generator[None, None, T]

SLICE = 200
"""Jobs, slots or rows looked at in one slice: milliseconds, some more if each schedule is new."""


class Slicer:
    """Counts what is looked at."""

    def __init__(self) -> None:
        self._left = SLICE

    def full(self) -> bool:
        """One more is to be looked at: whether the slice is full, and another begins with it."""
        if self._left:
            self._left -= 1
            return False
        self._left = SLICE - 1
        return True


def whole(work: Slices[T]) -> T:
    """All of it at once."""
    while True:
        try:
            next(work)
        except StopIteration as end:
            result: T = end.value
            return result
