"""The nouns: jobs, slots, terms, runs, and what may become of them.

All times are aware UTC datetimes (suffix none) or int nanoseconds of the boot-time clock (suffix
`_ns`); the two never mix. Closed vocabularies are StrEnums whose values stand in the ledger.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import TYPE_CHECKING

from cron_leader.core.value import value

if TYPE_CHECKING:
    from cron_leader.core.blackout import Blackout
    from cron_leader.core.schedule import Schedule


class State(StrEnum):
    """What a slot (or an attempt) is in; the first three are unfinished, the rest final."""

    DUE = "due"
    RUNNING = "running"
    RETRYING = "retrying"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    TIMED_OUT = "timed_out"
    CANCELLED = "cancelled"
    ABANDONED = "abandoned"
    SKIPPED = "skipped"
    MISSED = "missed"


UNFINISHED = frozenset({State.DUE, State.RUNNING, State.RETRYING})


class Reason(StrEnum):
    """Why a slot is skipped, missed, abandoned or cancelled, or failed without the next try that it
    had; other ends carry none."""

    OVERLAP = "overlap"
    BLACKOUT = "blackout"
    PAUSED = "paused"
    LIMIT = "limit"
    NO_HANDLER = "no_handler"
    NO_LEADER = "no_leader"
    COALESCED = "coalesced"
    LATE = "late"
    LOST_LEADERSHIP = "lost_leadership"
    OPERATOR = "operator"
    SHUTDOWN = "shutdown"
    ROLLBACK = "rollback"


class Origin(StrEnum):
    """How a slot's row came to be."""

    SCHEDULE = "schedule"
    CATCHUP = "catchup"
    MANUAL = "manual"


class Rollback(StrEnum):
    """The operator's answer to a ledger that lost what was written to it last."""

    REFUSE = "refuse"
    SKIP = "skip"
    REFIRE = "refire"


class Catchup(StrEnum):
    """What becomes of slots whose time passed while nobody could run them."""

    LATEST = "latest"
    ALL = "all"
    NONE = "none"


class Overlap(StrEnum):
    """What becomes of a slot that falls due while a run of its job goes, within a term."""

    SKIP = "skip"
    QUEUE = "queue"
    REPLACE = "replace"
    ALLOW = "allow"


class WhenFull(StrEnum):
    """What becomes of a slot that falls due while the node has no room for another run."""

    QUEUE = "queue"
    SKIP = "skip"


class Delivery(StrEnum):
    AT_MOST_ONCE = "at-most-once"
    AT_LEAST_ONCE = "at-least-once"


class OnLostLeadership(StrEnum):
    KILL = "kill"
    FINISH = "finish"


class Isolation(StrEnum):
    PROCESS = "process"
    INLINE = "inline"


@value
class CommandSpec:
    """argv[0] is looked up on the run's PATH; no shell is involved."""

    argv: tuple[str, ...]


@value
class ShellSpec:
    """Handed to /bin/sh -c."""

    script: str


@value
class PythonSpec:
    """A function of one argument, the Tick; target is "pkg.mod:func"."""

    target: str


@value
class HttpSpec:
    """One request. expected_status: what counts as success, empty: any 2xx.

    header_files: headers whose value is the first line of a file, read when it is sent. body: a
    template. ca, cert, key: PEM files, None: the usual authorities, no certificate of ours.
    """

    url: str
    method: str = "GET"
    headers: tuple[tuple[str, str], ...] = ()
    header_files: tuple[tuple[str, str], ...] = ()
    body: str | None = None
    expected_status: tuple[int, ...] = ()
    follow_redirects: bool = False
    ca: str | None = None
    cert: str | None = None
    key: str | None = None


RunnableSpec = CommandSpec | ShellSpec | PythonSpec | HttpSpec


@value
class Limits:
    """The most that each process of a run may have, not all of them together; None: no limit of
    the job's. cpu_s: of processor time; memory: bytes of address space; files: open at once;
    processes: of the run's user, on the whole host.
    """

    cpu_s: int | None = None
    memory: int | None = None
    files: int | None = None
    processes: int | None = None


