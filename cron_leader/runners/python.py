"""The daemon's side of the job host: what it reports, and the processes it forks for runs.

The host is started by exec, only if there are python or url jobs; when it dies its runs end as
failed and another is started.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import subprocess
import sys
from collections import deque
from collections.abc import Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass
from datetime import timedelta
from itertools import count
from pathlib import Path
from typing import Any

import cron_leader
from cron_leader.config import Config, build_jobs, merge_jobs
from cron_leader.core.model import HttpSpec, PythonSpec, Run
from cron_leader.errors import ConfigError
from cron_leader.events import timestamp
from cron_leader.runners.child import CannotStart, Child, Control, plumbing, shell_code
from cron_leader.runners.context import Context, environment, for_interpreter
from cron_leader.runners.demand import STOCK_AFTER_S, Demand
from cron_leader.runners.exits import watch_exit
from cron_leader.runners.host import host_argv
from cron_leader.runners.needs import bounds
from cron_leader.runners.url import SEND, request_of

IMPORT_TIMEOUT_S = 60.0
_ANSWER_S = 5.0  # the host runs no user code after import: one that is slower is stuck
_START_S = 10.0  # how long a run waits for a host that is importing
_RESTART_S = (0.0, 0.5, 1.0, 2.0, 5.0)


@dataclass(frozen=True, slots=True)
class Described:
    """What a job host reported. jobs: a `[[job]]` table for each @job; handlers: python targets
    this node can run."""

    jobs: tuple[Mapping[str, object], ...]
    handlers: tuple[str, ...]


async def describe(
    modules: Sequence[str],
    *,
    cwd: Path,
    targets: Sequence[str] = (),
    environ: Mapping[str, str] = os.environ,
) -> Described:
    """Import `modules` and `targets` in a job host that is ended again.

    cwd: the folder looked in first. Raises ConfigError with one line for each that cannot be
    imported; the tracebacks are its notes.
    """
    if not modules and not targets:
        return Described((), ())
    host = JobHost(cwd, environ)
    try:
        loaded = await host.load(modules, targets)
    except CannotStart as error:
        names = ", ".join((*modules, *targets))
        raise ConfigError(f"python jobs: {error}, importing {names}") from None
    finally:
        await host.close()
    if errors := loaded["errors"]:
        raise _cannot_import(errors, cwd)
    return Described(tuple(loaded["jobs"]), tuple(loaded["handlers"]))


async def with_code_jobs(config: Config) -> tuple[Config, tuple[str, ...]]:
    """The configuration with the jobs that its modules define, and what the job host offers.

    Raises ConfigError if a module, or the function of a [[job]], cannot be imported.
    """
    targets = [job.spec.target for job in config.jobs if isinstance(job.spec, PythonSpec)]
    described = await describe(config.modules, cwd=config.base, targets=targets)
    more = build_jobs(
        described.jobs,
        where="@job",
        base=config.base,
        fleet=config.fleet,
        blackouts=config.blackouts,
    )
    return merge_jobs(config, more), described.handlers


def _cannot_import(errors: Sequence[Mapping[str, str]], cwd: Path) -> ConfigError:
    looked = f"looked for in {cwd} (the configuration's folder) and on PYTHONPATH"
    lines = [f"python jobs: cannot import {e['what']}: {e['error']}; {looked}" for e in errors]
    config_error = ConfigError("\n".join(lines))
    for error in errors:
        config_error.add_note(error["traceback"])
    return config_error


class JobHost:
    """One job host process, from exec to burial.

    dying: it takes no more runs. died: it is reaped, and its runs were killed.
    """

    def __init__(self, base: Path, environ: Mapping[str, str]) -> None:
        """Start it. Raises OSError."""
        ours, theirs = socket.socketpair()
        with closing(theirs):
            try:
                self._process = subprocess.Popen(
                    host_argv("serve", theirs.fileno()),
                    stdin=subprocess.DEVNULL,
                    stdout=2,  # what modules print when imported; our stdout is for events
                    env=for_interpreter(environ) | {"PYTHONPATH": _search_path(base)},
                    start_new_session=True,
                    pass_fds=(theirs.fileno(),),
                )
            except OSError:
                ours.close()
                raise
        ours.setblocking(False)
        self.dying = False
        self.died = asyncio.Event()
        self._socket = ours
        self._children: dict[str, Child] = {}
        self._spares: deque[Child] = deque()
        self._numbers = count(1)
        self._answers: dict[str, asyncio.Future[Any]] = {}
        self._exited = asyncio.Event()
        self._unwatch = watch_exit(self._process.pid, self._exited.set)
        self._reader = asyncio.create_task(self._read())

    async def load(self, modules: Sequence[str], targets: Sequence[str]) -> dict[str, Any]:
        """Jobs, handlers and errors. Raises CannotStart if the host dies or hangs meanwhile."""
        message = {"op": "load", "modules": list(modules), "targets": list(targets)}
        answer = await self._ask("loaded", message, timeout_s=IMPORT_TIMEOUT_S)
        if answer is None:
            raise CannotStart(self.death())
        return dict(answer)

    async def spawn(self, run: Run) -> Child:
        """A process that waits for "go": one that stands ready, if there is one. Raises CannotStart
        or OSError."""
        fresh = run.job.user is not None
        spare = None if fresh else await self._take()
        return spare or await self._fork(run.run_id, fresh=fresh)

    async def stock(self, wanted: int) -> None:
        """Have so many processes stand ready, or as many as can be had."""
        while len(self._spares) > wanted:
            await self._discard(self._spares.pop())
        with suppress(CannotStart, OSError):
            while len(self._spares) < wanted and not self.dying:
                self._spares.append(await self._fork(f"spare {next(self._numbers)}", fresh=False))

    @property
    def spares(self) -> int:
        """How many stand ready."""
        return len(self._spares)

    async def _take(self) -> Child | None:
        """The oldest spare that is alive."""
        while self._spares:
            child = self._spares.popleft()
            if not child.exited.is_set():
                return child
            await self._discard(child)
        return None

    async def _discard(self, child: Child) -> None:
        child.signal(signal.SIGKILL)
        try:
            await child.bury()
        finally:
            _let_go(child)

    async def _fork(self, key: str, *, fresh: bool) -> Child:
        """key: what the host is to know it by."""
        ours, theirs, read, write = plumbing()
        control = Control(ours)
        try:
            with closing(theirs):
                message = {"op": "run", "run": key, "fresh": fresh}
                self._send(message, [theirs.fileno(), write])
            pid = await self._ready(control)
        except BaseException:
            control.close()
            os.close(read)
            raise
        finally:
            os.close(write)
        child = self._children[key] = Child(pid, control, read, lambda: self._reap(key))
        return child

    def death(self) -> str:
        """How it died, as far as that is known."""
        code = self._process.returncode
        if code is None:
            return "the job host does not answer"
        how = f"killed by signal {-code}" if code < 0 else f"exit code {shell_code(code)}"
        return f"the job host died ({how})"

    def kill(self) -> None:
        self.dying = True
        if not self._exited.is_set():
            os.kill(self._process.pid, signal.SIGKILL)

    async def close(self) -> None:
        """End it: by end of file, which kills its runs, or else by SIGKILL; idempotent."""
        if not self.died.is_set():
            with suppress(OSError):
                self._socket.shutdown(socket.SHUT_WR)
            try:
                async with asyncio.timeout(1.0):
                    await self.died.wait()
            except TimeoutError:
                self.kill()
                await self.died.wait()

    async def _ready(self, control: Control) -> int:
        try:
            async with asyncio.timeout(_ANSWER_S):
                status = await control.read()
        except TimeoutError:
            self.kill()
            raise CannotStart("the job host does not answer") from None
        match status:
            case ["ready", int(pid)]:
                return pid
            case ["failed", int(), str(text)]:
                raise CannotStart(text)
            case _:
                raise CannotStart("the job host died")

    async def _reap(self, run_id: str) -> int | str:
        self._children.pop(run_id, None)
        code = await self._ask(run_id, {"op": "reap", "run": run_id}, timeout_s=_ANSWER_S)
        if code is not None:
            return int(code)
        await self.died.wait()
        return f"{self.death()}, and its runs with it"

    async def _ask(self, key: str, message: dict[str, Any], *, timeout_s: float) -> Any:
        """The answer kept under `key`; None if the host died, or hung and was killed for it.

        The one message that is too long for the socket's buffer, `load`, goes before all others:
        nothing can fall between its parts.
        """
        if self.died.is_set():
            return None
        loop = asyncio.get_running_loop()
        answer = self._answers[key] = loop.create_future()
        try:
            async with asyncio.timeout(timeout_s):
                await loop.sock_sendall(self._socket, _line(message))
                return await answer
        except OSError:  # a TimeoutError is one
            self.kill()
            return None
        finally:
            self._answers.pop(key, None)

    def _send(self, message: dict[str, Any], fds: Sequence[int]) -> None:
        """Raises CannotStart; a host whose socket is full is stuck and is killed."""
        line = _line(message)
        try:
            if socket.send_fds(self._socket, [line], fds) == len(line):
                return
        except OSError:
            pass
        self.kill()
        raise CannotStart("the job host does not answer")

    async def _read(self) -> None:
        """Deal out its answers until it is gone, then bury it and end its runs."""
        unread = b""
        loop = asyncio.get_running_loop()
        try:
            while data := await loop.sock_recv(self._socket, 65536):
                *lines, unread = (unread + data).split(b"\n")
                for line in lines:
                    self._dispatch(json.loads(line))
        except ConnectionError:
            pass
        await self._bury()

    def _dispatch(self, message: dict[str, Any]) -> None:
        key, value = message["op"], message
        if message["op"] == "reaped":
            key, value = message["run"], message["code"]
        if (answer := self._answers.get(key)) is not None and not answer.done():
            answer.set_result(value)

    async def _bury(self) -> None:
        for child in list(self._children.values()):  # on Linux they are dying already
            child.signal(signal.SIGKILL)
        self.kill()
        await self._exited.wait()
        self._process.wait()
        self._unwatch()
        self._socket.close()
        while self._spares:
            _let_go(self._spares.pop())
        for answer in self._answers.values():
            if not answer.done():
                answer.set_result(None)
        self.died.set()


class PythonRuns:
    """The source of python runs: keeps a job host alive, and while the node leads as many processes
    forked ahead as the largest batch seen lately needed: a fork takes a millisecond or two."""

    def __init__(self, context: Context, modules: Sequence[str], base: Path) -> None:
        self._context = context
        self._modules, self._base = modules, base
        self._targets: Sequence[str] = ()
        self._host: JobHost | None = None
        self._loaded = asyncio.Event()
        self._keeper: asyncio.Task[None] | None = None
        self._last_death = "the job host died"
        self._demand = Demand(context.clock.boot_ns())
        self._asked = 0  # runs since the stock was last looked at
        self._leading = False
        self._stocking: asyncio.TimerHandle | asyncio.Task[None] | None = None

    def lead(self, leading: bool) -> None:
        """Whether the node leads. Cheap; to be told often, for what is wanted changes with time."""
        self._leading = leading
        host = self._host if self._loaded.is_set() else None
        if host is not None and self._stocking is None and host.spares != self._wanted():
            self._stock_later()

    async def start(self, targets: Sequence[str]) -> None:
        """Start the host; returns when it has imported what it could, or has failed to once."""
        self._targets = targets
        first = asyncio.Event()
        self._keeper = asyncio.create_task(self._keep(first))
        await first.wait()

    async def spawn(self, run: Run) -> Child:
        """Waits for a host that is being started, for a while, and survives the death of one.

        Raises CannotStart or OSError.
        """
        self._asked += 1
        host = await self._ready_host()
        try:
            return await host.spawn(run)
        except CannotStart:
            if not host.dying:
                raise
        await host.died.wait()
        return await (await self._ready_host()).spawn(run)

    def go(self, run: Run, deadline_ns: int) -> Mapping[str, object]:
        run_deadline = self._context.clock.wall() + timedelta(seconds=run.job.timeout_s)
        environ = environment(run, self._context, run_deadline)
        return {
            **_work(run, environ),
            "env": environ,
            "cwd": run.job.cwd,
            "bounds": bounds(run.job),
            "deadline_ns": deadline_ns,
            "tick": {
                "job": run.job.name,
                "scheduled_for": timestamp(run.slot.scheduled_for),
                "fence": run.term.fence,
                "lease": run.term.lease,
                "node": self._context.node,
                "attempt": run.attempt,
                "run_deadline": timestamp(run_deadline),
                "ticket": self._ticket(run),
            },
        }

    def _ticket(self, run: Run) -> Mapping[str, object] | None:
        """What tick.transaction() needs beyond the Tick; over the run's own socket, in memory."""
        if self._context.ledger is None or isinstance(run.job.spec, HttpSpec):
            return None
        return {
            "url": self._context.ledger.url,
            "ttl_s": self._context.ledger.ttl_s,
            "targets": dict(self._context.ledger.targets),
            "election": run.term.election,
            "nonce": run.term.nonce,
            "command_id": run.slot.command_id,
            "run_id": run.run_id,
        }

    def _wanted(self) -> int:
        return self._demand.spares(self._context.clock.boot_ns()) if self._leading else 0

    def _stock_later(self) -> None:
        """Not while runs are starting."""
        self._stocking = asyncio.get_running_loop().call_later(STOCK_AFTER_S, self._look)

    def _look(self) -> None:
        self._demand.batch(self._asked, self._context.clock.boot_ns())
        self._asked = 0
        self._stocking = asyncio.get_running_loop().create_task(self._stock())

    async def _stock(self) -> None:
        try:
            if self._host is not None and self._loaded.is_set():
                await self._host.stock(self._wanted())
        finally:
            self._stocking = None

    async def _ready_host(self) -> JobHost:
        try:
            async with asyncio.timeout(_START_S):
                while self._host is None or self._host.dying or not self._loaded.is_set():
                    self._loaded.clear()
                    await self._loaded.wait()
        except TimeoutError:
            raise CannotStart(f"no job host is ready; {self._last_death}") from None
        return self._host

    async def close(self) -> None:
        """Idempotent."""
        if self._stocking is not None:
            self._stocking.cancel()
        if self._keeper is not None:
            self._keeper.cancel()
            await asyncio.wait({self._keeper})
        if self._host is not None:
            await self._host.close()

    async def _keep(self, first: asyncio.Event) -> None:
        """Start hosts one after the other, ever slower while they do not come up."""
        failures = 0
        while True:
            await asyncio.sleep(_RESTART_S[min(failures, len(_RESTART_S) - 1)])
            try:
                host = self._host = JobHost(self._base, self._context.environ)
                await host.load(self._modules, self._targets)
                failures = 0
                self._loaded.set()
            except (CannotStart, OSError) as error:
                failures += 1
                self._last_death = str(error)
            first.set()
            if self._host is not None:
                await self._host.died.wait()
                self._last_death = self._host.death()
            self._loaded.clear()


def _let_go(child: Child) -> None:
    """Nothing of a spare stays with us."""
    child.let_go()
    os.close(child.output)


def _work(run: Run, environ: Mapping[str, str]) -> Mapping[str, object]:
    """The function to call, and the request that it is to send, if it is ours for that."""
    match run.job.spec:
        case PythonSpec(target):
            return {"target": target}
        case HttpSpec() as spec:
            return {"target": SEND, "request": request_of(run, spec, environ)}
        case other:
            raise TypeError(f"not for the job host: {other!r}")


def _line(message: Mapping[str, object]) -> bytes:
    return json.dumps(message).encode() + b"\n"


def _search_path(base: Path) -> str:
    """PYTHONPATH of a host: the configuration's folder, then where the daemon itself looks."""
    package = str(Path(cron_leader.__file__).parent.parent)
    return os.pathsep.join(dict.fromkeys([str(base), *filter(None, sys.path), package]))
