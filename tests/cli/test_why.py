"""why, terms and the filters of history, off a real ledger."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from cron_leader.cli import why
from cron_leader.cli.terms import term_facts
from cron_leader.core.model import Candidate, Reason, Refused, Settlement, State, Term
from cron_leader.ledger import Ledger, open_ledger
from cron_leader.ledger.views import CommandRow, TermRow, open_reader

from .conftest import Cli
from .test_state import MINUTE, T0, command, configure, lead, run

HOUR = timedelta(hours=1)
SECOND = timedelta(seconds=1)


@pytest.fixture
async def ledger(folder: Path) -> AsyncIterator[Ledger]:
    opened = open_ledger(f"sqlite:///{folder}/cron-leader.db")
    yield opened
    await opened.close()


async def follow(ledger: Ledger, elected: datetime, *, node: str = "b", fence: int = 9) -> Term:
    """A second term, that of another node."""
    candidate = Candidate("default/0", f"n{fence}", node, 0xB0B, fence, 1)
    assert await ledger.raise_fence(candidate, elected, waiting=lambda: None) == fence
    term = Term("default/0", fence, f"n{fence}", node, 0xB0B, elected)
    await ledger.settle(term, Settlement(elected, elected, (), (), (), (), frozenset()))
    return term


def keep_for_ever() -> None:
    file = Path("cron-leader.toml")
    file.write_text(file.read_text() + '[ledger]\nretention = "off"\n')


def black_out(window: str) -> None:
    file = Path("cron-leader.toml")
    file.write_text(f"{file.read_text()}blackout = {window}\n")


async def ask(cli: Cli, at: datetime | str, job: str = "digest") -> dict[str, Any]:
    time = at if isinstance(at, str) else at.isoformat()
    ran = await command(cli, "why", job, time, "--json")
    assert ran.code == 0, ran.err
    answer: dict[str, Any] = json.loads(ran.out)
    return answer


# ------------------------------------------------------------------ why


async def test_a_failed_slot_is_told_with_its_leader_and_its_attempt(
    cli: Cli, ledger: Ledger
) -> None:
    configure()
    await lead(ledger)
    said = await ask(cli, T0 + MINUTE)
    assert said["verdict"] == "recorded"
    assert said["leader"]["node"] == "a"
    assert said["slots"][0]["attempts"][0]["exit_code"] == 3
    assert said["text"] == (
        "2026-01-02 03:01:00Z is a slot of digest. "
        "a led then, under fence 7, since 2026-01-02 03:00:00Z. "
        "Its slot was recorded as failed at 2026-01-02 03:01:01.500Z, by a under fence 7. "
        "Attempt 1 was claimed by a at 2026-01-02 03:01:00Z and is failed since "
        "2026-01-02 03:01:01.500Z, exit code 3: [bold]exit code 3."
    )


async def test_a_missed_slot_is_told_with_its_reason_in_words(cli: Cli, ledger: Ledger) -> None:
    configure()
    await lead(ledger)
    said = await ask(cli, T0)
    assert "recorded as missed" in said["text"]
    assert "its turn came later than start_within allows (late)" in said["text"]


@pytest.mark.parametrize(
    ("state", "reason", "words"),
    [
        (State.SKIPPED, Reason.OVERLAP, "another run of its job went at that time (overlap)"),
        (State.CANCELLED, Reason.OVERLAP, "a newer slot of the job replaced it (overlap)"),
        (State.FAILED, Reason.LATE, "its next attempt would come later than start_within"),
    ],
)
def test_a_reason_has_the_words_of_its_state(state: State, reason: Reason, words: str) -> None:
    assert words in why._because(state, reason)


async def test_a_slot_in_a_gap_is_told_with_the_whole_stretch_and_that_nobody_led(
    cli: Cli, ledger: Ledger
) -> None:
    configure()
    await lead(ledger)
    said = await ask(cli, T0 - 5 * MINUTE)
    assert said["verdict"] == "in_gap"
    assert said["gap"]["slots"] == 20
    assert said["leader"] is None
    assert said["leaderless"] == {"from": None, "to": "2026-01-02T03:00:00Z"}
    assert "one of 20 slots from 2026-01-02 02:40:00Z to 2026-01-02 02:59:00Z" in said["text"]


async def test_a_slot_in_a_blackout_is_told_with_its_end(cli: Cli, ledger: Ledger) -> None:
    configure()
    black_out('{ days = "*", from = "03:00", to = "04:00" }')
    await lead(ledger)
    said = await ask(cli, T0 + MINUTE)
    assert said["blackout_until"] == "2026-01-02T04:00:00Z"
    assert "is a slot of digest, in a blackout until 2026-01-02 04:00:00Z." in said["text"]


async def test_a_time_that_is_no_slot_names_the_nearest(cli: Cli, ledger: Ledger) -> None:
    configure()
    await lead(ledger)
    said = await ask(cli, T0 + 90 * SECOND)
    assert said["verdict"] == "no_slot"
    assert (said["slot_before"], said["slot_after"]) == (
        "2026-01-02T03:01:00Z",
        "2026-01-02T03:02:00Z",
    )
    assert "the nearest are 2026-01-02 03:01:00Z and 2026-01-02 03:02:00Z." in said["text"]


async def test_times_before_the_job_was_known_and_still_to_come_are_told_as_such(
    cli: Cli, ledger: Ledger
) -> None:
    configure()
    await lead(ledger)
    assert (await ask(cli, T0 - HOUR))["verdict"] == "before_effective"
    said = await ask(cli, T0 + HOUR)
    assert said["verdict"] == "not_planned_yet"
    assert "planned up to 2026-01-02 03:02:00Z" in said["text"]


async def test_of_a_job_that_no_leader_has_adopted_it_is_told_that_none_has(
    cli: Cli, ledger: Ledger
) -> None:
    configure()
    await lead(ledger)
    configure(job="newer")
    said = await ask(cli, T0 + MINUTE, "newer")
    assert said["verdict"] == "not_planned_yet"
    assert "No leader knows newer yet" in said["text"]
    assert "planned up to" not in said["text"]


async def test_a_retired_job_was_not_due_and_an_unknown_schedule_is_not_guessed(
    cli: Cli, ledger: Ledger
) -> None:
    configure(job="other")
    keep_for_ever()
    term = await lead(ledger)
    await ledger.heartbeat(term, T0 + HOUR, T0 + HOUR)
    with open_reader(f"sqlite:///{Path.cwd()}/cron-leader.db") as reader:
        reader._database.run("UPDATE cron_leader_job SET retired_at = '2026-01-02T03:02:30Z'", {})
    said = await ask(cli, T0 + 3 * MINUTE)
    assert (said["verdict"], said["is_slot"]) == ("retired", None)
    assert "not configured any more" in said["text"]
    assert (await ask(cli, T0 + 90 * SECOND))["verdict"] == "schedule_unknown"


async def test_what_retention_deleted_is_told_as_deleted_and_a_hole_as_one(
    cli: Cli, ledger: Ledger
) -> None:
    configure()
    keep_for_ever()
    term = await lead(ledger)
    await ledger.heartbeat(term, T0 + HOUR, T0 + HOUR)
    assert (await ask(cli, T0 + 3 * MINUTE))["verdict"] == "unexplained"
    with open_reader(f"sqlite:///{Path.cwd()}/cron-leader.db") as reader:
        reader._database.run(
            "DELETE FROM cron_leader_slot WHERE scheduled_for < '2026-01-02T03:02:00'", {}
        )
    said = await ask(cli, T0 + MINUTE)
    assert said["verdict"] == "deleted_by_retention"
    assert "deleted by retention" in said["text"]


async def test_refusals_and_orders_around_the_slot_are_told(cli: Cli, ledger: Ledger) -> None:
    configure()
    old = await lead(ledger)
    new = await follow(ledger, T0 + 3 * MINUTE)
    await run(ledger, new, T0 + 4 * MINUTE, error=None)
    refused = await ledger.heartbeat(old, T0, T0 + 4 * MINUTE + SECOND)
    assert isinstance(refused, Refused)
    with open_reader(f"sqlite:///{Path.cwd()}/cron-leader.db") as reader:
        reader.order(
            CommandRow("1", "step-down", "default/0", "{}", "op@host", "disk", T0 + 4 * MINUTE)
        )
    said = await ask(cli, T0 + 4 * MINUTE)
    assert "a heartbeat of a under fence 7 was refused, the fence being 9." in said["text"]
    assert "op@host ordered step-down of default/0 (disk): not answered." in said["text"]
    assert (await ask(cli, T0 + 10 * MINUTE))["refusals"] == []


async def test_an_exit_code_is_told_once(cli: Cli, ledger: Ledger) -> None:
    configure()
    await run(ledger, await lead(ledger), T0 + 4 * MINUTE, error="exit code 3")
    said = await ask(cli, T0 + 4 * MINUTE)
    assert said["text"].endswith("is failed since 2026-01-02 03:04:01.500Z, exit code 3.")


async def test_orders_to_other_jobs_are_not_told(cli: Cli, ledger: Ledger) -> None:
    configure()
    await lead(ledger)
    with open_reader(f"sqlite:///{Path.cwd()}/cron-leader.db") as reader:
        for number, job in enumerate(["other"] * 12 + ["digest"]):
            args = json.dumps({"job": job, "for_s": None})
            at = T0 + MINUTE + number * SECOND
            reader.order(CommandRow(str(number), "pause", "default/0", args, "op", "", at))
    said = await ask(cli, T0 + MINUTE)
    assert [order["kind"] for order in said["orders"]] == ["pause"]
    assert "ordered pause of digest" in said["text"]
    assert "of other" not in said["text"]


async def test_between_two_terms_the_leaderless_stretch_is_told(cli: Cli, ledger: Ledger) -> None:
    configure()
    old = await lead(ledger)
    await ledger.close_term(old, "resigned", T0 + 2 * MINUTE + SECOND)
    await follow(ledger, T0 + 6 * MINUTE)
    said = await ask(cli, T0 + 4 * MINUTE)
    assert said["leaderless"] == {"from": "2026-01-02T03:02:01Z", "to": "2026-01-02T03:06:00Z"}
    assert (
        "Nobody led then: the term of a, fence 7, had ended at 2026-01-02 03:02:01Z (resigned), "
        "and b, elected at 2026-01-02 03:06:00Z under fence 9." in said["text"]
    )


async def test_for_people_it_is_one_paragraph_and_bad_input_is_exit_2(
    cli: Cli, ledger: Ledger
) -> None:
    configure()
    await lead(ledger)
    ran = await command(cli, "why", "digest", "2026-01-02T03:01:00")
    assert (ran.code, ran.err) == (0, "")
    assert ran.out.startswith("2026-01-02 03:01:00Z is a slot of digest. ")
    assert "\n\n" not in ran.out
    wrong = await command(cli, "why", "digest", "noon")
    assert wrong.code == 2
    assert "TIME 'noon': not a time" in wrong.err
    assert (await command(cli, "why", "digset", "2026-01-02T03:01:00Z")).code == 2


def test_without_a_ledger_it_is_exit_3(cli: Cli) -> None:
    configure()
    assert cli("why", "digest", "2026-01-02T03:01:00Z").code == 3
    assert cli("terms").code == 3


# ------------------------------------------------------------------ history


@pytest.mark.parametrize(
    ("options", "states"),
    [
        (["--state", "failed"], ["failed"]),
        (["--state", "failed", "--state", "succeeded"], ["succeeded", "failed"]),
        (["--state", "running"], []),
        (["--state", "missed"], ["missed", "missed"]),
        (["--node", "a"], ["succeeded", "failed", "missed", "missed"]),
        (["--node", "b"], []),
        (["--term", "7", "--limit", "1"], ["succeeded"]),
        (["--term", "8"], []),
        (["--since", "2026-01-02T03:01:00Z"], ["succeeded", "failed"]),
        (["--until", "2026-01-02T03:01:00Z"], ["missed", "missed"]),
        (["--since", "2026-01-02T02:50:00Z", "--until", "2026-01-02T02:51:00Z"], ["missed"]),
        (["--job", "digest", "--node", "a", "--state", "failed", "--term", "7"], ["failed"]),
    ],
)
async def test_history_is_filtered(
    cli: Cli, ledger: Ledger, options: list[str], states: list[str]
) -> None:
    configure()
    await lead(ledger)
    ran = await command(cli, "history", "--json", *options)
    assert ran.code == 0, ran.err
    assert [row["state"] for row in json.loads(ran.out)] == states


async def test_a_filter_that_finds_nothing_says_so_and_a_wrong_one_is_exit_2(
    cli: Cli, ledger: Ledger
) -> None:
    configure()
    await lead(ledger)
    assert "no such slots" in (await command(cli, "history", "--node", "z")).err
    assert (await command(cli, "history", "--state", "fine")).code == 2
    wrong = await command(cli, "history", "--since", "noon")
    assert wrong.code == 2
    assert "--since 'noon'" in wrong.err


# ------------------------------------------------------------------ terms


async def test_terms_tell_the_leaderless_time_between_and_that_none_overlap(
    cli: Cli, ledger: Ledger
) -> None:
    configure()
    old = await lead(ledger)
    await ledger.close_term(old, "resigned", T0 + 2 * MINUTE)
    new = await follow(ledger, T0 + 6 * MINUTE)
    await ledger.heartbeat(new, T0 + 7 * MINUTE, T0 + 7 * MINUTE)
    found = json.loads((await command(cli, "terms", "--json")).out)
    assert [(t["fence"], t["leaderless_s"], t["overlap_s"]) for t in found["terms"]] == [
        (9, 240.0, 0.0),
        (7, None, None),
    ]
    totals = found["totals"]
    assert (totals["terms"], totals["led_s"], totals["leaderless_s"]) == (2, 180.0, 240.0)
    assert totals["overlap_s"] == 0
    shown = (await command(cli, "terms", "-n", "1")).out
    assert "4m00s" in shown
    assert "overlap 0ms" in shown


def test_a_term_elected_before_the_last_one_ended_is_an_overlap() -> None:
    first = TermRow("default/0", 7, "n", "a", 1, T0, T0 + MINUTE, T0, T0 + MINUTE, "resigned")
    second = TermRow("default/0", 9, "m", "b", 2, T0 + 59 * SECOND, T0 + HOUR, T0, None, None)
    (newest, oldest) = term_facts((second, first))
    assert (newest["overlap_s"], newest["leaderless_s"]) == (1.0, 0.0)
    assert oldest["overlap_s"] is None


async def test_no_terms_yet_is_a_note(cli: Cli, ledger: Ledger) -> None:
    configure()
    await ledger.open(fleet="default", shards=1, migrate=True)
    assert "no terms yet" in (await command(cli, "terms")).err
    empty = json.loads((await command(cli, "terms", "--json")).out)
    assert empty["terms"] == []
    assert empty["totals"]["terms"] == 0
