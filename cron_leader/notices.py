"""[[notify]]: people are told of failures, recoveries, missed slots and long runs.

What is promised: each notice is sent at most once to each receiver, over any change of leader: its
key is taken in the ledger under the fence, and then it is sent, by a process of its own. What
failed while the post changed hands is told by the next leader, from the ledger. Not promised: that
a notice arrives. A leader that dies between the two, or a receiver that is away, is not tried
again; of missed slots, those a leader had no time to tell are not told.
"""

from __future__ import annotations

import asyncio
import fnmatch
import hashlib
import json
import os
import re
import signal
import sys
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

from cron_leader.clock import Clock
from cron_leader.config import NotifyConfig, On, Quota
from cron_leader.core.model import Refused, State, Term
from cron_leader.errors import LedgerUncertain, LedgerUnusable
from cron_leader.events import Emit, timestamp
from cron_leader.ledger import Ledger
from cron_leader.ledger.noticed import Failed

FAILURES = frozenset({State.FAILED, State.TIMED_OUT, State.ABANDONED})

MOST_WAITING = 1_000
"""Notices not sent yet; more are dropped, the oldest first."""

SENDERS = 4
"""Processes at once."""

SEND_S = 20.0
"""A receiver that takes longer is given up, and its process killed."""

LOOK_S = 0.25
"""How often a node looks whether a term has begun."""

TRIES_S = (0.1, 1.0, 5.0)
"""Pauses between the tries to take a key while the ledger does not answer."""

LATELY = timedelta(minutes=10)
"""What failed before this, as a leader begins, is not told any more."""

LONG_AGO = timedelta(days=7)
"""A job whose last failure is older has recovered unheard."""

_WEBHOOK = str(Path(__file__).with_name("runners") / "webhook.py")
_WORD = re.compile(r"\{(\w+)\}")

Facts = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Notice:
    """One thing to tell to one receiver."""

    rule: NotifyConfig
    key: str
    facts: Facts


class Bucket:
    """A quota that refills evenly; it begins full."""

    def __init__(self, quota: Quota, now_ns: int) -> None:
        self._quota, self._left, self._at_ns = quota, float(quota.count), now_ns
        self.suppressed = 0

    def take(self, now_ns: int) -> bool:
        """Whether one more fits; if not, it is counted."""
        refill = (now_ns - self._at_ns) / 1e9 * self._quota.count / self._quota.per_s
        self._left, self._at_ns = min(self._quota.count, self._left + refill), now_ns
        if self._left < 1:
            self.suppressed += 1
            return False
        self._left -= 1
        return True

    def give_back(self) -> None:
        """What was taken is not used."""
        self._left += 1

    def told(self) -> int:
        """How many were suppressed since the last one that was sent."""
        count, self.suppressed = self.suppressed, 0
        return count


