"""`python -m cron_leader`: the daemon process, as the supervisor starts it. Joins the parts."""

# ruff: noqa: E402
from __future__ import annotations

import gc

gc.disable()  # a fifth of the start-up is the collector walking what imports have just made

import signal

if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # until the daemon listens: end, no traceback

import asyncio
import os
import sys
import traceback
from collections.abc import Mapping, Sequence
from pathlib import Path

from cron_leader.cli.run import parse
from cron_leader.clock import SystemClock
from cron_leader.config import Config, load
from cron_leader.errors import CronLeaderError
from cron_leader.events import Emitter, Sink
from cron_leader.log import console_sink, json_sink, set_title
from cron_leader.runners import with_code_jobs

Options = Mapping[str, str]


def main(argv: Sequence[str] | None = None) -> int:
    """Run the daemon until it is told to stop; its exit code."""
    options = parse(sys.argv[1:] if argv is None else argv)
    if options is None:
        _complain("the daemon is started by `cron-leader run`; see its --help", None, {})
        return 2
    try:
        file = options.get("--config")
        config = load(
            Path(file) if file else None, environ=os.environ, node_id=options.get("--node-id")
        )
        return asyncio.run(_run(config, options))
    except CronLeaderError as error:
        _complain(str(error), error, options)
        return 2


async def _run(config: Config, options: Options) -> int:
    from cron_leader.daemon import Daemon
    from cron_leader.web import serving

    clock = SystemClock()
    emit = Emitter(config.node_id, config.fleet, wall=clock.wall)
    emit.subscribe(_sink(config, options))
    config, handlers = await with_code_jobs(config)
    emit("config.loaded", jobs=len(config.jobs), digest=config.digest)
    daemon = Daemon(config, clock=clock, emit=emit, handlers=handlers)
    emit.subscribe(daemon.saw)
    async with serving(config, daemon, clock=clock, emit=emit):
        gc.freeze()
        gc.enable()
        done = await daemon.run()
    if done.text:
        _complain(done.text, daemon.cause, options)
    return done.code


def _complain(text: str, cause: Exception | None, options: Options) -> None:
    """One line for each finding; the traceback for those who asked for it."""
    if cause is not None and _level(options) == "debug":
        traceback.print_exception(cause)
    for line in text.splitlines():
        print(f"error: {line}", file=sys.stderr)  # noqa: T201


def _sink(config: Config, options: Options) -> Sink:
    tty = sys.stdout.isatty()
    if (options.get("--log-format") or ("console" if tty else "json")) == "json":
        return json_sink(sys.stdout, level=_level(options))
    set_title(sys.stdout, config.node_id)
    return console_sink(sys.stdout, level=_level(options))


def _level(options: Options) -> str:
    return options.get("--log-level", "info")


if __name__ == "__main__":
    sys.exit(main())
