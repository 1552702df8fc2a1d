"""cron_leader: cron for a fleet. `job` and `Tick` are loaded on first use; nothing else is."""

from __future__ import annotations

TYPE_CHECKING = False  # importing typing would cost `--version` 10 ms
__version__ = "0.1.0"
__all__ = ["Tick", "job"]

if TYPE_CHECKING:
    from cron_leader.jobs import Tick, job


def __getattr__(name: str) -> object:
    if name in __all__:
        from cron_leader import jobs

        return getattr(jobs, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
