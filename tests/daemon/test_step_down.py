"""Planned handovers in fleets of real processes: who leads next, and what becomes of each slot."""

from __future__ import annotations

import asyncio
import json
import signal
import sys
from collections import Counter
from datetime import datetime, timedelta
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from cron_leader.etcd.embedded import EmbeddedEtcd
from cron_leader.ledger.views import open_reader
from tests.kit import Town, now, town, until

HALF = timedelta(milliseconds=500)

BEATS = """
[[job]]
name = "beat"
every = "500ms"
catchup = "all"
command = ["true"]
"""

LONG = """
[[job]]
name = "long"
every = "1d"
command = ["true"]
[[job]]
name = "beat"
every = "1s"
command = ["sleep", "0.7"]
"""


async def step_down(place: Town, *args: str) -> tuple[int, str, str]:
    """`cron-leader step-down` in a process of its own: its exit code, stdout, stderr."""
    command = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", "import sys; from cron_leader.cli import main; sys.exit(main())"),
        *("step-down", "--config", str(place.config), *args),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        cwd=place.config.parent,
    )
    out, err = await command.communicate()
    assert command.returncode is not None
    return command.returncode, out.decode(), err.decode()


async def handed_over(place: Town, *args: str) -> dict[str, Any]:
    """What the command says of a handover that came about."""
    code, out, err = await step_down(place, "--json", *args)
    assert (code, err) == (0, "")
    said: dict[str, Any] = json.loads(out)
    return said


def each_once(place: Town, job: str, period: timedelta, since: datetime, until: datetime) -> None:
    """Every slot of (since, until] has one row, and ran once: a claim put back is no run."""
    rows = [s for s in place.slots(job) if since < s.scheduled_for <= until]
    assert {s.state for s in rows} <= {"succeeded", "running"}
    ran = Counter(a.scheduled_for for a in place.attempts(job) if a.state != "cancelled")
    assert {ran[s.scheduled_for] for s in rows} == {1}
    assert all(b.scheduled_for - a.scheduled_for == period for a, b in pairwise(rows))
    assert rows[0].scheduled_for - since <= period
    assert until - rows[-1].scheduled_for < period
    with open_reader(place.ledger) as reader:
        assert reader.gaps(job=job) == ()


async def test_a_step_down_hands_over_in_milliseconds_and_loses_no_slot(
    tmp_path: Path, etcd: EmbeddedEtcd
) -> None:
    async with town(tmp_path, etcd.endpoint, jobs=BEATS) as place:
        opened = await place.lead("a")
        await place.follow("b")
        await place.says("run.finished", since=now(), node="a")
        asked = now()
        said = await handed_over(place, "--for", "10m", "--why", "disk swap")
        closed = await place.says("gate.closed", since=asked, node="a")
        ended = await place.says("term.ended", since=asked, node="a")
        taken = await place.says("gate.opened", since=asked, node="b")
        for _ in range(3):
            last = await place.says("run.finished", since=now(), node="b", job="beat")

        assert (closed.fields["reason"], ended.fields["reason"]) == ("stopping", "resigned")
        assert said["from"] == {"node": "a", "fence": opened.fields["fence"]}
        assert said["to"] == {"node": "b", "fence": taken.fields["fence"]}
        assert said["command"] == ended.fields["command"]
        assert abs(said["handover_ms"]) < 1000
        assert (taken.at - ended.at).total_seconds() < 1

        # One that was told to go just before may say that it began just after.
        began = place.fleet.timeline.all("run.started", node="a")
        assert [r for r in began if r.fields["scheduled_for"] > closed.fields["ts"]] == []
        each_once(place, "beat", HALF, opened.at, last.at - HALF)
        by = {s.scheduled_for: s.node for s in place.slots("beat")}
        assert {n for at, n in by.items() if opened.at < at <= closed.at - HALF} == {"a"}
        assert {n for at, n in by.items() if at > closed.at} == {"b"}
        assert not list(place.fleet.timeline.all("slot.missed"))
        assert not list(place.fleet.timeline.all("ledger.refused"))
        with open_reader(place.ledger) as reader:
            (row,) = reader.commands()
            assert [t.reason for t in reader.terms()] == [None, "resigned"]
        assert (row.kind, row.target, row.why) == ("step-down", f"{place.name}/0", "disk swap")
        assert (row.done_by_fence, row.result) == (opened.fields["fence"], "stepping down")
        assert [c.node for c in (await place.survey()).candidates] == ["b"]  # a stays away


