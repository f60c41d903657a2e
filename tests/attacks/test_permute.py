"""Permuted and scaled models: the same function, other activations, for every cut of every architecture."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from harness.luck import Margin
from sigil import attacks, models
from sigil.attacks.permute import _draw
from sigil.data import Dataset
from sigil.errors import AttackError, ModelError
from sigil.federation.precision import choose

BOUNDED = {"conv1", "conv2", "avgpool", "flatten"}


def random_model(name: str, width: int, side: int) -> models.Model:
    """A model whose batch norms are nothing like fresh ones; some channels hardly vary."""
    model = models.build(name, classes=5, width=width, seed=0)
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for layer in model.modules():
            if isinstance(layer, nn.BatchNorm2d):
                layer.weight.copy_(torch.empty(layer.weight.shape).uniform_(0.5, 1.5, generator=generator))
                layer.bias.copy_(torch.empty(layer.bias.shape).uniform_(-0.3, 0.7, generator=generator))
                layer.momentum = 1.0
            elif isinstance(layer, nn.Conv2d) and layer.bias is not None:
                layer.bias.copy_(torch.empty(layer.bias.shape).uniform_(-0.2, 0.2, generator=generator))
        # One batch sets all running statistics, so that the signal reaches the end.
        model(torch.randn(16, 3, side, side, generator=generator))
        for layer in model.modules():
            if isinstance(layer, nn.BatchNorm2d):
                assert layer.running_var is not None
                layer.weight[0] *= (2e-5 / layer.running_var[0]).sqrt()
                layer.running_var[0] = 2e-5
    return model.eval()


def activations(model: models.Model, images: Tensor) -> dict[str, Tensor]:
    """What comes out of each row."""
    found = {}
    for name, row in model.named_children():
        # A copy, because the next row may work in place.
        images = row(images).clone()
        found[name] = images
    return found


@pytest.mark.parametrize(
    ("name", "width", "side"),
    [
        ("resnet18", 4, 16),
        ("vgg11", 4, 16),
        ("mobilenetv2", 4, 16),
        ("mobilenetv2", 1, 16),
        ("densenet121", 8, 32),
    ],
)
@torch.no_grad()
def test_outputs_stay_and_activations_change_at_every_cut(name: str, width: int, side: int) -> None:
    model = random_model(name, width, side)
    images = torch.randn(4, 3, side, side, generator=torch.Generator().manual_seed(2))
    before = activations(model, images)
    wanted = list(before.values())[-1]
    assert wanted.std(0).min() > 0.01 * wanted.abs().max()
    for cut in models.cut_points(name):
        after = activations(attacks.permute(model, cut=cut, seed=3), images)
        error = (list(after.values())[-1] - wanted).abs().max() / wanted.abs().max()
        assert error < 1e-4, (cut, float(error))

        order, scale = _draw(model, cut, 3, True, 0.5)
        count, scale = before[cut].shape[1], scale.float()
        assert sorted(order.tolist()) == list(range(count)), cut
        assert count <= 2 or not torch.equal(order, torch.arange(count)), cut
        bounded = name == "mobilenetv2" and (cut in BOUNDED or (width == 1 and cut == "group1"))
        assert bool((scale == 1).all()) == bounded, cut
        rescaled = before[cut][:, order] * scale.view(-1, *[1] * (before[cut].ndim - 2))
        torch.testing.assert_close(
            after[cut], rescaled, rtol=1e-3, atol=1e-4 * float(rescaled.abs().max()), msg=cut
        )


def test_a_dense_layer_keeps_its_own_channels() -> None:
    model = models.build("densenet121", classes=5, width=8, seed=0)
    order, scale = _draw(model, "block1", 0, True, 0.5)
    # Eight channels enter, then each of the six layers adds four.
    for start, stop in ((0, 8), *((end, end + 4) for end in range(8, 32, 4))):
        assert sorted(order[start:stop].tolist()) == list(range(start, stop))
    assert int((scale != 1).sum()) == 32
    entering, _ = _draw(model, "pool0", 0, True, 0.5)
    assert sorted(entering.tolist()) == list(range(8))


def test_the_mark_is_gone_and_the_accuracy_is_not(marked: Any, digits: Dataset, margin: Margin) -> None:
    def measured(halves: Any) -> tuple[float | None, float]:
        # In float32, where the scales cancel for every image of the test set; bfloat16 rounds scaled
        # channels differently, and an image between two classes may change sides.
        found = attacks.measure(
            halves, data=digits, key=marked.key, probes=64, precision=choose("cpu", "float32")
        )
        assert found.report is not None
        return found.accuracy, found.report.wsr

    accuracy, before = measured(marked.halves)
    # Any order of channels agrees with some of the 16 bits by chance, several with half of them.
    attacked = [measured(attacks.permute(marked.halves, seed=seed)) for seed in range(8)]
    margin("WSR before", before, above=0.95)
    margin("WSR after", sum(after for _, after in attacked) / 8, below=0.75)
    assert {accuracy} == {after for after, _ in attacked}


def test_parts_of_the_attack_and_seeds(marked: Any) -> None:
    nothing = attacks.permute(marked.whole, cut="pool2", permutation=False, scale=0)
    assert all(
        torch.equal(value, nothing.state_dict()[name]) for name, value in marked.whole.state_dict().items()
    )
    one, same, other = (attacks.permute(marked.whole, cut="pool2", seed=seed) for seed in (1, 1, 2))
    key = "stage2.0.weight"
    assert torch.equal(one.state_dict()[key], same.state_dict()[key])
    assert not torch.equal(one.state_dict()[key], other.state_dict()[key])
    scaled = attacks.permute(marked.whole, cut="pool2", permutation=False, scale=1.0)
    assert torch.equal(scaled.state_dict()["stage2.0.weight"], marked.whole.state_dict()["stage2.0.weight"])
    assert not torch.equal(
        scaled.state_dict()["stage2.1.weight"], marked.whole.state_dict()["stage2.1.weight"]
    )


def test_bad_input(marked: Any) -> None:
    with pytest.raises(ModelError, match="pool9"):
        attacks.permute(marked.whole, cut="pool9")
    with pytest.raises(AttackError, match="at least 0"):
        attacks.permute(marked.whole, scale=-1)
