"""Pruning: how many weights, which ones, and in which parts."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from sigil import attacks, models
from sigil.errors import AttackError


def parameters(model: nn.Module, *kinds: type[nn.Module]) -> dict[str, list[Tensor]]:
    """Parameters of each layer of some kinds."""
    return {
        name: [value.detach() for value in layer.parameters(recurse=False)]
        for name, layer in model.named_modules()
        if isinstance(layer, kinds)
    }


def zeros(tensors: list[Tensor]) -> int:
    return sum(int((value == 0).sum()) for value in tensors)


def size(tensors: list[Tensor]) -> int:
    return sum(value.numel() for value in tensors)


@pytest.fixture(scope="module")
def model() -> models.Model:
    """No weight is zero, biases are of the same size as weights."""
    made = models.build("vgg11", classes=10, width=4, channels=1, seed=0)
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for value in made.parameters():
            value.copy_(torch.randn(value.shape, generator=generator) * (0.1 if value.ndim == 1 else 1.0))
    return made


def test_layer_scope_takes_the_smallest_of_each_layer(model: models.Model) -> None:
    pruned = attacks.prune(model, 0.6)
    before, after = (parameters(m, nn.Conv2d, nn.Linear) for m in (model, pruned))
    for name, tensors in after.items():
        old = torch.cat([value.flatten() for value in before[name]]).abs()
        new = torch.cat([value.flatten() for value in tensors]).abs()
        assert zeros(tensors) == round(0.6 * size(tensors))
        assert old[new == 0].max() <= old[new != 0].min()
        assert torch.equal(old[new != 0], new[new != 0])
    norms = parameters(model, nn.BatchNorm2d)
    assert all(
        torch.equal(a, b)
        for name, tensors in parameters(pruned, nn.BatchNorm2d).items()
        for a, b in zip(tensors, norms[name], strict=True)
    )


def test_tensor_scope_takes_the_same_share_of_biases(model: models.Model) -> None:
    for tensors in parameters(attacks.prune(model, 0.5, scope="tensor"), nn.Conv2d, nn.Linear).values():
        for value in tensors:
            assert zeros([value]) == round(0.5 * value.numel())


def test_global_scope_has_one_threshold(model: models.Model) -> None:
    pruned = attacks.prune(model, 0.8, scope="global")
    before, after = (
        torch.cat(
            [v.flatten() for group in parameters(m, nn.Conv2d, nn.Linear).values() for v in group]
        ).abs()
        for m in (model, pruned)
    )
    assert int((after == 0).sum()) == round(0.8 * after.numel())
    assert before[after == 0].max() <= before[after != 0].min()
    # Biases are a tenth of the weights' size here, so nearly all of them go.
    assert float((pruned.get_submodule("stage1.0").bias == 0).float().mean()) >= 0.75  # type: ignore[union-attr]


def test_norms_are_pruned_on_demand_and_statistics_never(model: models.Model) -> None:
    pruned = attacks.prune(model, 0.5, norms=True)
    for tensors in parameters(pruned, nn.BatchNorm2d).values():
        assert zeros(tensors) == round(0.5 * size(tensors))
    for name, value in model.named_buffers():
        assert torch.equal(value, pruned.get_buffer(name))


def test_the_client_half_only(model: models.Model) -> None:
    halves = models.split(model, "pool2")
    client_half, server_half = attacks.prune(halves, 1.0, part="client")
    assert all(zeros(v) == size(v) for v in parameters(client_half, nn.Conv2d).values())
    old = halves[1].state_dict()
    assert all(torch.equal(value, old[name]) for name, value in server_half.state_dict().items())
    alone = attacks.prune(halves[0], 1.0)
    assert alone.spec.part == "client"
    new = client_half.state_dict()
    assert all(torch.equal(value, new[name]) for name, value in alone.state_dict().items())


def test_nothing_and_everything(model: models.Model) -> None:
    same = attacks.prune(model, 0.0, scope="global", norms=True).state_dict()
    assert all(torch.equal(value, same[name]) for name, value in model.state_dict().items())
    gone = attacks.prune(model, 1.0, scope="global", norms=True)
    assert all(bool((value == 0).all()) for value in gone.parameters())


@pytest.mark.parametrize("ratio", [-0.1, 1.1, float("nan"), float("inf")])
def test_a_ratio_outside_0_to_1_is_refused(model: models.Model, ratio: float) -> None:
    with pytest.raises(AttackError, match="between 0 and 1"):
        attacks.prune(model, ratio)


def test_other_bad_input(model: models.Model) -> None:
    bad: Any = "everything"
    with pytest.raises(AttackError, match="scope"):
        attacks.prune(model, 0.5, scope=bad)
    with pytest.raises(AttackError, match="part"):
        attacks.prune(model, 0.5, part=bad)
    with pytest.raises(AttackError, match="two halves"):
        attacks.prune(model, 0.5, part="client")
