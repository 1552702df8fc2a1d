"""Defects built in on purpose. A harness that stays green under them proves nothing.

Each is a patch from outside, applied in the daemon's process before it starts: the program has no
switch for it. `python -m chaos.canaries NAME ARG...` is the daemon with one defect; the supervisor
starts it in place of `python -m cron_leader`.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace


@dataclass(frozen=True, slots=True)
class Canary:
    """red: the check that must say NO in each of the scenarios."""

    name: str
    arm: Callable[[], None]
    scenarios: tuple[str, ...]
    red: str


def _no_fence() -> None:
    """The ledger commits whatever it is sent: no guard, and a raise that compares nothing."""
    from cron_leader import fencing
    from cron_leader.ledger import postgres
    from cron_leader.ledger.sql import Query

    fencing.POSTGRES_GUARD = "SELECT clock_timestamp() AS ledger_now"
    raising = postgres._QUERIES["raise_fence"]
    unconditional = raising.text.partition("\nWHERE f.fence <")[0]
    assert unconditional != raising.text, "the raise has changed: this canary needs a look"
    patched = {**postgres._QUERIES, "raise_fence": Query(unconditional, raising.columns)}
    postgres._QUERIES = patched


def _deadline_ignored() -> None:
    """The gate takes every lease to last for an hour."""
    from cron_leader.core.gate import Gate

    renewed = Gate.renewed
    hour_ns = 3_600 * 1_000_000_000

    def forever(gate: Gate, sent_ns: int, ttl_ns: int, margin_ns: int) -> Gate:
        after = renewed(gate, sent_ns, ttl_ns, margin_ns)
        return replace(after, deadline_ns=after.sent_ns + hour_ns)

    Gate.renewed = forever  # type: ignore[method-assign, assignment]


def _no_last_word() -> None:
    """A leader that hears nothing leaves over the connection in use alone."""
    from cron_leader.etcd.election import Candidacy

    async def silence(self: Candidacy, timeout_s: float) -> None:
        return

    Candidacy._last_word = silence  # type: ignore[method-assign]


CANARIES = {
    canary.name: canary
    for canary in (
        Canary(
            "no-fence", _no_fence, ("lease-stall", "split-brain"), red="no_stale_write_accepted"
        ),
        Canary(
            "deadline-ignored",
            _deadline_ignored,
            ("lease-stall",),
            red="stopped_by_its_own_deadline",
        ),
        Canary("no-last-word", _no_last_word, ("one-way",), red="successor_gate_in_time"),
    )
}


def launcher(name: str) -> Callable[[Mapping[str, str]], list[str]]:
    """Starts a node as `cron-leader run` does, with the defective daemon under its supervisor."""
    from cron_leader.cli.run import command

    def launch(options: Mapping[str, str]) -> list[str]:
        supervisor, daemon = _split(command(options))
        after_module = daemon[daemon.index("cron_leader") + 1 :]
        return [*supervisor, "--", sys.executable, "-m", "chaos.canaries", name, *after_module]

    return launch


def _split(argv: list[str]) -> tuple[list[str], list[str]]:
    at = argv.index("--")
    return argv[:at], argv[at + 1 :]


def main() -> int:
    name = sys.argv[1]
    CANARIES[name].arm()
    from cron_leader.__main__ import main as daemon

    return daemon(sys.argv[2:])


if __name__ == "__main__":
    sys.exit(main())
