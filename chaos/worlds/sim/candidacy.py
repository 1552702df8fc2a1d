"""What cron_leader/etcd does for one candidacy, in the model's words: lease, line, watch, leaving.

A copy of the protocol, not of the code: each promise of that package (trust from the send, one
keepalive in flight, the last look, silence is a failure, leaving guarded by the revision) has one
method here, which a canary may break.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from typing import TYPE_CHECKING, Any

from chaos.worlds.sim.engine import MS, SECOND, Box, Process, Steps, Task, Wait
from chaos.worlds.sim.etcd import CLUSTER, MEMBERS, REFUSED, Etcd, Key, Watch
from chaos.worlds.sim.network import Way
from cron_leader.core import messages as m

if TYPE_CHECKING:
    from chaos.worlds.sim.daemon import Daemon

PAUSE_NS = 250 * MS
LEAVE_NS = 2 * SECOND
RECORD_NS = SECOND // 2
PUT_TRIES = 3
NOTHING = object()
"""An answer that says nothing, as against no answer."""


class Client:
    """One daemon's way to etcd: through one member at a time, another when that one is silent."""

    def __init__(self, etcd: Etcd, way: Way, process: Process, member: int) -> None:
        self.etcd, self.way, self.process, self.member = etcd, way, process, member

    def rotate(self, member: int) -> None:
        if member == self.member:
            self.member = (member + 1) % MEMBERS

    def ask(self, do: Callable[[], Any], within_ns: int) -> Wait:
        """To be yielded: the answer, NOTHING for one of None; None if there is none in time."""
        member = self.member

        def start(task: Task, wait: int) -> None:
            def answered(answer: Any) -> None:
                said = NOTHING if answer is None else answer
                self.way.back(task.resume, wait, said)

            self.way.out(self.etcd.serve, member, do, answered)
            self._give_up(task, wait, member, within_ns)

        return start

    def keep_alive(self, lease: int, within_ns: int) -> Wait:
        """As ask: the TTL in the reply."""
        member = self.member

        def start(task: Task, wait: int) -> None:
            def answered(ttl_ns: int) -> None:
                self.way.back(task.resume, wait, ttl_ns)

            self.way.out(self.etcd.keep_alive, member, lease, answered)
            self._give_up(task, wait, member, within_ns)

        return start

    def _give_up(self, task: Task, wait: int, member: int, within_ns: int) -> None:
        """Unless it is answered within that time, by the node's own clock of when it can look."""
        self.process.engine.unless(
            task, wait, within_ns, self.process.wake, self._silent, task, wait, member
        )

    def _silent(self, task: Task, wait: int, member: int) -> None:
        if wait == task.waits_for:
            self.rotate(member)
            task.wake(wait, None)


