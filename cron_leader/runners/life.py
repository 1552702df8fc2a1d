"""One run from "prepare" to its end, told as one coroutine; what comes from outside are orders."""

from __future__ import annotations

import asyncio
import signal
import traceback
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from enum import Enum, auto
from functools import partial
from typing import Protocol

from cron_leader.core.messages import (
    Event,
    NotStarted,
    Prepared,
    RunEnded,
    Started,
    SupervisorSilent,
)
from cron_leader.core.model import Result, Run
from cron_leader.runners.child import CannotStart, Child, Status, shell_code
from cron_leader.runners.context import Context
from cron_leader.runners.output import Output

LATE = "past the lease deadline"
_DRAIN_S = 1.0
_BURY_S = 5.0
_ENTER_S = 60.0  # between "go" and the exec, or the function's entry, which may import first


class Source(Protocol):
    """Where the process of a run comes from."""

    async def spawn(self, run: Run) -> Child:
        """A process that waits for "go". Raises CannotStart or OSError."""

    def go(self, run: Run, deadline_ns: int) -> Mapping[str, object]:
        """The "go" message, whole: nothing else is told to the process."""


class _Phase(Enum):
    WAITING = auto()  # nothing of the job has run, nor can it
    TOLD = auto()  # "go" was sent
    STARTED = auto()
    OVER = auto()


class Life(ABC):
    """A run's orders, and its reports in their order. Orders may come at any time, or twice."""

    def __init__(self, run: Run, context: Context) -> None:
        self.run = run
        self.context = context
        self._order: asyncio.Future[int | None] = asyncio.get_running_loop().create_future()
        self._recalled = False
        self._phase = _Phase.WAITING
        self._started_ns = 0

    def go(self, deadline_ns: int) -> None:
        """Start it, unless the boot clock has passed deadline_ns by then."""
        if not self._order.done():
            self._order.set_result(deadline_ns)

    def drop(self) -> None:
        """It is not to start. After `go`: only if nothing of it has run by then."""
        if not self._order.done():
            self._order.set_result(None)
        elif self._phase is _Phase.WAITING:
            self._recalled = True  # "go" was ordered, but the order is not carried out yet
        elif self._phase is _Phase.TOLD:
            self._take_back()

    def kill(self, grace_s: float) -> None:
        """End it: ask, and insist after grace_s (0: at once). Not yet told to go: drop it."""
        self.drop()
        if self._phase in {_Phase.TOLD, _Phase.STARTED}:
            self._stop(grace_s)

    async def live(self) -> None:
        """All of it. This is the run boundary: whatever goes wrong costs this run only."""
        try:
            await self._live()
        except (CannotStart, OSError) as error:
            self._fail(str(error), traceback.format_exc())
        except Exception as error:
            self._fail(f"internal error: {error!r}", traceback.format_exc())

    @abstractmethod
    async def _live(self) -> None: ...

    @abstractmethod
    def _take_back(self) -> None: ...

    @abstractmethod
    def _stop(self, grace_s: float) -> None: ...

    async def _ordered(self) -> int | None:
        """The deadline to start by, once it is ordered; None: it is not to start."""
        deadline_ns = await self._order
        return None if self._recalled else deadline_ns

    @property
    def _dropped(self) -> bool:
        return self._order.done() and self._order.result() is None

    def _not_started(self, why: str) -> None:
        self._say(_Phase.OVER, NotStarted(self.run.run_id, why))

    def _started(self) -> None:
        self._started_ns = self.context.clock.boot_ns()
        self._say(_Phase.STARTED, Started(self.run.run_id, self.context.clock.wall()))

    def _ended(self, result: Result) -> None:
        self._say(_Phase.OVER, RunEnded(self.run.run_id, result))

    def _result(self, error: str) -> Result:
        """The end of a run that failed for reasons of ours, now."""
        return Result(
            exit_code=None,
            timed_out=False,
            error=error,
            output=None,
            finished_at=self.context.clock.wall(),
            duration_ns=self.context.clock.boot_ns() - self._started_ns,
        )

    def _timed_out_text(self) -> str:
        return f"timed out after {self.run.job.timeout_s:g} s"

    def _fail(self, why: str, detail: str) -> None:
        match self._phase:
            case _Phase.WAITING:
                self._not_started(why)
            case _Phase.TOLD:
                self._started()
                self._ended(self._result(detail))
            case _Phase.STARTED:
                self._ended(self._result(detail))
            case _Phase.OVER:
                pass

    def _say(self, phase: _Phase, event: Event) -> None:
        self._phase = phase
        self.context.report(event)


