"""Fleets of real processes: how terms begin and end, and what is left behind."""

from __future__ import annotations

import os
import re
import signal
from datetime import datetime, timedelta
from itertools import pairwise
from pathlib import Path

import psutil

from cron_leader.demo import processes
from cron_leader.demo.fleet import Fleet
from cron_leader.etcd.embedded import EmbeddedEtcd
from cron_leader.events import VOCABULARY
from tests.etcd_kit import Proxy, freeze, thaw
from tests.kit import SOON_S, Town, now, town, until

# ------------------------------------------------------------------ the key and the lease


async def test_one_of_two_leads_and_the_other_stands_in_line(town: Town) -> None:
    opened = await town.lead("a")
    await town.follow("b")
    await town.says("run.started", since=opened.at, job="beat")
    line = (await town.survey()).candidates
    assert [c.node for c in line] == ["a", "b"]
    assert not list(town.fleet.timeline.all("term.elected", node="b"))


async def test_a_lease_is_sixteen_hex_digits_in_every_event(town: Town) -> None:
    opened = await town.lead("a")
    await town.fleet.stop()
    seen = town.fleet.timeline
    lines = [x for event in VOCABULARY for x in seen.all(event) if "lease" in x.fields]
    told = {"lease.granted", "term.campaigning", "watch.opened", "term.elected", "gate.opened"}
    assert told <= {line.event for line in lines}
    assert {line.fields["lease"] for line in lines} == {opened.fields["lease"]}
    assert re.fullmatch("[0-9a-f]{16}", str(opened.fields["lease"]))


async def test_a_node_configured_otherwise_says_so_when_it_joins(town: Town) -> None:
    leader = await town.lead("a")
    town.config.write_text(town.config.read_text().replace('every = "1s"', 'every = "2s"'))
    since = now()
    await town.follow("b")
    told = await town.says("config.drifted", since=since, node="b")
    loaded = town.fleet.timeline.last("config.loaded", node="a")
    assert loaded is not None
    assert (told.fields["other"], told.fields["nodes"]) == (loaded.fields["digest"], ["a"])
    await town.says("run.finished", since=leader.at, node="a")
    assert len(list(town.fleet.timeline.all("config.drifted"))) == 1


async def test_a_key_deleted_by_hand_ends_the_term_and_the_next_in_line_leads(town: Town) -> None:
    opened = await town.lead("a")
    await town.follow("b")
    since = now()
    async with town.hand() as hand:
        await hand.delete((await town.keys())[0])
    ended = await town.says("term.ended", since=since, node="a")
    assert ended.fields["reason"] == "key_deleted"
    successor = await town.says("gate.opened", since=since, node="b")
    assert successor.fields["fence"] > opened.fields["fence"]


async def test_a_foreign_put_on_the_key_ends_the_term(town: Town) -> None:
    opened = await town.lead("a")
    since = now()
    async with town.hand() as hand:
        await hand.put((await town.keys())[0], b"mine")
    ended = await town.says("term.ended", since=since, node="a")
    assert ended.fields["reason"] == "key_overwritten"
    again = await town.says("gate.opened", since=since, node="a")
    assert again.fields["fence"] > opened.fields["fence"]
    assert again.fields["lease"] != opened.fields["lease"]


async def test_a_lease_revoked_by_hand_ends_the_term(town: Town) -> None:
    opened = await town.lead("a")
    since = now()
    async with town.hand() as hand:
        await hand.revoke((await town.survey()).candidates[0].lease)
    ended = await town.says("term.ended", since=since, node="a")
    assert ended.fields["reason"] in {"key_deleted", "lease_lost"}
    again = await town.says("gate.opened", since=since, node="a")
    assert again.fields["fence"] > opened.fields["fence"]


async def test_an_etcd_away_for_less_than_the_ttl_costs_no_term(
    tmp_path: Path, own_etcd: EmbeddedEtcd
) -> None:
    async with town(tmp_path, own_etcd.endpoint, ttl="6s") as place:
        opened = await place.lead("a")
        freeze(own_etcd)
        frozen = now()
        try:
            await place.says("run.finished", since=frozen, job="beat")
        finally:
            thaw(own_etcd)
        await place.says("run.finished", since=now(), job="beat")
        assert not list(place.fleet.timeline.all("term.ended"))
        assert {s.fence for s in place.slots("beat")} == {opened.fields["fence"]}


