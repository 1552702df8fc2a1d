"""`status`: who leads and what is next; `history`: what became of each slot, newest first."""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Annotated, Any, TypeAlias

import typer

from cron_leader import config as configuration
from cron_leader.cli import output, setup
from cron_leader.cli.lookup import look, reader_of
from cron_leader.cli.times import instant
from cron_leader.config import Config
from cron_leader.core.model import State
from cron_leader.errors import ConfigError
from cron_leader.ledger.views import AttemptRow, GapRow, Reader, SlotRow, Wanted
from cron_leader.log import printable
from cron_leader.status import Fact, facts_of, fence_is_ahead, slot_fact

if TYPE_CHECKING:
    from rich.text import Text

Row: TypeAlias = "tuple[str | Text, ...]"

COLORS = {
    State.SUCCEEDED: "green",
    State.RUNNING: "cyan",
    State.DUE: "cyan",
    State.RETRYING: "cyan",
    State.SKIPPED: "yellow",
    State.MISSED: "yellow",
    State.CANCELLED: "yellow",
}


_SILENT = timedelta(seconds=3)
"""A leader writes a heartbeat every second."""


# ------------------------------------------------------------------ status


def status(config: setup.ConfigPath = None, as_json: setup.AsJson = False) -> int:
    """Show who leads, who is in line, and the last and next slot of each job."""
    loaded = with_code_jobs_if_possible(configuration.load(config, environ=os.environ))
    found = look(loaded)
    facts = facts_of(loaded, found.etcd, found.ledger, datetime.now(UTC))
    if as_json:
        output.print_json({**facts, "errors": [str(error) for error in found.errors]})
    else:
        _show_status(facts, datetime.now(UTC))
    if fence_is_ahead(found.etcd, found.ledger):
        output.note(
            "the ledger's fence is above etcd's revision, so nobody can lead: if this etcd was "
            "rebuilt or restored, run `cron-leader fence rebase`"
        )
    for error in found.errors:
        output.complain(str(error))
    return max((output.exit_code(error) for error in found.errors), default=output.Exit.OK)


def with_code_jobs_if_possible(config: Config) -> Config:
    """A machine to look from need not be able to import what the nodes run."""
    try:
        return setup.with_code_jobs(config)
    except ConfigError as error:
        for line in str(error).splitlines():
            output.note(line)
        return config


def _show_status(facts: Mapping[str, Any], now: datetime) -> None:
    output.console().print(_headline(facts, now))
    if facts["nodes"]:
        print()
        rows = [_node_row(place, fact) for place, fact in enumerate(facts["nodes"], start=1)]
        output.columns(rows, "in line>", "node", "lease", "pid>", "version")
    if facts["jobs"]:
        print()
        _show_jobs(facts["jobs"], now)


def _show_jobs(jobs: Sequence[Fact], now: datetime) -> None:
    """Whose turn comes when is shown where jobs differ in that."""
    rows = [_job_row(fact, now) for fact in jobs]
    titles = ["job", "last slot", "state", "next slot"]
    if any(fact["group"] or fact["priority"] for fact in jobs):
        turns = [(fact["group"] or "-", str(fact["priority"])) for fact in jobs]
        rows = [(*row, *turn) for row, turn in zip(rows, turns, strict=True)]
        titles += ["group", "priority>"]
    output.columns(rows, *titles)


def _headline(facts: Mapping[str, Any], now: datetime) -> Text:
    leader, fleet = facts["leader"], (facts["fleet"], "bold")
    if leader is None:
        nobody = "nobody leads" if facts["nodes"] is not None else "who leads is not known"
        return output.styled("fleet ", fleet, ": ", (nobody, "yellow"))
    if leader["fence"] is None:
        elected = (f"{leader['node']} is elected", "yellow")
        return output.styled(
            "fleet ", fleet, ": ", elected, f", lease {leader['lease']}, no term yet"
        )
    verb = "leads" if facts["nodes"] is not None else "leads, by the ledger's last word"
    return output.styled(
        *("fleet ", fleet, ": ", (f"{leader['node']} {verb}", "green")),
        f", fence {leader['fence']}, lease {leader['lease']}, ",
        f"since {output.when(leader['since'], now=now)}",
        *_silence(now - leader["heartbeat"]),
    )


