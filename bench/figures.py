"""What a figure is, and the arithmetic on samples."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

GO = "the article's program, measured on etcd 3.4"


@dataclass(frozen=True, slots=True)
class Figure:
    """One line of the report.

    target: the most that is acceptable, in `unit`. beside: a comparison measured in the same run.
    safety: missing this target is a bug, not a slow machine.
    """

    name: str
    value: float
    target: float
    unit: str
    samples: int
    beside: str = ""
    safety: bool = False

    @property
    def met(self) -> bool:
        return self.value <= self.target


@dataclass(frozen=True, slots=True)
class Skipped:
    """A figure that could not be measured here."""

    name: str
    why: str


def median(samples: Sequence[float]) -> float:
    return statistics.median(samples)


def p99(samples: Sequence[float]) -> float:
    """Nearest rank: with fewer than 100 samples, the largest."""
    return sorted(samples)[math.ceil(0.99 * len(samples)) - 1]


def ratio(value: float, bare: float, what: str) -> str:
    return f"{value / bare:.1f} x {what} ({bare:.0f} ms)"
