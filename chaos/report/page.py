"""The report of a run: one HTML page that asks nobody for anything, and the same drawing as SVG."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import astuple
from html import escape
from pathlib import Path
from typing import Any

from chaos import checks
from chaos.checks import Finding, Verdict
from chaos.op import Op, load
from chaos.report.scene import Failover, Scene, scene
from chaos.report.svg import HERE, Drawing, draw

FOLD = 3
"""More failovers than these are told one click further."""
SIGN = {Verdict.YES: "✔", Verdict.NO: "✘", Verdict.UNKNOWN: "?"}
LEGEND = (
    ("gate", "gate open: this node may start runs"),
    ("gap", "no gate open, in milliseconds"),
    ("fault", "a fault, and the node it struck"),
    ("dot", "a run began; the line: as long as it ran"),
    ("late", "it began more than 250 ms after its slot"),
    ("cross", "a write refused by the ledger's fence"),
    ("stale", "a write accepted under a fence that is over: never"),
    ("raise", "a new leader raised the fence"),
    ("exit", "the node exited"),
    ("key", "the node's key stands in etcd: it is in line"),
)
WORST_FIRST = (Verdict.NO, Verdict.UNKNOWN, Verdict.YES)


def write(folder: Path, findings: Sequence[Finding]) -> Path:
    """Of folder/history.jsonl: report.html and report.svg beside it; the path of the page."""
    seen = scene(load(folder / "history.jsonl"))
    drawing = draw(seen)
    (folder / "report.svg").write_text(drawing.svg, encoding="utf-8")
    path = folder / "report.html"
    path.write_text(page(seen, drawing, findings), encoding="utf-8")
    return path


def kept(folder: Path) -> tuple[Finding, ...] | None:
    """What was found when the run was judged; None where nobody wrote it down."""
    path, tally = folder / "verdict.json", folder / "tally.json"
    if tally.exists():
        return tuple(_counted(json.loads(tally.read_text(encoding="utf-8"))))
    if not path.exists():
        return None
    found = json.loads(path.read_text(encoding="utf-8"))["findings"]
    return tuple(Finding(f["check"], Verdict(f["verdict"]), f["text"]) for f in found)


def _counted(tally: Mapping[str, Any]) -> Iterator[Finding]:
    """Of a series of cuts."""
    cuts = tally["cuts"]
    for what in ("two_gates", "stale_runs"):
        told = f"{tally[what]} in {cuts} cuts that bit"
        sound = Verdict.NO if tally[what] else Verdict.YES if cuts else Verdict.UNKNOWN
        yield Finding(what, sound, told)
    for broken in tally["broken"]:
        yield Finding("the_whole_series", Verdict.NO, broken)


def of(ops: Sequence[Op], findings: Sequence[Finding]) -> str:
    """The page of a history in memory."""
    seen = scene(ops)
    return page(seen, draw(seen), findings)


def page(seen: Scene, drawing: Drawing, findings: Sequence[Finding]) -> str:
    verdict = checks.verdict(findings)
    spots = json.dumps([astuple(spot) for spot in drawing.spots], ensure_ascii=False)
    parts = {
        "title": escape(f"{verdict}: {seen.title}"),
        "css": _asset("page.css"),
        "verdict": str(verdict),
        "badge": f"{SIGN[verdict]} {verdict}",
        "scenario": escape(seen.title),
        "facts": escape(" · ".join(_facts(seen, findings))),
        "failovers": _failovers(seen.failovers),
        "svg": drawing.svg,
        "legend": "".join(f'<li><i class="{k}"></i>{escape(text)}</li>' for k, text in LEGEND),
        "checks": "".join(_rows(findings)),
        "began": str(seen.began_ns),
        "spots": spots.replace("</", "<\\/"),
        "js": _asset("page.js"),
    }
    text = _asset("page.html")
    head, *rest = text.split("{{")
    filled = (part.partition("}}") for part in rest)
    return head + "".join(parts[name] + after for name, _, after in filled)


def _asset(name: str) -> str:
    return (HERE / name).read_text(encoding="utf-8")


def _facts(seen: Scene, findings: Sequence[Finding]) -> Iterator[str]:
    held = sum(finding.verdict is Verdict.YES for finding in findings)
    yield f"{held} of {len(findings)} checks held"
    yield f"{(seen.ended_ns - seen.began_ns) / 1e9:.1f} s"
    if seen.began_at is not None:
        yield f"from {seen.began_at:%Y-%m-%d %H:%M:%S} UTC"
    if seen.ttl_ns is not None:
        yield f"lease TTL {seen.ttl_ns / 1e9:g} s"
    yield f"{len(seen.nodes)} nodes"
    yield f"{len(seen.runs)} runs, {sum(run.late for run in seen.runs)} late"
    yield f"writes refused: {len(seen.refused)}"
    yield f"stale writes accepted: {len(seen.stale)}"


def _failovers(failovers: Sequence[Failover]) -> str:
    told = [_failover(failover) for failover in failovers]
    first, more = "".join(told[:FOLD]), "".join(told[FOLD:])
    if not more:
        return first or "<p>No failover in this run.</p>"
    rest = len(told) - FOLD
    return f"{first}<details><summary>{rest} more failovers</summary>{more}</details>"


def _failover(failover: Failover) -> str:
    gap = f"{abs(failover.leaderless_ns) / 1e6:,.0f} ms"
    said = f"no gate open for {gap}" if failover.leaderless_ns >= 0 else f"TWO GATES for {gap}"
    steps = "".join(
        f"<li><b>+{step.after_ns / 1e6:,.0f} ms</b> {escape(step.text)}</li>"
        for step in failover.steps
    )
    shown = f'data-from="{failover.began_ns}" data-to="{failover.opened_ns}"'
    return (
        f'<section class="failover"><h3>{escape(failover.cause)}: {escape(failover.old.node)} → '
        f"{escape(failover.new.node)}, <em>{said}</em> <button {shown}>show</button></h3>"
        f"<ol><li><b>0</b> {escape(failover.cause)}</li>{steps}</ol></section>"
    )


def _rows(findings: Sequence[Finding]) -> Iterator[str]:
    for finding in sorted(findings, key=lambda finding: WORST_FIRST.index(finding.verdict)):
        yield (
            f'<tr class="{finding.verdict}"><td>{SIGN[finding.verdict]} {finding.verdict}</td>'
            f"<th>{escape(finding.check)}</th><td>{escape(finding.text)}</td></tr>"
        )