async def test_a_run_in_flight_ends_on_the_old_leader_before_the_new_one_leads(
    tmp_path: Path, etcd: EmbeddedEtcd
) -> None:
    async with town(tmp_path, etcd.endpoint, jobs=LONG) as place:
        await place.lead("a")
        await place.follow("b")
        asked = now()
        await handed_over(place)
        ended = await place.says("term.ended", since=asked, node="a")
        taken = await place.says("gate.opened", since=asked, node="b")
        finished = list(place.fleet.timeline.all("run.finished", node="a"))
        assert {r.fields["outcome"] for r in finished} == {"succeeded"}
        assert max(r.at for r in finished) <= ended.at < taken.at
        assert (taken.at - ended.at).total_seconds() < 1


async def test_with_no_time_away_the_old_leader_joins_the_end_of_the_line(town: Town) -> None:
    await town.lead("a")
    await town.follow("b")
    await town.follow("c")
    since = now()
    await handed_over(town, "--for", "0")
    await town.says("lease.granted", since=since, node="a")
    await until_line(town, ["b", "c", "a"])
    await handed_over(town, "--for", "1s")
    await until_line(town, ["c", "a", "b"])


async def until_line(place: Town, nodes: list[str]) -> None:
    """Wait until these stand in line, in this order."""
    async with asyncio.timeout(20):
        while [c.node for c in (await place.survey()).candidates] != nodes:  # noqa: ASYNC110
            await asyncio.sleep(0.05)


async def test_without_anybody_else_in_line_it_takes_force_and_the_node_comes_back(
    town: Town,
) -> None:
    opened = await town.lead("a")
    code, out, err = await step_down(town)
    assert (code, out) == (1, "")
    assert err.count("\n") == 1
    assert "nobody else is in line" in err
    since = now()
    said = await handed_over(town, "--force", "--for", "1s")
    assert said["to"] is None
    again = await town.says("gate.opened", since=since, node="a")
    ended = await town.says("term.ended", since=since, node="a")
    assert ended.fields["reason"] == "resigned"
    assert (again.at - ended.at).total_seconds() >= 1
    assert again.fields["fence"] > opened.fields["fence"]


async def test_an_order_for_a_term_that_is_over_is_answered_and_not_obeyed(town: Town) -> None:
    opened = await town.lead("a")
    await town.follow("b")
    code, out, _ = await step_down(town, "--no-wait", "--json")
    assert code == 0
    said = json.loads(out)
    assert said["to"] is None
    with open_reader(town.ledger) as reader:
        (row,) = reader.commands()
        await town.says("gate.opened", since=opened.at, node="b")
        stale = type(row)("stale", row.kind, row.target, row.args, row.who, None, now())
        reader.order(stale)
        await until("answered", lambda: reader.commands(id="stale")[0].result is not None)
        assert reader.commands(id="stale")[0].result == "not leading any more"
    await town.says("run.finished", since=now(), node="b")
    assert not list(town.fleet.timeline.all("term.ended", node="b"))


@pytest.mark.slow
async def test_a_rolling_restart_with_the_leader_last_moves_the_post_once(
    tmp_path: Path, etcd: EmbeddedEtcd
) -> None:
    """The rule of docs/operations.md: a node that was restarted waits at the end of the line."""
    async with town(tmp_path, etcd.endpoint, jobs=BEATS) as place:
        opened = await place.lead("a")
        await place.follow("b")
        await place.follow("c")
        for name in ("b", "c", "a"):
            since = place.fleet.signal(name, signal.SIGTERM)
            assert await place.fleet.ended(name) == 0
            await place.follow(name)
            await place.says("run.finished", since=since, job="beat")
        await until_line(place, ["b", "c", "a"])
        last = await place.says("run.finished", since=now(), job="beat")
        assert moves(place) == ["a", "b"]
        each_once(place, "beat", HALF, opened.at, last.at - HALF)


def moves(place: Town) -> list[str]:
    """Who has led, in order."""
    return [line.node for line in place.fleet.timeline.all("term.raised")]


@pytest.mark.slow
async def test_a_rolling_restart_that_begins_with_the_leader_moves_it_again_and_again(
    town: Town,
) -> None:
    """Why the rule is one: the same three restarts in the order of the line are three moves."""
    await town.lead("a")
    await town.follow("b")
    await town.follow("c")
    for name in ("a", "b", "c"):
        since = town.fleet.signal(name, signal.SIGTERM)
        assert await town.fleet.ended(name) == 0
        await town.says("gate.opened", since=since)
        await town.follow(name)
    assert moves(town) == ["a", "b", "c", "a"]
