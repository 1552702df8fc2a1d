"""Random lives of one node: whatever comes, and in whatever order, some things never happen.

Etcd, ledger, runners and supervisor are played by `Life`, which answers late, out of order, with
refusals, or not at all. A failing seed reproduces its life exactly.
"""

from __future__ import annotations

import random
from collections import Counter
from datetime import datetime, timedelta

import pytest

from cron_leader.core import messages as m
from cron_leader.core.dispatch import ACTIVE, Pool
from cron_leader.core.model import (
    Applied,
    Batch,
    Catchup,
    Delivery,
    DueRow,
    Gap,
    JobRecord,
    OnLostLeadership,
    Origin,
    Past,
    Refused,
    Result,
    Settlement,
    SlotKey,
    State,
    Taken,
)
from tests.core.driver import T0, TTL, Driver, S, job, patient, result

JOBS = (
    job("a", 1),
    job("b", 0.3, catchup=Catchup.ALL, delivery=Delivery.AT_LEAST_ONCE),
    job("c", 7, on_lost_leadership=OnLostLeadership.FINISH, start_within_s=3.0),
    job("d", 2, catchup=Catchup.NONE),
)
LONG_AGO = T0 - timedelta(days=1)
KNOWN = {j.name: JobRecord(j.name, LONG_AGO, LONG_AGO, j.schedule.digest) for j in JOBS}
NEWER = Refused("x", 99)
SILENT = (m.Emit, m.Abandon, m.Record, m.Exit)


class Ledger:
    """The rows, and whether planned_to ever passes a slot that has none."""

    def __init__(self) -> None:
        self.rows: dict[tuple[str, datetime], State] = {}
        self.gaps: list[Gap] = []
        self.planned_to: datetime | None = None

    def write(self, what: Batch | Settlement) -> None:
        if isinstance(what, Batch):
            for claim in what.claims:
                self.rows[claim.slot.job, claim.slot.scheduled_for] = State.RUNNING
        for entry in what.entries:
            self.rows[entry.slot.job, entry.slot.scheduled_for] = entry.state
        self.gaps += what.gaps
        self.plan_to(what.planned_to)

    def plan_to(self, planned_to: datetime) -> None:
        """Every slot that planned_to passes must have its row."""
        since, self.planned_to = self.planned_to, max(self.planned_to or planned_to, planned_to)
        for each in JOBS:
            at = each.schedule.next_after(since or planned_to)
            while at is not None and at <= planned_to:
                assert self._explained(each.name, at), f"{each.name} {at}, planned to {planned_to}"
                at = each.schedule.next_after(at)

    def sweep(self) -> tuple[DueRow, ...]:
        for key, state in self.rows.items():
            if state is State.RUNNING:
                self.rows[key] = State.ABANDONED
        waiting = [key for key, state in self.rows.items() if state is State.DUE]
        return tuple(DueRow(SlotKey(*key), 0, Origin.CATCHUP, T0) for key in waiting)

    def _explained(self, name: str, at: datetime) -> bool:
        gaps = (g for g in self.gaps if g.job == name)
        return (name, at) in self.rows or any(g.first <= at <= g.last for g in gaps)


