"""Overwriting: embed a second mark over the first, by the same mechanism."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from sigil.attacks.halves import ModelOrHalves, open_at_cut, same_kind
from sigil.attacks.training import BATCH_SIZE, Effect, Tuning, finetune_at_cut
from sigil.data import Dataset
from sigil.errors import AttackError
from sigil.injector import Injector
from sigil.keys.key import Key

OVERWRITE = Tuning(0.01, epochs=10, batch_size=BATCH_SIZE, optimizer="sgd")


def overwrite(
    model: ModelOrHalves,
    data: Dataset,
    key: Key,
    *,
    strength: float = 1.0,
    cut: str | None = None,
    tuning: Tuning = OVERWRITE,
    **changes: Any,
) -> ModelOrHalves:
    """Fine-tune a copy of the model on ``data.train`` while an injector embeds the attacker's ``key``.

    This is the paper's ambiguity attack: the attacker wants the owner's mark gone, or at least a second one
    beside it. Measure both keys afterwards.

    The paper tries no numbers. ``strength`` is 1.0, the strongest that it uses, because an attacker who owns
    both halves has nobody to hide from; the rate is that of :func:`~sigil.attacks.finetune`; 10 epochs are
    more than that attack's 100 steps, as a second mark takes longer to learn. ``cut`` is where the key
    belongs: none is where the halves meet, or for a whole model the paper's cut.
    """
    injector = Injector(key, strength)
    attacked = open_at_cut(model, data, cut)
    if key.shape != attacked.shape:
        raise AttackError(
            f"The second key is for activations of {key.shape}, but the model cut at {attacked.cut!r} gives "
            f"{attacked.shape}; make a key with that shape."
        )

    def embed(activation: Tensor) -> None:
        injector.attach(activation)

    effect = Effect(f"overwrite {key.commitment} {strength}", embed)
    finetune_at_cut(attacked, data, tuning.changed(**changes), effect)
    return same_kind(attacked.whole, model)
