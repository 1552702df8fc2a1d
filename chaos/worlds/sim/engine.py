"""Virtual time: what is to happen next, processes that may freeze or die, and tasks inside them.

One thread; no real clock. Whatever is due at the same instant happens in the order it was asked.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Callable, Generator
from contextlib import suppress
from typing import Any

MS = 1_000_000
SECOND = 1_000 * MS
BOOTED_NS = 1_000 * SECOND
"""What every boot clock shows at the start of a run."""

Do = Callable[..., object]
Wait = int | Callable[["Task", int], None]
"""What a task yields: to sleep so many ns, or to be woken by what it starts."""
Steps = Generator[Wait, Any, Any]


class Engine:
    """The queue of what is to happen. now_ns: true time since the start of the run."""

    __slots__ = ("_heap", "_order", "_patience", "now_ns")

    def __init__(self) -> None:
        self.now_ns = 0
        self._order = 0
        self._heap: list[tuple[int, int, Do, tuple[Any, ...]]] = []
        self._patience: dict[int, Patience] = {}

    def at(self, at_ns: int, do: Do, *args: Any) -> None:
        """Not before now."""
        self._order += 1
        now_ns = self.now_ns
        heapq.heappush(self._heap, (at_ns if at_ns > now_ns else now_ns, self._order, do, args))

    def unless(self, task: Task, wait: int, ns: int, do: Do, *args: Any) -> None:
        """Do it so long from now, if the task then still waits for this."""
        patience = self._patience.get(ns)
        if patience is None:
            patience = self._patience[ns] = Patience(self, ns)
        patience.add(task, wait, do, args)

    def run(self, until_ns: int) -> None:
        heap, pop = self._heap, heapq.heappop
        while heap and heap[0][0] <= until_ns:
            self.now_ns, _, do, args = pop(heap)
            do(*args)
        self.now_ns = until_ns


class Patience:
    """Waits that are given up after one length of time. Almost all are over by then: they stand in
    a row of their own, of which the engine's queue has the first alone."""

    __slots__ = ("_engine", "_ns", "_row", "_set")

    def __init__(self, engine: Engine, ns: int) -> None:
        self._engine, self._ns = engine, ns
        self._row: deque[tuple[int, Task, int, Do, tuple[Any, ...]]] = deque()
        self._set = False

    def add(self, task: Task, wait: int, do: Do, args: tuple[Any, ...]) -> None:
        ends_ns = self._engine.now_ns + self._ns
        self._row.append((ends_ns, task, wait, do, args))
        if not self._set:
            self._set = True
            self._engine.at(ends_ns, self._look)

    def _look(self) -> None:
        row = self._row
        while row:
            ends_ns, task, wait, do, args = row[0]
            if task.waits_for == wait and ends_ns > self._engine.now_ns:
                self._engine.at(ends_ns, self._look)
                return
            row.popleft()
            if task.waits_for == wait:
                do(*args)
        self._set = False


class Process:
    """Something that runs. Frozen, it does nothing, and does it all when it is thawed; dead, it
    never does anything again."""

    __slots__ = ("_held", "_ices", "alive", "engine", "froze_ns", "runs")

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self.alive = self.runs = True
        """runs: it is alive and not frozen."""
        self.froze_ns: int | None = None
        self._ices = 0
        self._held: list[tuple[Do, tuple[Any, ...]]] = []

    def wake(self, do: Do, *args: Any) -> None:
        """Have it done by this process: now, or once it is thawed."""
        if not self.alive:
            return
        if self._ices:
            self._held.append((do, args))
        else:
            do(*args)

    def after(self, ns: int, do: Do, *args: Any) -> None:
        self.engine.at(self.engine.now_ns + ns, self.wake, do, *args)

    def freeze(self) -> None:
        """As often as it is frozen it must be thawed."""
        self._ices += 1
        self.runs = False
        if self.froze_ns is None:
            self.froze_ns = self.engine.now_ns

    def thaw(self) -> None:
        self._ices -= 1
        if self._ices or not self.alive:
            return
        self.runs = True
        held, self._held = self._held, []
        for do, args in held:
            self.wake(do, *args)
        if not self._ices:
            self.froze_ns = None

    def die(self) -> None:
        self.alive = self.runs = False
        self._held.clear()


