"""The defects themselves: each function takes one safety line out of the class that draws it.

The first line of its docstring says what is broken. A patch that no longer finds what it patches
says so: a canary must not go pale because the code moved on. Imports are inside, for each patch is
made in the process it is for, the supervisor's bare interpreter among them.
"""

# mypy: disable-error-code="assignment, method-assign"

from __future__ import annotations

import importlib
import re
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

HOUR_NS = 3_600 * 1_000_000_000


def _without(text: str, part: str, *, instead: str = "") -> str:
    assert part in text, f"not there any more, this canary needs a look: {part!r}"
    return text.replace(part, instead)


# ------------------------------------------------------------------ the gate and the node


def deadline_ignored() -> None:
    """the gate takes every lease to last for an hour"""
    from cron_leader.core.gate import Gate

    renewed = Gate.renewed

    def forever(gate: Gate, sent_ns: int, ttl_ns: int, margin_ns: int) -> Gate:
        after = renewed(gate, sent_ns, ttl_ns, margin_ns)
        return replace(after, deadline_ns=after.sent_ns + HOUR_NS)

    Gate.renewed = forever


def older_reply_counts() -> None:
    """the reply to an older renewal moves the deadline, too"""
    from cron_leader.core.gate import Gate

    renewed = Gate.renewed

    def whichever(gate: Gate, sent_ns: int, ttl_ns: int, margin_ns: int) -> Gate:
        return renewed(replace(gate, sent_ns=0), sent_ns, ttl_ns, margin_ns)

    Gate.renewed = whichever


def gate_ignored() -> None:
    """runs are claimed and started whether the gate is open or not"""
    from cron_leader.core.node import Node

    Node._open = lambda self: True


def silence_shuts_nothing() -> None:
    """the gate stays open while the own key is not watched"""
    from cron_leader.core.messages import WatchBroken
    from cron_leader.core.node import Node

    heard = Node._on_candidacy

    def deaf(node: Node, event: Any) -> None:
        if not isinstance(event, WatchBroken):
            heard(node, event)

    Node._on_candidacy = deaf


def cut_unnoticed() -> None:
    """neither the deadline nor the watch's silence shuts the gate, nor a refused write"""
    deadline_ignored()
    silence_shuts_nothing()
    refusal_ignored()


def jump_ignored() -> None:
    """a jump of the wall clock proves nothing anew"""
    from cron_leader.core.node import Node

    jumped = Node._jumped

    def and_went_on(node: Node, by: Any) -> None:
        jumped(node, by)
        node.gate = replace(node.gate, jumped_ns=None)

    Node._jumped = and_went_on


def older_nonce_heard() -> None:
    """what is told of an earlier candidacy is taken for the present one's"""
    from cron_leader.core.messages import FinishAnswered
    from cron_leader.core.node import Node

    on = Node._on

    def any_nonce(node: Node, event: Any) -> None:
        if hasattr(event, "nonce") and not isinstance(event, FinishAnswered):
            node._on_candidacy(event)
        else:
            on(node, event)

    Node._on = any_nonce


def key_before_gate() -> None:
    """a node told to stop gives its key away while the gate is open"""
    from cron_leader.core.messages import Leave
    from cron_leader.core.node import Node

    begin = Node._begin_stop

    def key_first(node: Node) -> None:
        if node._nonce is not None:
            node._do(Leave(node._nonce))
        begin(node)

    Node._begin_stop = key_first


def key_before_runs() -> None:
    """the key of a lost term goes while its runs are still being killed"""
    from cron_leader.core.node import Node

    Node._proceed_closing = Node._leave


def resign_before_run() -> None:
    """a leader told to stop closes its term while a run is in flight"""
    from cron_leader.core.node import Node

    close = Node._close_term

    def at_once(node: Node) -> None:
        flights, node._dispatch.flights = node._dispatch.flights, {}
        try:
            close(node)
        finally:
            node._dispatch.flights = flights

    Node._close_term = at_once


