"""The worlds of real processes by name, and the plans of seeds for them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from chaos import gen
from chaos import play as played
from chaos.checks import Finding
from chaos.plan import Fault, Plan
from chaos.play import SiteOf
from chaos.worlds import netns, proc
from chaos.worlds.network import BY_PACKETS, BY_PROXIES
from chaos.worlds.rig import ANYWHERE, SOMETIMES, Wanted

SITES: Mapping[str, SiteOf] = {"proc": proc.site, "netns": netns.site}
DRAWN: Mapping[str, frozenset[Fault]] = {
    "proc": ANYWHERE | SOMETIMES | BY_PROXIES,
    "netns": ANYWHERE | SOMETIMES | BY_PACKETS,
}
"""What the plans of seeds are made of there; what a run turns out unable to do is noted in it."""


def boxed(world: str) -> bool:
    """Whether it is played inside namespaces."""
    return world == "netns"


def plan_of(world: str, seed: int, time_ms: int, ttl_s: int) -> Plan:
    return gen.real(seed, time_ms, ttl_s, DRAWN[world].__contains__)


def play(world: str, wanted: Wanted) -> tuple[Finding, ...]:
    """Raises NotHere, OSError."""
    return played.play(SITES[world], wanted)


def words(world: str, wanted: Wanted) -> Iterator[str]:
    """The command that plays the saved plan of wanted.out there."""
    yield from ("run", "--world", world, "--plan", str(wanted.out / "plan.json"))
    yield from ("--out", str(wanted.out), "--members", str(wanted.members))
    if wanted.etcd is not None:
        yield from ("--etcd", wanted.etcd)
    if wanted.config is not None:
        yield from ("--config", str(wanted.config.resolve()))
