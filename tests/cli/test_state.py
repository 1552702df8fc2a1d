"""status, history, fence and step-down, off a real ledger and a real etcd."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from cron_leader.clock import SystemClock
from cron_leader.config import EtcdConfig
from cron_leader.core.messages import Elected, LeaseRenewed
from cron_leader.core.model import (
    Batch,
    Candidate,
    Claim,
    CommandResult,
    Entry,
    Finish,
    Gap,
    JobRecord,
    Reason,
    Refused,
    Result,
    Settlement,
    SlotKey,
    State,
    Term,
)
from cron_leader.etcd.channel import Etcd
from cron_leader.etcd.embedded import EmbeddedEtcd, EtcdOptions
from cron_leader.etcd.survey import Survey, survey
from cron_leader.ledger import Ledger, open_ledger
from cron_leader.ledger.views import CommandRow, open_reader
from tests.etcd_kit import PREFIX, Emitted, Fleet, fleet_of

from .conftest import Cli, Ran

T0 = datetime(2026, 1, 2, 3, 0, tzinfo=UTC)
MINUTE = timedelta(minutes=1)
LEASE = 0x5EAF


@pytest.fixture(scope="module")
def etcd(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedEtcd]:
    options = EtcdOptions(heartbeat_ms=50, election_ms=250)
    with EmbeddedEtcd(tmp_path_factory.mktemp("etcd") / "data", options=options) as running:
        yield running


@pytest.fixture
async def fleet(etcd: EmbeddedEtcd) -> AsyncIterator[Fleet]:
    async with fleet_of(etcd.endpoint) as made:
        yield made


def configure(
    *,
    fleet: str = "default",
    endpoint: str = "127.0.0.1:1",
    job: str = "digest",
    more: str = "",
) -> None:
    Path("cron-leader.toml").write_text(
        f'[fleet]\nname = "{fleet}"\nprefix = "{PREFIX}"\n[etcd]\nendpoints = ["{endpoint}"]\n'
        f'[[job]]\nname = "{job}"\nevery = "1m"\nshell = ":"\n{more}'
    )


async def lead(ledger: Ledger, *, fleet: str = "default", lease: int = LEASE) -> Term:
    """A term of node a with fence 7: a gap of 20 slots, a missed one, a failed and a good run."""
    election = f"{fleet}/0"
    await ledger.open(fleet=fleet, shards=1, migrate=True)
    fence = await ledger.raise_fence(
        Candidate(election, "n", "a", lease, 7, 1), T0, waiting=lambda: None
    )
    assert fence == 7
    term = Term(election, 7, "n", "a", lease, T0)
    await ledger.settle(
        term,
        Settlement(
            now=T0,
            planned_to=T0,
            jobs=(JobRecord("digest", T0, T0, "every 1m"),),
            retired=(),
            entries=(Entry(SlotKey("digest", T0), State.MISSED, Reason.LATE),),
            gaps=(Gap("digest", T0 - 20 * MINUTE, T0 - MINUTE, 20, Reason.COALESCED),),
            at_least_once=frozenset(),
        ),
    )
    await run(ledger, term, T0 + MINUTE, error="[bold]exit code 3\nmore")
    await run(ledger, term, T0 + 2 * MINUTE, error=None)
    return term


async def run(
    ledger: Ledger, term: Term, at: datetime, *, error: str | None, said: str | None = None
) -> None:
    """One run of 1.5 s."""
    slot, run_id = SlotKey("digest", at), at.isoformat()
    taken = await ledger.take(term, Batch((Claim(slot, run_id),), (), at, at))
    assert not isinstance(taken, Refused)
    end = at + timedelta(seconds=1.5)
    state = State.FAILED if error else State.SUCCEEDED
    result = Result(3 if error else 0, False, error, said, end, 1_500_000_000)
    await ledger.finish(term, Finish(slot, 1, run_id, state, state, None, result))


@pytest.fixture
async def ledger(folder: Path) -> AsyncIterator[Ledger]:
    opened = open_ledger(f"sqlite:///{folder}/cron-leader.db")
    yield opened
    await opened.close()


async def command(cli: Cli, *args: str) -> Ran:
    """Beside this event loop, for the command runs one of its own."""
    return await asyncio.to_thread(cli, *args)


async def test_words_that_are_no_utf8_are_bad_usage_and_no_defect(cli: Cli, ledger: Ledger) -> None:
    configure()
    await lead(ledger)
    for args in (("history", "--node", "n\udcff"), ("pause", "digest", "--why", "n\udcff")):
        ran = await command(cli, *args)
        assert (ran.code, ran.out) == (2, "")
        assert ran.err.endswith("is no UTF-8 text: '\\udcff'\n")


# ------------------------------------------------------------------ history


async def test_history_is_newest_first_with_reason_duration_and_error(
    cli: Cli, ledger: Ledger
) -> None:
    configure()
    await lead(ledger)
    rows = json.loads((await command(cli, "history", "--json")).out)
    assert [(row["state"], row["reason"], row["slots"]) for row in rows] == [
        ("succeeded", None, 1),
        ("failed", None, 1),
        ("missed", "late", 1),
        ("missed", "coalesced", 20),
    ]
    assert rows[0]["scheduled_for"] == "2026-01-02T03:02:00Z"
    assert rows[0]["duration_ms"] == 1500
    assert rows[1]["error"].startswith("[bold]exit code 3")
    assert rows[3]["first"] == "2026-01-02T02:40:00Z"


async def test_history_for_people_shows_errors_as_they_are(cli: Cli, ledger: Ledger) -> None:
    configure()
    await lead(ledger)
    lines = (await command(cli, "history", "-n", "3")).out.splitlines()
    assert len(lines) == 4
    assert lines[1].split()[:6] == ["2026-01-02", "03:02:00Z", "digest", "succeeded", "a", "7"]
    assert lines[2].rstrip().endswith("1.5s  [bold]exit code 3")
    assert "missed (late)" in lines[3]
    text = (await command(cli, "history")).out
    assert "20 slots from 2026-01-02 02:40:00Z" in text


TRACEBACK = """Traceback (most recent call last):
  File "jobs.py", line 3, in digest
    raise ValueError("no such day")
