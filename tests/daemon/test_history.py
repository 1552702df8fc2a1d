"""etcd rebuilt or restored under a living fleet, and a ledger that went back: nobody leads until a
person has said so, and no slot is lost."""

from __future__ import annotations

import asyncio
import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path

import pytest

from cron_leader.demo.fleet import Line, Stalled
from cron_leader.etcd.embedded import EmbeddedEtcd, EtcdOptions, Ports, find_etcd
from cron_leader.ledger.views import open_reader
from tests.etcd_kit import QUICK
from tests.kit import SOON_S, Town, now, town

CLI = "import sys; from cron_leader.cli import main; sys.exit(main())"
SAME, OTHER = "etcd-cluster", "another-cluster"
"""Tokens: the cluster's id is made of the token and the peers' addresses."""


class Store:
    """One etcd address over several lives of its data."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._ports = {"m": Ports.draw()}
        self._lives = 0
        self.etcd = self._life(SAME)

    def _life(self, token: str) -> EmbeddedEtcd:
        self._lives += 1
        options = EtcdOptions(
            QUICK.heartbeat_ms, QUICK.election_ms, (f"--initial-cluster-token={token}",)
        )
        data = self._folder / f"life{self._lives}"
        return EmbeddedEtcd(data, name="m", peers=self._ports, options=options)

    def start(self) -> None:
        self.etcd.start()
        self.etcd.wait_ready()

    def rebuild(self, token: str) -> None:
        """From nothing, at the same address."""
        self.etcd.kill()
        self.etcd = self._life(token)
        self.start()

    def save(self) -> Path:
        to = self._folder / "snapshot"
        _ctl("--endpoints", self.etcd.endpoint, "snapshot", "save", str(to))
        return to

    def restore(self, snapshot: Path, token: str = SAME) -> None:
        self.etcd.kill()
        self.etcd = self._life(token)
        peer = f"http://127.0.0.1:{self._ports['m'].peer}"
        _ctl(
            *("snapshot", "restore", str(snapshot), "--name=m", f"--initial-cluster=m={peer}"),
            f"--data-dir={self._folder / f'life{self._lives}'}",
            *(f"--initial-cluster-token={token}", f"--initial-advertise-peer-urls={peer}"),
        )
        self.start()


def _ctl(*args: str) -> None:
    beside = find_etcd().with_name("etcdctl")
    tool = str(beside) if beside.exists() else shutil.which("etcdctl")
    if tool is None:
        if os.environ.get("CRON_LEADER_REQUIRE_ALL"):
            pytest.fail("etcdctl is not on this machine, and CRON_LEADER_REQUIRE_ALL is set")
        pytest.skip("etcdctl is not on this machine")
    environ = {"PATH": os.environ["PATH"], "ETCDCTL_API": "3"}
    subprocess.run([tool, *args], check=True, env=environ, capture_output=True, timeout=30)


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    made = Store(tmp_path)
    try:
        made.start()
        yield made
    finally:
        made.etcd.kill()


# ------------------------------------------------------------------ helpers


async def _grow(place: Town, by: int = 30) -> int:
    """Somebody else writes to this etcd, too; its revision."""
    async with place.hand() as hand:
        return [await hand.put(b"/others", b"") for _ in range(by)][-1]


def _command(place: Town, *args: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", CLI, *args, "--config", str(place.config)],
        capture_output=True,
        text=True,
        timeout=SOON_S,
    )


async def _rebase(place: Town) -> datetime:
    at = now()
    done = await asyncio.to_thread(_command, place, "fence", "rebase", "--yes")
    assert done.returncode == 0, done.stderr
    return at


async def _refuses(place: Town, node: str, *, since: datetime) -> str:
    """That the node tells broken history; its words."""
    told = await place.says("term.ended", since=since, node=node, reason="history")
    refused = place.fleet.timeline.last("ledger.refused", node=node)
    return str(told.fields.get("error") or (refused and refused.fields.get("error")))


async def _stays_out(place: Town, *, since: datetime) -> None:
    """Longer than a node waits before it looks again: nobody opens a gate, none stands in line."""
    with pytest.raises(Stalled):
        await place.says("gate.opened", since=since, within_s=6)
    assert await place.keys() == []


async def _mended(place: Town, before: Line, *, since: datetime) -> Line:
    """Somebody leads again, above every fence before, and each slot so far is explained."""
    opened = await place.says("gate.opened", since=since)
    assert opened.fields["fence"] > before.fields["fence"]
    await place.says("run.finished", since=opened.at, job="beat", outcome="succeeded")
    await place.says("run.finished", since=now(), job="beat", outcome="succeeded")
    assert not place.unexplained("beat")
    assert len({row.scheduled_for for row in place.slots("beat")}) == len(place.slots("beat"))
    return opened


def _put_back(folder: Path) -> None:
    for newer in folder.glob("ledger.db-*"):
        newer.unlink()
    shutil.copy(folder / "older.db", folder / "ledger.db")


# ------------------------------------------------------------------ etcd


@pytest.mark.parametrize("token", [SAME, OTHER])
async def test_an_etcd_rebuilt_from_nothing_has_no_leader_until_a_rebase_and_loses_no_slot(
    tmp_path: Path, store: Store, token: str
) -> None:
    async with town(tmp_path, store.etcd.endpoint) as place:
        await _grow(place)
        opened = await place.lead("a")
        await place.follow("b")
        await place.says("run.finished", since=opened.at, job="beat")
        fence, since = opened.fields["fence"], now()
        store.rebuild(token)
        for node in ("a", "b"):
            said = await _refuses(place, node, since=since)
            assert f"fence {fence}" in said
            assert "revision 1," in said
            assert "`cron-leader fence rebase`" in said
            assert ("was raised under etcd cluster" in said) is (token == OTHER)
        fresh = await asyncio.to_thread(_command, place, "run", "--node-id", "c")
        assert fresh.returncode == 2
        assert "`cron-leader fence rebase`" in fresh.stderr
        await _stays_out(place, since=since)
        told = list(place.fleet.timeline.all("term.ended", node="a", reason="history"))
        assert len(told) == 1  # and not every 5 s
        await _mended(place, opened, since=await _rebase(place))


async def test_a_restored_snapshot_revives_a_frozen_leaders_key_and_it_does_not_lead_with_it(
    tmp_path: Path, store: Store
) -> None:
    async with town(tmp_path, store.etcd.endpoint) as place:
        old = await place.lead("a")
        snapshot = store.save()
        await _grow(place)
        await place.freeze("a")
        newer = await place.lead("c")
        since = now()
        store.restore(snapshot)
        assert len(await place.keys()) == 1  # a's, and its lease is alive
        assert (await place.survey()).candidates[0].node == "a"
        place.fleet.thaw("a")
        for node in ("a", "c"):
            said = await _refuses(place, node, since=since)
            assert f"fence {newer.fields['fence']}" in said
            assert "`cron-leader fence rebase`" in said
        await _stays_out(place, since=since)
        started = place.fleet.timeline.all("run.started", fence=old.fields["fence"])
        assert not [line for line in started if line.at >= newer.at]
        await _mended(place, newer, since=await _rebase(place))


async def test_a_restored_snapshot_revives_a_frozen_followers_key_and_its_raise_is_refused(
    tmp_path: Path, store: Store
) -> None:
    async with town(tmp_path, store.etcd.endpoint) as place:
        await place.lead("a")
        await place.follow("b")
        b = (await place.survey()).candidates[1]
        snapshot = store.save()
        await _grow(place)
        await place.freeze("b")
        async with place.hand() as hand:
            await hand.until_gone((await place.keys())[1])
        await place.follow("c")
        asked = place.fleet.signal("a", signal.SIGTERM)
        newer = await place.says("gate.opened", since=asked, node="c")
        since = now()
        store.restore(snapshot)
        place.fleet.thaw("b")
        elected = await place.says("term.elected", since=since, node="b")
        assert elected.fields["revision"] == b.revision  # by its old key, which lives again
        said = await _refuses(place, "b", since=elected.at)
        # By its raise, or, where its term was over before, by the look before the next one.
        assert re.search(rf"fence (is )?{newer.fields['fence']}\b", said)
        assert "`cron-leader fence rebase`" in said
        await _stays_out(place, since=since)
        await _mended(place, newer, since=await _rebase(place))


async def test_a_restored_cluster_of_another_id_is_told_with_both(
    tmp_path: Path, store: Store
) -> None:
    async with town(tmp_path, store.etcd.endpoint) as place:
        opened = await place.lead("a")
        await place.says("run.finished", since=opened.at, job="beat")
        since = now()
        store.restore(store.save(), OTHER)
        said = await _refuses(place, "a", since=since)
        with open_reader(place.ledger) as reader:
            row = reader.fence_row(f"{place.name}/0")
        assert row is not None
        assert f"raised under etcd cluster {row.cluster}, this is cluster " in said
        await _mended(place, opened, since=await _rebase(place))


# ------------------------------------------------------------------ the ledger


async def test_a_ledger_put_back_to_an_older_copy_is_refused_until_it_is_answered(
    tmp_path: Path, store: Store
) -> None:
    async with town(tmp_path, store.etcd.endpoint) as place:
        first = await place.lead("a")
        place.fleet.signal("a", signal.SIGTERM)
        assert await place.fleet.ended("a") == 0
        shutil.copy(tmp_path / "ledger.db", tmp_path / "older.db")
        second = await place.lead("a")
        key = f"/cron-leader/{place.name}/raised/0".encode()
        async with place.hand() as hand:
            await hand.until_there(key)
            place.fleet.signal("a", signal.SIGTERM)
            assert await place.fleet.ended("a") == 0
            _put_back(tmp_path)
            refused = await asyncio.to_thread(_command, place, "run", "--node-id", "a")
            assert refused.returncode == 2
            assert f"fence is {first.fields['fence']}, but etcd" in refused.stderr
            assert f"remembers fence {second.fields['fence']}" in refused.stderr
            assert 'ledger_rollback = "skip" or "refire"' in refused.stderr
        text = place.config.read_text()
        place.config.write_text(text.replace("[ledger]", '[ledger]\nledger_rollback = "refire"'))
        since = now()
        third = await place.lead("a")
        assert third.fields["fence"] > second.fields["fence"]
        assert (await place.says("ledger.went_back", since=since)).fields["answer"] == "refire"
        assert (await place.says("run.started", since=since)).fields["job"] == "beat"
