"""Operators' orders in fleets of real processes: what a leader that is killed leaves undone, the
next one does, and nothing twice."""

from __future__ import annotations

from collections import Counter
from datetime import timedelta
from pathlib import Path

from cron_leader import control
from cron_leader.core.model import Asked, Backfill, Pause, Resume, Trigger
from cron_leader.etcd.embedded import EmbeddedEtcd
from cron_leader.ledger.views import CommandRow, open_reader
from tests.kit import Town, now, town, until

RARE = """
[[job]]
name = "rare"
at = "2999-01-01T00:00:00Z"
command = ["true"]
"""

BEATS = """
[[job]]
name = "beat"
every = "200ms"
command = ["true"]
"""

HOURLY = """
[[job]]
name = "hourly"
every = "1h"
catchup = "none"
command = ["true"]
"""


def order(place: Town, asked: Asked) -> CommandRow:
    with open_reader(place.ledger) as reader:
        return control.give(reader, control.command_of(asked, f"{place.name}/0", why="test"))


def answers(place: Town) -> dict[str, str | None]:
    with open_reader(place.ledger) as reader:
        return {row.id: row.result for row in reader.commands()}


def asked_for(place: Town) -> list[str]:
    """The states of the slots that operators asked for."""
    return [slot.state for slot in place.slots() if slot.command_id]


async def done(place: Town, asked: Asked) -> CommandRow:
    """Order it, and wait for the answer."""
    given = order(place, asked)
    await until("the answer", lambda: answers(place)[given.id] is not None)
    with open_reader(place.ledger) as reader:
        return reader.commands(id=given.id)[0]


async def test_a_job_runs_when_it_is_triggered_in_a_row_that_says_so(
    tmp_path: Path, etcd: EmbeddedEtcd
) -> None:
    async with town(tmp_path, etcd.endpoint, jobs=RARE) as place:
        opened = await place.lead("a")
        since = now()
        answered = await done(place, Trigger("k1", "rare", since))
        await until("the run has ended", lambda: place.slots()[0].state == "succeeded")
        assert (answered.result, answered.done_by_fence) == ("triggered", opened.fields["fence"])
        (slot,) = place.slots()
        assert (slot.command_id, slot.origin, slot.scheduled_for) == ("k1", "manual", since)


async def test_a_leader_killed_over_its_orders_loses_none_and_doubles_none(
    tmp_path: Path, etcd: EmbeddedEtcd
) -> None:
    async with town(tmp_path, etcd.endpoint, jobs=RARE) as place:
        await place.lead("a")
        await place.follow("b")
        since = now()
        keys = {f"k{n}" for n in range(12)}
        for n in range(12):
            order(place, Trigger(f"k{n}", "rare", since + timedelta(milliseconds=n)))
        await place.says("run.started", since=since, node="a")
        place.fleet.kill_daemon("a")
        await place.says("gate.opened", since=since, node="b")

        def settled() -> bool:
            ended = {"succeeded", "abandoned"}
            slots = place.slots()
            return len(slots) == len(keys) and {s.state for s in slots} <= ended

        await until("all that was asked for has ended", settled)
        assert answers(place) == dict.fromkeys(keys, "triggered")
        slots = place.slots()
        assert {slot.command_id for slot in slots} == keys
        assert sum(slot.state == "abandoned" for slot in slots) <= 1  # the run that was killed
        ran = Counter(a.command_id for a in place.attempts() if a.state != "cancelled")
        assert ran == dict.fromkeys(keys, 1)


async def test_nothing_starts_in_a_pause_and_nothing_of_it_is_caught_up(
    tmp_path: Path, etcd: EmbeddedEtcd
) -> None:
    async with town(tmp_path, etcd.endpoint, jobs=BEATS) as place:
        await place.lead("a")
        await place.says("run.finished", since=now())
        await done(place, Pause("p", "beat", 3600))
        with open_reader(place.ledger) as reader:
            paused_from = reader.jobs()[0].paused_from
        assert paused_from is not None
        skipped = await place.says("slot.skipped", since=paused_from, reason="paused")
        assert skipped.fields["job"] == "beat"
        await done(place, Trigger("t", "beat", now()))
        await until("the trigger's run has ended", lambda: asked_for(place) == ["succeeded"])
        await done(place, Resume("r", None))
        with open_reader(place.ledger) as reader:
            resumed_at = reader.jobs()[0].paused_until
        assert resumed_at is not None
        await place.says("run.finished", since=resumed_at + timedelta(seconds=0.4))
        within = [
            s
            for s in place.slots()
            if paused_from <= s.scheduled_for < resumed_at and not s.command_id
        ]
        assert {s.state for s in within} == {"skipped"}
        reasons = {s.reason for s in within}  # overlap: while the run before it still went
        assert "paused" in reasons <= {"paused", "overlap"}


async def test_a_pause_ends_by_itself(tmp_path: Path, etcd: EmbeddedEtcd) -> None:
    async with town(tmp_path, etcd.endpoint, jobs=BEATS) as place:
        await place.lead("a")
        answered = await done(place, Pause("p", None, 0.5))
        skipped = await place.says("slot.skipped", since=answered.at, reason="paused")
        await place.says("run.finished", since=skipped.at)


async def test_a_pause_goes_on_with_the_next_leader_until_its_time_and_the_beat_keeps_its_phase(
    tmp_path: Path, etcd: EmbeddedEtcd
) -> None:
    async with town(tmp_path, etcd.endpoint, jobs=BEATS) as place:
        await place.lead("a")
        await place.follow("b")
        await place.says("run.finished", since=now(), node="a")
        await done(place, Pause("p", "beat", 1))
        with open_reader(place.ledger) as reader:
            (job,) = reader.jobs()
        assert job.paused_from is not None
        assert job.paused_until is not None
        place.fleet.kill_daemon("a")
        await until(
            "b's runs", lambda: ("b", "succeeded") in {(s.node, s.state) for s in place.slots()}
        )
        slots = place.slots()
        within = [s for s in slots if job.paused_from <= s.scheduled_for < job.paused_until]
        assert {s.state for s in within} == {"skipped"}
        reasons = {s.reason for s in within}
        assert "paused" in reasons <= {"paused", "overlap"}
        phases = {s.scheduled_for.microsecond % 200_000 for s in slots}
        assert phases == {0}


async def test_a_backfill_goes_on_with_the_next_leader_and_runs_each_slot_once(
    tmp_path: Path, etcd: EmbeddedEtcd
) -> None:
    async with town(tmp_path, etcd.endpoint, jobs=HOURLY) as place:
        await place.lead("a")
        await place.follow("b")
        since = now()
        day = since.replace(minute=0, second=0, microsecond=0) - timedelta(hours=10)
        await done(place, Backfill("k1", "hourly", day, day + timedelta(hours=10), 20))
        await place.says("run.finished", since=since, node="a")
        place.fleet.kill_daemon("a")
        await place.says("gate.opened", since=since, node="b")
        ended = {"succeeded", "abandoned"}
        await until("all ended", lambda: {s.state for s in place.slots()} <= ended)
        slots = [s for s in place.slots() if s.command_id == "k1"]
        assert [s.scheduled_for for s in slots] == [day + timedelta(hours=n) for n in range(10)]
        assert sum(s.state == "abandoned" for s in slots) <= 1
        ran = Counter(a.scheduled_for for a in place.attempts() if a.state != "cancelled")
        assert set(ran.values()) == {1}
