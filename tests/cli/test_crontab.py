"""import-crontab: what it prints loads, means the same, and says what it could not carry over."""

from __future__ import annotations

from pathlib import Path

import pytest

from cron_leader.cli.crontab import translate
from cron_leader.config import load
from cron_leader.core.model import CommandSpec, Job, ShellSpec
from cron_leader.core.schedule import Cron

from .conftest import Cli


def imported(text: str, *, system: bool = False) -> tuple[tuple[Job, ...], list[str]]:
    """The jobs after a round trip through our own configuration, and the remarks."""
    toml, remarks = translate(text, name="tab", zone="Europe/Paris", system=system)
    path = Path("imported.toml")
    path.write_text(toml)
    said = [f"{remark.line}: {remark.text}" for remark in remarks]
    for remark in remarks:
        assert f"# line {remark.line}: {remark.text}" in toml
    return load(path, environ={}).jobs, said


def the_job(text: str, *, system: bool = False) -> Job:
    (job,), _ = imported(text, system=system)
    return job


def test_an_entry_becomes_a_job_in_the_machines_zone() -> None:
    job = the_job("17 3 * * 1-5 /usr/local/bin/rotate.sh --all\n")
    assert job.name == "rotate"
    assert job.schedule == Cron("17 3 * * 1-5", "Europe/Paris")
    assert job.spec == ShellSpec("/usr/local/bin/rotate.sh --all")


def test_cron_tz_is_the_zone_of_the_entries_below_it() -> None:
    jobs, _ = imported("1 1 * * * a\nCRON_TZ=Asia/Tokyo\n2 2 * * * b\n")
    assert [job.schedule for job in jobs] == [
        Cron("1 1 * * *", "Europe/Paris"),
        Cron("2 2 * * *", "Asia/Tokyo"),
    ]


def test_environment_lines_hold_from_there_on_and_are_taken_literally() -> None:
    jobs, _ = imported("A=1\n1 1 * * * a\nA = \" x ${Y} \"\nB='q'\n2 2 * * * b\n")
    assert jobs[0].env == {"A": "1"}
    assert jobs[1].env == {"A": " x ${Y} ", "B": "q"}


def test_tz_is_set_for_the_run_and_said_not_to_move_the_schedule() -> None:
    (job,), said = imported("TZ=UTC\n0 9 * * * a\n")
    assert job.env == {"TZ": "UTC"}
    assert job.schedule == Cron("0 9 * * *", "Europe/Paris")
    assert "2: TZ is set for the run only" in said[0]


def test_home_is_where_the_run_starts() -> None:
    job = the_job("HOME=/srv\n0 9 * * * a\n")
    assert (job.cwd, job.env) == ("/srv", {"HOME": "/srv"})


def test_another_shell_runs_the_command() -> None:
    job = the_job("SHELL=/bin/bash\n0 9 * * * [[ a ]] && b\n")
    assert job.spec == CommandSpec(("/bin/bash", "-c", "[[ a ]] && b"))
    assert job.env == {}


def test_percent_ends_the_command_and_feeds_its_standard_input() -> None:
    import subprocess

    job = the_job("0 9 * * * cat -A; echo 100\\%%one%two $X\n")
    assert isinstance(job.spec, ShellSpec)
    ran = subprocess.run(["/bin/sh", "-c", job.spec.script], capture_output=True, check=True)
    assert ran.stdout == b"one$\ntwo $X$\n100%\n"


@pytest.mark.parametrize("nickname", ["@daily", "@Hourly", "@weekly", "@yearly", "@midnight"])
def test_nicknames_are_carried_over(nickname: str) -> None:
    assert isinstance(the_job(f"{nickname} a\n").schedule, Cron)


def test_a_system_crontab_has_users() -> None:
    (job,), said = imported("# m h dom mon dow user command\n1 1 * * * www b c\n", system=True)
    assert job.spec == ShellSpec("b c")
    assert said == ["2: user www: runs belong to the user of the node; run a fleet as www"]


@pytest.mark.parametrize(
    ("line", "part"),
    [
        ("@reboot a", "@reboot has no counterpart"),
        ("0~59 * * * * a", "random ranges have no counterpart"),
        ("0 0 30 2 * a", "never fires"),
        ("61 * * * * a", "left out"),
        ("@fortnightly a", "left out"),
        ("what is this", "not a crontab line"),
        ("CRON_TZ=Mars/Olympus\n1 1 * * * a", "there is no such time zone"),
    ],
)
def test_what_cannot_be_a_job_is_kept_as_a_comment_and_said(line: str, part: str) -> None:
    jobs, said = imported(f"{line}\n5 5 * * * kept\n".replace("CRON_TZ", "#\nCRON_TZ"))
    assert part in said[0]
    assert all(job.name == "kept" for job in jobs)


def test_mail_has_no_counterpart_unless_it_was_off() -> None:
    _, said = imported('MAILTO=""\n1 1 * * * a\nMAILTO=root\n2 2 * * * b\n')
    assert len(said) == 1
    assert said[0].startswith("3: MAILTO=root has no counterpart")


def test_names_come_from_the_program_and_are_unique() -> None:
    commands = [
        "cd /srv && ./bin/report.py -v",
        "/usr/bin/python3 /opt/report.py",
        "flock -n /tmp/lock nice -n 10 /usr/bin/report",
        "test -x /usr/sbin/anacron || { cd / && run-parts --report /etc/cron.daily; }",
        "$HOME/x",
    ]
    jobs, _ = imported("".join(f"1 1 * * * {command}\n" for command in commands))
    assert [job.name for job in jobs] == ["report", "report-2", "report-3", "cron.daily", "job"]


def test_comments_above_an_entry_stay_with_it() -> None:
    toml, _ = translate("# nightly\n\n# rotate\n1 1 * * * a\n", name="t", zone="UTC", system=False)
    assert "# rotate\n[[job]]" in toml
    assert "nightly" not in toml


def test_the_command_reads_a_file_or_stdin_and_keeps_stdout_to_toml(cli: Cli) -> None:
    Path("tab").write_bytes(b"MAILTO=root\n1 1 * * * echo caf\xe9 \x7f\n")
    ran = cli("import-crontab", "tab", "--timezone", "UTC")
    assert ran.code == 0
    assert ran.err.startswith("note: tab:1: MAILTO=root")
    Path("out.toml").write_text(ran.out)
    assert cli("check", "--config", "out.toml").code == 0


def test_the_user_field_is_seen_from_the_header_or_told(cli: Cli) -> None:
    Path("a").write_text("# m h dom mon dow user\tcommand\n1 1 * * * root x\n")
    Path("b").write_text("1 1 * * * root x\n")
    assert 'shell = "x"' in cli("import-crontab", "a").out
    assert 'shell = "x"' in cli("import-crontab", "b", "--system").out
    assert 'shell = "root x"' in cli("import-crontab", "b").out


def test_a_file_that_is_not_there_is_one_line_and_exit_2(cli: Cli) -> None:
    ran = cli("import-crontab", "gone")
    assert (ran.code, ran.err.count("\n")) == (2, 1)
