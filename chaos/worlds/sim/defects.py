"""Defects of the parts that the simulator models; those of the core are in chaos/defects.py.

Each function takes one safety line out of the class that draws it, in the process that it is for;
the first line of its docstring says what is broken.
"""

# mypy: disable-error-code="assignment, method-assign"

from __future__ import annotations

from dataclasses import replace
from typing import Any

from chaos.worlds.sim.engine import SECOND

POLLED_NS = 3 * SECOND


# ------------------------------------------------------------------ etcd's client


def deadline_from_receipt() -> None:
    """a renewal counts from the receipt of its reply"""
    from chaos.worlds.sim.candidacy import Candidacy

    Candidacy.trusted_from = lambda self, sent_ns: self._daemon.boot_ns()


def no_last_check() -> None:
    """a candidate leads on one word of its watch, without another look at the line"""
    from chaos.worlds.sim.candidacy import Candidacy

    Candidacy.trusts_watch = lambda _: True


def no_hasleader() -> None:
    """a member cut off from its peers is listened to"""
    from chaos.worlds.sim.candidacy import Candidacy

    Candidacy.asks_for_leader = lambda _: False


def polled_flag() -> None:
    """a leader looks at its key every few seconds, and believes in between what it saw"""
    from chaos.worlds.sim.candidacy import Candidacy

    follow = Candidacy._follow

    def polling(c: Any, keys: Any, opened: Any = lambda: None) -> Any:
        if len(keys) > 1:
            return (yield from follow(c, keys, opened))
        opened()
        while (change := (yield from c._read_own())) is None:
            yield POLLED_NS
        return change

    Candidacy._follow = polling


# ------------------------------------------------------------------ the node


def gate_without_raise() -> None:
    """the gate opens before the ledger's fence is raised and the past is settled"""
    from cron_leader.core.model import Past
    from cron_leader.core.node import Node
    from cron_leader.core.standing import Phase

    elect = Node._on_elected

    def at_once(leader: Any, won: Any) -> None:
        elect(leader, won)
        if leader.phase is Phase.RAISING:
            leader._on_raised(won.revision)
            leader._on_past(Past(None, {}))
            leader._on_settled(())

    Node._on_elected = at_once


# ------------------------------------------------------------------ the supervisor


def revoked_before_runs() -> None:
    """a dead daemon's lease goes before its runs are killed"""
    from chaos.worlds.sim.daemon import Machine

    Machine.has_runs = lambda _: False


# ------------------------------------------------------------------ the ledger


def no_fence() -> None:
    """no guard, and a raise that compares nothing: the ledger commits whatever it is sent"""
    from chaos.worlds.sim.ledger import ModelLedger

    def raised(ledger: Any, candidate: Any, now: Any) -> int:
        return int(ledger.lift(candidate))

    ModelLedger.guard = lambda *_: True
    ModelLedger.raise_fence = raised


def row_guard_only() -> None:
    """only rows carry the fence: what no row stands for yet is written by whoever comes"""
    from chaos.worlds.sim.ledger import ModelLedger

    ModelLedger.guard = lambda *_: True


def raise_takes_equal() -> None:
    """the raise compares with <=: after a restore of etcd two terms share one fence"""
    from chaos.worlds.sim.ledger import ModelLedger

    ModelLedger.is_below = lambda self, fence: self.fence is None or self.fence[0] <= fence


def no_nonce() -> None:
    """a term is known by its fence alone: after a restore of etcd two of one fence pass for one"""
    from chaos.worlds.sim.ledger import ModelLedger

    ModelLedger.holds = lambda self, fence, _: self.fence is not None and self.fence[0] == fence


def guard_without_lock() -> None:
    """the guard reads the fence and does not hold it until COMMIT"""
    from chaos.worlds.sim.server import LedgerServer

    LedgerServer.is_locked = lambda self: False


def lost_commit_trusted() -> None:
    """a claim whose answer is lost counts as won"""
    from chaos.worlds.sim.scribe import Scribe
    from cron_leader.core import messages as m
    from cron_leader.core.model import Taken

    insist = Scribe._insist

    def trusting(scribe: Any, effect: Any) -> Any:
        if not isinstance(effect, m.Take):
            yield from insist(scribe, effect)
            return
        sent_ns = scribe._daemon.boot_ns()
        answer = yield scribe._send(effect, scribe._ask(effect), first=True)
        if answer is None:
            answer = Taken({c.run_id: (c.seen or 0) + 1 for c in effect.batch.claims})
        scribe._daemon.post(scribe._told(effect, answer, sent_ns))

    Scribe._insist = trusting


def attempt_kept() -> None:
    """the run after a takeover is the same attempt as the one before"""
    from chaos.worlds.sim import ledger

    ledger._next_attempt = lambda seen: max(seen, 1)


def loss_covered_up() -> None:
    """a claim after a fail-over hides that what was acknowledged before it is gone"""
    from chaos.worlds.sim.ledger import ModelLedger

    plan_to = ModelLedger._plan_to
    ModelLedger._plan_to = lambda self, term, planned_to, known: plan_to(
        self, term, planned_to, None
    )


def lost_slots_rerun() -> None:
    """`ledger_rollback = "skip"` runs what waits in the ledger that went back"""
    from chaos.worlds.sim.ledger import ModelLedger

    sweep = ModelLedger._sweep
    ModelLedger._sweep = lambda self, fence, settlement: sweep(
        self, fence, replace(settlement, skip=False)
    )


def sweep_without_state() -> None:
    """a takeover abandons every row of older terms, whatever its state"""
    from chaos.worlds.sim.ledger import ModelLedger

    ModelLedger._is_running = lambda self, row: True


def slots_read_early() -> None:
    """a takeover sweeps the slots that its leader read before the raise"""
    _sweep_what_was_read(whatever_its_state=False)


def slots_read_early_and_stateless() -> None:
    """a takeover sweeps the slots that its leader read before the raise, whatever became of them"""
    _sweep_what_was_read(whatever_its_state=True)


def _sweep_what_was_read(*, whatever_its_state: bool) -> None:
    """The rows that ran when somebody in line last looked whether the ledger is there."""
    from chaos.worlds.sim.ledger import ModelLedger
    from chaos.worlds.sim.server import LedgerServer
    from cron_leader.core.model import State

    look, sweep = LedgerServer.wall, ModelLedger._to_sweep
    early: list[Any] = []

    def and_read(server: Any) -> Any:
        early[:] = [row for row in server.ledger._open.values() if row.state is State.RUNNING]
        return look(server)

    def of_those(ledger: Any, fence: int) -> Any:
        waiting = [row for row in sweep(ledger, fence) if row.state is not State.RUNNING]
        return [*waiting, *(row for row in early if row.fence < fence)]

    LedgerServer.wall = and_read
    ModelLedger._to_sweep = of_those
    if whatever_its_state:
        sweep_without_state()