class Task:
    """A generator run by a process, step by step, to its first wait at once. `yield ns` sleeps;
    `yield starter` waits for what the starter wakes it with, and for nothing older."""

    __slots__ = ("_ended", "_over", "_steps", "_wait", "process")

    def __init__(self, process: Process, steps: Steps, ended: Do | None = None) -> None:
        self.process, self._steps, self._ended = process, steps, ended
        self._wait, self._over = 0, False
        self._go(None)

    def resume(self, wait: int, value: Any) -> None:
        """As wake, by its process: once that is thawed."""
        if not self.process.runs:
            self.process.wake(self.wake, wait, value)
        elif wait == self._wait and not self._over:
            self._go(value)

    def wake(self, wait: int, value: Any) -> None:
        """Go on, if it is still this wait that it waits for."""
        if wait == self._wait and not self._over:
            self._go(value)

    @property
    def waits_for(self) -> int:
        """-1 when it is over."""
        return -1 if self._over else self._wait

    def _go(self, value: Any) -> None:
        self._wait += 1
        try:
            wanted = self._steps.send(value)
        except StopIteration:
            over, self._over = self._over, True
            if self._ended is not None and not over:
                self._ended()
            return
        if self._over:  # cancelled by what it did itself
            self._steps.close()
        elif isinstance(wanted, int):
            engine = self.process.engine
            engine.at(engine.now_ns + wanted, self.resume, self._wait, None)
        else:
            wanted(self, self._wait)

    def cancel(self) -> None:
        """It goes no further than to its next wait, where it is closed. (Were that left to the
        garbage collector, what a generator does at its end would happen at no certain time.)"""
        self._over = True
        with suppress(ValueError):  # it is running, and will be closed by _go
            self._steps.close()


class Box:
    """Messages for one task, in order."""

    __slots__ = ("_letters", "_waiter")

    def __init__(self) -> None:
        self._letters: list[Any] = []
        self._waiter: tuple[Task, int] | None = None

    def put(self, letter: Any) -> None:
        self._letters.append(letter)
        if self._waiter is not None:
            (task, wait), self._waiter = self._waiter, None
            task.wake(wait, None)

    def get(self) -> Any:
        """None: there is nothing."""
        return self._letters.pop(0) if self._letters else None

    def wait(self, ns: int) -> Wait:
        """To be yielded: until something is there, so long at most."""

        def start(task: Task, wait: int) -> None:
            engine = task.process.engine
            if self._letters:
                engine.at(engine.now_ns, task.resume, wait, None)
                return
            self._waiter = (task, wait)
            engine.at(engine.now_ns + ns, task.resume, wait, None)

        return start


class Clock:
    """A node's two clocks: the boot clock goes a little wrong, the wall clock is also set."""

    __slots__ = ("_at_ns", "_boot_ns", "_ppm", "step_ns")

    def __init__(self, ppm: int) -> None:
        self._at_ns, self._boot_ns, self._ppm = 0, BOOTED_NS, ppm
        self.step_ns = 0

    def boot_ns(self, now_ns: int) -> int:
        passed = now_ns - self._at_ns
        return self._boot_ns + passed + passed * self._ppm // 1_000_000

    def true_ns(self, boot_ns: int) -> int:
        """An instant at which the boot clock shows this, or a nanosecond more."""
        passed = boot_ns - self._boot_ns
        return self._at_ns - (-passed * 1_000_000 // (1_000_000 + self._ppm)) + 1

    def drift(self, now_ns: int, ppm: int) -> None:
        """From now on it goes wrong by so much."""
        self._boot_ns, self._at_ns, self._ppm = self.boot_ns(now_ns), now_ns, ppm