BACKOFF_S = 1.0
BACKOFF_MAX_S = 300.0
"""Waits before the first retry, and the longest one, unless a job says otherwise."""


@value
class Job:
    """One configured job. Durations in seconds; start_within_s None means no limit.

    retries: attempts after the first, all for failures; retry_on, retry_exit_codes: for these only,
    empty means for any; retry_budget: in an hour. max_parallel: of `queue` and `allow`; None means
    one, or as many as the node has room for. queue_limit: slots that may wait at once. group: whose
    job it is, "" of nobody in particular; a pool may bound its runs. priority: higher first. user
    ("name" or "name:group"), umask, nice: None means the daemon's own. renamed_from: what it was
    called before.
    """

    name: str
    schedule: Schedule
    spec: RunnableSpec
    timeout_s: float = 3600.0
    grace_s: float = 10.0
    drain_s: float | None = None
    overlap: Overlap = Overlap.SKIP
    max_parallel: int | None = None
    queue_limit: int = 100
    when_full: WhenFull = WhenFull.QUEUE
    group: str = ""
    priority: int = 0
    catchup: Catchup = Catchup.LATEST
    catchup_limit: int = 100
    start_within_s: float | None = None
    jitter_s: float = 0.0
    blackout: Blackout | None = None
    retries: int = 0
    backoff_s: float = BACKOFF_S
    backoff_max_s: float = BACKOFF_MAX_S
    retry_on: tuple[str, ...] = ()
    retry_exit_codes: tuple[int, ...] = ()
    retry_budget: int | None = None
    delivery: Delivery = Delivery.AT_MOST_ONCE
    on_lost_leadership: OnLostLeadership = OnLostLeadership.KILL
    isolation: Isolation = Isolation.PROCESS
    env: Mapping[str, str] = field(default_factory=dict)
    cwd: str | None = None
    user: str | None = None
    umask: int | None = None
    nice: int | None = None
    limits: Limits = Limits()
    output_head: int = 16 * 1024
    output_tail: int = 48 * 1024
    renamed_from: str | None = None

    @property
    def may_finish(self) -> bool:
        """Whether a run outlives its term (`on_lost_leadership = "finish"`)."""
        return self.on_lost_leadership is OnLostLeadership.FINISH

    def has_place(self, active: int) -> bool:
        """Whether another run may go beside so many of this job."""
        if self.overlap is Overlap.ALLOW and self.max_parallel is None:
            return True
        return active < (self.max_parallel or 1)


@dataclass(frozen=True, slots=True, order=True)
class SlotKey:
    """The ledger's primary key of a slot; command_id is "" unless an operator asked for it."""

    job: str
    scheduled_for: datetime
    command_id: str = ""


@value
class Candidate:
    """An elected node before its raise. revision: its key's create_revision; cluster: etcd's id.

    least: the fence etcd remembers to have been raised in this ledger. 0: none is remembered.
    rollback: what to do with a ledger that shows less.
    """

    election: str
    nonce: str
    node: str
    lease: int
    revision: int
    cluster: int
    least: int = 0
    rollback: Rollback = Rollback.REFUSE


@value
class Mark:
    """A fence as it stands in the ledger, to be held against etcd's history. cluster: etcd's id in
    hex, None after a rebase."""

    fence: int
    offset: int
    cluster: str | None


@value
class Term:
    """One leadership, after its raise. fence = revision + the ledger's offset."""

    election: str
    fence: int
    nonce: str
    node: str
    lease: int
    elected_at: datetime


@value
class Run:
    """One attempt to execute a slot, claimed under `term`. attempt counts from 1; put_backs: as in
    DueRow."""

    run_id: str
    slot: SlotKey
    attempt: int
    term: Term
    job: Job
    put_backs: int = 0

    @property
    def tries(self) -> int:
        """Which try this is, from 1: an attempt that was put back has tried nothing."""
        return self.attempt - self.put_backs


@value
class Result:
    """How a run ended, as its runner saw it.

    exit_code: as a shell counts (128 + n for signal n); None if it has none (inline, lost).
    error: one line or a traceback, None on success. output: head and tail, None if there is none.
    committed: the run has committed its success with its own writes: it stands, however it ended.
    """

    exit_code: int | None
    timed_out: bool
    error: str | None
    output: str | None
    finished_at: datetime
    duration_ns: int
    committed: bool = False

    @property
    def ok(self) -> bool:
        return self.error is None and not self.timed_out


