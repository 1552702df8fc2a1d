"""What the pages say is true: their commands run, or at least exist; their tables are complete."""

from __future__ import annotations

import inspect
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer

from cron_leader import events, job
from cron_leader.cli.app import app
from cron_leader.config import load, options, schema
from cron_leader.core.gate import CloseReason
from cron_leader.core.model import Reason, State
from cron_leader.core.standing import EndReason
from cron_leader.etcd.embedded import EmbeddedEtcd
from tests.docs import options_table
from tests.docs.blocks import PAGES, ROOT, Block, blocks, commands

ALL = [block for page in PAGES for block in blocks(page)]
SHELL = [block for block in ALL if block.language == "sh"]
RUN = [page for page in PAGES if any(b.page == page and not b.info for b in SHELL)]

OTHERS = {"apt-get", "cd", "docker", "etcd", "etcdctl", "export", "git", "kill", "pip", "python"}
OTHERS |= {"mkdir", "sudo"}
"""Programs that pages name and that are not ours."""


@pytest.fixture(scope="module")
def environ(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    """That of a reader who has cron-leader installed, and an etcd at the usual place."""
    with EmbeddedEtcd(tmp_path_factory.mktemp("etcd") / "data") as etcd:
        clean = {k: v for k, v in os.environ.items() if not k.startswith("CRON_LEADER_")}
        yield clean | {
            "PATH": f"{Path(sys.executable).parent}{os.pathsep}{clean['PATH']}",
            "CRON_LEADER_ETCD_ENDPOINTS": etcd.endpoint,
            "NO_COLOR": "1",
            "COLUMNS": "200",
        }


@pytest.mark.parametrize("page", RUN, ids=lambda page: page.name)
def test_the_shell_blocks_of_a_page_run_one_after_the_other(
    page: Path, environ: dict[str, str], tmp_path: Path
) -> None:
    """In one folder; a json block that follows at once is what was printed."""
    shown = blocks(page)
    for block, follower in zip(shown, [*shown[1:], None], strict=True):
        if block.language != "sh" or block.info:
            continue
        run = subprocess.run(
            ["bash", "-eu", "-c", block.text],
            cwd=tmp_path,
            env=environ,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=60,
        )
        assert run.returncode == 0, f"{block}: {run.stdout}{run.stderr}"
        if follower is not None and follower.language == "json":
            assert run.stdout == follower.text, str(block)


def test_a_shell_block_is_run_or_marked() -> None:
    assert SHELL
    assert {block.info for block in SHELL} <= {"", "no-run"}
    assert not [str(b) for b in ALL if b.language in {"bash", "shell", "console", ""}]


@pytest.mark.parametrize("block", [b for b in SHELL if b.info], ids=str)
def test_a_block_that_is_not_run_names_only_what_exists(block: Block) -> None:
    for words in commands(block.text):
        assert not _wrong(words), f"{block}: {' '.join(words)}: {_wrong(words)}"


_VARIABLES = ("PGPASSWORD", "HOOK_PATH", "ALERTS_TOKEN", "REPORTS_TOKEN")
"""That pages take from the environment."""


@pytest.mark.parametrize("block", [b for b in ALL if b.language == "toml"], ids=str)
def test_a_configuration_shown_loads(block: Block, tmp_path: Path) -> None:
    path = tmp_path / "cron-leader.toml"
    path.write_text(block.text)
    load(path, environ=dict.fromkeys(_VARIABLES, "x"))


NOT_OF_A_FUNCTION = {"command", "shell", "python", "url", "method", "headers", "body"} | {
    *("expected_status", "follow_redirects", "ca", "cert", "key")
}
"""What else a job may run, and the keys of a request; `@job` takes all others."""


def test_the_table_of_options_is_made_of_the_model_and_says_something_of_each() -> None:
    assert options.JOB.keys() == schema.JOB.keys()
    assert inspect.signature(job).parameters.keys() == schema.JOB.keys() - NOT_OF_A_FUNCTION
    assert all(option.meaning for option in options.JOB.values())
    page = options_table.PAGE.read_text(encoding="utf-8")
    assert options_table.shown(page) == options.table(), "make options"
    assert _first_column(options_table.PAGE, "Options of a job") == set(schema.JOB)


def test_a_page_with_an_old_table_is_mended_and_one_without_marks_is_refused() -> None:
    page = options_table.PAGE.read_text(encoding="utf-8")
    assert options_table.mended(page.replace("| `name` |", "| `nmae` |")) == page
    with pytest.raises(ValueError, match="marks"):
        options_table.mended(page.replace(options_table.END, ""))


def test_every_key_of_the_other_sections_is_in_the_guide() -> None:
    keys = {f"{section}.{key}" for section, fields in schema.SECTIONS.items() for key in fields}
    assert _first_column(ROOT / "docs/guide.md", "The other sections") == keys


def test_every_key_of_a_notify_table_is_in_the_operations_page() -> None:
    page = ROOT / "docs/operations.md"
    assert _first_column(page, "Keys of a notify table") == set(schema.NOTIFY)


def test_every_event_is_in_the_operations_page() -> None:
    assert _first_column(ROOT / "docs/operations.md", "Events") == events.VOCABULARY


def test_every_reason_of_the_core_is_in_the_operations_page() -> None:
    page = (ROOT / "docs/operations.md").read_text(encoding="utf-8")
    for event, reasons in (("term.ended", EndReason), ("gate.closed", CloseReason)):
        (row,) = re.findall(rf"^\|.*`{event}` \|.*`reason`: ([^|;]*)", page, re.MULTILINE)
        assert {word.strip() for word in row.split(",")} == set(reasons), event


def test_every_state_and_reason_of_a_slot_is_in_the_guide() -> None:
    page = (ROOT / "docs/guide.md").read_text(encoding="utf-8")
    section = page.partition("# What became of a slot\n")[2].partition("\n#")[0]
    rows = re.findall(r"^\| ([a-z_, ]+) \| ([a-z_ ]*)\| ", section, re.MULTILINE)
    states = {state for states, _ in rows for state in states.split(", ")}
    assert states - {"state"} == set(State)
    reasons = {reason.strip() for _, reason in rows} - {"", "reason"}
    assert reasons == set(Reason) - {Reason.OPERATOR}, "operator is kept for a later release"


def test_links_between_pages_lead_somewhere() -> None:
    for page in PAGES:
        for target in re.findall(r"\]\(([^)#\s]+)[^)]*\)", page.read_text(encoding="utf-8")):
            assert (page.parent / target).exists(), f"{page.name}: {target}"


def test_the_check_of_unrun_commands_can_fail() -> None:
    assert _wrong(["cron-leader", "runn"])
    assert _wrong(["cron-leader", "run", "--confg", "x"])
    assert _wrong(["cron-leader", "db", "migrat"])
    assert _wrong(["make", "demonstration"])
    assert _wrong(["python", "-m", "chaoss"])
    assert _wrong(["docker", "compose", "-f", "compose.yml", "up"])
    assert _wrong(["frobnicate"])


# ------------------------------------------------------------------ what exists


def _wrong(words: list[str]) -> str:
    """Why this command cannot work as written; empty if it may."""
    match words:
        case ["cron-leader", *rest]:
            return _wrong_command(typer.main.get_command(app), rest)
        case ["make", *rest]:
            unknown = {w for w in rest if "=" not in w} - _make_targets()
            return f"no make target {unknown}" if unknown else ""
        case ["python", "-m", module, *_]:
            return "" if (ROOT / module / "__main__.py").exists() else f"no module {module} to run"
        case ["docker", "compose", "-f", file, *_]:
            return "" if (ROOT / file).exists() else f"no file {file}"
        case ["sudo", *rest]:
            return _wrong(rest)
        case [name, *_]:
            return "" if name in OTHERS else f"what is {name}?"
        case _:
            return "no command"


def _wrong_command(command: Any, words: list[str]) -> str:
    """Walk down the groups by name; then every option must be one of the command's."""
    subcommands = getattr(command, "commands", None)
    if subcommands is not None:
        if not words or words[0].startswith("-"):
            return ""
        found = subcommands.get(words[0])
        return _wrong_command(found, words[1:]) if found else f"no command {words[0]}"
    known = {option for parameter in command.params for option in parameter.opts} | {"--help"}
    given = {word.partition("=")[0] for word in words if word.startswith("-")}
    return f"no option {given - known}" if given - known else ""


def _make_targets() -> set[str]:
    return set(re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))


def _first_column(page: Path, heading: str) -> set[str]:
    """The code words that begin the rows of the table under a heading."""
    section = page.read_text(encoding="utf-8").partition(f"# {heading}\n")[2].partition("\n#")[0]
    rows = re.findall(r"^\| (`[^|]*) \|", section, re.MULTILINE)
    return {word for row in rows for word in re.findall(r"`([^`]+)`", row)}
