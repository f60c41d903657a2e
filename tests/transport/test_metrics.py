"""The counters and their endpoint."""

from __future__ import annotations

import urllib.request
from typing import Any

import pytest

from sigil.errors import NetworkError
from sigil.transport import Metrics, Reason


def test_every_reason_is_shown_from_the_start() -> None:
    metrics = Metrics()
    assert metrics.rejections() == dict.fromkeys(Reason, 0)
    for reason in Reason:
        assert f'sigil_rejected_total{{reason="{reason.value}"}} 0.0' in metrics.text()


def test_the_endpoint_serves_what_the_service_counts(net: Any, service: Any) -> None:
    federation = net.local()
    _, outcome, updates = net.round(service, federation.client_state, federation.server_state, 1)
    assert net.raw(service).send(b"nonsense").refusal() is Reason.MALFORMED
    port = service.metrics.serve(0)
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics") as answer:
        text = answer.read().decode()
    values = dict(line.rsplit(" ", 1) for line in text.splitlines() if not line.startswith("#"))
    steps = sum(client.steps for client in outcome.clients.values())
    images = sum(client.images for client in outcome.clients.values())
    assert float(values["sigil_steps_total"]) == steps == sum(one.steps for one in updates.values())
    assert float(values["sigil_images_total"]) == images
    assert float(values["sigil_step_seconds_count"]) == steps
    assert float(values["sigil_clients"]) == 0
    assert float(values["sigil_round"]) == 1
    assert float(values['sigil_rejected_total{reason="malformed"}']) == 1
    cut = 4 * images * 8 * 2 * 2
    assert float(values["sigil_received_bytes_total"]) > cut
    assert float(values["sigil_sent_bytes_total"]) > cut
    with pytest.raises(NetworkError, match=f"127.0.0.1:{port}"):
        Metrics().serve(port)
