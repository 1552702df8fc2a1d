"""Faults of packets: in the network namespace of one host, on those it sends to one TCP port, or
gets from it; and on all that its one interface sends.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterable, Sequence
from itertools import count
from pathlib import Path
from typing import Protocol

_DELAYER = Path(__file__).parents[1] / "worlds" / "delayer.py"
_numbers = count(1)
"""Of chains and queues: two faults at once on one host keep apart."""


class Host(Protocol):
    """Where a fault acts."""

    def run(self, argv: Sequence[str]) -> str:
        """Run to the end, return stdout; raises CalledProcessError."""

    def spawn(self, argv: Sequence[str]) -> subprocess.Popen[str]: ...


OUT, BACK = ("OUTPUT", "--dport"), ("INPUT", "--sport")
"""Packets to a port, and those that come from it."""
Way = tuple[str, str]
DROP = ("DROP",)


class Rules:
    """iptables rules of one fault: packets of these ways and ports meet a target."""

    def __init__(
        self,
        host: Host,
        ways: Iterable[Way],
        ports: Iterable[int],
        target: Sequence[str] = DROP,
        *,
        only: Sequence[str] = (),
    ) -> None:
        """only: a further match, of the addresses or of chance."""
        self._host, self._target = host, tuple(target)
        self._chain = f"chaos{next(_numbers)}"
        self._matches = [
            (chain, "-p", "tcp", side, str(port), *only) for chain, side in ways for port in ports
        ]
        self._in = False

    def add(self) -> None:
        self._iptables("-N", self._chain)
        self._iptables("-A", self._chain, "-j", *self._target)
        self._in = True
        for match in self._matches:
            self._iptables("-I", *match, "-j", self._chain)

    def remove(self) -> int:
        """How many packets met them; 0 if they are not in."""
        if not self._in:
            return 0
        self._in = False
        listing = self._iptables("-nvxL", self._chain, "1")
        for match in self._matches:
            self._iptables("-D", *match, "-j", self._chain)
        self._iptables("-F", self._chain)
        self._iptables("-X", self._chain)
        return int(listing.split()[0])

    def _iptables(self, *args: str) -> str:
        return self._host.run(("iptables", "-w", *args))


class Dropped:
    """Packets of these ways and ports vanish. percent: so many of them, drawn by chance."""

    def __init__(
        self,
        name: str,
        host: Host,
        ways: Iterable[Way],
        ports: Iterable[int],
        *,
        percent: int = 100,
        only: Sequence[str] = (),
    ) -> None:
        self.name = name
        chance = ("-m", "statistic", "--mode", "random", "--probability", f"{percent / 100:.2f}")
        self._rules = Rules(host, ways, ports, only=(*only, *(chance if percent < 100 else ())))

    def inject(self) -> None:
        self._rules.add()

    def heal(self) -> int:
        return self._rules.remove()


class Cut(Dropped):
    """Packets to `port` vanish: the host hears nothing, the other side learns nothing."""

    def __init__(self, host: Host, port: int) -> None:
        super().__init__("cut", host, (OUT,), (port,))


class CutOneWay(Dropped):
    """Packets from `port` vanish: the other side hears and does what it is asked, but no answer,
    not even TCP's, arrives here."""

    def __init__(self, host: Host, port: int) -> None:
        super().__init__("cut one way", host, (BACK,), (port,))


class CutBothWays(Dropped):
    """Packets to and from `port` vanish, those that are on their way included."""

    def __init__(self, host: Host, port: int) -> None:
        super().__init__("cut both ways", host, (OUT, BACK), (port,))


class Isolated(Dropped):
    """Nothing passes between the host and the others, at a port on either side."""

    def __init__(self, host: Host, port: int) -> None:
        ways = (OUT, BACK, ("INPUT", "--dport"), ("OUTPUT", "--sport"))
        super().__init__("isolate", host, ways, (port,))


class AnswersLost(Dropped):
    """What is sent to `port` arrives, and no answer ever: the connections end with the fault."""

    def __init__(self, host: Host, port: int) -> None:
        super().__init__("answers lost", host, (BACK,), (port,))
        self._host, self._port = host, port

    def heal(self) -> int:
        """Reset first: or TCP would deliver them after all."""
        reset(self._host, (self._port,))
        return super().heal()


