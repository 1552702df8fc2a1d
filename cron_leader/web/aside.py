"""Blocking work beside the loop: bounded, and never in the way of the daemon's exit."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable
from typing import Generic, TypeVar

T = TypeVar("T")


async def aside(work: Callable[[], T]) -> T:
    """What `work` returns or raises, from a thread that no exit waits for (a pool's would)."""
    loop = asyncio.get_running_loop()
    answer: asyncio.Future[T] = loop.create_future()

    def tell(settle: Callable[[], None]) -> None:
        if not answer.cancelled():
            settle()

    def run() -> None:
        try:
            done = work()
        except Exception as error:
            settle = _bind(answer.set_exception, error)
        else:
            settle = _bind(answer.set_result, done)
        try:
            loop.call_soon_threadsafe(tell, settle)
        except RuntimeError:
            pass  # the loop has ended meanwhile: nobody asks any more

    threading.Thread(target=run, name="web-aside", daemon=True).start()
    return await answer


def _bind(call: Callable[[T], None], value: T) -> Callable[[], None]:
    return lambda: call(value)


class Single(Generic[T]):
    """Work that is under way at most once: whoever asks meanwhile gets the same answer."""

    def __init__(self, work: Callable[[], Awaitable[T]]) -> None:
        self._work = work
        self._running: asyncio.Future[T] | None = None

    async def get(self, *, within_s: float) -> T:
        """The answer. Raises TimeoutError; the work goes on then, and later askers join it."""
        if self._running is None or self._running.done():
            self._running = asyncio.ensure_future(self._work())
        async with asyncio.timeout(within_s):
            return await asyncio.shield(self._running)

    def cancel(self) -> None:
        if self._running is not None:
            self._running.cancel()
