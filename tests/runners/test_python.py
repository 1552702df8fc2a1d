"""Python runs: the job host, what it forks, and what it survives."""

from __future__ import annotations

import json
import os
import signal
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any

import pytest

from cron_leader.core.model import Run
from cron_leader.errors import ConfigError
from cron_leader.runners import describe
from cron_leader.runners.life import ProcessLife
from tests.runners.stage import (
    CLOCK,
    NotStarted,
    Prepared,
    Recorder,
    RunEnded,
    Stage,
    python,
    run_of,
    stage,
    vanished,
    written,
)

MODULE = """
import asyncio, json, os, subprocess, sys, threading, time
from cron_leader import Tick, job

@job(cron="* * * * *", timezone="Europe/Paris")
def nightly_digest(tick: Tick) -> None:
    print("digest")

def show(tick):
    print(json.dumps({"tick": repr(tick), "env": dict(os.environ),
          "fds": os.listdir("/proc/self/fd"),
          "heavy": sorted({"grpc", "psycopg", "pydantic", "typer"} & set(sys.modules)),
          "leads": os.getpid() == os.getpgrp() == os.getsid(0),
          "host": sys.argv[1], "stdin": sys.stdin.read()}))

async def later(tick):
    await asyncio.sleep(0.01)
    print("later")

def raises(tick):
    print("before")
    raise ValueError("no digest today")

def leaves(tick): sys.exit(7)
def complains(tick): sys.exit("no disk")
def dies(tick): os.kill(os.getpid(), 9)

def polite(tick):
    print("up", file=open("up", "w"), flush=True)
    while not tick.cancelled: time.sleep(0.01)
    print("cancelled")

async def sleeper(tick):
    print("up", file=open("up", "w"), flush=True)
    try: await asyncio.sleep(60)
    finally: print("clean")

def asked_early(tick):
    os.kill(os.getpid(), 15)
    return asyncio.sleep(60)

def hangs(tick):
    print("begun")
    time.sleep(60)

def litters(tick): print(subprocess.Popen(["sleep", "600"]).pid)

def floods(tick): raise ValueError("x" * 1000000 + "\\u20ac")
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "digests.py").write_text(MODULE)
    return tmp_path


def on(folder: Path, *functions: str, **options: Any) -> AbstractAsyncContextManager[Stage]:
    jobs = [python(f"digests:{name}") for name in functions or ("show",)]
    return stage(*jobs, base=folder, modules=("digests",), **options)


async def test_a_python_run_is_told_its_tick_and_given_exactly_its_environment(
    folder: Path,
) -> None:
    daemon = {"PATH": "/bin", "HOME": "/h", "SECRET": "s", "PYTHONHASHSEED": "0"}
    async with on(folder, environ=daemon) as s:
        result = await s.play(python("digests:show", env={"MINE": "1"}))
    said = json.loads(result.output or "")
    assert said["tick"].startswith(
        "Tick(job='j', scheduled_for=datetime.datetime(2026, 3, 1, 9, 0, "
        "tzinfo=datetime.timezone.utc), fence=42, lease=7, node='a', attempt=1, run_deadline="
    )
    assert set(said["env"]) == {"PATH", "HOME", "MINE"} | {
        f"CRON_LEADER_{name}"
        for name in ("JOB", "SCHEDULED_FOR", "FENCE", "NODE", "FLEET", "ATTEMPT", "RUN_DEADLINE")
    }
    assert said["heavy"] == []
    assert (said["leads"], said["host"], said["stdin"]) == (True, "serve", "")
    assert len(said["fds"]) == 5, "input, output twice, its control socket, and the listing"


@pytest.mark.parametrize(
    ("function", "code", "error", "output"),
    [
        ("nightly_digest", 0, None, "digest\n"),
        ("later", 0, None, "later\n"),
        ("leaves", 7, "exit code 7", None),
        ("complains", 1, "no disk", None),
        ("dies", 137, "killed by SIGKILL", None),
    ],
)
async def test_a_python_run_ends_as_its_function_does(
    folder: Path, function: str, code: int, error: str | None, output: str | None
) -> None:
    async with on(folder, function) as s:
        result = await s.play(python(f"digests:{function}"))
    assert (result.exit_code, result.error, result.output) == (code, error, output)


async def test_a_function_that_raises_costs_one_run_and_leaves_its_traceback(folder: Path) -> None:
    async with on(folder, "raises") as s:
        result = await s.play(python("digests:raises"))
        assert (await s.play(python("digests:later"))).ok
    assert (result.exit_code, result.output) == (1, "before\n")
    lines = (result.error or "").splitlines()
    assert lines[0] == "Traceback (most recent call last):"
    assert lines[1].endswith("in raises")
    assert "digests.py" in lines[1]
    assert lines[-1] == "ValueError: no digest today"


async def test_a_huge_traceback_is_cut_to_its_end(folder: Path) -> None:
    async with on(folder, "floods") as s:
        result = await s.play(python("digests:floods"))
    assert result.error is not None
    assert len(result.error) < 17_000
    assert result.error.rstrip().endswith("x\u20ac")


@pytest.mark.parametrize(
    ("function", "code", "error", "output"),
    [("polite", 0, None, "cancelled\n"), ("sleeper", 143, "cancelled", "clean\n")],
)
async def test_a_python_run_is_asked_to_stop_before_it_is_killed(
    folder: Path, function: str, code: int, error: str | None, output: str
) -> None:
    async with on(folder, function) as s:
        run = await s.begin(python(f"digests:{function}", cwd=str(folder)))
        await written(folder / "up")
        s.runners.kill(run.run_id, 10)
        result = await s.result(run)
    assert (result.exit_code, result.error, result.output) == (code, error, output)


async def test_an_async_run_asked_to_stop_before_its_loop_runs_is_cancelled(folder: Path) -> None:
    async with on(folder, "asked_early") as s:
        result = await s.play(python("digests:asked_early", timeout_s=5))
    assert (result.exit_code, result.error) == (143, "cancelled")


async def test_a_python_run_that_hangs_is_killed_at_its_timeout(folder: Path) -> None:
    async with on(folder, "hangs") as s:
        result = await s.play(python("digests:hangs", timeout_s=0.1, grace_s=0.1))
    assert (result.timed_out, result.exit_code) == (True, 137)
    assert result.output == "begun\n", "what it printed is not lost in a buffer"


async def test_what_a_python_run_leaves_in_its_group_dies_with_it(folder: Path) -> None:
    async with on(folder, "litters") as s:
        result = await s.play(python("digests:litters"))
    assert await vanished(int(result.output or ""))


async def test_a_python_run_past_its_deadline_does_not_enter_its_function(folder: Path) -> None:
    run = run_of(python("digests:show"))
    async with on(folder) as s:
        s.runners.prepare(run)
        await s.until(Prepared, run)
        s.go(run, deadline_ns=CLOCK.boot_ns())
        await s.until(NotStarted, run)
    assert s.kinds(run) == [Prepared, NotStarted]


async def test_the_death_of_the_host_fails_its_runs_and_another_takes_over(folder: Path) -> None:
    async with on(folder, "hangs", "show") as s:
        run = await s.begin(python("digests:hangs"))
        waiting = run_of(python("digests:hangs"))
        s.runners.prepare(waiting)
        await s.until(Prepared, waiting)
        os.kill(host_pid(s), signal.SIGKILL)
        result = await s.result(run)
        await ended(s, waiting)
        s.go(waiting)
        await s.until(NotStarted, waiting)
        assert (await s.play(python("digests:later"))).ok
    assert result.exit_code is None
    assert result.error == "the job host died (killed by signal 9), and its runs with it"


async def test_a_go_is_taken_back_until_the_function_is_entered(folder: Path) -> None:
    link, job = Recorder(), python("digests:sleeper", cwd=str(folder))
    async with on(folder, "sleeper", link=link) as s:
        assert (await s.take_back(run_of(job), link)).why == "dropped"
    assert not (folder / "up").exists()


async def test_a_frozen_host_is_replaced(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cron_leader.runners.python._ANSWER_S", 0.5)
    async with on(folder) as s:
        frozen = host_pid(s)
        os.kill(frozen, signal.SIGSTOP)
        run = await s.begin(python("digests:later"))
        assert (await s.result(run)).ok
        assert await vanished(frozen)
        assert host_pid(s) != frozen


async def test_with_a_second_thread_in_the_host_each_run_is_an_exec(folder: Path) -> None:
    thread = "\nthreading.Thread(target=time.sleep, args=(600,), daemon=True).start()\n"
    if_host = "\nif 'serve' in sys.argv:" + thread.replace("\n", "\n    ").rstrip() + "\n"
    (folder / "digests.py").write_text(MODULE + if_host)
    async with on(folder) as s:
        result = await s.play(python("digests:show"))
        failed = await s.play(python("digests:raises"))
    said = json.loads(result.output or "")
    assert (said["host"], said["leads"]) == ("one", True)
    assert set(said["env"]) >= {"CRON_LEADER_FENCE"}
    assert "PYTHONPATH" not in said["env"]
    assert (failed.error or "").endswith("ValueError: no digest today\n")


async def test_closing_ends_the_host_and_its_runs(folder: Path) -> None:
    async with on(folder, "hangs") as s:
        run = await s.begin(python("digests:hangs"))
        pid = host_pid(s)
    assert s.kinds(run)[-1] is RunEnded
    assert await vanished(pid)


async def test_a_job_that_cannot_be_imported_at_run_time_fails_its_run(folder: Path) -> None:
    async with on(folder) as s:
        result = await s.play(python("no_such_module:f"))
    assert result.exit_code == 1
    assert (result.error or "").endswith("ModuleNotFoundError: No module named 'no_such_module'\n")


# ------------------------------------------------------------------ describe


async def test_describe_reports_definitions_and_handlers(folder: Path) -> None:
    described = await describe(["digests"], targets=["digests:show"], cwd=folder)
    assert described.handlers == ("digests:show", "digests:nightly_digest")
    assert described.jobs == (
        {
            "name": "nightly-digest",
            "cron": "* * * * *",
            "timezone": "Europe/Paris",
            "python": "digests:nightly_digest",
        },
    )


@pytest.mark.parametrize(
    ("write", "text"),
    [
        ("import no_such_thing", "ModuleNotFoundError: No module named 'no_such_thing'"),
        ("def f(:", "SyntaxError"),
        ("import sys; sys.exit(3)", "SystemExit: 3"),
        ("import os; os._exit(3)", "the job host died (exit code 3)"),
    ],
)
async def test_describe_names_what_cannot_be_imported_and_why(
    tmp_path: Path, write: str, text: str
) -> None:
    (tmp_path / "broken.py").write_text(write)
    with pytest.raises(ConfigError) as caught:
        await describe(["broken"], cwd=tmp_path)
    assert text in str(caught.value)
    assert "broken" in str(caught.value)
    assert "\n" not in str(caught.value)


async def test_a_host_takes_more_functions_than_a_socket_holds_at_once(tmp_path: Path) -> None:
    many = "for i in range(20_000): globals()[f'a_rather_long_name_{i}'] = lambda tick: 0\n"
    (tmp_path / "many.py").write_text(many)
    targets = [f"many:a_rather_long_name_{i}" for i in range(20_000)]
    assert (await describe([], cwd=tmp_path, targets=targets)).handlers == tuple(targets)


async def test_describe_names_every_failure_with_its_cure(folder: Path) -> None:
    with pytest.raises(ConfigError) as caught:
        await describe(["nowhere"], targets=["digests:shw"], cwd=folder)
    module, target = str(caught.value).splitlines()
    assert module == (
        'python jobs: cannot import module "nowhere": ModuleNotFoundError: No module named '
        f"'nowhere'; looked for in {folder} (the configuration's folder) and on PYTHONPATH"
    )
    assert 'cannot import "digests:shw": module digests has no function shw; did you' in target


async def test_describe_ends_a_host_whose_import_hangs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "endless.py").write_text("import time; time.sleep(600)")
    monkeypatch.setattr("cron_leader.runners.python.IMPORT_TIMEOUT_S", 0.3)
    with pytest.raises(ConfigError, match="endless"):
        await describe(["endless"], cwd=tmp_path)


async def ended(s: Stage, run: Run) -> None:
    """The process of a run is dead, not just about to be: else "go" may still reach it."""
    life = s.runners._lives[run.run_id]
    assert isinstance(life, ProcessLife)
    assert life._child is not None
    await life._child.exited.wait()


def host_pid(s: Stage) -> int:
    host = s.runners._python._host
    assert host is not None
    return host._process.pid