def _silence(since_heartbeat: timedelta) -> list[tuple[str, str]]:
    """What to say of a leader that the ledger has not heard of for a while."""
    if since_heartbeat <= _SILENT:
        return []
    return [(f", last heartbeat {output.span(since_heartbeat.total_seconds())} ago", "yellow")]


def _node_row(place: int, fact: Fact) -> Row:
    pid = str(fact["pid"] or "-")
    return (str(place), fact["node"], fact["lease"], pid, fact["version"] or "-")


def _job_row(fact: Fact, now: datetime) -> Row:
    last = fact["last"]
    state = _painted(last["state"], last["reason"]) if last else "-"
    return (
        fact["job"],
        output.when(last["scheduled_for"]) if last else "-",
        state,
        _next(fact, now),
    )


def _next(fact: Fact, now: datetime) -> str | Text:
    paused = fact["paused"]
    if paused is None:
        return output.when(fact["next"], now=now)
    until = "until resumed" if paused["until"] is None else f"until {output.when(paused['until'])}"
    why = f": {output.one_line(paused['why'], 40)}" if paused["why"] else ""
    return output.styled((f"paused {until}{why}", "yellow"))


# ------------------------------------------------------------------ history


def history(
    config: setup.ConfigPath = None,
    job: Annotated[str | None, typer.Option(help="Only this one.")] = None,
    states: Annotated[
        list[State] | None, typer.Option("--state", help="Only in this state; may be repeated.")
    ] = None,
    node: Annotated[str | None, typer.Option(help="Only what this node wrote.")] = None,
    term: Annotated[int | None, typer.Option(metavar="FENCE", help="Only of this term.")] = None,
    since: Annotated[
        str | None, typer.Option(metavar="TIME", help="Only slots from this time on (RFC 3339).")
    ] = None,
    until: Annotated[
        str | None, typer.Option(metavar="TIME", help="Only slots before this time.")
    ] = None,
    count: Annotated[
        int, typer.Option("-n", "--limit", min=1, max=100_000, help="How many rows.")
    ] = 20,
    with_output: Annotated[
        bool, typer.Option("--output", help="Also what each attempt printed (in JSON always).")
    ] = False,
    as_json: setup.AsJson = False,
) -> None:
    """Show what became of the slots, newest first; a stretch of missed ones is one row."""
    loaded = configuration.load(config, environ=os.environ)
    wanted = Wanted(
        job=job,
        states=tuple(states or ()),
        node=node,
        fence=term,
        since=None if since is None else instant(since, "UTC", "--since"),
        until=None if until is None else instant(until, "UTC", "--until"),
    )
    with reader_of(loaded) as reader:
        if job is not None:
            expect_job(loaded, reader, job)
        facts = history_facts(reader, wanted, count)
    if as_json:
        output.print_json(facts)
        return
    if not facts:
        filtered = wanted != Wanted(job=job)
        output.note("no such slots" if filtered else f"no slots{f' of {job}' if job else ''} yet")
        return
    rows = [_history_row(fact) for fact in facts]
    titles = ("slot", "job", "state", "node", "fence>", "attempt>", "took>", "error")
    output.columns(rows, *titles)
    if with_output:
        _show_outputs(facts)


def expect_job(config: Config, reader: Reader, name: str, *, with_code: bool = False) -> None:
    """ConfigError unless a job of that name is configured, or was once.

    with_code: the jobs that code defines are in the configuration already.
    """
    known = {job.name for job in config.jobs} | {row.job for row in reader.jobs()}
    if name in known:
        return
    if not with_code:
        known |= {job.name for job in with_code_jobs_if_possible(config).jobs}
    if name not in known:
        raise setup.no_such_job(name, sorted(known), f"{setup.place(config)} or the ledger")