class Notices:
    """Is shown every event of its node; runs beside the daemon's loop."""

    def __init__(
        self,
        rules: tuple[NotifyConfig, ...],
        ledger: Ledger,
        *,
        leading: Callable[[], Term | None],
        clock: Clock,
        emit: Emit,
    ) -> None:
        """leading: the term that has settled the past; None: there is none."""
        self._rules, self._ledger, self._leading = rules, ledger, leading
        self._clock, self._emit = clock, emit
        self._buckets = {rule: Bucket(rule.at_most, clock.boot_ns()) for rule in rules}
        self._waiting: deque[Notice] = deque(maxlen=MOST_WAITING)
        self._more = asyncio.Event()
        self._turn = asyncio.Lock()
        self._failing: set[str] = set()
        self._long: dict[tuple[object, ...], list[asyncio.TimerHandle]] = {}

    # ------------------------------------------------------------------ what happens

    def see(self, line: Facts) -> None:
        """One event line; never blocks."""
        if not self._rules:
            return
        match line["event"]:
            case "run.started":
                self._started(line)
            case "run.finished":
                self._finished(line)
            case "slot.missed":
                self._tell(On.MISSED, line)
            case "slot.failed":
                self._failed({**line, "outcome": State.FAILED})
            case _:
                pass

    def _started(self, line: Facts) -> None:
        loop = asyncio.get_running_loop()
        self._long[_run_of(line)] = [
            loop.call_later(rule.long_after_s, self._put, rule, On.LONG, line)
            for rule in self._rules
            if rule.long_after_s is not None and _wants(rule, On.LONG, line)
        ]

    def _finished(self, line: Facts) -> None:
        for timer in self._long.pop(_run_of(line), ()):
            timer.cancel()
        job, outcome = line["job"], line["outcome"]
        if "retry_at" in line:
            return
        if outcome in FAILURES:
            self._failed(line)
        elif outcome == State.SUCCEEDED and job in self._failing:
            self._failing.discard(job)
            self._tell(On.RECOVERY, line)

    def _failed(self, line: Facts) -> None:
        self._failing.add(line["job"])
        self._tell(On.FAILURE, line)

    def _tell(self, on: On, line: Facts) -> None:
        for rule in self._rules:
            if _wants(rule, on, line):
                self._put(rule, on, line)

    def _put(self, rule: NotifyConfig, on: On, line: Facts) -> None:
        facts = {name: value for name, value in line.items() if name not in {"event", "ts"}}
        told = {"on": on.value, **facts, "at": line["ts"], "text": text_of(on, line)}
        self._waiting.append(Notice(rule, _key(rule, on, line), told))
        self._more.set()

    # ------------------------------------------------------------------ a term begins

    async def run(self) -> None:
        """For ever; returns at once if there is nobody to tell."""
        if not self._rules:
            return
        async with asyncio.TaskGroup() as group:
            group.create_task(self._watch())
            for _ in range(SENDERS):
                group.create_task(self._send_on())

    async def _watch(self) -> None:
        """Of each new term: what failed under the last one."""
        known = None
        while True:
            term = self._leading()
            if term is not None and term.fence != known:
                known = term.fence if await self._look_back(term) else None
            await asyncio.sleep(LOOK_S)

    async def _look_back(self, term: Term) -> bool:
        """Whether the ledger answered."""
        now = self._clock.wall()
        try:
            failed = await self._ledger.failing(term.election, now - LONG_AGO)
        except (LedgerUncertain, LedgerUnusable):
            return False
        self._failing |= {slot.job for slot in failed}
        for slot in failed:
            if slot.finished_at >= now - LATELY:
                self._tell(On.FAILURE, _line_of(slot, term))
        return True

    # ------------------------------------------------------------------ sending

    async def _send_on(self) -> None:
        while True:
            while self._waiting:
                await self._send(self._waiting.popleft())
            self._more.clear()
            await self._more.wait()

    async def _send(self, notice: Notice) -> None:
        bucket = self._buckets[notice.rule]
        async with self._turn:  # or one that is not ours would hold the place of one that is
            if not bucket.take(self._clock.boot_ns()):
                return
            if not await self._take(notice.key):
                bucket.give_back()
                return
        facts = {**notice.facts, "suppressed": bucket.told()}
        error = await _deliver(notice.rule, facts)
        event = "notice.sent" if error is None else "notice.failed"
        self._emit(event, on=facts["on"], job=facts.get("job"), error=error)

    async def _take(self, key: str) -> bool:
        """Whether it is ours to send."""
        term, now = self._leading(), self._clock.wall()
        for pause_s in (*TRIES_S, None):
            if term is None:
                return False
            try:
                answer = await self._ledger.put_notice(term, key, now)
            except (LedgerUncertain, LedgerUnusable):
                if pause_s is None:
                    return False
                await asyncio.sleep(pause_s)
            else:
                return not isinstance(answer, Refused) and answer.changed
        return False


# ------------------------------------------------------------------ pure


