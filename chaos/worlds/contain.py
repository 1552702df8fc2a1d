"""One run lives in private network, mount and pid namespaces, so nothing of it can leak or stay.

`enter` runs this program again inside them: no uplink, /run an empty file system of its own, this
program pid 1. However it ends, Ctrl-C and kill -9 included, the kernel ends every process and
frees every namespace and file of the world with it.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Sequence
from types import FrameType

INSIDE = "CHAOS_CONTAINED"
TOOLS = ("unshare", "nsenter", "setpriv", "ip", "iptables", "mount")
_UNSHARE = ("unshare", "--net", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc")


def missing() -> str | None:
    """What this machine lacks to make such a world, in one line; None if nothing."""
    if sys.platform != "linux":
        return "network namespaces need Linux"
    if os.geteuid() != 0:
        return "network namespaces need root"
    if lacking := [tool for tool in TOOLS if not shutil.which(tool)]:
        return f"not on PATH: {', '.join(lacking)} (Debian: apt-get install iproute2 iptables)"
    tried = subprocess.run([*_UNSHARE, "true"], capture_output=True, text=True, check=False)
    return f"no namespaces here: {tried.stderr.strip()}" if tried.returncode else None


def contained() -> bool:
    """Whether we are inside already."""
    return os.environ.get(INSIDE) == "1"


def enter(argv: Sequence[str]) -> int:
    """Run argv inside new namespaces to its end; its exit status.

    On SIGINT or SIGTERM everything inside is killed and SystemExit(128 + signal) raised.
    """
    inside = subprocess.Popen(
        # If we die, unshare does; if unshare dies, pid 1 inside does, and with it everything.
        ["setpriv", "--pdeathsig", "KILL", *_UNSHARE, *argv],
        env={**os.environ, INSIDE: "1"},
        start_new_session=True,
    )

    def leave(number: int, _frame: FrameType | None) -> None:
        raise SystemExit(128 + number)

    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, leave)
    try:
        return inside.wait()
    finally:
        inside.kill()
        inside.wait()


def prepare() -> None:
    """Once, inside: the private /run that `ip netns` and iptables write to, and loopback."""
    subprocess.run(["mount", "-t", "tmpfs", "tmpfs", "/run"], check=True)
    for folder in ("/run/netns", "/run/lock"):
        os.mkdir(folder)
    subprocess.run(["ip", "link", "set", "lo", "up"], check=True)
