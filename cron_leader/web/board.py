"""What a node has seen of itself, kept as counts: one sink of its events, one source of /metrics.

Pure: it is told events, and looks at the daemon's snapshot for what no event says. Its size is
bounded by the configuration: jobs beyond MOST_JOBS are counted together.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from itertools import accumulate
from typing import TYPE_CHECKING, Any

from cron_leader.core.model import Reason, State
from cron_leader.core.standing import EndReason
from cron_leader.web.lately import Lately

if TYPE_CHECKING:
    from cron_leader.daemon import Snapshot

NS = 1_000_000_000
MOST_JOBS = 500
OTHERS = "(others)"
"""Stands for the jobs beyond MOST_JOBS; no job can be called so."""
LATENESS_S = (0.005, 0.01, 0.02, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0)
OUTCOMES = (State.SUCCEEDED, State.FAILED, State.TIMED_OUT, State.CANCELLED, State.ABANDONED)
WRITES = ("raise", "settle", "claim", "finish", "put_back", "heartbeat", "command", "close_term")
SKIPPED = (Reason.OVERLAP, Reason.BLACKOUT, Reason.PAUSED, Reason.LIMIT, Reason.NO_HANDLER)
FAILED = (Reason.LATE, Reason.OVERLAP, Reason.PAUSED, Reason.NO_HANDLER)
MISSED = (Reason.NO_LEADER, Reason.COALESCED, Reason.LATE, Reason.LIMIT, Reason.ROLLBACK)

Counts = Mapping[tuple[str, ...], float]


@dataclass(frozen=True, slots=True)
class Facts:
    """The board at one instant. Counts are by the labels' values.

    lateness: cumulative counts for LATENESS_S and infinity. *_s: seconds; lease_left_s None: no
    lease is held, lease_left_min_s: the least of the last minute.
    """

    gate_open: bool
    fence: int | None
    etcd_up: bool
    ledger_up: bool
    lease_left_s: float | None
    lease_left_min_s: float | None
    loop_lag_max_s: float
    leaderless_s: float
    elected: int
    ended: Counts
    refused: Counts
    uncertain: Counts
    runs: Counts
    missed: Counts
    skipped: Counts
    failed: Counts
    lateness: tuple[int, ...]
    lateness_sum_s: float


class Board:
    """Hears every event of one node. Nothing it is told makes it raise: it must not end a term."""

    def __init__(self, jobs: Iterable[str], snapshot: Callable[[], Snapshot]) -> None:
        self._snapshot = snapshot
        self._jobs = frozenset(list(jobs)[:MOST_JOBS])
        # Series start at 0: an increase from nothing to 1 is not seen by Prometheus.
        self._ended = _zeros((reason,) for reason in EndReason)
        self._refused = _zeros((what,) for what in WRITES)
        self._uncertain = _zeros((what,) for what in WRITES)
        self._runs = _zeros((job, outcome) for job in self._jobs for outcome in OUTCOMES)
        self._missed = _zeros((reason,) for reason in MISSED)
        self._skipped = _zeros((reason,) for reason in SKIPPED)
        self._failed = _zeros((reason,) for reason in FAILED)
        self._elected = 0
        self._late = [0] * (len(LATENESS_S) + 1)
        self._late_sum_s = 0.0
        self._etcd_answers = self._ledger_answers = True
        self._lease_left_s, self._lag_s = Lately(min), Lately(max)
        self._leaderless_s = 0.0
        self._shut_ns: int | None = None

    # ------------------------------------------------------------------ what happens

    def hear(self, line: Mapping[str, Any]) -> None:
        """One event, as the Emitter hands it out."""
        match line["event"]:
            case "run.started":
                self._on_started(float(line.get("late_ms", 0.0)) / 1000)
            case "run.finished":
                self._runs[self._job(line), str(line.get("outcome"))] += 1
            case "slot.missed":
                self._missed[_label(line, "reason")] += int(line.get("slots", 1))
            case "slot.skipped":
                self._skipped[_label(line, "reason")] += 1
            case "slot.failed":
                self._failed[_label(line, "reason")] += 1
            case "ledger.refused":
                self._refused[_label(line, "what")] += 1
            case "ledger.uncertain":
                self._uncertain[_label(line, "what")] += 1
            case "ledger.unreachable" | "ledger.back" as event:
                self._ledger_answers = event == "ledger.back"
            case "etcd.unreachable" | "etcd.back" as event:
                self._etcd_answers = event == "etcd.back"
            case "lease.renewed":
                self._see_lease(self._snapshot())  # the renewal is not in it yet: the least left
            case _:
                self._on_term(line)

    def _on_term(self, line: Mapping[str, Any]) -> None:
        match line["event"]:
            case "term.elected":
                self._elected += 1
            case "gate.closed":
                self._shut_ns = self._snapshot().boot_ns
            case "gate.opened":
                self._count_shut()
            case "term.ended":
                self._ended[_label(line, "reason")] += 1
                self._count_shut()
            case _:
                pass

    def _on_started(self, late_s: float) -> None:
        self._late[bisect_left(LATENESS_S, late_s)] += 1
        self._late_sum_s += late_s

    def _count_shut(self) -> None:
        """The gate stood closed in mid-term until now."""
        if self._shut_ns is not None:
            self._leaderless_s += (self._snapshot().boot_ns - self._shut_ns) / NS
            self._shut_ns = None

    def took_over(self, vacant_s: float) -> None:
        """This node's gate opened so long after the term before had ended."""
        self._leaderless_s += max(0.0, vacant_s)

    def sample(self, lag_ns: int) -> None:
        """Told several times a second: how much later than asked the loop came round."""
        seen = self._snapshot()
        self._lag_s.see(lag_ns / NS, seen.boot_ns)
        self._see_lease(seen)

    def _see_lease(self, seen: Snapshot) -> None:
        if seen.gate.deadline_ns:
            self._lease_left_s.see((seen.gate.deadline_ns - seen.boot_ns) / NS, seen.boot_ns)

    def _job(self, line: Mapping[str, Any]) -> str:
        job = line.get("job")
        return job if job in self._jobs else OTHERS

    # ------------------------------------------------------------------ what is seen

    @property
    def snapshot(self) -> Snapshot:
        return self._snapshot()

    def etcd_up(self, seen: Snapshot) -> bool:
        """Whether etcd answered last; not before it answered first."""
        return seen.phase is not None and self._etcd_answers

    def ledger_up(self, seen: Snapshot) -> bool:
        return seen.phase is not None and self._ledger_answers

    def facts(self) -> Facts:
        """A copy: it may be read in another thread."""
        seen = self._snapshot()
        self._see_lease(seen)
        deadline_ns = seen.gate.deadline_ns
        return Facts(
            gate_open=seen.closed is None,
            fence=seen.fence,
            etcd_up=self.etcd_up(seen),
            ledger_up=self.ledger_up(seen),
            lease_left_s=(deadline_ns - seen.boot_ns) / NS if deadline_ns else None,
            lease_left_min_s=self._lease_left_s.worst(seen.boot_ns),
            loop_lag_max_s=self._lag_s.worst(seen.boot_ns) or 0.0,
            leaderless_s=self._leaderless_s,
            elected=self._elected,
            ended=dict(self._ended),
            refused=dict(self._refused),
            uncertain=dict(self._uncertain),
            runs=dict(self._runs),
            missed=dict(self._missed),
            skipped=dict(self._skipped),
            failed=dict(self._failed),
            lateness=tuple(accumulate(self._late)),
            lateness_sum_s=self._late_sum_s,
        )


def _zeros(labels: Iterable[tuple[str, ...]]) -> Counter[tuple[str, ...]]:
    return Counter({tuple(str(value) for value in label): 0 for label in labels})


def _label(line: Mapping[str, Any], field: str) -> tuple[str, ...]:
    return (str(line.get(field)),)