async def test_an_etcd_away_for_longer_than_the_ttl_ends_the_term_by_its_own_deadline(
    tmp_path: Path, own_etcd: EmbeddedEtcd
) -> None:
    async with town(tmp_path, own_etcd.endpoint) as place:
        opened = await place.lead("a")
        since = now()
        freeze(own_etcd)
        try:
            ended = await place.says("term.ended", since=since)
            assert ended.fields["reason"] == "deadline"
            assert (ended.at - since).total_seconds() < 2
            await place.says("etcd.unreachable", since=since)
        finally:
            thaw(own_etcd)
        again = await place.says("gate.opened", since=ended.at)
        assert again.fields["fence"] > opened.fields["fence"]
        started = place.fleet.timeline.all("run.started")
        assert not [s for s in started if ended.at < s.at < again.at]


async def test_a_leader_whose_requests_arrive_unanswered_hands_over_at_its_deadline(
    tmp_path: Path, etcd: EmbeddedEtcd
) -> None:
    """Its last renewals count for etcd, too: without its last word the lease outlives the bound."""
    async with Proxy(etcd.endpoint) as proxy, town(tmp_path, etcd.endpoint, ttl="5s") as place:
        behind = {**os.environ, "CRON_LEADER_ETCD_ENDPOINTS": proxy.endpoint}
        async with Fleet(place.config, environ=behind) as cut_off:
            started = await cut_off.start("a")
            await cut_off.timeline.first("gate.opened", since=started.at, within_s=SOON_S)
            await place.follow("b")
            await until("its spare connection", lambda: proxy.connections == 2)
            proxy.drop_replies = True
            since = now()
            opened = await place.says("gate.opened", since=since, node="b")
            assert (opened.at - since).total_seconds() <= 5 - 1 + 1  # T, margin T / 5
            ended = cut_off.timeline.last("term.ended", node="a")
            assert ended is not None
            assert ended.fields["reason"] == "deadline"
            assert ended.at < opened.at
            proxy.drop_replies = False


async def test_a_follower_frozen_past_its_ttl_never_leads_with_its_dead_key(town: Town) -> None:
    await town.lead("a")
    await town.follow("b")
    dead = (await town.line_of(2))[1]
    await town.freeze("b")
    async with town.hand() as hand:
        await hand.until_gone(dead)
    since = town.fleet.signal("a", signal.SIGTERM)
    await town.says("node.stopped", since=since, node="a")
    town.fleet.thaw("b")
    elected = await town.says("term.elected", since=since, node="b")
    assert not dead.endswith(str(elected.fields["lease"]).encode())
    assert (await town.keys())[0] != dead


# ------------------------------------------------------------------ deaths


async def test_a_killed_daemon_takes_its_runs_along_grandchildren_too(
    tmp_path: Path, etcd: EmbeddedEtcd
) -> None:
    jobs = _every_second("sleep 300 & echo $! >> pids; echo $$ >> pids; wait")
    async with town(tmp_path, etcd.endpoint, jobs=jobs) as place:
        opened = await place.lead("a")
        await place.follow("b")
        await place.says("run.started", since=opened.at, node="a")
        pids = await _pids(tmp_path, 2)
        since = place.fleet.kill_daemon("a")
        assert await place.fleet.ended("a") == 137
        await until("runs dead", lambda: not any(map(_alive, pids)))
        await place.says("gate.opened", since=since, node="b")
        first = place.slots("held")[0]
        assert (first.state, first.reason) == ("abandoned", "lost_leadership")


