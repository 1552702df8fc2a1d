"""cron_leader: cron for a fleet. `job` and `Tick` are loaded on first use; nothing else is."""

from __future__ import annotations

from typing import TYPE_CHECKING

__version__ = "0.1.0"
__all__ = ["Tick", "job"]

if TYPE_CHECKING:
    from cron_leader.jobs import Tick, job


def __getattr__(name: str) -> object:
    if name in __all__:
        from cron_leader import jobs

        return getattr(jobs, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
