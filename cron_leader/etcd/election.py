"""One candidacy: a lease, a place in line, perhaps a term, and the way out.

Promises that Elected follows a linearizable read of the own key; that whatever was put into etcd is
taken out again, or left to the lease's TTL where etcd does not answer; that `leave` ends within its
bound and always reports Left. Does not say whether a run may start: the gate does, from what is
reported here.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from datetime import datetime
from typing import Any

from cron_leader.clock import Clock
from cron_leader.core.messages import (
    Elected,
    Event,
    JoinFailed,
    LeaseLost,
    LeaseRenewed,
    Left,
)
from cron_leader.errors import EtcdRefused, EtcdUnavailable, LedgerUncertain, LedgerUnusable
from cron_leader.etcd import requests
from cron_leader.etcd.channel import Etcd
from cron_leader.etcd.codes import LeaseExists, LeaseNotFound, NotSent
from cron_leader.etcd.keys import Seat
from cron_leader.etcd.lease import NS, Lease, Terms
from cron_leader.etcd.line import PAUSE_S, Line, OutOfLine, ReadMark
from cron_leader.etcd.spare import Spare
from cron_leader.etcd.stubs import rpc
from cron_leader.etcd.survey import NodeInfo
from cron_leader.etcd.tenure import Tenure
from cron_leader.events import Emit

LEAVE_S = 2.0
"""Longest time given to taking keys and lease back; half a TTL if that is less."""
AFTER_YOU_S = 0.02
"""From the keys, for which a successor waits, to the lease: what etcd writes for the one would
delay what it writes for the other."""
UNANSWERED_S = 0.1
"""Without an answer for this long, leaving is tried over the spare connections too."""

__all__ = ["Candidacy", "Seat"]


class Candidacy:
    """One lease from grant to revoke: join, wait, confirm, watch, leave. Used once.

    report: called with this candidacy's events, in order. may_renew: False holds renewals back.
    read_mark: the ledger's fence, as it stands. met: called with the fleet's nodes, once in line.
    """

    def __init__(
        self,
        etcd: Etcd,
        seat: Seat,
        *,
        report: Callable[[Event], None],
        clock: Clock,
        emit: Emit,
        may_renew: Callable[[], bool],
        read_mark: ReadMark,
        met: Callable[[Sequence[NodeInfo]], None],
    ) -> None:
        self._etcd = etcd
        self._seat = seat
        self._report = report
        self._clock = clock
        self._emit = emit
        self._read_mark = read_mark
        self._met = met
        self._line = Line(etcd, seat, clock=clock)
        self._lease = Lease(
            etcd,
            Terms(seat.lease, seat.ttl_ns, seat.renew_ns),
            renewed=self._renewed,
            may_renew=may_renew,
            clock=clock,
            emit=emit,
        )
        self._work: asyncio.Task[None] | None = None
        self._tenure: Tenure | None = None
        self._spare: Spare | None = None
        self._revision: int | None = None
        self._maybe_granted = False
        self._leaving = False
        self._left = asyncio.Event()

    async def run(self) -> None:
        """Until left, failed, or the lease is gone. Failures are reported, not raised."""
        if self._leaving:
            return
        self._work = asyncio.create_task(self._hold(), name=f"candidacy {self._seat.nonce}")
        try:
            await asyncio.wait({self._work})
            if self._leaving:
                await self._left.wait()
        finally:
            await _end(self._work)
            if self._spare is not None:
                await self._spare.aclose()
        if not self._work.cancelled():
            self._work.result()

    @property
    def may_hold(self) -> bool:
        """Whether etcd may still have the lease: asked for, and not known to be gone."""
        return self._maybe_granted

    @property
    def lease(self) -> int:
        """The id drawn for it."""
        return self._seat.lease

    async def verify(self) -> None:
        """Read the own key: Verified, KeyDeleted or KeyOverwritten; nothing if etcd is silent."""
        if self._tenure is not None:
            await self._tenure.verify()

    async def record(self, fence: int, timeline: str | None, known: datetime | None = None) -> None:
        """Have etcd remember the fence we raised; until it does, or we leave."""
        assert self._revision is not None
        while not self._leaving:
            try:
                before = await self._line.record_raise(self._revision, fence, timeline, known)
            except (EtcdUnavailable, EtcdRefused):
                await asyncio.sleep(PAUSE_S)
                continue
            if None not in (before, timeline) and before != timeline:
                self._emit("ledger.failed_over", before=before, timeline=timeline)
            return

    async def leave(self) -> None:
        """Stop renewing, delete the own keys, revoke, report Left; idempotent, bounded.

        A successor waits for the keys alone: they go while the streams are still being closed.
        """
        if self._leaving:
            await self._left.wait()
            return
        self._leaving = True
        ending = asyncio.ensure_future(self._end_work())
        try:
            if self._revision is None:  # it may just be putting the key
                await ending
            await self._release()
            await ending
        finally:
            self._left.set()
            self._report(Left(self._seat.nonce))

    async def _end_work(self) -> None:
        if self._work is not None:
            await _end(self._work)

    # -------------------------------------------------------------- from grant to the end

    async def _hold(self) -> None:
        try:
            await self._join()
            await self._keep_and_lead()
        except OutOfLine as out:
            await self._fail(out.reason, str(out), permanent=out.permanent)
        except LeaseNotFound as error:
            await self._fail("lease_lost", str(error))
        except (LedgerUncertain, LedgerUnusable) as error:
            await self._fail("ledger_unreachable", str(error))
        except EtcdRefused as error:
            await self._fail("refused", str(error), permanent=error.permanent)
        except EtcdUnavailable as error:
            await self._fail("unreachable", str(error))

    async def _join(self) -> None:
        """The ledger first: a node with a wrong one does not even take a lease."""
        await self._line.check_ledger(self._read_mark)
        self._maybe_granted = True
        try:
            if not await self._lease.grant():
                raise OutOfLine("lease_lost", "etcd let the lease end as soon as it was granted")
        except (NotSent, LeaseExists):
            self._maybe_granted = False  # not ours to revoke
            raise

    async def _keep_and_lead(self) -> None:
        """Renew beside everything else; a lost lease ends the rest."""
        keeping = asyncio.create_task(self._lease.keep(), name="lease")
        leading = asyncio.create_task(self._campaign_and_lead(), name="campaign")
        try:
            await asyncio.wait({keeping, leading}, return_when=asyncio.FIRST_COMPLETED)
            if leading.done():
                leading.result()  # raises if there was no term; else the key is gone,
                await keeping  # the lease is not: renewed until left
            keeping.result()
        finally:
            await _end(leading, keeping)
        if self._tenure is None:
            raise OutOfLine("lease_lost", "the lease ended while in line")
        self._report(LeaseLost(self._seat.nonce))

    async def _campaign_and_lead(self) -> None:
        place = await self._line.get_in(self._clock.wall())
        self._revision = place.revision
        self._met(place.nodes)
        won, watch = await self._line.win(place.revision)
        self._tenure = Tenure(
            self._etcd,
            self._seat,
            won,
            watch=watch,
            report=self._report,
            clock=self._clock,
            emit=self._emit,
        )
        seat = self._seat
        self._report(
            Elected(seat.nonce, won.revision, won.cluster, won.least, seat.rollback, won.known)
        )
        await self._tenure.watch()

    def _renewed(self, sent_ns: int, ttl_ns: int) -> None:
        if self._tenure is not None:  # not at the election: nothing may delay it
            self._spare = self._spare or self._etcd.spare()
            self._spare.connect()
        self._report(LeaseRenewed(self._seat.nonce, sent_ns, ttl_ns))

    # -------------------------------------------------------------- the way out

    async def _fail(self, reason: str, text: str, *, permanent: bool = False) -> None:
        """In line, clean up. A leader is told first: its keys go when it leaves, runs ended."""
        if self._tenure is None:
            await self._release()
        self._report(JoinFailed(self._seat.nonce, reason, text, permanent))

    async def _release(self) -> None:
        """Own keys and lease out of etcd, within the bound; what stays ends with the TTL."""
        if not self._maybe_granted:
            return
        bound_s = min(LEAVE_S, self._seat.ttl_ns / 2 / NS)
        unanswered = asyncio.create_task(self._last_word(bound_s), name="last word")
        try:
            async with asyncio.timeout(bound_s):
                await self._delete_keys(timeout_s=bound_s / 3)
                if self._revision is not None:
                    await asyncio.sleep(AFTER_YOU_S)
                await self._revoke(timeout_s=bound_s / 3)
        except TimeoutError:
            pass
        finally:
            await _end(unanswered)

    async def _last_word(self, timeout_s: float) -> None:
        """If no answer comes at once, the same to every endpoint: it may arrive all the same."""
        if self._spare is None or self._revision is None:
            return
        await asyncio.sleep(UNANSWERED_S)
        revoke = rpc.LeaseRevokeRequest(ID=self._seat.lease)
        _, revoked = await asyncio.gather(
            self._spare.say("KV/Txn", self._deletion(self._revision), timeout_s=timeout_s),
            self._spare.say("Lease/LeaseRevoke", revoke, timeout_s=timeout_s),
        )
        if revoked:
            self._maybe_granted = False

    async def _delete_keys(self, *, timeout_s: float) -> None:
        """Guarded by create_revision: only what this candidacy itself put."""
        if self._revision is None:
            return
        try:
            await self._etcd.call("KV/Txn", self._deletion(self._revision), timeout_s=timeout_s)
        except (EtcdUnavailable, EtcdRefused):
            pass  # the revoke takes them too

    def _deletion(self, revision: int) -> Any:
        place = self._seat.place_key
        return requests.when(
            [requests.created_at(place, revision)],
            [requests.delete(place), requests.delete(self._seat.node_key)],
        )

    async def _revoke(self, *, timeout_s: float) -> None:
        """Over one endpoint after the other until one answers, or the caller's bound."""
        while True:
            try:
                await self._lease.revoke(timeout_s=timeout_s)
            except EtcdUnavailable:
                await asyncio.sleep(0.05)
            except EtcdRefused:
                return
            else:
                self._maybe_granted = False
                return


async def _end(*tasks: asyncio.Task[None]) -> None:
    """Cancel and await; the tasks' own results are nobody's any more."""
    for task in tasks:
        task.cancel()
    await asyncio.wait(tasks)
    for task in tasks:
        if not task.cancelled():
            task.exception()
