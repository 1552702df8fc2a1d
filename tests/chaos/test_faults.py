"""The faults of real worlds: what each does, and that it counts what it touched."""

from __future__ import annotations

import itertools
import os
import random
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path

import pytest

from chaos.faults import All, Fault, Once, Stretch, packets, processes, streams
from chaos.worlds.hosts import Host
from chaos.worlds.network import PacketNetwork
from chaos.worlds.proxies import Link, Proxies
from cron_leader.demo.processes import send

SOON_S = 10.0


def until(holds: Callable[[], bool]) -> None:
    end = time.monotonic() + SOON_S
    while not holds():
        assert time.monotonic() < end
        time.sleep(0.005)


# ------------------------------------------------------------------ in proxies


class Ends:
    """A server behind a link, and its clients."""

    def __init__(self, proxies: Proxies, stack: ExitStack) -> None:
        self._stack = stack
        self._server = stack.enter_context(socket.create_server(("127.0.0.1", 0)))
        self._server.settimeout(SOON_S)
        host, port = self._server.getsockname()
        self.proxies, self.link = proxies, proxies.link(f"{host}:{port}")

    def connect(self) -> tuple[socket.socket, socket.socket]:
        """The client's end, and the server's."""
        address = ("127.0.0.1", self.link.listens)
        client = self._stack.enter_context(socket.create_connection(address, SOON_S))
        served = self._stack.enter_context(self._server.accept()[0])
        served.settimeout(SOON_S)
        return client, served


@pytest.fixture(scope="module")
def proxies() -> Iterator[Proxies]:
    with Proxies() as made:
        yield made


@pytest.fixture
def ends(proxies: Proxies) -> Iterator[Ends]:
    with ExitStack() as stack:
        yield Ends(proxies, stack)


def held(link: Link) -> bool:
    """Whether something waits to be sent."""
    return link.out.bites > 0


def test_what_is_sent_during_a_cut_arrives_in_order_once_it_is_healed(ends: Ends) -> None:
    client, served = ends.connect()
    cut = streams.cut("cut", ends.proxies, (ends.link.out, ends.link.back))
    cut.inject()
    client.sendall(b"one")
    until(lambda: held(ends.link))
    client.sendall(b"two")
    served.settimeout(0.05)
    with pytest.raises(TimeoutError):
        served.recv(10)
    assert cut.heal() >= 1
    served.settimeout(SOON_S)
    heard = served.recv(10)
    assert heard + (served.recv(10) if len(heard) < 6 else b"") == b"onetwo"
    assert cut.heal() == 0, "healing twice is not idempotent"


def test_a_cut_of_answers_lets_the_requests_through(ends: Ends) -> None:
    client, served = ends.connect()
    cut = streams.cut("cut", ends.proxies, (ends.link.back,))
    cut.inject()
    client.sendall(b"asked")
    assert served.recv(10) == b"asked"
    served.sendall(b"told")
    until(lambda: ends.link.back.bites > 0)
    cut.heal()
    assert client.recv(10) == b"told"


def test_two_cuts_at_once_last_until_the_second_is_healed(ends: Ends) -> None:
    client, served = ends.connect()
    one, two = (streams.cut("cut", ends.proxies, (ends.link.out,)) for _ in range(2))
    one.inject()
    two.inject()
    client.sendall(b"late")
    until(lambda: held(ends.link))
    one.heal()
    served.settimeout(0.05)
    with pytest.raises(TimeoutError):
        served.recv(10)
    two.heal()
    served.settimeout(SOON_S)
    assert served.recv(10) == b"late"


def test_lost_answers_are_never_told_and_the_connection_is_reset(ends: Ends) -> None:
    client, served = ends.connect()
    lost = streams.AnswersLost(ends.proxies, ends.link)
    lost.inject()
    client.sendall(b"commit")
    assert served.recv(10) == b"commit"
    served.sendall(b"done")
    until(lambda: ends.link.back.bites > 0)
    assert lost.heal() == 1
    with pytest.raises(ConnectionResetError):
        client.recv(10)


