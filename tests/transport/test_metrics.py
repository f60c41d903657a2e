"""The counters and their endpoint."""

from __future__ import annotations

import json
import re
import socket
import threading
import time
import urllib.request
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from sigil.errors import NetworkError
from sigil.federation.precision import choose
from sigil.federation.progress import Progress, Together
from sigil.transport import Metrics, Reason, owner, service
from sigil.transport.owner import NetworkSettings, Presence
from sigil.transport.session import Status


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
    # Activations travel in the number format of the training.
    precision = choose(net.settings.run.device, net.settings.run.precision)
    cut = (2 if precision.bfloat16 else 4) * images * 8 * 2 * 2
    assert float(values["sigil_received_bytes_total"]) > cut
    assert float(values["sigil_sent_bytes_total"]) > cut
    with pytest.raises(NetworkError, match=f"Port {port} of 127.0.0.1"):
        Metrics().serve(port)


def test_a_round_is_shown_as_its_line_in_the_metrics_says() -> None:
    metrics = Metrics()
    shown = Together(Progress(), metrics)
    row = {"round": 7, "loss": 0.5, "accuracy": 0.9, "wsr": 0.8, "log10_p_before": -12.5}
    shown.on_start("run", first_round=7, rounds=9, images_per_round=10, rows=[row])
    value = metrics.registry.get_sample_value
    assert value("sigil_round") == 7
    shown.on_round(row | {"round": 8, "wsr_inputs": 0.95, "log10_p_inputs": -20.0, "log10_p": 0.0})
    assert (value("sigil_round"), value("sigil_loss"), value("sigil_accuracy")) == (8, 0.5, 0.9)
    assert value("sigil_wsr", {"inputs": "noise"}) == 0.8
    assert value("sigil_wsr", {"inputs": "inputs"}) == 0.95
    assert value("sigil_log10_p_before", {"inputs": "noise"}) == -12.5
    assert value("sigil_log10_p", {"inputs": "noise"}) == 0.0
    assert value("sigil_log10_p", {"inputs": "inputs"}) == -20.0
    shown.on_round({"round": 9, "loss": 0.4})  # a round that was not evaluated
    assert (value("sigil_round"), value("sigil_accuracy")) == (9, 0.9)


def test_clients_are_counted_between_rounds_too() -> None:
    metrics = Metrics()
    value = metrics.registry.get_sample_value
    credentials: Any = None
    NetworkSettings(dict.fromkeys(range(3), ""), credentials, "127.0.0.1:0", metrics=metrics)
    assert (value("sigil_clients"), value("sigil_clients_joined")) == (3, 0), "before the first round as well"
    presence = Presence(metrics, [0, 1, 2])
    presence.gathered(1, {0, 1}, out=set())
    assert (value("sigil_clients"), value("sigil_clients_joined")) == (3, 2)
    presence.trained(1, {0: (Status.CONNECTED, 32), 1: (Status.FINISHED, 64)}, {0, 1}, out={2})
    assert (value("sigil_clients"), value("sigil_clients_joined")) == (3, 2)
    assert [(now.client, now.state, now.images) for now in metrics.now] == [
        (0, "training", 32),
        (1, "finished", 64),
        (2, "out", 0),
    ]


def test_a_lost_client_is_named_until_it_is_back(caplog: pytest.LogCaptureFixture) -> None:
    metrics = Metrics()
    presence = Presence(metrics, [0, 1, 2])
    presence.gathered(5, {0, 1}, out=set())
    assert metrics.banner == "", "a client that has never been there is not lost"
    both = {0: (Status.CONNECTED, 32), 1: (Status.CONNECTED, 32)}
    presence.trained(5, both, {0, 1}, out=set())
    time.sleep(0.01)
    presence.trained(5, both, {0, 1}, out=set())
    assert all(now.images_per_second > 0 for now in metrics.now[:2])
    presence.trained(5, {0: (Status.CONNECTED, 64), 1: (Status.ABSENT, 32)}, {0}, out=set())
    assert [now.state for now in metrics.now] == ["training", "lost", "absent"]
    assert not presence.waiting
    presence.trained(5, {0: (Status.FINISHED, 96), 1: (Status.ABSENT, 32)}, {0}, out=set())
    assert presence.waiting
    assert "Client 1 has been lost since" in metrics.banner
    assert "round 5 waits" in metrics.banner
    assert "sigil join …/clients/0001" in metrics.banner
    assert "--minimum 1" in metrics.banner, "nobody but client 0 is there"
    assert metrics.now[0].images_per_second > 0, "a finished client keeps the speed that it had"
    assert metrics.now[1].images_per_second == 0
    presence.trained(5, {0: (Status.FINISHED, 96), 1: (Status.EXPECTED, 0)}, {0, 1}, out=set())
    assert (metrics.banner, presence.waiting) == ("", False)
    assert [record.message.partition(" since")[0].partition(" after")[0] for record in caplog.records] == [
        "Client 1 has been lost",
        "Client 1 is back",
    ]