class Candidacy:
    """One lease, from grant to revoke. It lives in the daemon's process."""

    def __init__(self, daemon: Daemon, nonce: str, lease: int) -> None:
        self._daemon, self.nonce, self.lease = daemon, nonce, lease
        self._client, self._report = daemon.client, daemon.post
        limits = daemon.limits
        self._ttl_ns, self._renew_ns = limits.ttl_ns, limits.ttl_ns // 3
        self._timeout_ns = self._renew_ns // 2
        self.sent_ns = self._seen = 0
        """When the renewal that was answered last was sent."""
        self.created: int | None = None
        self._granted = self._leading = self._over = False
        self._recording = 0
        self._tasks = [Task(daemon.process, self._hold())]

    def _ask(self, do: Callable[[], Any]) -> Wait:
        return self._client.ask(do, self._timeout_ns)

    # ------------------------------------------------------------------ lease

    def _hold(self) -> Steps:
        etcd = self._client.etcd
        if (yield self._ask(etcd.look)) is None:
            yield from self._fail("unreachable")
            return
        self._granted, self.sent_ns = True, self._daemon.boot_ns()
        ttl_ns = yield self._ask(lambda: etcd.grant(self.lease, self._ttl_ns))
        if ttl_ns is None or ttl_ns is REFUSED:
            yield from self._fail("unreachable" if ttl_ns is None else "refused")
            return
        self._renewed(self.sent_ns, ttl_ns)
        self._tasks.append(Task(self._daemon.process, self._keep()))
        yield from self._campaign()

    def _keep(self) -> Steps:
        while True:
            sent_ns = self._daemon.boot_ns()
            due_ns = self.sent_ns + self._renew_ns - sent_ns
            if due_ns > 0:
                yield due_ns
                continue
            ttl_ns = yield self._client.keep_alive(self.lease, self._timeout_ns)
            if ttl_ns is None:
                yield min(SECOND // 2, self._renew_ns // 8)
            elif ttl_ns <= 0:
                yield from self._lost()
                return
            else:
                self.sent_ns = sent_ns
                self._renewed(sent_ns, ttl_ns)

    def _renewed(self, sent_ns: int, ttl_ns: int) -> None:
        """Trust counts from the send."""
        self._report(m.LeaseRenewed(self.nonce, self.trusted_from(sent_ns), ttl_ns))

    def trusted_from(self, sent_ns: int) -> int:
        return sent_ns

    def _lost(self) -> Steps:
        if self._leading:
            self._report(m.LeaseLost(self.nonce))
        else:
            yield from self._fail("lease_lost")

    # ------------------------------------------------------------------ line

    def _campaign(self) -> Steps:
        etcd, name = self._client.etcd, self._daemon.name
        for _ in range(PUT_TRIES):
            key = yield self._ask(lambda: etcd.put(name, self.nonce, self.lease))
            if key is not None:
                break
        if key is None or key is NOTHING or key is REFUSED:
            why = {None: "unreachable", REFUSED: "refused"}.get(key, "lease_lost")
            yield from self._fail(why)
            return
        self.created = key.created
        while (ahead := (yield from self._look())) is not None:
            if ahead is NOTHING or (
                (yield from self._follow(frozenset({self.lease, ahead}))) and self.trusts_watch()
            ):
                break
        if ahead is not NOTHING:
            yield from self._lead()

    def trusts_watch(self) -> bool:
        """Whether one word of the watch makes a leader. It never does: the line is read again."""
        return False

    def _look(self) -> Steps:
        """Who is just ahead; None: nobody; NOTHING: we are out of line."""
        while (found := (yield self._ask(self._client.etcd.look))) is None:
            yield PAUSE_NS
        self._seen, line, self._raised = found
        own = next((key for key in line if key.lease == self.lease), None)
        if own is None or (own.created, own.modified) != (self.created, self.created):
            yield from self._fail("lease_lost")
            return NOTHING
        before = [key.lease for key in line if key.created < own.created]
        return before[-1] if before else None

    def _lead(self) -> Steps:
        raised = self._raised or {}
        known: datetime | None = raised.get("known")
        assert self.created is not None
        self._leading = True
        least, rollback = raised.get("fence", 0), self._daemon.world.rollback
        self._report(m.Elected(self.nonce, self.created, CLUSTER, least, rollback, known))
        while True:
            change = yield from self._follow(frozenset({self.lease}), self._opened)
            if change is None:
                self._report(m.WatchBroken(self.nonce, "silent"))
                change = yield from self._read_own()
            if change is not None:
                break
        gone = m.KeyDeleted if change[1] else m.KeyOverwritten
        self._report(gone(self.nonce))

    def _opened(self) -> None:
        self._report(m.WatchOpened(self.nonce))

    def _read_own(self) -> Steps:
        """None: it is ours still."""
        etcd, seen = self._client.etcd, self._seen
        while (found := (yield self._ask(lambda: etcd.read(self.lease)))) is None:
            yield PAUSE_NS
        if self._went_back(found[0], seen):
            return self.lease, True
        self._seen, key = found
        return None if self._holds(key) else (self.lease, key is None)

    def _went_back(self, revision: int, seen: int) -> bool:
        """Whether the store is older than what was seen in it: the key in it is history's."""
        return revision < seen

    def _holds(self, key: Key | None) -> bool:
        return key is not None and key.created == key.modified == self.created

    # ------------------------------------------------------------------ watch

    def _follow(self, keys: frozenset[int], opened: Callable[[], None] = lambda: None) -> Steps:
        """(key, deleted) of the next change; None if the watch has ended: nothing is known."""
        box, client, member = Box(), self._client, self._client.member
        watch = Watch(
            member=member,
            keys=keys,
            seen=self._seen,
            process=self._daemon.process,
            way=client.way,
            tell=lambda key, deleted: box.put((key, deleted)),
            lost=lambda: box.put("lost"),
            hasleader=self.asks_for_leader(),
        )
        if (yield self._ask(lambda: client.etcd.watch(watch))) is None:
            watch.open = False
            yield PAUSE_NS
            return None
        opened()
        try:
            return (yield from self._listen(watch, box))
        finally:
            watch.open = False

    def asks_for_leader(self) -> bool:
        return True

    def _listen(self, watch: Watch, box: Box) -> Steps:
        boot_ns, client = self._daemon.boot_ns, self._client
        asked_ns: int | None = None
        next_ns = boot_ns() + self._ttl_ns // 3
        while True:
            match box.get():
                case (key, deleted):
                    return key, deleted
                case "lost":
                    yield PAUSE_NS
                    return None
                case "progress":
                    asked_ns = None
                    continue
            now_ns = boot_ns()
            if asked_ns is not None and now_ns - asked_ns >= self._ttl_ns // 2:
                client.rotate(watch.member)
                return None
            if now_ns >= next_ns:
                asked_ns = asked_ns or now_ns
                next_ns = now_ns + self._ttl_ns // 3
                client.way.out(self._progress, watch, box)
            ends_ns = next_ns if asked_ns is None else min(next_ns, asked_ns + self._ttl_ns // 2)
            yield box.wait(max(ends_ns - now_ns, 1_000))

    def _progress(self, watch: Watch, box: Box) -> None:
        """At the server."""
        if self._client.etcd.answers_progress(watch):
            watch.way.back(watch.process.wake, box.put, "progress")

    # ------------------------------------------------------------------ what the core asks

    def verify(self) -> None:
        self._tasks.append(Task(self._daemon.process, self._verify()))

    def _verify(self) -> Steps:
        sent_ns, seen = self._daemon.boot_ns(), self._seen
        found = yield self._ask(lambda: self._client.etcd.read(self.lease))
        if found is None:
            return
        if self._went_back(found[0], seen):
            self._report(m.KeyDeleted(self.nonce))
        elif self._holds(found[1]):
            self._report(m.Verified(self.nonce, sent_ns))
        else:
            self._report((m.KeyDeleted if found[1] is None else m.KeyOverwritten)(self.nonce))

    def record(self, fence: int, known: datetime | None) -> None:
        self._tasks.append(Task(self._daemon.process, self._record(fence, known)))

    def _record(self, fence: int, known: datetime | None) -> Steps:
        self._recording += 1
        yield from self._remember(fence, known)
        self._recording -= 1

    def _remember(self, fence: int, known: datetime | None) -> Steps:
        etcd, created = self._client.etcd, self.created
        assert created is not None
        raised = {"fence": fence, "known": known}
        while not self._over:
            done = yield self._ask(lambda: etcd.record(self.lease, created, raised))
            if done is not None and done is not REFUSED:
                return
            yield PAUSE_NS

    # ------------------------------------------------------------------ the way out

    def _fail(self, reason: str) -> Steps:
        if not self._leading:
            yield from self._release()
        self._cancel()
        self._report(m.JoinFailed(self.nonce, reason, reason))

    def leave(self) -> None:
        Task(self._daemon.process, self._leave(), lambda: self._report(m.Left(self.nonce)))

    def _leave(self) -> Steps:
        """What etcd is to remember is for the successor, who comes when the key goes."""
        until_ns = self._daemon.boot_ns() + RECORD_NS
        yield 0
        while self._recording and self._daemon.boot_ns() < until_ns:
            yield MS
        self._cancel()
        yield from self._release()

    def _cancel(self) -> None:
        self._over = True
        for task in self._tasks:
            task.cancel()

    def _release(self) -> Steps:
        etcd = self._client.etcd
        until_ns = self._daemon.boot_ns() + min(LEAVE_NS, self._ttl_ns // 2)
        while self._granted and self._daemon.boot_ns() < until_ns:
            leaving = self._client.ask(lambda: etcd.leave(self.lease, self.created), LEAVE_NS // 3)
            if (yield leaving) is not None:
                self._granted = False

    @property
    def may_hold(self) -> bool:
        """Whether etcd may still have the lease."""
        return self._granted
