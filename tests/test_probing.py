"""Asking a suspect for activations: where it lives, what it may return, and that nothing is left behind."""

from __future__ import annotations

import random

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from sigil.errors import NotReadable, ShapeError, SuspectError
from sigil.probing import (
    activations,
    batch_size_for,
    check_finite,
    input_shape_of,
    module_of,
    noise,
    undisturbed,
)


def test_the_given_input_shape_wins_over_the_suspects_own() -> None:
    suspect = nn.Identity()
    suspect.input_shape = (3, 8, 8)  # type: ignore[assignment]
    assert input_shape_of(suspect) == (3, 8, 8)
    assert input_shape_of(suspect, [1, 4, 4]) == (1, 4, 4)


def test_a_missing_or_impossible_input_shape_is_one_sentence() -> None:
    with pytest.raises(ShapeError, match="does not say what input it takes"):
        input_shape_of(nn.Identity())
    with pytest.raises(ShapeError, match=r"\(3, 0, 8\)"):
        input_shape_of(nn.Identity(), (3, 0, 8))


def test_noise_is_one_stream_whatever_the_batches() -> None:
    whole = noise((2, 3), 6, generator=torch.Generator().manual_seed(4))
    source = torch.Generator().manual_seed(4)
    parts = torch.cat([noise((2, 3), count, generator=source) for count in (1, 2, 3)])
    torch.testing.assert_close(whole, parts, rtol=0, atol=0)
    assert abs(float(whole.mean())) < 1


def test_a_batch_goes_where_the_module_lives_and_comes_back_in_single_precision() -> None:
    layer = nn.Linear(3, 2, dtype=torch.float64)
    found = activations(layer, torch.ones(4, 3))
    assert found.dtype == torch.float32
    assert not found.requires_grad
    torch.testing.assert_close(found, layer(torch.ones(4, 3).double()).float())


def test_what_is_no_activation_is_one_sentence() -> None:
    batch = torch.ones(4, 3)
    with pytest.raises(SuspectError, match=r"does not run on inputs of shape \(3,\)"):
        activations(nn.Linear(5, 2), batch)
    with pytest.raises(SuspectError, match="returns tuple and not one tensor"):
        activations(lambda inputs: (inputs, inputs), batch)  # type: ignore[arg-type, return-value]
    with pytest.raises(ShapeError, match="one activation for each input"):
        activations(lambda inputs: inputs[:2], batch)
    with pytest.raises(NotReadable, match="not finite"):
        check_finite(torch.tensor([1.0, float("nan")]))
    assert issubclass(NotReadable, SuspectError)


def test_inputs_are_bounded_alone_and_in_batches() -> None:
    with pytest.raises(ShapeError, match=r"1,600,000,000 numbers, more than the limit"):
        input_shape_of(nn.ReLU(), (1, 40_000, 40_000))
    assert input_shape_of(nn.ReLU(), (1, 4096, 4096)) == (1, 4096, 4096)
    assert batch_size_for((3, 32, 32), 64) == 64
    assert batch_size_for((3, 1024, 1024), 64) == 5
    assert batch_size_for((1, 4096, 4096), 64) == 1


class _Drawing(nn.Module):
    """Draws from every random source in its forward pass."""

    def forward(self, inputs: Tensor) -> Tensor:
        drawn = random.random() + np.random.rand() + float(torch.rand(()))  # noqa: NPY002
        return inputs + drawn


def test_flags_and_random_states_are_as_before() -> None:
    suspect = nn.Sequential(nn.Dropout(0.5), _Drawing())
    suspect[0].eval()
    states = random.getstate(), np.random.get_state()[1].tolist(), torch.get_rng_state()  # type: ignore[index]  # noqa: NPY002
    answers = []
    for _ in range(2):
        with undisturbed(suspect, seed=7):
            assert not suspect.training
            answers.append(activations(suspect, torch.ones(1, 2)))
    torch.testing.assert_close(answers[0], answers[1], rtol=0, atol=0)
    assert suspect.training
    assert not suspect[0].training
    assert random.getstate() == states[0]
    assert np.random.get_state()[1].tolist() == states[1]  # type: ignore[index]  # noqa: NPY002
    assert torch.equal(torch.get_rng_state(), states[2])


def test_flags_come_back_after_an_error() -> None:
    suspect = nn.Linear(5, 2)
    with pytest.raises(SuspectError), undisturbed(suspect, seed=0):
        activations(suspect, torch.ones(1, 3))
    assert suspect.training


def test_the_module_behind_a_suspect() -> None:
    layer = nn.Linear(2, 2)

    class Opened:
        module = layer

        def __call__(self, inputs: Tensor) -> Tensor:
            return inputs

    assert module_of(layer) is layer
    assert module_of(Opened()) is layer
    assert module_of(lambda inputs: inputs) is None
