"""The supervisor's one loop: no threads, nothing in it blocks but poll()."""

from __future__ import annotations

import os
import select
import signal

from .groups import Group, Lease, boot_ns
from .log import Log, complain
from .notify import Notify
from .pipe import Pipe
from .revoke import start_revoker
from .signals import ABORT, FORWARDED, STOPS, Signals

TYPE_CHECKING = False  # typing itself would cost a megabyte
if TYPE_CHECKING:
    import socket
    from collections.abc import Iterable, Mapping
    from typing import Any

SUSPEND_CHECK_S = 0.2
"""poll() counts a clock that stands still in suspend: look at the boot clock this often."""
GONE_CHECK_S = 0.01
LOOK_CLOSER_NS = 50_000_000
"""A killed group still there after this long may be zombies that nobody reaps."""
LAST_TRY_NS = 1_000_000_000
"""How long to revoke for a daemon that stopped in order, and so has tried for itself."""
NO_LEASE_TTL_NS = 10_000_000_000
"""How long to wait for killed groups to go when no lease says."""


class Supervisor:
    """Keeps what the daemon told, and acts when a clock, a signal or a wait status says so."""

    def __init__(
        self,
        daemon: int,
        sock: socket.socket,
        *,
        signals: Signals,
        log: Log,
        notify: Notify,
    ) -> None:
        self._daemon = daemon
        self._pipe = Pipe(sock)
        self._signals = signals
        self._log = log
        self._notify = notify
        self._lease: Lease | None = None
        self._groups: dict[str, Group] = {}
        self._exits: dict[int, int | None] = {daemon: None}
        self._stopping = False
        self._forced: int | None = None

    def run(self) -> int:
        """Stay until the daemon is dead and buried; the exit status to pass on."""
        while (status := self._exits[self._daemon]) is None:
            self._wait(self._until_deadline_s())
            # What was said before a freeze of ours counts, and reading it takes microseconds.
            self._listen()
            self._enforce_deadlines()
            self._obey()
            self._reap()
        self._bury(status)
        if self._forced is not None:
            return 128 + self._forced
        if self._stopping and -status in STOPS:  # while it was starting: it did not listen yet
            return 0
        return status if status >= 0 else 128 - status

    # -- one turn

    def _wait(self, timeout_s: float | None) -> None:
        """Until the daemon speaks, a signal comes, or the time is over (None: never)."""
        poll = select.poll()
        poll.register(self._signals.fd, select.POLLIN)
        if self._pipe.open:
            poll.register(self._pipe.sock, select.POLLIN)
        poll.poll(None if timeout_s is None else timeout_s * 1000)

    def _until_deadline_s(self) -> float | None:
        deadlines = [g.deadline_ns for g in self._groups.values() if g.deadline_ns is not None]
        if not deadlines:
            return None
        return min(max(0, min(deadlines) - boot_ns()) / 1e9, SUSPEND_CHECK_S)

    def _listen(self) -> None:
        for said in self._pipe.messages():
            try:
                self._heed(said)
            except (KeyError, TypeError, ValueError) as error:
                complain("a message without effect", repr(error))

    def _heed(self, said: Mapping[str, Any]) -> None:
        match said["op"]:
            case "lease":
                if self._lease is None or self._lease.id != said["lease"]:  # else told once more
                    self._lease = Lease(said)
                self._pipe.ack(said["seq"])
            case "deadline" if self._lease:
                self._lease.deadline_ns = int(said["boot_ns"])
            case "released" if self._lease and self._lease.id == said["lease"]:
                self._lease.released = True
            case "ready":
                self._notify.ready()
            case "alive":
                self._notify.alive()
            case "run":
                self._groups[said["run"]] = Group(said, self._lease)
                self._pipe.ack(said["seq"])
            case "end":
                self._groups.pop(said["run"], None)

    def _enforce_deadlines(self) -> None:
        now = boot_ns()
        late = [g for g in self._groups.values() if (at := g.deadline_ns) is not None and now >= at]
        self._kill(late, "deadline")

    def _obey(self) -> None:
        for number in self._signals.take():
            if number == signal.SIGTSTP:
                self._pause()
            elif number == ABORT or (number in STOPS and self._stopping):
                self._force(number)
            elif number in FORWARDED:
                if number in STOPS:
                    self._stopping = True
                    self._notify.stopping()
                os.kill(self._daemon, number)

    def _pause(self) -> None:
        """Ctrl-Z: the daemon, in a session of its own, does not see it. On waking, deadlines come
        before the daemon. As PID 1 we cannot stop, and pass on at once."""
        os.kill(self._daemon, signal.SIGSTOP)
        os.kill(os.getpid(), signal.SIGSTOP)
        self._listen()
        self._enforce_deadlines()
        os.kill(self._daemon, signal.SIGCONT)

    def _force(self, number: int) -> None:
        """A second request to stop, or the watchdog's: nothing is waited for. One more: not even
        for the kernel."""
        if self._forced is not None:
            os._exit(128 + number)
        self._forced = number
        self._notify.stopping()
        self._kill(self._groups.values(), "signal")
        os.kill(self._daemon, signal.SIGKILL)

    def _kill(self, groups: Iterable[Group], reason: str) -> None:
        if killed := sum([group.kill() for group in groups]):
            self._log("supervisor.killed", runs=killed, reason=reason)

    def _reap(self) -> None:
        """Collect every dead child; the status of those we started is kept, orphans' is not."""
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if not pid:
                return
            if self._exits.get(pid, 0) is None:  # else an orphan, perhaps with a number used before
                self._exits[pid] = os.waitstatus_to_exitcode(status)

    # -- after the daemon's death

    def _bury(self, status: int) -> None:
        """Kill what it ran, see it gone, and only then release its lease; at most one TTL."""
        began = boot_ns()
        self._notify.stopping()
        self._listen()
        self._pipe.close()
        self._kill(self._groups.values(), "daemon_died")
        lease = self._lease
        until = began + (lease.ttl_ns if lease else NO_LEASE_TTL_NS)
        gone = self._await_gone(until)
        if lease is None or lease.released:
            return
        if status in (0, 2):
            until = min(until, boot_ns() + LAST_TRY_NS)
        error = self._revoke(lease, until) if gone else "a killed run is still there"
        took_ms = (boot_ns() - began) / 1e6
        fields = {"error": error} if error else {}
        self._log("supervisor.revoked", lease=f"{lease.id:016x}", ok=not error,
                  duration_ms=round(took_ms, 1), **fields)  # fmt: skip

    def _await_gone(self, until_ns: int) -> bool:
        began, left = boot_ns(), list(self._groups.values())
        while True:
            self._reap()
            waited = boot_ns() - began
            left = [g for g in left if g.alive(look_closer=waited > LOOK_CLOSER_NS)]
            if not left or boot_ns() >= until_ns:
                return not left
            self._wait(GONE_CHECK_S)
            list(self._signals.take())

    def _revoke(self, lease: Lease, until_ns: int) -> str:
        """Ask all endpoints at once, a process each; why it is not known to be gone, or ""."""
        asked = []
        for endpoint in lease.endpoints:
            try:
                asked.append(start_revoker(endpoint, lease, until_ns))
            except OSError as error:
                complain("cannot start a process to revoke", error)
        self._exits.update(dict.fromkeys(asked))
        why = "no endpoint has confirmed it"
        while any(self._exits[pid] is None for pid in asked) and boot_ns() < until_ns:
            self._wait(SUSPEND_CHECK_S)
            if not set(STOPS).isdisjoint(self._signals.take()):
                why = "told to stop"
                break
            self._reap()
            if any(self._exits[pid] == 0 for pid in asked):
                why = ""
                break
        for pid in asked:
            if self._exits[pid] is None:
                os.kill(pid, signal.SIGKILL)
        return why
