"""The training loop of the attacks that train: the attacker's images, one loss, plain SGD or Adam.

Every epoch draws its order from the seed and its own number, so that an interrupted attack with a
``checkpoint`` goes on as if nothing had happened.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import islice
from pathlib import Path
from typing import Literal

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from sigil import optimizers
from sigil.attacks.checkpoint import AttackCheckpoint, settings_digest
from sigil.attacks.checks import check_at_least, check_choice, check_data, check_positive
from sigil.data import Batches, Dataset, Split
from sigil.errors import AttackError
from sigil.federation.precision import Precision, choose
from sigil.federation.seeds import generator

Progress = Callable[[int, int], None]
BeforeStep = Callable[[int, int], None]
Loss = Callable[[Tensor, Tensor], Tensor]
Optimizer = Literal["sgd", "adam"]

BATCH_SIZE = 256
"""The batch of the paper's training, also used to attack."""


@dataclass(frozen=True)
class Plan:
    """For how long to train, how fast, and in which order.

    Either ``steps`` or ``epochs``. ``sgd`` is that of the training (paper, appendix B: momentum 0.9, weight
    decay 5e-4); ``adam`` has neither. With ``decay`` the rate falls to 0 as a half cosine.
    """

    lr: float
    steps: int | None = None
    epochs: int | None = None
    batch_size: int = BATCH_SIZE
    optimizer: Optimizer = "sgd"
    decay: bool = False
    seed: int = 0

    def __post_init__(self) -> None:
        check_positive("learning rate", self.lr)
        if (self.steps is None) == (self.epochs is None):
            raise AttackError("An attack that trains takes either steps or epochs, not both.")
        check_at_least("steps" if self.epochs is None else "epochs", self.steps or self.epochs or 0, 1)
        check_at_least("batch_size", self.batch_size, 2)
        check_choice("optimizer", self.optimizer, ("sgd", "adam"))

    def total(self, batches: int) -> int:
        """Steps in all, if an epoch has this number of batches."""
        return self.steps if self.steps is not None else (self.epochs or 0) * batches

    def rate(self, done: int, total: int) -> float:
        """The learning rate after ``done`` of ``total`` steps."""
        return 0.5 * self.lr * (1 + math.cos(math.pi * done / total)) if self.decay else self.lr

    def make_optimizer(self, parameters: Iterator[nn.Parameter]) -> torch.optim.Optimizer:
        """A fresh optimizer."""
        if self.optimizer == "adam":
            return optimizers.Adam(parameters, lr=self.lr)
        return optimizers.SGD(parameters, lr=self.lr, momentum=0.9, weight_decay=5e-4)


@dataclass(frozen=True)
class Tuning(Plan):
    """How an attack fine-tunes, with the numbers of the trials in which these attacks were found.

    Those are 4 epochs of Adam at 5e-4. ``precision``, ``progress`` and ``checkpoint`` are as for
    :func:`descend`; without a precision the fastest that the machine has is taken.
    """

    lr: float = 5e-4
    batch_size: int = 32
    optimizer: Optimizer = "adam"
    precision: Precision | None = field(default=None, repr=False)
    progress: Progress | None = field(default=None, repr=False)
    checkpoint: Path | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        if self.steps is None and self.epochs is None:
            object.__setattr__(self, "epochs", 4)
        super().__post_init__()

    @cached_property
    def place(self) -> Precision:
        """Where and in which number format to train."""
        return self.precision or choose()


TUNING = Tuning()


def share(data: Dataset, samples: npt.NDArray[np.int64]) -> Dataset:
    """The data set of an attacker who holds only some training images; the test images are all there.

    ``samples`` are indices into ``data.train``, for example one part of :func:`sigil.data.partition`.
    """
    check_data(data)
    return replace(data, train=Split(np.array(data.train.images[samples]), data.train.labels[samples]))


def descend(
    model: nn.Module,
    data: Dataset,
    loss: Loss,
    plan: Plan,
    *,
    precision: Precision,
    only: nn.Module | None = None,
    progress: Progress | None = None,
    checkpoint: Path | None = None,
    identity: str = "",
    before_step: BeforeStep | None = None,
) -> None:
    """Train ``model`` in place on the attacker's training images.

    ``loss(images, labels)`` is what each step lowers. With ``only`` this part alone is trained: the rest
    is frozen, batch norm's running statistics included. ``progress(done, total)`` is called after each step,
    ``before_step(done, total)``, which may change the weights, before each.
    ``checkpoint`` is written after each epoch and removed at the end; one that another attack left there
    (``identity``, plan, weights or labels differ) is not gone on from.
    """
    home, mode = next(model.parameters()).device, model.training
    batches = Batches(
        data.train.images,
        data.train.labels,
        batch_size=plan.batch_size,
        mean=data.mean,
        std=data.std,
        augment=data.augment,
        device=precision.device,
        memory_format=precision.layout,
    )
    saved = None
    if checkpoint is not None:
        saved = AttackCheckpoint(checkpoint, settings_digest(model, data, identity, plan, precision))
    model.to(device=precision.device, memory_format=precision.layout)  # type: ignore[call-overload]
    trained = model if only is None else only
    model.requires_grad_(only is None).train(only is None)
    trained.requires_grad_(True).train()
    optimizer = plan.make_optimizer(trained.parameters())
    total = plan.total(len(batches))
    done = 0 if saved is None else saved.read(model, optimizer)
    while done < total:
        lost = torch.zeros((), device=precision.device)
        order = generator(plan.seed, "attack", done // len(batches))
        for images, labels in islice(batches.epoch(order), total - done):
            for group in optimizer.param_groups:
                group["lr"] = plan.rate(done, total)
            if before_step is not None:
                before_step(done, total)
            optimizer.zero_grad(set_to_none=True)
            value = loss(images, labels)
            value.backward()
            optimizer.step()
            lost += value.detach()
            done += 1
            if progress is not None:
                progress(done, total)
        if not bool(torch.isfinite(lost)):
            raise AttackError(f"The loss is {float(lost)} after {done} steps; lower the learning rate.")
        if saved is not None and done < total:
            saved.write(model, optimizer, done)
    if saved is not None:
        saved.remove()
    optimizer.zero_grad(set_to_none=True)
    model.requires_grad_(True).train(mode)
    model.to(device=home, memory_format=torch.contiguous_format)  # type: ignore[call-overload]


def tune(
    model: nn.Module,
    data: Dataset,
    loss: Loss,
    tuning: Tuning,
    *,
    identity: str,
    only: nn.Module | None = None,
    before_step: BeforeStep | None = None,
) -> None:
    """:func:`descend` as ``tuning`` says."""
    descend(
        model,
        data,
        loss,
        tuning,
        precision=tuning.place,
        only=only,
        progress=tuning.progress,
        checkpoint=tuning.checkpoint,
        identity=identity,
        before_step=before_step,
    )