async def test_a_daemon_without_its_supervisor_kills_its_runs_and_leaves(
    tmp_path: Path, etcd: EmbeddedEtcd
) -> None:
    jobs = _every_second("sleep 300 & echo $! >> pids; echo $$ >> pids; wait")
    async with town(tmp_path, etcd.endpoint, jobs=jobs) as place:
        opened = await place.lead("a")
        await place.follow("b")
        await place.says("run.started", since=opened.at, node="a")
        pids = await _pids(tmp_path, 2)
        started = place.fleet.timeline.last("node.started", node="a")
        assert started is not None
        since = place.fleet.signal("a", signal.SIGKILL)
        await place.says("gate.opened", since=since, node="b")
        await until("runs dead", lambda: not any(map(_alive, pids)))
        await until("daemon gone", lambda: not _alive(started.fields["pid"]))
        first = place.slots("held")[0]
        assert (first.state, first.reason) == ("cancelled", "shutdown")


async def test_with_both_killed_the_run_dies_and_the_ttl_decides(
    tmp_path: Path, etcd: EmbeddedEtcd
) -> None:
    jobs = _every_second("echo $$ >> pids; exec sleep 300")
    async with town(tmp_path, etcd.endpoint, jobs=jobs) as place:
        opened = await place.lead("a")
        await place.follow("b")
        await place.says("run.started", since=opened.at, node="a")
        pids = await _pids(tmp_path, 1)
        supervisor = place.fleet.timeline.last("node.started", node="a")
        assert supervisor is not None
        since = now()
        processes.kill_tree(supervisor.fields["supervisor_pid"])
        await until("run dead", lambda: not any(map(_alive, pids)))
        successor = await place.says("gate.opened", since=since, node="b")
        assert (successor.at - since).total_seconds() < 4
        first = place.slots("held")[0]
        assert (first.state, first.reason) == ("abandoned", "lost_leadership")


# ------------------------------------------------------------------ leaving


async def test_sigterm_lets_the_run_in_flight_end_records_it_and_exits_0(
    tmp_path: Path, etcd: EmbeddedEtcd
) -> None:
    jobs = _every_second("echo $$ >> pids; until [ -e let-go ]; do sleep 0.02; done; echo bye")
    async with town(tmp_path, etcd.endpoint, jobs=jobs) as place:
        await place.lead("a")
        await place.follow("b")
        await _pids(tmp_path, 1)
        since = place.fleet.signal("a", signal.SIGTERM)
        await place.says("gate.closed", since=since, node="a", reason="stopping")
        for _ in range(5):
            assert len(await place.keys()) == 2
        assert not list(place.fleet.timeline.all("term.ended"))
        (tmp_path / "let-go").touch()
        ended = await place.says("run.finished", since=since, node="a")
        assert await place.fleet.ended("a") == 0
        opened = await place.says("gate.opened", since=since, node="b")
        assert opened.at > ended.at
        first = place.slots("held")[0]
        assert (first.state, first.attempt) == ("succeeded", 1)
        assert place.attempts("held")[0].output == "bye\n"


async def test_a_run_that_outlasts_the_drain_is_cancelled(
    tmp_path: Path, etcd: EmbeddedEtcd
) -> None:
    jobs = _every_second("echo $$ >> pids; exec sleep 300")
    async with town(tmp_path, etcd.endpoint, jobs=jobs, more='[run]\ndrain = "200ms"') as place:
        await place.lead("a")
        await _pids(tmp_path, 1)
        place.fleet.signal("a", signal.SIGTERM)
        assert await place.fleet.ended("a") == 0
        first = place.slots("held")[0]
        assert (first.state, first.reason) == ("cancelled", "shutdown")


async def test_a_second_signal_kills_at_once(tmp_path: Path, etcd: EmbeddedEtcd) -> None:
    jobs = _every_second("echo $$ >> pids; exec sleep 300")
    async with town(tmp_path, etcd.endpoint, jobs=jobs) as place:
        await place.lead("a")
        pids = await _pids(tmp_path, 1)
        since = place.fleet.signal("a", signal.SIGTERM)
        await place.says("node.stopping", since=since)
        place.fleet.signal("a", signal.SIGTERM)
        assert await place.fleet.ended("a") == 143
        assert not any(map(_alive, pids))


async def test_ctrl_c_is_a_graceful_stop(town: Town) -> None:
    await town.lead("a")
    town.fleet.signal("a", signal.SIGINT)
    assert await town.fleet.ended("a") == 0
    assert await town.keys() == []


