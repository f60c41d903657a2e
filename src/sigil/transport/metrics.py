"""What the live service counts, for Prometheus: clients, steps, bytes, rounds, refusals by reason."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from prometheus_client import (
    CONTENT_TYPE_LATEST,
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    generate_latest,
)

from sigil.errors import NetworkError
from sigil.federation.judging import Fault
from sigil.federation.progress import Silent
from sigil.transport.rejections import FrontRefusal, Reason

# At the metrics endpoint: connections at once, the longest head of a request, and the time for one.
_READERS, _HEAD_BYTES, _READER_SECONDS = 32, 8192, 5.0
STAGES = ("client", "receive", "forward", "backward", "send")
_STEP_SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)


@dataclass(frozen=True)
class ClientNow:
    """One client at this moment: what it is doing, its images in the round under way, and its speed."""

    client: int
    state: str
    images: int
    images_per_second: float


class Metrics:
    """The counters of one service, in a registry of their own."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.clients = Gauge("sigil_clients", "Clients connected now", registry=self.registry)
        self.round = Gauge("sigil_round", "Round under way", registry=self.registry)
        self.steps = Counter("sigil_steps", "Steps finished", registry=self.registry)
        self.images = Counter("sigil_images", "Samples in finished steps", registry=self.registry)
        self.repeated = Counter(
            "sigil_repeated_activations",
            "Samples that were sent again within an epoch",
            registry=self.registry,
        )
        self.received = Counter("sigil_received_bytes", "Bytes of accepted frames", registry=self.registry)
        self.sent = Counter("sigil_sent_bytes", "Bytes of frames sent", registry=self.registry)
        self.reconnects = Counter("sigil_reconnects", "Clients that came back", registry=self.registry)
        self.in_flight = Gauge(
            "sigil_in_flight_bytes",
            "Bytes of activations and gradients of open steps",
            registry=self.registry,
        )
        self.step_seconds = Histogram(
            "sigil_step_seconds",
            "Seconds from a step's activation header to the last byte of its gradient",
            buckets=_STEP_SECONDS,
            registry=self.registry,
        )
        self._rejected = Counter("sigil_rejected", "Streams refused", ["reason"], registry=self.registry)
        for reason in Reason:
            self._rejected.labels(reason.value)  # every reason is shown from the start, at zero
        self._stages = Histogram(
            "sigil_stage_seconds",
            "Seconds of a step by stage: waiting for the client, receiving, computing, sending",
            ["stage"],
            buckets=_STEP_SECONDS,
            registry=self.registry,
        )
        for stage in STAGES:
            self._stages.labels(stage)
        self.joined = Gauge("sigil_clients_joined", "Clients that are there", registry=self.registry)
        self.training = Gauge("sigil_clients_training", "Clients in a round now", registry=self.registry)
        self._readers = 0
        self.people: tuple[ClientNow, ...] = ()
        self.waited = Counter(
            "sigil_waited_seconds", "Seconds in which a round waited for clients", registry=self.registry
        )
        self._loss = Gauge("sigil_loss", "Mean training loss of the last round", registry=self.registry)
        self._accuracy = Gauge("sigil_accuracy", "Accuracy on the test images", registry=self.registry)
        self._wsr = Gauge(
            "sigil_wsr", "Share of the mark's bits that are read rightly", ["inputs"], registry=self.registry
        )
        self._log10_p = Gauge(
            "sigil_log10_p", "log10 of p of a reading, corrected", ["inputs"], registry=self.registry
        )
        self._log10_p_before = Gauge(
            "sigil_log10_p_before",
            "log10 of p of a reading before correction",
            ["inputs"],
            registry=self.registry,
        )
        self._front_refused = Counter(
            "sigil_front_refused", "Refused by the HTTPS front", ["reason"], registry=self.registry
        )
        for why in FrontRefusal:
            self._front_refused.labels(why.value)
        self._left_out = Counter(
            "sigil_left_out_updates", "Updates not averaged", ["reason"], registry=self.registry
        )
        for fault in Fault:
            self._left_out.labels(fault.value)

    def stage(self, name: str, seconds: float) -> None:
        """Count the time of one stage of a step."""
        self._stages.labels(name).observe(seconds)

    def round_ended(self, row: Mapping[str, Any]) -> None:
        """Show what a round came to, from its line in ``metrics.jsonl``."""
        self.round.set(row["round"])
        self._loss.set(row["loss"])
        if "accuracy" in row:
            self._accuracy.set(row["accuracy"])
        for kind, end in (("noise", ""), ("inputs", "_inputs")):
            for name, gauge in (
                ("wsr", self._wsr),
                ("log10_p", self._log10_p),
                ("log10_p_before", self._log10_p_before),
            ):
                if f"{name}{end}" in row:
                    gauge.labels(kind).set(row[f"{name}{end}"])

    def refusals(self) -> dict[str, dict[str, int]]:
        """What was refused so far, by kind and reason."""
        kinds = {"streams": self._rejected, "connections": self._front_refused, "updates": self._left_out}
        return {
            kind: {
                sample.labels["reason"]: int(sample.value)
                for sample in next(iter(counter.collect())).samples
                if sample.name.endswith("_total")
            }
            for kind, counter in kinds.items()
        }

    def rejected(self, reason: Reason) -> None:
        """Count one refusal."""
        self._rejected.labels(reason.value).inc()

    def front_refused(self, why: FrontRefusal) -> None:
        """Count one refusal of the HTTPS front."""
        self._front_refused.labels(why.value).inc()

    def left_out(self, fault: Fault) -> None:
        """Count one update that was not averaged."""
        self._left_out.labels(fault.value).inc()

    def rejections(self) -> dict[Reason, int]:
        """How often each reason was given so far."""
        counts = dict.fromkeys(Reason, 0)
        for sample in next(iter(self._rejected.collect())).samples:
            if sample.name == "sigil_rejected_total":
                counts[Reason(sample.labels["reason"])] = int(sample.value)
        return counts

    def text(self) -> str:
        """All of it in Prometheus' text format."""
        return generate_latest(self.registry).decode()

    def serve(self, port: int, *, host: str = "127.0.0.1") -> int:
        """Answer ``GET /metrics`` on this port (0: any free one) until the process ends; returns the port."""
        try:
            family = socket.AF_INET6 if ":" in host else socket.AF_INET
            listener = socket.create_server((host, port), family=family)
        except OSError as error:
            raise NetworkError(
                f"The metrics cannot be served on {host}:{port}: {error.strerror}; choose another port."
            ) from None
        threading.Thread(
            target=lambda: asyncio.run(self._listen(listener)), name="metrics", daemon=True
        ).start()
        found: int = listener.getsockname()[1]
        return found

    async def _listen(self, listener: socket.socket) -> None:
        # Prometheus' own server takes a thread for each connection and prints what it does not understand.
        server = await asyncio.start_server(self._answer, sock=listener, limit=_HEAD_BYTES)
        await server.serve_forever()

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """One request, one answer: a short head in time, and nothing for more readers than there can be."""
        self._readers += 1
        with suppress(OSError, TimeoutError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
            try:
                if self._readers <= _READERS:
                    async with asyncio.timeout(_READER_SECONDS):
                        head = await reader.readuntil(b"\r\n\r\n")
                        writer.write(self._page(head))
                        await writer.drain()
            finally:
                self._readers -= 1
                writer.close()

    def _page(self, head: bytes) -> bytes:
        method, _, rest = head.partition(b" ")
        known = method == b"GET" and rest.partition(b" ")[0].partition(b"?")[0] in (b"/", b"/metrics")
        status, kind = ("200 OK", CONTENT_TYPE_LATEST) if known else ("404 Not Found", "text/plain")
        body = self.text().encode() if known else b"Ask for /metrics."
        start = f"HTTP/1.1 {status}\r\ncontent-type: {kind}\r\ncontent-length: {len(body)}\r\n"
        return start.encode() + b"connection: close\r\n\r\n" + body


class MeasuredProgress(Silent):
    """Passes on what a run's progress is told, and shows its rounds to Prometheus."""

    def __init__(self, shown: Silent, metrics: Metrics) -> None:
        self._shown, self._metrics = shown, metrics

    def start(
        self,
        name: str,
        *,
        first_round: int,
        rounds: int,
        images_per_round: int,
        rows: Sequence[Mapping[str, Any]] = (),
    ) -> None:
        """A run begins or goes on."""
        for row in rows[-1:]:
            self._metrics.round_ended(row)
        self._shown.start(
            name, first_round=first_round, rounds=rounds, images_per_round=images_per_round, rows=rows
        )

    def tick(self, images: int) -> None:
        """Training went over this many images more."""
        self._shown.tick(images)

    def round_end(self, metrics: dict[str, Any]) -> None:
        """A round is over."""
        self._metrics.round_ended(metrics)
        self._shown.round_end(metrics)

    def close(self) -> None:
        """The run is over."""
        self._shown.close()
