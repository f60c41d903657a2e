"""Before a training: which cuts can carry a provable mark."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

import sigil
from sigil import models
from sigil.errors import ConfigError, ShapeError


def deep() -> nn.Module:
    """The half of docs/own-server.md, of twice the width."""

    def layer(inputs: int, outputs: int, stride: int) -> tuple[nn.Module, ...]:
        return nn.Conv2d(inputs, outputs, 3, stride, 1), nn.BatchNorm2d(outputs), nn.ReLU()

    return nn.Sequential(*layer(1, 16, 1), *layer(16, 32, 2), *layer(32, 128, 2))


@pytest.fixture(autouse=True)
def _seeded() -> None:
    torch.manual_seed(0)


def test_a_deep_half_can_carry_a_mark_and_stays_as_it_is() -> None:
    half = deep()
    half[1].training = False
    before = {name: value.clone() for name, value in half.state_dict().items()}
    images = torch.randn(4, 1, 8, 8)
    state = torch.get_rng_state()
    found = sigil.inspect(half, images)
    assert found.provable
    assert found.problems == ()
    assert (found.shape, found.dimension, found.channels) == ((128, 2, 2), 512, 128)
    assert (found.bits, found.most_bits) == (128, 256)
    assert found.trial_rate is not None
    assert found.trial_rate > found.needed_rate
    assert str(found).startswith("This cut can carry a provable mark: 512 dimensions in 128 channels")
    assert all(torch.equal(value, before[name]) for name, value in half.state_dict().items())
    assert [part.training for part in (half, half[0], half[1])] == [True, True, False]
    assert all(parameter.grad is None for parameter in half.parameters())
    assert torch.equal(torch.get_rng_state(), state)


def test_one_convolution_cannot_carry_a_mark_however_wide_it_is() -> None:
    found = sigil.inspect(nn.Sequential(nn.Conv2d(3, 64, 3, padding=1), nn.ReLU()), torch.randn(8, 3, 8, 8))
    assert not found.provable
    assert "cut deeper" in found.problems[0]


def test_the_first_cut_of_resnet_is_told_apart_from_the_papers() -> None:
    whole = models.build("resnet18", width=8, channels=1, input_size=16, seed=0)
    shallow, _ = models.split(whole, models.cut_points("resnet18")[0])
    paper, _ = models.split(whole, "layer3")
    images = torch.randn(8, 1, 16, 16)
    assert not sigil.inspect(shallow, images).provable
    assert sigil.inspect(paper, images).provable


@pytest.mark.parametrize(("kind", "least", "stamp"), [("plain", 110, True), ("stamped", 54, False)])
def test_a_narrow_cut_is_too_short_for_a_proof(kind: str, least: int, stamp: bool) -> None:
    half = nn.Sequential(nn.Linear(8, 2 * least - 1), nn.ReLU())
    found = sigil.inspect(half, torch.randn(8, 8), key=kind, steps=0)  # type: ignore[arg-type]
    assert not found.provable
    assert f"fewer than {least}" in found.problems[0]
    assert f"at least {2 * least} dimensions" in found.problems[0]
    assert ("stamped" in found.problems[0].partition("proves")[2]) is stamp
    wider = nn.Sequential(nn.Linear(8, 2 * least), nn.ReLU())
    assert sigil.inspect(wider, torch.randn(8, 8), key=kind, steps=0, bits=least).provable  # type: ignore[arg-type]


@pytest.mark.parametrize(("bits", "sentence"), [(50, "at least 110"), (200, "at most 128")])
def test_bits_that_do_not_prove_or_do_not_fit(bits: int, sentence: str) -> None:
    found = sigil.inspect(nn.Sequential(nn.Linear(8, 256), nn.ReLU()), torch.randn(8, 8), bits=bits, steps=0)
    assert sentence in found.problems[0]
    tried = sigil.inspect(nn.Sequential(nn.Linear(8, 256), nn.ReLU()), torch.randn(8, 8), bits=bits, steps=1)
    said = "no rate is proof with a plain key that leaves 64 cuts and input shapes open"
    assert (said in str(tried)) == (bits == 50)


def test_what_lies_at_the_cut_is_advised_on() -> None:
    open_end = sigil.inspect(nn.Linear(8, 4096), torch.randn(8, 8), steps=0)
    assert "mix its channels" in " ".join(open_end.advice)
    closed = sigil.inspect(
        nn.Sequential(nn.Linear(8, 4096), nn.ReLU()),
        torch.randn(8, 8),
        server_half=nn.Sequential(nn.BatchNorm1d(4096), nn.Linear(4096, 10)),
        steps=0,
    )
    assert len(closed.advice) == 1
    assert "batch norm" in closed.advice[0]


@pytest.mark.parametrize(
    ("half", "batch", "error"),
    [
        (nn.Linear(8, 512), torch.zeros(2, 9), ShapeError),
        (nn.Flatten(0), torch.zeros(2, 8), ShapeError),
        (nn.LSTM(8, 8), torch.zeros(2, 8), ConfigError),
        (nn.Embedding(9, 64), torch.zeros(2, 8, dtype=torch.int64), ShapeError),  # it was torch's own error
    ],
)
def test_wrong_arguments_are_one_sentence(half: nn.Module, batch: Tensor, error: type[Exception]) -> None:
    with pytest.raises(error) as caught:
        sigil.inspect(half, batch)
    assert "\n" not in str(caught.value)
