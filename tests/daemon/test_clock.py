"""Real daemons whose wall clock is set while they lead: leases do not care, slots fire once.

The wall clock is libfaketime's: CLOCK_REALTIME moves, the boot clock does not, which is also what a
paused virtual machine looks like once it goes on.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from glob import glob
from itertools import pairwise
from pathlib import Path
from typing import NoReturn

import pytest

from cron_leader.demo.fleet import Line, Stalled
from cron_leader.etcd.embedded import EmbeddedEtcd
from cron_leader.ledger.views import open_reader
from cron_leader.ledger.writes import PUT_BACK
from tests import pg_kit
from tests.kit import Town, now, town, until

LIBRARY = "/usr/lib/*/faketime/libfaketimeMT.so.1"
STEP_S = 300
LONG_AGO = datetime(2000, 1, 1, tzinfo=UTC)


class WallClock:
    """The wall clock of the processes started from here on; set by a file that is replaced."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self.set(0)

    def set(self, ahead_s: float) -> None:
        fresh = self._file.with_suffix(".new")
        fresh.write_text(f"{ahead_s:+g}")
        fresh.replace(self._file)


def _needed(what: str) -> NoReturn:
    if os.environ.get("CRON_LEADER_REQUIRE_ALL"):
        pytest.fail(f"{what} is not on this machine, and CRON_LEADER_REQUIRE_ALL is set")
    pytest.skip(f"{what} is not on this machine")


