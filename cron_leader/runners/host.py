"""The job host: imports the user's modules once, then forks a process for every python run.

Run as `python -P -m cron_leader.runners.host serve|one FD PARENT`. `serve` speaks with the daemon
over FD, one JSON object a line; `one` is a single run whose control socket is FD. Never imports
gRPC, psycopg or pydantic: every run would carry them, and gRPC does not survive a fork.

    {"op": "load", "modules", "targets"}   -> {"op": "loaded", "jobs", "handlers", "errors"}
    {"op": "run", "run": ID, "fresh": B}   with control socket and output pipe (SCM_RIGHTS)
    {"op": "reap", "run": ID}              -> {"op": "reaped", "run": ID, "code": N}

A run that ended stays a zombie until it is to be reaped, so the daemon can kill its group safely;
the daemon sees the end by itself. With more than one thread forking is unsafe (a lock held by
another thread stays locked for ever), so then each run is an exec of `one`; and so is a run that is
to be `fresh`, for another user shall not have what we imported.
End of file on FD, the daemon's end, kills all runs.
"""

from __future__ import annotations

import gc
import json
import os
import signal
import socket
import sys
import threading
import traceback
from collections import deque
from collections.abc import Awaitable, Callable, Iterator
from contextlib import AbstractContextManager
from datetime import datetime
from functools import partial
from importlib import import_module
from inspect import isawaitable
from typing import TYPE_CHECKING, Any, NoReturn

from cron_leader.jobs import Opener, Tick, definitions, resolve
from cron_leader.runners.failure import Failure, traceback_text
from cron_leader.runners.wrapper import (
    change_folder,
    confine,
    die_with,
    is_late,
    is_taken_back,
    tell,
    wait_for_go,
)

if TYPE_CHECKING:
    import asyncio
    import subprocess

_KEPT = ("PATH", "HOME", "LANG", "TZ")
_SHARED = ("job", "scheduled_for", "fence", "attempt", "run_deadline")
"""What a Tick and its ticket to the ledger have in common."""
_CLOEXEC = getattr(socket, "MSG_CMSG_CLOEXEC", 0)


# ------------------------------------------------------------------ serving the daemon


class Host:
    """The loop that loads, forks and reaps; it runs none of the user's functions itself."""

    def __init__(self, daemon: socket.socket) -> None:
        self._daemon = daemon
        self._handed: deque[int] = deque()
        self._runs: dict[str, int | subprocess.Popen[bytes]] = {}
        self._environ_at_start = dict(os.environ)

    def serve(self) -> NoReturn:
        for message in self._messages():
            match message["op"]:
                case "load":
                    self._reply({"op": "loaded", **load(message["modules"], message["targets"])})
                    gc.collect()
                    gc.freeze()  # the collector must not touch, and so copy, what forks share
                case "run":
                    self._start(message["run"], fresh=message["fresh"])
                case "reap":
                    code = self._reap(self._runs.pop(message["run"]))
                    self._reply({"op": "reaped", "run": message["run"], "code": code})
        for process in self._runs.values():
            _kill_group(process if isinstance(process, int) else process.pid)
        os._exit(0)

    def _messages(self) -> Iterator[dict[str, Any]]:
        """Until end of file. Descriptors are queued in the order of the messages they came with."""
        unread = b""
        while True:
            try:
                data, handed, _, _ = socket.recv_fds(self._daemon, 65536, 16, _CLOEXEC)
            except ConnectionError:
                return
            if not data:
                return
            for fd in handed:
                os.set_inheritable(fd, False)
            self._handed.extend(handed)
            *lines, unread = (unread + data).split(b"\n")
            yield from map(json.loads, lines)

    def _reply(self, message: dict[str, Any]) -> None:
        self._daemon.sendall(json.dumps(message).encode() + b"\n")

    def _start(self, run: str, *, fresh: bool) -> None:
        control, output = self._handed.popleft(), self._handed.popleft()
        try:
            start = self._exec if fresh or not _single_threaded() else self._fork
            self._runs[run] = start(control, output)
        except OSError as error:
            tell(control, "failed", 126, f"the job host cannot start a process: {error}")
        finally:
            os.close(control)
            os.close(output)

    def _fork(self, control: int, output: int) -> int:
        host = os.getpid()
        sys.stdout.flush()
        sys.stderr.flush()
        if pid := os.fork():
            return pid
        try:
            os.setsid()
            os.dup2(output, 1)
            os.dup2(output, 2)
            self._daemon.close()
            for fd in (output, *self._handed):
                os.close(fd)
            serve_run(control, host)
        finally:
            os._exit(1)  # never back into the host's loop

    def _exec(self, control: int, output: int) -> subprocess.Popen[bytes]:
        import subprocess

        return subprocess.Popen(
            host_argv("one", control),
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            env=self._environ_at_start,
            start_new_session=True,
            pass_fds=(control,),
        )

    def _reap(self, process: int | subprocess.Popen[bytes]) -> int:
        if isinstance(process, int):
            return os.waitstatus_to_exitcode(os.waitpid(process, 0)[1])
        return process.wait()


