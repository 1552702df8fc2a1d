"""Which jobs are paused, as far as this term knows: what the ledger held when it began, and what
operators have ordered since.

The ledger decides whether a slot is claimed; this decides what is said of slots that are not: those
of a pause are skipped, not missed. Not promised: the instant of an order to the microsecond, which
is the ledger's.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime

from cron_leader.core.model import CommandResult, Errand
from cron_leader.core.plan import Pause


class Pauses:
    """The last pause of each job, gone on with or over. An order to all jobs costs no more than one
    to those that ever had their own."""

    def __init__(self, known: Mapping[str, Pause]) -> None:
        self._own = dict(known)
        self._of_all: Pause | None = None

    def of(self, job: str) -> Pause | None:
        return self._own.get(job, self._of_all)

    def carried_out(self, errand: Errand, now: datetime) -> None:
        """An order was, at `now`: as `pause_jobs` and `resume_jobs` of the ledger have it."""
        if errand.result is CommandResult.PAUSED and errand.paused_until is not None:
            self._change(errand.job, now, errand.paused_until)
        elif errand.result is CommandResult.RESUMED:
            self._change(errand.job, now, None)

    def _change(self, job: str | None, now: datetime, until: datetime | None) -> None:
        if job is not None:
            self._set(job, _changed(self.of(job), now, until))
            return
        for own, pause in self._own.items():
            self._set(own, _changed(pause, now, until))
        self._of_all = _changed(self._of_all, now, until)

    def _set(self, job: str, pause: Pause | None) -> None:
        if pause is not None:
            self._own[job] = pause


def _changed(pause: Pause | None, now: datetime, until: datetime | None) -> Pause | None:
    """until None: it is over. A pause on top of one goes on from where that began."""
    goes_on = pause is not None and pause[1] > now
    if until is None:
        return (pause[0], now) if pause is not None and goes_on else pause
    return (pause[0] if pause is not None and goes_on else now), until
