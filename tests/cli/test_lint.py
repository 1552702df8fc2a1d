"""`check --strict` and `check --against`."""

from __future__ import annotations

import json
import sqlite3
from contextlib import closing
from datetime import UTC, datetime, timedelta
from pathlib import Path
from unittest.mock import create_autospec

import pytest

from cron_leader.cli import lint
from cron_leader.cli.herd import herd_of
from cron_leader.config import Config, build_jobs, load, merge_jobs
from cron_leader.ledger.views import Reader, SlotRow
from tests.cli.conftest import Cli

NOW = datetime(2026, 1, 1, 0, 0, 30, tzinfo=UTC)
WARSAW = {"timezone": "Europe/Warsaw"}


def configure(text: str) -> None:
    Path("cron-leader.toml").write_text(text)


def config_of(*tables: dict[str, object], max_parallel: int = 64) -> Config:
    named = [{"name": f"job-{n}", "shell": ":", **table} for n, table in enumerate(tables)]
    Path("lint.toml").write_text(f"[run]\nmax_parallel = {max_parallel}\n")
    jobs = build_jobs(named, where="test", base=Path())
    return merge_jobs(load(Path("lint.toml"), environ={}), jobs)


def found(config: Config) -> list[lint.Finding]:
    return lint.findings(config, herd_of(config.jobs, NOW))


@pytest.mark.parametrize(
    ("table", "kinds"),
    [
        ({"at": "2020-01-01T00:00Z"}, ["never"]),
        ({"cron": "@daily", "end": "2025-12-31T00:00Z"}, ["never"]),
        ({"cron": "0 0 29 2 2"}, []),
        ({"cron": "0 0 29 2 */7"}, ["never"]),
        ({"cron": "30 2 * * *", **WARSAW}, ["gap"]),
        ({"cron": "30 2 * * *", "dst_gap": "run", **WARSAW}, []),
        ({"cron": "30 3 * * *", **WARSAW}, []),
        ({"cron": ["30 3 * * *", "30 2 * * *"], **WARSAW}, ["gap"]),
        ({"cron": "30 2 * * *", "start": "2026-01-02T00:00Z", **WARSAW}, ["gap"]),
        ({"cron": "*/30 2 * * *", **WARSAW}, ["fold"]),
        ({"cron": "*/30 2 * * *", "dst_fold": "once", **WARSAW}, []),
        ({"cron": "*/30 * * * *", **WARSAW}, []),
        ({"cron": "30 2 * * *", "end": "2026-03-29T01:00Z", **WARSAW}, []),
        ({"cron": "30 2 * * *", "blackout": {"days": "sun"}, **WARSAW}, []),
        ({"cron": "*/30 2 * * *", "end": "2026-10-25T01:00Z", **WARSAW}, []),
        ({"cron": "*/30 2 * * *", "end": "2026-10-25T01:00:01Z", **WARSAW}, ["fold"]),
        ({"cron": "*/30 2 * * *", "blackout": {"days": "sun"}, **WARSAW}, []),
        ({"every": "1h"}, []),
        ({"cron": "0 9 * * *", "blackout": {"from": "08:00", "to": "10:00"}}, ["never"]),
    ],
)
def test_a_schedule_that_is_hardly_meant_is_found(
    folder: Path, table: dict[str, object], kinds: list[str]
) -> None:
    assert [finding.kind for finding in found(config_of(table))] == kinds


def test_a_minute_with_more_slots_than_a_node_runs_is_found_and_a_hash_is_proposed(
    folder: Path,
) -> None:
    crowd = [{"cron": "0 9 * * *"}] * 5
    (herd,) = found(config_of(*crowd, max_parallel=4))
    assert herd.text == (
        "5 slots fall at 2026-01-01T09:00:00+00:00, and a node runs 4 at once; "
        'spread them with H, as in "job-0": cron = "H 9 * * *"; "job-1": cron = "H 9 * * *"; '
        '"job-2": cron = "H 9 * * *"'
    )
    assert found(config_of(*crowd, max_parallel=5)) == []
    assert found(config_of(*[{"every": "1s"}] * 5, max_parallel=4)) == []
    (herd,) = found(config_of(*[{"every": "1h"}] * 5, max_parallel=4))
    assert herd.text.endswith("spread them with H, or raise max_parallel")


