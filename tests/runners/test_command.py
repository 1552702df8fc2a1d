"""Command and shell runs: real processes, good, bad and hostile."""

from __future__ import annotations

import asyncio
import os
import resource
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from cron_leader.runners import wrapper
from tests.runners.stage import (
    CLOCK,
    NotStarted,
    Prepared,
    Recorder,
    RunEnded,
    Started,
    alive,
    command,
    run_of,
    shell,
    stage,
    stat_of,
    vanished,
    written,
)


async def test_a_run_that_succeeds_is_recorded_with_output_and_duration() -> None:
    async with stage() as s:
        result = await s.play(shell("echo out; echo err >&2; sleep 0.2"))
    assert result.ok
    assert (result.exit_code, result.error) == (0, None)
    assert result.output == "out\nerr\n"
    assert 100_000_000 <= result.duration_ns < 5_000_000_000
    assert abs((CLOCK.wall() - result.finished_at).total_seconds()) < 5


async def test_a_run_without_output_has_none() -> None:
    async with stage() as s:
        assert (await s.play(command("true"))).output is None


@pytest.mark.parametrize(
    ("script", "code", "error"),
    [
        ("exit 3", 3, "exit code 3"),
        ("kill -KILL $$", 137, "killed by SIGKILL"),
        ("kill -SEGV $$", 139, "killed by SIGSEGV"),
    ],
)
async def test_a_failing_run_says_how(script: str, code: int, error: str) -> None:
    async with stage() as s:
        result = await s.play(shell(script))
    assert (result.ok, result.exit_code, result.error) == (False, code, error)


async def test_a_run_is_given_exactly_its_environment() -> None:
    daemon = {"PATH": os.environ["PATH"], "HOME": "/h", "LANG": "C", "TZ": "UTC", "SECRET": "s"}
    env = {"MINE": "1", "CRON_LEADER_FENCE": "forged"}
    async with stage(environ=daemon) as s:
        result = await s.play(command("env", env=env, timeout_s=60))
    given = dict(line.split("=", 1) for line in (result.output or "").splitlines())
    run_deadline = given.pop("CRON_LEADER_RUN_DEADLINE")
    assert run_deadline.endswith("Z")
    assert given == {
        "PATH": os.environ["PATH"],
        "HOME": "/h",
        "LANG": "C",
        "TZ": "UTC",
        "MINE": "1",
        "CRON_LEADER_JOB": "j",
        "CRON_LEADER_SCHEDULED_FOR": "2026-03-01T09:00:00.000000Z",
        "CRON_LEADER_FENCE": "42",
        "CRON_LEADER_NODE": "a",
        "CRON_LEADER_FLEET": "fleet",
        "CRON_LEADER_ATTEMPT": "1",
    }


async def test_a_run_starts_with_default_signals_null_input_and_no_other_descriptor() -> None:
    look = "import os, sys; print(os.listdir('/proc/self/fd'), sys.stdin.read())"
    async with stage() as s:
        run = await s.begin(shell("sleep 10"))  # another run, whose pipes must not leak
        fds = await s.play(command(sys.executable, "-S", "-c", look))
        ignored = await s.play(shell("grep SigIgn /proc/self/status"))
        s.runners.kill(run.run_id, 0)
        await s.until(RunEnded, run)
    assert fds.output == "['0', '1', '2', '3'] \n"  # 3: the listing itself
    mask = int(ignored.output.split()[1], 16)  # type: ignore[union-attr]
    assert mask & 0x7FFFFFFF == 0  # from 32 on they are the C library's own


async def test_a_run_enters_the_folder_of_its_job(tmp_path: Path) -> None:
    async with stage() as s:
        result = await s.play(shell("pwd", cwd=str(tmp_path)))
    assert result.output == f"{tmp_path}\n"


async def test_what_cannot_be_executed_fails_its_run_as_in_a_shell(tmp_path: Path) -> None:
    plain, orphan = tmp_path / "plain", tmp_path / "orphan"
    plain.write_text("echo\n")
    orphan.write_text("#!/no/such/interpreter\n")
    orphan.chmod(0o755)
    async with stage(environ={"PATH": "/bin"}) as s:
        missing = await s.play(command("no-such-command"))
        path = await s.play(command("/no/such/command"))
        script = await s.play(command(str(orphan)))
        denied = await s.play(command(str(plain)))
        folder = await s.play(shell("true", cwd="/no/such/folder"))
    assert [r.exit_code for r in (missing, path, script, denied, folder)] == [
        127, 127, 127, 126, 126,
    ]  # fmt: skip
    assert missing.error == "command 'no-such-command' not found on PATH /bin"
    assert path.error == "command '/no/such/command' not found"
    assert "interpreter" in (script.error or "")
    assert "not executable" in (denied.error or "")
    assert "'/no/such/folder' (cwd)" in (folder.error or "")