def _show_outputs(facts: Sequence[Fact]) -> None:
    """Below the table and in its order: each attempt's output, under a line that names it."""
    shown = [(fact, said) for fact in facts for said in fact["attempts"] if said["output"]]
    for fact, said in shown:
        print()
        slot = f"{output.when(fact['scheduled_for'])}  {fact['job']}"
        by = f"attempt {said['attempt']} on {said['node']}: "
        output.console().print(output.styled((slot, "bold"), f"  {by}"), end="")
        output.console().print(_painted(said["state"], None))
        for line in said["output"].splitlines():
            print(f"  {printable(line.expandtabs())}")
    if not shown:
        output.note("none of these attempts printed anything")


def history_facts(reader: Reader, wanted: Wanted, count: int) -> list[Fact]:
    slots = reader.history(wanted, limit=count)
    gaps = reader.gap_history(wanted, limit=count)
    attempts = _by_slot(reader.attempts_of(slots))
    facts: list[Fact] = [history_fact(slot, attempts[_key(slot)]) for slot in slots]
    facts += [gap_fact(gap) for gap in gaps]
    return sorted(facts, key=lambda fact: fact["scheduled_for"], reverse=True)[:count]


def _key(row: SlotRow | AttemptRow) -> tuple[object, ...]:
    return row.job, row.scheduled_for, row.command_id


def _by_slot(attempts: Sequence[AttemptRow]) -> Mapping[tuple[object, ...], list[AttemptRow]]:
    found: defaultdict[tuple[object, ...], list[AttemptRow]] = defaultdict(list)
    for attempt in attempts:
        found[_key(attempt)].append(attempt)
    return found


def history_fact(slot: SlotRow, attempts: Sequence[AttemptRow]) -> Fact:
    """error and output: the last attempt's. attempts: all of them, newest first."""
    last = next((attempt for attempt in attempts if attempt.run_id == slot.run_id), None)
    return slot_fact(slot) | {
        "error": last and last.error,
        "output": last and last.output,
        "attempts": [_attempt(attempt) for attempt in attempts],
    }


def _attempt(attempt: AttemptRow) -> Fact:
    who = ("attempt", "node", "fence", "state")
    when = ("started_at", "heartbeat_at", "finished_at")
    how = ("exit_code", "error", "output")
    return {name: getattr(attempt, name) for name in (*who, *when, *how)}


def gap_fact(gap: GapRow) -> dict[str, Any]:
    return {
        "job": gap.job,
        "scheduled_for": gap.last,
        "first": gap.first,
        "slots": gap.slots,
        "state": gap.state,
        "reason": gap.reason,
        "fence": gap.fence,
        "error": None,
        "output": None,
        "attempts": [],
    }


def _history_row(fact: Fact) -> Row:
    """A row of the table; a gap says its stretch where a slot says its error."""
    took = fact.get("duration_ms")
    text = _gist(fact["error"] or "")
    if fact["slots"] > 1:
        text = f"{fact['slots']} slots from {output.when(fact['first'])}"
    return (
        output.when(fact["scheduled_for"]),
        fact["job"],
        _painted(fact["state"], fact["reason"]),
        fact.get("node", ""),
        str(fact["fence"]),
        str(fact.get("attempt", "")),
        "" if took is None else output.span(took / 1000),
        output.one_line(text, 60),
    )


def _gist(error: str) -> str:
    """The line that says what happened: of a traceback the last, of other errors the first."""
    lines = [line for line in error.splitlines() if line.strip()] or [""]
    return lines[-1] if any(line.startswith('  File "') for line in lines) else lines[0]


def _painted(state: str, reason: str | None) -> Text:
    color = COLORS.get(State(state), "red")
    return output.styled((state, color), f" ({reason})" if reason else "")
