"""What the fleet is asked to do: jobs that are there to make broken promises visible.

tick   every second, short: one row per slot, the successor's first run.
held   runs until it is killed: a lost term must end it before the lease can have expired.
late   may outlive its term and ends when told: its finish is the stale write that must be refused.

In the worlds that play plans `held` and `late` end by themselves, after a TTL and a second, for
slots may wait for them; and there is one more:

again  at least once: a slot whose run was lost is run again.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from chaos.op import Op, Source, Type

FLEET = "chaos"
PREFIX = "/cron-leader"
ELECTION = f"{FLEET}/0"
TICK, HELD, LATE = "tick", "held", "late"
AGAIN, MORE = "again", "more"
EVERY_MS = 1000

_PROGRAM = Path(__file__).with_name("effects.py")


@dataclass(frozen=True, slots=True)
class Workload:
    """The jobs, and the two files they share with the harness."""

    effects: Path
    release: Path

    def config(
        self, *, endpoints: Sequence[str], ledger: str, ttl_s: int, every_ms: int = EVERY_MS
    ) -> str:
        """A whole cron-leader.toml."""
        return "\n".join(
            (
                _head(endpoints, ledger, ttl_s),
                self._job(TICK, every_ms, "mark"),
                self._job(HELD, every_ms, "hold"),
                self._job(LATE, every_ms, "wait", str(self.release), on_lost_leadership="finish"),
                "",
            )
        )

    def mixed(
        self, *, endpoints: Sequence[str], ledger: str, ttl_s: int, more: bool = False
    ) -> str:
        """The cron-leader.toml of a fleet that plays a plan. more: with a job that was not there
        before."""
        long = str(ttl_s + 1)
        jobs = [
            self._job(TICK, EVERY_MS, "mark"),
            self._job(HELD, EVERY_MS, "last", long),
            self._job(LATE, EVERY_MS, "last", long, on_lost_leadership="finish"),
            self._job(AGAIN, 2 * EVERY_MS, "last", "0.5", delivery="at-least-once"),
        ]
        if more:
            jobs.append(self._job(MORE, 3 * EVERY_MS, "mark"))
        return "\n".join((_head(endpoints, ledger, ttl_s), *jobs, ""))

    def noted(self) -> list[Op]:
        """What the runs wrote; a line cut off by a kill is left out."""
        path, ops = self.effects, []
        for line in path.read_text(encoding="utf-8").splitlines() if path.exists() else ():
            try:
                note = json.loads(line)
            except ValueError:
                continue
            ops.append(Op(note["at_ns"], Source.RUN, note["node"], note["what"], Type.OK, note))
        return ops

    def _job(self, name: str, every_ms: int, *args: str, **policies: str) -> str:
        argv = [sys.executable, "-S", "-E", str(_PROGRAM), str(self.effects), *args]
        return "\n".join(
            (
                f'[[job]]\nname = "{name}"\nevery = "{every_ms}ms"',
                f"command = {json.dumps(argv)}",
                *(f'{policy} = "{value}"' for policy, value in policies.items()),
            )
        )


def _head(endpoints: Sequence[str], ledger: str, ttl_s: int) -> str:
    """JSON strings and arrays are TOML ones."""
    return "\n".join(
        (
            f'[fleet]\nname = "{FLEET}"\nprefix = "{PREFIX}"',
            f'[lease]\nttl = "{ttl_s}s"',
            '[run]\ndrain = "1s"',
            f"[etcd]\nendpoints = {json.dumps(list(endpoints))}",
            f"[ledger]\nurl = {json.dumps(ledger)}",
        )
    )
