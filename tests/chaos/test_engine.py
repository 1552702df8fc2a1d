"""The engine of the simulator: order, frozen processes, tasks and how they end."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from chaos.worlds.sim.engine import MS, Engine, Process, Steps, Task, Wait


@pytest.fixture
def engine() -> Engine:
    return Engine()


def asking(engine: Engine, answers_ns: int, within_ns: int) -> Wait:
    """An answer, or None if there is none in time."""

    def start(task: Task, wait: int) -> None:
        engine.at(engine.now_ns + answers_ns, task.resume, wait, "answer")
        engine.unless(task, wait, within_ns, task.resume, wait, None)

    return start


def heard_by(engine: Engine, heard: list[object], *asked: tuple[int, int]) -> Callable[[], Steps]:
    def steps() -> Steps:
        for answers_ns, within_ns in asked:
            heard.append(((yield asking(engine, answers_ns, within_ns)), engine.now_ns))

    return steps


def test_what_is_due_at_one_instant_happens_in_the_order_it_was_asked(engine: Engine) -> None:
    done: list[int] = []
    for n in (1, 2, 3):
        engine.at(MS, done.append, n)
    engine.at(0, done.append, 0)
    engine.run(MS)
    assert done == [0, 1, 2, 3]


def test_a_wait_ends_with_its_answer_or_is_given_up_in_time(engine: Engine) -> None:
    heard: list[object] = []
    steps = heard_by(engine, heard, (MS, 5 * MS), (9 * MS, 5 * MS), (MS, 5 * MS))
    Task(Process(engine), steps())
    engine.run(100 * MS)
    assert heard == [("answer", MS), (None, 6 * MS), ("answer", 7 * MS)]


def test_waits_of_one_length_are_given_up_each_at_its_own_time(engine: Engine) -> None:
    heard: list[object] = []
    process = Process(engine)
    for n in range(3):
        answers_ns = MS if n == 1 else 50 * MS
        engine.at(
            n * MS, Task, process, heard_by(engine, heard, (answers_ns, 5 * MS), (MS, 5 * MS))()
        )
    engine.run(100 * MS)
    given_up = [at for said, at in heard if said is None]  # type: ignore[misc]
    assert given_up == [5 * MS, 7 * MS]
    assert len(heard) == 6


def test_a_frozen_process_hears_what_was_said_when_it_is_thawed(engine: Engine) -> None:
    heard: list[object] = []
    process = Process(engine)
    Task(process, heard_by(engine, heard, (MS, 5 * MS))())
    process.freeze()
    engine.run(20 * MS)
    assert not heard
    process.thaw()
    assert heard == [("answer", 20 * MS)]


def test_a_cancelled_task_is_closed_at_once_or_where_it_next_waits(engine: Engine) -> None:
    """Not when the garbage collector comes by."""
    closed: list[str] = []
    tasks: dict[str, Task] = {}

    def steps(name: str) -> Steps:
        try:
            yield MS
            for task in tasks.values():
                task.cancel()
            closed.append("nobody but the others")
            yield MS
        finally:
            closed.append(name)

    for name in ("a", "b"):
        tasks[name] = Task(Process(engine), steps(name))
    engine.run(10 * MS)
    assert closed == ["b", "nobody but the others", "a"]
    assert {task.waits_for for task in tasks.values()} == {-1}
