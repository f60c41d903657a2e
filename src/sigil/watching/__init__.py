"""Watch a training while it runs: one HTML page and one JSON answer, served by this process and read-only.

It listens on the loopback address unless told otherwise. Elsewhere a random token is part of the address, and
without it nothing is answered: the page shows losses and log lines, not the key, but they are the owner's.

What it shows is kept by a board, which is told what the progress bars are told
(:mod:`sigil.federation.progress`). The metrics on it are the rows of ``metrics.jsonl``, number by number.
"""

from __future__ import annotations

import hmac
import ipaddress
import json
import logging
import secrets
import statistics
import threading
import time
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sigil.federation.progress import Progress, Row
from sigil.serving import Page, PageServer
from sigil.transport.listening import listen_on

if TYPE_CHECKING:
    from sigil.transport.metrics import Metrics

__all__ = ["Board", "LivePage"]

PAGE = Path(__file__).with_name("page.html")
_HEADERS = (
    "cache-control: no-store\r\nx-content-type-options: nosniff\r\nreferrer-policy: no-referrer\r\n"
    "content-security-policy: default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; "
    "connect-src 'self'; frame-ancestors 'none'\r\n"
)
LOG_LINES = 40
# The longest line of the log that is kept: names in it may come from others.
LINE_LENGTH = 400


class Board(Progress):
    """What is known of a training now; across machines also what the `metrics` of its service tell.

    These are who takes part, how often what was refused, for how many seconds of this process nobody trained
    because clients were not there, and whom the round waits for now: how long that takes nobody knows, so
    that there is no time left to tell.
    """

    def __init__(self, metrics: Metrics | None = None) -> None:
        self._metrics = metrics
        self._lock = threading.Lock()
        self._log: deque[str] = deque(maxlen=LOG_LINES)
        self._rows: list[dict[str, Any]] = []
        self._name = ""
        self._first = self._rounds = self._images = self._current = 0
        self._began: float | None = None
        self._ends: list[float] = []  # after how many seconds of training each round ended
        self._over = False
        self.handler = _LogLines(self._log)

    def on_start(
        self, name: str, *, first_round: int, rounds: int, images_per_round: int, rows: Sequence[Row] = ()
    ) -> None:
        with self._lock:
            self._name, self._first, self._rounds = name, first_round, rounds
            self._images, self._current = images_per_round, 0
            self._rows = [dict(row) for row in rows]
            self._began = time.monotonic()
            self._ends = [self._trained()]

    def on_step(self, images: int) -> None:
        self._current += images

    def on_round(self, row: Row) -> None:
        with self._lock:
            self._rows.append(dict(row))
            self._current = 0
            self._ends.append(self._trained())

    def on_end(self) -> None:
        self._over = True

    def state(self) -> dict[str, Any]:
        """All of it, as plain JSON values."""
        metrics = self._metrics
        with self._lock:
            rows = list(self._rows)
            return {
                "name": self._name,
                "rounds": self._rounds,
                "done": len(rows) if rows else self._first,
                "over": self._over,
                "share": min(1.0, self._current / self._images) if self._images else 0.0,
                "banner": "" if self._over or metrics is None else metrics.banner,
                "seconds_left": self._seconds_left(),
                "rows": rows,
                "clients": [] if metrics is None else [asdict(client) for client in metrics.now],
                "refusals": {
                    kind: {reason: count for reason, count in counts.items() if count}
                    for kind, counts in ({} if metrics is None else metrics.refusals()).items()
                },
                "log": list(self._log),
            }

    def _trained(self) -> float:
        """For how many seconds this process has trained: time in which clients were missing is left out."""
        waited = 0.0 if self._metrics is None else self._metrics.waited_seconds
        return 0.0 if self._began is None else max(0.0, time.monotonic() - self._began - waited)

    def _seconds_left(self) -> float | None:
        """From the usual round of this process: one whose client was lost says nothing of those to come."""
        if self._began is None or self._over or (self._metrics is not None and self._metrics.banner):
            return None
        here = len(self._rows) - self._first + (self._current / self._images if self._images else 0.0)
        if here <= 0:
            return None
        rounds = [end - begin for begin, end in pairwise(self._ends)]
        usual = statistics.median(rounds) if len(rounds) > 2 else self._trained() / here
        return round(usual * max(0.0, self._rounds - self._first - here), 1)


class _LogLines(logging.Handler):
    """Keeps the last lines of the log."""

    def __init__(self, lines: deque[str]) -> None:
        super().__init__()
        self._lines = lines

    def emit(self, record: logging.LogRecord) -> None:
        when = time.strftime("%H:%M:%S", time.localtime(record.created))
        self._lines.append(f"{when} {record.getMessage()}"[:LINE_LENGTH])


class LivePage(PageServer):
    """Serves the page of a board until it is closed; `port` 0 is any free one."""

    headers = _HEADERS

    def __init__(self, board: Board, *, host: str = "127.0.0.1", port: int = 0) -> None:
        super().__init__("live-page", listen_on(host, port, option="--page-port"))
        self._board = board
        self._html = PAGE.read_bytes()
        loopback = _is_loopback(host)
        self._token = "" if loopback else secrets.token_urlsafe(16)
        # Names that lead here: another one is a web page that tries to read ours through the browser.
        self._hosts = {"localhost", "127.0.0.1", "[::1]"} if loopback else None
        shown = f"[{host}]" if ":" in host else host
        self.address = f"http://{shown}:{self._listener.getsockname()[1]}/{self._token}"
        self.start()

    def page(self, method: str, path: str, headers: Mapping[str, str]) -> Page:
        plain = "text/plain; charset=utf-8"
        if method not in ("GET", "HEAD"):
            return Page(405, plain, b"This page is read-only.")
        if self._hosts is not None and headers.get("host", "").rsplit(":", 1)[0] not in self._hosts:
            return Page(403, plain, b"This page is for this machine.")
        path = path.strip("/")
        token, _, name = path.rpartition("/") if path.endswith("state.json") else (path, "", "")
        if not hmac.compare_digest(token.encode(), self._token.encode()):
            return Page(404, plain, b"There is nothing here.")
        if name == "state.json":
            return Page(200, "application/json", json.dumps(self._board.state()).encode())
        return Page(200, "text/html; charset=utf-8", self._html)


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
