"""Drives one Node by hand under virtual clocks: what the daemon does, without I/O."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from typing import TypeVar

from cron_leader.core import messages as m
from cron_leader.core.dispatch import Pool
from cron_leader.core.messages import Effect, Event, Now
from cron_leader.core.model import (
    Applied,
    CommandSpec,
    DueRow,
    Job,
    Past,
    Refused,
    Result,
    Run,
    Taken,
)
from cron_leader.core.node import Node
from cron_leader.core.schedule import Every
from cron_leader.core.standing import Limits, Phase

T0 = datetime(2026, 12, 1, tzinfo=UTC)
S = 1_000_000_000
TTL, MARGIN = 10 * S, 2 * S
E = TypeVar("E")

LIMITS = Limits(ttl_ns=TTL, margin_ns=MARGIN, drain_s=30, max_clock_skew_s=5, pool=Pool(64, 10.0))


def job(name: str = "beat", every_s: float = 1, **options: object) -> Job:
    schedule = options.pop("schedule", Every(timedelta(seconds=every_s)))
    return Job(name, schedule, CommandSpec(("true",)), **options)  # type: ignore[arg-type]


def result(error: str | None = None, *, timed_out: bool = False) -> Result:
    return Result(0 if error is None else 1, timed_out, error, None, T0, 5_000_000)


@dataclass
class Driver:
    """A node, its two clocks, and what it last asked for."""

    jobs: Sequence[Job] = field(default_factory=lambda: [job()])
    limits: Limits = LIMITS
    boot_ns: int = 1_000 * S
    wall: datetime = T0
    effects: list[Effect] = field(default_factory=list)

    def __post_init__(self) -> None:
        ids = itertools.count(1)
        self.node = Node(
            election="fleet/0",
            name="a",
            jobs={j.name: j for j in self.jobs},
            limits=self.limits,
            draw=lambda: f"{next(ids):032x}",
        )

    # ---------------------------------------------------------------- time and events

    def step(self, event: Event | None = None) -> list[Effect]:
        """And all slices of what it begins, at the same instant."""
        self.slice(event)
        while self.node.phase is Phase.SETTLING and self.node.wake_boot_ns() == self.boot_ns:
            self.effects += self.node.step(m.Woke(), Now(self.boot_ns, self.wall))
        return self.effects

    def slice(self, event: Event | None = None) -> list[Effect]:
        """One step, and what is not done with it comes with the next."""
        self.effects = self.node.step(event or m.Woke(), Now(self.boot_ns, self.wall))
        return self.effects

    def after(self, seconds: float, event: Event | None = None) -> list[Effect]:
        self.boot_ns += round(seconds * S)
        self.wall += timedelta(seconds=seconds)
        return self.step(event)

    def asked(self, kind: type[E]) -> E:
        """The one effect of this kind in the last step."""
        found = self.all(kind)
        assert len(found) == 1, (kind, self.effects)
        return found[0]

    def all(self, kind: type[E]) -> list[E]:
        return [e for e in self.effects if isinstance(e, kind)]

    def told(self, event: str) -> dict[str, object]:
        """The fields of the one such event emitted in the last step."""
        found = [e.fields for e in self.all(m.Emit) if e.event == event]
        assert len(found) == 1, (event, self.effects)
        return dict(found[0])

    def quiet(self, event: str) -> bool:
        return not any(e.event == event for e in self.all(m.Emit))

    # ---------------------------------------------------------------- the usual way up

    def join(self) -> str:
        self.step()
        self.asked(m.Probe)
        self.step(m.LedgerReached())
        self.nonce = self.asked(m.Join).nonce
        return self.nonce

    def renew(self) -> list[Effect]:
        return self.step(m.LeaseRenewed(self.nonce, self.boot_ns, TTL))

    def elect(self, revision: int = 7) -> m.Raise:
        self.join()
        self.renew()
        self.step(m.WatchOpened(self.nonce))
        self.step(m.Elected(self.nonce, revision, 99))
        return self.asked(m.Raise)

    def raise_(self, fence: int = 7) -> m.ReadPast:
        self.elect(fence)
        self.step(m.Raised(self.nonce, fence))
        return self.asked(m.ReadPast)

    def settle(self, past: Past | None = None) -> m.Settle:
        self.raise_()
        self.step(m.PastRead(self.nonce, past or Past(None, {})))
        return self.asked(m.Settle)

    def lead(self, past: Past | None = None, rows: tuple[DueRow, ...] = ()) -> Driver:
        self.settle(past)
        self.step(m.Settled(self.nonce, rows))
        return self

    # ---------------------------------------------------------------- the usual way through a run

    def grant(self, take: m.Take) -> list[Effect]:
        """The ledger gives every claim of the batch, as the next attempt."""
        won = {c.run_id: (c.seen or 0) + 1 for c in take.batch.claims}
        return self.step(m.BatchAnswered(take.term.nonce, take.batch, Taken(won)))

    def fly(self, seconds: float = 1) -> Run:
        """From now to the next slot, and its run to `running`."""
        self.after(seconds)
        self.grant(self.asked(m.Take))
        run = self.asked(m.Prepare).run
        self.step(m.Prepared(run.run_id))
        self.asked(m.Go)
        self.step(m.Started(run.run_id, self.wall))
        return run

    def land(self, run: Run, how: Result | None = None) -> m.WriteFinish:
        self.step(m.RunEnded(run.run_id, how or result()))
        return self.asked(m.WriteFinish)

    def record(self, written: m.WriteFinish, answer: Applied | Refused | None = None) -> None:
        nonce, run_id = written.term.nonce, written.finish.run_id
        self.step(m.FinishAnswered(nonce, run_id, answer or Applied()))


def patient(**changes: object) -> Limits:
    return replace(LIMITS, **changes)  # type: ignore[arg-type]
