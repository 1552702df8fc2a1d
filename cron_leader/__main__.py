"""`python -m cron_leader`: the daemon process, as the supervisor starts it. Joins the parts."""

from __future__ import annotations

import argparse
import asyncio
import os
import sys
import traceback
from collections.abc import Sequence
from pathlib import Path

from cron_leader.clock import SystemClock
from cron_leader.config import Config, load
from cron_leader.errors import CronLeaderError
from cron_leader.events import Emitter, Sink
from cron_leader.log import console_sink, json_sink, set_title
from cron_leader.runners import with_code_jobs


def main(argv: Sequence[str] | None = None) -> int:
    """Run the daemon until it is told to stop; its exit code."""
    options = _parse(argv)
    try:
        config = load(options.config, environ=os.environ, node_id=options.node_id)
        return asyncio.run(_run(config, options))
    except CronLeaderError as error:
        _complain(str(error), error, options)
        return 2


async def _run(config: Config, options: argparse.Namespace) -> int:
    from cron_leader.daemon import Daemon

    clock = SystemClock()
    emit = Emitter(config.node_id, config.fleet, wall=clock.wall)
    emit.subscribe(_sink(config, options))
    config, handlers = await with_code_jobs(config)
    emit("config.loaded", jobs=len(config.jobs), digest=config.digest)
    daemon = Daemon(config, clock=clock, emit=emit, handlers=handlers)
    done = await daemon.run()
    if done.text:
        _complain(done.text, daemon.cause, options)
    return done.code


def _complain(text: str, cause: Exception | None, options: argparse.Namespace) -> None:
    """One line for each finding; the traceback for those who asked for it."""
    if cause is not None and options.log_level == "debug":
        traceback.print_exception(cause)
    for line in text.splitlines():
        print(f"error: {line}", file=sys.stderr)  # noqa: T201


def _sink(config: Config, options: argparse.Namespace) -> Sink:
    tty = sys.stdout.isatty()
    if (options.log_format or ("console" if tty else "json")) == "json":
        return json_sink(sys.stdout, level=options.log_level)
    set_title(sys.stdout, config.node_id)
    return console_sink(sys.stdout, level=options.log_level)


def _parse(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="cron-leader run")
    parser.add_argument("--config", type=Path)
    parser.add_argument("--node-id")
    parser.add_argument("--log-format", choices=("json", "console"))
    parser.add_argument("--log-level", choices=("debug", "info"), default="info")
    return parser.parse_args(argv)


if __name__ == "__main__":
    sys.exit(main())