@pytest.mark.parametrize(
    ("written", "proposed"),
    [
        ("0 0 9 * * *", "H H 9 * * *"),
        ("*/30 0 9 * * *", "*/30 H 9 * * *"),
        ("0  9\t* * mon-fri", "H 9 * * mon-fri"),
        ("@daily", "H 0 * * *"),
        ("@Hourly", "H * * * *"),
    ],
)
def test_the_proposed_hash_is_of_the_minute(folder: Path, written: str, proposed: str) -> None:
    (herd,) = found(config_of(*[{"cron": written}] * 5, max_parallel=4))
    assert f'"job-0": cron = "{proposed}"; ' in herd.text
    spread, crowd = (config_of(*[{"cron": cron}] * 50) for cron in (proposed, written))
    assert herd_of(spread.jobs, NOW).most < herd_of(crowd.jobs, NOW).most / 5


def test_the_proposed_hash_takes_the_herd_apart(folder: Path) -> None:
    crowd = config_of(*[{"cron": "H 9 * * *"}] * 50, max_parallel=4)
    assert herd_of(config_of(*[{"cron": "0 9 * * *"}] * 50).jobs, NOW).most == 50
    assert herd_of(crowd.jobs, NOW).most <= 4


def test_the_histogram_counts_each_slot_of_the_week_once(folder: Path) -> None:
    tables = [{"cron": "0 9 * * *"}] * 3 + [{"cron": "*/10 9 * * mon"}, {"every": "1h"}]
    jobs = config_of(*tables, {"every": "1s"}).jobs
    herd = herd_of(jobs, NOW)
    counts = [job.schedule.count(NOW, NOW + timedelta(weeks=1)) for job in jobs[:-1]]
    assert herd.minutes.total() == sum(counts) == 3 * 7 + 6 + 7 * 24
    assert herd.left_out == 1
    fullest = herd.fullest(jobs)[0]
    monday = datetime(2026, 1, 5, 9, tzinfo=UTC)
    assert (fullest.at, fullest.slots) == (monday, herd.most) == (monday, 5)
    assert fullest.jobs == tuple(f"job-{n}" for n in range(6))
    assert herd.hours()["Mon"] == [1] * 9 + [5] + [1] * 14
    first, top, _, _, _, mon, *_, sun = herd.lines(jobs, 64)
    assert first == (
        "slots per minute of a week (UTC, 1 faster than that left out): at most 5; "
        "a node runs 64 at once"
    )
    assert top == "      5  Mon 2026-01-05 09:00  job-0, job-1, job-2, job-3, job-4, +1"
    assert mon == "    Mon  :::::::::@::::::::::::::"
    assert sun == "    Sun  :::::::::%::::::::::::::"


def test_a_week_without_slots_has_no_drawing(folder: Path) -> None:
    assert len([*herd_of((), NOW).lines((), 64)]) == 1


def test_a_job_whose_runs_usually_last_longer_than_its_interval_is_found(folder: Path) -> None:
    row = SlotRow(
        job="job-0",
        scheduled_for=NOW,
        command_id="",
        election="default/0",
        fence=1,
        node="a",
        state="succeeded",
        reason=None,
        origin="schedule",
        attempt=1,
        run_id="r",
        next_at=None,
        started_at=NOW,
        finished_at=NOW + timedelta(seconds=90),
    )
    reader = create_autospec(Reader, instance=True)
    reader.history.return_value = (row,)
    config = config_of({"every": "1m"}, {"every": "2m"}, {"at": "2030-01-01T00:00Z"})
    (finding,) = lint.overlaps(config, reader, NOW)
    assert (finding.job, finding.kind) == ("job-0", "overlap")
    assert "last 90.0s (median), its slots come each 0:01:00" in finding.text
    minutely = {"every": "1m", "overlap": "queue"}
    assert lint.overlaps(config_of(minutely | {"max_parallel": 2}), reader, NOW) == []
    assert lint.overlaps(config_of(minutely | {"overlap": "allow"}), reader, NOW) == []
    half = minutely | {"every": "30s", "max_parallel": 2}
    (finding,) = lint.overlaps(config_of(half), reader, NOW)
    assert finding.text.endswith("slots come each 0:00:30, 2 may go at once: they queue up")
    reader.history.return_value = ()
    assert lint.overlaps(config, reader, NOW) == []


def test_slots_that_are_gained_lost_and_moved_are_told_apart(folder: Path) -> None:
    old = config_of({"cron": "0 9 * * *"}, {"every": "6h"}, {"cron": "@daily"})
    new = config_of(
        {"cron": "0 10 * * *"}, {"every": "12h"}, {"cron": "0 0 * * *"}, {"every": "8h"}
    )
    moved, lost, gained = lint.changes(old, new, NOW, timedelta(days=1))
    nine = NOW.replace(hour=9, second=0)
    assert moved == lint.Change("job-0", (), (), ((nine, nine + timedelta(hours=1)),))
    assert (lost.job, len(lost.lost), lost.gained, lost.moved) == ("job-1", 2, (), ())
    assert (gained.job, len(gained.gained), gained.lost) == ("job-3", 3, ())