def refusal_ignored() -> None:
    """a leader whose write the fence refused goes on leading"""
    from cron_leader.core.node import Node

    Node._refused = lambda self, answer, nonce, fence: None


# ------------------------------------------------------------------ runs and slots


def lost_runs_live() -> None:
    """the runs of a lost term are not killed"""
    from cron_leader.core.dispatch import Dispatch, Doom

    kill = Dispatch._kill

    def spare(dispatch: Dispatch, flight: Any, doom: Doom, *, grace_s: float) -> None:
        if doom is not Doom.LOST:
            kill(dispatch, flight, doom, grace_s=grace_s)

    Dispatch._kill = spare


def started_unregistered() -> None:
    """a run starts though the supervisor has not acknowledged it"""
    from cron_leader.runners.life import ProcessLife

    register = ProcessLife._registered

    async def whatever(life: ProcessLife, child: Any) -> bool:
        await register(life, child)
        return True

    ProcessLife._registered = whatever


def put_back_after_go() -> None:
    """a stop puts the claim of a run back that was told to go, and may have begun"""
    from cron_leader.core.dispatch import Dispatch, Stage

    drain = Dispatch.drain

    def give_back(dispatch: Dispatch, now: Any, **how: Any) -> None:
        for flight in dispatch.flights.values():
            if flight.stage is Stage.STARTING:
                dispatch._put_back(flight, now)
        drain(dispatch, now, **how)

    Dispatch.drain = give_back


def planned_past_unanswered() -> None:
    """planned_to passes slots whose batch the ledger has not answered"""
    from cron_leader.core.dispatch import Dispatch

    Dispatch.planned_to = property(lambda self: self._planned)


def mark_in_memory() -> None:
    """a new leader goes on from its own now, as whoever remembers its last slot in memory"""
    from cron_leader.core.node import Node

    on_past = Node._on_past
    Node._on_past = lambda node, past: on_past(node, replace(past, planned_to=None))


def group_unbounded() -> None:
    """a group's runs are bounded by the node's room only"""
    from cron_leader.core.dispatch import Dispatch

    Dispatch._group_has_room = lambda self, job: True


def group_keeps_its_turn() -> None:
    """a group that had its turn has the next one as well, while rows of it wait"""
    from cron_leader.core.waiting import Lane

    pop = Lane.pop

    def and_stay(lane: Lane, priority: int, group: str) -> Any:
        row = pop(lane, priority, group)
        groups = lane._ripe.get(priority, {})
        if group in groups:
            lane._ripe[priority] = {group: groups.pop(group), **groups}
        return row

    Lane.pop = and_stay


def past_deadline_started() -> None:
    """a run is executed however long after the deadline its go is carried out"""
    from cron_leader.runners.life import Life

    go = Life.go

    def whenever(life: Any, deadline_ns: int) -> None:
        go(life, deadline_ns + HOUR_NS)

    Life.go = whenever


# ------------------------------------------------------------------ etcd


def deadline_from_receipt() -> None:
    """a renewal counts from the receipt of its reply"""
    _count_from_receipt("_renew")


def first_deadline_from_grant() -> None:
    """the first deadline counts from the receipt of the Grant's reply"""
    _count_from_receipt("grant")


def _count_from_receipt(method: str) -> None:
    from cron_leader.etcd.lease import Lease

    ask = getattr(Lease, method)

    async def anchored_late(lease: Lease, *args: Any) -> Any:
        tell = lease._renewed
        lease._renewed = lambda sent_ns, ttl_ns: tell(lease._clock.boot_ns(), ttl_ns)
        try:
            return await ask(lease, *args)
        finally:
            lease._renewed = tell

    setattr(Lease, method, anchored_late)


def resend_on_stream() -> None:
    """a keepalive without an answer is sent again on the same stream"""
    from cron_leader.errors import EtcdUnavailable
    from cron_leader.etcd.lease import Lease

    renew = Lease._renew

    async def again(lease: Lease, stream: Any) -> bool:
        while True:
            try:
                return await renew(lease, stream)
            except EtcdUnavailable as error:
                if not isinstance(error.__context__, TimeoutError):
                    raise

    Lease._renew = again


