"""What the worlds of real processes share: nodes that are started again when they exit, witnesses,
targets, and what is left at the end.

Where the nodes, etcd and the ledger are, and what befalls the ways between them, is the Site:
proc.py and netns.py each make one.
"""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from glob import glob
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from chaos import plan
from chaos.faults import processes
from chaos.op import History, OneClock, Op, Source
from chaos.workloads import Workload
from chaos.worlds.hand import Hand, Unanswered
from chaos.worlds.hosts import Machine
from chaos.worlds.network import Network
from chaos.worlds.nodes import Launcher, Node, Place, sound
from chaos.worlds.services import EtcdCluster, NotHere, Postgres
from chaos.worlds.witnesses import EtcdWitness, LedgerWitness, SqliteWitness, Witness
from cron_leader import config as configuration
from cron_leader.config import Config
from cron_leader.core.schedule import EPOCH, Every, Schedule
from cron_leader.ledger import open_ledger

AGAIN_S = 0.5
"""From a node's exit to its next start."""
GONE_S = 8.0
"""What a node left behind must be gone so long after it."""
FAKETIME = "/usr/lib/*/faketime/libfaketimeMT.so.1"

F = plan.Fault
ANYWHERE = frozenset(
    {
        F.FREEZE_DAEMON, F.FREEZE_NODE, F.KILL_DAEMON, F.KILL_SUPERVISOR, F.KILL_NODE, F.RESTART,
        F.ROLLING_RESTART, F.SLOW, F.ETCD_KILL, F.ETCD_FREEZE, F.ETCD_COMPACT, F.ETCD_DEFRAG,
        F.ETCD_NOSPACE, F.ETCD_RESTORE, F.LEASE_REVOKE, F.KEY_DELETE, F.FOREIGN_PUT,
        F.LEDGER_FREEZE,
    }
)  # fmt: skip
"""What every such world can do, beside what its network can."""
SOMETIMES = frozenset(
    {
        F.CONFIG_CHANGE, F.ETCD_MOVE_LEADER, F.ETCD_QUORUM_LOSS, F.LEDGER_RESTART, F.CLOCK_STEP,
        F.CLOCK_DRIFT, F.DISK_FULL,
    }
)  # fmt: skip
"""What it depends on what the run is made of."""


@dataclass(frozen=True, slots=True)
class Wanted:
    """What a run is made of. config: somebody's own jobs; None: the harness's. sqlite None: a
    Postgres if one is found. members: of etcd, 1 or 3."""

    out: Path
    plan: plan.Plan
    etcd: str | None = None
    sqlite: bool | None = None
    config: Path | None = None
    members: int = 3
    launch: Launcher = sound

    @property
    def nodes(self) -> str:
        return "abcdefghi"[: self.plan.nodes]

    @property
    def election_ms(self) -> int:
        """etcd's, so that the TTL fits it."""
        return 500 if self.plan.ttl_s < 4 else 1000


@dataclass(frozen=True, slots=True)
class Site:
    """Where everything is. environ: of each node, how it finds etcd and the ledger; clients: the
    address from which each node comes to the ledger; url: the ledger, as the harness finds it."""

    scratch: Path
    nodes: Mapping[str, Machine]
    cluster: EtcdCluster
    url: str
    network: Network
    environ: Mapping[str, Mapping[str, str]]
    postgres: Postgres | None = None
    clients: Mapping[str, str] = field(default_factory=dict)
    connections: Callable[[], int] = lambda: 0


