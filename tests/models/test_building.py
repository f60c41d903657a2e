"""Models are built as asked, from a seed, without touching the global random state."""

from __future__ import annotations

import copy
import math
import pickle
import re
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from sigil import models
from sigil.errors import ModelError
from sigil.models.building import assemble

IMAGES = {
    "digits": (1, 8, 8),
    "fashion-mnist": (1, 28, 28),
    "cifar10": (3, 32, 32),
    "tiny-imagenet": (3, 64, 64),
}


def equal(first: nn.Module, second: nn.Module) -> bool:
    states = first.state_dict(), second.state_dict()
    return states[0].keys() == states[1].keys() and all(
        torch.equal(states[0][name], states[1][name]) for name in states[0]
    )


@pytest.mark.parametrize("name", models.names())
def test_a_seed_fixes_the_weights_and_leaves_the_global_state(name: str) -> None:
    torch.manual_seed(1)
    before = torch.random.get_rng_state()
    first = models.build(name, width=2, seed=7)
    assert torch.equal(torch.random.get_rng_state(), before)
    torch.manual_seed(2)
    assert equal(first, models.build(name, width=2, seed=7))
    assert not equal(first, models.build(name, width=2, seed=8))


def test_without_a_seed_the_global_generator_decides() -> None:
    torch.manual_seed(3)
    first, second = (models.build("resnet18", width=2) for _ in range(2))
    assert not equal(first, second)
    torch.manual_seed(3)
    assert equal(first, models.build("resnet18", width=2))


@pytest.mark.parametrize("name", models.names())
def test_initial_values(name: str) -> None:
    """Kaiming normal over the fan-out, ones and zeros for norms, PyTorch's own for linear layers."""
    model = models.build(name, width=16, seed=0)
    seen = set()
    for module in model.modules():
        own = dict(module.named_parameters(recurse=False))
        if not own:
            continue
        seen.add(next(kind for kind in (nn.Conv2d, nn.BatchNorm2d, nn.Linear) if isinstance(module, kind)))
        if isinstance(module, nn.Conv2d):
            fan_out = module.out_channels * math.prod(module.kernel_size)
            spread = module.weight.std() * math.sqrt(fan_out / 2)
            assert abs(spread - 1) < 6 / math.sqrt(2 * module.weight.numel())
            assert module.bias is None or not module.bias.any()
        elif isinstance(module, nn.BatchNorm2d):
            assert (module.weight == 1).all()
            assert (module.running_var == 1).all()
            assert not module.bias.any()
            assert not module.running_mean.any()
            assert module.num_batches_tracked == 0
        else:
            bound = 1 / math.sqrt(module.in_features)
            assert 0.9 * bound < module.weight.abs().max() <= bound
            assert module.bias.abs().max() <= bound
    assert seen == {nn.Conv2d, nn.BatchNorm2d, nn.Linear}


@pytest.mark.parametrize("name", models.names())
@pytest.mark.parametrize("data", IMAGES)
def test_every_architecture_takes_the_images_of_every_data_set(name: str, data: str) -> None:
    channels, *size = IMAGES[data]
    model = models.build(name, width=4, channels=channels, classes=7, input_size=(size[0], size[1]), seed=0)
    assert model.input_shape == IMAGES[data]
    images = torch.rand(2, *IMAGES[data]).contiguous(memory_format=torch.channels_last)
    model.to(memory_format=torch.channels_last)
    F.cross_entropy(model(images), torch.tensor([0, 6])).backward()
    assert all(
        parameter.grad is not None and bool(parameter.grad.isfinite().all())
        for parameter in model.parameters()
    )


@pytest.mark.parametrize("name", models.names())
@pytest.mark.parametrize("width", [1, 3, 8])
def test_width_is_the_number_of_channels_of_the_first_convolution(name: str, width: int) -> None:
    model = models.build(name, width=width, channels=2, seed=0)
    first = next(module for module in model.modules() if isinstance(module, nn.Conv2d))
    assert first.weight.shape[:2] == (width, 2)
    assert model.spec == models.ModelSpec(name, classes=10, width=width, channels=2)
    assert models.activation_shape(model, (2, 9, 13)) == (10,)


