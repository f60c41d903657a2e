"""The slow link carries every byte, in order and no sooner than its bandwidth and latency allow."""

from __future__ import annotations

import socket
import threading
from typing import Any

import pytest
import torch

from harness.slow_link import Direction, SlowLink


def test_bytes_leave_at_the_bandwidth_and_arrive_after_the_latency() -> None:
    direction = Direction(10, 0.05)
    for _ in range(100):
        gone, there = direction.send(12_500, now=1.0)
    assert gone == pytest.approx(2.0)
    assert there == pytest.approx(2.05)
    # What was not used of the link is gone.
    assert direction.send(12_500, now=10.0) == pytest.approx((10.01, 10.06))


def test_without_a_bandwidth_only_the_latency_is_left() -> None:
    assert Direction(None, 0.05).send(10**9, now=1.0) == (1.0, 1.05)


def test_all_that_goes_in_comes_out_in_order_and_so_does_the_end() -> None:
    sent = bytes(range(256)) * 400

    def echo(listener: socket.socket) -> None:
        line, _ = listener.accept()
        with line:
            received = b"".join(iter(lambda: line.recv(65_536), b""))
            line.sendall(received[::-1])

    with socket.create_server(("127.0.0.1", 0)) as listener:
        threading.Thread(target=echo, args=(listener,), daemon=True).start()
        with SlowLink(f"127.0.0.1:{listener.getsockname()[1]}", mbits=100, round_trip=0.01) as link:
            host, port = link.address.split(":")
            with socket.create_connection((host, int(port)), timeout=60) as line:
                line.sendall(sent)
                line.shutdown(socket.SHUT_WR)
                assert b"".join(iter(lambda: line.recv(65_536), b"")) == sent[::-1]


def test_a_round_over_a_slow_link_is_the_round_without_it(net: Any) -> None:
    federation = net.local()
    states = []
    for slow in (False, True):
        with net.service() as service, SlowLink(service.address, mbits=100, round_trip=0.01) as link:
            ticket = net.open(service, federation.server_state, clients=1)[0]
            task = net.task(link if slow else service, ticket, federation.client_state)
            states.append(net.train(task, 0).client_state)
    near, far = states
    assert near.keys() == far.keys()
    assert all(torch.equal(near[name], far[name]) for name in near)
