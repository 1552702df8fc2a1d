"""The report of a run: all that happened is in it, it asks nobody, a real browser shows it."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from chaos import __main__ as chaos_main
from chaos import report, seeds
from chaos.checks import Finding, Verdict
from chaos.op import Op, Source, Type, load, save
from chaos.plan import Plan
from chaos.report.scene import scene
from chaos.report.svg import draw
from chaos.worlds.sim.world import World

ROOT = Path(__file__).resolve().parents[2]
RECORDED = Path(__file__).with_name("lease-stall.jsonl")
"""A run of lease-stall as it was written down, without the heartbeats of its runs."""
FOUND = (
    Finding("fault_bit", Verdict.YES, "cut on a"),
    Finding("never_two_gates", Verdict.NO, "a & b <both>"),
)
SVG = "{http://www.w3.org/2000/svg}"


def op(at_s: float, source: Source, process: str, f: str, **value: Any) -> Op:
    return Op(round(at_s * 1e9), source, process, f, Type.OK, value)


def node(at_s: float, name: str, event: str, **fields: Any) -> Op:
    ts = f"2026-05-01T12:00:{at_s:09.6f}Z"
    return op(at_s, Source.NODE, name, event, **{"ts": ts, **fields})


def ran(at_s: float, name: str, fence: int, *, job: str = "tick", late_ms: float = 0) -> Op:
    slot = f"2026-05-01T12:00:{at_s - late_ms / 1e3:09.6f}Z"
    value = {"job": job, "scheduled_for": slot, "attempt": 1, "late_ms": late_ms}
    return node(at_s, name, "run.started", fence=fence, **value)


def hit(f: str, at_s: float, fault: str, target: str) -> Op:
    kind = Type.INVOKE if f == "inject" else Type.OK
    value = {"fault": fault, "node": target}
    return Op(round(at_s * 1e9), Source.NEMESIS, "nemesis", f, kind, value)


def wrote(at_s: float, name: str, *, fence: int | None, term: int) -> Op:
    value = {"fence": fence, "term": term, "relation": "cron_leader_slot", "operation": "UPDATE"}
    return op(at_s, Source.LEDGER, name, "accepted", **value)


def refusal(at_s: float, name: str, fence: int, high: int) -> Op:
    row = {"node": name, "fence": fence, "high": high, "what": "finish"}
    at = f"2026-05-01 12:00:{at_s:09.6f}+00:00"
    return op(30, Source.LEDGER, "ledger", "refusal", at=at, **row)


def handover() -> tuple[Op, ...]:
    """a is cut off at 10 s, shuts its gate at 12 s; b opens its own 1.75 s later."""
    return (
        op(0, Source.PLAN, "harness", "plan", scenario="hand <written>", ttl_ns=5 * 10**9),
        op(0.5, Source.ETCD, "a", "put"),
        wrote(0.9, "a", fence=5, term=5),
        node(1, "a", "gate.opened", fence=5),
        ran(2, "a", 5),
        wrote(2.1, "a", fence=None, term=5),
        hit("inject", 10, "cut", "a"),
        node(12, "a", "gate.closed", fence=5, reason="deadline"),
        op(13.5, Source.ETCD, "a", "delete"),
        wrote(13.7, "b", fence=9, term=9),
        node(13.75, "b", "gate.opened", fence=9),
        ran(14, "b", 9, late_ms=900),
        hit("heal", 17, "cut", "a"),
        node(18, "a", "ledger.refused", fence=5),
        hit("inject", 19, "freeze", "c"),
        node(20, "c", "exit", status=137),
        refusal(17.5, "a", 5, 9),
        op(31, Source.LEDGER, "ledger", "fence", fence=9),
    )


class Page(HTMLParser):
    """Tags are balanced; text and attributes are kept."""

    VOID = frozenset({"meta", "link"})

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.attributes: list[tuple[str, str]] = []
        self.text = ""
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.attributes += [(name, value or "") for name, value in attrs]
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.attributes += [(name, value or "") for name, value in attrs]

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text += data


def shown(ops: tuple[Op, ...]) -> str:
    return Page(report.of(ops, FOUND)).text


def titles(ops: tuple[Op, ...]) -> list[str]:
    drawing = ElementTree.fromstring(draw(scene(ops)).svg)
    return [title.text or "" for title in drawing.iter(f"{SVG}title")]


@pytest.mark.parametrize("ops", [handover(), load(RECORDED)], ids=["hand-written", "recorded"])
def test_every_node_fault_and_refusal_is_in_the_drawing(ops: tuple[Op, ...]) -> None:
    seen, told = scene(ops), titles(ops)
    names = ElementTree.fromstring(draw(seen).svg).iter(f"{SVG}text")
    assert seen.nodes
    assert {f"node {name}" for name in seen.nodes} <= {name.text for name in names}
    assert seen.faults
    for fault in seen.faults:
        assert any(t.startswith(f"fault: {fault.name} on {fault.target}") for t in told)
    assert seen.refused
    for mark in seen.refused:
        assert told.count(f"{mark.who}: {mark.text}") == 2  # at its node, and in the ledger
    assert sum("gate open, fence" in t for t in told) == 2 * len(seen.gates)


def test_a_failover_is_told_from_its_cause_to_the_first_run() -> None:
    (failover,) = scene(handover()).failovers
    assert (failover.cause, failover.leaderless_ns) == ("cut on a", 1_750_000_000)
    assert [(step.after_ns // 10**6, step.text) for step in failover.steps] == [
        (2000, "a shuts its gate (deadline)"),
        (3500, "a's key leaves etcd"),
        (3700, "b raises fence 9"),
        (3750, "b opens its gate"),
        (4000, "first run: tick"),
    ]
    assert "no gate open for 1,750 ms" in shown(handover())


def test_a_refusal_that_node_and_ledger_both_tell_of_is_one() -> None:
    (mark,) = scene(handover()).refused
    assert mark.at_ns == 17_500_000_000
    assert mark.text == "finish under fence 5 refused: 9 stands"


def test_a_run_that_starts_late_has_a_mark_of_its_own() -> None:
    drawing = draw(scene(handover()))
    assert ElementTree.fromstring(drawing.svg).findall(f".//{SVG}path[@class='late']")
    assert [spot.text for spot in drawing.spots if spot.text.startswith("LATE")] == [
        "LATE run of tick on b, fence 9, 900 ms after its slot"
    ]


def test_two_open_gates_are_an_overlap_and_no_gap() -> None:
    ops = (node(1, "a", "gate.opened", fence=5), node(2, "b", "gate.opened", fence=9),
           node(3, "a", "gate.closed", fence=5, reason="deadline"))  # fmt: skip
    assert "TWO GATES OPEN for 1,000 ms" in titles(ops)
    assert "TWO GATES for 1,000 ms" in shown(ops)


def test_a_stale_write_that_was_accepted_stands_out() -> None:
    ops = (*handover(), wrote(21, "a", fence=None, term=5))
    assert any(title.startswith("STALE WRITE ACCEPTED") for title in titles(ops))
    assert "stale writes accepted: 1" in shown(ops)


def test_the_worst_check_comes_first_and_names_the_verdict() -> None:
    text = shown(handover())
    assert "✘ NO" in text
    assert text.index("never_two_gates") < text.index("fault_bit")


def test_what_a_history_says_is_text_and_no_markup() -> None:
    page = report.of((*handover(), node(21, "</script><b>", "node.started")), FOUND)
    assert "a & b <both>" in Page(page).text
    assert "<b>x" not in page
    assert page.count("</script>") == 2


@pytest.mark.parametrize("ops", [(), handover()[:1], (handover()[-1],)])
def test_a_history_without_events_is_drawn_too(ops: tuple[Op, ...]) -> None:
    assert "No failover in this run." in shown(ops)


@pytest.mark.parametrize("ops", [handover(), load(RECORDED)], ids=["hand-written", "recorded"])
def test_the_page_asks_nobody_for_anything(ops: tuple[Op, ...]) -> None:
    page = report.of(ops, FOUND)
    loads = [v for name, v in Page(page).attributes if name in {"src", "href", "srcset", "action"}]
    assert loads == ["data:,"]
    assert re.findall(r"url\((?!#)|@import|\bfetch\(|XMLHttp|import\(", page) == []
    assert set(re.findall(r"https?://[^\s\"'<]*", page)) == {"http://www.w3.org/2000/svg"}


def test_the_readmes_drawing_is_of_the_recorded_run() -> None:
    """Made by: python -m chaos report DIR, DIR/history.jsonl being that record."""
    kept = (ROOT / "docs" / "images" / "failover.svg").read_text(encoding="utf-8")
    assert kept == draw(scene(load(RECORDED))).svg
    assert len(kept) < 200_000


def test_the_command_draws_what_a_run_left(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    save(load(RECORDED), tmp_path / "history.jsonl")
    assert chaos_main.main(["report", str(tmp_path)]) == 0
    page = tmp_path / "report.html"
    assert capsys.readouterr().out == f"{page}\n"
    assert "15 of 15 checks held" in Page(page.read_text(encoding="utf-8")).text
    assert (tmp_path / "report.svg").exists()


def test_the_verdict_of_the_run_itself_is_the_one_shown(tmp_path: Path) -> None:
    verdict = {"findings": [{"check": "played_to_the_end", "verdict": "UNKNOWN", "text": "no"}]}
    (tmp_path / "verdict.json").write_text(json.dumps(verdict))
    assert report.kept(tmp_path) == (Finding("played_to_the_end", Verdict.UNKNOWN, "no"),)


def test_a_series_of_cuts_is_judged_by_its_tally(tmp_path: Path) -> None:
    tally = {"cuts": 4, "two_gates": 0, "stale_runs": 1, "broken": ["one_row_per_slot: two"]}
    (tmp_path / "tally.json").write_text(json.dumps(tally))
    kept = report.kept(tmp_path)
    assert kept is not None
    assert [(f.check, f.verdict) for f in kept] == [
        ("two_gates", Verdict.YES),
        ("stale_runs", Verdict.NO),
        ("the_whole_series", Verdict.NO),
    ]


def test_a_simulated_run_is_drawn_as_a_real_one_is() -> None:
    """It has no wall clock, may strike several nodes at once, and tells no status of an exit."""
    made = seeds.cut_short(seeds.plan_of(7, 600_000), 160_000)
    ops, judged = seeds.play(made)
    seen = scene(ops)
    assert seen.title == "seed 7"
    assert scene(World(Plan(7, 1_000, luck=3)).run()).title == "seed 7, luck 3"
    assert len(seen.runs) > 50
    assert {fault.target for fault in seen.faults} > {"ledger"}
    assert all(fault.ended_ns for fault in seen.faults)
    assert seen.failovers
    page = report.of(ops, judged.findings)
    assert "(None)" not in Page(page).text


def test_each_node_that_a_fault_struck_is_marked() -> None:
    value = {"fault": "freeze-node", "target": "minority", "nodes": ["a", "b"]}
    ops = [
        Op(at, Source.NEMESIS, "nemesis", f, kind, value)
        for at, f, kind in (
            (1, "inject", Type.INVOKE),
            (2, "inject", Type.OK),
            (9, "heal", Type.OK),
        )
    ]
    assert [(f.target, f.began_ns, f.ended_ns) for f in scene(ops).faults] == [
        ("a", 1, 9),
        ("b", 1, 9),
    ]


def many(runs: int) -> tuple[Op, ...]:
    """A history of ten minutes, with a failover every twenty seconds."""
    every_s, ops = 600 / runs, [*handover()[:1]]
    for term in range(30):
        name, fence = "abc"[term % 3], 10 + term
        ops.append(op(20 * term, Source.NODE, name, "gate.opened", fence=fence))
        ops.append(op(20 * term + 18, Source.NODE, name, "gate.closed", fence=fence))
    for n in range(runs):
        at_s, term = n * every_s, int(n * every_s / 20)
        slot = f"2026-05-01T12:{int(at_s) // 60:02d}:{at_s % 60:09.6f}Z"
        value = {"job": f"job-{n % 10}", "scheduled_for": slot, "late_ms": 1.0, "attempt": 1}
        event = {"ts": slot, "fence": 10 + term, **value}
        ops.append(op(at_s, Source.NODE, "abc"[term % 3], "run.started", **event))
    return tuple(sorted(ops, key=lambda op: op.at_ns))


def test_ten_thousand_runs_make_no_more_elements_than_ten() -> None:
    few, lots = (draw(scene(many(runs))).svg for runs in (300, 10_000))
    assert lots.count("<path") <= few.count("<path") + 10
    assert len(report.of(many(10_000), FOUND)) < 3_000_000


# ------------------------------------------------------------------ in a real browser


@pytest.fixture(scope="session")
def browser() -> str:
    """Skips where there is none; CRON_LEADER_REQUIRE_ALL=1 makes that a failure."""
    found = next(
        filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None
    )
    if found is None:
        if os.environ.get("CRON_LEADER_REQUIRE_ALL") == "1":
            pytest.fail("chromium is not on this machine, and CRON_LEADER_REQUIRE_ALL is set")
        pytest.skip("chromium is not on this machine")
    return found


def opened(browser: str, page: str, folder: Path) -> tuple[str, list[str]]:
    """What the page became once its script had run, and what it said on the console."""
    (folder / "page.html").write_text(page, encoding="utf-8")
    argv = [browser, "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic"]
    argv += ["--no-first-run", "--disable-background-networking", "--disable-component-update"]
    argv += ["--disable-sync", "--disable-dev-shm-usage", f"--user-data-dir={folder / 'profile'}"]
    argv += ["--enable-logging=stderr", "--dump-dom", f"file://{folder / 'page.html'}"]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=100, check=True)
    return done.stdout, [line for line in done.stderr.splitlines() if "CONSOLE" in line]


def pressing(page: str, *steps: str) -> str:
    """The page, whose reader does that."""
    head, found, rest = page.rpartition("</script>")
    assert found
    return f"{head}\n{';'.join(steps)};{found}{rest}"


def key(name: str) -> str:
    event = f'new KeyboardEvent("keydown", {{key: "{name}"}})'
    return f'document.getElementById("chart").dispatchEvent({event})'


def test_a_browser_shows_zooms_and_walks_it_without_an_error(browser: str, tmp_path: Path) -> None:
    show = 'document.querySelector("button[data-from]").click()'
    events = 'document.getElementById("events").open = true'
    page = pressing(report.of(load(RECORDED), FOUND), show, key("+"), key("ArrowRight"), events)
    became, console = opened(browser, page, tmp_path)
    assert console == []
    assert re.search(r'data-ready="\d+"', became)
    assert re.search(r'class="plot" transform="translate\(\S+ 0\) scale\([2-9]', became)
    assert re.search(r'id="tip"[^>]*>\+\d+\.\d{3} s ', became)


def test_a_browser_opens_ten_thousand_runs(browser: str, tmp_path: Path) -> None:
    page = pressing(report.of(many(10_000), FOUND), key("+"), key("End"))
    became, console = opened(browser, page, tmp_path)
    assert console == []
    assert 'data-ready="100' in became


def test_an_error_in_the_page_would_be_seen(browser: str, tmp_path: Path) -> None:
    _, console = opened(browser, pressing(report.of((), ()), "no_such_thing()"), tmp_path)
    assert len(console) == 1
