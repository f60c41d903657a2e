from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

from sigil.baselines import Backdoor
from sigil.data import Dataset, Split
from sigil.errors import ConfigError
from sigil.federation.observers import Step
from sigil.federation.precision import choose

NOW = Step(1, 0, 1)


def test_the_patch_is_in_the_corner_and_nowhere_else() -> None:
    images = torch.zeros(2, 3, 8, 8)
    patched = Backdoor(size=3, value=2.0).patch(images)
    assert float(images.sum()) == 0
    assert float(patched.sum()) == 2 * 3 * 9 * 2.0
    assert bool((patched[:, :, 5:, 5:] == 2.0).all())


def test_a_share_of_the_batch_is_patched_and_relabelled_and_it_repeats() -> None:
    mark = Backdoor(target=7, share=0.25)
    images, labels = torch.zeros(4000, 1, 8, 8), torch.ones(4000, dtype=torch.long)
    changed, relabelled = mark.on_batch(NOW, images, labels)
    patched = changed.flatten(1).any(1)
    assert torch.equal(patched, relabelled == 7)
    assert 0.2 < float(patched.float().mean()) < 0.3
    assert torch.equal(mark.on_batch(NOW, images, labels)[0], changed)
    assert not torch.equal(mark.on_batch(Step(1, 0, 2), images, labels)[0], changed)
    assert float(images.sum()) == 0


class Corner(nn.Module):
    """Answers class 0 where the corner is bright, class 1 otherwise."""

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        bright = images[:, 0, -1, -1] > 2
        return torch.stack([bright.float(), 0.5 * torch.ones(len(images))], 1)


def test_the_rate_counts_patched_images_of_other_classes() -> None:
    images = np.zeros((10, 1, 8, 8), np.uint8)
    labels = np.array([0, 0, 0, 1, 1, 1, 1, 1, 1, 1])
    split = Split(images, labels)
    dataset = Dataset("x", split, split, 2, (1, 8, 8), (0.0,), (1.0,), "none")
    report = Backdoor().verify(nn.Identity(), Corner(), dataset, precision=choose("cpu", "float32"))
    assert (report.wsr, report.trials) == (1.0, 7)
    blind = Backdoor(value=1.0).verify(nn.Identity(), Corner(), dataset, precision=choose("cpu", "float32"))
    assert blind.wsr == 0.0


@pytest.mark.parametrize("arguments", [{"share": 0.0}, {"share": 1.5}, {"size": 0}, {"target": -1}])
def test_impossible_marks_are_refused(arguments: dict[str, float]) -> None:
    with pytest.raises(ConfigError):
        Backdoor(**arguments)  # type: ignore[arg-type]


def test_a_patch_larger_than_the_image_is_refused() -> None:
    with pytest.raises(ConfigError, match="does not fit"):
        Backdoor(size=9).patch(torch.zeros(1, 1, 8, 8))
