"""A small owner's key, a model that carries its mark and one that does not, as files."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from torch.nn.functional import binary_cross_entropy_with_logits

from sigil import models
from sigil.keys.key import Key

SEED = bytes(range(100, 132))


@dataclass(frozen=True)
class Case:
    """What the owner and the auditor have at hand."""

    key: Key
    key_file: Path
    marked: Path
    clean: Path


@pytest.fixture(scope="session")
def make_case(tmp_path_factory: pytest.TempPathFactory) -> Callable[[int], Case]:
    """Makes a key of a number of bits, and models with and without its mark."""
    return lambda bits: _make_case(tmp_path_factory.mktemp("case"), bits)


@pytest.fixture(scope="session")
def case(make_case: Callable[[int], Case]) -> Case:
    return make_case(128)


def _make_case(folder: Path, bits: int) -> Case:
    model = models.build("resnet18", classes=4, width=8, input_size=8, seed=0)
    client, _ = models.split(model, "layer1")
    key = Key.generate("ACME", shape=models.activation_shape(client, (3, 8, 8)), bits=bits, seed=SEED)
    case = Case(key, folder / "owner.key", folder / "marked.safetensors", folder / "clean.safetensors")
    models.save(case.clean, client)
    _mark(client, key)
    models.save(case.marked, client)
    key.save(case.key_file)
    return case


def _mark(client: models.Model, key: Key) -> None:
    """Push the activations towards the key's bits with a few signed gradient steps."""
    generator = torch.Generator().manual_seed(1)
    for _ in range(60):
        activation = client(torch.randn(64, 3, 8, 8, generator=generator)).flatten(1)
        projection = activation @ key.matrix
        loss = binary_cross_entropy_with_logits(projection, key.target.expand_as(projection))
        gradients = torch.autograd.grad(loss, list(client.parameters()))
        with torch.no_grad():
            for parameter, gradient in zip(client.parameters(), gradients, strict=True):
                parameter -= 0.02 * gradient.sign()
