"""What the demo prints: a line an act, then slots, terms and the verdict."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console
from rich.table import Table
from rich.text import Text

from cron_leader.core.model import Job
from cron_leader.demo.acts import NODES, Act
from cron_leader.demo.verdict import Check, Evidence, expected

_COLOURS = dict(zip(NODES, ("cyan", "magenta", "yellow"), strict=True))
_SIGNS = {"abandoned": "x", "missed": "-", "skipped": "s", "failed": "f", "cancelled": "c"}
_SEEN_LAST = "lease_expired: ended without a word of its own; the time is its last heartbeat"
_LEGEND = "a letter: run by that node · x abandoned · - missed · s skipped · ? unexplained"


def tell(console: Console, number: int, act: Act) -> None:
    console.print(Text.assemble((f"{number} {act.title}: ", "bold"), act.story), soft_wrap=True)


def show_slots(console: Console, evidence: Evidence, jobs: Sequence[Job]) -> None:
    """A character a slot, in order of time."""
    table = _table("job", "slots")
    for job in jobs:
        table.add_row(job.name, _strip(evidence, job))
    console.print(table)
    console.print(_LEGEND, style="dim", soft_wrap=True)


def _strip(evidence: Evidence, job: Job) -> Text:
    rows = {slot.scheduled_for: slot for slot in evidence.slots if slot.job == job.name}
    strip = Text()
    for _, at in expected(evidence, [job]):
        row = rows.get(at)
        gap = any(g.job == job.name and g.first <= at <= g.last for g in evidence.gaps)
        if row is None:
            strip.append("-" if gap else "?", style="" if gap else "bold red")
        else:
            strip.append(_SIGNS.get(row.state, row.node[:1]), style=_COLOURS.get(row.node, ""))
    return strip


def show_terms(console: Console, evidence: Evidence) -> None:
    table = _table("fence", "node", "elected", "ended", "reason", "slots")
    for term in evidence.terms:
        table.add_row(
            str(term.fence),
            Text(term.node, style=_COLOURS.get(term.node, "")),
            f"{term.elected_at:%H:%M:%S.%f}"[:-3],
            f"{term.ended_at:%H:%M:%S.%f}"[:-3] if term.ended_at else "",
            term.reason or "",
            str(sum(slot.fence == term.fence for slot in evidence.slots)),
        )
    console.print(table)
    if any(term.reason == "lease_expired" for term in evidence.terms):
        console.print(_SEEN_LAST, style="dim", soft_wrap=True)


def show_verdict(console: Console, checks: Sequence[Check]) -> bool:
    """Whether all hold."""
    table = _table("", "found", "wanted", "")
    for check in checks:
        mark = Text("ok", style="green") if check.holds else Text("NO", style="bold red")
        table.add_row(check.what, check.found, check.wanted, mark)
    console.print(table)
    good = all(check.holds for check in checks)
    word = Text("all of it holds", style="bold green") if good else Text("BROKEN", style="bold red")
    console.print(Text.assemble(("verdict: ", "bold"), word))
    return good


def _table(*columns: str) -> Table:
    return Table(*columns, box=None, pad_edge=False, header_style="bold", padding=(0, 2, 0, 0))
