"""The board: everything that the live page shows, kept by the process that trains.

It hangs where the progress bars hang (:mod:`sigil.federation.progress`) and passes everything on to them. The
metrics on it are the rows of ``metrics.jsonl``, number by number.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from sigil.federation.progress import Silent

LOG_LINES = 40
# The longest line of the log that is kept: names in it may come from others.
LINE_LENGTH = 400


@dataclass(frozen=True)
class Client:
    """One client of the round under way: what it is doing, and how fast."""

    client: int
    state: str
    images: int
    images_per_second: float


def _nothing() -> dict[str, dict[str, int]]:
    return {}


class Board(Silent):
    """What is known of a training now; `shown` shows progress in the terminal as before.

    `clients` tells who takes part, `refusals` how often what was refused, by kind and reason, and `waited`
    for how many seconds of this process nobody trained because clients were not there.
    """

    def __init__(
        self,
        shown: Silent,
        *,
        clients: Callable[[], Sequence[Client]] = tuple,
        refusals: Callable[[], Mapping[str, Mapping[str, int]]] = _nothing,
        waited: Callable[[], float] = float,
    ) -> None:
        self._shown = shown
        self._clients, self._refusals, self._waited = clients, refusals, waited
        self._lock = threading.Lock()
        self._log: deque[str] = deque(maxlen=LOG_LINES)
        self._rows: list[dict[str, Any]] = []
        self._name = ""
        self._first = self._rounds = self._images = self._current = 0
        self._began: float | None = None
        self._over = False
        self.handler = _LogLines(self._log)

    def start(
        self,
        name: str,
        *,
        first_round: int,
        rounds: int,
        images_per_round: int,
        rows: Sequence[Mapping[str, Any]] = (),
    ) -> None:
        """A run begins, or goes on after these rows of metrics."""
        with self._lock:
            self._name, self._first, self._rounds = name, first_round, rounds
            self._images, self._current = images_per_round, 0
            self._rows = [dict(row) for row in rows]
            self._began = time.monotonic()
        self._shown.start(
            name, first_round=first_round, rounds=rounds, images_per_round=images_per_round, rows=rows
        )

    def tick(self, images: int) -> None:
        """Training went over this many images more."""
        self._current += images
        self._shown.tick(images)

    def round_end(self, metrics: dict[str, Any]) -> None:
        """A round is over."""
        with self._lock:
            self._rows.append(dict(metrics))
            self._current = 0
        self._shown.round_end(metrics)

    def close(self) -> None:
        """The run is over."""
        self._over = True
        self._shown.close()

    def state(self) -> dict[str, Any]:
        """All of it, as plain JSON values."""
        with self._lock:
            rows = list(self._rows)
            return {
                "name": self._name,
                "rounds": self._rounds,
                "done": len(rows) if rows else self._first,
                "over": self._over,
                "share": min(1.0, self._current / self._images) if self._images else 0.0,
                "seconds_left": self._seconds_left(),
                "rows": rows,
                "clients": [asdict(client) for client in self._clients()],
                "refusals": {
                    kind: {reason: count for reason, count in counts.items() if count}
                    for kind, counts in self._refusals().items()
                },
                "log": list(self._log),
            }

    def _seconds_left(self) -> float | None:
        """From the speed of this process while it trained: time in which clients were missing is left out."""
        if self._began is None or self._over:
            return None
        here = len(self._rows) - self._first + (self._current / self._images if self._images else 0.0)
        if here <= 0:
            return None
        spent = max(0.0, time.monotonic() - self._began - self._waited())
        return round(spent / here * max(0.0, self._rounds - self._first - here), 1)


class _LogLines(logging.Handler):
    """Keeps the last lines of the log."""

    def __init__(self, lines: deque[str]) -> None:
        super().__init__()
        self._lines = lines

    def emit(self, record: logging.LogRecord) -> None:
        when = time.strftime("%H:%M:%S", time.localtime(record.created))
        self._lines.append(f"{when} {record.getMessage()}"[:LINE_LENGTH])
