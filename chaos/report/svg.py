"""A scene drawn: one lane a node, one for etcd, one for the ledger, time to the right.

The drawing stands alone (its colours are in it, light and dark), and page.js stretches it: what is
in `.plot` is scaled along the time, what has `data-x` only moves, and `data-w` is how much room a
text has. Nothing tells things apart by colour alone.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from html import escape
from itertools import pairwise
from pathlib import Path

from chaos.report.scene import Fault, Mark, Run, Scene
from chaos.story import Gate

HERE = Path(__file__).parent
LEFT, WIDTH, RIGHT = 118, 1060, 22
"""Pixels: names of lanes, the time, a rim."""
ROW, GATE, PAD, TOP = 13, 20, 11, 30
JOBS_APART = 6
"""With more jobs than these all of them share one row in each lane."""
LETTER = 6.6
"""Pixels a letter takes, about."""
STEPS_S = (0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 60, 120, 300, 600, 1800, 3600)


@dataclass(frozen=True, slots=True)
class Spot:
    """Something to point at: milliseconds from the start, pixels from the top, what it is."""

    at_ms: float
    y: float
    text: str


@dataclass(frozen=True, slots=True)
class Lane:
    name: str
    y: float
    height: float


@dataclass(frozen=True, slots=True)
class Drawing:
    svg: str
    spots: tuple[Spot, ...]


def draw(scene: Scene) -> Drawing:
    pen = _Pen(scene)
    return Drawing(pen.svg(), tuple(sorted(pen.spots, key=lambda spot: spot.at_ms)))


class _Pen:
    """Collects marks of the three layers while it goes through the lanes."""

    def __init__(self, scene: Scene) -> None:
        self.scene = scene
        self.span_ns = max(1, scene.ended_ns - scene.began_ns)
        self.rows = {job: at for at, job in enumerate(scene.jobs)}
        if len(self.rows) > JOBS_APART:
            self.rows = dict.fromkeys(self.rows, 0)
        self.plot: list[str] = []
        self.texts: list[str] = []
        self.names: list[str] = []
        self.spots: list[Spot] = []
        self.lanes = self._lanes()
        self.bottom = self.lanes[-1].y + self.lanes[-1].height

    def svg(self) -> str:
        for part in (self._axis, self._bands, self._leaders, self._nodes, self._etcd, self._ledger):
            part()
        size = f"{LEFT + WIDTH + RIGHT} {self.bottom + 1:.0f}"
        return (
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {size}" role="img" '
            f'data-left="{LEFT}" data-width="{WIDTH}" data-ms="{self.span_ns / 1e6:.1f}" '
            f'data-top="{TOP}" data-bottom="{self.bottom:.0f}" aria-label="{escape(self._alt())}">'
            f"<title>{escape(self._alt())}</title>"
            f"<style>{(HERE / 'drawing.css').read_text(encoding='utf-8')}</style>"
            f'<clipPath id="time"><rect x="{LEFT}" y="0" width="{WIDTH}" height="9999"/></clipPath>'
            f'<rect class="paper" width="100%" height="100%"/>{"".join(self.names)}'
            f'<g clip-path="url(#time)"><g class="plot" transform="translate({LEFT})">'
            f'{"".join(self.plot)}</g></g><g class="texts">{"".join(self.texts)}</g></svg>\n'
        )

    def _alt(self) -> str:
        gates = ", then ".join(f"{g.node} under fence {g.fence}" for g in self.scene.gates[:8])
        faults = ", ".join(sorted({f"{f.name} on {f.target}" for f in self.scene.faults})) or "none"
        return f"{self.scene.title}: faults: {faults}; who led: {gates or 'nobody'}"

    def _lanes(self) -> tuple[Lane, ...]:
        jobs = len(set(self.rows.values()))
        heights = [("faults", ROW + 9.0), ("leader", GATE + 2.0 * PAD)]
        heights += [(node, GATE + ROW * jobs + 2.0 * PAD) for node in self.scene.nodes]
        heights.append(("etcd keys", ROW * max(1, len(self.scene.nodes)) + 2.0 * PAD))
        heights.append(("ledger", ROW * 3 + 2.0 * PAD))
        lanes, y = [], float(TOP)
        for name, height in heights:
            lanes.append(Lane(name, y, height))
            y += height
        return tuple(lanes)

    # -------------------------------------------------------------- coordinates and strokes

    def x(self, at_ns: int) -> float:
        return round((at_ns - self.scene.began_ns) / self.span_ns * WIDTH, 2)

    def spot(self, at_ns: int, y: float, text: str) -> None:
        self.spots.append(Spot(round((at_ns - self.scene.began_ns) / 1e6, 1), round(y, 1), text))

    def bar(
        self, kind: str, from_ns: int, to_ns: int | None, y: float, height: float, text: str
    ) -> float:
        """Its width. to_ns None: to the end."""
        x, end = self.x(from_ns), self.x(self.scene.ended_ns if to_ns is None else to_ns)
        width = max(0.3, round(end - x, 2))
        title = f"<title>{escape(text)}</title>" if text else ""
        place = f'x="{x}" y="{y:g}" width="{width}" height="{height:g}"'
        self.plot.append(f'<rect class="{kind}" {place}>{title}</rect>')
        return width

    def text(
        self, kind: str, x: float, y: float, text: str, *, dx: int = 0, within: float | None = None
    ) -> None:
        """dx: pixels to the right, at any zoom. within: drawn only where it has this much room."""
        room = "" if within is None else f' data-w="{within:g}"'
        hide = ' visibility="hidden"' if within is not None and _wide(text) > within else ""
        self.texts.append(
            f'<text class="{kind}" data-x="{x:g}"{room}{hide} x="{LEFT + x:g}" y="{y:g}" dx="{dx}">'
            f"{escape(text)}</text>"
        )

    def sign(self, kind: str, at_ns: int, y: float, shape: str, text: str) -> None:
        """A symbol of a fixed size."""
        x = self.x(at_ns)
        self.texts.append(
            f'<g data-x="{x:g}" transform="translate({LEFT + x:g} {y:g})" data-y="{y:g}">'
            f'<path class="{kind}" d="{shape}"><title>{escape(text)}</title></path></g>'
        )
        self.spot(at_ns, y, text)

    def name(self, y: float, text: str) -> None:
        self.names.append(f'<text class="name" x="8" y="{y:g}">{escape(text)}</text>')

    def sub(self, y: float, text: str) -> None:
        self.names.append(f'<text class="sub" x="{LEFT - 6}" y="{y:g}">{escape(text)}</text>')

    def strokes(self, kind: str, segments: Iterable[tuple[float, float, float]]) -> None:
        """One path for all (x, width, y) of a kind: ten thousand of them stay light."""
        if d := "".join(f"M{x:g} {y:g}h{width:g}" for x, width, y in segments):
            self.plot.append(f'<path class="{kind}" d="{d}"/>')

    # -------------------------------------------------------------- the lanes

    def _bands(self) -> None:
        for lane in self.lanes:
            self.names.append(
                f'<rect class="lane" x="0" y="{lane.y:g}" width="100%" height="{lane.height:g}"/>'
            )
        strip, *_ = self.lanes
        self.name(strip.y + ROW + 1, strip.name)
        for fault in self.scene.faults:
            self._band(fault, strip)

    def _band(self, fault: Fault, strip: Lane) -> None:
        text = f"fault: {fault.name} on {fault.target}{_lasted(fault.began_ns, fault.ended_ns)}"
        began, ended = fault.began_ns, fault.ended_ns
        self.bar("shade", began, ended, strip.y, self.bottom - strip.y, "")
        width = self.bar("fault", began, ended, strip.y + 2, strip.height - 4, text)
        for lane in self.lanes:
            if lane.name == fault.target:
                self.bar("struck", began, ended, lane.y + 1, lane.height - 2, text)
        label = f"{fault.name} on {fault.target}"
        self.text("on-fault", self.x(began), strip.y + ROW + 2, label, dx=5, within=width)
        self.spot(began, strip.y + ROW, text)

    def _leaders(self) -> None:
        lane = self.lanes[1]
        y = lane.y + PAD
        self.name(y + 15, lane.name)
        for gate in self.scene.gates:
            self._gate(gate, y, f"{gate.node} · fence {gate.fence}")
        for old, new in pairwise(self.scene.gates):
            shut_ns = self.scene.ended_ns if old.closed_ns is None else old.closed_ns
            self._gap(shut_ns, new.opened_ns, y)

    def _gap(self, shut_ns: int, opened_ns: int, y: float) -> None:
        """Opened before the other one shut, it is an overlap."""
        kind = "gap" if opened_ns >= shut_ns else "overlap"
        ms = f"{abs(opened_ns - shut_ns) / 1e6:,.0f} ms"
        text = f"no gate open for {ms}" if kind == "gap" else f"TWO GATES OPEN for {ms}"
        first, last = sorted((shut_ns, opened_ns))
        width = self.bar(kind, first, last, y, GATE, text)
        self.text(f"on-{kind} middle", self.x(first) + width / 2, y + 14, ms, within=width)
        self.spot(first, y + GATE / 2, text)

    def _gate(self, gate: Gate, y: float, label: str) -> None:
        text = f"{gate.node}'s gate open, fence {gate.fence}"
        text += _lasted(gate.opened_ns, gate.closed_ns)
        width = self.bar("gate", gate.opened_ns, gate.closed_ns, y, GATE, text)
        self.text("on-gate", self.x(gate.opened_ns), y + 14, label, dx=6, within=width)
        self.spot(gate.opened_ns, y + GATE / 2, text)

    def _nodes(self) -> None:
        for lane in self.lanes[2 : 2 + len(self.scene.nodes)]:
            y = lane.y + PAD
            self.name(y + 15, f"node {lane.name}")
            for job, row in self.rows.items():
                if len(set(self.rows.values())) > 1:
                    self.sub(y + GATE + ROW * row + 13, job)
            for gate in self.scene.gates:
                if gate.node == lane.name:
                    self._gate(gate, y, f"gate · fence {gate.fence}")
            self._runs([run for run in self.scene.runs if run.node == lane.name], y + GATE + 9)
            for mark in self.scene.refused:
                if mark.who == lane.name:
                    self.sign("cross", mark.at_ns, y + GATE / 2, _CROSS, f"{mark.who}: {mark.text}")
            for mark in self.scene.exits:
                if mark.who == lane.name:
                    self.sign("exit", mark.at_ns, y + GATE / 2, _STOP, f"{mark.who}: {mark.text}")

    def _runs(self, runs: Sequence[Run], top: float) -> None:
        at = {id(run): (self.x(run.began_ns), top + ROW * self.rows[run.job]) for run in runs}
        last = [
            (at[id(run)][0], self.x(run.ended_ns) - at[id(run)][0], at[id(run)][1])
            for run in runs
            if run.ended_ns is not None
        ]
        self.strokes("length", last)
        for kind, wanted in (("dot", False), ("late", True)):
            self.strokes(
                kind, ((*at[id(r)][:1], 0.0, at[id(r)][1]) for r in runs if r.late is wanted)
            )
        for run in runs:
            self.spot(run.began_ns, at[id(run)][1], _told(run))

    def _etcd(self) -> None:
        lane = self.lanes[-2]
        self.name(lane.y + PAD + 9, lane.name)
        for row, node in enumerate(self.scene.nodes):
            y = lane.y + PAD + ROW * row
            self.sub(y + 9, node)
            for key in self.scene.keys:
                if key.node == node:
                    text = f"key of {node}{_lasted(key.put_ns, key.gone_ns)}"
                    self.bar("key", key.put_ns, key.gone_ns, y + 2, ROW - 5, text)
                    self.spot(key.put_ns, y + ROW / 2, f"etcd: key of {node} put")
                    if key.gone_ns is not None:
                        self.spot(key.gone_ns, y + ROW / 2, f"etcd: key of {node} deleted")

    def _ledger(self) -> None:
        lane = self.lanes[-1]
        y = lane.y + PAD
        self.name(y + 10, lane.name)
        for row, text in enumerate(("raise", "commit", "refuse")):
            self.sub(y + ROW * row + 10, text)
        for mark in self.scene.raises:
            self.sign(
                "raise", mark.at_ns, y + 6, _UP, f"{mark.who} raised the ledger's {mark.text}"
            )
        self._labels(self.scene.raises, y + 10, [mark.text for mark in self.scene.raises])
        self.strokes(
            "write", ((self.x(mark.at_ns), 0.0, y + ROW + 6) for mark in self.scene.writes)
        )
        for mark in self.scene.stale:
            self.sign(
                "stale", mark.at_ns, y + ROW + 6, _DIAMOND, f"STALE WRITE ACCEPTED: {mark.text}"
            )
        told = [f"{mark.who}: {mark.text}" for mark in self.scene.refused]
        for mark, text in zip(self.scene.refused, told, strict=True):
            self.sign("cross", mark.at_ns, y + 2 * ROW + 6, _CROSS, text)
        self._labels(self.scene.refused, y + 2 * ROW + 10, told)

    def _labels(self, marks: Sequence[Mark], y: float, texts: Sequence[str]) -> None:
        """Each beside its mark: to the right as far as the next mark, or else to the left."""
        spots = [0.0, *(self.x(mark.at_ns) for mark in marks), float(WIDTH)]
        for at, text in enumerate(texts, 1):
            before, after = spots[at] - spots[at - 1], spots[at + 1] - spots[at]
            if _wide(text) <= after or after >= before:
                self.text("on-ledger", spots[at], y, text, dx=9, within=after)
            else:
                self.text("on-ledger before", spots[at], y, text, dx=-9, within=before)

    def _axis(self) -> None:
        span_s = self.span_ns / 1e9
        step = next((s for s in STEPS_S if span_s / s <= 16), STEPS_S[-1])
        for at in range(int(span_s / step) + 1):
            x = round(at * step / span_s * WIDTH, 2)
            self.plot.append(f'<path class="tick" d="M{x:g} {TOP - 6}V{self.bottom:g}"/>')
            self.text("axis middle", x, TOP - 12, f"{at * step:g} s")


def _wide(text: str) -> float:
    """Pixels, about, with the rim on both sides."""
    return len(text) * LETTER + 12


def _lasted(began_ns: int, ended_ns: int | None) -> str:
    return "" if ended_ns is None else f", {(ended_ns - began_ns) / 1e9:.3f} s"


def _told(run: Run) -> str:
    late = f", {run.late_ms:,.0f} ms after its slot" if run.late_ms else ""
    end = f", {run.outcome}" if run.outcome else ""
    took = "" if run.ended_ns is None else f", took {(run.ended_ns - run.began_ns) / 1e6:,.0f} ms"
    again = f" attempt {run.attempt}" if run.attempt > 1 else ""
    mark = "LATE run" if run.late else "run"
    return f"{mark} of {run.job}{again} on {run.node}, fence {run.fence}{late}{took}{end}"


_CROSS = "M-5 -5L5 5M-5 5L5 -5"
_UP = "M-5 5L0 -6L5 5z"
_DIAMOND = "M0 -7L7 0L0 7L-7 0z"
_STOP = "M-4 -4H4V4H-4z"
