"""The facts of a board in Prometheus' text format. Names and labels are a contract.

Labels take values from closed sets and from the configuration's jobs only.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)
from prometheus_client.registry import Collector

from cron_leader.web.board import LATENESS_S, Counts, Facts

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
PREFIX = "cron_leader_"


def render(facts: Facts, about: Mapping[str, str]) -> bytes:
    """The page of /metrics. about: what the labels of cron_leader_info say."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_Page(facts, about))
    return generate_latest(registry)


class _Page(Collector):
    def __init__(self, facts: Facts, about: Mapping[str, str]) -> None:
        self._facts, self._about = facts, about

    def collect(self) -> Iterator[Metric]:
        yield _info(self._about)
        yield from _leadership(self._facts)
        yield from _services(self._facts)
        yield from _work(self._facts)


def _leadership(f: Facts) -> Iterator[Metric]:
    yield _gauge("gate_open", "1 while this node may start runs: it leads.", f.gate_open)
    yield _gauge("fence", "The fence of the term this node holds; absent without one.", f.fence)
    yield _count("terms_elected", "Elections this node has won.", f.elected)
    yield _counts("terms_ended", "Terms of this node that ended, by reason.", f.ended, "reason")
    yield _count(
        "leaderless_seconds",
        "Time without an open gate that this node knows of: from the end of the term before to its "
        "own gate, and while its gate was closed in mid-term.",
        f.leaderless_s,
    )
    yield _gauge(
        "lease_left_seconds",
        "Until this node would stop by itself (lease less margin); absent without a lease.",
        f.lease_left_s,
    )
    yield _gauge(
        "lease_left_min_seconds", "The least of it within the last minute.", f.lease_left_min_s
    )


def _services(f: Facts) -> Iterator[Metric]:
    yield _gauge("etcd_up", "1 if etcd answered this node last.", f.etcd_up)
    yield _gauge("ledger_up", "1 if the ledger answered this node last.", f.ledger_up)
    yield _gauge(
        "loop_lag_max_seconds",
        "The latest that the daemon's loop came round within the last minute. Three times the "
        "worst should fit in the lease's ttl.",
        f.loop_lag_max_s,
    )


def _work(f: Facts) -> Iterator[Metric]:
    yield _counts("runs_finished", "Runs that ended, by outcome.", f.runs, "job", "outcome")
    yield HistogramMetricFamily(
        PREFIX + "run_lateness_seconds",
        "From a slot's time to the start of its run.",
        buckets=list(zip(_bounds(), map(float, f.lateness), strict=True)),
        sum_value=f.lateness_sum_s,
    )
    yield _counts("slots_missed", "Slots recorded as missed, by reason.", f.missed, "reason")
    yield _counts("slots_skipped", "Slots recorded as skipped, by reason.", f.skipped, "reason")
    yield _counts(
        "slots_failed",
        "Slots that had been tried and lost their next try, by reason.",
        f.failed,
        "reason",
    )
    yield _counts(
        "writes_refused", "Late writes that a newer fence refused, by kind.", f.refused, "what"
    )
    yield _counts(
        "writes_uncertain",
        "Outages of the ledger that left a write in doubt for a while, by the kind of the first.",
        f.uncertain,
        "what",
    )


def _bounds() -> list[str]:
    return [*map(str, LATENESS_S), "+Inf"]


# ------------------------------------------------------------------ one family each


def _info(about: Mapping[str, str]) -> Metric:
    family = GaugeMetricFamily(PREFIX + "info", "Which node this is; always 1.", labels=[*about])
    family.add_metric([*about.values()], 1.0)
    return family


def _gauge(name: str, text: str, value: float | None) -> Metric:
    """None: the family without a sample."""
    family = GaugeMetricFamily(PREFIX + name, text)
    if value is not None:
        family.add_metric([], float(value))
    return family


def _count(name: str, text: str, value: float) -> Metric:
    return CounterMetricFamily(PREFIX + name, text, value=value)


def _counts(name: str, text: str, counts: Counts, *labels: str) -> Metric:
    family = CounterMetricFamily(PREFIX + name, text, labels=labels)
    for values, count in counts.items():
        family.add_metric(values, count)
    return family
