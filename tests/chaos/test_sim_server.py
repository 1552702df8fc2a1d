"""The simulated ledger's locks: what a raise waits for, and for how long."""

from __future__ import annotations

import pytest

from chaos.plan import Plan
from chaos.worlds.sim.daemon import STARTED, Machine, RunProcess
from chaos.worlds.sim.engine import MS, SECOND
from chaos.worlds.sim.server import ENDS_HOLDERS_NS
from chaos.worlds.sim.world import World
from cron_leader.core.model import Run, SlotKey, Term


class Scene:
    """A leader, a run of its in the middle of its own transaction, and a raise above its fence."""

    def __init__(self) -> None:
        self.world = World(Plan(1, 60_000))
        self.world.engine.run(15 * SECOND)
        self.answers: list[object] = []
        self.waits: list[None] = []
        leader = self.world.leader()
        assert leader is not None
        assert leader.daemon is not None
        assert leader.daemon.node.term is not None
        self.machine: Machine = leader
        self.term: Term = leader.daemon.node.term

    def begin(self) -> None:
        job = self.world.fleet.jobs[0]["job-0"]
        run = Run("r", SlotKey("job-0", STARTED), 1, self.term, job)
        self.world.ledger_server.begin(self.machine, RunProcess(run))

    def raise_(self) -> None:
        self.world.ledger_server.raise_(
            self.machine,
            self.term.fence + 1,
            lambda: "raised",
            self.answers.append,
            lambda: self.waits.append(None),
        )

    def after(self, ns: int) -> None:
        self.world.engine.run(self.world.engine.now_ns + ns)

    def committed(self) -> int:
        return sum(op.f == "accepted" and op.value["relation"] == "user" for op in self.world.ops)


@pytest.fixture
def scene() -> Scene:
    return Scene()


def test_a_raise_waits_for_a_run_that_commits(scene: Scene) -> None:
    before = scene.committed()
    scene.begin()
    scene.raise_()
    assert scene.waits
    assert not scene.answers
    scene.after(ENDS_HOLDERS_NS - MS)
    assert scene.committed() > before
    assert scene.answers == ["raised"]


def test_a_run_that_is_frozen_is_ended_by_the_raise_and_commits_nothing(scene: Scene) -> None:
    scene.machine.jobs.freeze()
    before = scene.committed()
    scene.begin()
    scene.raise_()
    scene.after(ENDS_HOLDERS_NS - MS)
    assert not scene.answers
    scene.after(2 * MS)
    assert scene.answers == ["raised"]
    assert scene.committed() == before
