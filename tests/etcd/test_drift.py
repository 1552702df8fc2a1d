"""Nodes of one fleet that are configured differently."""

from __future__ import annotations

from cron_leader.core.messages import WatchOpened
from cron_leader.etcd.drift import NAMED, Drift
from cron_leader.etcd.survey import NodeInfo
from tests.etcd_kit import Emitted, Fleet, Hand, place_of


def node(name: str, digest: str) -> NodeInfo:
    return NodeInfo(name, 1, "0", digest, ())


async def test_of_two_nodes_that_differ_the_later_one_says_so(fleet: Fleet, hand: Hand) -> None:
    a = fleet.join("a", digest="old")
    await a.until(WatchOpened)
    b = fleet.join("b", digest="new")
    await hand.until_there(place_of(b))
    c = fleet.join("c", digest="new")
    await hand.until_there(place_of(c))
    await a.leave()
    await b.until(WatchOpened)
    told = {n.seat.node: [f for e, f in n.emit.lines if e == "config.drifted"] for n in (a, b, c)}
    assert told["a"] == []
    assert told["b"] == told["c"] == [{"digest": "new", "other": "old", "nodes": ["a"]}]


def test_a_difference_is_told_once_while_it_is_there() -> None:
    emit = Emitted()
    drift = Drift("a", "ours", emit=emit)
    there = [node("a", "ours"), node("b", "old"), node("c", "older"), node("d", "old")]
    for nodes in (there, there, there[:1], there[:2]):
        drift.met(nodes)
    said = [(fields["other"], fields["nodes"]) for _, fields in emit.lines]
    assert said == [("old", ["b", "d"]), ("older", ["c"]), ("old", ["b"])]


def test_what_is_left_of_ones_own_earlier_life_is_no_difference() -> None:
    emit = Emitted()
    Drift("a", "new", emit=emit).met([node("a", "old"), node("a", "new")])
    assert emit.lines == []


def test_of_a_large_fleet_some_nodes_are_named() -> None:
    emit = Emitted()
    Drift("a", "new", emit=emit).met([node(f"n{i}", "old") for i in range(NAMED + 1)])
    ((_, fields),) = emit.lines
    assert len(fields["nodes"]) == NAMED  # type: ignore[arg-type]