def text_of(on: On, line: Facts) -> str:
    """One sentence for people."""
    job, slot = line.get("job", "some jobs"), line.get("scheduled_for", "")
    match on:
        case On.FAILURE:
            why = line.get("error") or line.get("reason") or ""
            return f"{job} {slot}: {line['outcome']}{f': {why}' if why else ''}"
        case On.RECOVERY:
            return f"{job} {slot}: succeeded again"
        case On.MISSED:
            slots = line.get("slots", 1)
            return f"{job} {slot}: {slots} missed ({line.get('reason', 'no leader')})"
        case On.LONG:
            return f"{job} {slot}: still runs since {line['ts']}"


def filled(body: str, facts: Facts) -> str:
    """The template with each {word} as it stands inside a JSON string; unknown facts are empty."""

    def fact(match: re.Match[str]) -> str:
        value = facts.get(match[1])
        text = "" if value is None else str(value)
        return json.dumps(text, ensure_ascii=False)[1:-1]

    return _WORD.sub(fact, body)


def _wants(rule: NotifyConfig, on: On, line: Facts) -> bool:
    if on not in rule.on:
        return False
    job = line.get("job", "")
    return not rule.jobs or any(fnmatch.fnmatchcase(job, pattern) for pattern in rule.jobs)


def _run_of(line: Facts) -> tuple[object, ...]:
    return line["job"], line["scheduled_for"], line["attempt"]


def _key(rule: NotifyConfig, on: On, line: Facts) -> str:
    """The same on each node, for the same receiver."""
    receiver = hashlib.sha256(json.dumps([rule.webhook, rule.command]).encode()).hexdigest()[:12]
    what = (line.get("job"), line.get("scheduled_for", line["ts"]), line.get("attempt"))
    return json.dumps([on.value, *what, receiver], ensure_ascii=False)


def _line_of(slot: Failed, term: Term) -> Facts:
    """As run.finished would have told it."""
    return {
        "event": "run.finished",
        "ts": timestamp(slot.finished_at),
        "job": slot.job,
        "scheduled_for": timestamp(slot.scheduled_for),
        "attempt": slot.attempt,
        "outcome": slot.state,
        "reason": slot.reason,
        "node": slot.node,
        "fleet": term.election.partition("/")[0],
        "fence": term.fence,
    }


# ------------------------------------------------------------------ one process a notice


async def _deliver(rule: NotifyConfig, facts: Facts) -> str | None:
    """None if it was taken, else why not."""
    argv, text = _work(rule, facts)
    try:
        process = await asyncio.create_subprocess_exec(
            *argv,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.DEVNULL,
            stderr=asyncio.subprocess.PIPE,
            cwd=rule.cwd,
            env=dict(_environment()),
            start_new_session=True,
        )
    except OSError as error:
        return f"{argv[0]}: {error.strerror}"
    try:
        async with asyncio.timeout(SEND_S):
            _, said = await process.communicate(text.encode())
    except TimeoutError:
        return f"no answer within {SEND_S:g} s"
    finally:
        if process.returncode is None:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            await asyncio.shield(process.wait())
    if process.returncode == 0:
        return None
    lines = said.decode("utf-8", "replace").strip().splitlines()
    return lines[-1][:200] if lines else f"exit code {process.returncode}"


def _work(rule: NotifyConfig, facts: Facts) -> tuple[list[str], str]:
    """What to start, and what it reads."""
    whole = json.dumps(facts, ensure_ascii=False, default=str)
    if rule.webhook is None:
        return list(rule.command), whole
    body = whole if rule.body is None else filled(rule.body, facts)
    asked = {
        "url": rule.webhook,
        "headers": rule.headers,
        "header_files": rule.header_files,
        "body": body,
        "timeout_s": SEND_S / 2,
    }
    return [sys.executable, "-S", "-E", _WEBHOOK], json.dumps(asked)


def _environment() -> Iterator[tuple[str, str]]:
    """None of the daemon's secrets; a proxy, if there is one."""
    for name in ("PATH", "HOME", "LANG", "TZ", "http_proxy", "https_proxy", "no_proxy"):
        if name in os.environ:
            yield name, os.environ[name]