@pytest.fixture
def wall(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> WallClock:
    library = next(iter(glob(LIBRARY)), None)
    if library is None:
        _needed("libfaketime (Debian: apt-get install faketime)")
    clock = WallClock(tmp_path / "wall-clock")
    monkeypatch.setenv("LD_PRELOAD", library)
    monkeypatch.setenv("FAKETIME_TIMESTAMP_FILE", str(tmp_path / "wall-clock"))
    monkeypatch.setenv("FAKETIME_DONT_FAKE_MONOTONIC", "1")
    monkeypatch.setenv("FAKETIME_NO_CACHE", "1")
    return clock


@pytest.fixture(scope="module")
def server() -> Iterator[pg_kit.Postgres]:
    found = pg_kit.installed()
    if not found:
        _needed("Postgres")
    with pg_kit.postgres(found[max(found)]) as made:
        yield made


# ------------------------------------------------------------------ helpers


def _all(place: Town, event: str, **fields: object) -> list[Line]:
    return list(place.fleet.timeline.all(event, **fields))


async def _counts(place: Town, event: str, count: int, **fields: object) -> list[Line]:
    """Wait for so many such events: their own times jump."""
    await until(f"{count} {event}", lambda: len(_all(place, event, **fields)) >= count)
    return _all(place, event, **fields)


async def _no_more(place: Town, event: str, *, within_s: float) -> None:
    """That no such event comes, or came."""
    try:
        came = await place.says(event, since=LONG_AGO, within_s=within_s)
    except Stalled:
        return
    pytest.fail(f"{came}")


async def _ticks_on(place: Town, runs: int = 4) -> None:
    before = len(_all(place, "run.finished", outcome="succeeded"))
    await _counts(place, "run.finished", before + runs, outcome="succeeded")


def _order(place: Town) -> list[str]:
    """The events of gate, clock and runs, as they came."""
    timeline = place.fleet.timeline
    kinds = ("gate.opened", "gate.closed", "clock.stepped", "run.started")
    return [line.event for line in timeline._lines if line.event in kinds]


def _explained(place: Town) -> None:
    """One row a slot and one run a row, and no slot between first and last without. A claim that
    meets a gate just shut is put back, and its next attempt is the run."""
    rows = place.slots("beat")
    times = [row.scheduled_for for row in rows]
    assert len(set(times)) == len(times)
    runs = Counter(a.scheduled_for for a in place.attempts("beat") if a.error != PUT_BACK)
    assert set(runs.values()) <= {1}
    with open_reader(place.ledger) as reader:
        gaps = {gap.first: gap for gap in reader.gaps()}
    ends = sorted([*times, *gaps])
    for one, after in pairwise(ends):
        last = gaps[one].last if one in gaps else one
        assert after - last == timedelta(seconds=1), (one, after)


async def _shut_until_proven(place: Town, by_ms: int, *, steps: int) -> None:
    stepped = (await _counts(place, "clock.stepped", steps))[-1]
    assert abs(float(str(stepped.fields["by_ms"])) - by_ms) < 200
    await _counts(place, "gate.closed", steps, reason="clock_jump")


# ------------------------------------------------------------------ steps


async def test_a_step_forward_shuts_the_gate_costs_no_term_and_leaves_no_slot_unexplained(
    tmp_path: Path, etcd: EmbeddedEtcd, wall: WallClock
) -> None:
    async with town(tmp_path, etcd.endpoint, ttl="12s") as place:  # not lost to a busy machine
        opened = await place.lead("a")
        await _ticks_on(place, 2)
        wall.set(STEP_S)
        await _shut_until_proven(place, STEP_S * 1000, steps=1)
        again = (await _counts(place, "gate.opened", 2))[-1]
        assert again.fields["fence"] == opened.fields["fence"]
        await _ticks_on(place)
        order = _order(place)
        shut = order.index("gate.closed")
        assert order[shut + 1] == "gate.opened"  # nothing was started in between
        assert not _all(place, "term.ended")
        _explained(place)
        assert {row.fence for row in place.slots("beat")} == {opened.fields["fence"]}


async def test_a_step_back_fires_no_slot_again_and_costs_no_term(
    tmp_path: Path, etcd: EmbeddedEtcd, wall: WallClock
) -> None:
    async with town(tmp_path, etcd.endpoint, ttl="6s") as place:
        opened = await place.lead("a")
        await _ticks_on(place, 2)
        wall.set(-STEP_S)
        await _shut_until_proven(place, -STEP_S * 1000, steps=1)
        await _counts(place, "gate.opened", 2)
        started = len(_all(place, "run.started"))
        await _no_more(place, "term.ended", within_s=7)  # longer than the TTL: it is renewed
        assert len(_all(place, "run.started")) == started
        wall.set(0)
        await _shut_until_proven(place, STEP_S * 1000, steps=2)
        await _ticks_on(place)
        assert not _all(place, "term.ended")
        _explained(place)
        assert {row.fence for row in place.slots("beat")} == {opened.fields["fence"]}


# ------------------------------------------------------------------ against the ledger's clock


async def test_a_clock_that_leaves_the_ledgers_is_told_from_a_second_and_costs_the_post_beyond(
    tmp_path: Path, etcd: EmbeddedEtcd, wall: WallClock, server: pg_kit.Postgres
) -> None:
    with server.database() as url:
        async with town(tmp_path, etcd.endpoint, ledger=url) as place:
            await place.lead("a")
            await _ticks_on(place, 2)
            wall.set(2)
            (told,) = await _counts(place, "clock.skewed", 1)
            assert abs(float(str(told.fields["skew_ms"])) - 2000) < 300
            await _ticks_on(place, 2)
            wall.set(STEP_S)
            told = (await _counts(place, "clock.skewed", 2))[-1]
            assert abs(float(str(told.fields["skew_ms"])) - STEP_S * 1000) < 300
            opened = len(_all(place, "gate.opened"))
            (ended,) = await _counts(place, "term.ended", 1)
            assert ended.fields["reason"] == "resigned"
            horizon = now() + timedelta(seconds=10)
            assert all(row.scheduled_for < horizon for row in place.slots("beat"))
            wall.set(0)
            told = (await _counts(place, "clock.skewed", 3))[-1]
            assert abs(float(str(told.fields["skew_ms"]))) < 300
            await _counts(place, "gate.opened", opened + 1)
            await _ticks_on(place, 2)
            _explained(place)


async def test_a_node_started_with_another_clock_than_the_ledgers_does_not_get_in_line(
    tmp_path: Path, etcd: EmbeddedEtcd, wall: WallClock, server: pg_kit.Postgres
) -> None:
    with server.database() as url:
        async with town(tmp_path, etcd.endpoint, ledger=url) as place:
            wall.set(60)
            await place.fleet.start("a")
            (told,) = await _counts(place, "clock.skewed", 1)
            assert abs(float(str(told.fields["skew_ms"])) - 60_000) < 300
            assert await place.keys() == []
            wall.set(0)
            await _ticks_on(place, 2)