class Rig:
    """Use as a context manager, inside the site's: on entry the ledger is migrated and witnesses
    watch; on exit they have testified, and what was left behind is noted."""

    def __init__(self, site: Site, wanted: Wanted, history: History, clock: OneClock) -> None:
        self.site, self.wanted, self.history, self.clock = site, wanted, history, clock
        self.nodes: dict[str, Node] = {}
        self.hand = Hand({name: seat.client for name, seat in site.cluster.seats.items()})
        self.clocks: dict[str, processes.WallClock] = {}
        self._workload = Workload(site.scratch / "effects.jsonl", site.scratch / "release")
        own = wanted.config
        self._toml = wanted.out / "cron-leader.toml" if own is None else own.resolve()
        self._more = False
        self._keeping = False
        self._began = datetime.now(UTC)
        self._lock = threading.Lock()
        self._asked = {name: threading.Lock() for name in wanted.nodes}

    # ------------------------------------------------------------------ beginning and end

    def __enter__(self) -> Self:
        if self.wanted.config is None:
            self._write_config()
        self.config = self._load()
        _refuse_what_reaches_out(self.config)
        asyncio.run(_migrate(self.site.url, self.config.fleet))
        self._ledger_witness = self._witness()
        self._ledger_witness.install()
        place = (self.history, self.clock)
        elections = f"{self.config.prefix}/{self.config.fleet}/elections/"
        self._elections = elections
        self.etcd_witness = EtcdWitness(self.site.cluster.endpoints, elections, place)
        self.etcd_witness.start()
        self._make_clocks()
        aheads = {name: clock.aheads_ns for name, clock in self.clocks.items()}
        self._place = Place(
            self.wanted.out, self._toml, *place, aheads_ns=aheads, on_exit=self._exited
        )
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop_nodes()
        remains = self._remains() if kind is None else {}
        self.etcd_witness.close()
        self._add(Source.PLAN, "harness", "remains", remains)
        for op in (*self._workload.noted(), *self._ledger_witness.testimony(), *self._jobs()):
            self.history.add(op)

    @property
    def can(self) -> frozenset[plan.Fault]:
        """The faults that can be put in here."""
        can = ANYWHERE | self.site.network.can
        if self.wanted.config is None:
            can |= {F.CONFIG_CHANGE}
        if self.wanted.members > 1:
            can |= {F.ETCD_MOVE_LEADER, F.ETCD_QUORUM_LOSS}
        else:
            can -= {F.ETCD_ISOLATE}
        if self.site.postgres is not None:
            can |= {F.LEDGER_RESTART}
        if faketime() is not None:
            can |= {F.CLOCK_STEP, F.CLOCK_DRIFT}
        if self._disk():
            can |= {F.DISK_FULL}
        return can

    def _disk(self) -> bool:
        """Whether there is a disk that can be full: a boxed Postgres's, or SQLite's file."""
        if self.site.postgres is not None:
            return self.site.postgres.boxed
        return sys.platform == "linux"

    def _witness(self) -> Witness:
        if self.site.postgres is None:
            return SqliteWitness(self.sqlite, self.clock)
        return LedgerWitness(self.site.url, self.site.clients, self.clock)

    @property
    def sqlite(self) -> Path:
        """The ledger's file, where it is one."""
        return Path(self.site.url.removeprefix("sqlite:///"))

    # ------------------------------------------------------------------ configuration

    def change_config(self) -> None:
        """A job more, or one less; who is started from now on has it."""
        self._more = not self._more
        self._write_config()

    def _write_config(self) -> None:
        """What tells nodes apart, and where etcd and the ledger are, is in their environment."""
        text = self._workload.mixed(
            endpoints=self.site.cluster.endpoints,
            ledger=self.site.url,
            ttl_s=self.wanted.plan.ttl_s,
            more=self._more,
        )
        fresh = self._toml.with_suffix(".new")
        fresh.write_text(text, encoding="utf-8")
        fresh.replace(self._toml)

    def _load(self) -> Config:
        return configuration.load(self._toml, environ=self._direct())

    def _direct(self) -> dict[str, str]:
        """For programs of the harness: past all proxies."""
        return {
            **os.environ,
            **services_at(self.site.cluster.endpoints, self.site.url, self.wanted),
        }

    def rebase(self) -> None:
        """What an operator does after etcd was put back to an older state."""
        start = "import sys; from cron_leader.cli import main; sys.exit(main())"
        argv = [sys.executable, "-c", start, "fence", "rebase", "--yes", "--config"]
        subprocess.run(
            [*argv, str(self._toml)], env=self._direct(), check=True, capture_output=True
        )

    # ------------------------------------------------------------------ nodes

    def start_nodes(self) -> None:
        """And from now on each is started again when it exits."""
        self._keeping = True
        for name in self.wanted.nodes:
            self._start(name)

    def _start(self, name: str) -> None:
        with self._lock:
            if self._keeping:
                environ = dict(self.site.environ[name])
                if name in self.clocks:
                    environ |= _faked(self.site.scratch / f"{name}.clock")
                machine, launch = self.site.nodes[name], self.wanted.launch
                self.nodes[name] = Node(name, machine, self._place, launch, environ)

    def _exited(self, node: Node) -> None:
        """In the thread that read the node's last word."""
        time.sleep(AGAIN_S)
        if self._keeping and self.nodes.get(node.name) is node:
            self._start(node.name)

    def stop_nodes(self, last: str | None = None) -> None:
        """For good; `last` at the end: when the leader goes last nobody takes over."""
        with self._lock:
            self._keeping = False
        for name in sorted(self.nodes, key=lambda name: name == last):
            self.nodes.pop(name).stop()

    def restart(self, name: str) -> None:
        """Asked to stop; when it has, it is started again. Until it is in line. One asks at a time:
        a second signal would kill it at once, as it should."""
        with self._asked[name]:
            before = self.clock.now_ns()
            self.nodes[name].stop()
            self.history.wait(
                lambda op: op.source is Source.ETCD and (op.f, op.process) == ("put", name),
                within_s=GONE_S,
                after_ns=before,
            )

    def leader(self) -> str | None:
        line = self.etcd_witness.line()
        return line[0][1] if line else None

    # ------------------------------------------------------------------ what is left

    def _remains(self) -> dict[str, object]:
        """Until nothing is, or GONE_S have passed."""
        until = time.monotonic() + GONE_S
        while True:
            found = self._found()
            if not any(found.values()) or time.monotonic() > until:
                return found | {"tracebacks": self._tracebacks()}
            time.sleep(0.1)

    def _found(self) -> dict[str, object]:
        try:
            keys = self.hand.keys(self._elections)
        except Unanswered as error:
            keys = [str(error)]
        return {
            "processes": processes.left(
                ("--node-id", str(self._toml)), (str(self._workload.effects),)
            ),
            "connections": self._ledger_witness.sessions() + self.site.connections(),
            "keys": keys,
        }

    def _tracebacks(self) -> list[str]:
        """Last lines of those in the nodes' logs."""
        found = []
        for name in self.wanted.nodes:
            for log in (self.wanted.out / f"{name}.stderr", self.wanted.out / f"{name}.jsonl"):
                text = log.read_text(errors="replace") if log.exists() else ""
                found += [
                    f"{log.name}: {part.strip().rpartition(chr(10))[2][:200]}"
                    for part in text.split("Traceback (most recent call last)")[1:]
                ]
        return found

    def _jobs(self) -> list[Op]:
        """The period of each interval job, and the slots of every other one, as configured."""
        periods: dict[str, float] = {}
        slots: dict[str, list[str]] = {}
        for job in self._load().jobs:
            match job.schedule:
                case Every(period, anchor) if anchor == EPOCH:
                    periods[job.name] = period.total_seconds()
                case schedule:
                    slots[job.name] = list(_slots(schedule, self._began, datetime.now(UTC)))
        told: dict[str, Mapping[str, Any]] = {"periods": periods, "slots": slots}
        now_ns = self.clock.now_ns()
        return [Op(now_ns, Source.PLAN, "harness", f, value=value) for f, value in told.items()]

    def _add(self, source: Source, process: str, f: str, value: Mapping[str, object]) -> None:
        self.history.add(Op(self.clock.now_ns(), source, process, f, value=value))

    def _make_clocks(self) -> None:
        """Only where the plan has a use for them: each look at such a clock reads a file."""
        faked = {move.fault for move in self.wanted.plan.moves} & {F.CLOCK_STEP, F.CLOCK_DRIFT}
        if faked and faketime() is not None:
            for name in self.wanted.nodes:
                file = self.site.scratch / f"{name}.clock"
                self.clocks[name] = processes.WallClock(file, [])