def host_argv(mode: str, fd: int) -> list[str]:
    """How a job host is started, by the daemon and by another host."""
    host = "cron_leader.runners.host"
    return [sys.executable, "-P", "-m", host, mode, str(fd), str(os.getpid())]


def load(modules: list[str], targets: list[str]) -> dict[str, Any]:
    """Import everything; what failed is data, so that one bad module does not hide another."""
    errors: list[dict[str, str]] = []
    for module in modules:
        _note_failure(errors, f'module "{module}"', partial(import_module, module))
    jobs = definitions()  # of the modules only: a target's module may define others
    loaded = [
        target
        for target in targets
        if _note_failure(errors, f'"{target}"', partial(resolve, target))
    ]
    handlers = dict.fromkeys(loaded + [str(table["python"]) for table in jobs])
    return {"jobs": jobs, "handlers": list(handlers), "errors": errors}


def _note_failure(errors: list[dict[str, str]], what: str, call: Callable[[], object]) -> bool:
    """Whether `call` succeeded. BaseException, for it runs a user's module: it may even exit."""
    try:
        call()
    except BaseException as error:
        line = traceback.format_exception_only(error)[-1].strip()
        line = line.removeprefix("LookupError: ")
        errors.append({"what": what, "error": line, "traceback": traceback_text(error)})
        return False
    return True


def _single_threaded() -> bool:
    """As the kernel counts, where it can be asked: libraries start threads unknown to Python."""
    try:
        return len(os.listdir("/proc/self/task")) == 1
    except OSError:
        return threading.active_count() == 1


def _kill_group(pid: int) -> None:
    try:
        os.killpg(pid, signal.SIGKILL)
    except OSError:
        pass


# ------------------------------------------------------------------ being one run


class _Stop:
    """SIGTERM, noted; an async function is cancelled too."""

    def __init__(self) -> None:
        self.asked = False
        self.task: asyncio.Task[None] | None = None
        signal.signal(signal.SIGTERM, self._note)

    def _note(self, number: int, frame: object) -> None:
        self.asked = True
        if self.task is not None:
            self.task.get_loop().call_soon_threadsafe(self.task.cancel)


def serve_run(control: int, parent: int) -> NoReturn:
    """Wait for "go", call the function, exit with its code; in a session of our own already."""
    os.set_inheritable(control, False)
    die_with(parent)
    tell(control, "ready", os.getpid())
    go = wait_for_go(control)
    why = confine(go["bounds"], go["env"], parent) or change_folder(go["cwd"])
    os.environ.update(go["env"])
    stop = _Stop()
    _line_buffered()
    if why is not None:
        _leave(control, 126, "failed", why)
    try:
        function = resolve(go["target"])
        if (request := go.get("request")) is not None:
            function = partial(function, request)
    except BaseException as error:
        _leave(control, 1, "failed", traceback_text(error))
    if is_late(go["deadline_ns"]):
        tell(control, "late")
        os._exit(0)
    if is_taken_back(control):
        tell(control, "taken back")
        os._exit(0)
    tell(control, "entered")
    code, text = _call(function, _tick(go["tick"], stop, control), stop)
    if text is not None:
        _leave(control, code, "raised", text)
    _flush()
    os._exit(code)


