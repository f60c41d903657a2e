"""Patience with a client whose streams are refused again and again: after so many each answer waits."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable

_MINUTE = 60.0
# A client that is held up waits this long for each refusal …
_PAUSE = 1.0
# … unless so many streams wait already, of all clients, that they would be a burden themselves.
_HELD = 256


class Patience:
    """Holds back the refusals of those who had more than `per_minute` of them in the last minute.

    A refused stream that waits for its answer still counts as open, so that a client which greets in a loop
    gets no more than its few streams in each pause, and the others their share of the server's time.
    """

    def __init__(self, per_minute: int, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._per_minute = max(1, int(per_minute))
        self._clock = clock
        self._refused: dict[str, deque[float]] = {}
        self._held = 0

    def spent(self, holder: str) -> bool:
        """Note a refusal to this holder of a certificate; true if it was one too many."""
        now = self._clock()
        times = self._refused.setdefault(holder, deque(maxlen=self._per_minute))
        spent = len(times) == self._per_minute and now - times[0] < _MINUTE
        times.append(now)
        return spent

    async def lose(self, holder: str) -> None:
        """Return when a refusal may be sent to this holder."""
        if not self.spent(holder) or self._held >= _HELD:
            return
        self._held += 1
        try:
            await asyncio.sleep(_PAUSE)
        finally:
            self._held -= 1
