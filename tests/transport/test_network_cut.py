"""A network that loses every packet in the middle of a round, for longer than a step may wait.

The client is a process of its own: on a host of its own where this machine allows network namespaces, whose
cable is pulled out, and behind a proxy on loopback that stands still.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from harness.replay import replay
from harness.waiting import until
from sigil.federation.from_settings import scheduled_rate
from sigil.transport import Limits, Reason, certificates

CLIENT = """
import json, sys, time
from pathlib import Path
from safetensors.torch import load_file, save_file
from sigil.federation.from_settings import Training, load_data
from sigil.federation.settings import make
from sigil.transport import ClientCredentials, RoundTask, train_round
given = json.loads(sys.argv[1])
settings = make(given["settings"])
update = train_round(
    RoundTask(1, given["address"], given["ticket"], lr=given["lr"], client_state=load_file(given["start"])),
    Training.of_client(settings, load_data(settings)), 0,
    credentials=ClientCredentials.load(Path(given["bundle"])), patience=300.0,
    tick=lambda images: time.sleep(0.02),
)
save_file({name: value.contiguous() for name, value in update.client_state.items()}, given["out"])
"""


class Loopback:
    """A proxy that stands still."""

    listen = "127.0.0.1:0"
    prefix: tuple[str, ...] = ()

    def __init__(self, make_proxy: Callable[..., Any]) -> None:
        self._make, self._proxy = make_proxy, None

    def address(self, service: str) -> str:
        self._proxy = self._make(service)
        return str(self._proxy.address)

    def cut(self) -> None:
        self._proxy.hold = 0

    def mend(self) -> None:
        self._proxy.hold = None
        self._proxy.release()

    def close(self) -> None:
        if self._proxy is not None:
            self._proxy.close()


class Namespaces:
    """A host of the client's own, at the end of a virtual cable."""

    listen = "10.213.97.1:0"

    def __init__(self, make_proxy: Callable[..., Any] | None = None) -> None:
        self._name, near = f"sigil{os.getpid()}", f"sigil{os.getpid()}a"
        self.prefix = ("ip", "netns", "exec", self._name)
        ip("netns", "add", self._name)
        try:
            ip("link", "add", near, "type", "veth", "peer", "name", "cable", "netns", self._name)
            ip("address", "add", "10.213.97.1/30", "dev", near)
            ip("link", "set", near, "up")
            ip("-n", self._name, "address", "add", "10.213.97.2/30", "dev", "cable")
            self.mend()
        except subprocess.CalledProcessError:
            self.close()
            raise

    def address(self, service: str) -> str:
        return service

    def cut(self) -> None:
        ip("-n", self._name, "link", "set", "cable", "down")

    def mend(self) -> None:
        ip("-n", self._name, "link", "set", "cable", "up")

    def close(self) -> None:
        ip("netns", "delete", self._name)


def ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True, capture_output=True)


def networks() -> list[type[Any]]:
    """The networks that this machine can have."""
    if shutil.which("ip") is None:
        return [Loopback]
    try:
        Namespaces().close()
    except subprocess.CalledProcessError:
        return [Loopback]
    return [Loopback, Namespaces]


@pytest.mark.parametrize("kind", networks())
def test_a_network_that_loses_everything_for_longer_than_a_step_changes_no_weight(
    make_net: Any, make_proxy: Callable[..., Any], tmp_path: Path, kind: type[Any]
) -> None:
    net = make_net(federation={"local_epochs": 12})
    start, begun = net.local(), tmp_path / "start.safetensors"
    network = kind(make_proxy)
    try:
        limits = Limits(step_seconds=2.0, return_seconds=None, reconnects=1000)
        with net.service(address=network.listen, limits=limits) as service:
            tickets = net.open(service, start.server_state, clients=1)
            save_file({name: value.contiguous() for name, value in start.client_state.items()}, begun)
            given = {
                "start": str(begun),
                "settings": net.settings.model_dump(mode="json"),
                "address": network.address(service.address),
                "ticket": tickets[0],
                "lr": scheduled_rate(net.settings, 1),
                "bundle": str(certificates.bundle_folder(net.folder, 0)),
                "out": str(tmp_path / "half.safetensors"),
            }
            command = [*network.prefix, sys.executable, "-c", CLIENT, json.dumps(given)]
            client = subprocess.Popen(command)
            try:
                value = service.metrics.registry.get_sample_value
                until(lambda: value("sigil_steps_total") >= 5, alive=lambda: client.poll() is None)
                network.cut()
                until(
                    lambda: service.metrics.rejections()[Reason.DEADLINE] > 0,
                    alive=lambda: client.poll() is None,
                )
                network.mend()
                assert client.wait(300) == 0
            finally:
                client.kill()
                client.wait()
            outcome = service.wait_round(timeout=120)
    finally:
        network.close()
    assert service.metrics.registry.get_sample_value("sigil_reconnects_total") >= 1
    alone = replay(net.settings, net.dataset, key=net.key, participants=[[0]])
    ours = load_file(tmp_path / "half.safetensors")
    assert all(torch.equal(ours[name], value) for name, value in alone.client_state.items())
    assert all(torch.equal(outcome.server_state()[name], value) for name, value in alone.server_state.items())
