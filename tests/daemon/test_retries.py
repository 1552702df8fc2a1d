"""Retries and replacement by real leaders and real runs."""

from __future__ import annotations

from collections import Counter
from datetime import timedelta
from pathlib import Path

from cron_leader.etcd.embedded import EmbeddedEtcd
from cron_leader.events import timestamp
from cron_leader.ledger.views import SlotRow
from tests.http_kit import serving
from tests.kit import town, until

FAILS_UNTIL_MENDED = """
[[job]]
name = "flaky"
every = "1s"
shell = "[ -e mended ] || exit 75"
retries = 1000
backoff = "2s"
retry_exit_codes = [75]
"""

REPLACED = """
[[job]]
name = "held"
every = "1s"
shell = "exec sleep 60"
overlap = "replace"
grace = "5s"
"""


BOUNDED = """
[[job]]
name = "thrifty"
every = "1s"
shell = "exit 1"
retries = 50
backoff = "20ms"
retry_budget = 2

[[job]]
name = "punctual"
every = "1s"
shell = "exit 1"
retries = 50
backoff = "100ms"
backoff_max = "100ms"
start_within = "600ms"
"""

HOOKS = """
[[job]]
name = "hook"
every = "1s"
url = "{hook}"
retries = 3
backoff = "20ms"
retry_exit_codes = [5]

[[job]]
name = "gone"
every = "1s"
url = "{gone}"
retries = 3
backoff = "20ms"
retry_exit_codes = [5]
"""


async def test_a_request_is_sent_again_after_a_5xx_as_the_same_one_and_not_after_a_4xx(
    tmp_path: Path, etcd: EmbeddedEtcd
) -> None:
    with serving() as server:
        jobs = HOOKS.format(hook=server.url("/first/503"), gone=server.url("/status/404"))
        async with town(tmp_path, etcd.endpoint, jobs=jobs, ttl="10s") as place:  # one term
            await place.lead("a")

            def ended(job: str) -> list[SlotRow]:
                return [s for s in place.slots(job) if s.state in ("succeeded", "failed")]

            await until("a slot of both", lambda: bool(ended("hook") and ended("gone")))
            hook, gone = ended("hook")[0], ended("gone")[0]
            tries = [
                row for row in place.attempts("hook") if row.scheduled_for == hook.scheduled_for
            ]
    assert (hook.state, hook.attempt) == ("succeeded", 2)
    assert [(row.state, row.exit_code) for row in tries] == [("failed", 5), ("succeeded", 0)]
    assert (gone.state, gone.attempt) == ("failed", 1)
    keys = [seen["headers"]["idempotency-key"] for seen in server.seen]
    key = f"hook/{timestamp(hook.scheduled_for)}"
    assert keys.count(key) == 2


async def test_retries_end_with_their_budget_and_with_the_time_in_which_a_slot_may_start(
    tmp_path: Path, etcd: EmbeddedEtcd
) -> None:
    async with town(tmp_path, etcd.endpoint, jobs=BOUNDED, ttl="10s") as place:  # one term
        await place.lead("a")

        def ended(job: str) -> list[SlotRow]:
            return [slot for slot in place.slots(job) if slot.finished_at is not None]

        def seen() -> bool:
            if any(slot.state == "retrying" for slot in place.slots("thrifty")):
                return False
            tried_again = any(row.attempt > 1 for row in place.attempts("punctual"))
            return tried_again and min(len(ended("thrifty")), len(ended("punctual"))) > 2

        await until("slots of both, and a second attempt in time", seen)
        ran = [row for row in place.attempts("thrifty") if row.state != "cancelled"]
        tries = Counter(row.scheduled_for for row in ran)
        assert sum(count - 1 for count in tries.values()) == 2
        assert {slot.state for slot in ended("thrifty")} == {"failed"}
        late = [row.started_at - row.scheduled_for for row in place.attempts("punctual")]
        assert max(late) <= timedelta(milliseconds=600)


async def test_a_slot_that_failed_under_a_killed_leader_is_tried_again_by_its_successor(
    tmp_path: Path, etcd: EmbeddedEtcd
) -> None:
    async with town(tmp_path, etcd.endpoint, jobs=FAILS_UNTIL_MENDED) as place:
        opened = await place.lead("a")
        await place.follow("b")
        await until(
            "a slot that waits for its retry",
            lambda: any(slot.state == "retrying" for slot in place.slots("flaky")),
        )
        since = place.fleet.kill_daemon("a")
        await place.says("gate.opened", since=since, node="b")
        (tmp_path / "mended").touch()

        def survivors() -> list[list[tuple[str, int]]]:
            """Of slots that have succeeded after a failure under the killed leader: their ends."""
            ends: dict[object, list[tuple[int, str, int]]] = {}
            for row in place.attempts("flaky"):
                ends.setdefault(row.scheduled_for, []).append((row.attempt, row.state, row.fence))
            told = [[(s, fence) for _, s, fence in sorted(found)] for found in ends.values()]
            first = opened.fields["fence"]
            return [t for t in told if t[0] == ("failed", first) and t[-1][0] == "succeeded"]

        await until("a slot's success after its failure", lambda: bool(survivors()))
        for ends in survivors():
            assert ends[-1][1] > ends[0][1]


async def test_a_replaced_run_is_ended_before_the_next_one_starts(
    tmp_path: Path, etcd: EmbeddedEtcd
) -> None:
    async with town(tmp_path, etcd.endpoint, jobs=REPLACED) as place:
        opened = await place.lead("a")
        first = await place.says("run.finished", since=opened.at, job="held")
        assert (first.fields["outcome"], first.fields["reason"]) == ("cancelled", "overlap")
        started = await place.says("run.started", since=first.at, job="held")
        assert started.fields["scheduled_for"] > first.fields["scheduled_for"]

        def recorded() -> bool:  # its end is written beside the next one's claim
            row = min(place.slots("held"), key=lambda slot: slot.scheduled_for)
            return (row.state, row.reason) == ("cancelled", "overlap")

        await until("the end of the replaced run in the ledger", recorded)
