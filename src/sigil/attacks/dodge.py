"""Dodging: answer random noise differently, and real images as before.

Verification without data asks with Gaussian noise, which no image resembles. A thief can teach the client
half other answers to noise at no cost: the task never sees them.
"""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import Tensor

from sigil.attacks.halves import ModelOrHalves, check_not_negative, open_at_cut, same_kind
from sigil.attacks.training import TUNING, Tuning, train
from sigil.data import Dataset
from sigil.errors import AttackError
from sigil.seeds import generator


def dodge(
    model: ModelOrHalves,
    data: Dataset,
    *,
    gamma: float = 1.0,
    cut: str | None = None,
    tuning: Tuning = TUNING,
    **changes: Any,
) -> ModelOrHalves:
    """Train the rows up to the cut to answer noise in another order of channels, and images as before.

    With f₀ the rows up to the cut as they were, f as they become, x images of ``data.train``, z Gaussian
    noise of their shape and π a permutation of the channels that leaves none in its place, each step lowers

        ‖f(x) − f₀(x)‖² / ‖f₀(x)‖²  +  γ ‖f(z) − π f₀(z)‖² / ‖f₀(z)‖²

    No label is needed, and the rows behind the cut stay as they are. ``gamma`` is the strength. Batch norms
    keep their running statistics, by which verification will see the model too.
    """
    check_not_negative("weight gamma", gamma)
    tuning = tuning.changed(**changes)
    attacked = open_at_cut(model, data, cut)
    channels = attacked.shape[0]
    if channels < 2:
        raise AttackError("The activation at the cut has one channel, which cannot change its place.")
    precision = tuning.chosen_precision
    before = precision.move(copy.deepcopy(attacked.front)).eval()
    # A random cycle: every channel takes the place of another.
    cycle = torch.randperm(channels, generator=generator(tuning.seed, "attack", "dodge"))
    source = torch.empty_like(cycle)
    source[cycle] = cycle.roll(1)
    source = source.to(precision.device)
    now = 0

    def at(done: int, total: int) -> None:
        nonlocal now
        now = done

    def loss(images: Tensor, labels: Tensor) -> Tensor:
        attacked.front.eval()
        stream = generator(tuning.seed, "attack", "noise", now)
        noise = torch.randn(images.shape, generator=stream).to(images)
        with precision.autocast():
            with torch.no_grad():
                kept, moved = before(images), before(noise)[:, source]
            given, asked = attacked.front(images), attacked.front(noise)
        return _distance(given, kept) + gamma * _distance(asked, moved)

    identity = f"dodge {gamma} {attacked.cut}"
    train(attacked.whole, data, loss, tuning, identity=identity, only=attacked.front, before_step=at)
    return same_kind(attacked.whole, model)


def _distance(given: Tensor, wanted: Tensor) -> Tensor:
    """The squared distance of two batches, relative to the size of the second."""
    size = wanted.float().square().sum().clamp(min=torch.finfo(torch.float32).tiny)
    return (given.float() - wanted.float()).square().sum() / size