class Delay:
    """Packets to `port` arrive `delay_ms` later, in order; jitter: later by anything up to that.

    They wait in an NFQUEUE whose verdicts a small program in the host gives late: it delays these
    ports only and works where the kernel has no sch_netem.
    """

    name = "delay"

    def __init__(
        self, host: Host, ports: int | Sequence[int], delay_ms: int, *, jitter: bool = False
    ):
        self._host, self._delay_ms, self._jitter = host, delay_ms, jitter
        self._queue = next(_numbers)
        target = ("NFQUEUE", "--queue-num", str(self._queue), "--queue-bypass")
        self._rules = Rules(host, (OUT,), (ports,) if isinstance(ports, int) else ports, target)
        self._delayer: subprocess.Popen[str] | None = None

    def inject(self) -> None:
        """Raises OSError where the kernel has no nfnetlink_queue."""
        args = ["--queue", str(self._queue), "--delay-ms", str(self._delay_ms)]
        argv = (sys.executable, "-S", "-E", str(_DELAYER), *args, *self._jitter * ["--jitter"])
        self._delayer = delayer = self._host.spawn(argv)
        assert delayer.stdout is not None
        if delayer.stdout.readline() != "ready\n":
            self._stop()
            raise OSError("the delayer does not start: has this kernel nfnetlink_queue?")
        self._rules.add()

    def heal(self) -> int:
        packets = self._rules.remove()
        self._stop()
        return packets

    def _stop(self) -> None:
        delayer, self._delayer = self._delayer, None
        if delayer:
            delayer.terminate()
            delayer.communicate()


class Netem:
    """What a host is sent arrives later by anything up to `most_ms`, out of order too: the kernel's
    own emulator, where it has sch_netem. It sits at the switch's end of the host's cable, so that
    it leaves the host's own queue to `Rate`."""

    name = "delay"

    def __init__(self, switch: Host, cable: str, most_ms: int) -> None:
        self._switch, self._cable, self._most_ms = switch, cable, most_ms
        self._in = False

    def inject(self) -> None:
        half = f"{self._most_ms / 2:g}ms"
        place = ("dev", self._cable, "root")
        self._switch.run(("tc", "qdisc", "replace", *place, "netem", "delay", half, half))
        self._in = True

    def heal(self) -> int:
        """How many packets it had. Those it still holds are lost, as on a line that is re-laid."""
        if not self._in:
            return 0
        self._in = False
        place = ("dev", self._cable, "root")
        words = self._switch.run(("tc", "-s", "qdisc", "show", *place)).split()
        if "netem" not in words:  # another one has been taken out already
            return 0
        self._switch.run(("tc", "qdisc", "del", *place))
        return int(words[words.index("Sent") + 3])


def has_netem() -> bool:
    """Whether this kernel has sch_netem: tried on a namespace's own loopback, as root."""
    tried = ("unshare", "--net", "tc", "qdisc", "add", "dev", "lo", "root", "netem", "delay", "1ms")
    return subprocess.run(tried, capture_output=True, check=False).returncode == 0


class Rate:
    """What the host sends leaves at so many kilobits per second, at most: a token bucket."""

    name = "rate"

    def __init__(self, host: Host, kbit: int) -> None:
        self._host, self._kbit, self._in = host, kbit, False

    def inject(self) -> None:
        bucket = ("rate", f"{self._kbit}kbit", "burst", "4kb", "latency", "2s")
        self._host.run(("tc", "qdisc", "replace", "dev", "eth0", "root", "tbf", *bucket))
        self._in = True

    def heal(self) -> int:
        """How many packets had to wait, or found no room."""
        if not self._in:
            return 0
        self._in = False
        words = self._host.run(("tc", "-s", "qdisc", "show", "dev", "eth0", "root")).split()
        if "tbf" not in words:  # another one has been taken out already
            return 0
        self._host.run(("tc", "qdisc", "del", "dev", "eth0", "root"))
        over = words[words.index("overlimits") + 1]
        return int(over)


class LinkDown:
    """The host's interface is down: it cannot even try."""

    name = "link down"

    def __init__(self, host: Host) -> None:
        self._host, self._in = host, False

    def inject(self) -> None:
        self._host.run(("ip", "link", "set", "eth0", "down"))
        self._in = True

    def heal(self) -> int:
        if not self._in:
            return 0
        self._in = False
        self._host.run(("ip", "link", "set", "eth0", "up"))
        return 1


def reset(host: Host, ports: Iterable[int]) -> int:
    """The host's connections to these ports are broken, and it is told; how many there were."""
    listings = [
        host.run(("ss", "-HKnt", "state", "established", "dport", "=", f":{port}"))
        for port in ports
    ]
    return sum(len(listing.splitlines()) for listing in listings)
