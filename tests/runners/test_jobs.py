"""`@job` and `Tick`, as a user's module and a user's test see them."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from cron_leader import Tick, job
from cron_leader.jobs import definitions, resolve


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str], str]]:
    """Write a module and get its name."""
    monkeypatch.syspath_prepend(tmp_path)
    before = set(sys.modules)

    def write(source: str) -> str:
        (tmp_path / "written.py").write_text(source)
        importlib.invalidate_caches()
        return "written"

    yield write
    for name in set(sys.modules) - before:
        del sys.modules[name]


def test_a_job_stays_an_ordinary_function(module: Callable[[str], str]) -> None:
    name = module(
        "from cron_leader import Tick, job\n"
        "@job(cron='*/5 * * * *', timeout='2m', env={'A': '1'})\n"
        "def expire_sessions(tick): return tick.fence\n"
    )
    function = resolve(f"{name}:expire_sessions")
    assert function(Tick.for_test(fence=9)) == 9
    assert definitions()[-1] == {
        "name": "expire-sessions",
        "cron": "*/5 * * * *",
        "timeout": "2m",
        "env": {"A": "1"},
        "python": "written:expire_sessions",
    }


def test_what_cannot_be_a_job_is_refused_where_it_is_defined() -> None:
    def local(tick: Tick) -> None: ...

    with pytest.raises(TypeError, match="top level"):
        job(every="1s")(local)
    with pytest.raises(TypeError, match="takes one argument"):
        job(every="1s")(_takes_none)  # type: ignore[type-var]


def _takes_none() -> None: ...


@pytest.mark.parametrize(
    ("target", "text"),
    [
        ("written", "package.module:function"),
        ("written:", "package.module:function"),
        ("written:digst", "did you mean digest"),
        ("written:number", "has no function number"),
    ],
)
def test_a_wrong_target_is_refused_with_the_cure(
    module: Callable[[str], str], target: str, text: str
) -> None:
    module("number = 1\ndef digest(tick): pass\n")
    with pytest.raises(LookupError, match=text):
        resolve(target)


def test_a_tick_for_a_test_is_due_now_and_not_cancelled() -> None:
    tick = Tick.for_test()
    assert datetime.now(UTC) - tick.scheduled_for < timedelta(minutes=1)
    assert tick.run_deadline > tick.scheduled_for
    assert not tick.cancelled
    assert Tick.for_test(cancelled=True).cancelled
