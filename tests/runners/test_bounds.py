"""User, umask, nice and limits of runs: set for good before the job's program, or nothing runs."""

from __future__ import annotations

import os
import pwd
import resource
import stat
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from cron_leader.core.model import Limits
from cron_leader.errors import ConfigError
from cron_leader.runners import needs, unmet
from tests.runners.stage import (
    command,
    python,
    shell,
    stage,
)

ROOT = pytest.mark.skipif(os.geteuid() != 0, reason="only root can start runs as another user")
NOBODY = pwd.getpwnam("nobody")

MODULE = """
import os, resource

def who(tick):
    umask = os.umask(0)
    files = resource.getrlimit(resource.RLIMIT_NOFILE)
    print(oct(umask), os.getpriority(os.PRIO_PROCESS, 0), files)

def grows(tick):
    bytearray(1 << 30)
"""

MINE = """
import os
loaded_by = os.getuid()

def who(tick):
    print(loaded_by, os.getresuid(), os.getresgid(), os.getgroups(), os.environ["HOME"])
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "bounded.py").write_text(MODULE)
    for path in (tmp_path, *tmp_path.parents):
        if path.stat().st_uid == os.geteuid() and path != Path("/"):
            path.chmod(path.stat().st_mode | stat.S_IXOTH | stat.S_IROTH)
    return tmp_path


async def test_umask_nice_and_limits_are_those_of_the_job() -> None:
    limits = Limits(cpu_s=7, memory=1 << 30, files=64, processes=500)
    look = "umask; ulimit -S -t; ulimit -H -t; ulimit -v; ulimit -n; nice; ulimit -u"
    job = command("bash", "-c", look, umask=0o027, nice=7, limits=limits)
    async with stage(job) as s:
        result = await s.play(job)
    assert (result.output or "").split() == ["0027", "7", "8", "1048576", "64", "7", "500"]


async def test_a_run_cannot_raise_its_limits_again() -> None:
    job = command("bash", "-c", "ulimit -S -n 64 && ulimit -n 65", limits=Limits(files=64))
    if os.geteuid() == 0:  # root could: it may raise any limit, so it is somebody else here
        job = command("bash", "-c", job.spec.argv[2], limits=job.limits, user="nobody")  # type: ignore[union-attr]
    async with stage() as s:
        result = await s.play(job)
    assert result.exit_code == 1
    assert "limit" in (result.output or "")


async def test_processor_time_beyond_the_limit_ends_the_run() -> None:
    job = shell("while :; do :; done", limits=Limits(cpu_s=1))
    async with stage() as s:
        result = await s.play(job)
    assert result.error == "killed by SIGXCPU"


async def test_memory_beyond_the_limit_is_not_had() -> None:
    job = command(sys.executable, "-c", "bytearray(1 << 30)", limits=Limits(memory=512 << 20))
    async with stage() as s:
        result = await s.play(job)
    assert result.exit_code == 1
    assert "MemoryError" in (result.output or "")


async def test_a_python_run_has_its_bounds_and_its_host_has_not(folder: Path) -> None:
    bounded = python("bounded:who", umask=0o077, nice=3, limits=Limits(files=99))
    free = python("bounded:who")
    async with stage(bounded, free, base=folder) as s:
        first, second = await s.play(bounded), await s.play(free)
    own = resource.getrlimit(resource.RLIMIT_NOFILE)
    assert (first.output or "").strip() == "0o77 3 (99, 99)"
    assert (second.output or "").strip().endswith(f" {os.getpriority(0, 0)} {own}")


async def test_a_python_run_that_wants_more_memory_than_its_limit_fails(folder: Path) -> None:
    job = python("bounded:grows", limits=Limits(memory=700 << 20))
    async with stage(job, base=folder) as s:
        result = await s.play(job)
    assert (result.exit_code, "MemoryError" in (result.error or "")) == (1, True)


@ROOT
@pytest.mark.parametrize("user", ["nobody", f"{NOBODY.pw_uid}", "nobody:daemon"])
async def test_a_run_is_its_user_in_every_respect(user: str) -> None:
    look = "import os; print(os.getresuid(), os.getresgid(), os.getgroups(), flush=True)"
    look += "; os.setuid(0)"
    job = command("python3", "-c", look, user=user, env={"LOGNAME": "mine"})
    async with stage() as s:
        result = await s.play(job)
        env = await s.play(command("env", user=user, env={"LOGNAME": "mine"}))
    uid, gid = NOBODY.pw_uid, NOBODY.pw_gid if ":" not in user else 1
    said = (result.output or "").splitlines()
    assert said[0] == f"({uid}, {uid}, {uid}) ({gid}, {gid}, {gid}) [{gid}]"
    assert "PermissionError" in said[-1]
    given = set((env.output or "").splitlines())
    assert {f"HOME={NOBODY.pw_dir}", "USER=nobody", "LOGNAME=mine"} <= given


@ROOT
async def test_the_folder_of_a_run_is_entered_as_its_user(tmp_path: Path) -> None:
    os.chmod(tmp_path, 0o700)
    async with stage() as s:
        result = await s.play(shell("true", user="nobody", cwd=str(tmp_path)))
    assert (result.exit_code, "cwd" in (result.error or "")) == (126, True)


@ROOT
async def test_a_python_run_imports_its_module_as_its_user(folder: Path) -> None:
    (folder / "mine.py").write_text(MINE)
    job = python("mine:who", user="nobody")
    async with stage(job, base=folder, modules=("mine",)) as s:
        result = await s.play(job)
    uid, gid = NOBODY.pw_uid, NOBODY.pw_gid
    assert result.error is None
    assert result.output == (
        f"{uid} ({uid}, {uid}, {uid}) ({gid}, {gid}, {gid}) [{gid}] {NOBODY.pw_dir}\n"
    )


@ROOT
@pytest.mark.parametrize("kind", [shell, python])
async def test_a_run_as_another_user_is_ended_at_its_timeout(
    kind: Callable[..., Any], folder: Path
) -> None:
    (folder / "sleeps.py").write_text("import time\ndef f(tick): time.sleep(60)\n")
    what = "sleeps:f" if kind is python else "exec sleep 60"
    job = kind(what, user="nobody", timeout_s=0.3)
    async with stage(job, base=folder) as s:
        result = await s.play(job)
    assert result.timed_out


@ROOT
async def test_a_run_that_cannot_be_what_it_is_to_be_runs_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("cron_leader.runners.dispatch.unmet", lambda job: "")
    mark = f"touch {tmp_path}/ran"
    async with stage() as s:
        nobody = await s.play(shell(mark, user="no-such-user"))
        group = await s.play(shell(mark, user="nobody:no-such-group"))
        files = await s.play(shell(mark, limits=Limits(files=10**9)))
    assert [r.exit_code for r in (nobody, group, files)] == [126, 126, 126]
    assert nobody.error == "user = 'no-such-user': no user 'no-such-user' on this host"
    assert "no group 'no-such-group'" in (group.error or "")
    assert (files.error or "").startswith("limits.files = 1000000000: ")
    assert not (tmp_path / "ran").exists()


def test_an_unknown_user_or_group_is_refused_before_any_run() -> None:
    assert "no user 'no-such-user' on this host; create it" in unmet(
        shell(":", user="no-such-user")
    )
    assert "no group 'nope'" in unmet(shell(":", user="nobody:nope"))


def test_what_only_root_may_do_is_refused_to_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    monkeypatch.setattr(needs, "_may_switch", lambda: False)
    monkeypatch.setattr(resource, "getrlimit", lambda kind: (100, 1000))
    assert unmet(shell(":", user="nobody")) == (
        'user = "nobody": only root may start runs as nobody, and this is uid 1000; '
        "start the node as root, or leave user out"
    )
    assert "only root may go below" in unmet(shell(":", nice=-20))
    assert "the node itself has 1000; lower it" in unmet(shell(":", limits=Limits(files=1001)))
    assert unmet(shell(":", nice=19, limits=Limits(files=1000))) == ""


def test_a_limit_that_the_platform_lacks_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(resource, "RLIMIT_NPROC")
    assert "no RLIMIT_NPROC" in unmet(shell(":", limits=Limits(processes=5)))


async def test_a_node_does_not_start_with_a_job_it_cannot_run() -> None:
    with pytest.raises(ConfigError, match='job "j": user = "no-such-user"'):
        async with stage(shell(":", user="no-such-user")):
            pass
