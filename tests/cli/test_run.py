"""`run` hands over to the supervisor without a detour, and starts fast."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from cron_leader.cli import run

from .conftest import Cli


def words(**options: str) -> list[str]:
    """The command line for options given as config="x"."""
    return run.command({f"--{name.replace('_', '-')}": value for name, value in options.items()})


def test_run_execs_the_supervisor_and_that_the_daemon(folder: Path) -> None:
    command = words(config="c.toml", node_id="a", log_format="json", log_level="debug")
    split = command.index("--")
    supervisor, daemon = command[:split], command[split + 1 :]
    assert supervisor[:3] == [sys.executable, "-S", "-E"]
    assert Path(supervisor[3]).name == "supervisor.py"
    assert Path(supervisor[3]).is_file()
    assert supervisor[4:] == [
        *("--log-format", "json", "--fleet", "default", "--node", "a"),
    ]
    assert daemon == [
        *(sys.executable, "-m", "cron_leader", "--config", "c.toml", "--node-id", "a"),
        *("--log-format", "json", "--log-level", "debug"),
    ]


@pytest.mark.parametrize(
    ("args", "options"),
    [
        ([], {}),
        (["--config", "x"], {"--config": "x"}),
        (["--config=x", "--node-id", "a"], {"--config": "x", "--node-id": "a"}),
        (["--log-format", "json"], {"--log-format": "json"}),
        (["--help"], None),
        (["--log-format", "xml"], None),
        (["--node-id"], None),
        (["extra"], None),
    ],
)
def test_the_fast_path_takes_plain_options_and_leaves_the_rest_to_typer(
    args: list[str], options: dict[str, str] | None
) -> None:
    assert run.parse(args) == options


def test_the_supervisors_labels_are_those_of_the_configuration(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    Path("cron-leader.toml").write_text('[node]\nid = "n" # x\n[fleet]  # y\nname = "blue"\n')
    assert words()[4:10] == ["--log-format", "json", "--fleet", "blue", "--node", "n"]
    monkeypatch.setenv("CRON_LEADER_FLEET_NAME", "red")
    monkeypatch.setenv("NODE_ID", "e")
    assert words()[6:10] == ["--fleet", "red", "--node", "e"]


def test_bad_configuration_ends_run_with_2_and_no_traceback() -> None:
    Path("cron-leader.toml").write_text("[lease")
    ran = subprocess.run(
        [sys.executable, "-c", "from cron_leader.cli import main; main()", "run"],
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
        env={"PYTHONPATH": str(Path(__file__).parents[2]), "PATH": "/usr/bin:/bin"},
    )
    assert ran.returncode == 2
    assert "cron-leader.toml: not valid TOML" in ran.stderr
    assert "Traceback" not in ran.stderr


@pytest.mark.parametrize("args", [["--version"], ["run", "--help"]])
def test_what_is_in_a_hurry_imports_no_typer(args: list[str]) -> None:
    heavy = "{'typer', 'rich', 'pydantic_core', 'asyncio', 'grpc', 'cron_leader.cli.app'}"
    script = (
        "import sys; from cron_leader.cli import main, run\n"
        f"main({args!r}) if {args!r} == ['--version'] else run.command({{}})\n"
        f"print(sorted({heavy} & set(sys.modules)))"
    )
    ran = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True,
        env={"PYTHONPATH": str(Path(__file__).parents[2])},
    )  # fmt: skip
    assert ran.stdout.splitlines()[-1] == "[]"


def test_a_supervisor_that_cannot_be_started_is_one_line(
    cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "executable", "/nowhere/python")
    ran = cli("run")
    assert (ran.code, ran.err) == (
        126, "error: /nowhere/python: cannot be started: No such file or directory\n",
    )  # fmt: skip


def test_a_closed_stdout_is_no_defect_and_no_socket_takes_its_place() -> None:
    Path("cron-leader.toml").write_text("[lease")
    main = "import sys; from cron_leader.cli import main; sys.exit(main())"
    for args in ("run", "next"):
        ran = subprocess.run(
            ["/bin/sh", "-c", f'exec "$0" -c "$1" {args} >&- <&-', sys.executable, main],
            stderr=subprocess.PIPE,
            text=True,
            timeout=30,
            check=False,
            env={"PYTHONPATH": str(Path(__file__).parents[2]), "PATH": "/usr/bin:/bin"},
        )
        assert (ran.returncode, ran.stderr.count("\n")) == (2, 1), ran.stderr
        assert "not valid TOML" in ran.stderr