def renewed_though_stuck() -> None:
    """renewals go on though the tick loop does not"""
    from cron_leader.etcd.lease import Lease

    begin = Lease.__init__

    def pulse(lease: Lease, *args: Any, **kwargs: Any) -> None:
        begin(lease, *args, **{**kwargs, "may_renew": lambda: True})

    Lease.__init__ = pulse


def no_last_check() -> None:
    """a candidate that has waited leads without a look at its own key, as etcd's own recipe does"""
    from cron_leader.etcd.line import Line

    def ahead(line: Line, kvs: Any, revision: int) -> bytes | None:
        before = [kv for kv in kvs if kv.lease and kv.create_revision < revision]
        return max(before, key=lambda kv: kv.create_revision).key if before else None

    Line._ahead = ahead


def no_hasleader() -> None:
    """a member cut off from its peers is listened to"""
    from cron_leader.etcd import channel

    assert channel._HAS_LEADER[0] == "hasleader"
    channel._HAS_LEADER = ("whatever", "true")


def silence_ignored() -> None:
    """a watch that hears nothing is taken for one of a quiet key"""
    from cron_leader.etcd.watch import KeyWatch

    begin = KeyWatch.__init__

    def patient(watch: KeyWatch, *args: Any, **kwargs: Any) -> None:
        kwargs["patience"] = replace(kwargs["patience"], silence_ns=HOUR_NS)
        begin(watch, *args, **kwargs)

    KeyWatch.__init__ = patient


def polled_flag() -> None:
    """a leader looks at its key now and then, and believes in between what it saw"""
    import asyncio

    from cron_leader.core.messages import WatchOpened
    from cron_leader.etcd.tenure import Tenure

    async def look_later(tenure: Tenure) -> None:
        tenure._report(WatchOpened(tenure._seat.nonce))
        await asyncio.sleep(HOUR_NS / 1e9)
        tenure._tell(await tenure._read_until_answered())

    Tenure.watch = look_later


def older_store_trusted() -> None:
    """a store that went back behind what a leader has seen in it is believed"""
    from cron_leader.etcd.tenure import Tenure

    judge = Tenure._judge

    def forgetful(tenure: Tenure, reply: Any, seen: int) -> Any:
        return judge(tenure, reply, 0)

    Tenure._judge = forgetful


def unguarded_resign() -> None:
    """whoever leaves deletes the key, whoever put it"""
    from cron_leader.etcd import requests
    from cron_leader.etcd.election import Candidacy

    def deletion(candidacy: Candidacy, revision: int) -> Any:
        seat = candidacy._seat
        return requests.when([], [requests.delete(seat.place_key), requests.delete(seat.node_key)])

    Candidacy._deletion = deletion


def no_last_word() -> None:
    """a leader that hears nothing leaves over the connection in use alone"""
    from cron_leader.etcd.election import Candidacy

    async def silence(self: Candidacy, timeout_s: float) -> None:
        return

    Candidacy._last_word = silence


# ------------------------------------------------------------------ the ledger


def no_fence() -> None:
    """no guard, and a raise that compares nothing: the ledger commits whatever it is sent"""
    from cron_leader import fencing

    fencing.SQLITE_GUARD = "SELECT :fence AS fence, :nonce AS nonce"
    fencing.POSTGRES_GUARD = "SELECT clock_timestamp() AS ledger_now"
    _claim_step_by_step()
    _change_query("raise_fence", lambda text: text.partition("\nWHERE f.fence <")[0])


def row_guard_only() -> None:
    """only rows carry the fence: what no row stands for yet is written by whoever comes"""
    from cron_leader import fencing

    fencing.SQLITE_GUARD = "SELECT :fence AS fence, :nonce AS nonce"
    fencing.POSTGRES_GUARD = "SELECT clock_timestamp() AS ledger_now"
    _claim_step_by_step()


