"""Who may compute and who has to wait: one thread for the server halves, and a budget of bytes.

Every client has at most one step under way and waits in a queue for its turn, first come, first served; so
between two turns of one client every other client that is ready gets one. The thread is one because torch
spreads each operation over the cores by itself: more would share the same cores and cost more memory.

A step is admitted (its activation read from the network) only when its bytes fit the budget. Until then the
stream is not read, and the flow control of HTTP/2 holds the sender back.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

Result = TypeVar("Result")


class Budget:
    """A number of bytes that open steps share; who does not fit waits in order of arrival.

    `changed` is told the bytes in flight whenever they change.
    """

    def __init__(self, size: int, *, changed: Callable[[int], object] = lambda used: None) -> None:
        self._size = size
        self._used = 0
        self._queue: deque[tuple[int, asyncio.Future[None]]] = deque()
        self._changed = changed

    async def acquire(self, amount: int) -> None:
        """Wait until `amount` bytes are free, and take them."""
        if not self._queue and self._used + amount <= self._size:
            self._take(amount)
            return
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._queue.append((amount, turn))
        try:
            await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled():
                self.release(amount)
            else:
                self._queue.remove((amount, turn))
                self._serve()
            raise

    def release(self, amount: int) -> None:
        """Give bytes back."""
        self._take(-amount)
        self._serve()

    def _serve(self) -> None:
        while self._queue and self._used + self._queue[0][0] <= self._size:
            amount, turn = self._queue.popleft()
            if not turn.done():
                self._take(amount)
                turn.set_result(None)

    def _take(self, amount: int) -> None:
        self._used += amount
        self._changed(self._used)


class Scheduler:
    """The compute thread."""

    def __init__(self) -> None:
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="sigil-compute")

    async def run(self, work: Callable[[], Result]) -> Result:
        """Do this when all that came before is done."""
        return await asyncio.get_running_loop().run_in_executor(self._thread, work)

    def close(self) -> None:
        """Finish what is under way and take no more."""
        self._thread.shutdown(cancel_futures=True)