def _tick(fields: dict[str, Any], stop: _Stop, control: int) -> Tick:
    for key in ("scheduled_for", "run_deadline"):
        fields[key] = datetime.fromisoformat(fields[key])
    ticket = fields.pop("ticket")
    guard = ticket and {name: (fields | ticket)[name] for name in ("election", "fence", "nonce")}
    return Tick(
        **fields,
        _asked_to_stop=lambda: stop.asked,
        _opener=_opener(ticket, fields, control),
        _guard=guard,
    )


def _opener(ticket: dict[str, Any] | None, tick: dict[str, Any], control: int) -> Opener:
    """tick.transaction(), its modules loaded when it is first called: few runs have one."""
    opened: list[Opener] = []

    def open_(*, final: bool, isolation: str, target: str | None) -> AbstractContextManager[Any]:
        from cron_leader.fencing import transaction

        if ticket is None:
            raise RuntimeError("tick.transaction(): this run was given no ledger")
        if not opened:
            told = {name: tick[name] for name in _SHARED}
            committed = partial(tell, control, "committed")
            opened.append(transaction.Opener(transaction.Ticket(**ticket, **told), committed))
        return opened[0](final=final, isolation=isolation, target=target)

    return open_


def _call(function: Callable[[Tick], object], tick: Tick, stop: _Stop) -> tuple[int, str | None]:
    """The exit code and, if it says more than the code, the error. The run boundary."""
    try:
        answer = function(tick)
        if isawaitable(answer) and not _completed(answer, stop):
            return 128 + signal.SIGTERM, "cancelled"
    except SystemExit as error:
        return _exit_code(error)
    except Failure as failure:
        return failure.code, failure.text
    except BaseException as error:
        return 1, traceback_text(error)
    return 0, None


def _completed(answer: Awaitable[object], stop: _Stop) -> bool:
    """Run an async function to its end; False if SIGTERM cancelled it."""
    import asyncio  # on demand: hosts of sync functions start twice as fast without

    async def attend() -> None:
        stop.task = asyncio.current_task()
        if stop.asked and stop.task is not None:
            stop.task.cancel()  # while there was no task yet
        await answer

    try:
        asyncio.run(attend())
    except asyncio.CancelledError:
        if not stop.asked:
            raise
        return False
    return True


def _exit_code(error: SystemExit) -> tuple[int, str | None]:
    match error.code:
        case None:
            return 0, None
        case int(code):
            return code & 0xFF, None
        case text:
            return 1, str(text)


def _leave(control: int, code: int, word: str, text: str) -> NoReturn:
    _flush()
    tell(control, word, code, text)
    os._exit(code)


def _line_buffered() -> None:
    """What a run printed before it was killed must not be lost in a buffer."""
    if reconfigure := getattr(sys.stdout, "reconfigure", None):
        reconfigure(line_buffering=True)


def _flush() -> None:
    """What was printed; os._exit runs no atexit handlers, which are the host's, not the run's."""
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except (OSError, ValueError):
            pass


def main(mode: str, fd: int, parent: int) -> NoReturn:
    os.set_inheritable(fd, False)
    if mode == "one":
        _only(_KEPT)
        serve_run(fd, parent)
    die_with(parent)
    host = Host(socket.socket(fileno=fd))
    _only(_KEPT)
    host.serve()


def _only(names: tuple[str, ...]) -> None:
    """The interpreter's own variables have done their work; runs must not see them."""
    for name in os.environ.keys() - set(names):
        del os.environ[name]


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
