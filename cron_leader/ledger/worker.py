"""One thread that carries out what it is given, in order, and answers the loop that asked.

An executor of one thread does the same by a chain of two futures, which takes a slot's claim twice
as long after a quiet second.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from functools import partial
from queue import SimpleQueue
from threading import Thread
from typing import Any, TypeVar

T = TypeVar("T")

_Order = tuple[Callable[[], Any], "asyncio.Future[Any]"]


class Worker:
    """Its thread lives until `close`; one that hangs (a dead disk) keeps no process from ending."""

    def __init__(self, name: str) -> None:
        self._orders: SimpleQueue[_Order | None] = SimpleQueue()
        self._thread = Thread(target=self._work, name=name, daemon=True)
        self._thread.start()

    async def call(self, work: Callable[[], T], *, within_s: float) -> T:
        """What `work` returns or raises. Raises TimeoutError; it is carried out all the same."""
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[T] = loop.create_future()
        self._orders.put((work, answer))
        limit = loop.call_later(within_s, partial(_tell, answer, None, TimeoutError()))
        try:
            return await answer
        finally:
            limit.cancel()

    async def close(self, last: Callable[[], object], *, within_s: float) -> None:
        """`last`, and the end of the thread. Raises TimeoutError if it does not come to that."""
        try:
            await self.call(last, within_s=within_s)
        finally:
            self._orders.put(None)
        self._thread.join()

    def _work(self) -> None:
        while (order := self._orders.get()) is not None:
            work, answer = order
            result, error = None, None
            try:
                result = work()
            except BaseException as raised:
                error = raised
            with contextlib.suppress(RuntimeError):  # the loop is closed: nobody waits
                answer.get_loop().call_soon_threadsafe(_tell, answer, result, error)
            del order, work, answer, result, error  # kept by nobody while it waits for the next


def _tell(answer: asyncio.Future[Any], result: object, error: BaseException | None) -> None:
    if answer.done():  # given up
        return
    if error is None:
        answer.set_result(result)
    else:
        answer.set_exception(error)