def test_a_late_copy_arrives_after_what_was_said_again_over_another_connection(
    ends: Ends,
) -> None:
    client, served = ends.connect()
    late = streams.LateCopies(ends.proxies, ends.link)
    late.inject()
    client.sendall(b"first")
    until(lambda: held(ends.link))
    client.close()
    again, served_again = ends.connect()
    again.sendall(b"second")
    assert served_again.recv(10) == b"second"
    assert late.heal() >= 1
    assert served.recv(10) == b"first"
    assert served.recv(10) == b""


def test_a_reset_breaks_the_connections_there_are_and_no_others(ends: Ends) -> None:
    client, served = ends.connect()
    assert streams.reset(ends.proxies, [ends.link]) == 1
    for end in (client, served):
        with pytest.raises(ConnectionResetError):
            end.recv(10)
    client, served = ends.connect()
    client.sendall(b"new")
    assert served.recv(10) == b"new"


@pytest.mark.parametrize("worse", [{"delay_ms": 5}, {"kbit": 64}, {"loss": 60}])
def test_a_bad_way_is_slower_and_loses_nothing(
    ends: Ends, worse: dict[str, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(random, "random", itertools.cycle((0.1, 0.1, 0.9)).__next__)
    client, served = ends.connect()
    fault = streams.worse("worse", ends.proxies, (ends.link.out,), **worse)
    fault.inject()
    for _ in range(4):
        client.sendall(b"x")
        assert served.recv(10) == b"x"
    assert fault.heal() > 0
    assert (ends.link.out.delay_ms, ends.link.out.kbit, ends.link.out.loss) == (0, 0, 0)


# ------------------------------------------------------------------ of packets, as commands


class Recorder:
    """A host on which nothing happens; `answers` to commands by their last word but one."""

    def __init__(self, name: str = "", said: str = "7 420 DROP") -> None:
        self.commands: list[str] = []
        self._said = said

    def run(self, argv: Sequence[str]) -> str:
        self.commands.append(" ".join(argv))
        return self._said

    def spawn(self, argv: Sequence[str]) -> subprocess.Popen[str]:
        raise AssertionError(argv)


def rules(fault: Fault, host: Recorder) -> list[str]:
    """What it puts in, without the number of its chain."""
    fault.inject()
    chain = host.commands[0].split()[-1]
    return [line.removeprefix("iptables -w ").replace(chain, "C") for line in host.commands]


@pytest.mark.parametrize(
    ("make", "wanted"),
    [
        (
            lambda host: packets.Cut(host, 2379),
            ["-N C", "-A C -j DROP", "-I OUTPUT -p tcp --dport 2379 -j C"],
        ),
        (
            lambda host: packets.CutOneWay(host, 2379),
            ["-N C", "-A C -j DROP", "-I INPUT -p tcp --sport 2379 -j C"],
        ),
        (
            lambda host: packets.Dropped("loss", host, (packets.OUT,), (5432,), percent=20),
            [
                "-N C",
                "-A C -j DROP",
                "-I OUTPUT -p tcp --dport 5432 -m statistic --mode random --probability 0.20 -j C",
            ],
        ),
        (
            lambda host: packets.Isolated(host, 2380),
            [
                "-N C",
                "-A C -j DROP",
                "-I OUTPUT -p tcp --dport 2380 -j C",
                "-I INPUT -p tcp --sport 2380 -j C",
                "-I INPUT -p tcp --dport 2380 -j C",
                "-I OUTPUT -p tcp --sport 2380 -j C",
            ],
        ),
    ],
)
def test_a_fault_of_packets_is_these_rules(
    make: Callable[[Recorder], Fault], wanted: list[str]
) -> None:
    host = Recorder()
    assert rules(make(host), host) == wanted


def test_rules_are_taken_out_once_and_have_counted_packets() -> None:
    host = Recorder()
    fault = packets.Cut(host, 2379)
    chain = rules(fault, host) and host.commands[0].split()[-1]
    host.commands.clear()
    assert fault.heal() == 7
    assert [line.removeprefix("iptables -w ") for line in host.commands] == [
        f"-nvxL {chain} 1",
        f"-D OUTPUT -p tcp --dport 2379 -j {chain}",
        f"-F {chain}",
        f"-X {chain}",
    ]
    assert fault.heal() == 0


def test_lost_answers_are_reset_before_they_could_come() -> None:
    host = Recorder()
    fault = packets.AnswersLost(host, 5432)
    fault.inject()
    host.commands.clear()
    fault.heal()
    assert host.commands[0] == "ss -HKnt state established dport = :5432"


def test_a_rate_and_a_link_are_set_and_set_back() -> None:
    host = Recorder(said="qdisc tbf 1: root overlimits 3 requeues 0")
    rate, link = packets.Rate(host, 64), packets.LinkDown(host)
    rate.inject()
    assert rate.heal() == 3
    link.inject()
    assert link.heal() == 1
    assert (rate.heal(), link.heal()) == (0, 0)
    assert host.commands == [
        "tc qdisc replace dev eth0 root tbf rate 64kbit burst 4kb latency 2s",
        "tc -s qdisc show dev eth0 root",
        "tc qdisc del dev eth0 root",
        "ip link set eth0 down",
        "ip link set eth0 up",
    ]


def test_the_kernel_delays_at_the_switch_and_is_told_to_stop() -> None:
    host = Recorder(said="qdisc netem 8001: root limit 1000 delay 400ms Sent 90 bytes 5 pkt")
    fault = packets.Netem(host, "node-a", 800)
    fault.inject()
    assert (fault.heal(), fault.heal()) == (5, 0)
    assert host.commands == [
        "tc qdisc replace dev node-a root netem delay 400ms 400ms",
        "tc -s qdisc show dev node-a root",
        "tc qdisc del dev node-a root",
    ]


def test_of_two_delays_of_one_host_the_later_is_taken_out_once() -> None:
    host = Recorder(said="qdisc noqueue 0: root refcnt 2")
    fault = packets.Netem(host, "node-a", 800)
    fault.inject()
    assert fault.heal() == 0
    assert host.commands[-1] == "tc -s qdisc show dev node-a root"


@pytest.mark.parametrize(("netem", "made"), [(True, packets.Netem), (False, packets.Delay)])
def test_a_delay_is_the_kernels_where_it_has_an_emulator(netem: bool, made: type) -> None:
    network = PacketNetwork({"a": Host("node-a", "10.77.0.31")}, {}, netem=netem)
    assert type(network.delay("a", 800)) is made


# ------------------------------------------------------------------ of processes

COUNT = "import time\nwhile True:\n    print(flush=True)\n    time.sleep(0.002)"
PARENT = "import subprocess, sys; subprocess.run([sys.executable, '-S', '-E', '-c', sys.argv[1]])"


@pytest.fixture
def parent() -> Iterator[subprocess.Popen[bytes]]:
    """One whose child writes a line every 2 ms."""
    argv = [sys.executable, "-S", "-E", "-c", PARENT, COUNT]
    with subprocess.Popen(argv, stdout=subprocess.PIPE) as made:
        assert made.stdout is not None
        made.stdout.readline()
        yield made
        send(made.pid, signal.SIGCONT)
        processes.killed_tree("kill", lambda: [made.pid]).inject()


def moves(process: subprocess.Popen[bytes]) -> bool:
    """Whether its child writes: what it wrote before is read first."""
    assert process.stdout is not None
    out = process.stdout.fileno()
    os.set_blocking(out, False)
    try:
        while os.read(out, 1 << 16):
            pass
    except BlockingIOError:
        pass
    time.sleep(0.05)
    try:
        return bool(os.read(out, 10))
    except BlockingIOError:
        return False


def test_a_frozen_tree_stands_still_until_it_is_thawed(parent: subprocess.Popen[bytes]) -> None:
    freeze = processes.frozen_tree("freeze", lambda: [parent.pid])
    freeze.inject()
    assert not moves(parent)
    assert freeze.heal() == 2
    until(lambda: moves(parent))
    assert freeze.heal() == 0


def test_a_frozen_process_leaves_its_children_alone(parent: subprocess.Popen[bytes]) -> None:
    freeze = processes.frozen("freeze", lambda: [parent.pid])
    freeze.inject()
    until(lambda: moves(parent))
    assert freeze.heal() == 1


def test_a_slow_process_stands_still_again_and_again(parent: subprocess.Popen[bytes]) -> None:
    slow = processes.Slow(lambda: [parent.pid], percent=50)
    slow.inject()
    until(lambda: slow._rounds >= 2)
    assert slow.heal() >= 2
    assert slow.heal() == 0


def test_of_two_faults_that_hold_a_process_neither_lets_it_go_before_the_other_is_over(
    parent: subprocess.Popen[bytes],
) -> None:
    slow = processes.Slow(lambda: [parent.pid], percent=90)
    first, second = (processes.frozen_tree("freeze", lambda: [parent.pid]) for _ in range(2))
    for fault in (slow, first, second):
        fault.inject()
    until(lambda: slow._rounds >= 2)
    assert not moves(parent)
    slow.heal()
    first.heal()
    assert not moves(parent)
    second.heal()
    until(lambda: moves(parent))


def test_of_a_killed_tree_nobody_is_left(parent: subprocess.Popen[bytes]) -> None:
    assert processes.left((COUNT,))
    kill = processes.killed_tree("kill", lambda: [parent.pid])
    kill.inject()
    assert kill.heal() == 1
    assert parent.wait(SOON_S) == -signal.SIGKILL
    until(lambda: not processes.left((COUNT,)))


def test_a_wall_clock_is_set_and_set_right_again(tmp_path: Path) -> None:
    file, aheads = tmp_path / "clock", [0]
    clock = processes.WallClock(file, aheads)
    assert file.read_text() == "+0.000000"
    step = clock.step(-2_500)
    step.inject()
    assert file.read_text() == "-2.500000"
    assert step.heal() == 1
    assert file.read_text() == "+0.000000"
    assert aheads == [0, -2_500_000_000, 0]


@pytest.mark.skipif(sys.platform != "linux", reason="prlimit is Linux's")
def test_a_process_without_room_cannot_make_its_file_longer(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"x" * 100)
    write = (
        "import signal, sys\nsignal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
        "file = open(sys.argv[1], 'ab', buffering=0)\nprint(flush=True)\n"
        "for _ in sys.stdin:\n    try:\n        file.write(b'y')\n        print('ok', flush=True)\n"
        "    except OSError:\n        print('full', flush=True)\n"
    )
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen([sys.executable, "-c", write, str(path)], text=True, **pipes) as writer:
        assert writer.stdin is not None
        assert writer.stdout is not None
        writer.stdout.readline()
        full = processes.no_room(lambda: [writer.pid], path)

        def tries() -> str:
            writer.stdin.write("\n")
            writer.stdin.flush()
            return writer.stdout.readline().strip()

        full.inject()
        assert tries() == "full"
        assert full.heal() == 1
        assert tries() == "ok"


# ------------------------------------------------------------------ put together


def test_faults_as_one_are_healed_in_the_other_order_and_count_together() -> None:
    said: list[str] = []

    def stretch(name: str, bites: int) -> Stretch:
        def begin() -> int:
            said.append(f"{name} in")
            return bites

        return Stretch(name, begin, lambda: said.append(f"{name} out"))

    both = All("both", [stretch("a", 1), stretch("b", 2), Once("c", lambda: 4)])
    both.inject()
    assert both.heal() == 7
    assert said == ["a in", "b in", "b out", "a out"]
    assert both.heal() == 0