ValueError: no such day
"""


async def test_history_shows_the_end_of_a_traceback_and_all_of_it_in_json(
    cli: Cli, ledger: Ledger
) -> None:
    configure()
    term = await lead(ledger)
    await run(ledger, term, T0 + 3 * MINUTE, error=TRACEBACK)
    lines = (await command(cli, "history", "-n", "1")).out.splitlines()
    assert lines[1].rstrip().endswith("1.5s  ValueError: no such day")
    args = ("history", "-n", "1", "--json", "--log-level", "debug")
    (row,) = json.loads((await command(cli, *args)).out)
    assert row["error"] == TRACEBACK


async def test_history_shows_what_attempts_printed_when_asked(cli: Cli, ledger: Ledger) -> None:
    configure()
    term = await lead(ledger)
    await run(ledger, term, T0 + 3 * MINUTE, error=None, said="[red]one\n\ttwo\x1b]2;owned\x07\n")
    assert "[red]one" not in (await command(cli, "history")).out
    text = (await command(cli, "history", "--output")).out
    _, below = text.split("\n\n")
    assert below.splitlines() == [
        "2026-01-02 03:03:00Z  digest  attempt 1 on a: succeeded",
        "  [red]one",
        "          two\\x1b]2;owned\\x07",
    ]
    rows = json.loads((await command(cli, "history", "--json")).out)
    assert rows[0]["output"].startswith("[red]one")
    assert rows[0]["attempts"][0]["output"] == rows[0]["output"]
    assert {row["output"] for row in rows[1:]} == {None}


async def test_history_says_so_if_nothing_was_printed(cli: Cli, ledger: Ledger) -> None:
    configure()
    await lead(ledger)
    assert "none of these attempts printed" in (await command(cli, "history", "--output")).err


async def test_history_of_one_job(cli: Cli, ledger: Ledger) -> None:
    configure()
    await lead(ledger)
    assert len(json.loads((await command(cli, "history", "--job", "digest", "--json")).out)) == 4
    configure(job="other")
    assert json.loads((await command(cli, "history", "--job", "other", "--json")).out) == []
    assert "no slots of other" in (await command(cli, "history", "--job", "other")).err


async def test_history_of_a_job_that_never_was_names_the_nearest(cli: Cli, ledger: Ledger) -> None:
    configure()
    await lead(ledger)
    ran = await command(cli, "history", "--job", "digset")
    assert (ran.code, ran.out, ran.err.count("\n")) == (2, "", 1)
    assert "did you mean digest?" in ran.err


# ------------------------------------------------------------------ status


async def test_status_names_the_leader_its_term_the_line_and_the_jobs(
    cli: Cli, ledger: Ledger, fleet: Fleet, etcd: EmbeddedEtcd
) -> None:
    configure(fleet=fleet.name, endpoint=etcd.endpoint)
    first = fleet.join("a")
    await first.until(Elected)
    fleet.join("b")
    term = await lead(ledger, fleet=fleet.name, lease=first.seat.lease)
    said = await status_with(cli, nodes=2)
    leader = said["leader"]
    assert (leader["node"], leader["fence"]) == ("a", 7)
    assert leader["lease"] == f"{first.seat.lease:016x}"
    assert leader["since"] == "2026-01-02T03:00:00Z"
    assert [node["node"] for node in said["nodes"]] == ["a", "b"]
    (job,) = said["jobs"]
    assert (job["last"]["scheduled_for"], job["last"]["state"]) == (
        "2026-01-02T03:02:00Z",
        "succeeded",
    )
    assert job["next"] > job["last"]["scheduled_for"]
    assert (job["group"], job["priority"]) == (None, 0)
    text = (await command(cli, "status")).out
    assert "priority" not in text
    assert f"fleet {fleet.name}: a leads, fence 7" in text
    assert ", last heartbeat " in text
    await ledger.heartbeat(term, T0, datetime.now(UTC))
    assert "heartbeat" not in (await command(cli, "status")).out
    configure(fleet=fleet.name, endpoint=etcd.endpoint, more='group = "mail"\npriority = 3\n')
    (job,) = (await status_with(cli, nodes=2))["jobs"]
    assert (job["group"], job["priority"]) == ("mail", 3)
    *_, titles, row = (await command(cli, "status")).out.splitlines()
    assert titles.split()[-2:] == ["group", "priority"]
    assert row.split()[-2:] == ["mail", "3"]


async def status_with(cli: Cli, *, nodes: int) -> dict[str, Any]:
    """The status once so many nodes are in line: joining has no signal to wait for from here."""
    async with asyncio.timeout(15):
        while True:
            ran = await command(cli, "status", "--json")
            assert ran.code == 0, ran.err
            if len((said := json.loads(ran.out))["nodes"]) == nodes:
                return said


async def test_status_names_the_rebase_where_etcd_is_behind_the_fence(
    cli: Cli, ledger: Ledger, fleet: Fleet, etcd: EmbeddedEtcd
) -> None:
    configure(fleet=fleet.name, endpoint=etcd.endpoint)
    old = await lead(ledger, fleet=fleet.name)
    far = Candidate(old.election, "m", "b", LEASE + 1, 1 << 40, 1)
    await ledger.raise_fence(far, T0, waiting=lambda: None)
    ran = await command(cli, "status")
    assert "nobody leads" in ran.out
    assert "`cron-leader fence rebase`" in ran.err
    await command(cli, "fence", "rebase", "--yes")
    assert "rebase" not in (await command(cli, "status")).err


async def test_a_leader_whose_term_is_not_in_the_ledger_has_no_fence_yet(
    cli: Cli, ledger: Ledger, fleet: Fleet, etcd: EmbeddedEtcd
) -> None:
    configure(fleet=fleet.name, endpoint=etcd.endpoint)
    node = fleet.join("z")
    await node.until(Elected)
    await lead(ledger, fleet=fleet.name, lease=node.seat.lease + 1)
    text = (await command(cli, "status")).out
    assert "z is elected" in text
    assert "no term yet" in text


async def test_with_etcd_gone_status_says_what_the_ledger_knows_and_exits_3(
    cli: Cli, ledger: Ledger
) -> None:
    configure()
    await lead(ledger)
    ran = await command(cli, "status")
    assert ran.code == 3
    assert "a leads, by the ledger's last word, fence 7" in ran.out
    assert ran.err.count("\n") == 1
    assert "127.0.0.1:1" in ran.err
    said = json.loads((await command(cli, "status", "--json")).out)
    assert said["nodes"] is None
    assert len(said["errors"]) == 1


async def test_with_the_ledger_gone_status_shows_the_line_and_exits_3(
    cli: Cli, fleet: Fleet, etcd: EmbeddedEtcd
) -> None:
    configure(fleet=fleet.name, endpoint=etcd.endpoint)
    await fleet.join("a").until(Elected)
    ran = await command(cli, "status")
    assert ran.code == 3
    assert "a is elected" in ran.out
    assert "not there yet" in ran.err


# ------------------------------------------------------------------ fence


async def test_fence_show_and_rebase(cli: Cli, ledger: Ledger) -> None:
    configure()
    await lead(ledger)
    shown = json.loads((await command(cli, "fence", "show", "--json")).out)
    assert (shown["fence"]["fence"], shown["fence"]["offset"]) == (7, 0)
    assert "default/0: fence 7 (offset 0), raised by a" in (await command(cli, "fence", "show")).out
    rebased = json.loads((await command(cli, "fence", "rebase", "--yes", "--json")).out)
    assert (rebased["fence"]["offset"], rebased["fence"]["cluster"]) == (7, None)


async def test_fence_show_lists_refused_writes(cli: Cli, ledger: Ledger) -> None:
    configure()
    old = await lead(ledger)
    newer = Candidate("default/0", "m", "b", LEASE + 1, 9, 1)
    assert await ledger.raise_fence(newer, T0, waiting=lambda: None) == 9
    assert isinstance(await ledger.heartbeat(old, T0, T0), Refused)
    (refusal,) = json.loads((await command(cli, "fence", "show", "--json")).out)["refusals"]
    assert (refusal["node"], refusal["fence"], refusal["high"]) == ("a", 7, 9)
    assert "heartbeat" in (await command(cli, "fence", "show")).out


# ------------------------------------------------------------------ step-down


async def pair(fleet: Fleet, ledger: Ledger, etcd: EmbeddedEtcd) -> Term:
    """a leads under fence 7, b is in line, and neither of them reads orders."""
    configure(fleet=fleet.name, endpoint=etcd.endpoint)
    first = fleet.join("a")
    await first.until(Elected)
    async with asyncio.timeout(15):
        await fleet.join("b").until(LeaseRenewed)
        while len((await in_line(fleet, etcd)).candidates) < 2:  # noqa: ASYNC110
            await asyncio.sleep(0.02)
    return await lead(ledger, fleet=fleet.name, lease=first.seat.lease)


async def in_line(fleet: Fleet, etcd: EmbeddedEtcd) -> Survey:
    client = Etcd(EtcdConfig(endpoints=(etcd.endpoint,)), clock=SystemClock(), emit=Emitted())
    try:
        return await survey(client, PREFIX, fleet.name, 0)
    finally:
        await client.aclose()


def orders(folder: Path) -> tuple[CommandRow, ...]:
    with open_reader(f"sqlite:///{folder}/cron-leader.db") as reader:
        return reader.commands()


async def test_a_step_down_is_aimed_at_the_term_that_leads_and_says_who_asked(
    cli: Cli, folder: Path, fleet: Fleet, ledger: Ledger, etcd: EmbeddedEtcd
) -> None:
    term = await pair(fleet, ledger, etcd)
    ran = await command(cli, "step-down", "--no-wait", "--for", "2m", "--why", "disk swap")
    assert (ran.code, ran.err) == (0, "")
    (row,) = orders(folder)
    assert ran.out == f"a (fence 7) is asked to step down: command {row.id}\n"
    assert (row.kind, row.target, row.why) == ("step-down", term.election, "disk swap")
    assert json.loads(row.args) == {"fence": 7, "for_s": 120.0}
    assert "@" in row.who
    assert (row.done_by_fence, row.result) == (None, None)


async def test_a_step_down_not_heeded_in_time_is_exit_1_and_the_order_stands(
    cli: Cli, folder: Path, fleet: Fleet, ledger: Ledger, etcd: EmbeddedEtcd
) -> None:
    await pair(fleet, ledger, etcd)
    ran = await command(cli, "step-down", "--within", "100ms")
    (row,) = orders(folder)
    assert (ran.code, ran.out) == (1, "")
    assert "a has not handed over within 100ms" in ran.err
    assert row.id in ran.err


async def test_a_step_down_waits_for_the_answer_the_end_and_the_next_term(
    cli: Cli, folder: Path, fleet: Fleet, ledger: Ledger, etcd: EmbeddedEtcd
) -> None:
    term = await pair(fleet, ledger, etcd)
    asking = asyncio.create_task(command(cli, "step-down", "--within", "15s"))
    async with asyncio.timeout(15):
        while not (given := orders(folder)):  # noqa: ASYNC110
            await asyncio.sleep(0.02)
    await ledger.answer_order(term, given[0].id, CommandResult.STEPPING_DOWN, T0)
    await ledger.close_term(term, "resigned", T0 + MINUTE)
    assert not asking.done()
    after = T0 + MINUTE + timedelta(milliseconds=12)
    rival = Candidate(term.election, "m", "b", LEASE, 9, 1)
    await ledger.raise_fence(rival, after, waiting=lambda: None)
    newer = Term(term.election, 9, "m", "b", LEASE, after)
    await ledger.settle(newer, Settlement(after, after, (), (), (), (), frozenset()))
    ran = await asking
    assert (ran.code, ran.err) == (0, "")
    assert ran.out.startswith(f"b leads {term.election} under fence 9, ")
    assert ran.out.endswith("ms after the order; the handover took 12 ms\n")


async def test_an_order_that_came_to_nothing_is_exit_1(
    cli: Cli, folder: Path, fleet: Fleet, ledger: Ledger, etcd: EmbeddedEtcd
) -> None:
    term = await pair(fleet, ledger, etcd)
    asking = asyncio.create_task(command(cli, "step-down", "--within", "15s"))
    async with asyncio.timeout(15):
        while not (given := orders(folder)):  # noqa: ASYNC110
            await asyncio.sleep(0.02)
    await ledger.answer_order(term, given[0].id, CommandResult.NOT_LEADING, T0)
    ran = await asking
    assert (ran.code, ran.out) == (1, "")
    assert ran.err == "error: the order came to nothing: not leading any more\n"


async def test_nobody_is_asked_to_step_down_where_nobody_leads_or_follows(
    cli: Cli, folder: Path, fleet: Fleet, ledger: Ledger, etcd: EmbeddedEtcd
) -> None:
    configure(fleet=fleet.name, endpoint=etcd.endpoint)
    await ledger.open(fleet=fleet.name, shards=1, migrate=True)
    ran = await command(cli, "step-down")
    assert (ran.code, ran.err) == (1, f"error: nobody leads {fleet.name}/0\n")
    first = fleet.join("a")
    await first.until(Elected)
    ran = await command(cli, "step-down")
    assert (ran.code, ran.err.count("\n")) == (1, 1)
    assert "a is elected and has no term yet" in ran.err
    await lead(ledger, fleet=fleet.name, lease=first.seat.lease)
    ran = await command(cli, "step-down")
    assert (ran.code, ran.err.count("\n")) == (1, 1)
    assert "nobody else is in line" in ran.err
    assert orders(folder) == ()


async def test_with_etcd_away_a_step_down_is_exit_3_unless_forced(
    cli: Cli, folder: Path, ledger: Ledger
) -> None:
    configure()
    await lead(ledger)
    assert (await command(cli, "step-down")).code == 3
    assert orders(folder) == ()
    ran = await command(cli, "step-down", "--force", "--no-wait", "--json")
    assert ran.code == 0
    assert json.loads(ran.out)["from"] == {"node": "a", "fence": 7}
    assert len(orders(folder)) == 1


@pytest.mark.parametrize("args", [("--for", "soon"), ("--for", "31d"), ("--within", "-1s")])
async def test_a_step_down_for_no_sensible_time_is_wrong_usage(
    cli: Cli, args: tuple[str, str]
) -> None:
    configure()
    ran = await command(cli, "step-down", *args)
    assert (ran.code, ran.err.count("\n")) == (2, 1)
    assert args[0] in ran.err