async def test_a_run_past_its_deadline_is_not_executed(tmp_path: Path) -> None:
    run = run_of(shell("echo ran >mark", cwd=str(tmp_path)))
    async with stage() as s:
        s.runners.prepare(run)
        await s.until(Prepared, run)
        s.go(run, deadline_ns=CLOCK.boot_ns())
        told = await s.until((NotStarted, Started), run)
        assert isinstance(told, NotStarted)
        assert told.why == "past the lease deadline"
    assert s.kinds(run) == [Prepared, NotStarted]
    assert not (tmp_path / "mark").exists()


async def test_a_wrapper_that_was_frozen_past_the_deadline_executes_nothing(
    tmp_path: Path,
) -> None:
    link = Recorder()
    run = run_of(shell("echo ran >mark", cwd=str(tmp_path)))
    async with stage(link=link) as s:
        s.runners.prepare(run)
        await s.until(Prepared, run)
        os.kill(link.pgid, signal.SIGSTOP)
        deadline_ns = CLOCK.boot_ns() + 100_000_000
        s.go(run, deadline_ns=deadline_ns)
        await asyncio.sleep(0.11)
        os.kill(link.pgid, signal.SIGCONT)
        await s.until(NotStarted, run)
    assert not (tmp_path / "mark").exists()


def test_a_wrapper_whose_parent_died_before_it_could_say_so_waits_for_no_go() -> None:
    """The kernel tells only of deaths from then on; somebody else is its parent by now."""
    ours, control = socket.socketpair()
    with ours, control:
        argv = [sys.executable, "-I", "-S", wrapper.__file__, str(control.fileno())]
        gone = subprocess.run(
            [*argv, str(os.getppid())], pass_fds=[control.fileno()], check=False, timeout=20
        )
        assert gone.returncode == 0


async def test_a_run_killed_before_its_go_was_carried_out_does_not_start(tmp_path: Path) -> None:
    """As when the term ends in the very step that said go."""
    job = shell(f"touch {tmp_path}/ran; sleep 60")
    async with stage(job) as s:
        run = run_of(job)
        s.runners.prepare(run)
        await s.until(Prepared, run)
        s.go(run)
        s.runners.kill(run.run_id, 0)
        await s.until(NotStarted, run)
        assert s.kinds(run) == [Prepared, NotStarted]
    assert not (tmp_path / "ran").exists()


async def test_a_go_is_taken_back_until_the_job_has_begun(tmp_path: Path) -> None:
    """As when the term ends while the run's process, told to go, waits for its turn."""
    link, job = Recorder(), shell(f"touch {tmp_path}/ran")
    async with stage(job, link=link) as s:
        run = run_of(job)
        assert (await s.take_back(run, link)).why == "dropped"
        assert s.kinds(run) == [Prepared, NotStarted]
    assert not (tmp_path / "ran").exists()


async def test_a_job_that_has_begun_is_not_dropped() -> None:
    job = shell("sleep 0.2")
    async with stage(job) as s:
        run = await s.begin(job)
        s.runners.drop(run.run_id)
        assert (await s.result(run)).ok


async def test_a_dropped_run_leaves_no_process() -> None:
    link = Recorder()
    run = run_of(shell("true"))
    async with stage(link=link) as s:
        s.runners.prepare(run)
        await s.until(Prepared, run)
        s.runners.drop(run.run_id)
        assert (await s.until(NotStarted, run)).why == "dropped"
        assert await vanished(link.pgid)
    assert s.kinds(run) == [Prepared, NotStarted]


async def test_a_run_killed_before_it_was_told_to_go_has_not_started() -> None:
    run = run_of(shell("true"))
    async with stage() as s:
        s.runners.prepare(run)
        await s.until(Prepared, run)
        s.runners.kill(run.run_id, 0)
        await s.until(NotStarted, run)
    assert s.kinds(run) == [Prepared, NotStarted]


async def test_a_wrapper_that_died_while_it_waited_has_not_started() -> None:
    link = Recorder()
    run = run_of(shell("true"))
    async with stage(link=link) as s:
        s.runners.prepare(run)
        await s.until(Prepared, run)
        os.kill(link.pgid, signal.SIGKILL)
        assert await vanished(link.pgid)
        s.go(run)
        await s.until(NotStarted, run)
    assert s.kinds(run) == [Prepared, NotStarted]


async def test_a_dead_spare_is_replaced() -> None:
    link = Recorder()
    async with stage(shell("true"), link=link) as s:
        (spare,) = s.runners._wrappers._spares
        os.kill(spare.pid, signal.SIGKILL)
        await spare.exited.wait()
        assert (await s.play(shell("echo ok"))).output == "ok\n"
    assert link.pgid != spare.pid


async def test_a_run_is_stopped_at_its_timeout() -> None:
    async with stage() as s:
        result = await s.play(shell("echo begun; exec sleep 60", timeout_s=1))
    assert (result.timed_out, result.ok, result.exit_code) == (True, False, 143)
    assert result.error == "timed out after 1 s"
    assert result.output == "begun\n"


