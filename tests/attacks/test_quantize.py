"""Quantization: how many levels, how far from the original, and what stays."""

from __future__ import annotations

from typing import Any, Literal

import pytest
import torch
from torch import nn

from sigil import attacks, models
from sigil.errors import AttackError


@pytest.fixture(scope="module")
def model() -> models.Model:
    made = models.build("resnet18", classes=10, width=4, seed=0)
    with torch.no_grad():
        made.get_submodule("layer1.0.conv1").weight[1] = 0  # type: ignore[index]
        made.get_submodule("layer1.0.conv1").weight[2] *= 100  # type: ignore[index, operator]
        made.get_submodule("bn1").running_var[0] = 1e9  # type: ignore[index]
    return made


def weights(model: nn.Module) -> dict[str, torch.Tensor]:
    return {
        name: layer.weight.detach()
        for name, layer in model.named_modules()
        if isinstance(layer, nn.Conv2d | nn.Linear)
    }


@pytest.mark.parametrize(("format", "levels"), [("int8", 127), ("int4", 7)])
def test_each_channel_lies_on_its_levels(
    model: models.Model, format: Literal["int8", "int4"], levels: int
) -> None:
    quantized = attacks.quantize(model, format)
    for name, new in weights(quantized).items():
        old = weights(model)[name].flatten(1)
        step = old.abs().amax(1, keepdim=True) / levels
        assert bool(((new.flatten(1) - old).abs() <= step / 2 * 1.0001 + 1e-12).all())
        for row in new:
            assert len(row.unique()) <= 2 * levels + 1
    names = set(weights(model))
    for name, value in quantized.state_dict().items():
        if name.removesuffix(".weight") not in names:
            assert torch.equal(value, model.state_dict()[name])


def test_one_scale_a_tensor_is_coarser(model: models.Model) -> None:
    # One channel is a hundred times larger than the others: with a common step these vanish.
    name = "layer1.0.conv1"
    channel = weights(attacks.quantize(model, "int4"))[name]
    tensor = weights(attacks.quantize(model, "int4", per="tensor"))[name]
    assert len(tensor.unique()) <= 15
    assert int((tensor[0] != 0).sum()) < int((channel[0] != 0).sum())
    assert bool((channel[1] == 0).all())


def test_half_precision_is_that_of_pytorch(model: models.Model) -> None:
    quantized = attacks.quantize(model, "fp16")
    for name, value in quantized.state_dict().items():
        original = model.state_dict()[name]
        if name == "bn1.running_var":
            assert value[0] == torch.finfo(torch.float16).max
            value, original = value[1:], original[1:]
        assert value.dtype == original.dtype
        assert torch.equal(value, original.half().to(original.dtype))


def test_rounding_twice_is_rounding_once(model: models.Model) -> None:
    once = attacks.quantize(model, "int4")
    twice = weights(attacks.quantize(once, "int4"))
    for name, value in weights(once).items():
        torch.testing.assert_close(twice[name], value, rtol=1e-5, atol=1e-7)


def test_a_half_alone_and_bad_input(model: models.Model) -> None:
    client_half, _ = models.split(model, "layer2")
    quantized = attacks.quantize(client_half, "int8")
    assert quantized.spec == client_half.spec
    whole = attacks.quantize(model, "int8").state_dict()
    assert all(torch.equal(value, whole[name]) for name, value in quantized.state_dict().items())
    bad: Any = "int2"
    with pytest.raises(AttackError, match="int2"):
        attacks.quantize(model, bad)
    with pytest.raises(AttackError, match="unit"):
        attacks.quantize(model, "int8", per=bad)
