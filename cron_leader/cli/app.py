"""The Typer application: one small module a group of commands, and one place for errors."""

from __future__ import annotations

import os
import sys
import traceback
from collections.abc import Sequence
from typing import Annotated, Any

import typer

from cron_leader.cli import (
    backfill,
    crontab,
    database,
    demo,
    fence,
    handover,
    output,
    pause,
    setup,
    state,
    terms,
    times,
    trigger,
    why,
)
from cron_leader.cli import run as runner
from cron_leader.errors import CronLeaderError

_CLICK_ERROR: Any = typer.BadParameter.__mro__[2]
"""click's ClickException, wherever this Typer keeps its click."""

app = typer.Typer(
    name="cron-leader",
    help="Cron for a fleet: N nodes, one ticks, one row per slot.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _version(asked: bool) -> None:
    if asked:
        from cron_leader import __version__

        print(f"cron-leader {__version__}")
        raise typer.Exit


@app.callback()
def options(
    version: Annotated[
        bool,
        typer.Option(
            "--version", "-V", callback=_version, is_eager=True, help="Print the version."
        ),
    ] = False,
    log_level: Annotated[
        str, typer.Option(metavar="LEVEL", help="debug also shows the traceback of an error.")
    ] = "info",
) -> None:
    """Typer reads these; `invoke` has taken --log-level out already, wherever it stood."""


@app.command()
def run(
    config: setup.ConfigPath = None,
    node_id: Annotated[str | None, typer.Option(help="This node's label; else $NODE_ID.")] = None,
    log_format: Annotated[
        str | None,
        typer.Option(metavar="|".join(runner.FORMATS), help="Else console on a terminal, or json."),
    ] = None,
    log_level: Annotated[str, typer.Option(metavar="|".join(runner.LEVELS))] = "info",
) -> int:
    """Run a node: wait in line, tick while leading, until SIGTERM or Ctrl-C."""
    for name, value, choices in (
        ("--log-format", log_format, runner.FORMATS),
        ("--log-level", log_level, runner.LEVELS),
    ):
        if value is not None and value not in choices:
            raise typer.BadParameter(
                f"{value!r} is not one of {', '.join(choices)}", param_hint=name
            )
    given = {
        "--config": config and str(config),
        "--node-id": node_id,
        "--log-format": log_format,
        "--log-level": log_level,
    }
    return runner.start({name: value for name, value in given.items() if value})


app.command()(setup.init)
app.command()(setup.check)
app.command(name="next")(times.next_times)
app.command()(state.status)
app.command()(state.history)
app.command()(why.why)
app.command()(terms.terms)
app.command()(trigger.trigger)
app.command()(pause.pause)
app.command()(pause.resume)
app.command()(backfill.backfill)
app.command(name="step-down")(handover.step_down)
app.add_typer(fence.app, name="fence")
app.add_typer(database.app, name="db")
app.command(name="import-crontab")(crontab.import_crontab)
app.command()(demo.demo)


def invoke(args: Sequence[str]) -> int:
    """Run one command; its exit code. Errors are a line each, with a traceback only at debug."""
    words, level = _take_level(args)
    if level not in runner.LEVELS:
        output.complain(f"--log-level {level!r} is not one of {', '.join(runner.LEVELS)}")
        return output.Exit.USAGE
    try:
        code = typer.main.get_command(app).main(
            args=words, prog_name="cron-leader", standalone_mode=False
        )
        sys.stdout.flush()
        return int(code or 0)
    except CronLeaderError as error:
        return _failed(error, str(error), output.exit_code(error), level)
    except _CLICK_ERROR as error:
        if not error.format_message():  # no command was given: click has shown the help
            return int(output.Exit.USAGE)
        return _failed(error, _usage(error), output.Exit.USAGE, level)
    except (typer.Abort, KeyboardInterrupt):
        return 130
    except BrokenPipeError:
        # `cron-leader history | head`: the reader has enough. Keep the exit from complaining too.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 141
    except UnicodeEncodeError as error:
        what = "an argument, or a variable of the environment"
        text = f"{what}, is no UTF-8 text: {error.object[error.start : error.end]!a}"
        return _failed(error, text, output.Exit.USAGE, level)
    except Exception as error:
        text = f"{type(error).__name__}: {error} (a defect; --log-level debug shows where)"
        return _failed(error, text, output.Exit.FAILED, level)


def _failed(error: BaseException, text: str, code: int, level: str) -> int:
    if level == "debug":
        traceback.print_exception(error)
    output.complain(text)
    return int(code)


def _usage(error: Any) -> str:
    """One line, with the command whose --help tells more."""
    context = getattr(error, "ctx", None)
    where = context.command_path if context else "cron-leader"
    said = error.format_message().rstrip(".").replace("Value error, ", "")
    return f"{said}; see `{where} --help`".replace("\n", " ")


def _take_level(args: Sequence[str]) -> tuple[list[str], str]:
    """--log-level taken out of any place but `run`, which hands it to the daemon."""
    words = list(args)
    if words[:1] == ["run"]:
        return words, "debug" if "debug" in words else "info"
    for index, word in enumerate(words):
        if word.startswith("--log-level="):
            return words[:index] + words[index + 1 :], word.partition("=")[2]
        if word == "--log-level" and index + 1 < len(words):
            return words[:index] + words[index + 2 :], words[index + 1]
    return words, "info"
