"""The `cron-leader` command. `--version` and `run` start without Typer: they are in a hurry.

Exit codes: 0 ok, 1 the operation failed, 2 bad usage or configuration, 3 a service is unreachable.
No traceback is ever shown unless `--log-level debug` asks for it.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code; argv is without the program's name."""
    args = list(sys.argv[1:] if argv is None else argv)
    _open_standard_streams()
    if args in (["--version"], ["-V"]):
        from cron_leader import __version__

        print(f"cron-leader {__version__}")
        return 0
    if args[:1] == ["run"]:
        from cron_leader.cli import run

        if (options := run.parse(args[1:])) is not None:
            return run.start(options)
    from cron_leader.cli import app

    return app.invoke(args)


def _open_standard_streams() -> None:
    """What was started with a standard stream closed (`>&-`) has /dev/null there: else the next
    socket would be taken for it, here and in every process we start."""
    while (fd := os.open(os.devnull, os.O_RDWR)) <= 2:
        os.set_inheritable(fd, True)
    os.close(fd)
    for name in ("stdin", "stdout", "stderr"):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, "r" if name == "stdin" else "w"))  # noqa: SIM115
