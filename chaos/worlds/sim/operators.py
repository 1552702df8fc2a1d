"""What people do to a fleet of the sim: orders to the leader, restored backups, another release."""

from __future__ import annotations

from contextlib import ExitStack
from datetime import timedelta
from typing import TYPE_CHECKING

from chaos.gen import Draws
from chaos.plan import ORDERS, Fault, Move, Plan
from chaos.worlds.sim.engine import MS, SECOND
from chaos.worlds.sim.etcd import MEMBERS, Backup
from chaos.worlds.sim.ledger import Command
from cron_leader.core.model import (
    Asked,
    Backfill,
    Order,
    Pause,
    Resume,
    Rollback,
    Trigger,
)

if TYPE_CHECKING:
    from chaos.worlds.sim.daemon import Machine
    from chaos.worlds.sim.world import World

RESTORED_MS = 2_000
"""A service is stopped, restored and started in this time; the rest of the fault is thinking."""
FIRST_MS = 10_000
"""No backup is older: one of before the first leader is of no ledger of this fleet."""
APART_NS = 5 * SECOND
"""Between one node of a roll-out and the next."""


class Operators:
    """Of one world. Backups are taken before the faults that restore them."""

    def __init__(self, world: World, draws: Draws, plan: Plan) -> None:
        self._world, self._draws = world, draws
        self._of_etcd: dict[Move, Backup] = {}
        self._of_ledger: dict[Move, dict[str, object]] = {}
        for move in plan.moves:
            if move.fault in (Fault.ETCD_RESTORE, Fault.LEDGER_RESTORE):
                at_ms = max(FIRST_MS, move.at_ms - move.amount)
                world.engine.at(at_ms * MS, self._back_up, move)

    def _back_up(self, move: Move) -> None:
        if move.fault is Fault.ETCD_RESTORE:
            self._of_etcd[move] = self._world.etcd.backup()
        else:
            self._of_ledger[move] = self._world.ledger_server.ledger.backup()

    # ------------------------------------------------------------------ backups

    def restore_etcd(self, move: Move, undo: ExitStack) -> None:
        """All members go, and come back as they were; the fence is rebased when the fault ends."""
        world = self._world
        for member in range(MEMBERS):
            world.etcd.hurt(member, dumb=True)
        world.engine.at(world.engine.now_ns + RESTORED_MS * MS, self._etcd_back, move)
        undo.callback(self._rebase)

    def _etcd_back(self, move: Move) -> None:
        etcd = self._world.etcd
        for key in etcd.line.values():
            self._world.meddled(key.node, key.fence)
        etcd.restore(self._of_etcd.pop(move))
        for member in range(MEMBERS):
            etcd.mend(member, dumb=True)

    def _rebase(self) -> None:
        world = self._world
        world.ledger_server.ledger.rebase()
        world.etcd.rebased(world.ledger_server.ledger.offset)

    def restore_ledger(self, move: Move, undo: ExitStack) -> None:
        """It goes, and comes back as it was; whoever refuses it is told to go on at the end."""
        world = self._world
        world.ledger_server.stop()
        world.engine.at(world.engine.now_ns + RESTORED_MS * MS, self._ledger_back, move)
        undo.callback(self._admit)

    def _ledger_back(self, move: Move) -> None:
        server = self._world.ledger_server
        server.ledger.restore(self._of_ledger.pop(move))
        self._world.etcd.rebased(server.ledger.offset)
        self._world.restored(server.ledger.holder, server.ledger.fence)
        server.start()

    def _admit(self) -> None:
        if self._world.rollback is Rollback.REFUSE:
            self._world.rollback = Rollback.SKIP

    # ------------------------------------------------------------------ orders and releases

    def order(self, move: Move) -> None:
        server = self._world.ledger_server
        if server.ledger.fence is None or server.away:
            return
        self._world.bit()
        command_id, now = self._draws.hex(), server.wall()
        asked = self._order(move, command_id)
        server.ledger.commands[command_id] = Command(asked, now)

    def _order(self, move: Move, command_id: str) -> Order | Asked:
        server = self._world.ledger_server
        assert server.ledger.fence is not None
        now, job = server.wall(), f"job-{move.pick % self._world.plan.jobs}"
        match ORDERS[move.amount % len(ORDERS)]:
            case "step-down":
                return Order(command_id, server.ledger.fence[0], 5 * SECOND)
            case "trigger":
                return Trigger(command_id, job, now)
            case "pause":
                return Pause(command_id, job, float(self._draws.between(5, 60)))
            case "resume":
                return Resume(command_id, None)
            case _:
                return Backfill(command_id, job, now - timedelta(seconds=120), now, 2.0)

    def release(self, hit: list[Machine]) -> None:
        """Each node is restarted with the other configuration, one after the other."""
        engine = self._world.engine
        for n, machine in enumerate(hit):
            engine.at(engine.now_ns + n * APART_NS, self._restart, machine)

    def _restart(self, machine: Machine) -> None:
        machine.release = 1 - machine.release
        self._world.restart(machine)
