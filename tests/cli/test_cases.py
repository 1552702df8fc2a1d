"""The handed cases by each way in which people give us a schedule: the command line, a file, code,
a crontab; and what is no schedule is refused by each."""

from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path

import pytest

from cron_leader.config import build_jobs, load
from cron_leader.core.model import Job
from cron_leader.errors import ConfigError

from .conftest import Cli

CASES = Path(__file__).parents[1] / "core" / "cases"
TABLE = [
    line.split("\t")[1:]
    for line in (CASES / "cron.tsv").read_text().splitlines()
    if not line.startswith("#")
]
REJECTS = (CASES / "cron_rejects.txt").read_text().splitlines()


def times(text: str) -> list[datetime]:
    return [datetime.fromisoformat(fire) for fire in text.split()]


def check_fires(jobs: Sequence[Job]) -> None:
    assert len(jobs) == len(TABLE)
    for job, (cron, zone, after, fires) in zip(jobs, TABLE, strict=True):
        at = datetime.fromisoformat(after)
        for fire in times(fires):
            assert job.schedule.next_after(at) == fire, (cron, zone, after)
            at = fire


def test_a_file_has_the_fires_of_each_case() -> None:
    path = Path("cron-leader.toml")
    path.write_text(
        "".join(
            f'[[job]]\nname = "{n}"\ncron = "{cron}"\ntimezone = "{zone}"\nshell = ":"\n'
            for n, (cron, zone, _, _) in enumerate(TABLE)
        )
    )
    check_fires(load(path, environ={}).jobs)


def test_code_has_the_fires_of_each_case() -> None:
    tables = [
        {"name": str(n), "cron": [cron], "timezone": zone, "python": "m:f"}
        for n, (cron, zone, _, _) in enumerate(TABLE)
    ]
    check_fires(build_jobs(tables, where="@job", base=Path()))


def test_a_crontab_has_the_fires_of_each_case(cli: Cli) -> None:
    lines = [f"CRON_TZ={zone}\n{cron} run-{n}\n" for n, (cron, zone, _, _) in enumerate(TABLE)]
    Path("crontab").write_text("".join(lines))
    imported = cli("import-crontab", "crontab")
    assert imported.code == 0, imported.err
    Path("imported.toml").write_text(imported.out)
    check_fires(load(Path("imported.toml"), environ={}).jobs)


@pytest.mark.parametrize("row", [TABLE[0], TABLE[-1]])
def test_the_command_line_has_the_fires_of_a_case(cli: Cli, row: list[str]) -> None:
    cron, zone, after, fires = row
    expected = times(fires)
    asked = ("--timezone", zone, "--after", after, "-n", str(len(expected)), "--json")
    printed = json.loads(cli("next", "--cron", cron, *asked).out)
    assert [datetime.fromisoformat(fire["local"]) for fire in printed] == expected


def test_what_is_no_schedule_is_refused_by_each_way_in(cli: Cli) -> None:
    rows = [("0 9 * * *", "0") if line == "TZ=0" else (line, "UTC") for line in REJECTS]
    Path("cron-leader.toml").write_text(
        "".join(
            f'[[job]]\nname = "{n}"\ncron = "{cron}"\ntimezone = "{zone}"\nshell = ":"\n'
            for n, (cron, zone) in enumerate(rows)
        )
    )
    ran = cli("check")
    assert ran.code == 2, ran.out
    refused = [line.split(": ")[:2] for line in ran.err.splitlines()]
    places = [
        f"cron-leader.toml:{5 * n + (4 if zone == '0' else 3)}" for n, (_, zone) in enumerate(rows)
    ]
    assert refused == [["error", place] for place in places]
    for cron, zone in rows:
        table = {"name": "a", "cron": cron, "timezone": zone, "python": "m:f"}
        with pytest.raises(ConfigError, match="@job"):
            build_jobs([table], where="@job", base=Path())
    Path("crontab").write_text("".join(f"CRON_TZ={zone}\n{cron} true\n" for cron, zone in rows))
    assert "[[job]]" not in cli("import-crontab", "crontab").out.splitlines()
    assert cli("next", "--cron", REJECTS[0]).code == 2