def test_a_client_that_dies_before_its_half_is_here_is_lost() -> None:
    """It was shown as finished, and nothing said what the round waited for."""
    metrics = Metrics()
    presence = Presence(metrics, [0, 1])
    presence.gathered(3, {0, 1}, out=set())
    both = {0: (Status.FINISHED, 96), 1: (Status.FINISHED, 96)}
    presence.trained(3, both, {0, 1}, out=set(), delivered={0})
    assert (metrics.banner, presence.waiting) == ("", False)
    presence.trained(3, both, set(), out=set(), delivered={0})
    assert [now.state for now in metrics.now] == ["finished", "lost"]
    assert "Client 1 has been lost since" in metrics.banner
    assert presence.waiting


def test_a_client_that_finished_between_two_looks_has_a_speed() -> None:
    metrics = Metrics()
    presence = Presence(metrics, [0])
    presence.gathered(1, {0}, out=set())
    presence.trained(1, {0: (Status.EXPECTED, 0)}, {0}, out=set())
    time.sleep(0.01)
    presence.trained(1, {0: (Status.FINISHED, 96)}, {0}, out=set())
    speed = metrics.now[0].images_per_second
    assert 0 < speed <= 9600
    presence.trained(1, {0: (Status.FINISHED, 96)}, {0}, out=set())
    assert metrics.now[0].images_per_second == speed


def test_the_dashboard_asks_for_nothing_but_metrics_that_exist() -> None:
    dashboard = json.loads((Path(__file__).parents[2] / "examples" / "grafana.json").read_text())
    asked = {
        name
        for panel in dashboard["panels"]
        for target in panel["targets"]
        for name in re.findall(r"sigil_\w+", target["expr"])
    }
    known = {sample.name for family in Metrics().registry.collect() for sample in family.samples}
    known |= {family.name for family in Metrics().registry.collect()}
    assert asked <= known
    assert {"sigil_round", "sigil_loss", "sigil_accuracy", "sigil_wsr", "sigil_log10_p"} <= asked
    assert {"sigil_clients_joined", "sigil_clients_training", "sigil_stage_seconds_sum"} <= asked


def test_strangers_at_the_endpoint_cost_no_thread_and_no_line(capfd: pytest.CaptureFixture[str]) -> None:
    metrics = Metrics()
    port = metrics.serve(0)
    before = threading.active_count()
    lines = [socket.create_connection(("127.0.0.1", port), timeout=30) for _ in range(50)]
    for line in lines:
        with suppress(OSError):
            line.sendall(b"GET /metrics HTTP/1.1\r\nlarge: " + b"y" * 70_000)
    for line in lines:
        with suppress(ConnectionError):
            assert line.recv(12) == b""
        line.close()
    assert threading.active_count() <= before  # threads of earlier tests may end meanwhile
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics") as answer:
        assert b"sigil_round" in answer.read()
    assert capfd.readouterr().err == ""


def test_nobody_is_said_to_wait_for_a_client_that_was_given_up() -> None:
    metrics = Metrics()
    presence = Presence(metrics, [0, 1], wait=10.0, minimum=1)
    presence.gathered(1, {0, 1}, out=set())
    presence.gathered(2, {0}, out=set())
    assert "round 2 waits for it, 10 seconds at most" in metrics.banner
    presence.gathered(2, {0}, out=set(), gone={1})
    assert (metrics.banner, presence.waiting) == ("", False)
    presence.trained(2, {0: (Status.CONNECTED, 32)}, {0}, out=set())
    assert (metrics.banner, [now.state for now in metrics.now]) == ("", ["training", "absent"])


def test_a_round_that_cannot_go_on_without_a_client_is_not_said_to_wait_for_seconds_only() -> None:
    """With the other client out, it was "10 seconds at most", and the round waited for ever."""
    metrics = Metrics()
    presence = Presence(metrics, [0, 1, 2], wait=10.0, minimum=2)
    presence.gathered(2, {0, 1, 2}, out=set())
    three = {0: (Status.CONNECTED, 32), 1: (Status.ABSENT, 32), 2: (Status.CONNECTED, 32)}
    presence.trained(2, three, {0, 2}, out=set())
    assert "waits for it, 10 seconds at most" in metrics.banner
    presence.trained(2, three | {0: (Status.EXPELLED, 32)}, {2}, out={0})
    assert "at most" not in metrics.banner
    assert "start it again (sigil join …/clients/0001), or this command with --minimum 1" in metrics.banner
    presence.trained(2, three | {0: (Status.EXPELLED, 32), 2: (Status.LOST, 32)}, set(), out={0})
    assert metrics.banner.endswith("start it again (sigil join …/clients/0001).")


def test_a_client_that_vanished_is_noticed_within_ten_seconds() -> None:
    """By gRPC's keep-alive in the middle of a round, by what the HTTPS front heard of it between rounds."""
    options = dict(service._OPTIONS)
    assert options["grpc.keepalive_time_ms"] + options["grpc.keepalive_timeout_ms"] <= 10_000
    assert owner.HEARD_SECONDS <= 10