async def test_a_stop_in_line_leaves_nothing_in_etcd(town: Town) -> None:
    await town.lead("a")
    await town.follow("b")
    town.fleet.signal("b", signal.SIGTERM)
    assert await town.fleet.ended("b") == 0
    survey = await town.survey()
    assert [c.node for c in survey.candidates] == ["a"]
    assert [n.node for n in survey.nodes] == ["a"]


# ------------------------------------------------------------------ leadership lost in mid-run


async def test_a_run_is_killed_before_its_lease_can_have_expired(
    tmp_path: Path, own_etcd: EmbeddedEtcd
) -> None:
    jobs = _every_second("echo $$ >> pids; exec sleep 300")
    async with town(tmp_path, own_etcd.endpoint, jobs=jobs) as place:
        await place.lead("a")
        pids = await _pids(tmp_path, 1)
        since = now()
        freeze(own_etcd)
        try:
            await until("run dead", lambda: not any(map(_alive, pids)))
            assert (now() - since).total_seconds() < 2
        finally:
            thaw(own_etcd)
        again = await place.says("term.raised", since=since)
        await place.says("gate.opened", since=again.at)
        first = place.slots("held")[0]
        assert (first.state, first.reason) == ("abandoned", "lost_leadership")


async def test_a_run_that_may_finish_outlives_the_term_and_its_late_finish_is_refused(
    town: Town, tmp_path: Path
) -> None:
    shell = "echo $$ >> pids; until [ -e let-go ]; do sleep 0.02; done"
    town.config.write_text(
        town.config.read_text() + _every_second(shell, 'on_lost_leadership = "finish"')
    )
    opened = await town.lead("a")
    await town.follow("b")
    pids = await _pids(tmp_path, 1)
    since = now()
    async with town.hand() as hand:
        await hand.delete((await town.keys())[0])
    await town.says("gate.opened", since=since, node="b")
    assert _alive(pids[0])
    (tmp_path / "let-go").touch()
    refused = await town.says("ledger.refused", since=since, node="a", what="finish")
    assert refused.fields["fence"] == opened.fields["fence"]
    assert town.slots("held")[0].state == "abandoned"


async def test_a_killed_leaders_run_is_the_successors_next_attempt_where_the_job_says_so(
    tmp_path: Path, etcd: EmbeddedEtcd
) -> None:
    shell = 'echo $$ >> pids; [ "$CRON_LEADER_NODE" = b ] || exec sleep 300'
    jobs = _every_second(shell, 'delivery = "at-least-once"')
    async with town(tmp_path, etcd.endpoint, jobs=jobs) as place:
        await place.lead("a")
        await place.follow("b")
        await _pids(tmp_path, 1)
        await until("seen alive", lambda: place.attempts("held")[-1].heartbeat_at is not None)
        slot = place.attempts("held")[-1].scheduled_for
        since = place.fleet.kill_daemon("a")
        await place.says("run.finished", since=since, node="b", job="held", attempt=2)
        await until("recorded", lambda: _states(place, slot) == ["abandoned", "succeeded"])


async def test_the_old_owners_late_finish_does_not_touch_the_next_attempt(
    tmp_path: Path, etcd: EmbeddedEtcd
) -> None:
    shell = (
        'echo $$ >> pids; [ "$CRON_LEADER_NODE" = b ] || until [ -e let-go ]; do sleep 0.02; done'
    )
    jobs = _every_second(shell, 'on_lost_leadership = "finish"\ndelivery = "at-least-once"')
    async with town(tmp_path, etcd.endpoint, jobs=jobs) as place:
        await place.lead("a")
        await place.follow("b")
        await _pids(tmp_path, 1)
        slot = place.attempts("held")[-1].scheduled_for
        since = now()
        async with place.hand() as hand:
            await hand.delete((await place.keys())[0])
        await place.says("run.finished", since=since, node="b", job="held", attempt=2)
        (tmp_path / "let-go").touch()
        await place.says("ledger.refused", since=since, node="a", what="finish")
        await until("recorded", lambda: _states(place, slot) == ["abandoned", "succeeded"])


# ------------------------------------------------------------------ jobs cost a run, not the node


