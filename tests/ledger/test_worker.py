"""The one thread that has a SQLite ledger's connection."""

from __future__ import annotations

import asyncio
import gc
import threading
import weakref
from collections.abc import Iterator

import pytest

from cron_leader.ledger.worker import Worker


@pytest.fixture
def worker() -> Iterator[Worker]:
    worker = Worker("worker-under-test")
    yield worker
    asyncio.run(worker.close(lambda: None, within_s=30))


async def test_answers_and_errors_come_back_to_who_asked(worker: Worker) -> None:
    def fail() -> None:
        raise KeyError("why")

    assert await worker.call(lambda: 7, within_s=5) == 7
    with pytest.raises(KeyError, match="why"):
        await worker.call(fail, within_s=5)
    assert await worker.call(threading.current_thread, within_s=5) is not threading.main_thread()


async def test_orders_are_carried_out_one_at_a_time_in_their_order(worker: Worker) -> None:
    seen: list[int] = []
    calls = [worker.call(lambda n=n: seen.append(n), within_s=5) for n in range(50)]  # type: ignore[misc]
    await asyncio.gather(*calls)
    assert seen == list(range(50))


async def test_one_that_is_not_answered_in_time_is_carried_out_all_the_same(
    worker: Worker,
) -> None:
    go_on, done = threading.Event(), threading.Event()

    def slow() -> None:
        go_on.wait(30)
        done.set()

    with pytest.raises(TimeoutError):
        await worker.call(slow, within_s=0.01)
    go_on.set()
    await worker.call(lambda: None, within_s=30)
    assert done.is_set()


async def test_one_that_nobody_waits_for_any_more_disturbs_nothing(worker: Worker) -> None:
    go_on = threading.Event()
    waiting = asyncio.ensure_future(worker.call(lambda: go_on.wait(30), within_s=60))
    await asyncio.sleep(0)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    go_on.set()
    assert await worker.call(lambda: 1, within_s=30) == 1


def test_a_loop_that_is_closed_before_the_answer_harms_nobody(worker: Worker) -> None:
    go_on = threading.Event()

    async def leave() -> None:
        with pytest.raises(TimeoutError):
            await worker.call(lambda: go_on.wait(30), within_s=0.01)

    asyncio.run(leave())
    go_on.set()
    assert asyncio.run(worker.call(lambda: 1, within_s=30)) == 1


async def test_what_was_answered_is_not_kept(worker: Worker) -> None:
    class Batch:
        """What a claim holds."""

    batch = Batch()
    alive = weakref.ref(batch)
    await worker.call(lambda held=batch: None, within_s=5)  # type: ignore[misc]
    del batch
    await worker.call(lambda: None, within_s=5)
    gc.collect()
    assert alive() is None


async def test_its_thread_ends_with_it() -> None:
    worker = Worker("worker-to-close")
    thread = await worker.call(threading.current_thread, within_s=5)
    seen: list[str] = []
    await worker.close(lambda: seen.append("last"), within_s=30)
    assert seen == ["last"]
    assert not thread.is_alive()


async def test_one_that_hangs_keeps_nobody_from_leaving() -> None:
    worker, go_on = Worker("worker-that-hangs"), threading.Event()
    with pytest.raises(TimeoutError):
        await worker.call(lambda: go_on.wait(30), within_s=0.01)
    with pytest.raises(TimeoutError):
        await worker.close(lambda: None, within_s=0.01)
    go_on.set()
