"""Nodes whose etcd asks who they are: a life on the documented rights, and on less than those."""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from cron_leader.etcd.embedded import EmbeddedEtcd
from tests.guarded_kit import SECRET, change_password, grant_as_documented, guarded_etcd
from tests.kit import SOON_S, Town, town

RUN = "import sys; from cron_leader.cli import main; sys.exit(main())"


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedEtcd]:
    with guarded_etcd(tmp_path_factory.mktemp("guarded")) as etcd:
        yield etcd


def access(folder: Path, user: str) -> dict[str, str]:
    file = folder / "password"
    file.write_text(f"{SECRET}\n")
    return {"user": user, "password_file": str(file)}


async def test_the_documented_rights_are_enough_for_a_nodes_whole_life(
    tmp_path: Path, guarded: EmbeddedEtcd
) -> None:
    """Supervisor included: it logs in with the password as it is when the daemon dies."""
    who = access(tmp_path, "whole")
    async with town(tmp_path, guarded.endpoint, access=who, ttl="60s") as place:
        grant_as_documented(guarded, f"/cron-leader/{place.name}/", user="whole")
        opened = await place.lead("a")
        await place.follow("b")
        await place.says("run.finished", since=opened.at, node="a", outcome="succeeded")
        asked = place.fleet.signal("a", signal.SIGTERM)
        await place.says("gate.opened", since=asked, node="b")
        assert await place.fleet.ended("a") == 0
        await place.follow("a")

        (tmp_path / "password").write_text("newer\n")
        await asyncio.to_thread(change_password, guarded, "whole", "newer")
        killed = place.fleet.kill_daemon("b")
        revoked = await place.says("supervisor.revoked", since=killed, node="b")
        assert revoked.fields["ok"], revoked.fields
        opened = await place.says("gate.opened", since=killed, node="a")
        await place.says("run.finished", since=opened.at, node="a", outcome="succeeded")
        assert not list(place.fleet.timeline.all("ledger.refused"))


@pytest.mark.parametrize(
    ("kind", "lacks"),
    [("read", "may not write {}elections/0/"), ("write", "may not read {}raised/0")],
    ids=["read", "write"],
)
async def test_a_node_with_less_says_what_it_lacks_and_exits_2(
    tmp_path: Path, guarded: EmbeddedEtcd, kind: str, lacks: str
) -> None:
    async with town(tmp_path, guarded.endpoint, access=access(tmp_path, kind)) as place:
        keys = f"/cron-leader/{place.name}/"
        grant_as_documented(guarded, keys, user=kind, kind=kind)
        done = await asyncio.to_thread(_run, place)
        assert done.returncode == 2, done.stdout + done.stderr
        assert f"permission denied to user {kind}" in done.stderr
        assert lacks.format(keys) in done.stderr
        assert SECRET not in done.stdout + done.stderr


def _run(place: Town) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", RUN, "run", "--config", str(place.config), "--node-id", "x"],
        capture_output=True,
        text=True,
        timeout=SOON_S,
    )
