"""The loops beside which Sigil is measured (`benchmarks/peers.py`) train, and train the same thing."""

from __future__ import annotations

import copy
import importlib
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from sigil.federation import Activation, LogitGradient, Server
from sigil.federation.from_settings import build_halves, fresh_optimizer
from sigil.federation.precision import Precision

SETTINGS: dict[str, dict[str, Any]] = {
    "model": {"name": "resnet18", "width": 2, "cut": "layer3"},
    "data": {"name": "digits", "train_limit": 64, "test_limit": 32, "augment": False},
    "federation": {"clients": 2, "local_epochs": 1, "batch_size": 16},
    "optimizer": {"lr": 0.01, "warmup_rounds": 0},
    "run": {"device": "cpu", "precision": "float32"},
}


@pytest.fixture(scope="module")
def peers() -> ModuleType:
    return importlib.import_module("peers")


class Pipe:
    """The measuring process's end: it gives every turn at once and keeps what it is told."""

    def __init__(self) -> None:
        self.told: list[dict[str, float]] = []

    def recv(self) -> str:
        return "go"

    def send(self, taken: dict[str, float]) -> None:
        self.told.append(taken)


@pytest.mark.parametrize(
    "name", ["plain", "SplitFed", "SplitFed, as published", "train, bare", "train, marked"]
)
def test_every_loop_tells_of_each_round(peers: ModuleType, tmp_path: Path, name: str) -> None:
    pipe = Pipe()
    job = peers.Job(SETTINGS, None, tmp_path, rounds=1)
    with pytest.raises(peers.Over):
        peers.LOOPS[name](peers.Turns(pipe, job), job)
    assert len(pipe.told) == 2  # one of them to warm up
    for told in pipe.told:
        assert told["seconds"] > 0
        assert told["processor"] > 0
        assert told["first"] > 0
        assert told["memory"] > 50


def test_splitfeds_server_trains_what_sigils_trains(peers: ModuleType) -> None:
    settings = peers.make(SETTINGS)
    precision = Precision(torch.device("cpu"), bfloat16=False, channels_last=False)
    halves = build_halves(settings, classes=10, input_shape=(1, 16, 16), precision=precision)
    half = copy.deepcopy(halves.server)
    theirs = peers.SplitFedServer(half, settings, precision)
    ours = Server(
        halves.server.train(),
        fresh_optimizer(halves.server, settings.optimizer.lr, settings=settings, precision=precision),
        shape=halves.shape,
        precision=precision,
    )
    random = torch.Generator().manual_seed(0)
    activation = torch.rand(8, *halves.shape, generator=random)
    logits = ours.forward(Activation(activation)).values.requires_grad_()
    assert torch.equal(theirs.forward(1, activation), logits)
    (gradient,) = torch.autograd.grad(F.cross_entropy(logits, torch.arange(8)), logits)
    torch.testing.assert_close(theirs.backward(1, gradient), ours.backward(LogitGradient(gradient)).values)
    for name, value in theirs.halves[1].state_dict().items():
        torch.testing.assert_close(value, halves.server.state_dict()[name])
    # The other client's half is as it was.
    for name, value in theirs.halves[0].state_dict().items():
        assert torch.equal(value, half.state_dict()[name])


def test_a_ratio_of_the_scale_is_that_inside_a_repetition() -> None:
    training = importlib.import_module("training")

    def row(repetition: int, clients: int, seconds: float, memory: float) -> dict[str, float]:
        names = ("repetition", "share", "clients", "cpu_seconds_per_image", "peak_mb")
        return dict(zip(names, (repetition, 1.0, clients, seconds, memory), strict=True))

    found = [row(0, 10, 1.0, 100), row(0, 100, 2.0, 110), row(1, 10, 4.0, 200), row(1, 100, 4.0, 220)]
    few, many = training.scale_table(found)
    assert few["cpu_seconds_per_image_ratio"] == 1
    assert many["cpu_seconds_per_image_ratio"] == 1.5
    assert many["peak_mb_ratio"] == pytest.approx(1.1)
