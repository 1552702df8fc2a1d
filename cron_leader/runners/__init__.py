"""Runs: a job's process (or coroutine) from "prepare" to its recorded end.

Promised: per run the reports come in the order Prepared, Started, RunEnded, or end with the one
NotStarted, which means that nothing of the job ran; a run does not start past its deadline on the
boot clock; a run's whole process group is dead before its end is reported. Not promised: anything
about processes that left the group by a session of their own.

Names load on first use, for the job host imports from this package and must stay thin: what it
imports is there, in memory, in every python run.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

__all__ = ["Described", "Runners", "describe", "unmet", "with_code_jobs"]

if TYPE_CHECKING:
    from cron_leader.runners.dispatch import Runners
    from cron_leader.runners.needs import unmet
    from cron_leader.runners.python import Described, describe, with_code_jobs


def __getattr__(name: str) -> object:
    match name:
        case "Runners":
            from cron_leader.runners import dispatch

            return dispatch.Runners
        case "unmet":
            from cron_leader.runners import needs

            return needs.unmet
        case "describe" | "Described" | "with_code_jobs":
            from cron_leader.runners import python

            return getattr(python, name)
        case _:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
