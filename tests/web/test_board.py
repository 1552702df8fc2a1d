"""The board counts what it hears, and the page says what the board counted."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

from prometheus_client.parser import text_string_to_metric_families

from cron_leader.core.gate import Gate
from cron_leader.core.standing import EndReason, Phase
from cron_leader.daemon import Snapshot
from cron_leader.events import VOCABULARY
from cron_leader.web.board import MOST_JOBS, OTHERS, Board
from cron_leader.web.lately import STEP_NS, STEPS, Lately
from cron_leader.web.metrics import render
from tests.web.kit import S, numbers, snapshot


class Scene:
    """A board, and the snapshot it looks at."""

    def __init__(self, jobs: Iterable[str] = ("beat",)) -> None:
        self.seen: Snapshot = snapshot()
        self.board = Board(jobs, lambda: self.seen)

    def hear(self, event: str, **fields: Any) -> None:
        self.board.hear({"event": event, "ts": "", "node": "a", "fleet": "f", **fields})

    def at(self, seconds: float) -> None:
        """The time by the boot clock."""
        self.seen = replace(self.seen, boot_ns=int(seconds * S))

    @property
    def text(self) -> str:
        return render(self.board.facts(), {"node": "a", "fleet": "f", "version": "1"}).decode()

    @property
    def numbers(self) -> dict[str, float]:
        return numbers(self.text)


def test_runs_are_counted_by_job_and_outcome_and_start_at_zero() -> None:
    scene = Scene()
    assert scene.numbers["runs_finished_total{job=beat,outcome=failed}"] == 0
    scene.hear("run.finished", job="beat", outcome="failed")
    scene.hear("run.finished", job="beat", outcome="failed")
    assert scene.numbers["runs_finished_total{job=beat,outcome=failed}"] == 2


def test_jobs_beyond_the_bound_are_counted_together() -> None:
    scene = Scene(f"j{number}" for number in range(MOST_JOBS + 1))
    for job in (f"j{MOST_JOBS}", "unheard-of"):
        scene.hear("run.finished", job=job, outcome="succeeded")
    assert scene.numbers[f"runs_finished_total{{job={OTHERS},outcome=succeeded}}"] == 2
    jobs = {key.partition("job=")[2].partition(",")[0] for key in scene.numbers if "job=" in key}
    assert len(jobs) == MOST_JOBS + 1


def test_lateness_is_a_histogram_whose_bounds_belong_to_their_bucket() -> None:
    scene = Scene()
    for late_ms in (0.4, 5.0, 5.1, 400_000.0):
        scene.hear("run.started", job="beat", late_ms=late_ms)
    said = scene.numbers
    assert said["run_lateness_seconds_bucket{le=0.005}"] == 2
    assert said["run_lateness_seconds_bucket{le=0.01}"] == 3
    assert said["run_lateness_seconds_bucket{le=300.0}"] == 3
    assert said["run_lateness_seconds_bucket{le=+Inf}"] == said["run_lateness_seconds_count"] == 4
    assert abs(said["run_lateness_seconds_sum"] - 400.0105) < 1e-9


def test_missed_and_skipped_slots_are_counted_by_reason_and_a_stretch_by_its_slots() -> None:
    scene = Scene()
    scene.hear("slot.missed", job="beat", reason="late")
    scene.hear("slot.missed", job="beat", reason="coalesced", slots=20)
    scene.hear("slot.skipped", job="beat", reason="overlap")
    scene.hear("slot.failed", job="beat", reason="late", attempt=1)
    said = scene.numbers
    assert said["slots_failed_total{reason=late}"] == 1
    assert said["slots_failed_total{reason=paused}"] == 0
    assert said["slots_missed_total{reason=late}"] == 1
    assert said["slots_missed_total{reason=coalesced}"] == 20
    assert said["slots_skipped_total{reason=overlap}"] == 1


def test_terms_and_writes_that_were_refused_or_are_uncertain_are_counted() -> None:
    scene = Scene()
    scene.hear("term.elected")
    scene.hear("term.ended", reason=EndReason.KEY_DELETED)
    scene.hear("ledger.refused", what="finish", high=9)
    scene.hear("ledger.uncertain", what="claim")
    said = scene.numbers
    assert said["terms_elected_total"] == 1
    assert said["terms_ended_total{reason=key_deleted}"] == 1
    assert said["terms_ended_total{reason=deadline}"] == 0
    assert said["writes_refused_total{what=finish}"] == 1
    assert said["writes_refused_total{what=heartbeat}"] == 0
    assert said["writes_uncertain_total{what=claim}"] == 1
    assert said["writes_uncertain_total{what=finish}"] == 0


def test_a_gate_closed_in_mid_term_is_leaderless_time_and_a_new_term_is_not() -> None:
    scene = Scene()
    scene.hear("gate.opened", fence=7)
    scene.at(100)
    scene.hear("gate.closed", reason="watch", fence=7)
    scene.at(103)
    scene.hear("gate.opened", fence=7)
    assert scene.numbers["leaderless_seconds_total"] == 3
    scene.hear("gate.closed", reason="stopping", fence=7)
    scene.at(107.5)
    scene.hear("term.ended", reason="stopping", fence=7)
    scene.at(200)
    scene.hear("gate.opened", fence=8)
    assert scene.numbers["leaderless_seconds_total"] == 7.5


def test_time_before_a_takeover_counts_and_clocks_that_disagree_never_subtract() -> None:
    scene = Scene()
    scene.board.took_over(2.5)
    scene.board.took_over(-1.0)
    assert scene.numbers["leaderless_seconds_total"] == 2.5


def test_the_least_lease_is_that_just_before_the_renewal() -> None:
    scene = Scene()
    scene.hear("lease.renewed", lease=1)
    later = scene.seen.gate.deadline_ns + 5 * S
    scene.seen = replace(scene.seen, gate=replace(scene.seen.gate, deadline_ns=later))
    said = scene.numbers
    assert (said["lease_left_min_seconds"], said["lease_left_seconds"]) == (3, 8)


def test_without_lease_and_term_their_gauges_are_absent() -> None:
    scene = Scene()
    scene.seen = snapshot(Phase.OUT, fence=None, gate=Gate())
    scene.board.sample(0)
    said = scene.numbers
    assert said["gate_open"] == 0
    assert not {"fence", "lease_left_seconds", "lease_left_min_seconds"} & said.keys()


def test_services_are_down_until_the_node_stands_and_while_they_do_not_answer() -> None:
    scene = Scene()
    scene.seen = snapshot(None, fence=None, gate=Gate())
    assert (scene.numbers["etcd_up"], scene.numbers["ledger_up"]) == (0, 0)
    scene.seen = snapshot()
    assert (scene.numbers["etcd_up"], scene.numbers["ledger_up"]) == (1, 1)
    scene.hear("etcd.unreachable", error="x")
    scene.hear("ledger.unreachable", error="x")
    assert (scene.numbers["etcd_up"], scene.numbers["ledger_up"]) == (0, 0)
    scene.hear("etcd.back")
    scene.hear("ledger.back")
    assert (scene.numbers["etcd_up"], scene.numbers["ledger_up"]) == (1, 1)


def test_no_event_of_the_vocabulary_makes_the_board_raise() -> None:
    scene = Scene()
    for event in VOCABULARY:
        scene.hear(event)
    assert scene.text


def test_the_loop_lag_is_the_worst_of_the_last_minute_whoever_asks() -> None:
    scene = Scene()
    scene.board.sample(S // 2)
    scene.board.sample(0)
    assert scene.numbers["loop_lag_max_seconds"] == 0.5
    assert scene.numbers["loop_lag_max_seconds"] == 0.5
    scene.at(100 + (STEPS + 1) * STEP_NS / S)
    scene.board.sample(0)
    assert scene.numbers["loop_lag_max_seconds"] == 0


def test_lately_forgets_by_steps_and_holds_no_more_than_a_minute() -> None:
    least = Lately(min)
    assert least.worst(0) is None
    for step in range(100):
        least.see(float(step), step * STEP_NS)
        least.see(float(step + 50), step * STEP_NS + 1)
    assert least.worst(99 * STEP_NS) == 99.0 - STEPS


def test_every_family_has_a_name_of_ours_and_says_what_it_is() -> None:
    families = list(text_string_to_metric_families(Scene().text))
    assert len(families) >= 15
    for family in families:
        assert family.name.startswith("cron_leader_")
        assert family.documentation.endswith(".")
    labels = {label for f in families for s in f.samples for label in s.labels}
    assert labels == {"job", "outcome", "reason", "what", "le", "node", "fleet", "version"}


def test_every_metric_is_in_the_operations_page() -> None:
    page = (Path(__file__).parents[2] / "docs/operations.md").read_text(encoding="utf-8")
    table = page.partition("\n### Metrics\n")[2].partition("\n#")[0]
    first = re.findall(r"^\| (`[^|]*) \|", table, re.MULTILINE)
    named = {name for cell in first for name in re.findall(r"`([^`]+)`", cell)}
    assert named == {family.name for family in text_string_to_metric_families(Scene().text)}
