"""Any course of events: answers whatever a node asks for, until it asks for nothing more."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass, field

from cron_leader.core import messages as m
from cron_leader.core.model import Applied, Batch, Run, SlotKey
from tests.core.driver import Driver, result


@dataclass
class Course:
    """bound: is called with the runs that go, after each effect, and asserts what must hold."""

    d: Driver
    bound: Callable[[Collection[Run]], None]
    going: dict[str, Run] = field(default_factory=dict)
    batches: list[Batch] = field(default_factory=list)
    ended: set[SlotKey] = field(default_factory=set)

    def answer(self) -> None:
        """What the last step asked for, and what that leads to."""
        todo = list(self.d.effects)
        while todo:
            todo += self._carry_out(todo.pop(0))
            self.bound(self.going.values())

    def end(self, run_id: str) -> None:
        """A run ends by itself, and its node does what that allows."""
        self._end(run_id)
        self.answer()

    def _carry_out(self, effect: m.Effect) -> list[m.Effect]:
        d = self.d
        match effect:
            case m.Take(_, batch) as take:
                self.batches.append(batch)
                return d.grant(take)
            case m.Prepare(run):
                self.going[run.run_id] = run
                return d.step(m.Prepared(run.run_id))
            case m.Go(run):
                return d.step(m.Started(run.run_id, d.wall))
            case m.Kill(run_id):
                return self._end(run_id, "killed by SIGTERM")
            case m.WriteFinish(term, finish):
                return d.step(m.FinishAnswered(term.nonce, finish.run_id, Applied()))
            case m.Heartbeat():
                return d.step(m.HeartbeatAnswered(d.nonce, Applied(), d.wall))
        return []

    def _end(self, run_id: str, error: str | None = None) -> list[m.Effect]:
        self.ended.add(self.going.pop(run_id).slot)
        return self.d.step(m.RunEnded(run_id, result(error)))