@pytest.mark.parametrize(
    ("before", "after", "gained", "lost"),
    [("1s", "2s", 0, 50), ("2s", "1s", 50, 0), ("1s", "1h", 0, 100)],
)
def test_jobs_with_many_slots_are_compared_as_far_as_both_are_known(
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    before: str,
    after: str,
    gained: int,
    lost: int,
) -> None:
    monkeypatch.setattr(lint, "MOST_SLOTS", 100)
    old, new = config_of({"every": before}), config_of({"every": after})
    (change,) = lint.changes(old, new, NOW, timedelta(days=1))
    assert (len(change.gained), len(change.lost), change.moved) == (gained, lost, ())


def test_a_renamed_job_is_compared_with_what_it_was(folder: Path) -> None:
    old = config_of({"cron": "0 9 * * *"}, {"every": "6h"})
    new = config_of(
        {"name": "a", "cron": "0 9 * * *", "renamed_from": "job-0"},
        {"name": "b", "every": "12h", "renamed_from": "job-1"},
    )
    (change,) = lint.changes(old, new, NOW, timedelta(days=1))
    assert (change.job, len(change.lost), change.gained) == ("b", 2, ())


def test_a_new_blackout_takes_slots(folder: Path) -> None:
    old = config_of({"cron": "0 * * * *"})
    new = config_of({"cron": "0 * * * *", "blackout": {"from": "22:00", "to": "06:00"}})
    (change,) = lint.changes(old, new, NOW, timedelta(days=1))
    assert (len(change.lost), change.gained, change.moved) == (8, (), ())


def test_strict_prints_what_it_finds_and_fails(cli: Cli) -> None:
    configure('[[job]]\nname = "a"\ncron = "30 2 * * *"\ntimezone = "Europe/Warsaw"\nshell = ":"')
    assert cli("check").code == 0
    ran = cli("check", "--strict")
    assert ran.code == 1
    assert 'gap: [[job]] "a" "30 2 * * *": at ' in ran.out
    assert "how long runs usually take is not known" in ran.err
    said = json.loads(cli("check", "--strict", "--json").out)
    assert (said["ok"], [one["kind"] for one in said["findings"]]) == (False, ["gap"])
    assert "slots per minute of a week (UTC): at most 1; a node runs 64 at once" in ran.out
    assert (said["herd"]["most"], said["herd"]["fullest"][0]["jobs"]) == (1, ["a"])


def test_what_runs_usually_take_is_read_from_the_history(cli: Cli) -> None:
    configure('[[job]]\nname = "a"\nevery = "1m"\noverlap = "queue"\nshell = ":"')
    assert cli("db", "migrate").code == 0
    times = (("09:00", "09:02"), ("09:10", "09:13"))
    with closing(sqlite3.connect("cron-leader.db")) as ledger, ledger:
        for start, end in times:
            at, to = (f"2026-01-01T{time}:00.000000Z" for time in (start, end))
            ledger.execute(
                "INSERT INTO cron_leader_slot (job, scheduled_for, command_id, election, fence,"
                " node, state, origin, attempt, started_at, finished_at)"
                " VALUES ('a', ?, '', 'default/0', 1, 'n', 'succeeded', 'schedule', 1, ?, ?)",
                (at, at, to),
            )
    ran = cli("check", "--strict")
    assert ran.code == 1
    assert 'overlap: [[job]] "a" its runs last 150.0s (median), its slots come each' in ran.out
    assert "they queue up" in ran.out


def test_against_shows_the_jobs_that_changed(cli: Cli, folder: Path) -> None:
    job = '[[job]]\nname = "a"\nevery = "{}"\nshell = ":"\n'
    (folder / "old.toml").write_text(job.format("1h"))
    configure(job.format("2h"))
    ran = cli("check", "--against", "old.toml", "--horizon", "1d")
    assert ran.code == 0
    assert ["a", "0", "12", "0"] in [line.split()[:4] for line in ran.out.splitlines()]
    (change,) = json.loads(cli("check", "--against", "old.toml", "--json").out)["changes"]
    assert (change["job"], len(change["lost"])) == ("a", 84)
    same = cli("check", "--against", "cron-leader.toml")
    assert "no slot of the next 7d differs" in same.out
    wrong = cli("check", "--against", "old.toml", "--horizon", "soon")
    assert wrong.code == 2
    assert "--horizon 'soon'" in wrong.err
