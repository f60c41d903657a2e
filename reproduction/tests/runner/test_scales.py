from __future__ import annotations

import math
from functools import cache

import numpy as np
import pytest
import torch

from sigil import models
from sigil.federation import Client, Server, Step, step
from sigil.federation.precision import choose
from sigil.federation.settings import Settings
from sigil.injector import Injector
from sigil.keys.key import Key
from sigil_reproduction.registry import EXPERIMENTS
from sigil_reproduction.runner import published as paper
from sigil_reproduction.runner import scales
from sigil_reproduction.runner.scales import STRENGTHS, TASKS


@pytest.mark.parametrize("model", list(TASKS))
def test_paper_scale_is_the_papers_setting_and_takes_a_step(model: str) -> None:
    settings = scales.get("paper").settings(model, seed=0, watermark={"strength": 0.1})
    defaults = paper.numbers()["defaults"]
    assert settings.federation.clients == defaults["clients"]
    assert settings.federation.rounds == defaults["rounds"]
    assert settings.federation.local_epochs == defaults["local_epochs"]
    assert settings.federation.batch_size == defaults["global_batch"]
    assert settings.optimizer.lr == defaults["lr"]
    assert settings.optimizer.lr_min == defaults["lr_min"]
    assert settings.optimizer.warmup_rounds == defaults["warmup_rounds"]
    assert settings.watermark.bits == defaults["bits"]
    assert settings.data == Settings().data.model_copy(update={"name": TASKS[model]})

    classes, side = (10, 32) if TASKS[model] == "cifar10" else (200, 64)
    whole = models.build(model, classes=classes, width=settings.model.width, seed=0)
    cut = models.default_cut(model)
    assert cut == paper.numbers()["splits"][model]
    client_half, server_half = models.split(whole, cut)
    shape = models.activation_shape(client_half, (3, side, side))
    injector = Injector(Key.generate("test", shape=shape, bits=50, seed=bytes(32)), 0.1)
    precision = choose("cpu", "float32")
    client = Client(
        0, client_half.train(), torch.optim.SGD(client_half.parameters(), lr=0.02), precision=precision
    )
    server = Server(
        server_half.train(),
        torch.optim.SGD(server_half.parameters(), lr=0.02),
        shape=shape,
        precision=precision,
        injector=injector,
    )
    before = {name: value.clone() for name, value in client_half.named_parameters()}
    step(client, server, torch.randn(2, 3, side, side), torch.tensor([0, 1]), at=Step(1, 0, 1))
    assert np.isfinite(float(client.loss))
    assert any(not torch.equal(value, before[name]) for name, value in client_half.named_parameters())


@cache
def numbers_at(model: str, width: int, cut: str) -> int:
    client_half, _ = models.split(models.build(model, classes=10, width=width, seed=0), cut)
    return math.prod(models.activation_shape(client_half, (3, 32, 32)))


def test_recordings_at_paper_scale_reach_the_last_round() -> None:
    scale = scales.get("paper")
    cells = [cell for experiment in EXPERIMENTS.values() for cell in experiment.cells(scale, [0])]
    found = {settings for cell in cells for settings in cell.trainings if settings.record.clients}
    assert len({settings.model.cut for settings in found}) == 4
    for settings in found:
        federation, model = settings.federation, settings.model
        assert settings.data.name == "cifar10"
        per_epoch = math.ceil(50_000 / federation.clients / federation.batch_size)
        kept = math.floor(federation.local_epochs * per_epoch * settings.record.share)
        row = 4 * numbers_at(model.name, model.width, model.cut or models.default_cut(model.name))
        whole = settings.record.whole_rounds
        steps = whole * federation.local_epochs * per_epoch + (federation.rounds - whole) * kept
        size = steps * federation.batch_size * row
        assert kept >= 2
        assert size <= settings.record.limit_mb * 2**20


@pytest.mark.parametrize("scale", ["smoke", "cpu", "desk"])
@pytest.mark.parametrize("model", list(TASKS))
def test_reduced_scales_run_one_thread_and_keep_the_papers_cut(scale: str, model: str) -> None:
    settings = scales.get(scale).settings(model, seed=3, watermark={"strength": 0.1})
    assert (settings.run.seed, settings.run.threads, settings.run.workers) == (3, 1, 1)
    assert settings.model.cut is None
    assert settings.watermark.bits == 50


def test_an_experiment_may_ask_for_threads_and_not_for_another_seed() -> None:
    run = scales.get("desk").settings(seed=3, run={"threads": 2, "seed": 4}).run
    assert (run.seed, run.threads, run.workers, run.precision) == (3, 2, 1, "auto")


@pytest.mark.parametrize("model", list(TASKS))
def test_the_desk_scale_lets_networks_learn(model: str) -> None:
    scale = scales.get("desk")
    settings = scale.settings(model, seed=0, watermark={"strength": 0.1}, record=scale.recording)
    federation = settings.federation
    assert (federation.clients, federation.local_epochs, federation.batch_size) == (10, 2, 64)
    assert (settings.optimizer.lr, settings.optimizer.warmup_rounds) == (0.1, 2)
    assert (settings.run.precision, settings.run.threads, settings.run.evaluate_every) == ("auto", 1, 2)
    assert (settings.record.clients, settings.record.share) == ((0,), 0.05)
    assert settings.model.width == 16
    tiny = TASKS[model] == "tiny-imagenet"
    assert federation.rounds == (80 if tiny else 20)
    assert (settings.data.classes, settings.data.train_limit) == ((20, 3_000) if tiny else (None, None))


def test_what_an_experiment_changes_wins() -> None:
    settings = scales.get("cpu").settings(seed=0, federation={"clients": 77})
    assert settings.federation.clients == 77
    assert settings.federation.rounds == 10


def test_the_papers_numbers() -> None:
    assert paper.fidelity("resnet18", 0) == {"accuracy": 92.6}
    assert paper.fidelity("resnet18", 1.0) == {"accuracy": 92.8, "wsr": 100.0, "cosine": 1.6e-6}
    assert paper.fidelity("vgg11", 0.01) == {"accuracy": 89.9, "wsr": 99.9, "cosine": -1.1e-4}
    assert paper.fidelity("alexnet", 0.1) is None
    assert paper.pair("clients", "100", 0.01) == {"accuracy": 72.1, "wsr": 89.0}
    assert paper.pair("noniid_dirichlet", "0.1", 1.0) == {"accuracy": 66.3, "wsr": 100.0}
    assert paper.pair("unbalanced_lognormal", "2.0", 0.1) == {"accuracy": 92.6, "wsr": 100.0}
    assert paper.pair("clients", "7", 0.1) is None
    for model in TASKS:
        assert all(paper.fidelity(model, strength) for strength in (0, *STRENGTHS))
