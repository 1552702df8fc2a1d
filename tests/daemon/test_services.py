"""Services that are away, wrong, or somebody else's: one clear line, an exit code, nothing lost."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from cron_leader.etcd.embedded import EmbeddedEtcd, Ports
from tests import pg_kit
from tests.etcd_kit import QUICK, Proxy
from tests.kit import BEAT, now, town, until

_fleets = itertools.count()
RUN = "import sys; from cron_leader.cli import main; sys.exit(main())"


@pytest.fixture(scope="module")
def postgres() -> Iterator[pg_kit.Postgres]:
    with pg_kit.postgres(pg_kit.newest()) as server:
        yield server


def _run(folder: Path, config: str, *args: str) -> subprocess.CompletedProcess[str]:
    """`cron-leader run` on a file, to its end."""
    (folder / "c.toml").write_text(config)
    return subprocess.run(
        [sys.executable, "-c", RUN, "run", "--config", "c.toml", "--node-id", "x", *args],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=60,
    )


def _refused(done: subprocess.CompletedProcess[str], *parts: str) -> None:
    """Exit 2, and one line on stderr with these parts; no traceback anywhere."""
    lines = done.stderr.strip().splitlines()
    assert done.returncode == 2, done
    assert len(lines) == 1, lines
    for part in parts:
        assert re.search(part, lines[0]), lines[0]
    assert "Traceback" not in done.stdout + done.stderr


def _config(etcd: str, *, ledger: str = "sqlite:///l.db", more: str = "", jobs: str = BEAT) -> str:
    return (
        f'[fleet]\nname = "svc{next(_fleets)}"\n[lease]\nttl = "2s"\n'
        f'[etcd]\nendpoints = ["{etcd}"]\n{more}\n'
        f'[ledger]\nurl = "{ledger}"\n{jobs}'
    )


# ------------------------------------------------------------------ what comes back is waited for


async def test_an_etcd_that_is_down_is_waited_for_and_told_once(tmp_path: Path) -> None:
    ports = Ports.draw()
    server = EmbeddedEtcd(tmp_path / "etcd", peers={"m": ports}, name="m", options=QUICK)
    async with town(tmp_path, f"127.0.0.1:{ports.client}") as place:
        since = now()
        await place.fleet.start("a")
        told = await place.says("etcd.unreachable", since=since)
        assert str(ports.client) in told.fields["error"]
        await _several_tries()
        assert len(list(place.fleet.timeline.all("etcd.unreachable"))) == 1
        with server:
            await place.says("etcd.back", since=since)
            await place.says("gate.opened", since=since)
            await place.fleet.stop()


async def test_a_postgres_that_is_down_is_waited_for_and_told_once(
    tmp_path: Path, etcd: EmbeddedEtcd, postgres: pg_kit.Postgres
) -> None:
    with postgres.database() as url:
        async with Proxy(f"{postgres.host}:{postgres.port}") as proxy:
            proxy.refuse = True
            behind = url.replace(f"{postgres.host}:{postgres.port}", proxy.endpoint)
            async with town(tmp_path, etcd.endpoint, ledger=behind) as place:
                since = now()
                await place.fleet.start("a")
                await place.says("ledger.unreachable", since=since)
                await _several_tries()
                assert len(list(place.fleet.timeline.all("ledger.unreachable"))) == 1
                proxy.refuse = False
                await place.says("ledger.back", since=since)
                await place.says("gate.opened", since=since)
                await place.fleet.stop()


async def test_a_leader_cut_from_its_ledger_resigns_and_stays_out_until_it_is_back(
    tmp_path: Path, etcd: EmbeddedEtcd, postgres: pg_kit.Postgres
) -> None:
    with postgres.database() as url:
        async with Proxy(f"{postgres.host}:{postgres.port}") as proxy:
            behind = url.replace(f"{postgres.host}:{postgres.port}", proxy.endpoint)
            async with town(tmp_path, etcd.endpoint, ledger=behind) as place:
                opened = await place.lead("a")
                proxy.refuse = True
                proxy.cut()
                since = now()
                ended = await place.says("term.ended", since=since)
                assert ended.fields["reason"] == "ledger_unreachable"
                assert (ended.at - since).total_seconds() < 5
                proxy.refuse = False
                again = await place.says("gate.opened", since=ended.at)
                assert again.fields["fence"] > opened.fields["fence"]
                back = await place.says("ledger.back", since=ended.at)
                assert not [
                    line
                    for line in place.fleet.timeline.all("term.campaigning")
                    if ended.at < line.at < back.at
                ]
                await place.fleet.stop()


async def test_a_reply_of_the_ledger_lost_on_its_way_is_told_and_costs_no_term(
    tmp_path: Path, etcd: EmbeddedEtcd, postgres: pg_kit.Postgres
) -> None:
    with postgres.database() as url:
        async with Proxy(f"{postgres.host}:{postgres.port}") as proxy:
            behind = url.replace(f"{postgres.host}:{postgres.port}", proxy.endpoint)
            async with town(tmp_path, etcd.endpoint, ledger=behind) as place:
                opened = await place.lead("a")
                await place.says("run.finished", since=opened.at)
                since = now()
                proxy.cut_at_next_reply = True
                told = await place.says("ledger.uncertain", since=since)
                assert told.fields["what"] in {"claim", "finish", "heartbeat"}
                back = await place.says("ledger.back", since=told.at)
                await place.says("run.finished", since=back.at, outcome="succeeded")
                assert not list(place.fleet.timeline.all("term.ended"))


async def test_a_postgres_fleet_ticks_and_hands_over(
    tmp_path: Path, etcd: EmbeddedEtcd, postgres: pg_kit.Postgres
) -> None:
    with postgres.database() as url:
        async with town(tmp_path, etcd.endpoint, ledger=url) as place:
            await place.lead("a")
            await place.follow("b")
            await place.says("run.finished", since=now(), node="a", outcome="succeeded")
            since = place.fleet.kill_daemon("a")
            await place.says("gate.opened", since=since, node="b")
            await place.says("run.finished", since=now(), node="b", outcome="succeeded")
            await place.fleet.stop()
            times = [slot.scheduled_for for slot in place.slots("beat")]
            assert len(times) == len(set(times))
            seconds = [round((t - times[0]).total_seconds()) for t in times]
            assert seconds == list(range(len(times)))


# ------------------------------------------------------------------ what a person must mend


def test_tls_asked_of_a_plain_port_is_exit_2(tmp_path: Path, etcd: EmbeddedEtcd) -> None:
    done = _run(tmp_path, _config(f"https://{etcd.endpoint}"))
    _refused(done, etcd.endpoint, "TLS")


def test_a_wrong_password_for_postgres_is_exit_2_and_not_shown(
    tmp_path: Path, etcd: EmbeddedEtcd, postgres: pg_kit.Postgres
) -> None:
    url = f"postgresql://nobody:hunter2@{postgres.host}:{postgres.port}/postgres"
    done = _run(tmp_path, _config(etcd.endpoint, ledger=url))
    _refused(done, "nobody")
    assert "hunter2" not in done.stdout + done.stderr


def test_a_ledger_without_its_tables_is_exit_2_and_names_the_command(
    tmp_path: Path, etcd: EmbeddedEtcd
) -> None:
    config = _config(etcd.endpoint).replace("[ledger]\n", "[ledger]\nmigrate = false\n")
    _refused(_run(tmp_path, config), "db migrate")


def test_a_folder_that_cannot_be_written_is_exit_2(tmp_path: Path, etcd: EmbeddedEtcd) -> None:
    _refused(_run(tmp_path, _config(etcd.endpoint, ledger="sqlite:////proc/l.db")), "/proc/l.db")


def test_a_python_job_that_cannot_be_imported_is_exit_2(tmp_path: Path, etcd: EmbeddedEtcd) -> None:
    job = '[[job]]\nname = "p"\nevery = "1s"\npython = "nowhere.to:found"\n'
    _refused(_run(tmp_path, _config(etcd.endpoint, jobs=job)), "nowhere")


async def test_a_signal_while_python_jobs_are_imported_ends_the_daemon_without_a_traceback(
    tmp_path: Path,
) -> None:
    slow = "import pathlib, time\npathlib.Path('importing').touch()\ntime.sleep(60)\n"
    (tmp_path / "slow.py").write_text(slow)
    job = '[[job]]\nname = "p"\nevery = "1s"\npython = "slow:job"\n'
    (tmp_path / "c.toml").write_text(_config("127.0.0.1:1", jobs=job))
    daemon = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "cron_leader", "--config", "c.toml", "--node-id", "x"),
        cwd=tmp_path,
        stderr=subprocess.PIPE,
    )
    try:
        await until("importing", (tmp_path / "importing").exists)
        daemon.send_signal(signal.SIGINT)
        async with asyncio.timeout(10):
            _, told = await daemon.communicate()
    finally:
        with contextlib.suppress(ProcessLookupError):
            daemon.kill()
    assert daemon.returncode == -signal.SIGINT
    assert told == b""


def test_a_missing_configuration_says_init(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", RUN, "run"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=60,
    )
    _refused(done, "cron-leader init")


def test_the_traceback_is_there_for_those_who_ask(tmp_path: Path, etcd: EmbeddedEtcd) -> None:
    config = _config(etcd.endpoint, ledger="mysql://x")
    assert "Traceback" in _run(tmp_path, config, "--log-level", "debug").stderr


async def test_a_node_with_another_ledger_is_exit_2_and_says_both_ids(
    tmp_path: Path, etcd: EmbeddedEtcd
) -> None:
    async with town(tmp_path, etcd.endpoint) as place:
        await place.lead("a")
        other = tmp_path / "other"
        other.mkdir()
        done = _run(other, place.config.read_text())
        _refused(done, "ledger", (await place.survey()).ledger_id or "?")


async def _several_tries() -> None:
    """The pauses between tries are 0.5, 1 and 2 s."""
    await asyncio.sleep(4)
