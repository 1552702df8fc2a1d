"""Everything that goes into `Node.step` (events) and everything that comes out of it (effects).

Every event of a candidacy or a term carries its nonce: the core drops those of an older one, but
for the end of a run. The daemon, the tests and the simulator speak to the core in these words only.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field
from datetime import datetime, timedelta

from cron_leader.core.model import (
    Applied,
    Asked,
    Batch,
    Candidate,
    CommandResult,
    Done,
    DueRow,
    Errand,
    Finish,
    Past,
    PutBack,
    Refused,
    Result,
    Rollback,
    Run,
    Settlement,
    Taken,
    Term,
)
from cron_leader.core.value import value


@value
class Now:
    """The instant of a step on both clocks. stood_ns: how long before it no step was made, as the
    daemon counts; it makes one several times a TTL, unless it is stuck or frozen."""

    boot_ns: int
    wall: datetime
    stood_ns: int = 0


# ------------------------------------------------------------------ events: time and signals


@value
class Woke:
    """A timer fired, or nothing in particular happened: look at the clocks."""


@value
class SlotNear:
    """A slot is due in a moment: the heartbeat that goes ahead of it may go."""


@value
class StopAsked:
    """SIGTERM, SIGINT or SIGHUP."""

    signal: int


@value
class SupervisorGone:
    """The pipe to the supervisor closed."""


@value
class SupervisorSilent:
    """A registration was not acknowledged within margin / 2."""


@value
class SupervisorAnswered:
    """It acknowledged again."""


# ------------------------------------------------------------------ events: etcd


@value
class LeaseRenewed:
    """Grant or keepalive answered. sent_ns: boot clock when the request was *sent*."""

    nonce: str
    sent_ns: int
    ttl_ns: int


@value
class LeaseLost:
    """TTL <= 0 in a reply: the lease is gone on the server."""

    nonce: str


@value
class JoinFailed:
    """The candidacy ended without a term. The port has cleaned up, or given up cleaning up.

    reason: unreachable (etcd, told by its client), or one of term.ended: lease_lost, refused,
    wrong_ledger, history, ledger_unreachable, supervisor_gone. text: one line with the cure.
    permanent: a person must act; before the first candidacy that is exit code 2.
    """

    nonce: str
    reason: str
    text: str
    permanent: bool = False


@value
class Elected:
    """Won, and confirmed by the last linearizable check. The watch on the own key is opening.

    least, rollback: as in Candidate. known: as in Record, by the leader before.
    """

    nonce: str
    revision: int
    cluster: int
    least: int = 0
    rollback: Rollback = Rollback.REFUSE
    known: datetime | None = None


@value
class WatchOpened:
    """The own key was read linearizably and is watched from the next revision on."""

    nonce: str


@value
class WatchBroken:
    """Silence, cancellation, compaction: nothing is known of the own key until it opens again."""

    nonce: str
    why: str


@value
class KeyDeleted:
    nonce: str


@value
class KeyOverwritten:
    nonce: str


@value
class Verified:
    """A linearizable read, sent at sent_ns, found the own key untouched."""

    nonce: str
    sent_ns: int


@value
class Left:
    """Own keys deleted and lease revoked, or the attempt given up at its deadline."""

    nonce: str


# ------------------------------------------------------------------ events: ledger


@value
class LedgerReached:
    """A probe answered: it is our ledger.

    ahead: our wall clock less the ledger's, None where it has no other; sent_ns: boot clock when it
    was asked.
    """

    ahead: timedelta | None = None
    sent_ns: int = 0


@value
class LedgerFailed:
    """A probe, or the first try of a write, got no definite answer. text: cause, for the log."""

    text: str
    permanent: bool = False


@value
class RaiseWaits:
    """The ledger answers, and the raise waits for a lock."""

    nonce: str


@value
class Raised:
    """answer: the fence the raise returned (offset + revision), or Refused."""

    nonce: str
    answer: int | Refused


@value
class PastRead:
    nonce: str
    past: Past


@value
class Settled:
    """answer: every `due`/`retrying` row of the election now under our fence, or Refused."""

    nonce: str
    answer: tuple[DueRow, ...] | Refused


@value
class BatchAnswered:
    nonce: str
    batch: Batch
    answer: Taken | Refused


@value
class HeartbeatAnswered:
    """asked: wall clock halfway through the round trip, to compare with the ledger's clock, None
    if that took too long to tell; sent_ns: boot clock when it was sent."""

    nonce: str
    answer: Applied | Refused
    asked: datetime | None
    sent_ns: int = 0


@value
class FinishAnswered:
    """answer None: the term was over and the one try got no answer."""

    nonce: str
    run_id: str
    answer: Applied | Refused | None


@value
class PutBackAnswered:
    nonce: str
    run_id: str
    answer: Applied | Refused


@value
class StepDown:
    """An operator's order, read with a heartbeat; fence: the term it is aimed at, None: unreadable.

    It comes again with every heartbeat until its answer is written.
    """

    nonce: str
    command_id: str
    fence: int | None
    for_ns: int


@value
class Ordered:
    """An operator's order to the jobs, read with a heartbeat; it comes again as StepDown does."""

    nonce: str
    order: Asked


@value
class ErrandDone:
    """answer.changed: it was this term that carried it out."""

    nonce: str
    command_id: str
    answer: Done | Refused


