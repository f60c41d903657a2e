"""Who is there and what each client is doing, for Prometheus and the live page."""

from __future__ import annotations

import time
from collections.abc import Collection, Mapping

from sigil.transport.metrics import ClientNow, Metrics
from sigil.transport.session import Status

_WORDS = {
    Status.EXPECTED: "expected",
    Status.CONNECTED: "training",
    Status.ABSENT: "absent",
    Status.FINISHED: "finished",
    Status.LOST: "lost",
    Status.EXPELLED: "out",
}


class Presence:
    """Keeps the metrics' list of clients up to date, round by round."""

    def __init__(self, metrics: Metrics, clients: Collection[int]) -> None:
        self._metrics = metrics
        self._clients = sorted(clients)
        self._began: dict[int, float] = {}
        self._speeds: dict[int, float] = {}
        self._last = dict.fromkeys(self._clients, ClientNow(0, "absent", 0, 0.0))

    def gathered(self, present: Collection[int], out: Collection[int]) -> None:
        """Between rounds: who is there."""
        self._began.clear()
        self._tell(
            {
                client: "out" if client in out else "here" if client in present else "absent"
                for client in self._last
            },
            present,
        )

    def trained(
        self, progress: Mapping[int, tuple[Status, int]], present: Collection[int], out: Collection[int]
    ) -> None:
        """In a round: where each of its clients stands and how many images it has gone through."""
        now = time.monotonic()
        words = {client: "out" if client in out else "absent" for client in self._last}
        for client, (status, images) in progress.items():
            words[client] = "out" if client in out else _WORDS[status]
            if status is Status.CONNECTED:
                began = self._began.setdefault(client, now)
                self._speeds[client] = images / (now - began) if now > began else 0.0
        self._tell(words, present, {client: images for client, (_, images) in progress.items()})

    def _tell(
        self, words: Mapping[int, str], present: Collection[int], images: Mapping[int, int] | None = None
    ) -> None:
        for client in self._clients:
            count = self._last[client].images if images is None else images.get(client, 0)
            speed = self._speeds.get(client, 0.0)
            self._last[client] = ClientNow(client, words[client], count, round(speed, 1))
        self._metrics.people = tuple(self._last[client] for client in self._clients)
        self._metrics.joined.set(len(set(present) & set(self._clients)))
        self._metrics.training.set(sum(word == "training" for word in words.values()))
