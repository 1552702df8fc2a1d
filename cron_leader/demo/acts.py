"""The four acts: steady, a polite end, a crash, a freeze. Each returns what it measured.

A failover is counted to the successor's gate opening, from the last thing the old leader did as a
leader: its gate closing or its last run ending, whichever came later; the signal, if it had no say.
"""

from __future__ import annotations

import asyncio
import signal
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

from cron_leader.demo.fleet import FREEZE_TRIES, Fleet, Line, Stalled, write_locked

NODES = ("a", "b", "c")
TTL_S = 3
HELD_JOB = "held"
HELD_S = 1.5
STEADY_SLOTS = 5
AFTER_SLOTS = 2
PATIENCE_S = 12.0


@dataclass(frozen=True, slots=True)
class Failover:
    """bound_ms: more would mean that the mechanism under show did not work.

    promised: what the README says of an idle machine. exited: code found and wanted, if it ended.
    """

    what: str
    old: str
    new: str
    took_ms: float
    bound_ms: float
    promised: str
    exited: tuple[int, int] | None = None


@dataclass(frozen=True, slots=True)
class Act:
    """failover is None for the steady act."""

    title: str
    story: str
    failover: Failover | None = None


@dataclass(slots=True)
class Stage:
    """The fleet, its SQLite file, and the gate.opened event of who leads now."""

    fleet: Fleet
    ledger: Path
    lead: Line

    @property
    def leader(self) -> str:
        return self.lead.node

    @property
    def fence(self) -> int:
        return int(self.lead.fields["fence"])


async def open_stage(fleet: Fleet, ledger: Path) -> Stage:
    """Three nodes up, one of them leading."""
    since = datetime.now(UTC)
    await asyncio.gather(*(fleet.start(name) for name in NODES))
    return Stage(fleet, ledger, await fleet.leader(since=since, within_s=PATIENCE_S))


async def steady(stage: Stage) -> Act:
    """Nothing happens but ticks."""
    late = [line.fields["late_ms"] for line in await _ticks(stage, STEADY_SLOTS)]
    story = (
        f"{stage.leader} leads under fence {stage.fence}, the others stand by; "
        f"{len(late)} one-second slots started at most {max(late):.0f} ms late"
    )
    return Act("steady", story)


async def resignation(stage: Stage) -> Act:
    """SIGTERM: runs end, the post is handed over, the node exits 0."""
    old, fleet = stage.leader, stage.fleet
    await _between_slots()
    asked = fleet.signal(old, signal.SIGTERM)
    new = await fleet.leader(since=asked, within_s=PATIENCE_S)
    code = await fleet.ended(old)
    freed = _last_act(fleet, old, stage.fence, asked)
    took_ms, bound_ms = _ms(new.at - freed), TTL_S * 500
    failover = Failover("SIGTERM", old, new.node, took_ms, bound_ms, "< 50 ms", (code, 0))
    await _succeed(stage, new, revive=old)
    story = f"{old} let its runs end, resigned and exited {code}; {_took(stage, failover)}"
    return Act(f"SIGTERM to {old}", story, failover)


async def crash(stage: Stage) -> Act:
    """SIGKILL to the daemon: its supervisor kills what it ran and revokes the lease."""
    old, fleet = stage.leader, stage.fleet
    await _between_slots()
    killed = fleet.kill_daemon(old)
    new = await fleet.leader(since=killed, within_s=PATIENCE_S)
    code = await fleet.ended(old)
    took_ms, bound_ms = _ms(new.at - killed), TTL_S * 500
    exited = (code, 128 + signal.SIGKILL)
    failover = Failover("SIGKILL", old, new.node, took_ms, bound_ms, "< 300 ms", exited)
    await _succeed(stage, new, revive=old)
    story = f"its supervisor revoked the dead daemon's lease, exit {code}; {_took(stage, failover)}"
    return Act(f"SIGKILL to {old}'s daemon", story, failover)


async def freeze(stage: Stage) -> Act:
    """The whole process tree stopped past its TTL with a run in flight, then thawed."""
    old, fence, fleet = stage.leader, stage.fence, stage.fleet
    frozen, tries = await _freeze_in_flight(stage)
    new = await fleet.leader(since=frozen, within_s=PATIENCE_S)
    await _succeed(stage, new)
    thawed = fleet.thaw(old)
    refused = await fleet.timeline.first(
        "ledger.refused", node=old, what="finish", since=thawed, within_s=PATIENCE_S
    )
    await fleet.timeline.first("term.campaigning", node=old, since=thawed, within_s=PATIENCE_S)
    bound_ms = (TTL_S + 1) * 1000
    took = Failover("freeze", old, new.node, _ms(new.at - frozen), bound_ms, f"<= {TTL_S + 1} s")
    stood = f"stood {(thawed - frozen).total_seconds():.1f} s"
    if tries > 1:
        stood += f" (try {tries}: before, the freeze had caught SQLite's write lock)"
    story = (
        f"{stood}; {_took(stage, took)}; once awake, its late write under fence {fence} "
        f"was refused: the fence stands at {refused.fields['high']}"
    )
    return Act(f"freeze {old} in mid-run", story, took)


# ---------------------------------------------------------------------- what the acts are made of


async def _freeze_in_flight(stage: Stage) -> tuple[datetime, int]:
    """Freeze the leader while it runs the held job; (instant, tries).

    A tree that stood still inside a SQLite transaction would hold everybody up until it woke (the
    price of SQLite, not the case on show): then it is thawed and frozen again.
    """
    for tries in range(1, FREEZE_TRIES + 1):
        await stage.fleet.timeline.first(
            "run.started",
            node=stage.leader,
            job=HELD_JOB,
            since=datetime.now(UTC),
            within_s=PATIENCE_S,
        )
        frozen = stage.fleet.freeze(stage.leader)
        if not await asyncio.to_thread(write_locked, stage.ledger):
            return frozen, tries
        stage.fleet.thaw(stage.leader)
    raise Stalled(f"the freeze caught SQLite's write lock {FREEZE_TRIES} times")


async def _succeed(stage: Stage, new: Line, *, revive: str | None = None) -> None:
    """`new` leads from here on; the node that ended is started again; a few slots pass."""
    stage.lead = new
    if revive is not None:
        await stage.fleet.start(revive)
    await _ticks(stage, AFTER_SLOTS)


async def _ticks(stage: Stage, slots: int) -> list[Line]:
    """The next `slots` runs of the one-second job under the present leader."""
    since, found = datetime.now(UTC), list[Line]()
    for _ in range(slots):
        line = await stage.fleet.timeline.first(
            "run.started",
            node=stage.leader,
            job="tick",
            fence=stage.fence,
            since=since,
            within_s=PATIENCE_S,
        )
        since = line.at + timedelta(microseconds=1)
        found.append(line)
    return found


async def _between_slots() -> None:
    """Wait for the middle of a second, so that no run of the one-second job is in flight."""
    await asyncio.sleep((1.5 - datetime.now(UTC).microsecond / 1e6) % 1)


def _last_act(fleet: Fleet, node: str, fence: int, asked: datetime) -> datetime:
    """When the old leader's gate closed, or its last run ended, whichever was later."""
    lines = (fleet.timeline.last(event, node=node, fence=fence) for event in _LAST)
    return max((line.at for line in lines if line is not None and line.at >= asked), default=asked)


_LAST = ("gate.closed", "run.finished")


def _took(stage: Stage, failover: Failover) -> str:
    return f"{failover.new} leads under fence {stage.fence} after {failover.took_ms:.0f} ms"


def _ms(delta: timedelta) -> float:
    return delta.total_seconds() * 1e3
