"""A client's own training: what it gives, and that it touches nothing else."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

from sigil import data
from sigil.detectors import SplitOut, local_gradients, local_gradients_of_run
from sigil.errors import DetectorError
from sigil.federation.settings import make

DIGITS = data.load("digits", train_limit=200, test_limit=20)
INDICES = np.arange(0, 200, 2)


def halves() -> tuple[nn.Module, nn.Module]:
    torch.manual_seed(0)
    client = nn.Sequential(nn.Conv2d(1, 2, 3, stride=2, padding=1), nn.ReLU())
    return client, nn.Sequential(nn.Flatten(), nn.Linear(32, 10))


def test_they_are_the_gradients_of_the_clients_own_samples() -> None:
    client, server = halves()
    (found,) = local_gradients((client, server), DIGITS, INDICES, share=0.2)
    assert found.shape == (20, 2, 4, 4)
    images = (torch.tensor(DIGITS.train.images[INDICES]).float() / 255 - DIGITS.mean[0]) / DIGITS.std[0]
    activation = client(images).detach().requires_grad_()
    labels = torch.tensor(DIGITS.train.labels[INDICES])
    F.cross_entropy(server(activation), labels, reduction="sum").backward()
    assert activation.grad is not None
    # Each is 1/20 of the gradient of one of the client's samples, and no two of the same.
    distance = torch.cdist(20 * found.flatten(1).double(), activation.grad.flatten(1).double())
    assert distance.min(1).values.max() < 1e-5
    assert len(set(distance.argmin(1).tolist())) == 20


def test_the_training_is_real_but_the_given_halves_stay_as_they_are() -> None:
    own = halves()
    before = [value.clone() for half in own for value in half.state_dict().values()]
    state = torch.get_rng_state()
    slow, fast = (
        local_gradients(own, DIGITS, INDICES, share=1.0, batch_size=20, epochs=2, lr=lr)
        for lr in (1e-9, 1e-2)
    )
    assert len(slow) == 10
    assert torch.equal(slow[0], fast[0])
    assert not torch.allclose(slow[-1], fast[-1], rtol=0.1)
    assert all(map(torch.equal, before, [value for half in own for value in half.state_dict().values()]))
    assert torch.equal(torch.get_rng_state(), state)


def test_the_seed_chooses_the_samples() -> None:
    one, same, other = (
        local_gradients(halves(), DIGITS, INDICES, share=0.2, seed=seed)[0] for seed in (1, 1, 2)
    )
    assert torch.equal(one, same)
    assert not torch.equal(one, other)


def test_too_small_a_share_says_which_would_do() -> None:
    with pytest.raises(DetectorError, match=r"0\.01 of the client's 100 samples is 1, .*at least 0\.1 "):
        local_gradients(halves(), DIGITS, INDICES)


def test_those_of_a_run_fit_its_cut_and_its_clients() -> None:
    settings = make(
        {
            "model": {"name": "resnet18", "width": 4, "cut": "layer3"},
            "data": {"name": "digits", "train_limit": 200},
            "federation": {"clients": 2, "batch_size": 16},
            "run": {"threads": 1, "precision": "float32"},
        }
    )
    first, same, second = (
        local_gradients_of_run(settings, DIGITS, client=client, share=0.2, batch_size=8)
        for client in (0, 0, 1)
    )
    assert [tuple(part.shape) for part in first] == [(8, 16, 2, 2), (8, 16, 2, 2), (4, 16, 2, 2)]
    assert all(map(torch.equal, first, same))
    assert not torch.equal(first[0], second[0])
    assert SplitOut(first).update(second[0], torch.zeros(8, dtype=torch.int64)) is not None
    with pytest.raises(DetectorError, match="no client 2: the run has 2"):
        local_gradients_of_run(settings, DIGITS, client=2)