async def test_bad_jobs_cost_one_run_each_and_nothing_else(
    tmp_path: Path, etcd: EmbeddedEtcd
) -> None:
    (tmp_path / "oddjobs.py").write_text(
        "import os\n"
        "def raising(tick):\n    raise ValueError('no ' + tick.job)\n"
        "async def crashing(tick):\n    os.abort()\n"
    )
    jobs = "".join(
        f'[[job]]\nname = "{name}"\nevery = "1s"\n{what}\n'
        for name, what in {
            "good": 'command = ["true"]',
            "failing": 'shell = "echo out; exit 3"',
            "absent": 'shell = "exec no-such-program"',
            "hanging": 'shell = "exec sleep 300"\ntimeout = "300ms"\ngrace = "100ms"',
            "flooding": "shell = \"head -c 3000000 /dev/zero | tr '\\\\0' x\"",
            "leaving": 'shell = "sleep 300 & echo $! >> left"',
            "raising": 'python = "oddjobs:raising"',
            "crashing": 'python = "oddjobs:crashing"',
        }.items()
    )
    async with town(tmp_path, etcd.endpoint, jobs=jobs) as place:
        opened = await place.lead("a")
        names = ("failing", "absent", "hanging", "flooding", "leaving", "raising", "crashing")
        for name in names:
            await place.says("run.finished", since=opened.at, job=name)
        await place.says("run.finished", since=now(), job="good", outcome="succeeded")
        place.fleet.signal("a", signal.SIGTERM)
        assert await place.fleet.ended("a") == 0
        first = {name: place.attempts(name)[0] for name in ("good", *names)}
        states = {name: row.state for name, row in first.items()}
        assert states == {
            "good": "succeeded",
            "failing": "failed",
            "absent": "failed",
            "hanging": "timed_out",
            "flooding": "succeeded",
            "leaving": "succeeded",
            "raising": "failed",
            "crashing": "failed",
        }
        assert (first["failing"].exit_code, first["failing"].output) == (3, "out\n")
        assert first["absent"].exit_code == 127
        assert "ValueError: no raising" in (first["raising"].error or "")
        assert "SIGABRT" in (first["crashing"].error or "")
        assert len(first["flooding"].output or "") < 70_000
        left = [int(pid) for pid in (tmp_path / "left").read_text().split()]
        assert not any(map(_alive, left))


async def test_a_slot_due_while_the_previous_run_goes_is_skipped_as_overlap(
    tmp_path: Path, etcd: EmbeddedEtcd
) -> None:
    jobs = _every_second("echo $$ >> pids; until [ -e let-go ]; do sleep 0.02; done")
    async with town(tmp_path, etcd.endpoint, jobs=jobs) as place:
        opened = await place.lead("a")
        first = await place.says("slot.skipped", since=opened.at, job="held")
        await place.says("slot.skipped", since=first.at + timedelta.resolution, job="held")
        (tmp_path / "let-go").touch()
        await place.says("run.finished", since=opened.at, job="held")
        await place.says("run.started", since=now(), job="held")
        rows = place.slots("held")
        skipped = [row for row in rows if row.state == "skipped"]
        assert {row.reason for row in skipped} == {"overlap"}
        assert len(skipped) >= 2
        times = [row.scheduled_for for row in rows]
        assert all((b - a).total_seconds() == 1 for a, b in pairwise(times))


# ------------------------------------------------------------------ helpers


def _every_second(shell: str, more: str = "") -> str:
    return f"\n[[job]]\nname = \"held\"\nevery = \"1s\"\nshell = '''{shell}'''\n{more}\n"


def _states(place: Town, slot: datetime) -> list[str]:
    """Of the attempts of that slot of the job `held`, in their order."""
    return [a.state for a in place.attempts("held") if a.scheduled_for == slot]


async def _pids(folder: Path, count: int) -> list[int]:
    """The pids that runs wrote to the file `pids`."""
    file = folder / "pids"

    def written() -> list[str]:
        return file.read_text().split() if file.exists() else []

    await until("pids written", lambda: len(written()) >= count)
    return [int(pid) for pid in written()]


def _alive(pid: int) -> bool:
    try:
        return bool(psutil.Process(pid).status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False
