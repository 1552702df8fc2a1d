"""From a move of a plan to a fault of a real world: whom it hits, and what is done to them.

Nothing is decided here about when: see play.py.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from chaos.faults import All, Fault, Once, Stretch, etcd, ledger, processes
from chaos.op import Op, Source
from chaos.plan import Fault as F
from chaos.plan import Move, Target
from chaos.worlds.hand import lease_of
from chaos.worlds.network import Ways
from chaos.worlds.rig import Rig


@dataclass(frozen=True, slots=True)
class Hit:
    """Whom a move hits: nodes, and members of etcd; found when it is put in."""

    nodes: tuple[str, ...] = ()
    members: tuple[str, ...] = ()


# ------------------------------------------------------------------ targets


def resolve(move: Move, nodes: Sequence[str], line: Sequence[str], member: str | None) -> Hit:
    """line: nodes as they stand in line, the leader first; member: etcd's leader, if it has one."""
    turned = _turned(nodes, move.pick)
    half = (len(nodes) - 1) // 2
    match move.target:
        case Target.LEADER:
            return Hit(tuple(line[:1]))
        case Target.NEXT:
            return Hit(tuple(line[1:2]))
        case Target.FOLLOWER:
            return Hit(tuple([node for node in turned if node not in line[:1]][:1]))
        case Target.MINORITY:
            return Hit(tuple(turned[: max(half, 1)]))
        case Target.MAJORITY:
            return Hit(tuple(turned[: half + 1]))
        case Target.ALL | Target.RING:
            return Hit(tuple(nodes))
        case Target.ETCD_LEADER:
            return Hit(members=(member,) if member else ())
        case Target.ETCD_MEMBER | Target.ETCD | Target.LEDGER:
            return Hit()
        case Target.ONE:
            return Hit(tuple(turned[:1]))


def _turned(names: Sequence[str], pick: int) -> list[str]:
    turn = pick % len(names)
    return [*names[turn:], *names[:turn]]


