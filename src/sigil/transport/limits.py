"""How much a client may ask of the server: every limit of the service, with its default."""

from __future__ import annotations

from dataclasses import dataclass, fields

from sigil.errors import ConfigError


@dataclass(frozen=True)
class Limits:
    """Limits of the split service and the HTTPS front; who goes beyond one loses that stream or request."""

    samples_per_batch: int | None = None
    """Samples in one message; none: one more than the batch size of the settings."""
    steps_per_round: int = 20_000
    """Steps of one client in one round."""
    samples_per_round: int = 2_000_000
    """Samples of one client in one round: the largest weight that it can get in the average."""
    bytes_per_round: int = 1 << 40
    """Bytes of tensors from one client in one round, replays included."""
    hello_seconds: float = 10.0
    """Longest wait for the first message of a stream."""
    step_seconds: float = 60.0
    """Longest time that a step may wait for its client, and the longest pause between two steps."""
    return_seconds: float | None = 120.0
    """How long the round waits for a client whose connection ended; none: until the round's deadline."""
    round_seconds: float | None = None
    """Longest time for a client's round, from its first connection; none: no limit but those of its steps."""
    reconnects: int = 10
    """How often a client may come back in one round."""
    streams: int = 1024
    """Streams at once, of all clients."""
    streams_per_client: int = 4
    """Streams at once with the same certificate: the one in use and the remains of broken ones."""
    refusals_per_minute: int = 60
    """Refused streams of one certificate in a minute that are answered at once; more wait a second each."""
    bytes_in_flight: int = 1 << 30
    """Bytes of activations and cut gradients of all open steps; more have to wait."""

    front_connections: int = 1024
    """Connections to the HTTPS front at once, of all clients."""
    front_connections_per_client: int = 32
    """Connections to the HTTPS front at once with the same certificate."""
    front_handshakes: int = 64
    """Connections to the HTTPS front that have not shown a certificate yet."""
    front_bytes: int = 1 << 27
    """Bytes of requests that the HTTPS front holds at once; half of them of one client."""
    front_bytes_per_round: int | None = None
    """Bytes of one client's answers in one round; none: eight times its half, and 16 MiB."""
    front_seconds: float = 60.0
    """Longest time for one request to the HTTPS front, from its head to the last byte of its answer."""

    def __post_init__(self) -> None:
        for entry in fields(self):
            value = getattr(self, entry.name)
            if value is not None and not value > 0:
                raise ConfigError(f"The limit {entry.name} is {value}, but it must be above 0.")
