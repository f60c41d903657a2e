"""What the live service counts, for Prometheus: clients, steps, bytes, rounds, refusals by reason."""

from __future__ import annotations

import socket
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from functools import partial
from typing import Any

from prometheus_client import (
    CONTENT_TYPE_LATEST,
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    generate_latest,
)

from sigil.federation.judging import Fault
from sigil.federation.progress import Progress, Row
from sigil.serving import Page, PageServer
from sigil.transport.limits import FrontRefusal, Reason
from sigil.transport.listening import listen_on

STAGES = ("client", "receive", "forward", "backward", "send")
_STEP_SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)


@dataclass(frozen=True)
class ClientNow:
    """One client at this moment: what it is doing, its images in the round under way, and its speed."""

    client: int
    state: str
    images: int
    images_per_second: float


class Metrics(Progress):
    """The counters of one service, in a registry of their own; as progress of a run it shows its rounds."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.now: tuple[ClientNow, ...] = ()
        self.banner = ""
        self.waited_seconds = 0.0
        gauge = partial(Gauge, registry=self.registry)
        counter = partial(Counter, registry=self.registry)
        seconds = partial(Histogram, buckets=_STEP_SECONDS, registry=self.registry)
        self.clients = gauge("sigil_clients", "Clients that the run is for")
        self.round = gauge("sigil_round", "Round under way")
        self.steps = counter("sigil_steps", "Steps finished")
        self.images = counter("sigil_images", "Samples in finished steps")
        self.repeated = counter("sigil_repeated_activations", "Samples that were sent again within an epoch")
        self.received = counter("sigil_received_bytes", "Bytes of accepted frames")
        self.sent = counter("sigil_sent_bytes", "Bytes of frames sent")
        self.reconnects = counter("sigil_reconnects", "Clients that came back")
        self.in_flight = gauge("sigil_in_flight_bytes", "Bytes of activations and gradients of open steps")
        self.step_seconds = seconds(
            "sigil_step_seconds", "Seconds from a step's activation header to the last byte of its gradient"
        )
        self._stages = seconds(
            "sigil_stage_seconds",
            "Seconds of a step by stage: waiting for the client, receiving, computing, sending",
            ["stage"],
        )
        self.joined = gauge("sigil_clients_joined", "Clients that are there now")
        self.training = gauge("sigil_clients_training", "Clients that train now")
        self._waited = counter("sigil_waited_seconds", "Seconds in which a round waited for clients")
        self._loss = gauge("sigil_loss", "Mean training loss of the last round")
        self._accuracy = gauge("sigil_accuracy", "Accuracy on the test images")
        self._wsr = gauge("sigil_wsr", "Share of the mark's bits that are read rightly", ["inputs"])
        self._log10_p = gauge("sigil_log10_p", "log10 of p of a reading, corrected", ["inputs"])
        self._log10_p_before = gauge(
            "sigil_log10_p_before", "log10 of p of a reading before correction", ["inputs"]
        )
        refused = partial(counter, labelnames=["reason"])
        self._refusals: dict[str, tuple[Counter, type[Enum]]] = {
            "streams": (refused("sigil_rejected", "Streams refused"), Reason),
            "connections": (refused("sigil_front_refused", "Refused by the HTTPS front"), FrontRefusal),
            "updates": (refused("sigil_left_out_updates", "Updates not averaged"), Fault),
        }
        # Every label is shown from the start, at zero.
        for labelled, reasons in self._refusals.values():
            for reason in reasons:
                labelled.labels(reason.value)
        for name in STAGES:
            self._stages.labels(name)

    def stage(self, name: str, seconds: float) -> None:
        """Count the time of one stage of a step."""
        self._stages.labels(name).observe(seconds)

    def waited(self, seconds: float) -> None:
        """A round waited for clients."""
        self.waited_seconds += seconds
        self._waited.inc(seconds)

    def on_start(self, name: str, *, rows: Sequence[Row] = (), **values: Any) -> None:
        for row in rows[-1:]:
            self.on_round(row)

    def on_round(self, row: Row) -> None:
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
        return {
            kind: {
                sample.labels["reason"]: int(sample.value)
                for sample in next(iter(counter.collect())).samples
                if sample.name.endswith("_total")
            }
            for kind, (counter, _) in self._refusals.items()
        }

    def refused(self, why: Reason | FrontRefusal | Fault) -> None:
        """Count one refusal: of a stream, by the HTTPS front, or of an update that is not averaged."""
        for counter, reasons in self._refusals.values():
            if isinstance(why, reasons):
                counter.labels(why.value).inc()

    def rejections(self) -> dict[Reason, int]:
        """How often each reason was given so far."""
        return {Reason(name): count for name, count in self.refusals()["streams"].items()}

    def text(self) -> str:
        """All of it in Prometheus' text format."""
        return generate_latest(self.registry).decode()

    def serve(self, port: int) -> int:
        """Answer ``GET /metrics`` on this port (0: any free one) until the process ends; returns the port."""
        listener = listen_on("127.0.0.1", port, option="--metrics-port")
        _MetricsPage(self, listener).start()
        return int(listener.getsockname()[1])


class _MetricsPage(PageServer):
    def __init__(self, metrics: Metrics, listener: socket.socket) -> None:
        super().__init__("metrics", listener)
        self._metrics = metrics

    def page(self, method: str, path: str, headers: Mapping[str, str]) -> Page:
        if method == "GET" and path in ("/", "/metrics"):
            return Page(200, CONTENT_TYPE_LATEST, self._metrics.text().encode())
        return Page(404, "text/plain", b"Ask for /metrics.")