def hit(world: Rig, move: Move) -> Hit:
    """As things stand."""
    line = [node for _, node in world.etcd_witness.line()]
    found = resolve(move, world.wanted.nodes, line, _struck_leader(world, move))
    members = list(world.site.cluster.seats)
    turned = _turned(members, move.pick)
    match move.fault:
        case F.ETCD_QUORUM_LOSS:
            return Hit(members=tuple(turned[: len(members) // 2 + 1]))
        case _ if move.target is Target.ETCD_MEMBER:
            return Hit(members=tuple(turned[:1]))
        case _:
            return found


def _struck_leader(world: Rig, move: Move) -> str | None:
    return world.hand.leader() if move.target is Target.ETCD_LEADER else None


# ------------------------------------------------------------------ faults


def fault(world: Rig, move: Move, whom: Hit) -> Fault:
    """Not yet in. Raises KeyError for one that this world cannot do."""
    if move.fault in _TRAFFIC:
        if move.target is Target.RING:
            return All(move.fault, _ring(world, whom))
        return All(move.fault, [_TRAFFIC[move.fault](world, move, node) for node in whom.nodes])
    return _OTHERS[move.fault](world, move, whom)


_TRAFFIC: dict[F, Callable[[Rig, Move, str], Fault]] = {
    F.CUT: lambda w, _, node: w.site.network.cut(node, Ways()),
    F.CUT_OUT: lambda w, _, node: w.site.network.cut(node, Ways(back=False)),
    F.CUT_IN: lambda w, _, node: w.site.network.cut(node, Ways(out=False)),
    F.CUT_ETCD: lambda w, _, node: w.site.network.cut(node, Ways(ledger=False)),
    F.CUT_LEDGER: lambda w, _, node: w.site.network.cut(node, Ways(etcd=False)),
    F.RESET: lambda w, _, node: w.site.network.reset(node),
    F.LOSS: lambda w, move, node: w.site.network.loss(node, move.amount),
    F.DELAY: lambda w, move, node: w.site.network.delay(node, move.amount),
    F.RATE: lambda w, move, node: w.site.network.rate(node, move.amount),
    F.LINK_DOWN: lambda w, _, node: w.site.network.link_down(node),
    F.LEDGER_LOST_COMMIT: lambda w, _, node: w.site.network.answers_lost(node),
    F.LEDGER_LATE_COPY: lambda w, _, node: w.site.network.late_copies(node),
}


def _ring(world: Rig, whom: Hit) -> list[Fault]:
    """Each node reaches one member of etcd, another one each, as far as there are that many."""
    members = list(world.site.cluster.seats)
    lost = [tuple(_turned(members, n)[1:]) for n in range(len(whom.nodes))]
    return [
        world.site.network.cut(node, Ways(ledger=False, members=gone))
        for node, gone in zip(whom.nodes, lost, strict=True)
    ]


_OTHERS: dict[F, Callable[[Rig, Move, Hit], Fault]] = {
    F.FREEZE_DAEMON: lambda w, _, x: processes.frozen("freeze daemon", _daemons(w, x)),
    F.FREEZE_NODE: lambda w, _, x: processes.frozen_tree("freeze node", _supervisors(w, x)),
    F.SLOW: lambda w, move, x: processes.Slow(_daemons(w, x), move.amount),
    F.KILL_DAEMON: lambda w, _, x: _marked(w, x, processes.killed("kill daemon", _daemons(w, x))),
    F.KILL_SUPERVISOR: lambda w, _, x: processes.killed("kill supervisor", _supervisors(w, x)),
    F.KILL_NODE: lambda w, _, x: _marked(
        w, x, processes.killed_tree("kill node", _supervisors(w, x))
    ),
    F.RESTART: lambda w, _, x: Once("restart", lambda: _restart(w, x.nodes)),
    F.ROLLING_RESTART: lambda w, _, x: Once("rolling restart", lambda: _restart(w, x.nodes)),
    F.CONFIG_CHANGE: lambda w, _, x: Once("config change", lambda: _change(w, x.nodes)),
    F.CLOCK_STEP: lambda w, move, x: All(
        "clock step", [w.clocks[node].step(move.amount) for node in x.nodes]
    ),
    F.CLOCK_DRIFT: lambda w, move, x: All(
        "clock drift", [w.clocks[node].drift(move.amount) for node in x.nodes]
    ),
    F.ETCD_KILL: lambda w, _, x: etcd.killed(w.site.cluster, x.members),
    F.ETCD_QUORUM_LOSS: lambda w, _, x: etcd.killed(w.site.cluster, x.members),
    F.ETCD_FREEZE: lambda w, _, x: etcd.frozen(w.site.cluster, x.members),
    F.ETCD_ISOLATE: lambda w, _, x: All(
        "etcd isolate", [w.site.network.isolate(member) for member in x.members]
    ),
    F.ETCD_MOVE_LEADER: lambda w, _, x: Once("etcd move leader", w.hand.move_leader),
    F.ETCD_COMPACT: lambda w, _, x: Once("etcd compact", w.hand.compact),
    F.ETCD_DEFRAG: lambda w, _, x: Once(
        "etcd defrag", lambda: sum(w.hand.defragment(member) for member in x.members)
    ),
    F.ETCD_NOSPACE: lambda w, _, x: _no_space(w),
    F.ETCD_RESTORE: lambda w, _, x: etcd.restored(w.site.cluster, w.etcd_witness.forget, w.rebase),
    F.LEASE_REVOKE: lambda w, _, x: _hand(w, x, lambda key: w.hand.revoke(lease_of(key))),
    F.KEY_DELETE: lambda w, _, x: _hand(w, x, w.hand.delete),
    F.FOREIGN_PUT: lambda w, _, x: _hand(w, x, w.hand.put),
    F.LEDGER_FREEZE: lambda w, _, x: (
        ledger.frozen(w.site.postgres) if w.site.postgres else ledger.locked(w.sqlite)
    ),
    F.LEDGER_RESTART: lambda w, move, x: _ledger_away(w, crash=move.pick % 2 == 0),
    F.DISK_FULL: lambda w, _, x: (
        ledger.full(w.site.postgres)
        if w.site.postgres
        else processes.no_room(_daemons(w, Hit(tuple(w.wanted.nodes))), w.sqlite)
    ),
}


def _daemons(world: Rig, whom: Hit) -> processes.Pids:
    def found() -> list[int]:
        nodes = [world.nodes[name] for name in whom.nodes if name in world.nodes]
        return [node.daemon for node in nodes if node.alive and node.daemon is not None]

    return found


def _supervisors(world: Rig, whom: Hit) -> processes.Pids:
    def found() -> list[int]:
        nodes = [world.nodes[name] for name in whom.nodes if name in world.nodes]
        return [node.pid for node in nodes if node.alive]

    return found


def _marked(world: Rig, whom: Hit, kill: Once) -> Once:
    """A daemon that is killed cannot say that its gate is shut; the history has to."""

    def act() -> int:
        for name in whom.nodes:
            if name in world.nodes and world.nodes[name].alive:
                world.nodes[name].mark("killed")
        kill.inject()
        return kill.heal()

    return Once(kill.name, act)


def _restart(world: Rig, names: Sequence[str]) -> int:
    """One after the other."""
    for name in names:
        world.restart(name)
    return len(names)


def _change(world: Rig, names: Sequence[str]) -> int:
    world.change_config()
    return _restart(world, names)


def _no_space(world: Rig) -> Fault:
    def end() -> None:
        world.hand.no_space(full=False)

    return Stretch("etcd no space", lambda: world.hand.no_space(full=True), end)


def _ledger_away(world: Rig, *, crash: bool) -> Fault:
    assert world.site.postgres is not None
    return ledger.away(world.site.postgres, crash=crash)


def _hand(world: Rig, whom: Hit, act: Callable[[bytes], int]) -> Once:
    """On the keys of these nodes; noted, for a key that a hand took excuses what it leads to."""

    def done() -> int:
        bites = 0
        for key, node in world.etcd_witness.line():
            if node in whom.nodes:
                value = {"node": node, "lease": f"{lease_of(key):016x}"}
                now_ns = world.clock.now_ns()
                world.history.add(Op(now_ns, Source.NEMESIS, "nemesis", "meddled", value=value))
                bites += act(key)
        return bites

    return Once("hand", done)