class Life:
    """Everything around the node, at the whim of one seed."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.d = Driver(JOBS, patient(pool=Pool(self.random.choice([1, 2, 64]), 5.0)))
        self.d.nonce = ""
        self.ledger = Ledger()
        self.asked: list[m.Effect] = []
        self.coming: list[m.Event] = []
        self.alive: list[str] = []
        self.over: set[str] = set()
        self.running: dict[str, str] = {}
        """Rows that say running, by run; with the nonce of the term that claimed them."""
        self.revision = 7
        self.exited = False

    def live(self, steps: int) -> None:
        self.step(None)
        for _ in range(steps):
            if self.exited:
                return
            self.pass_time()
            self.step(self.event())

    def step(self, event: m.Event | None) -> None:
        for effect in self.d.step(event):
            self.exited |= isinstance(effect, m.Exit)
            if isinstance(effect, m.Go):
                assert self.d.node.closed(self.d.boot_ns) is None
                assert effect.deadline_ns > self.d.boot_ns
            if not isinstance(effect, SILENT):
                self.asked.append(effect)
        self.check_counts()
        self.check_running()
        if not self.exited:
            self.check_alarms()

    def check_counts(self) -> None:
        """What the dispatch keeps count of is what a look at each flight finds."""
        dispatch = self.d.node._dispatch
        active = [f for f in dispatch.flights.values() if f.stage in ACTIVE]
        assert dispatch._busy == len(active)
        of_term = Counter(f.run.slot.job for f in active if f.run.term is dispatch._term)
        assert {job: len(runs) for job, runs in dispatch._busy_jobs.items()} == of_term

    def check_running(self) -> None:
        """A row of the term that says running is some flight's, until its write is answered: so no
        heartbeat need look for rows that nobody knows, and none stays running for ever."""
        term, flights = self.d.node.term, self.d.node._dispatch.flights
        if term is not None and not self.exited:
            own = {run_id for run_id, nonce in self.running.items() if nonce == term.nonce}
            assert own <= flights.keys()

    def check_alarms(self) -> None:
        """An alarm in the past would keep the daemon going round."""
        boot_ns, wall = self.d.node.wake_boot_ns(), self.d.node.wake_wall()
        assert boot_ns is None or boot_ns > self.d.boot_ns
        assert wall is None or wall > self.d.wall

    def pass_time(self) -> None:
        seconds = self.random.choice([0, 0, 0, 0.001, 0.05, 0.3, 1.0])
        if self.random.random() < 0.005:
            seconds = 9  # frozen past the deadline
        self.d.boot_ns += round(seconds * S)
        self.d.wall += timedelta(seconds=seconds)
        if self.random.random() < 0.005:
            self.d.wall += timedelta(seconds=self.random.choice([-30, -3, 3, 30]))

    # ---------------------------------------------------------------- what happens

    def event(self) -> m.Event | None:
        chance, nonce = self.random.random(), self.d.nonce
        if chance < 0.5 and self.asked:
            late = self.random.random() < 0.3
            return self.answer(
                self.asked.pop(self.random.randrange(len(self.asked)) if late else 0)
            )
        if chance < 0.6 and self.coming:
            return self.coming.pop(0)
        if chance < 0.75:
            sent_ns = self.d.boot_ns - self.random.choice([0, S // 10, S])
            return m.LeaseRenewed(nonce, sent_ns, TTL)
        if chance < 0.8 and self.alive:
            return self.end(self.random.choice(self.alive), result())
        if chance < 0.83:
            return self.trouble(nonce)
        return m.StopAsked(15) if 0.83 <= chance < 0.8305 else None

    def trouble(self, nonce: str) -> m.Event:
        often: list[m.Event] = [
            m.WatchBroken(nonce, "silent"),
            m.WatchOpened(nonce),
            m.WatchOpened(nonce),
        ]
        seldom: list[m.Event] = [
            m.KeyDeleted(nonce),
            m.KeyOverwritten(nonce),
            m.LeaseLost(nonce),
            m.SupervisorSilent(),
            m.LedgerFailed("away"),
            m.LedgerReached(),
        ]
        return self.random.choice([*often * 3, *seldom])

    def end(self, run_id: str, how: Result) -> m.Event | None:
        if run_id in self.over:
            return None
        self.over.add(run_id)
        if run_id in self.alive:
            self.alive.remove(run_id)
        return m.RunEnded(run_id, how)

    def not_started(self, run_id: str) -> m.Event | None:
        if run_id in self.over:
            return None
        self.over.add(run_id)
        return m.NotStarted(run_id, "it did not come to that")

    # ---------------------------------------------------------------- who is asked

    def answer(self, effect: m.Effect) -> m.Event | None:
        match effect:
            case m.Probe():
                return m.LedgerFailed("away") if self.seldom() else m.LedgerReached()
            case m.AskSupervisor():
                return m.SupervisorAnswered()
            case m.Join(nonce, _):
                return self.join(nonce)
            case m.Verify(nonce):
                return m.Verified(nonce, self.d.boot_ns)
            case m.Leave(nonce):
                return m.Left(nonce)
            case m.Prepare(run):
                return self.not_started(run.run_id) if self.seldom() else m.Prepared(run.run_id)
            case m.Go(run, _):
                return self.go(run.run_id)
            case m.Drop(run_id):
                return self.not_started(run_id)
            case m.Kill(run_id, _):
                return self.end(run_id, result("killed"))
            case _:
                return self.answer_of_the_ledger(effect)

    def join(self, nonce: str) -> m.Event:
        self.d.nonce = nonce
        if self.seldom():
            return m.JoinFailed(nonce, "lease_lost", "gone")
        self.revision += 3
        self.coming += [m.WatchOpened(nonce), m.Elected(nonce, self.revision, 9)]
        return m.LeaseRenewed(nonce, self.d.boot_ns, TTL)

    def go(self, run_id: str) -> m.Event | None:
        if run_id in self.over or self.seldom():
            return self.not_started(run_id)
        self.alive.append(run_id)
        return m.Started(run_id, self.d.wall)

    def answer_of_the_ledger(self, effect: m.Effect) -> m.Event:
        refused = NEWER if self.seldom() else None
        match effect:
            case m.Raise(candidate):
                return m.Raised(candidate.nonce, refused or candidate.revision)
            case m.ReadPast(term):
                known = KNOWN if self.ledger.planned_to else {}
                return m.PastRead(term.nonce, Past(self.ledger.planned_to, known))
            case m.Settle(term, settlement):
                if not refused:
                    self.ledger.write(settlement)
                return m.Settled(term.nonce, refused or self.ledger.sweep())
            case m.Take(term, batch):
                if not refused:
                    self.ledger.write(batch)
                won = {c.run_id: (c.seen or 0) + 1 for c in batch.claims if not self.seldom()}
                self.running |= {} if refused else dict.fromkeys(won, term.nonce)
                return m.BatchAnswered(term.nonce, batch, refused or Taken(won))
            case m.Heartbeat(term, planned_to):
                self.ledger.plan_to(planned_to)
                alive = Applied(ledger_now=self.d.wall)
                return m.HeartbeatAnswered(term.nonce, refused or alive, self.d.wall)
            case m.WriteFinish(term, finish, _):
                if not refused:
                    self.running.pop(finish.run_id, None)
                return m.FinishAnswered(term.nonce, finish.run_id, refused or Applied())
            case m.WritePutBack(term, back):
                self.ledger.rows[back.slot.job, back.slot.scheduled_for] = State.DUE
                if not refused:
                    self.running.pop(back.run_id, None)
                return m.PutBackAnswered(term.nonce, back.run_id, refused or Applied())
            case m.CloseTerm(term, _):
                return m.TermClosed(term.nonce, term.fence, refused or Applied())
        raise AssertionError(effect)

    def seldom(self) -> bool:
        return self.random.random() < 0.05


@pytest.mark.parametrize("seed", range(16))
def test_no_run_starts_behind_the_gate_no_slot_is_passed_and_no_alarm_lies_in_the_past(
    seed: int,
) -> None:
    Life(seed).live(400)
