"""The files in examples/ are accepted as they are, and the jobs in Python run."""

from __future__ import annotations

import os
import runpy
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib import import_module
from pathlib import Path
from threading import Thread

import pytest

from cron_leader import control
from cron_leader.cli.setup import check
from cron_leader.config import load
from cron_leader.core.model import Trigger
from cron_leader.etcd.embedded import EmbeddedEtcd
from cron_leader.jobs import Tick
from cron_leader.ledger.views import open_reader
from tests.docs.blocks import ROOT, blocks
from tests.etcd_kit import QUICK
from tests.kit import now, town, until

EXAMPLES = sorted((ROOT / "examples").glob("*.toml"))


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_an_example_is_accepted_without_a_warning(
    path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    check(path)
    printed, noted = capsys.readouterr()
    assert f"{path.name}: ok, " in printed
    assert noted == ""


def test_there_are_eight_and_each_begins_by_saying_what_it_shows() -> None:
    assert len(EXAMPLES) == 8
    assert all(path.read_text(encoding="utf-8").startswith("# ") for path in EXAMPLES)


def test_no_two_examples_share_a_job() -> None:
    names = [job.name for path in EXAMPLES for job in load(path, environ={}).jobs]
    assert len(set(names)) == len(names) > 8


PROGRAMS = ("pg_dump", "psql", "certbot", "refresh-prices.sh", "send-letters.sh", "month-end.sh")
"""What the examples' jobs call: each is stood in for by a script that says how it was called."""


def _stand_in(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in PROGRAMS:
        script = folder / name
        script.write_text('#!/bin/sh\necho "$(basename "$0") $*"\n')
        script.chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}{os.pathsep}{os.environ['PATH']}")


class Shop(BaseHTTPRequestHandler):
    """The front page that one of them looks at."""

    def do_GET(self) -> None:
        self.send_response(200)
        self.end_headers()
        self.wfile.write(b"open\n")

    def log_message(self, *args: object) -> None: ...


@contextmanager
def shop() -> Iterator[str]:
    with ThreadingHTTPServer(("127.0.0.1", 0), Shop) as server:
        thread = Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        yield f"http://127.0.0.1:{server.server_address[1]}/"
        server.shutdown()
        thread.join()


async def test_a_node_runs_each_job_of_each_example(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All in one fleet, each job ordered once; programs are stood in for, and the shop is here."""
    _stand_in(tmp_path, monkeypatch)
    shutil.copy(ROOT / "examples/digest.py", tmp_path)
    texts = [path.read_text(encoding="utf-8") for path in EXAMPLES]
    named = {job.name for path in EXAMPLES for job in load(path, environ={}).jobs}
    named |= {"send-digest", "sample-queue"}
    with EmbeddedEtcd(tmp_path / "etcd", options=QUICK) as etcd, shop() as url:
        jobs = "\n".join(texts).replace("https://shop.example/", url)
        async with town(tmp_path, etcd.endpoint, jobs=jobs) as place:
            await place.lead("a")
            with open_reader(place.ledger) as reader:
                for name in sorted(named):
                    asked = Trigger(name, name, now())
                    control.give(reader, control.command_of(asked, f"{place.name}/0", why="test"))

            def ended() -> bool:
                ordered = [slot for slot in place.slots() if slot.command_id]
                return {s.job for s in ordered if s.state == "succeeded"} == named

            await until("each job has succeeded", ended)
            said = {row.job: row.output or "" for row in place.attempts() if row.command_id}
    assert said["renew-certificates"] == "certbot renew --quiet\n"
    assert said["roll-up-sales"].startswith("psql postgresql://app@db.example/app -v hour=20")
    assert said["dump-orders"].startswith("pg_dump --format=custom --file=/var/backups/orders-20")
    assert said["campaign-prices"] == "refresh-prices.sh \n"
    assert said["probe-shop"].endswith("\nopen\n")
    assert said["send-digest"].startswith("digest of ")


def test_the_test_shown_in_the_guide_passes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shown = [b.text for b in blocks(ROOT / "docs/guide.md") if "cron_leader.testing" in b.text]
    (tmp_path / "shown_in_the_guide.py").write_text("\n".join(shown), encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    module = import_module("shown_in_the_guide")
    tests = [value for name, value in vars(module).items() if name.startswith("test_")]
    assert tests
    for test in tests:
        test()


def test_the_jobs_in_python_run(capsys: pytest.CaptureFixture[str]) -> None:
    module = runpy.run_path(str(ROOT / "examples/digest.py"), run_name="digest_example")
    noon = datetime(2026, 12, 1, 12, tzinfo=UTC)
    module["send_digest"](Tick.for_test(scheduled_for=noon))
    module["sample_queue"](Tick.for_test(scheduled_for=noon))
    module["send_digest"](Tick.for_test(cancelled=True))
    assert capsys.readouterr().out.splitlines() == [
        "digest of 01 December to ada@mail.example",
        "digest of 01 December to grace@mail.example",
        "queue at 12:00:00: 0",
    ]
