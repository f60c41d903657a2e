"""The check of logit gradients: every honest one passes in every format, every scaled one is refused."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from sigil.errors import ConfigError, LossError, ShapeError
from sigil.logit_gradients import Loss, check_logit_gradient, normalised

FORMATS = [torch.float32, torch.float16, torch.bfloat16]


def batch(
    *,
    seed: int = 0,
    samples: int = 32,
    classes: int = 10,
    spread: float = 2.0,
    wire: torch.dtype = torch.float32,
) -> tuple[Tensor, Tensor]:
    """Logits as they were sent, and labels."""
    generator = torch.Generator().manual_seed(seed)
    logits = (spread * torch.randn(samples, classes, generator=generator)).to(wire)
    return logits, torch.randint(classes, (samples,), generator=generator)


def answer(logits: Tensor, labels: Tensor, **options: object) -> Tensor:
    """An honest client's gradient, in the format of the logits."""
    leaf = logits.float().requires_grad_()
    (gradient,) = torch.autograd.grad(F.cross_entropy(leaf, labels, **options), leaf)  # type: ignore[arg-type]
    return gradient.to(logits.dtype)


@given(
    seed=st.integers(0, 2**31),
    samples=st.integers(1, 300),
    classes=st.integers(2, 200),
    spread=st.sampled_from([0.0, 0.1, 2.0, 30.0, 300.0]),
    wire=st.sampled_from(FORMATS),
)
def test_honest_gradients_pass(
    seed: int, samples: int, classes: int, spread: float, wire: torch.dtype
) -> None:
    logits, labels = batch(seed=seed, samples=samples, classes=classes, spread=spread, wire=wire)
    check_logit_gradient(logits, answer(logits, labels))


@pytest.mark.parametrize("wire", FORMATS)
def test_well_fitted_batches_pass(wire: torch.dtype) -> None:
    logits, labels = batch(wire=wire)
    logits = (logits + 20 * F.one_hot(labels, 10)).to(wire)
    check_logit_gradient(logits, answer(logits, labels))


@pytest.mark.parametrize("exponent", [*range(-36, 0, 3), -1, 1, *range(3, 13, 3)])
@pytest.mark.parametrize("wire", FORMATS)
def test_scaled_gradients_are_refused(exponent: int, wire: torch.dtype) -> None:
    logits, labels = batch(wire=wire)
    scaled = (answer(logits.float(), labels) * 10.0**exponent).to(wire)
    with pytest.raises(LossError):
        check_logit_gradient(logits, scaled)


@pytest.mark.parametrize("factor", [0.9, 0.99, 1.01, 1.1, -1.0])
def test_small_factors_are_refused_in_float32(factor: float) -> None:
    logits, labels = batch()
    with pytest.raises(LossError):
        check_logit_gradient(logits, factor * answer(logits, labels))


def test_one_scaled_sample_among_many_is_refused() -> None:
    logits, labels = batch(samples=256)
    gradient = answer(logits, labels)
    gradient[17] *= 1.5
    with pytest.raises(LossError):
        check_logit_gradient(logits, gradient)


def test_zero_gradients_are_refused_where_something_is_left_to_learn() -> None:
    logits, _ = batch()
    with pytest.raises(LossError):
        check_logit_gradient(logits, torch.zeros_like(logits))


@pytest.mark.parametrize(
    "options",
    [
        {"reduction": "sum"},
        {"weight": torch.linspace(0.5, 2.0, 10)},
        {"ignore_index": 3},
        {"label_smoothing": 0.1},
    ],
    ids=["sum", "class weights", "ignored samples", "smoothing"],
)
def test_what_was_not_agreed_on_is_refused_with_a_sentence(options: dict[str, object]) -> None:
    logits, labels = batch(samples=64)
    with pytest.raises(LossError, match="agreed on with the server first"):
        check_logit_gradient(logits, answer(logits, labels, **options))


def test_smoothing_sum_and_mixing_pass_once_declared() -> None:
    logits, labels = batch()
    check_logit_gradient(logits, answer(logits, labels, label_smoothing=0.1), Loss(smoothing=0.1))
    check_logit_gradient(logits, answer(logits, labels, reduction="sum"), Loss(reduction="sum"))
    mixed = 0.3 * F.one_hot(labels, 10) + 0.7 * F.one_hot(labels.roll(1), 10)
    check_logit_gradient(logits, answer(logits, mixed), Loss(mixing=True))
    both = answer(logits, mixed, label_smoothing=0.2)
    check_logit_gradient(logits, both, Loss(mixing=True, smoothing=0.2))
    with pytest.raises(LossError, match=r"smoothing 0\.1"):
        check_logit_gradient(logits, answer(logits, labels), Loss(smoothing=0.1))


@pytest.mark.parametrize("factor", [1e-20, 0.5, 1.5, 1e4])
def test_mixed_labels_do_not_hide_a_factor(factor: float) -> None:
    logits, labels = batch()
    with pytest.raises(LossError, match="mixed labels"):
        check_logit_gradient(logits, factor * answer(logits, labels), Loss(mixing=True))


def test_other_losses_are_not_judged_but_must_be_finite() -> None:
    logits, labels = batch()
    check_logit_gradient(logits, 1e-9 * answer(logits, labels), Loss(kind="any"))
    with pytest.raises(LossError, match="not finite"):
        check_logit_gradient(logits, torch.full_like(logits, torch.nan), Loss(kind="any"))


def test_wrong_shapes_and_losses_are_one_sentence() -> None:
    logits, labels = batch()
    with pytest.raises(ShapeError, match="samples, classes"):
        check_logit_gradient(logits, answer(logits, labels)[:5])
    with pytest.raises(ConfigError, match="smoothing"):
        Loss(smoothing=1.0)
    with pytest.raises(ConfigError, match="reduction"):
        Loss(reduction="max")  # type: ignore[arg-type]


@pytest.mark.parametrize("exponent", [-36, -26, -13, 9, 12])
def test_normalising_is_exact_and_leaves_ordinary_gradients_alone(exponent: int) -> None:
    logits, labels = batch()
    gradient = answer(logits, labels)
    same, one = normalised(gradient)
    assert one == 1.0
    assert same is gradient
    scaled = gradient * 10.0**exponent
    near_one, power = normalised(scaled)
    assert 0.01 <= float(near_one.abs().amax()) <= 1.0
    assert torch.equal(near_one / power, scaled)
    assert normalised(torch.zeros(2, 3))[1] == 1.0
