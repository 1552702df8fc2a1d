"""The faults: each is put in, taken out, and says how often it bit. A fault that bit nothing
proves nothing.

They act in the network namespace of one host, on packets it sends to one TCP port, or gets from it.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

_DELAYER = Path(__file__).parent / "worlds" / "delayer.py"
_QUEUE = 1


class Host(Protocol):
    """Where a fault acts."""

    def run(self, argv: Sequence[str]) -> str:
        """Run to the end, return stdout; raises CalledProcessError."""

    def spawn(self, argv: Sequence[str]) -> subprocess.Popen[str]: ...


class Fault(Protocol):
    name: str

    def inject(self) -> None: ...

    def heal(self) -> int:
        """Take it out; how many packets it touched. Idempotent: 0 when it is not in."""


class Cut:
    """Packets to `port` vanish: the host hears nothing, the other side learns nothing."""

    name = "cut"

    def __init__(self, host: Host, port: int) -> None:
        self._host = host
        self._rule = _Rule(host, "OUTPUT", "--dport", port, ("DROP",))

    def inject(self) -> None:
        self._rule.add()

    def heal(self) -> int:
        return self._rule.remove()


class CutOneWay(Cut):
    """Packets from `port` vanish: the other side hears and does what it is asked, but no answer,
    not even TCP's, arrives here."""

    name = "cut one way"

    def __init__(self, host: Host, port: int) -> None:
        self._host = host
        self._rule = _Rule(host, "INPUT", "--sport", port, ("DROP",))


class CutBothWays:
    """Packets to and from `port` vanish, those that are on their way included."""

    name = "cut both ways"

    def __init__(self, host: Host, port: int) -> None:
        self._ways = (Cut(host, port), CutOneWay(host, port))

    def inject(self) -> None:
        for way in self._ways:
            way.inject()

    def heal(self) -> int:
        return sum([way.heal() for way in self._ways])


class Delay:
    """Packets to `port` arrive `delay_ms` later, in order.

    They wait in an NFQUEUE whose verdicts a small program in the host gives late: it delays one
    port only and works where the kernel has no sch_netem.
    """

    name = "delay"

    def __init__(self, host: Host, port: int, delay_ms: int) -> None:
        self._host, self._delay_ms = host, delay_ms
        target = ("NFQUEUE", "--queue-num", str(_QUEUE), "--queue-bypass")
        self._rule = _Rule(host, "OUTPUT", "--dport", port, target)
        self._delayer: subprocess.Popen[str] | None = None

    def inject(self) -> None:
        """Raises OSError where the kernel has no nfnetlink_queue."""
        args = ("--queue", str(_QUEUE), "--delay-ms", str(self._delay_ms))
        argv = (sys.executable, "-S", "-E", str(_DELAYER), *args)
        self._delayer = delayer = self._host.spawn(argv)
        assert delayer.stdout is not None
        if delayer.stdout.readline() != "ready\n":
            self._stop()
            raise OSError("the delayer does not start: has this kernel nfnetlink_queue?")
        self._rule.add()

    def heal(self) -> int:
        packets = self._rule.remove()
        self._stop()
        return packets

    def _stop(self) -> None:
        delayer, self._delayer = self._delayer, None
        if delayer:
            delayer.terminate()
            delayer.communicate()


class _Rule:
    """One iptables rule on what the host sends to a TCP port, or gets from it."""

    def __init__(self, host: Host, chain: str, side: str, port: int, target: Sequence[str]) -> None:
        """chain, side: OUTPUT and --dport, or INPUT and --sport."""
        self._host, self._chain = host, chain
        self._match = (chain, "-p", "tcp", side, str(port), "-j", *target)
        self._in = False

    def add(self) -> None:
        self._host.run(("iptables", "-w", "-I", *self._match))
        self._in = True

    def remove(self) -> int:
        """How many packets met the rule."""
        if not self._in:
            return 0
        listing = self._host.run(("iptables", "-w", "-nvxL", self._chain, "1"))
        self._host.run(("iptables", "-w", "-D", *self._match))
        self._in = False
        return int(listing.split()[0])
