"""How the attacks that train do it: one recipe, one loop, and fine-tuning with what attacks add to it.

Every epoch draws its order from the seed and its own number, so that an interrupted attack with a
``checkpoint`` goes on as if nothing had happened.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import islice
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor, nn
from torch.nn import functional as F

from sigil import eager, files, models
from sigil.attacks.halves import (
    OpenedAtCut,
    check_at_least,
    check_choice,
    check_not_negative,
    check_positive,
    check_share,
)
from sigil.data import Batches, Dataset, Split, evaluate_batches
from sigil.errors import AttackError
from sigil.federation.precision import Precision, choose
from sigil.models import Model
from sigil.seeds import generator

Progress = Callable[[int, int], None]
BeforeStep = Callable[[int, int], None]
Loss = Callable[[Tensor, Tensor], Tensor]
Optimizer = Literal["sgd", "adam"]
Norms = Literal["trained", "frozen", "re-estimated"]
Penalty = Callable[[Tensor], Tensor | None]
"""What is added to the loss, given the activation (N, *shape) of a batch; None adds nothing."""

BATCH_SIZE = 256
"""The batch of the paper's training, also used to attack."""


@dataclass(frozen=True)
class Tuning:
    """How an attack trains: for how long, how fast, in which order, and what it learns from.

    Either ``steps`` or ``epochs``; 4 epochs if neither is given. ``sgd`` is that of the training (paper,
    appendix B: momentum 0.9, weight decay 5e-4); ``adam`` has neither. The rate rises evenly over the share
    ``warmup`` of the steps; with ``decay`` it falls to 0 as a half cosine after that. The defaults are those
    of the trials in which the attacks beyond the paper's were found; :data:`BEST` is the recipe of a thief
    who tunes well.

    The loss is ``labels`` · cross-entropy, and what the model teaches as it was before the attack (z and A
    its logits and its activation at the cut, ′ those under attack):

    - ``logits`` · T² KL( softmax(z / T) ‖ softmax(z′ / T) ) with T the ``temperature``,
    - ``features`` · ‖A′ − A‖² / ‖A‖², where A and A′ are without their means over the batch: the mean map is
      where a mark is, so it is not taught.

    With ``averaged`` the result is the mean of the weights over this share of the steps, the last ones.
    Batch norms are ``trained`` as in any training; ``frozen``, they keep their running statistics and train
    by these; ``re-estimated``, their statistics are measured once more on the attacker's images at the end.

    Without a ``precision`` the fastest that the machine has is taken. ``progress(done, total)`` is called
    after each step. ``checkpoint`` is written after each epoch and removed at the end; one that another
    attack left there (its name, tuning, weights or labels differ) is not gone on from.
    """

    lr: float = 5e-4
    steps: int | None = None
    epochs: int | None = None
    batch_size: int = 32
    optimizer: Optimizer = "adam"
    decay: bool = False
    warmup: float = 0.0
    labels: float = 1.0
    logits: float = 0.0
    features: float = 0.0
    temperature: float = 2.0
    averaged: float = 0.0
    norms: Norms = "trained"
    seed: int = 0
    precision: Precision | None = field(default=None, repr=False)
    progress: Progress | None = field(default=None, repr=False)
    checkpoint: Path | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        if self.steps is None and self.epochs is None:
            object.__setattr__(self, "epochs", 4)
        check_positive("learning rate", self.lr)
        if self.steps is not None and self.epochs is not None:
            raise AttackError("An attack that trains takes either steps or epochs, not both.")
        check_at_least("steps" if self.epochs is None else "epochs", self.steps or self.epochs or 0, 1)
        check_at_least("batch_size", self.batch_size, 2)
        check_choice("optimizer", self.optimizer, ("sgd", "adam"))
        check_share("share of warm-up", self.warmup)
        check_share("share of averaged steps", self.averaged)
        for name in ("labels", "logits", "features"):
            check_not_negative(f"weight of {name}", getattr(self, name))
        if not self.labels + self.logits + self.features:
            raise AttackError("An attack that trains needs labels, logits or features to learn from.")
        check_positive("temperature", self.temperature)
        check_choice("treatment of norms", self.norms, ("trained", "frozen", "re-estimated"))

    def changed(self, **changes: Any) -> Tuning:
        """The same but for the fields that are given; steps take the place of epochs, and epochs of steps."""
        if changes.get("steps") is None and changes.get("epochs") is None:
            changes |= {"steps": self.steps, "epochs": self.epochs}
        return replace(self, **({"steps": None, "epochs": None} | changes))

    @cached_property
    def chosen_precision(self) -> Precision:
        """Where and in which number format to train."""
        return self.precision or choose()

    def total(self, batches: int) -> int:
        """Steps in all, if an epoch has this number of batches."""
        return self.steps if self.steps is not None else (self.epochs or 0) * batches

    def rate(self, done: int, total: int) -> float:
        """The learning rate after ``done`` of ``total`` steps."""
        rising = int(self.warmup * total)
        if done < rising:
            return self.lr * (done + 1) / (rising + 1)
        if not self.decay:
            return self.lr
        return 0.5 * self.lr * (1 + math.cos(math.pi * (done - rising) / (total - rising)))

    def make_optimizer(self, parameters: Iterator[nn.Parameter]) -> torch.optim.Optimizer:
        """A fresh optimizer."""
        if self.optimizer == "adam":
            return eager.Adam(parameters, lr=self.lr)
        return eager.SGD(parameters, lr=self.lr, momentum=0.9, weight_decay=5e-4)


