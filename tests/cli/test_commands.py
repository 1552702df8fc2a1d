"""init, check, next, db, fence: their output, and their one line and exit code on bad input."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from .conftest import Cli

JOB = '[[job]]\nname = "digest"\ncron = "0 9 * * *"\n'


def configure(text: str) -> None:
    Path("cron-leader.toml").write_text(text)


# ------------------------------------------------------------------ usage


def test_version_is_one_line(cli: Cli) -> None:
    for option in ("--version", "-V"):
        ran = cli(option)
        assert (ran.code, ran.err) == (0, "")
        assert ran.out.startswith("cron-leader 0.")


def test_bad_usage_is_one_line_and_exit_2(cli: Cli) -> None:
    for args, part in (
        (["frobnicate"], "No such command 'frobnicate'"),
        (["next", "--frob"], "No such option: --frob"),
        (["history", "-n", "0"], "-n"),
        (["history", "--state", "lost"], "Invalid value for '--state': 'lost' is not one of"),
        (["import-crontab"], "Missing argument 'FILE'"),
        (["run", "--log-format", "xml"], "'xml' is not one of console, json"),
        (["run", "--frob"], "No such option: --frob"),
        (["run", "--config"], "--config"),
        (["check", "--log-level", "loud"], "'loud' is not one of info, debug"),
    ):
        ran = cli(*args)
        assert ran.code == 2, args
        assert ran.err.startswith("error: "), args
        assert part in ran.err
        assert ran.err.count("\n") == 1


def test_without_a_command_the_help_is_shown_and_no_error(cli: Cli) -> None:
    for args in ((), ("db",), ("fence",)):
        ran = cli(*args)
        assert (ran.code, ran.err) == (2, "")
        assert "Usage: cron-leader" in ran.out


def test_help_lists_every_command(cli: Cli) -> None:
    ran = cli("--help")
    assert ran.code == 0
    for name in ("run", "init", "check", "next", "status", "history", "step-down", "fence", "db"):
        assert name in ran.out


def test_a_wrong_etcd3_package_is_one_line_where_etcd_is_needed(folder: Path) -> None:
    (folder / "etcd3").mkdir()
    (folder / "etcd3" / "__init__.py").write_text("")
    configure("")
    script = "import sys; from cron_leader.cli import main; sys.exit(main())"
    here = str(Path(__file__).parents[2])
    for args, code in ((["next", "--every", "1s", "-n", "1"], 0), (["status"], 3)):
        ran = subprocess.run(
            [sys.executable, "-c", script, *args], capture_output=True, text=True, check=False,
            env={"PYTHONPATH": f"{folder}:{here}"},
        )  # fmt: skip
        assert ran.returncode == code, ran.stderr
        assert "Traceback" not in ran.stderr
    assert "python3-etcd3" in ran.stderr


# ------------------------------------------------------------------ init, check


def test_init_writes_what_check_accepts_and_never_overwrites(cli: Cli) -> None:
    assert cli("init").code == 0
    text = Path("cron-leader.toml").read_text()
    again = cli("init")
    assert again.code == 2
    assert "cron-leader init OTHER.toml" in again.err
    assert Path("cron-leader.toml").read_text() == text
    ran = cli("check")
    assert ran.code == 0
    assert "cron-leader.toml: ok, 1 job\n" in ran.out


def test_every_commented_key_of_the_template_exists(cli: Cli) -> None:
    from cron_leader.cli.setup import TEMPLATE
    from cron_leader.config.schema import JOB, SECTIONS

    keys = {key for fields in (*SECTIONS.values(), JOB) for key in fields}
    named = {
        line.lstrip("# ").partition(" = ")[0] for line in TEMPLATE.splitlines() if " = " in line
    }
    assert {name for name in named if name.isidentifier()} <= keys


def test_check_as_json_gives_each_job_and_its_next_fire(cli: Cli) -> None:
    configure(JOB + 'shell = ":"')
    said = json.loads(cli("check", "--json").out)
    assert said["ok"] is True
    assert said["jobs"][0]["job"] == "digest"
    assert said["jobs"][0]["next"].endswith("T09:00:00Z")


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        (JOB + 'command = ["no-such-program"]', ["'no-such-program': not found on PATH"]),
        (JOB + 'shell = ":"\ncwd = "gone"', ["gone': no such folder"]),
        (JOB + 'python = "no_such_module:f"', ["no_such_module"]),
        ('[jobs]\nmodules = ["no_such_module"]', ["no_such_module"]),
        ('[ledger]\nurl = "sqlite:///gone/l.db"', ["gone does not exist; create it"]),
        ('[ledger]\nurl = "sqlite:///."', ["[ledger] url", "is a folder; name a file in it"]),
        ('[ledger]\nurl = "postgresql://h/x?sslmod=require"', ['query parameter: "sslmod"']),
        ('[ledger]\nurl = "postgresql://u:hunter2%zz@h/x"', ["a % in a password as %25"]),
        ('[ledger]\nurl = "postgresql://h:1:2/x"', ["[ledger] url", "port"]),
        (
            '[[fence_target]]\nname = "t"\nurl = "postgresql://[::1/x"',
            ['[[fence_target]] "t" url', "IPv6"],
        ),
        (JOB + 'shell = ":"\nuser = "nobody:4294967295"', ["no group '4294967295'"]),
        (JOB + 'shell = ":"\nuser = "\u0660"', ["no user"]),
        ("[lease]\nttl = 1", ['[lease] ttl = 1: must be text in quotes; write "1s"']),
    ],
)
def test_check_refuses_what_a_node_could_not_run(cli: Cli, text: str, parts: list[str]) -> None:
    configure(text)
    ran = cli("check")
    assert (ran.code, ran.out) == (2, "")
    assert ran.err.startswith("error: ")
    assert not [part for part in parts if part not in ran.err], ran.err
    assert "hunter2" not in ran.err


def test_check_finds_a_command_on_the_jobs_own_path(cli: Cli, folder: Path) -> None:
    tool = folder / "bin" / "mytool"
    tool.parent.mkdir()
    tool.write_text("#!/bin/sh\n")
    tool.chmod(0o755)
    configure(JOB + f'command = ["mytool"]\nenv = {{ PATH = "{tool.parent}" }}')
    assert cli("check").code == 0


def test_check_lists_jobs_defined_in_code(cli: Cli, folder: Path) -> None:
    (folder / "myjobs.py").write_text(
        "from cron_leader import job\n\n"
        '@job(every="5s", timeout="2s")\n'
        "def tick_tock(tick):\n    pass\n"
    )
    configure('[jobs]\nmodules = ["myjobs"]')
    ran = cli("check")
    assert ran.code == 0, ran.err
    assert "tick-tock" in ran.out


def test_check_warns_of_a_time_that_is_past_and_of_a_ttl_for_a_faster_etcd(cli: Cli) -> None:
    configure('[[job]]\nname = "a"\nat = "2020-01-01T00:00:00Z"\nshell = ":"')
    ran = cli("check")
    assert ran.code == 0
    assert '[[job]] "a" at = 2020-01-01T00:00:00Z is past' in ran.err
    configure('[lease]\nttl = "3s"')
    (warning,) = json.loads(cli("check", "--json").out)["warnings"]
    assert "etcd's defaults need 4s" in warning
    configure('[lease]\nttl = "4s"')
    assert "etcd's defaults" not in cli("check").err


def test_check_warns_of_a_backlog_that_never_drains(cli: Cli) -> None:
    job = '[run]\ncatchup_rate = "10/s"\n[[job]]\nname = "a"\nshell = ":"\ncatchup = "all"\n'
    configure(job + 'every = "100ms"')
    (warning,) = json.loads(cli("check", "--json").out)["warnings"]
    assert "never drains" in warning
    configure(job + 'every = "200ms"')
    assert json.loads(cli("check", "--json").out)["warnings"] == []


def test_check_warns_of_a_group_that_is_misspelt_on_either_side(cli: Cli) -> None:
    job = '[[job]]\nname = "{0}"\nevery = "1m"\nshell = ":"\ngroup = "{0}"\n'
    group = '[[group]]\nname = "acme"\nmax_parallel = 2\n'
    Path("cron-leader.toml").write_text(group + job.format("acne") + job.format("globex"))
    warnings = json.loads(cli("check", "--json").out)["warnings"]
    assert [text.partition("cron-leader.toml: ")[2] for text in warnings] == [
        '[[job]] "acne" group = "acne": no [[group]] has this name, so its runs have no bound of '
        "their own; did you mean acme?",
        '[[job]] "globex" group = "globex": no [[group]] has this name, so its runs have no bound '
        "of their own",
        '[[group]] "acme": no job is of it; did you mean acne?',
    ]
    for text in (group + job.format("acme"), job.format("acme") + job.format("globex")):
        Path("cron-leader.toml").write_text(text)
        assert json.loads(cli("check", "--json").out)["warnings"] == []


def test_a_traceback_is_shown_at_debug_only(cli: Cli) -> None:
    configure("[lease")
    assert "Traceback" not in cli("check").err
    for args in (["--log-level", "debug", "check"], ["check", "--log-level=debug"]):
        ran = cli(*args)
        assert ran.code == 2
        assert "Traceback" in ran.err
        assert ran.err.splitlines()[-1].startswith("error: cron-leader.toml: not valid TOML")


def test_a_missing_configuration_says_init(cli: Cli) -> None:
    for command in ("check", "status", "history", "next"):
        ran = cli(command)
        assert ran.code == 2
        assert "cron-leader init" in ran.err


# ------------------------------------------------------------------ next


def test_next_of_an_expression_over_a_spring_gap(cli: Cli) -> None:
    ran = cli(
        *("next", "--cron", "0 2 * * *", "--timezone", "Europe/Warsaw"),
        *("--after", "2017-03-26T00:00:00+01:00", "-n", "3", "--json"),
    )
    assert ran.code == 0
    assert json.loads(ran.out) == [
        {"local": "2017-03-26T03:00:00+02:00", "utc": "2017-03-26T01:00:00Z"},
        {"local": "2017-03-27T02:00:00+02:00", "utc": "2017-03-27T00:00:00Z"},
        {"local": "2017-03-28T02:00:00+02:00", "utc": "2017-03-28T00:00:00Z"},
    ]


def test_next_reads_a_naive_time_in_the_zone(cli: Cli) -> None:
    args = ("next", "--cron", "0 0 * * *", "--timezone", "Asia/Tokyo", "-n", "1", "--json")
    (naive,) = json.loads(cli(*args, "--after", "2026-01-01T23:00").out)
    assert naive == {"local": "2026-01-02T00:00:00+09:00", "utc": "2026-01-01T15:00:00Z"}


def test_next_of_the_configured_jobs_is_in_the_order_of_time(cli: Cli) -> None:
    configure(JOB + 'shell = ":"\n[[job]]\nname = "b"\ncron = "30 8 * * *"\nshell = ":"\n')
    args = ("next", "--after", "2026-01-01T00:00:00Z", "-n", "1", "--json")
    assert [fire["job"] for fire in json.loads(cli(*args).out)] == ["b", "digest"]
    assert [fire["job"] for fire in json.loads(cli(*args, "digest").out)] == ["digest"]
    text = cli("next", "--after", "2026-01-01T00:00:00Z", "-n", "1").out
    assert "2026-01-01 08:30:00+00:00" in text


def test_next_marks_slots_in_a_blackout(cli: Cli) -> None:
    configure(JOB + 'shell = ":"\nblackout = { days = "sat,sun" }')
    args = ("next", "--after", "2026-01-02T10:00:00Z", "-n", "3")  # a Friday, past 09:00
    fires = json.loads(cli(*args, "--json").out)
    assert [fire.get("skipped") for fire in fires] == ["blackout", "blackout", None]
    assert cli(*args).out.count("(blackout)") == 2


def test_next_of_a_hash_is_that_of_the_named_job(cli: Cli) -> None:
    configure('[fleet]\nname = "f"\n[[job]]\nname = "a"\ncron = "H H * * *"\nshell = ":"')
    after = ("--after", "2026-01-01T00:00:00Z", "-n", "1", "--json")
    hashed = ("next", "--cron", "H H * * *", *after)
    named = cli(*hashed, "--job", "a", "--fleet", "f")
    (of_file,) = json.loads(cli("next", *after).out)
    assert json.loads(named.out)[0]["utc"] == of_file["utc"]
    assert "H is drawn by" not in named.err
    assert "H is drawn by fleet and job" in cli(*hashed).err


@pytest.mark.parametrize(
    ("args", "part"),
    [
        (["--cron", "0 0 30 2 *"], "never fires"),
        (["--cron", "* * * * *", "--timezone", "Europe/Warsav"], "Europe/Warsaw"),
        (["--cron", "* * * * *", "--after", "noon"], "--after 'noon': not a time"),
        (["--every", "5s", "--after", "0001-01-01T00:00+14:00"], "in the years 1900 to 8999"),
        (["--cron", "* * * * *", "--timezone", "CEST"], "zone; write a zone such as 'Europe/Wars"),
        (["--every", "10ms"], "must be at least 100ms"),
        (["--every", "5s", "--cron", "* * * * *"], "one of them"),
        (["digset"], "did you mean digest?"),
    ],
)
def test_next_refuses_in_one_line(cli: Cli, args: list[str], part: str) -> None:
    configure(JOB + 'shell = ":"')
    ran = cli("next", *args)
    assert (ran.code, ran.err.count("\n")) == (2, 1)
    assert part in ran.err


def test_a_schedule_that_is_over_has_no_next(cli: Cli) -> None:
    configure('[[job]]\nname = "a"\nat = "2020-01-01T00:00:00Z"\nshell = ":"')
    ran = cli("next")
    assert (ran.code, ran.out) == (0, "")
    assert "nothing fires any more" in ran.err
    assert cli("next", "--json").out == "[]\n"


# ------------------------------------------------------------------ db, fence


def test_db_migrate_makes_the_ledger_and_is_safe_to_repeat(cli: Cli) -> None:
    configure("")
    first = json.loads(cli("db", "migrate", "--json").out)
    assert Path("cron-leader.db").exists()
    assert json.loads(cli("db", "migrate", "--json").out) == first


def test_db_migrate_can_print_the_sql_and_touch_nothing(cli: Cli) -> None:
    configure("")
    ran = cli("db", "migrate", "--sql")
    assert "CREATE TABLE cron_leader_slot" in ran.out
    assert not Path("cron-leader.db").exists()
    assert cli("db", "migrate").out.endswith(", created\n")
    assert cli("db", "migrate").out.endswith(", up to date\n")
    assert cli("db", "migrate", "--sql").out == "-- up to date: nothing to do\n"


def test_a_ledger_that_is_not_there_yet_is_exit_3(cli: Cli) -> None:
    configure("")
    for args in (["history"], ["fence", "show"], ["fence", "rebase", "--yes"]):
        ran = cli(*args)
        assert (ran.code, ran.err.count("\n")) == (3, 1)
        assert "cron-leader db migrate" in ran.err


def test_a_ledger_in_no_folder_says_create_it(cli: Cli, folder: Path) -> None:
    configure('[ledger]\nurl = "sqlite:///gone/l.db"')
    for args in (["history"], ["db", "migrate"]):
        ran = cli(*args)
        assert (ran.code, ran.err.count("\n")) == (2, 1), args
        assert f"the folder {folder / 'gone'} does not exist: create it" in ran.err


def test_a_postgres_that_is_down_is_exit_3_without_its_password(cli: Cli) -> None:
    configure('[ledger]\nurl = "postgresql://u:hunter2@127.0.0.1:1/x"')
    for args in (["history"], ["db", "migrate"]):
        ran = cli(*args)
        assert ran.code == 3
        assert "hunter2" not in ran.err
    ran = cli("db", "migrate", "--sql")
    assert (ran.code, "CREATE TABLE cron_leader_slot" in ran.out) == (0, True)
    assert "this is the SQL for a new ledger" in ran.err
    assert "hunter2" not in ran.err


def test_fence_rebase_asks_or_is_told(cli: Cli) -> None:
    configure("")
    cli("db", "migrate")
    ran = cli("fence", "rebase")
    assert ran.code == 2
    assert "repeat with --yes" in ran.err
    assert "nothing to rebase" in cli("fence", "rebase", "--yes").err
