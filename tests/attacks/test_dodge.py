"""Dodging: other answers to noise, the same to images."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from harness.luck import Margin
from sigil import attacks, models
from sigil.data import Dataset
from sigil.errors import AttackError


def tuning(**changes: Any) -> attacks.Tuning:
    return attacks.Tuning(**{"lr": 3e-3, "epochs": 40, "batch_size": 48} | changes)


def test_noise_no_longer_shows_the_mark_and_images_do(
    accurate: Any, more_digits: Dataset, margin: Margin
) -> None:
    def moved(half: models.Model, inputs: Tensor) -> float:
        """How far the answers to some inputs are from what they were."""
        before, after = (each.eval()(inputs).detach() for each in (accurate.halves[0], half))
        return float((after - before).norm() / before.norm())

    dodged = attacks.dodge(accurate.halves, more_digits, tuning=tuning(epochs=30))
    kept = attacks.dodge(accurate.halves, more_digits, gamma=0.0, tuning=tuning(epochs=30))
    margin("WSR kept", accurate.wsr(kept), above=0.85)
    margin("WSR lost", accurate.wsr(kept) - accurate.wsr(dodged), above=0.15)
    images = torch.from_numpy(more_digits.train.images[:64].copy()).float() / 255
    images = (images - more_digits.mean[0]) / more_digits.std[0]
    noise = torch.randn(images.shape, generator=torch.Generator().manual_seed(7))
    margin("images moved, of noise", moved(dodged[0], images) / moved(dodged[0], noise), below=0.8)
    margin("images moved", moved(kept[0], images), below=0.2)


def test_only_the_client_half_changes_and_no_running_statistics(marked: Any, digits: Dataset) -> None:
    client, server = attacks.dodge(marked.halves, digits, tuning=tuning(epochs=1))
    for half, given in ((client, marked.halves[0]), (server, marked.halves[1])):
        for name, value in given.state_dict().items():
            same = torch.equal(value, half.state_dict()[name])
            assert same == (half is server or "running" in name or "num_batches" in name), name


def test_the_noise_follows_from_the_seed(marked: Any, digits: Dataset) -> None:
    def weight(seed: int) -> torch.Tensor:
        made: models.Model = attacks.dodge(
            marked.whole, digits, cut="pool2", tuning=tuning(epochs=1, seed=seed)
        )
        return made.state_dict()["stage1.0.weight"]

    assert torch.equal(weight(0), weight(0))
    assert not torch.equal(weight(0), weight(1))


def test_bad_input(marked: Any, digits: Dataset) -> None:
    with pytest.raises(AttackError, match="gamma"):
        attacks.dodge(marked.halves, digits, gamma=-1.0)
    with pytest.raises(AttackError, match="both halves"):
        attacks.dodge(marked.halves[0], digits)