# ------------------------------------------------------------------ what is asked of the ledger


@value
class Claim:
    """Take one slot. seen: attempt of the `due` row of our fence; None: no row was there."""

    slot: SlotKey
    run_id: str
    seen: int | None = None


@value
class Entry:
    """A slot's row without a run: `due` (to wait for next_at), `skipped` or `missed`.

    seen: attempt of the `due` row of our fence that this one ends; None: no row was there.
    """

    slot: SlotKey
    state: State
    reason: Reason | None = None
    origin: Origin = Origin.SCHEDULE
    next_at: datetime | None = None
    seen: int | None = None


@value
class Gap:
    """A stretch of > 10 slots of one job, missed or skipped for one reason; ends inclusive."""

    job: str
    first: datetime
    last: datetime
    slots: int
    reason: Reason
    state: State = State.MISSED


@value
class Batch:
    """One claim transaction: all that falls due at one instant.

    planned_to: every slot up to here is in this batch, or known committed. known: as in Heartbeat.
    """

    claims: tuple[Claim, ...]
    entries: tuple[Entry, ...]
    planned_to: datetime
    now: datetime
    gaps: tuple[Gap, ...] = ()
    known: datetime | None = None


@value
class JobRecord:
    """A row of cron_leader_job. digest covers the schedule only. paused_from, paused_until: the
    pause that goes on, or the last one, [from, until); None: there was none."""

    job: str
    first_seen: datetime
    effective_from: datetime
    digest: str
    retired_at: datetime | None = None
    paused_from: datetime | None = None
    paused_until: datetime | None = None


@value
class Past:
    """What a new leader reads after its raise: the highest planned_to of the election, and jobs.

    went_back_at: when a raise found that the ledger had lost its end, None: it has not, or that is
    settled. skip: the answer to it; else it is believed. unfinished: whether slots of older terms
    wait or run, by their rows; after the raise no older term adds one.
    """

    planned_to: datetime | None
    jobs: Mapping[str, JobRecord]
    went_back_at: datetime | None = None
    skip: bool = False
    unfinished: bool = True


@value
class Settlement:
    """The takeover transaction (design: takeover), bound by us so that a resend is the same.

    jobs: configured ones whose record is new or changed, to upsert; retired: names to retire, as of
    retired_at: up to there each slot has its row, and nobody who leads knows of a later one.
    at_least_once: jobs whose swept `running` rows become `due` again.
    planned_to: the greater of now and the highest planned_to read.
    skip: the ledger went back: its unfinished slots are not run again, nor what orders ask for.
    sweep: whether there are unfinished slots of older terms. renamed: of each job that the ledger
    knows by another name, its name and that one.
    """

    now: datetime
    planned_to: datetime
    jobs: tuple[JobRecord, ...]
    retired: tuple[str, ...]
    entries: tuple[Entry, ...]
    gaps: tuple[Gap, ...]
    at_least_once: frozenset[str]
    skip: bool = False
    sweep: bool = True
    retired_at: datetime | None = None
    """None: now."""
    pauses: Mapping[str, tuple[datetime, datetime]] = field(default_factory=dict)
    """Of the jobs whose pause reaches beyond planned_to: from when until when."""
    renamed: tuple[tuple[str, str], ...] = ()


@value
class DueRow:
    """An unfinished row of our own fence, waiting: state `due` or `retrying`.

    attempt: the number of the last one, 0 if there was none; put_backs: how many of them were put
    back, and never ran.
    """

    slot: SlotKey
    attempt: int
    origin: Origin
    next_at: datetime | None
    put_backs: int = 0

    @property
    def tries(self) -> int:
        """How many attempts were runs."""
        return self.attempt - self.put_backs