def _refuse_what_reaches_out(config: Config) -> None:
    """Etcd and ledger are the world's; nothing else of somebody's own may be touched."""
    reaching = {
        "[http]": config.http,
        "[[notify]]": config.notify,
        "fence targets": config.fence_targets,
    }
    if found := [what for what, value in reaching.items() if value]:
        raise NotHere(f"{config.path}: take out {', '.join(found)}: these reach out of the world")


def faketime() -> str | None:
    """libfaketime, where it is (Debian: apt-get install faketime)."""
    return next(iter(glob(FAKETIME)), None)


def _faked(file: Path) -> dict[str, str]:
    library = faketime()
    assert library is not None
    return {
        "LD_PRELOAD": library,
        "FAKETIME_TIMESTAMP_FILE": str(file),
        "FAKETIME_DONT_FAKE_MONOTONIC": "1",
        "FAKETIME_NO_CACHE": "1",
    }


def services_at(endpoints: Sequence[str], url: str, wanted: Wanted) -> dict[str, str]:
    """The environment of a node that finds them there."""
    return {
        "CRON_LEADER_ETCD_ENDPOINTS": ",".join(endpoints),
        "CRON_LEADER_LEDGER_URL": url,
        "CRON_LEADER_LEASE_TTL": f"{wanted.plan.ttl_s}s",
    }


async def _migrate(url: str, fleet: str) -> None:
    ledger = open_ledger(url)
    try:
        await ledger.open(fleet=fleet, shards=1, migrate=True)
    finally:
        await ledger.close()


def _slots(schedule: Schedule, after: datetime, upto: datetime) -> Iterator[str]:
    at = schedule.next_after(after)
    while at is not None and at <= upto:
        yield at.isoformat()
        at = schedule.next_after(at)