def raise_takes_equal() -> None:
    """the raise compares with <=: after a restore of etcd two terms share one fence"""
    _change_query("raise_fence", lambda text: _without(text, "f.fence <", instead="f.fence <="))


def gate_without_raise() -> None:
    """the gate opens before the ledger's fence is raised and the past is settled"""
    from cron_leader.core.gate import Gate

    closed = Gate.closed
    Gate.closed = lambda gate, boot_ns: closed(replace(gate, raised=True, settled=True), boot_ns)


def gate_before_targets() -> None:
    """the gate opens once the ledger's fence is raised, whatever the targets show"""
    from cron_leader.ledger.targets import Targets

    async def leave(*_: object, **__: object) -> None: ...

    Targets.raise_fence = leave


def attempt_kept() -> None:
    """the run after a takeover is the same attempt as the one before"""
    _change_query(
        "claim_waiting", lambda text: _without(text, "s.attempt + 1", instead="s.attempt")
    )


def lost_commit_trusted() -> None:
    """a COMMIT whose answer was lost is taken for done"""
    from cron_leader.core.model import Applied
    from cron_leader.errors import LedgerUncertain
    from cron_leader.scribe import Scribe

    insist = Scribe._insist

    async def trusting(scribe: Any, effect: Any, ended: Any, send: Any) -> Any:
        async def once() -> Any:
            try:
                return await send()
            except LedgerUncertain:
                return Applied()

        return await insist(scribe, effect, ended, once)

    Scribe._insist = trusting


def guard_without_nonce() -> None:
    """the guard compares the fence only: two terms of one fence pass it"""
    from cron_leader import fencing

    fencing.SQLITE_GUARD = _without(
        fencing.SQLITE_GUARD, "SELECT fence, nonce", instead="SELECT fence, :nonce AS nonce"
    )
    _change_migrations(" AND f.nonce = p_nonce")


def no_nonce() -> None:
    """a term is known by its fence alone: after a restore of etcd two of one fence pass for one"""
    raise_takes_equal()
    guard_without_nonce()


def claim_without_guard() -> None:
    """the claim of fresh slots is one statement on Postgres, and does not ask the guard"""
    _change_migrations("    PERFORM cron_leader_guard(v_election, v_fence, v_nonce);\n")


def guard_without_lock() -> None:
    """the guard reads the fence and does not hold it until COMMIT"""
    _change_migrations("FOR SHARE")


def raise_without_lock() -> None:
    """a raise asks for the fence's row alone, between writers who share it without a pause"""
    from cron_leader import fencing

    fencing.POSTGRES_EXCLUSIVE = "SELECT %s::text"


def raise_ends_nobody() -> None:
    """a raise waits for a frozen holder until the server ends it"""
    from cron_leader.ledger import pg_target, postgres

    async def leave(*_: object, **__: object) -> None: ...

    for module in (postgres, pg_target):
        vars(module)["end_older"] = leave


def sweep_unordered() -> None:
    """a takeover locks the attempts that it sweeps before their slots"""
    _change_query("hold_unfinished", lambda text: "SELECT 0 AS held")


def run_not_looked_at() -> None:
    """a block of a run looks at the fence only, and not whether the run goes on"""
    from cron_leader.fencing.transaction import Opener

    Opener._look = lambda self, connection, text: lambda: True


def claim_without_state() -> None:
    """a row is claimed whatever its state, by whoever saw its attempt"""
    _change_query(
        "claim_waiting", lambda text: _without(text, "AND s.state IN ('due', 'retrying') ")
    )


def sweep_without_state() -> None:
    """a takeover abandons every row of older terms, whatever its state"""
    _change_query(
        "sweep_running",
        lambda text: text.partition(" AND state IN ('due', 'running', 'retrying')")[0],
    )


def slots_read_early() -> None:
    """a takeover sweeps the slots that its leader read before the raise"""
    _sweep_what_was_read(lambda text: text)


def slots_read_early_and_stateless() -> None:
    """a takeover sweeps the slots that its leader read before the raise, whatever became of them"""
    _sweep_what_was_read(
        lambda text: re.sub(r"\s+AND (s\.)?state (IN \([^)]*\)|= 'running')", "", text)
    )