TUNING = Tuning()
BEST = Tuning(epochs=10, decay=True, warmup=0.05, labels=0.3, logits=1.0)
"""The recipe of a thief who tunes well: its own copy teaches it, and the rate falls to 0."""


@dataclass(frozen=True)
class Effect:
    """What an attack adds to a fine-tuning; ``identity`` names it in a checkpoint.

    ``before_step(done, total)``, which may change the weights, is called before each step, ``after`` once at
    the end.
    """

    identity: str
    penalty: Penalty | None = None
    before_step: BeforeStep | None = None
    after: Callable[[], None] | None = None


def share(data: Dataset, samples: npt.NDArray[np.int64]) -> Dataset:
    """The data set of an attacker who holds only some training images; the test images are all there.

    ``samples`` are indices into ``data.train``, for example one part of :func:`sigil.data.partition`.
    """
    return replace(data, train=Split(np.array(data.train.images[samples]), data.train.labels[samples]))


def train(
    model: nn.Module,
    data: Dataset,
    loss: Loss,
    tuning: Tuning,
    *,
    identity: str = "",
    only: nn.Module | None = None,
    before_step: BeforeStep | None = None,
) -> None:
    """Train ``model`` in place on the attacker's training images.

    ``loss(images, labels)`` is what each step lowers. With ``only`` this part alone is trained: the rest
    is frozen, batch norm's running statistics included. ``before_step(done, total)``, which may change the
    weights, is called before each step. ``identity`` names the attack in its checkpoint.
    """
    precision = tuning.chosen_precision
    home, mode = next(model.parameters()).device, model.training
    batches = Batches(
        data.train.images,
        data.train.labels,
        batch_size=tuning.batch_size,
        mean=data.mean,
        std=data.std,
        augment=data.augment,
        **precision.place,
    )
    saved = None
    if tuning.checkpoint is not None:
        saved = AttackCheckpoint(tuning.checkpoint, settings_digest(model, data, identity, tuning, precision))
    precision.move(model)
    trained = model if only is None else only
    model.requires_grad_(only is None).train(only is None)
    trained.requires_grad_(True).train()
    norms = [layer for layer in trained.modules() if isinstance(layer, nn.BatchNorm2d)]
    if tuning.norms == "frozen":
        for layer in norms:
            layer.eval()
    optimizer = tuning.make_optimizer(trained.parameters())
    total = tuning.total(len(batches))
    averaged = math.ceil(tuning.averaged * total)
    mean: dict[str, Tensor] = {}
    done = 0 if saved is None else saved.read(model, optimizer, mean)
    while done < total:
        lost = torch.zeros((), device=precision.device)
        order = generator(tuning.seed, "attack", done // len(batches))
        for images, labels in islice(batches.epoch(order), total - done):
            for group in optimizer.param_groups:
                group["lr"] = tuning.rate(done, total)
            if before_step is not None:
                before_step(done, total)
            optimizer.zero_grad(set_to_none=True)
            value = loss(images, labels)
            value.backward()
            optimizer.step()
            lost += value.detach()
            done += 1
            if done > total - averaged:
                _add_to_mean(mean, model, done - (total - averaged))
            if tuning.progress is not None:
                tuning.progress(done, total)
        if not bool(torch.isfinite(lost)):
            raise AttackError(f"The loss is {float(lost)} after {done} steps; lower the learning rate.")
        if saved is not None and done < total:
            saved.write(model, optimizer, mean, done)
    if mean:
        model.load_state_dict(mean)
    if tuning.norms == "re-estimated":
        with precision.autocast():
            _estimate(norms, model, batches.epoch(generator(tuning.seed, "attack", "norms")))
    if saved is not None:
        saved.remove()
    optimizer.zero_grad(set_to_none=True)
    model.requires_grad_(True).train(mode)
    model.to(device=home, memory_format=torch.contiguous_format)  # type: ignore[call-overload]


@torch.no_grad()
def _add_to_mean(mean: dict[str, Tensor], model: nn.Module, count: int) -> None:
    """Make the mean of ``count`` states of that of one fewer; counters are the last one's."""
    for name, value in model.state_dict().items():
        if name in mean and value.is_floating_point():
            mean[name] += (value - mean[name]) / count
        else:
            mean[name] = value.clone()


@torch.no_grad()
def _estimate(
    norms: Sequence[nn.BatchNorm2d], model: nn.Module, batches: Iterable[tuple[Tensor, Tensor]]
) -> None:
    """Measure the running statistics of batch norms anew: their plain mean over batches of images."""
    model.eval()
    before = [layer.momentum for layer in norms]
    for layer in norms:
        layer.reset_running_stats()
        layer.momentum = None
        layer.train()
    for images, _ in batches:
        model(images)
    for layer, momentum in zip(norms, before, strict=True):
        layer.momentum = momentum


def finetune_at_cut(
    attacked: OpenedAtCut, data: Dataset, tuning: Tuning, *effects: Effect, only: nn.Module | None = None
) -> None:
    """Fine-tune an opened model in place on ``data.train``, with all that the effects add to it."""
    taught = tuning.logits or tuning.features
    task = Task(models.split(attacked.whole, attacked.cut) if taught else (), tuning)

    def loss(images: Tensor, labels: Tensor) -> Tensor:
        with task.precision.autocast():
            activation = attacked.front(images)
            added = [effect.penalty(activation) for effect in effects if effect.penalty is not None]
            logits = attacked.back(activation)
        return sum(
            (each for each in added if each is not None), task.loss(images, labels, logits, activation)
        )

    def before_step(done: int, total: int) -> None:
        for effect in effects:
            if effect.before_step is not None:
                effect.before_step(done, total)

    identity = " ".join([*(effect.identity for effect in effects), attacked.cut])
    train(attacked.whole, data, loss, tuning, identity=identity, only=only, before_step=before_step)
    for effect in effects:
        if effect.after is not None:
            effect.after()


class Task:
    """What a model is trained to do: the attacker's labels, and what a teacher (its two halves) answers."""

    def __init__(self, teacher: Sequence[Model], tuning: Tuning) -> None:
        self.teacher, self.tuning, self.precision = teacher, tuning, tuning.chosen_precision
        for half in teacher:
            self.precision.move(half).eval()

    def loss(
        self, images: Tensor, labels: Tensor, logits: Tensor, activation: Tensor | None = None
    ) -> Tensor:
        """The loss of these logits; features are compared if the activation at the cut is given."""
        tuning, parts = self.tuning, []
        if tuning.labels:
            parts.append(tuning.labels * F.cross_entropy(logits.float(), labels))
        if self.teacher:
            front, back = self.teacher
            with torch.no_grad(), self.precision.autocast():
                features = front(images)
                wanted = back(features)
            if tuning.logits:
                # T² · KL( softmax(wanted / T) ‖ softmax(logits / T) ), the mean over the batch.
                given, wanted = (F.log_softmax(it.float() / tuning.temperature, 1) for it in (logits, wanted))
                differs = F.kl_div(given, wanted, reduction="batchmean", log_target=True)
                parts.append(tuning.logits * (tuning.temperature**2 * differs))
            if tuning.features and activation is not None:
                before, now = (each.float() - each.float().mean(0) for each in (features, activation))
                size = before.square().sum().clamp(min=torch.finfo(torch.float32).tiny)
                parts.append(tuning.features * (now - before).square().sum() / size)
        return sum(parts[1:], parts[0])


def push_along(
    attacked: OpenedAtCut,
    data: Dataset,
    direction: Tensor,
    tuning: Tuning,
    *,
    reversal: float,
    gamma: float,
) -> Effect:
    """γ · mean of (A·û − t)², where t = −reversal · the mean of A·û before.

    û is ``direction`` (d,), normalised. A reversal of 0 pushes the activations' mean along it to zero, 1 as
    far to the other side as it was on this one.
    """
    check_not_negative("reversal", reversal)
    check_not_negative("weight gamma", gamma)
    length = float(direction.double().norm())
    if not 0 < length < float("inf"):
        raise AttackError("The direction that was found is zero or not finite, so nothing can be pushed.")
    along = (direction.double() / length).float()
    target = -reversal * float(mean_activation(attacked, data, tuning).flatten() @ along)
    along = along.to(tuning.chosen_precision.device)

    def penalty(activation: Tensor) -> Tensor:
        return gamma * (activation.float().flatten(1) @ along - target).square().mean()

    return Effect(f"push {gamma} {target} {files.digest([along])}", penalty)


@torch.no_grad()
def mean_activation(attacked: OpenedAtCut, data: Dataset, tuning: Tuning) -> Tensor:
    """The mean over ``data.train`` of the activation at the cut, (*shape), as the model is now."""
    precision = tuning.chosen_precision
    home, mode = next(attacked.whole.parameters()).device, attacked.whole.training
    precision.move(attacked.whole).eval()
    total, count = torch.zeros(attacked.shape, dtype=torch.float64), 0
    for images, _ in evaluate_batches(data.train, data, batch_size=256, **precision.place):
        with precision.autocast():
            activation = attacked.front(images)
        total += activation.double().sum(0).cpu()
        count += len(images)
    attacked.whole.to(device=home, memory_format=torch.contiguous_format).train(mode)  # type: ignore[call-overload]
    return (total / count).float()


def digest(model: nn.Module) -> str:
    """SHA-256 of the names and values of all tensors of a model."""
    return files.digest(part for named in model.state_dict().items() for part in named)


def settings_digest(model: nn.Module, data: Dataset, *settings: object) -> str:
    """What must be equal for an interrupted attack to be gone on with: settings, labels and weights."""
    about = (settings, data.name, data.train.images.shape, data.augment, digest(model))
    return files.digest([repr(about), data.train.labels.tobytes()])


class AttackCheckpoint:
    """Weights, optimizer state and number of finished steps of one attack."""

    def __init__(self, path: Path, settings_digest: str) -> None:
        self.path = Path(path)
        self.settings_digest = settings_digest
        if not self.path.parent.is_dir():
            raise AttackError(
                f"The checkpoint {path} cannot be written: {self.path.parent} is not a directory."
            )

    def write(
        self, model: nn.Module, optimizer: torch.optim.Optimizer, mean: Mapping[str, Tensor], done: int
    ) -> None:
        """Replace the file; a reader sees the old one or the new one."""
        tensors = {f"average/{name}": value.contiguous() for name, value in mean.items()}
        tensors |= {f"model/{name}": value.contiguous() for name, value in model.state_dict().items()}
        for index, values in optimizer.state_dict()["state"].items():
            for name, value in values.items():
                if isinstance(value, Tensor):
                    tensors[f"optimizer/{index}/{name}"] = value.contiguous()
        about = {"settings_digest": self.settings_digest, "done": done}
        with files.draft(self.path, replace=True) as draft:
            save_file(tensors, draft, metadata={"sigil": json.dumps(about)})

    def read(self, model: nn.Module, optimizer: torch.optim.Optimizer, mean: dict[str, Tensor]) -> int:
        """Load the state into model, optimizer and mean; returns the finished steps, 0 if there is none."""
        if not self.path.exists():
            return 0
        try:
            with safe_open(self.path, framework="pt") as file:
                about = json.loads((file.metadata() or {}).get("sigil", "{}"))
                if about.get("settings_digest") != self.settings_digest:
                    return 0
                tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        except (SafetensorError, OSError, ValueError):
            return 0
        model.load_state_dict(
            {name.removeprefix("model/"): value for name, value in tensors.items() if name[0] == "m"}
        )
        parameters = [value for group in optimizer.param_groups for value in group["params"]]
        state: dict[int, dict[str, Tensor]] = {}
        for name, value in tensors.items():
            kind, _, rest = name.partition("/")
            if kind == "optimizer":
                index, _, field = rest.partition("/")
                state.setdefault(int(index), {})[field] = _laid_out(value, parameters[int(index)])
            elif kind == "average":
                mean[rest] = value.to(parameters[0].device)
        optimizer.load_state_dict(optimizer.state_dict() | {"state": state})
        return int(about["done"])

    def remove(self) -> None:
        """The attack is over."""
        self.path.unlink(missing_ok=True)


def _laid_out(value: Tensor, parameter: Tensor) -> Tensor:
    """A saved tensor in the parameter's memory layout, which optimizers take for granted."""
    return torch.empty_like(parameter).copy_(value) if value.shape == parameter.shape else value