@value
class Finish:
    """The end of a run: compare-and-set on (running, attempt, run_id).

    state: a final one, or DUE (at-least-once, cancelled by a shutdown: a later leader takes it), or
    RETRYING, from next_at on. attempt_state: what the attempt's own row says (always final).
    """

    slot: SlotKey
    attempt: int
    run_id: str
    state: State
    attempt_state: State
    reason: Reason | None
    result: Result
    next_at: datetime | None = None


@value
class PutBack:
    """A claim whose run was certainly not started: slot `due` again, attempt row `cancelled`."""

    slot: SlotKey
    attempt: int
    run_id: str
    now: datetime


# ------------------------------------------------------------------ what operators ask for


class CommandKind(StrEnum):
    """What an operator may order; `kind` in cron_leader_command."""

    STEP_DOWN = "step-down"
    TRIGGER = "trigger"
    PAUSE = "pause"
    RESUME = "resume"
    BACKFILL = "backfill"


class CommandResult(StrEnum):
    """What became of an order; `result` in cron_leader_command. NULL: no leader has read it."""

    STEPPING_DOWN = "stepping down"
    NOT_LEADING = "not leading any more"
    NOT_UNDERSTOOD = "args not understood"
    TRIGGERED = "triggered"
    PAUSED = "paused"
    RESUMED = "resumed"
    BACKFILLING = "backfilling"
    NO_SUCH_JOB = "no such job"
    TOO_MANY = "more slots than one order may ask for"
    ROLLBACK = "the ledger went back: it may have been carried out; if not, order it anew"


@value
class Order:
    """A step-down that nobody has answered yet.

    fence: the term it is aimed at, None if its args could not be read. for_ns: how long the node
    is to stay out of line afterwards.
    """

    command_id: str
    fence: int | None
    for_ns: int = 0


@value
class Trigger:
    """Run a job now, once. at: when the operator asked; the time of its slot."""

    command_id: str
    job: str
    at: datetime


@value
class Pause:
    """Start no scheduled run of a job (None: of any) for so long; for_s None: until resumed."""

    command_id: str
    job: str | None
    for_s: float | None = None


@value
class Resume:
    """End the pause of a job (None: of all)."""

    command_id: str
    job: str | None


@value
class Backfill:
    """Run the slots of [first, until) that were never run, at most `rate` of them per second."""

    command_id: str
    job: str
    first: datetime
    until: datetime
    rate: float


Asked = Trigger | Pause | Resume | Backfill


@value
class Errand:
    """An order as the ledger is to carry it out, in one transaction with its answer.

    job: None means all. paused_until: to what it is set, None: a pause is left alone. slots: rows
    to write, `due`. anew: also where a slot of that time has been run.
    """

    command_id: str
    result: CommandResult
    job: str | None = None
    paused_until: datetime | None = None
    slots: tuple[Entry, ...] = ()
    anew: bool = False


# ------------------------------------------------------------------ what the ledger answers


@value
class Refused:
    """The fence row does not hold our fence and nonce: a newer leader has raised. No exception.

    high: the fence found there (None: no row). what: the kind of write refused.
    history: the fence is at or above ours in a way that only a restored or rebuilt etcd explains
    (or the cluster id differs); `text` says the numbers and the command that mends it.
    """

    what: str
    high: int | None
    history: bool = False
    text: str = ""


@value
class Taken:
    """Answer to a Batch: run_id -> attempt for every claim won; a run_id not there was not won.

    paused: claims whose slot is over, its job being paused: `skipped`, or `failed` if it was tried.
    """

    attempts: Mapping[str, int]
    paused: frozenset[str] = frozenset()


@value
class Applied:
    """The write committed. changed: False when the row had moved on (zero rows under the guard).

    ledger_now: the database's clock, None where it is ours (SQLite). orders: to a heartbeat, what
    operators ask of the leader.
    """

    changed: bool = True
    ledger_now: datetime | None = None
    orders: tuple[Order | Asked, ...] = ()


@value
class Done:
    """An errand's end. changed: False when another has answered the order, or it is gone.

    rows: the slots written for it, which now wait.
    """

    changed: bool
    rows: tuple[DueRow, ...] = ()


@value
class LedgerId:
    """Identity of a ledger. shards and fleet are recorded by the first node."""

    ledger_id: str
    fleet: str
    shards: int
    schema_version: int
