"""Laundering: bury what is written into the weights under noise, then heal the model.

Weights that carry something, the signs of their initial values or a recipient's pattern, carry less of it
after noise. Noise is cheapest where a layer's inputs hardly vary: there it changes no output.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from sigil.attacks.halves import ModelOrHalves, OpenedAtCut, check_not_negative, open_at_cut, same_kind
from sigil.attacks.training import BEST, Effect, Tuning, finetune_at_cut
from sigil.data import Dataset, Split, evaluate_batches
from sigil.seeds import generator

# Images on which the inputs of the layers are measured; patches of one image are many.
IMAGES = 512
# The least eigenvalue that counts, beside the mean one: inputs that never occur would take all the noise.
LEAST = 1e-3


def launder(
    model: ModelOrHalves,
    data: Dataset,
    *,
    noise: float = 0.9,
    shape: float = 0.7,
    cut: str | None = None,
    tuning: Tuning = BEST,
    **changes: Any,
) -> ModelOrHalves:
    """Add noise to every filter up to the cut of a copy of the model, then fine-tune it.

    The noise of a filter has the variance (``noise`` · the standard deviation of its weights)² per weight.
    ``shape`` 0 is white noise. Otherwise its variance over the eigenvectors of the covariance of the layer's
    inputs (patches of the attacker's images) is proportional to λ^−``shape``, λ the eigenvalues.

    What is lost in accuracy is won back by fine-tuning, best with the model as it was as teacher, which is
    why :data:`~sigil.attacks.BEST` is the default.
    """
    tuning = tuning.changed(**changes)
    attacked = open_at_cut(model, data, cut)
    finetune_at_cut(attacked, data, tuning, add_noise(attacked, data, tuning, noise=noise, shape=shape))
    return same_kind(attacked.whole, model)


def add_noise(attacked: OpenedAtCut, data: Dataset, tuning: Tuning, *, noise: float, shape: float) -> Effect:
    """What adds the noise before the first step; see :func:`launder`."""
    check_not_negative("size of the noise", noise)
    check_not_negative("shape of the noise", shape)
    layers = [layer for _, layer in attacked.filtering()]
    moments = _moments(attacked, layers, data) if shape else [None] * len(layers)
    stream = generator(tuning.seed, "attack", "launder")
    drawn = [
        noise * _drawn(layer.weight.detach().cpu().float(), moment, shape, stream)
        for layer, moment in zip(layers, moments, strict=True)
    ]

    @torch.no_grad()
    def before_step(done: int, total: int) -> None:
        if done == 0:
            for layer, values in zip(layers, drawn, strict=True):
                layer.weight += values.to(layer.weight)

    return Effect(f"launder {noise} {shape}", before_step=before_step)


def _drawn(weight: Tensor, moment: Tensor | None, shape: float, stream: torch.Generator) -> Tensor:
    """Noise of one standard deviation of each filter, (*weight.shape)."""
    rows = weight.flatten(1)
    values = torch.randn(rows.shape, generator=stream)
    if moment is not None:
        variances, basis = torch.linalg.eigh(moment)
        sizes = variances.clamp(min=LEAST * float(variances.mean())) ** (-shape / 2)
        # Whatever the shape, the mean variance is 1.
        sizes = sizes / sizes.square().mean().sqrt()
        values = ((values.double() * sizes) @ basis.T).float()
    return (values * rows.std(1, correction=0, keepdim=True)).view(weight.shape)


@torch.no_grad()
def _moments(attacked: OpenedAtCut, layers: Sequence[nn.Conv2d | nn.Linear], data: Dataset) -> list[Tensor]:
    """The covariance (n, n) of what each layer's filters of n weights are applied to."""
    sums = [torch.zeros(()) for _ in layers]
    squares, counts = list(sums), [0] * len(layers)

    def hook(index: int) -> Any:
        def see(layer: nn.Module, given: tuple[Tensor, ...]) -> None:
            rows = _patches(layers[index], given[0]).double()
            sums[index] = sums[index] + rows.sum(0)
            squares[index] = squares[index] + rows.T @ rows
            counts[index] += len(rows)

        return see

    mode = attacked.front.training
    attacked.front.eval()
    handles = [layer.register_forward_pre_hook(hook(index)) for index, layer in enumerate(layers)]
    try:
        some = Split(data.train.images[:IMAGES], data.train.labels[:IMAGES])
        for images, _ in evaluate_batches(some, data, batch_size=32):
            attacked.front(images)
    finally:
        for handle in handles:
            handle.remove()
        attacked.front.train(mode)
    means = [total / count for total, count in zip(sums, counts, strict=True)]
    return [
        square / count - torch.outer(mean, mean)
        for square, count, mean in zip(squares, counts, means, strict=True)
    ]


def _patches(layer: nn.Conv2d | nn.Linear, given: Tensor) -> Tensor:
    """The inputs of a layer's filters as rows; groups of channels, which have filters of their own, alike."""
    size = layer.weight[0].numel()
    if isinstance(layer, nn.Linear):
        return given.reshape(-1, size)
    assert not isinstance(layer.padding, str)
    patches = F.unfold(
        given, layer.kernel_size, dilation=layer.dilation, padding=layer.padding, stride=layer.stride
    )
    return patches.transpose(1, 2).reshape(-1, size)
