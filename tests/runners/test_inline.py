"""Inline runs: async functions in the daemon's own loop."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable
from typing import Any

import pytest

from cron_leader.core.messages import Started
from cron_leader.core.model import Isolation, Job, ShellSpec
from cron_leader.errors import ConfigError
from cron_leader.jobs import Tick
from cron_leader.runners import Runners
from tests.runners.stage import (
    CLOCK,
    NotStarted,
    Prepared,
    RunEnded,
    job,
    python,
    run_of,
    stage,
)

seen: list[Tick] = []


async def notes(tick: Tick) -> None:
    seen.append(tick)


async def raises(tick: Tick) -> None:
    raise ValueError("no digest today")


async def leaves(tick: Tick) -> None:
    sys.exit(7)


async def sleeps(tick: Tick) -> None:
    await asyncio.sleep(60)


async def ignores(tick: Tick) -> None:
    seen.append(tick)
    while True:
        try:
            await asyncio.sleep(0.5)
            return
        except asyncio.CancelledError:
            assert tick.cancelled


def plain(tick: Tick) -> None: ...


def inline(name: str, **options: Any) -> Job:
    return python(f"{__name__}:{name}", isolation=Isolation.INLINE, **options)


async def test_an_inline_run_is_told_its_tick() -> None:
    async with stage(inline("notes")) as s:
        result = await s.play(inline("notes"))
    assert (result.ok, result.exit_code, result.output) == (True, None, None)
    assert (seen[-1].job, seen[-1].fence, seen[-1].attempt) == ("j", 42, 1)
    assert not seen[-1].cancelled


async def test_an_inline_run_may_go_without_having_been_prepared_and_goes_once() -> None:
    run = run_of(inline("notes"))
    async with stage() as s:
        s.go(run)
        s.go(run)
        assert (await s.until(RunEnded, run)).result.ok
        assert s.kinds(run) == [Started, RunEnded]


async def test_all_functions_that_go_at_one_instant_begin_before_anything_is_told_of_them() -> None:
    runs = [run_of(inline("notes")) for _ in range(50)]
    async with stage() as s:
        seen.clear()
        for run in runs:
            s.go(run)
        await s.until(Started)
        assert len(seen) == len(runs)
        for run in runs:
            assert (await s.until(RunEnded, run)).result.ok
            assert s.kinds(run) == [Started, RunEnded]


@pytest.mark.parametrize("end", [lambda s, run: s.drop(run), lambda s, run: s.kill(run, 0)])
async def test_a_go_is_taken_back_until_the_function_is_entered(
    end: Callable[[Runners, str], None],
) -> None:
    """As when the step that told it to go also learns that its term is over."""
    run, after = run_of(inline("notes")), run_of(inline("notes"))
    async with stage() as s:
        seen.clear()
        s.go(run)
        end(s.runners, run.run_id)
        assert (await s.until(NotStarted, run)).why == "dropped"
        s.go(after)
        assert (await s.until(RunEnded, after)).result.ok
        s.runners.drop(after.run_id)
        assert s.kinds(run) == [NotStarted]
        assert s.kinds(after) == [Started, RunEnded]
        assert len(seen) == 1


async def test_an_inline_run_that_raises_or_exits_costs_only_itself() -> None:
    async with stage() as s:
        raised = await s.play(inline("raises"))
        left = await s.play(inline("leaves"))
    assert (raised.error or "").splitlines()[1].endswith("in raises")
    assert (raised.error or "").endswith("ValueError: no digest today\n")
    assert left.error == "exit code 7"


async def test_an_inline_run_is_cancelled_at_its_timeout_and_by_kill() -> None:
    async with stage() as s:
        late = await s.play(inline("sleeps", timeout_s=0.05))
        run = await s.begin(inline("sleeps"))
        s.runners.kill(run.run_id, 10)
        killed = await s.result(run)
    assert (late.timed_out, late.error) == (True, "timed out after 0.05 s")
    assert (killed.timed_out, killed.error) == (False, "cancelled")


async def test_an_inline_run_that_ignores_cancellation_is_given_up() -> None:
    async with stage() as s:
        seen.clear()
        run = await s.begin(inline("ignores"))
        while not seen:  # noqa: ASYNC110
            await asyncio.sleep(0)
        s.runners.kill(run.run_id, 0)
        result = await s.result(run)
        assert result.error == "cancelled, but the function ignores it and goes on"


async def test_an_inline_run_past_its_deadline_or_dropped_does_not_start() -> None:
    late, dropped = run_of(inline("raises")), run_of(inline("raises"))
    async with stage() as s:
        for run in (late, dropped):
            s.runners.prepare(run)
            await s.until(Prepared, run)
        s.go(late, deadline_ns=CLOCK.boot_ns())
        s.runners.drop(dropped.run_id)
        for run in (late, dropped):
            await s.until(NotStarted, run)
            assert s.kinds(run) == [Prepared, NotStarted]


@pytest.mark.parametrize(
    ("bad", "text"),
    [
        (inline("plain"), "needs an async function"),
        (inline("nothing"), "has no function nothing"),
        (job(ShellSpec("true"), isolation=Isolation.INLINE), "python jobs only"),
    ],
)
async def test_what_cannot_run_inline_is_refused_at_start(bad: Job, text: str) -> None:
    with pytest.raises(ConfigError, match=text):
        async with stage(bad):
            pass
