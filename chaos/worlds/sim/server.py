"""Where the ledger runs: it may be frozen, restarted, or restored; and who holds which lock in it.

A run's own transaction takes the guard's lock and keeps it until COMMIT, and its process may be
frozen, cut off or killed in between. A raise waits for such holders, and soon ends those of older
fences; the server ends them after a TTL. All other writes are over at once.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from chaos.gen import Draws
from chaos.worlds.sim.daemon import MICROSECOND, STARTED, Machine, RunProcess
from chaos.worlds.sim.engine import MS
from chaos.worlds.sim.ledger import ModelLedger

if TYPE_CHECKING:
    from chaos.worlds.sim.world import World

ENDS_HOLDERS_NS = 200 * MS
"""A raise ends the older holders that it has waited for so long."""
THAW_NS = 3 * MS


@dataclass(slots=True, eq=False)
class Hold:
    """A transaction between its guard and its COMMIT."""

    process: RunProcess
    open: bool = True


class LedgerServer:
    """Of one fleet."""

    def __init__(self, world: World, draws: Draws) -> None:
        self._world, self._draws = world, draws
        self.ledger = ModelLedger(world.committed, world.ended)
        self.frozen = self.away = 0
        self._held: list[Callable[[], object]] = []
        self._holds: list[Hold] = []
        self._waiting: list[Callable[[], object]] = []

    def wall(self) -> Any:
        """Its own clock, which is right."""
        return STARTED + self._world.engine.now_ns // 1_000 * MICROSECOND

    # ------------------------------------------------------------------ the leaders' requests

    def serve(self, machine: Machine, do: Callable[[], Any], answer: Callable[[Any], None]) -> None:
        """Answers None where the outcome is not known."""
        if self.away:
            self._world.bit()
            answer(None)
        elif self.frozen:
            self._hold_back(lambda: self.serve(machine, do, answer))
        else:
            done = do()
            if self._world.engine.now_ns < machine.lost_commits_until:
                self._world.bit()
                done = None
            answer(done)

    def raise_(
        self,
        machine: Machine,
        fence: int,
        do: Callable[[], Any],
        answer: Callable[[Any], None],
        waits: Callable[[], object],
    ) -> None:
        """As serve. waits: told that the raise, to this fence, waits for a lock."""

        def go_on() -> None:
            self.raise_(machine, fence, do, answer, waits)

        if self.frozen and not self.away:
            self._hold_back(go_on)
        elif not self.away and self.is_locked():
            waits()
            self._waiting.append(go_on)
            at_ns = self._world.engine.now_ns + ENDS_HOLDERS_NS
            self._world.engine.at(at_ns, self.end_holders, fence)
        else:
            self.serve(machine, do, answer)

    def is_locked(self) -> bool:
        """Whether somebody holds the lock of the election."""
        return bool(self._holds)

    def end_holders(self, fence: int) -> None:
        """Those of lower fences lose their sessions."""
        if self.frozen:
            self._hold_back(lambda: self.end_holders(fence))
            return
        for hold in [hold for hold in self._holds if hold.process.run.term.fence < fence]:
            self._close(hold)

    # ------------------------------------------------------------------ the runs' own transactions

    def begin(self, machine: Machine, process: RunProcess) -> None:
        """A run has written and asks the guard; COMMIT follows when its process gets to it."""
        if self.away:
            return
        if self.frozen:
            self._hold_back(lambda: self.begin(machine, process))
        elif self.ledger.guard(process.run.term):
            hold = Hold(process)
            self._holds.append(hold)
            engine = self._world.engine
            engine.at(engine.now_ns + self._world.limits.ttl_ns, self._close, hold)
            takes_ns = self._draws.between(1, 30) * MS
            if self._draws.percent(5):
                takes_ns *= 100
            machine.jobs.after(takes_ns, self._commit, machine, hold)

    def _commit(self, machine: Machine, hold: Hold) -> None:
        """By the run's process; one that has been killed has lost its connection."""
        end = self._committed if hold.process.alive else self._close
        machine.to_ledger.out(end, hold)

    def _committed(self, hold: Hold) -> None:
        if self.frozen:
            self._hold_back(lambda: self._committed(hold))
        elif hold.open and not self.away:
            term = hold.process.run.term
            self._world.committed(term.node, "user", term.fence, False)
            self._close(hold)

    def _close(self, hold: Hold) -> None:
        """COMMIT or ROLLBACK: whoever waits for the lock goes on."""
        if not hold.open:
            return
        hold.open = False
        self._holds.remove(hold)
        if not self._holds:
            waiting, self._waiting = self._waiting, []
            for go_on in waiting:
                go_on()

    # ------------------------------------------------------------------ what befalls it

    def _hold_back(self, ask: Callable[[], object]) -> None:
        self._world.bit()
        self._held.append(ask)

    def freeze(self) -> None:
        self.frozen += 1

    def thaw(self) -> None:
        """Its sessions go on in any order."""
        self.frozen -= 1
        if not self.frozen:
            held, self._held = self._held, []
            for ask in held:
                self._world.engine.at(self._world.engine.now_ns + self._draws.below(THAW_NS), ask)

    def stop(self) -> None:
        """Whatever is not committed is gone."""
        self.away += 1
        for hold in list(self._holds):
            self._close(hold)

    def start(self) -> None:
        self.away -= 1
