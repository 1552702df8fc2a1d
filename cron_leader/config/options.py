"""The keys of a job in words: the table in docs/jobs.md, made of the schema, of Job's defaults and
of what is said here. A test holds the page against it, and what is said against the schema.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from enum import Enum
from typing import Any

from cron_leader.config import schema
from cron_leader.config.jobs import READERS
from cron_leader.config.units import NS_PER_S, show_duration
from cron_leader.core.model import Job


@dataclass(frozen=True, slots=True)
class Option:
    """meaning: in Markdown. unset: what holds without the key, where Job has no value for that."""

    meaning: str
    unset: str = "none"


JOB: Mapping[str, Option] = {
    "name": Option(
        "what it is called in the ledger for ever: rename it and it is a new job, "
        "unless `renamed_from` says what it was",
        unset="",
    ),
    "cron": Option(
        "five fields, as in Debian's cron, or six with seconds in front; a list of them is "
        "all their slots, an instant once; a day field that starts with `*` narrows, "
        "otherwise day of month and day of week are alternatives; see [the "
        "guide](guide.md#what-cron-accepts)",
        unset="",
    ),
    "every": Option(
        "an interval, counted from 1970-01-01 UTC, never from a leader's start",
        unset="",
    ),
    "at": Option(
        "once, at this time (RFC 3339), or once at each of a list",
        unset="",
    ),
    "timezone": Option(
        "the zone in which `cron` is read",
        unset="UTC",
    ),
    "anchor": Option(
        "a time from which `every` counts, both ways",
        unset="1970-01-01",
    ),
    "start": Option("the first time of `cron` and `every` that may be a slot, inclusive"),
    "end": Option(
        "when slots of `cron` and `every` end, exclusive; with `start` or without",
    ),
    "dst_gap": Option(
        "times a clock set forward jumps over: `run` once, at the jump, or `skip`; by "
        "default `run` for fixed times, `skip` where minute or hour starts with `*` and "
        "with seconds",
        unset="as Debian's cron",
    ),
    "dst_fold": Option(
        "times a clock set back shows twice: fire `once` or `twice`; by default `once` for "
        "fixed times, else `twice`",
        unset="as Debian's cron",
    ),
    "command": Option(
        "the program and its arguments, no shell in between",
        unset="",
    ),
    "shell": Option(
        "a line for /bin/sh",
        unset="",
    ),
    "python": Option(
        '`"pkg.mod:function"`, called with a Tick; looked for as `jobs.modules` are',
        unset="",
    ),
    "url": Option(
        "a request is sent there, with the headers `Cron-Leader-*` and `Idempotency-Key`; "
        "needs the extra `http`, see [requests](#requests)",
        unset="",
    ),
    "method": Option(
        "of the request",
        unset="GET, with `body` POST",
    ),
    "headers": Option(
        '`{ X-Team = "ops", Authorization = { file = "token" } }`: text, in which `${NAME}` '
        "is taken from the daemon's environment, or the first line of a file, read for each "
        "request",
    ),
    "body": Option("of the request; `{job}`, `{scheduled_for}` and so on are replaced"),
    "expected_status": Option(
        "the statuses that are a success",
        unset="any 2xx",
    ),
    "follow_redirects": Option(
        "up to 5 of them",
        unset="false",
    ),
    "ca": Option(
        "a PEM file: the authorities to trust",
        unset="the usual ones",
    ),
    "cert": Option("a PEM file: the certificate to show; with `key`"),
    "key": Option("a PEM file: its key; with `cert`"),
    "env": Option(
        "variables for the run; `${NAME}` is taken from the daemon's environment",
    ),
    "cwd": Option(
        "where the run starts; relative to the configuration file",
        unset="the daemon's",
    ),
    "user": Option(
        '`"name"` or `"name:group"`: who the run is, with that user\'s other groups, `HOME`, '
        "`USER` and `LOGNAME`; the daemon must be root",
        unset="the daemon's",
    ),
    "umask": Option(
        'of the run: octal digits in quotes, as `"027"`',
        unset="the daemon's",
    ),
    "nice": Option(
        "of the run's processes; to go below the daemon's own needs root",
        unset="the daemon's",
    ),
    "limits": Option(
        "of each process of a run: `cpu`, `memory`, `files`, `processes`, see "
        "[below](#who-a-run-is-and-what-it-may-use)",
    ),
    "timeout": Option(
        "then SIGTERM to the run's process group, and SIGKILL after `grace`; the slot is "
        "`timed_out`",
    ),
    "grace": Option("between SIGTERM and SIGKILL"),
    "drain": Option(
        "how long this job's run may take to end when the node is asked to stop",
        unset="`[run] drain`",
    ),
    "renamed_from": Option(
        "the name that the job had before: the leader that first sees the new one moves its "
        "history, its pause and what waits to it, so that no slot is missed or run twice; `H` and "
        "jitter are drawn by the new name",
    ),
    "overlap": Option(
        "a slot that falls due while the previous run still goes: `skip` records it as "
        "`skipped`; `queue` lets it wait; `replace` ends that run (`cancelled`) and then "
        "starts, in its room; `allow` starts beside it; runs of an earlier leader "
        '(`on_lost_leadership = "finish"`) do not count',
    ),
    "max_parallel": Option(
        "runs of the job at once on the leader: with `queue` 1 unless given, with `allow` "
        "no bound but the node's; beyond it `queue` waits, `allow` records `skipped`, "
        "`limit`",
    ),
    "queue_limit": Option(
        "slots of the job that may wait at once, for a run or for room; beyond it "
        "`skipped`, `limit`",
    ),
    "when_full": Option(
        "a slot that falls due while `run.max_parallel` runs go, or its group's: it waits "
        "(`queue`), or `skip`: `skipped`, `limit`; one that waited for its jitter or its "
        "pace waits in any case",
    ),
    "group": Option(
        "whose job it is, as a tenant's name: groups share a full node in turn, and a "
        "`[[group]]` bounds their runs, see [below](#whose-turn-it-is)",
    ),
    "priority": Option(
        "when there is no room for all, or after an outage: the higher starts first",
    ),
    "catchup": Option(
        "of slots whose time passed while nobody led: run the newest (`latest`), as many as "
        "`catchup_limit` (`all`), or none; the others are recorded as `missed`",
    ),
    "catchup_limit": Option('the most that `catchup = "all"` runs'),
    "start_within": Option("a slot older than this is `missed`, not started late"),
    "retries": Option(
        "attempts after a first one that failed or timed out; meanwhile the slot is "
        "`retrying`, over a change of leader, too; no attempt starts later than "
        "`start_within`; one that a lost leader cut short counts; one that was put back "
        "before it ran does not",
    ),
    "backoff": Option(
        "the wait after the first attempt, doubled by each further one; half of it is "
        "certain, the other half drawn by a hash",
    ),
    "backoff_max": Option("what the doubled wait does not pass"),
    "retry_on": Option(
        "of a python job: names of the exceptions to try again for, without those derived "
        "from them",
        unset="any",
    ),
    "retry_exit_codes": Option(
        "of a program: the exit codes to try again for, as a shell counts (143 is SIGTERM)",
        unset="any",
    ),
    "retry_budget": Option(
        "the most retries of the job in an hour, within a term; beyond it an attempt that "
        "fails is the last",
    ),
    "jitter": Option(
        "a slot's run starts up to this late, before the next slot, by a hash of job and "
        "slot; the slot keeps its time, and is `due` meanwhile",
    ),
    "blackout": Option(
        "when the job does not run: a window, the name of one, or a list of them, see [the "
        "guide](guide.md#blackouts); a slot in one is `skipped`, `blackout`, and what "
        "starts late waits for its end",
    ),
    "delivery": Option(
        "what becomes of a run whose leader was lost: `abandoned`, or with `at-least-once` "
        "run again (at most twice for this reason)",
    ),
    "on_lost_leadership": Option(
        "the run's group is killed when its leader's lease ends, or it may `finish`: it may "
        "then overlap the next leader's runs of the job, whatever `overlap` says, and its result "
        "is refused",
    ),
    "isolation": Option(
        "`inline` runs an async function inside the daemon: for trusted, quick code only",
    ),
}


def table() -> str:
    """The keys of a [[job]] table as one Markdown table, in the order of the schema."""
    lines = ["| key | value | default | meaning |", "|---|---|---|---|"]
    for key, of_key in schema.JOB.items():
        option = JOB[key]
        default = _default(key) or option.unset
        lines.append(
            f"| `{key}` | {kind(of_key)} | {default} | {option.meaning} |".replace("  ", " ")
        )
    return "\n".join(lines) + "\n"


def kind(value: schema.Schema) -> str:
    """What a value may be, in a few words: of schema's own sentence, else by its type."""
    given: Any = value
    if said := given.get("metadata", {}).get("is"):
        return str(said)
    match given["type"]:
        case "literal":
            return ", ".join(f"`{each}`" for each in given["expected"])
        case "int":
            return f"{given['ge']} to {given['le']}"
        case "bool":
            return "`true`, `false`"
        case "list":
            return f"list of {kind(given['items_schema'])}"
        case "tagged-union":
            return " or ".join(dict.fromkeys(kind(choice) for choice in given["choices"].values()))
        case "function-after":
            return kind(given["schema"])
        case "any":
            return "time"
        case _:
            return "table"


def _default(key: str) -> str:
    """Job's own default as it would be written; empty if it has none that can be."""
    name, _ = READERS.get(key, ("", None))
    found = [field.default for field in fields(Job) if field.name == name]
    match found:
        case [float(seconds)]:
            return show_duration(int(seconds * NS_PER_S))
        case [Enum(value=value)]:
            return str(value)
        case [int(number)]:
            return str(number)
        case _:
            return ""