async def test_a_run_that_ended_in_time_has_not_timed_out_while_its_output_is_drained(
    tmp_path: Path,
) -> None:
    escape = "setsid sh -c 'echo $$ >pid; exec sleep 600' & while [ ! -s pid ]; do :; done; cat pid"
    async with stage() as s:
        result = await s.play(shell(escape, cwd=str(tmp_path), timeout_s=0.7))
    os.kill(int(result.output or ""), signal.SIGKILL)
    assert (result.ok, result.timed_out, result.exit_code) == (True, False, 0)


@pytest.mark.parametrize("script", ["trap '' TERM; while :; do sleep 1; done", "kill -STOP $$"])
async def test_a_run_that_cannot_or_will_not_end_is_killed_after_its_grace(script: str) -> None:
    ignore = "trap '' TERM; "  # the stopped one would otherwise obey as soon as it is continued
    async with stage() as s:
        result = await s.play(shell(ignore + script + "; sleep 60", timeout_s=1, grace_s=0.2))
    assert (result.timed_out, result.exit_code) == (True, 137)


async def test_kill_asks_first_and_insists_after_the_grace(tmp_path: Path) -> None:
    polite = "trap 'echo bye; exit 5' TERM; echo up >up; while :; do sleep 0.01; done"
    async with stage() as s:
        run = await s.begin(shell(polite, cwd=str(tmp_path)))
        await written(tmp_path / "up")
        s.runners.kill(run.run_id, 5)
        result = await s.result(run)
        stubborn = await s.begin(shell("trap '' TERM; echo up >deaf; sleep 60", cwd=str(tmp_path)))
        await written(tmp_path / "deaf")
        s.runners.kill(stubborn.run_id, 60)
        s.runners.kill(stubborn.run_id, 0)
        killed = await s.result(stubborn)
    assert result.exit_code == 5
    assert (result.output or "").endswith("bye\n")
    assert (killed.exit_code, killed.error) == (137, "killed by SIGKILL")


async def test_a_stopped_run_is_continued_so_that_it_can_end_in_order() -> None:
    link = Recorder()
    async with stage(link=link) as s:
        run = await s.begin(shell("kill -STOP $$"))
        while stat_of(link.pgid)[0] != "T":  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        s.runners.kill(run.run_id, 600)
        assert (await s.result(run)).error == "killed by SIGTERM"


async def test_what_a_run_leaves_in_its_group_dies_with_it() -> None:
    async with stage() as s:
        result = await s.play(shell("sleep 600 & echo $!"))
    assert result.ok
    assert await vanished(int(result.output or ""))


async def test_a_process_that_escaped_the_group_does_not_hold_the_run_up(tmp_path: Path) -> None:
    """It survives, which is documented: it has a session of its own."""
    escape = "setsid sh -c 'echo $$ >pid; exec sleep 600' & while [ ! -s pid ]; do :; done; cat pid"
    async with stage() as s:
        result = await s.play(shell(escape, cwd=str(tmp_path)))
    assert result.ok
    survivor = int(result.output or "")
    assert alive(survivor)
    os.kill(survivor, signal.SIGKILL)


async def test_an_output_flood_keeps_head_and_tail_and_the_loop_alive() -> None:
    flood = "echo first; head -c 200000000 /dev/zero; echo; echo last"
    peak_kib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    async with stage() as s:
        run = await s.begin(shell(flood, output_head=1000, output_tail=1000))
        quick = await s.play(shell("echo meanwhile"))
        assert RunEnded not in s.kinds(run)
        output = (await s.result(run)).output
    assert quick.output == "meanwhile\n"
    assert output is not None
    assert output.startswith("first\n")
    assert output.endswith("\nlast\n")
    assert "\n[... 199998012 bytes dropped ...]\n" in output
    assert len(output) < 2100
    assert "\x00" not in output
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - peak_kib < 50 * 1024


async def test_output_that_is_no_utf8_is_kept_as_far_as_it_is() -> None:
    async with stage() as s:
        result = await s.play(shell(r"printf 'a\377\000b'"))
    assert result.output == "a\ufffd\ufffdb"


async def test_close_ends_every_run_and_reports_it() -> None:
    async with stage() as s:
        runs = [await s.begin(shell("trap '' TERM; sleep 600")) for _ in range(3)]
        waiting = run_of(shell("true"))
        s.runners.prepare(waiting)
        await s.until(Prepared, waiting)
        await s.runners.close()
        await s.runners.close()
    for run in runs:
        assert s.kinds(run) == [Prepared, Started, RunEnded]
    assert s.kinds(waiting) == [Prepared, NotStarted]


async def test_no_process_to_be_had_costs_that_run_only(monkeypatch: pytest.MonkeyPatch) -> None:
    run = run_of(shell("true"))
    async with stage() as s:
        with monkeypatch.context() as m:
            m.setattr(sys, "executable", "/no/such/python")
            s.runners.prepare(run)
            assert "/no/such/python" in (await s.until(NotStarted, run)).why
        assert (await s.play(shell("true"))).ok
