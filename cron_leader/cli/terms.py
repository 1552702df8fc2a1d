"""`terms`: who led when, the time between terms in which nobody did, and that no two overlapped."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from typing import Annotated, Any

import typer

from cron_leader import config as configuration
from cron_leader.cli import output, setup
from cron_leader.cli.lookup import reader_of
from cron_leader.ledger.views import TermRow
from cron_leader.status import Fact

_NONE = timedelta(0)


def terms(
    config: setup.ConfigPath = None,
    count: Annotated[
        int, typer.Option("-n", "--limit", min=1, max=100_000, help="How many, the newest.")
    ] = 20,
    as_json: setup.AsJson = False,
) -> None:
    """Show the terms, newest first, with the time before each in which nobody led."""
    loaded = configuration.load(config, environ=os.environ)
    with reader_of(loaded) as reader:
        rows = reader.terms(loaded.election, limit=count + 1)
    facts = term_facts(rows)[:count]
    totals = _totals(facts, datetime.now(UTC))
    if as_json:
        output.print_json({"terms": facts, "totals": totals})
    elif facts:
        _show(facts, totals)
    else:
        output.note("no terms yet")


def term_facts(rows: Sequence[TermRow]) -> list[dict[str, Any]]:
    """Of terms, newest first; the oldest one's leaderless_s and overlap_s are null: what was before
    it is not known.

    Both by the nodes' clocks: from the end of the term before (of a crashed one its last heartbeat)
    to the election of this one. Overlap: this one was elected before that end.
    """
    facts = []
    for newer, older in pairwise((*rows, None)):
        assert newer is not None
        between = newer.elected_at - end_of(older) if older else None
        facts.append(
            {
                "fence": newer.fence,
                "node": newer.node,
                "lease": f"{newer.lease:016x}",
                "elected_at": newer.elected_at,
                "heartbeat_at": newer.heartbeat_at,
                "planned_to": newer.planned_to,
                "ended_at": newer.ended_at,
                "reason": newer.reason,
                "leaderless_s": None if between is None else _seconds(between),
                "overlap_s": None if between is None else _seconds(-between),
            }
        )
    return facts


def end_of(term: TermRow) -> datetime:
    """When it is known to have led last."""
    return term.ended_at or term.heartbeat_at


def _seconds(length: timedelta) -> float:
    return max(length, _NONE).total_seconds()


def _totals(facts: Sequence[Fact], now: datetime) -> dict[str, Any]:
    """Of the terms shown. led_s: of one that goes on, up to its last heartbeat."""
    led = (
        _seconds((fact["ended_at"] or fact["heartbeat_at"]) - fact["elected_at"]) for fact in facts
    )
    since = facts[-1]["elected_at"] if facts else None
    return {
        "terms": len(facts),
        "since": since,
        "seconds": since and _seconds(now - since),
        "led_s": sum(led),
        "leaderless_s": sum(fact["leaderless_s"] or 0 for fact in facts),
        "overlap_s": sum(fact["overlap_s"] or 0 for fact in facts),
    }


def _show(facts: Sequence[Fact], totals: Mapping[str, Any]) -> None:
    titles = ("fence>", "node", "elected", "ended", "reason", "led>", "leaderless before>")
    output.columns([_row(fact) for fact in facts], *titles)
    overlap = totals["overlap_s"]
    print()
    output.console().print(
        output.styled(
            f"{totals['terms']} terms since {output.when(totals['since'])}: ",
            f"led {output.span(totals['led_s'])}, ",
            f"leaderless {output.span(totals['leaderless_s'])}, ",
            (f"overlap {output.span(overlap)}", "red" if overlap else "green"),
        )
    )


def _row(fact: Fact) -> tuple[str, ...]:
    led = (fact["ended_at"] or fact["heartbeat_at"]) - fact["elected_at"]
    before = fact["leaderless_s"]
    return (
        str(fact["fence"]),
        fact["node"],
        output.when(fact["elected_at"]),
        output.when(fact["ended_at"]),
        fact["reason"] or "",
        output.span(_seconds(led)),
        "-" if before is None else output.span(before),
    )
