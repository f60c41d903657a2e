"""A slow network on the loopback interface: connections with a bandwidth and a latency of their own.

``benchmarks/links.py`` measures through it. It shapes what TCP hands over, so that a long line's slow
start and losses are not in it; what the application's own exchanges and windows cost is.
"""

from __future__ import annotations

import contextlib
import queue
import socket
import threading
import time

from sigil.serving import Closing

_CHUNK = 8_192


class Direction:
    """When bytes leave and arrive: `mbits` million bits in a second (none: all at once), `delay` later."""

    def __init__(self, mbits: float | None, delay: float) -> None:
        self._seconds_per_byte = 0.0 if mbits is None else 8e-6 / mbits
        self._delay = delay
        self._free = 0.0

    def send(self, size: int, now: float) -> tuple[float, float]:
        """When `size` bytes that come at `now` have left, and when they are there."""
        self._free = max(self._free, now) + size * self._seconds_per_byte
        return self._free, self._free + self._delay


class SlowLink(Closing):
    """A way to `target` ("host:port") at another :attr:`address`.

    Each direction of each connection carries `mbits` million bits in a second, and a byte arrives half of
    `round_trip` seconds after it left.
    """

    def __init__(self, target: str, *, mbits: float | None = None, round_trip: float = 0.0) -> None:
        host, _, port = target.rpartition(":")
        self._target = (host, int(port))
        self._shape = (mbits, round_trip / 2)
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self._listener.getsockname()[1]}"
        self._ends: list[socket.socket] = []
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self) -> None:
        """Cut all connections and take no more."""
        for end in (self._listener, *self._ends):
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
            end.close()

    def _accept(self) -> None:
        while True:
            try:
                near, _ = self._listener.accept()
                far = socket.create_connection(self._target)
            except OSError:
                return
            self._ends += (near, far)
            for end in (near, far):
                end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            for source, sink in ((near, far), (far, near)):
                way: queue.SimpleQueue[tuple[float, bytes]] = queue.SimpleQueue()
                threading.Thread(target=self._leave, args=(source, way), daemon=True).start()
                threading.Thread(target=_arrive, args=(way, sink), daemon=True).start()

    def _leave(self, source: socket.socket, way: queue.SimpleQueue[tuple[float, bytes]]) -> None:
        """Take bytes as fast as the link carries them: no more than a chunk waits here."""
        direction = Direction(*self._shape)
        with contextlib.suppress(OSError):
            while data := source.recv(_CHUNK):
                gone, there = direction.send(len(data), time.monotonic())
                way.put((there, data))
                _sleep_until(gone)
        way.put((direction.send(0, time.monotonic())[1], b""))


def _arrive(way: queue.SimpleQueue[tuple[float, bytes]], sink: socket.socket) -> None:
    with contextlib.suppress(OSError):
        while True:
            due, data = way.get()
            _sleep_until(due)
            if not data:
                sink.shutdown(socket.SHUT_WR)
                return
            sink.sendall(data)


def _sleep_until(moment: float) -> None:
    time.sleep(max(0.0, moment - time.monotonic()))