def _sweep_what_was_read(change: Callable[[str], str]) -> None:
    """Read while in line; at the takeover their keys stand in the sweep's own statements."""
    from cron_leader.ledger import postgres, sqlite
    from cron_leader.ledger.guarded import GuardedLedger
    from cron_leader.ledger.sql import Dialect, Query, to_text, translate

    backends: tuple[Any, ...] = (postgres, sqlite)
    sweeps = ("sweep_running_to_due", "sweep_running")
    early: dict[Any, str] = {}
    for backend, dialect in zip(backends, (Dialect.POSTGRES, Dialect.SQLITE), strict=True):
        text = "SELECT * FROM cron_leader_slot WHERE election = :election AND state = 'running'"
        read = Query(translate(dialect, text), ())
        backend._QUERIES = {**backend._QUERIES, "read_early": read}
    for name in sweeps:
        _change_query(name, lambda text: f"{change(text)} AND (EARLY)")
    whole = {backend: dict(backend._QUERIES) for backend in backends}
    settle = GuardedLedger.settle

    def with_rehearsal(rehearse: Any) -> Any:
        async def and_read(ledger: Any, election: str) -> None:
            await rehearse(ledger, election)
            rows = await ledger.read("read_early", {"election": election})
            keys = (
                f"job = '{row['job']}' AND scheduled_for = '{to_text(row['scheduled_for'])}'"
                for row in rows
            )
            early[ledger] = " OR ".join(keys) or "1 = 0"

        return and_read

    async def of_those(ledger: Any, term: Any, past: Any) -> Any:
        keys = early.get(ledger, "1 = 1")
        for backend, known in whole.items():
            sent = {
                n: replace(known[n], text=_without(known[n].text, "EARLY", instead=keys))
                for n in sweeps
            }
            backend._QUERIES = {**known, **sent}
        return await settle(ledger, term, past)

    for kind in (postgres.PostgresLedger, sqlite.SqliteLedger):
        kind.rehearse = with_rehearsal(kind.rehearse)
    GuardedLedger.settle = of_those


def loss_covered_up() -> None:
    """a claim after a fail-over hides that what was acknowledged before it is gone"""
    _claim_step_by_step()
    _change_query("plan_to", lambda text: re.sub(r"AND planned_to >= \S+", "", text))


def loss_forgotten() -> None:
    """a ledger that went back is taken for whole once its fence was raised again"""
    from cron_leader.ledger import guarded

    guarded._is_open = lambda row: False


def lost_slots_rerun() -> None:
    """`ledger_rollback = "skip"` runs what waits in the ledger that went back"""
    from cron_leader.ledger import writes

    sweep = writes._sweep
    writes._sweep = lambda of_term, settlement: sweep(of_term, replace(settlement, skip=False))


def order_carried_out_late() -> None:
    """a late copy of an order that is answered is carried out again"""
    _change_query("pause_jobs", lambda text: _without(text, " AND c.done_by_fence IS NULL"))


def pause_forgotten() -> None:
    """what lay in a pause is caught up once it has ended"""
    _claim_step_by_step()
    for name in ("pause_new", "pause_waiting"):
        _change_query(
            name, lambda text: _without(text, ">= j.paused_from", instead="> b.scheduled_for")
        )


def backfill_runs_all() -> None:
    """a backfill runs what has run already"""
    _change_query(
        "put_manual",
        lambda text: _without(text, "NOT EXISTS", instead="EXISTS (SELECT 1) OR EXISTS"),
    )


def notice_taken_twice() -> None:
    """the key of a notice is given to whoever asks for it"""
    _change_query("notice_is_ours", lambda text: text.partition(" AND sent_at")[0])


def _claim_step_by_step() -> None:
    """By the statements that both databases share, and each has its own shorter way for."""
    from cron_leader.ledger.postgres import PostgresLedger
    from cron_leader.ledger.sqlite import SqliteLedger

    assert PostgresLedger._alone
    assert SqliteLedger._alone
    PostgresLedger._alone = SqliteLedger._alone = False


