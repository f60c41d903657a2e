"""What the live service counts, for Prometheus: clients, steps, bytes, refusals by reason."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest, start_http_server

from sigil.errors import NetworkError
from sigil.federation.judging import Fault
from sigil.transport.rejections import FrontRefusal, Reason

_STEP_SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)


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
            server, _ = start_http_server(port, host, registry=self.registry)
        except OSError as error:
            raise NetworkError(
                f"The metrics cannot be served on {host}:{port}: {error.strerror}; choose another port."
            ) from None
        return server.server_port