@value
class OrderAnswered:
    """answer.changed: it is our term's answer that stands in the order's row."""

    nonce: str
    command_id: str
    answer: Applied | Refused


@value
class TermClosed:
    """The term row's end is written, or could not be (answer None). It may come after the term."""

    nonce: str
    fence: int
    answer: Applied | Refused | None


# ------------------------------------------------------------------ events: runs


@value
class Prepared:
    """A process stands ready, is registered with the supervisor, and waits for "go"."""

    run_id: str


@value
class Started:
    """exec (or the function's entry) happened at `at`."""

    run_id: str
    at: datetime


@value
class NotStarted:
    """ "go" was never sent, or the wrapper reported that it did not exec: nothing ran."""

    run_id: str
    why: str


@value
class RunEnded:
    run_id: str
    result: Result


LedgerAnswer = (
    RaiseWaits
    | Raised
    | PastRead
    | Settled
    | BatchAnswered
    | HeartbeatAnswered
    | PutBackAnswered
    | StepDown
    | OrderAnswered
    | Ordered
    | ErrandDone
)
"""What a term's ledger traffic is answered with."""

CandidacyEvent = (
    LeaseRenewed
    | LeaseLost
    | JoinFailed
    | Elected
    | WatchOpened
    | WatchBroken
    | KeyDeleted
    | KeyOverwritten
    | Verified
    | Left
    | LedgerAnswer
)
"""Everything that carries a nonce, but for the end of a finish and of a term."""

Event = (
    Woke | SlotNear | StopAsked | SupervisorGone | SupervisorSilent | SupervisorAnswered
    | LeaseRenewed | LeaseLost | JoinFailed | Elected | WatchOpened | WatchBroken
    | KeyDeleted | KeyOverwritten | Verified | Left
    | LedgerReached | LedgerFailed | RaiseWaits | Raised | PastRead | Settled
    | BatchAnswered | HeartbeatAnswered | FinishAnswered | PutBackAnswered | TermClosed
    | StepDown | OrderAnswered | Ordered | ErrandDone
    | Prepared | Started | NotStarted | RunEnded
)  # fmt: skip


# ------------------------------------------------------------------ effects


@value
class Probe:
    """Ask the ledger for its identity: LedgerReached or LedgerFailed."""


@value
class AskSupervisor:
    """SupervisorAnswered, once it does."""


@value
class Join:
    """Grant the lease, get in line, wait: Elected ... or JoinFailed."""

    nonce: str
    lease: int


@value
class Verify:
    """Read the own key linearizably: Verified, KeyDeleted or KeyOverwritten."""

    nonce: str


@value
class Leave:
    """Stop renewing, delete the own keys guarded by create_revision, revoke: Left."""

    nonce: str


@value
class Raise:
    candidate: Candidate


@value
class Record:
    """Have etcd remember what was raised; nothing follows, and nothing waits for it.

    known: when the ledger is away: the planned_to that it must come back with.
    """

    nonce: str
    fence: int
    known: datetime | None = None


@value
class ReadPast:
    term: Term


@value
class Settle:
    term: Term
    settlement: Settlement


@value
class Take:
    """Send one claim batch."""

    term: Term
    batch: Batch


@value
class Heartbeat:
    """known: the highest planned_to of the term that the ledger has acknowledged: it must not show
    less; runs: those under way."""

    term: Term
    planned_to: datetime
    known: datetime
    runs: tuple[Run, ...] = ()


@value
class WriteFinish:
    """once: the term is over; one try, no resend."""

    term: Term
    finish: Finish
    once: bool


@value
class WritePutBack:
    term: Term
    put_back: PutBack


@value
class AnswerOrder:
    """Write the result to an operator's order, unless somebody has answered it: OrderAnswered."""

    term: Term
    command_id: str
    result: CommandResult


@value
class CarryOut:
    """Do what an operator's order asks of the jobs and answer it, in one write: ErrandDone."""

    term: Term
    errand: Errand


@value
class CloseTerm:
    """Write ended_at and reason to the term's row, one try."""

    term: Term
    reason: str


@value
class Prepare:
    """Have a process ready and registered: Prepared or NotStarted."""

    run: Run


@value
class Go:
    """Say "go". Past deadline_ns on the boot clock the wrapper does not exec."""

    run: Run
    deadline_ns: int


@value
class Drop:
    """A run that is not to start: NotStarted follows, or Started if it was told to go and has."""

    run_id: str


@value
class Kill:
    """SIGTERM the group, SIGKILL after grace_s (0: at once). RunEnded follows."""

    run_id: str
    grace_s: float


@value
class Abandon:
    """Nothing of this term's ledger traffic is waited for any more."""

    nonce: str


@value
class Emit:
    """One line of the event vocabulary."""

    event: str
    fields: Mapping[str, object] = field(default_factory=dict)


@value
class Exit:
    """The daemon is done. text: why, for exit codes other than 0."""

    code: int
    text: str = ""


Effect = (
    Probe | AskSupervisor | Join | Verify | Leave | Raise | Record | ReadPast | Settle | Take
    | Heartbeat | WriteFinish | WritePutBack | AnswerOrder | CarryOut | CloseTerm
    | Prepare | Go | Drop | Kill | Abandon | Emit | Exit
)  # fmt: skip
