"""A model of etcd: what its clients can tell of three members, one store, its leases and watches.

Modelled after the server's own rules: leases end at a scan every 500 ms; a new etcd leader starts
every lease anew, at its TTL and one election timeout more; one that lost its quorum goes on
acknowledging keepalives for up to 1.8 s, and they count for nothing; a member without a leader
answers nothing and, asked so (`hasleader`), ends its watches; a store restored from a backup counts
its revisions on from there, once more. Not modelled: stale reads (nobody asks for them),
authentication.
"""

from __future__ import annotations

from collections.abc import Callable
from copy import copy
from dataclasses import dataclass
from typing import Any, TypeVar

from chaos.gen import Draws
from chaos.op import Op, Source
from chaos.worlds.sim.engine import MS, SECOND, Engine, Process
from chaos.worlds.sim.network import Way

R = TypeVar("R")

CLUSTER = 0xC1
ELECTION_NS = SECOND
SCAN_NS = 500 * MS
NO_LEADER_NS = 3 * ELECTION_NS
"""A member ends its watches when it has had no leader for so long."""
MEMBERS = 3


@dataclass(slots=True)
class Key:
    """One candidate's place in line. lease 0: somebody else put it since. fence: what the ledger
    will make of its revision, or has; etcd does not know it, the history is told it."""

    node: str
    nonce: str
    lease: int
    created: int
    modified: int
    fence: int = 0
    raised: bool = False


@dataclass(slots=True)
class Lease:
    ttl_ns: int
    ends_ns: int


@dataclass(slots=True)
class Watch:
    """A server-side watch of some keys, through one member. seen: the last revision delivered."""

    member: int
    keys: frozenset[int]
    seen: int
    process: Process
    way: Way
    tell: Callable[[int, bool], None]
    """(key, deleted)."""
    lost: Callable[[], None]
    hasleader: bool = True
    open: bool = True

    @property
    def live(self) -> bool:
        """Whether anybody listens: it has not been closed, by its process or with it."""
        return self.open and self.process.alive


@dataclass(frozen=True, slots=True)
class Backup:
    """A snapshot of the store."""

    revision: int
    line: tuple[tuple[int, Key], ...]
    leases: tuple[tuple[int, int], ...]
    raised: dict[str, Any] | None


REFUSED = object()
"""What is answered to a write when there is no space left."""


