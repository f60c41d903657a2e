"""Overwriting: embed a second mark over the first, by the same mechanism."""

from __future__ import annotations

from pathlib import Path

from torch import Tensor

from sigil.attacks.halves import ModelOrHalves, open_at_cut, same_kind
from sigil.attacks.penalties import finetune_at_cut
from sigil.attacks.training import BATCH_SIZE, Progress, Tuning
from sigil.data import Dataset
from sigil.errors import AttackError
from sigil.federation.precision import Precision
from sigil.injector import Injector
from sigil.keys.key import Key

EPOCHS = 10


def overwrite(
    model: ModelOrHalves,
    data: Dataset,
    key: Key,
    *,
    strength: float = 1.0,
    steps: int | None = None,
    epochs: int | None = None,
    lr: float = 0.01,
    cut: str | None = None,
    batch_size: int = BATCH_SIZE,
    seed: int = 0,
    precision: Precision | None = None,
    progress: Progress | None = None,
    checkpoint: Path | None = None,
) -> ModelOrHalves:
    """Fine-tune a copy of the model on ``data.train`` while an injector embeds the attacker's ``key``.

    This is the paper's ambiguity attack: the attacker wants the owner's mark gone, or at least a second one
    beside it. Measure both keys afterwards.

    The paper tries no numbers. ``strength`` is 1.0, the strongest that it uses, because an attacker who owns
    both halves has nobody to hide from; ``lr`` is that of :func:`~sigil.attacks.finetune`; 10 epochs if
    neither ``steps`` nor ``epochs`` is given, which is more than that attack's 100 steps as a second mark
    takes longer to learn. ``cut`` is where the key belongs: none is where the halves meet, or for a whole
    model the paper's cut.
    """
    if steps is None and epochs is None:
        epochs = EPOCHS
    plan = Tuning(
        lr,
        steps=steps,
        epochs=epochs,
        batch_size=batch_size,
        optimizer="sgd",
        seed=seed,
        precision=precision,
        progress=progress,
        checkpoint=checkpoint,
    )
    injector = Injector(key, strength)
    attacked = open_at_cut(model, data, cut)
    if key.shape != attacked.shape:
        raise AttackError(
            f"The second key is for activations of {key.shape}, but the model cut at {attacked.cut!r} gives "
            f"{attacked.shape}; make a key with that shape."
        )

    def embed(activation: Tensor) -> None:
        injector.attach(activation)

    identity = f"overwrite {key.commitment} {strength}"
    finetune_at_cut(attacked, data, embed, plan, identity=identity)
    return same_kind(attacked.whole, model)