class ProcessLife(Life):
    """A run in a process of its own."""

    def __init__(self, run: Run, context: Context, source: Source) -> None:
        super().__init__(run, context)
        self._source = source
        self._child: Child | None = None
        self._failure: tuple[int, str] | None = None
        self._timed_out = self._committed = False
        self._buried = False
        self._timers: list[asyncio.TimerHandle] = []

    async def _live(self) -> None:
        child = self._child = await self._source.spawn(self.run)
        output = Output(child.output, head=self.run.job.output_head, tail=self.run.job.output_tail)
        try:
            if await self._prepared(child) and await self._went(child):
                await self._attend(child, output)
        finally:
            await self._clear_away(child, output)

    async def _prepared(self, child: Child) -> bool:
        """Registered with the supervisor, so that it may be told to go."""
        if not self._dropped and not await self._registered(child):
            self._not_started("the supervisor did not acknowledge the run")
            self.context.report(SupervisorSilent())
            return False
        if self._dropped:
            self._not_started("dropped")
            return False
        self.context.report(Prepared(self.run.run_id))
        return True

    async def _registered(self, child: Child) -> bool:
        if self.context.link is None:
            return True
        return await self.context.link.register(
            self.run.run_id,
            child.pid,
            child.start,
            may_finish=self.run.job.may_finish,
            timeout_s=self.context.ack_timeout_s,
        )

    async def _went(self, child: Child) -> bool:
        """Wait for the order, hand it on, and learn whether the job runs."""
        deadline_ns = await self._ordered()
        if deadline_ns is None:
            self._not_started("dropped")
            return False
        self._phase = _Phase.TOLD
        stuck = self._after(_ENTER_S, partial(child.signal, signal.SIGKILL))
        try:
            await child.control.send(self._source.go(self.run, deadline_ns))
        except OSError:
            self._not_started("its process ended before it was told to go")
            return False
        status = await child.control.read()
        stuck.cancel()
        return self._answered(status)

    def _answered(self, status: Status | None) -> bool:
        match status:
            case ["late"]:
                self._not_started(LATE)
                return False
            case ["taken back"]:
                self._not_started("dropped")
                return False
            case ["failed", int(code), str(text)]:
                self._failure = (code, text)
        # End of file is the exec; or a death on the way to it, which counts as a start: "go" was
        # sent, and nobody said that nothing ran.
        self._started()
        self._after(self.run.job.timeout_s, self._time_out)
        return True

    async def _attend(self, child: Child, output: Output) -> None:
        listening = asyncio.create_task(self._listen(child))
        try:
            await child.exited.wait()
            ended_ns, ended_at = self.context.clock.boot_ns(), self.context.clock.wall()
            self._cancel_timers()  # what has ended in time does not time out in what follows
            code = await self._bury(child)
            await asyncio.wait({listening}, timeout=_DRAIN_S)
            await output.drain(_DRAIN_S)
        finally:
            listening.cancel()
        error, exit_code = self._judge(code)
        self._ended(
            Result(
                exit_code=exit_code,
                timed_out=self._timed_out,
                error=error,
                output=output.text(),
                finished_at=ended_at,
                duration_ns=ended_ns - self._started_ns,
                committed=self._committed,
            )
        )

    async def _listen(self, child: Child) -> None:
        """What a python run says of its end; a command's control socket is closed by now."""
        while (status := await child.control.read()) is not None:
            match status:
                case ["raised", int(code), str(text)]:
                    self._failure = (code, text)
                case ["committed"]:
                    self._committed = True

    def _judge(self, code: int | str) -> tuple[str | None, int | None]:
        """(error, exit code as a shell counts) of a run that was reaped with `code`."""
        if isinstance(code, str):
            return self._timed_out_text() if self._timed_out else code, None
        error = None
        if self._timed_out:
            error = self._timed_out_text()
        elif self._failure is not None and code != -signal.SIGKILL:
            code, error = self._failure
        elif code < 0:
            error = f"killed by {_signal_name(-code)}"
        elif code > 0:
            error = f"exit code {code}"
        return error, shell_code(code)

    def _time_out(self) -> None:
        self._timed_out = True
        self._stop(self.run.job.grace_s)

    def _take_back(self) -> None:
        if self._child is not None:
            self._child.control.take_back()

    def _stop(self, grace_s: float) -> None:
        if self._child is None:
            return
        if grace_s <= 0:
            self._child.signal(signal.SIGKILL)
            return
        self._child.signal(signal.SIGTERM)
        self._child.signal(signal.SIGCONT)  # a stopped process would not see the SIGTERM
        self._after(grace_s, partial(self._child.signal, signal.SIGKILL))

    def _after(self, delay_s: float, call: Callable[[], None]) -> asyncio.TimerHandle:
        timer = asyncio.get_running_loop().call_later(delay_s, call)
        self._timers.append(timer)
        return timer

    def _cancel_timers(self) -> None:
        for timer in self._timers:
            timer.cancel()

    async def _bury(self, child: Child) -> int | str:
        """The group dead and its leader reaped, the supervisor need not remember it."""
        code = await child.bury()
        if self.context.link is not None and not self._buried:
            self.context.link.ended(self.run.run_id)
        self._buried = True
        return code

    async def _clear_away(self, child: Child, output: Output) -> None:
        """Whatever happened: no process, descriptor or timer of the run stays.

        Only a process that SIGKILL cannot end (stuck in the kernel) is left after a while; the
        supervisor still knows its group.
        """
        self._cancel_timers()
        child.signal(signal.SIGKILL)
        try:
            async with asyncio.timeout(_BURY_S):
                await self._bury(child)
        except TimeoutError:
            pass
        finally:
            child.let_go()
            output.close()


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
