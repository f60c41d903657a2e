"""Reversal: push the activations past zero along the mean of the received gradients.

The mark pushes every sample the same way, so the mean of many gradients is mostly mark: it points along
M(½ − b), and training moved the activations against it. The averaging attack pushes them back to zero along
it, where each bit becomes a coin. But the thief knows the sign too, and nothing forces it to stop at zero.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import Tensor

from sigil.attacks.halves import ModelOrHalves, open_at_cut, same_kind
from sigil.attacks.subspace import check_recording, mean_gradient
from sigil.attacks.training import TUNING, Tuning, finetune_at_cut, push_along
from sigil.data import Dataset
from sigil.federation.recording import Recording


def reverse(
    model: ModelOrHalves,
    recording: Recording,
    data: Dataset,
    *,
    reversal: float = 0.5,
    gamma: float = 10.0,
    rounds: Sequence[int] | None = None,
    cut: str | None = None,
    tuning: Tuning = TUNING,
    **changes: Any,
) -> tuple[ModelOrHalves, Tensor]:
    """Fine-tune a copy of the model until its activations lie on the other side of the mean gradient.

    û is the normalised mean of all gradients that the client was sent, kept in the recording or summed up
    there (of some ``rounds`` only, if given). The fine-tuning on ``data.train`` lowers

        cross-entropy + γ · mean of (A·û − t)²,    t = −reversal · (the mean of A·û before)

    with A the flattened activation at the cut. ``reversal`` is the strength: 0 is the averaging attack, 1
    mirrors the activations' mean. Between them any success rate can be had, also one half.

    Returns the attacked model and the direction (d, 1), for :func:`~sigil.attacks.overlap`.
    """
    tuning = tuning.changed(**changes)
    attacked = open_at_cut(model, data, cut)
    check_recording(recording, attacked)
    chosen = recording.rounds if rounds is None else rounds
    direction = mean_gradient(recording, chosen)
    effect = push_along(attacked, data, direction, tuning, reversal=reversal, gamma=gamma)
    finetune_at_cut(attacked, data, tuning, effect)
    return same_kind(attacked.whole, model), direction[:, None]
