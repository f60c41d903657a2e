"""A small trained model that carries a mark, its key, and a few digits to attack it with."""

from __future__ import annotations

import fcntl
import os
from dataclasses import dataclass

import pytest
import torch
from torch.nn import functional as F

from sigil import attacks, data, models
from sigil.keys.key import Key


@dataclass(frozen=True)
class Marked:
    """A model that classifies digits and carries the mark at pool2, whole and in halves."""

    whole: models.Model
    halves: tuple[models.Model, models.Model]
    key: Key

    def wsr(self, model: models.Model | tuple[models.Model, models.Model]) -> float:
        """The success rate of the mark in a model that was attacked."""
        report = attacks.measure(model, key=self.key, cut="pool2", probes=64).report
        assert report is not None
        return report.wsr


@pytest.fixture(scope="session")
def digits() -> data.Dataset:
    return data.load("digits", train_limit=96, test_limit=80)


@pytest.fixture(scope="session")
def more_digits() -> data.Dataset:
    return data.load("digits", train_limit=384, test_limit=80)


@pytest.fixture(scope="session")
def marked(digits: data.Dataset, tmp_path_factory: pytest.TempPathFactory) -> Marked:
    return _trained_once("marked", digits, epochs=120, places=tmp_path_factory)


@pytest.fixture(scope="session")
def accurate(more_digits: data.Dataset, tmp_path_factory: pytest.TempPathFactory) -> Marked:
    """The same, where the accuracy matters: from any seed it is well above what the tests ask for."""
    return _trained_once("accurate", more_digits, epochs=50, places=tmp_path_factory)


def _trained_once(name: str, digits: data.Dataset, *, epochs: int, places: pytest.TempPathFactory) -> Marked:
    """Trained by the first worker of the tests that needs it; the others wait for its file."""
    base = places.getbasetemp()
    folder = base.parent if "PYTEST_XDIST_WORKER" in os.environ else base
    file = folder / f"{name}.safetensors"
    key = Key.generate("ACME", shape=(16, 2, 2), bits=16, seed=bytes(32))
    with (folder / f"{name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not file.exists():
            models.save(file, _train(digits, key, epochs=epochs))
    model = models.load(file)
    return Marked(model, models.split(model, "pool2"), key)


def _train(digits: data.Dataset, key: Key, *, epochs: int) -> models.Model:
    model = models.build("vgg11", classes=10, width=8, channels=1, input_size=8, seed=0)
    rows = list(model.children())
    front, back = torch.nn.Sequential(*rows[:4]), torch.nn.Sequential(*rows[4:])
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    generator = torch.Generator().manual_seed(0)
    batches = data.Batches(
        digits.train.images, digits.train.labels, batch_size=96, mean=digits.mean, std=digits.std
    )
    for images, labels in (batch for _ in range(epochs) for batch in batches.epoch(generator)):
        activation = front(torch.cat([images, torch.randn(images.shape, generator=generator)]))
        projection = activation.flatten(1) @ key.matrix
        loss = F.cross_entropy(back(activation)[: len(labels)], labels)
        loss = loss + F.binary_cross_entropy_with_logits(projection, key.target.expand_as(projection))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return model