class Etcd:
    """The cluster. Every answer is given by a member, or not given."""

    def __init__(self, engine: Engine, draws: Draws, note: Callable[[Op], None]) -> None:
        self._engine, self._draws, self._note = engine, draws, note
        self.revision = 1
        self.line: dict[int, Key] = {}
        """By lease id, as the keys are named."""
        self.leases: dict[int, Lease] = {}
        self.raised: dict[str, Any] | None = None
        self.offset = 0
        """What the ledger adds to a revision."""
        self.full = 0
        """How many faults have left it without space."""
        self._compacted = 0
        self.leader: int | None = 0
        self._away = [0] * MEMBERS
        """How many faults keep a member from its peers."""
        self._dumb = [0] * MEMBERS
        """How many keep it from its clients, too."""
        self._acks_until = [0] * MEMBERS
        self._events: list[tuple[int, int, bool]] = []
        self.watches: list[Watch] = []
        engine.at(SCAN_NS, self._scan)

    # ------------------------------------------------------------------ members

    def hurt(self, member: int, *, dumb: bool) -> None:
        """Take a member from its peers; dumb: from its clients too."""
        self._away[member] += 1
        self._dumb[member] += dumb
        if self.leader == member:
            self._acks_until[member] = self._engine.now_ns + self._draws.between(800, 1_800) * MS
            self._lose_leader()
        elif not self._quorum() and self.leader is not None:
            self._acks_until[self.leader] = self._engine.now_ns + ELECTION_NS
            self._lose_leader()
        self._engine.at(self._engine.now_ns + NO_LEADER_NS, self._end_watches, member)

    def mend(self, member: int, *, dumb: bool) -> None:
        self._away[member] -= 1
        self._dumb[member] -= dumb
        self._heard(member)
        if self.leader is None:
            self._call_election()
        self._flush()

    def move_leader(self) -> None:
        """To another member: each lease starts anew."""
        others = [m for m in range(MEMBERS) if m != self.leader and not self._away[m]]
        if self.leader is not None and others:
            self._lead(self._draws.one(others))

    def _quorum(self) -> bool:
        return sum(not away for away in self._away) > MEMBERS // 2

    def _lose_leader(self) -> None:
        self.leader = None
        self._say_leader()
        self._call_election()

    def _say_leader(self) -> None:
        self._say("leader", "etcd", member=self.leader)

    def _call_election(self) -> None:
        takes_ns = ELECTION_NS + self._draws.below(ELECTION_NS)
        self._engine.at(self._engine.now_ns + takes_ns, self._elect)

    def _elect(self) -> None:
        fit = [m for m in range(MEMBERS) if not self._away[m]]
        if self.leader is None and self._quorum():
            self._lead(self._draws.one(fit))

    def _lead(self, member: int) -> None:
        self.leader = member
        self._say_leader()
        for lease in self.leases.values():
            lease.ends_ns = self._engine.now_ns + lease.ttl_ns + ELECTION_NS
        self._flush()

    def healthy(self, member: int) -> bool:
        return self.leader is not None and not self._away[member] and not self._dumb[member]

    def busy(self, member: int) -> None:
        """It answers nobody, and keeps its peers: while it is defragmented."""
        self._dumb[member] += 1

    def idle(self, member: int) -> None:
        self._dumb[member] -= 1
        self._heard(member)
        self._flush()

    def _heard(self, member: int) -> None:
        """If it is still without its peers, it can now say so."""
        if self._away[member] and not self._dumb[member]:
            self._engine.at(self._engine.now_ns + NO_LEADER_NS, self._end_watches, member)

    # ------------------------------------------------------------------ its history

    def compact(self) -> None:
        """Nobody is told any more what has happened up to now."""
        self._flush()
        self._compacted = self.revision
        self._events.clear()

    def rebased(self, offset: int) -> None:
        """Of the ledger: whoever has not raised yet will do so beyond it."""
        self.offset = offset
        for key in self.line.values():
            if not key.raised:
                key.fence = offset + key.created

    def raised_by(self, lease: int, fence: int) -> None:
        """Told for the history's sake."""
        for key in self.line.values():
            if key.lease == lease:
                key.fence, key.raised = fence, True

    def backup(self) -> Backup:
        leases = tuple((id_, lease.ttl_ns) for id_, lease in self.leases.items())
        line = tuple((id_, copy(key)) for id_, key in self.line.items())
        return Backup(self.revision, line, leases, self.raised)

    def restore(self, backup: Backup) -> None:
        """All members are started anew from a backup; connections and watches are gone."""
        for watch in self.watches:
            watch.open = False
            watch.way.back(watch.process.wake, watch.lost)
        self.watches, self._events, self._compacted = [], [], 0
        self.revision, self.raised = backup.revision, backup.raised
        ends_ns = self._engine.now_ns
        self.leases = {id_: Lease(ttl_ns, ends_ns + ttl_ns) for id_, ttl_ns in backup.leases}
        self.line = dict(backup.line)

    def broken(self, way: Way) -> None:
        """Its connections are: whoever watched over them is told."""
        for watch in [watch for watch in self.watches if watch.way is way and watch.live]:
            watch.open = False
            way.back(watch.process.wake, watch.lost)

    # ------------------------------------------------------------------ asking

    def serve(self, member: int, do: Callable[[], R], answer: Callable[[R], object]) -> None:
        """Do what a client asks of this member and answer it, if it is one that can."""
        if self.healthy(member):
            answer(do())

    def keep_alive(self, member: int, lease: int, answer: Callable[[int], object]) -> None:
        """Answers the TTL in ns, 0: gone."""
        if self.healthy(member):
            answer(self._renew(lease))
        elif self._engine.now_ns < self._acks_until[member] and not self._dumb[member]:
            held = self.leases.get(lease)
            if held is not None:
                answer(held.ttl_ns)  # it does not know yet that nobody follows it

    def _renew(self, lease: int) -> int:
        held = self.leases.get(lease)
        if held is None:
            return 0
        held.ends_ns = self._engine.now_ns + held.ttl_ns
        return held.ttl_ns

    def grant(self, lease: int, ttl_ns: int) -> Any:
        """The TTL, or REFUSED."""
        if self.full:
            return REFUSED
        if lease not in self.leases:
            ttl_ns = max(ttl_ns, 2 * SECOND)
            self.leases[lease] = Lease(ttl_ns, self._engine.now_ns + ttl_ns)
        return self.leases[lease].ttl_ns

    def put(self, node: str, nonce: str, lease: int) -> Any:
        """The place in line; None if there is no such lease; REFUSED. A second copy finds it."""
        if lease not in self.leases:
            return None
        if lease not in self.line:
            if self.full:
                return REFUSED
            self.revision += 1
            fence = self.offset + self.revision
            self.line[lease] = Key(node, nonce, lease, self.revision, self.revision, fence)
            self._say("put", node, revision=self.revision)
        return self.line[lease]

    def look(self) -> tuple[int, tuple[Key, ...], dict[str, Any] | None]:
        """(revision, who is in line, what is remembered of the last raise). Keys without a lease
        are cleaned up, as cron_leader does whenever it looks."""
        for id_ in [id_ for id_, key in self.line.items() if not key.lease]:
            self.delete(id_)
        line = tuple(sorted(self.line.values(), key=lambda key: key.created))
        return self.revision, line, self.raised

    def read(self, lease: int) -> tuple[int, Key | None]:
        return self.revision, self.line.get(lease)

    def record(self, lease: int, created: int, raised: dict[str, Any]) -> Any:
        """None, or REFUSED."""
        if self.full:
            return REFUSED
        key = self.line.get(lease)
        if key is not None and key.created == created:
            self.revision += 1
            self.raised = raised
        return None

    def leave(self, lease: int, created: int | None) -> None:
        """The key, guarded by its revision, and the lease with whatever hangs on it."""
        key = self.line.get(lease)
        if key is not None and (created is None or key.created == created):
            self.delete(lease)
        self.revoke(lease)

    def revoke(self, lease: int) -> None:
        self.leases.pop(lease, None)
        key = self.line.get(lease)
        if key is not None and key.lease:
            self.delete(lease)

    def delete(self, id_: int) -> None:
        key = self.line.pop(id_)
        self.revision += 1
        self._say("delete", key.node, fence=key.fence)
        self._events.append((self.revision, id_, True))
        self._flush()

    def foreign_put(self, id_: int) -> None:
        """By hand, without a lease: it outlives the lease."""
        self.revision += 1
        key = self.line[id_]
        key.modified, key.lease = self.revision, 0
        self._events.append((self.revision, id_, False))
        self._flush()

    def _scan(self) -> None:
        self._engine.at(self._engine.now_ns + SCAN_NS, self._scan)
        if self.leader is None:
            return
        now_ns = self._engine.now_ns
        for id_ in [i for i, lease in self.leases.items() if lease.ends_ns <= now_ns]:
            self.revoke(id_)

    def _say(self, f: str, node: str, **value: object) -> None:
        self._note(Op(self._engine.now_ns, Source.ETCD, node, f, value=value))

    # ------------------------------------------------------------------ watches

    def watch(self, watch: Watch) -> None:
        self.watches.append(watch)
        self._catch_up(watch)

    def _flush(self) -> None:
        self.watches = [watch for watch in self.watches if watch.live]
        for watch in list(self.watches):
            self._catch_up(watch)
        if len(self._events) > 500:
            del self._events[:250]

    def _catch_up(self, watch: Watch) -> None:
        if not self.healthy(watch.member):
            return
        if watch.seen < self._compacted:
            watch.open = False
            watch.way.back(watch.process.wake, watch.lost)
            return
        for revision, id_, deleted in self._events:
            if revision > watch.seen and id_ in watch.keys:
                watch.way.back(watch.process.wake, watch.tell, id_, deleted)
        watch.seen = max(watch.seen, self.revision)

    def answers_progress(self, watch: Watch) -> bool:
        return watch.live and not self._dumb[watch.member]

    def _end_watches(self, member: int) -> None:
        if self.healthy(member):
            return
        for watch in [w for w in self.watches if w.member == member and w.hasleader and w.live]:
            if not self._dumb[member]:
                watch.way.back(watch.process.wake, watch.lost)
