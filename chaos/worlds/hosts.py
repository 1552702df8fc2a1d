"""Hosts: network namespaces on one switch, which has a namespace of its own; or this machine.

The harness is a host too: its own namespace has an address on the switch.
"""

from __future__ import annotations

import subprocess
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

NETWORK = "10.77.0.0/24"
SWITCH = "switch"
HARNESS = "10.77.0.2"


class Machine(Protocol):
    """Where a program is started."""

    @property
    def name(self) -> str: ...

    @property
    def address(self) -> str: ...

    def argv(self, argv: Sequence[str]) -> list[str]:
        """The command that runs this one there."""

    def start(self, argv: Sequence[str], log: Path, *, cwd: Path) -> subprocess.Popen[bytes]:
        """In a session of its own, output to `log`."""


@dataclass(frozen=True, slots=True)
class Here:
    """This machine, on loopback."""

    name: str
    address: str = "127.0.0.1"

    def argv(self, argv: Sequence[str]) -> list[str]:
        return list(argv)

    def start(self, argv: Sequence[str], log: Path, *, cwd: Path) -> subprocess.Popen[bytes]:
        """In a session of its own, output to `log`."""
        return _start(self.argv(argv), log, cwd)


@dataclass(frozen=True, slots=True)
class Host:
    """A namespace with one interface, eth0. What it runs has its own network, nothing else."""

    name: str
    address: str

    def argv(self, argv: Sequence[str]) -> list[str]:
        return ["nsenter", f"--net=/run/netns/{self.name}", "--", *argv]

    def run(self, argv: Sequence[str]) -> str:
        done = subprocess.run(self.argv(argv), check=True, capture_output=True, text=True)
        return done.stdout

    def spawn(self, argv: Sequence[str]) -> subprocess.Popen[str]:
        """With its standard output as a pipe."""
        return subprocess.Popen(
            self.argv(argv), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True
        )

    def start(self, argv: Sequence[str], log: Path, *, cwd: Path) -> subprocess.Popen[bytes]:
        """In a session of its own, output to `log`."""
        return _start(self.argv(argv), log, cwd)


def _start(argv: Sequence[str], log: Path, cwd: Path) -> subprocess.Popen[bytes]:
    with log.open("ab") as out:
        return subprocess.Popen(
            argv,
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=subprocess.STDOUT,
            cwd=cwd,
            start_new_session=True,
        )


def build(addresses: Mapping[str, str]) -> dict[str, Host]:
    """Make the switch and the hosts (name -> address), and connect the harness as well."""
    _ip(f"netns add {SWITCH}")
    _batch(("link add br0 type bridge", "link set br0 up"), SWITCH)
    _connect("harness", HARNESS, namespace=None)
    for name, address in addresses.items():
        _ip(f"netns add {name}")
        _connect(name, address, namespace=name)
    return {name: Host(name, address) for name, address in addresses.items()}


def _connect(name: str, address: str, *, namespace: str | None) -> None:
    _batch((f"link add eth0 type veth peer name {name} netns {SWITCH}",), namespace)
    _batch(("link set lo up", f"addr add {address}/24 dev eth0", "link set eth0 up"), namespace)
    _batch((f"link set {name} master br0", f"link set {name} up"), SWITCH)


def _batch(lines: Iterable[str], namespace: str | None) -> None:
    where = ["-n", namespace] if namespace else []
    subprocess.run(["ip", *where, "-batch", "-"], input="\n".join(lines), text=True, check=True)


def _ip(command: str) -> None:
    subprocess.run(["ip", *command.split()], check=True)