def _change_query(name: str, change: Callable[[str], str]) -> None:
    """In both databases' notations."""
    from cron_leader.ledger import postgres, sqlite

    backends: tuple[Any, ...] = (postgres, sqlite)
    for backend in backends:
        known: Mapping[str, Any] = backend._QUERIES
        text = change(known[name].text)
        assert text != known[name].text, f"{name} has changed: this canary needs a look"
        backend._QUERIES = {**known, name: replace(known[name], text=text)}


def _change_migrations(part: str) -> None:
    """Postgres is made without `part`; SQLite's has it nowhere."""
    from cron_leader.ledger import migrate
    from cron_leader.ledger.sql import Dialect

    scripts = migrate.migrations

    def changed(dialect: Dialect, *, since: int = 0) -> tuple[str, ...]:
        whole = scripts(dialect, since=since)
        parted = tuple(script.replace(part, "") for script in whole)
        assert parted != whole or since or dialect is Dialect.SQLITE, f"not there any more: {part}"
        return parted

    migrate.migrations = changed


# ------------------------------------------------------------------ the supervisor, in its process


def _supervision(part: str) -> Any:
    """As it is called in the supervisor."""
    return importlib.import_module(f"supervision.{part}")


def supervisor_misses_deadline() -> None:
    """the supervisor of a frozen daemon lets the deadline pass"""
    _supervision("groups").Group.deadline_ns = property(lambda self: None)


def revoked_at_deadline() -> None:
    """at the deadline the supervisor revokes, though the daemon lives"""
    loop = _supervision("loop")
    enforce = loop.Supervisor._enforce_deadlines

    def and_revoke(supervisor: Any) -> None:
        enforce(supervisor)
        lease = supervisor._lease
        if lease and lease.deadline_ns and loop.boot_ns() >= lease.deadline_ns:
            asked, lease.endpoints = lease.endpoints, []
            for endpoint in asked:
                loop.start_revoker(endpoint, lease, loop.boot_ns() + lease.ttl_ns)

    loop.Supervisor._enforce_deadlines = and_revoke


def revoked_at_hang_up() -> None:
    """the end of the pipe is taken for the daemon's death"""
    loop = _supervision("loop")
    listen = loop.Supervisor._listen

    def and_despair(supervisor: Any) -> None:
        listen(supervisor)
        if not supervisor._pipe.open and supervisor._exits[supervisor._daemon] is None:
            supervisor._exits[supervisor._daemon] = -9

    loop.Supervisor._listen = and_despair


def revoked_before_runs() -> None:
    """a dead daemon's lease goes before its runs are killed"""
    loop = _supervision("loop")
    bury = loop.Supervisor._bury

    def revoke_first(supervisor: Any, status: int) -> None:
        if lease := supervisor._lease:
            supervisor._revoke(lease, loop.boot_ns() + lease.ttl_ns)
        bury(supervisor, status)

    loop.Supervisor._bury = revoke_first


def reused_pid_killed() -> None:
    """a process that has the number of a run that is gone is killed for it"""
    _supervision("groups").Group.ours = lambda self: True


# ------------------------------------------------------------------ the fencing kit


def kit_without_guard() -> None:
    """tick.transaction() commits without asking the fence"""
    from types import SimpleNamespace

    from cron_leader.fencing import transaction

    held = {
        "POSTGRES_GUARD": "SELECT 1",
        "SQLITE_GUARD": "SELECT :fence, :nonce WHERE :election <> ''",
    }
    kit: Any = transaction
    kit.fencing = SimpleNamespace(**(vars(kit.fencing) | held))


def upsert_refuses_its_own() -> None:
    """fenced_upsert compares with `<`, so a leader's second write of a row is refused"""
    from cron_leader.fencing import upsert

    kit: Any = upsert
    made = kit._statement
    kit._statement = lambda *a, **k: made(*a, **k).replace("<= excluded", "< excluded")