@pytest.mark.parametrize(("name", "width"), list(zip(models.names(), (64, 64, 32, 64), strict=True)))
def test_the_standard_width_is_that_of_the_table(name: str, width: int) -> None:
    assert models.build(name, seed=0).spec.width == width


@pytest.mark.parametrize("name", models.names())
def test_no_strided_1x1_convolution(name: str) -> None:
    """Its weight gradient corrupts memory for few channels in channels-last layout (oneDNN 6035)."""
    for module in models.build(name, width=1, seed=0).modules():
        if isinstance(module, nn.Conv2d) and module.kernel_size == (1, 1):
            assert module.stride == (1, 1)


def test_trains_under_bfloat16_autocast() -> None:
    model = models.build("mobilenetv2", width=4, seed=0)
    with torch.autocast("cpu", torch.bfloat16):
        logits = model(torch.rand(4, 3, 16, 16))
    F.cross_entropy(logits.float(), torch.arange(4)).backward()
    assert all(bool(parameter.grad.isfinite().all()) for parameter in model.parameters())


def test_learns_to_tell_two_images_apart() -> None:
    """In-place operations leave the gradients right: the loss falls."""
    images = torch.rand(8, 1, 8, 8, generator=torch.Generator().manual_seed(0))
    labels = torch.arange(8) % 2
    model = models.build("resnet18", width=2, channels=1, classes=2, seed=0)
    losses = []
    for _ in range(20):
        loss = F.cross_entropy(model(images), labels)
        gradients = torch.autograd.grad(loss, list(model.parameters()))
        with torch.no_grad():
            for parameter, gradient in zip(model.parameters(), gradients, strict=True):
                parameter -= 0.1 * gradient
        losses.append(loss.item())
    assert losses[-1] < 0.2 * losses[0]


def test_making_a_structure_twice_gives_two_and_draws_nothing() -> None:
    before = torch.get_rng_state()
    spec = models.build("resnet18", width=4, seed=1).spec
    first, second = assemble(spec), assemble(spec)
    assert torch.equal(torch.get_rng_state(), before)
    assert not {id(module) for module in first.modules()} & {id(module) for module in second.modules()}
    assert all(parameter.is_meta for parameter in first.parameters())
    second.fc.weight.requires_grad_(False)
    assert assemble(spec).fc.weight.requires_grad


def test_copies_and_pickles_keep_spec_and_weights() -> None:
    model = models.build("vgg11", width=2, input_size=32, seed=0)
    for other in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        assert other.spec == model.spec
        assert other.input_shape == (3, 32, 32)
        assert equal(other, model)


@pytest.mark.parametrize("size", [0, -3, 4097, (8,), (8, 8, 8), (8, 0)])
def test_impossible_input_sizes_are_refused(size: object) -> None:
    with pytest.raises(ModelError, match="not "):
        models.build("resnet18", width=1, input_size=size)


@pytest.mark.parametrize("seed", [-1, 2**63])
def test_impossible_seeds_are_refused(seed: object) -> None:
    with pytest.raises(ModelError, match="seed must be a whole number"):
        models.build("resnet18", width=1, seed=seed)


def test_the_tables_of_the_documentation_are_right() -> None:
    """docs/models.md: after each heading a table of cut, details, shape and dimension."""
    text = (Path(__file__).parents[2] / "docs" / "models.md").read_text(encoding="utf-8")
    for name, channels, size in zip(models.names(), (3, 3, 3, 3), (32, 32, 64, 64), strict=True):
        section = text.split(f"### `{name}`", 1)[1].split("\n#", 1)[0]
        rows = re.findall(r"^\| `(\w+)`[^|]*\|[^|]*\| ([\d×]+) \| ([\d,]+) \|$", section, re.MULTILINE)
        assert [row for row, _, _ in rows] == [*models.cut_points(name), "fc"]
        model = models.build(name, classes=10 if size == 32 else 200, seed=0)
        activation = torch.zeros(1, channels, size, size)
        with torch.no_grad():
            for (_, shape, dimension), module in zip(rows, model.eval(), strict=True):
                activation = module(activation)
                assert "×".join(map(str, activation.shape[1:])) == shape
                assert f"{activation.numel():,}" == dimension
