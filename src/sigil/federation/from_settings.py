"""What settings become: data and shares, halves, batches, optimizers, learning rates.

All of it follows from the settings (and the data) alone. So everybody who builds it, the owner, a worker
process or a client on another machine, begins alike, and the same seed gives the same weights.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from sigil import data, models
from sigil.errors import ConfigError, TrainingError
from sigil.federation.client import Client
from sigil.federation.observers import ClientObserver, Step
from sigil.federation.precision import Precision
from sigil.federation.seeds import derive, generator
from sigil.federation.settings import Settings
from sigil.injector import Injector
from sigil.key import Key


def load_data(settings: Settings, data_dir: Path | None = None) -> data.Dataset:
    """The data set of a training with these settings, reduced as they say."""
    chosen = settings.data
    return data.load(
        chosen.name,
        data_dir=data_dir,
        train_limit=chosen.train_limit,
        test_limit=chosen.test_limit,
        classes=chosen.classes,
    )


def client_parts(settings: Settings, dataset: data.Dataset) -> list[npt.NDArray[np.int64]]:
    """The indices of the training images that each client holds."""
    federation = settings.federation
    return data.partition(
        np.asarray(dataset.train.labels),
        clients=federation.clients,
        kind=federation.partition,
        beta=federation.beta,
        sigma=federation.sigma,
        seed=derive(settings.run.seed, "partition") % 2**32,
    )


@dataclass(frozen=True)
class Halves:
    """A network at the start of its training, cut in two; `shape` is that of one sample at the cut."""

    client: nn.Module
    server: nn.Module
    cut: str
    shape: tuple[int, ...]


def build_halves(settings: Settings, *, classes: int, input_shape: tuple[int, int, int]) -> Halves:
    """Build the network of the settings for images (C, H, W) = `input_shape` and cut it.

    The weights follow from the seed, so that everybody who builds it begins alike.
    """
    cut = settings.model.cut or models.default_cut(settings.model.name)
    whole = models.build(
        settings.model.name,
        classes=classes,
        width=settings.model.width,
        channels=input_shape[0],
        input_size=input_shape[1:],
        seed=derive(settings.run.seed, "weights"),
    )
    client_half, server_half = models.split(whole, cut)
    return Halves(client_half, server_half, cut, models.activation_shape(client_half, input_shape))


def cut_shape(settings: Settings, data_dir: Path | None = None) -> tuple[int, ...]:
    """Shape of one sample's activation at the cut of a training with these settings."""
    dataset = data.load(settings.data.name, data_dir=data_dir, classes=settings.data.classes)
    return build_halves(settings, classes=dataset.classes, input_shape=dataset.shape).shape


def make_injector(settings: Settings, key: Key | None, *, halves: Halves) -> Injector | None:
    """The injector of a training with this key, or none if it embeds no mark."""
    mark = settings.watermark
    if not settings.marked:
        return None
    if key is None:
        raise ConfigError(
            "watermark.strength is above 0, but there is no key to embed; give a key or set it to 0."
        )
    if key.shape != halves.shape:
        raise ConfigError(
            f"The key is for activations of {key.shape}, but {settings.model.name} cut at "
            f"{halves.cut!r} gives {halves.shape}; make a key with that shape."
        )
    return Injector(key, mark.strength, clip=mark.clip, per_sample=mark.per_sample)


def local_batches(
    settings: Settings,
    dataset: data.Dataset,
    *,
    indices: npt.NDArray[np.int64],
    round_number: int,
    client: int,
    precision: Precision,
    observers: Sequence[ClientObserver] = (),
) -> Iterator[tuple[Step, Tensor, Tensor]]:
    """The batches of one client in one round: (step, images (N, C, H, W), labels (N,)) each time.

    `indices` are the training images that the client holds. Order and augmentation follow from the seed,
    the round and the client alone; torch's global random stream is set from them as well.
    """
    seed = settings.run.seed
    batches = data.Batches(
        dataset.train.images,
        dataset.train.labels,
        indices,
        batch_size=settings.federation.batch_size,
        mean=dataset.mean,
        std=dataset.std,
        augment=dataset.augment if settings.data.augment else "none",
        device=precision.device,
        memory_format=precision.layout,
    )
    order = generator(seed, "batches", round_number, client)
    # Layers with randomness of their own (dropout) draw from torch's global stream.
    torch.manual_seed(derive(seed, "layers", round_number, client))
    count = 0
    for _ in range(settings.federation.local_epochs):
        for images, labels in batches.epoch(order):
            count += 1
            at = Step(round_number, client, count)
            for observer in observers:
                images, labels = observer.on_batch(at, images, labels)
            yield at, images, labels


def fresh_optimizer(
    half: nn.Module, lr: float, *, settings: Settings, precision: Precision
) -> torch.optim.Optimizer:
    """The optimizer with which a half begins a round."""
    optimizer = settings.optimizer
    fused = precision.device.type in ("cpu", "cuda")
    parameters = [value for value in half.parameters() if value.requires_grad]
    if not parameters:
        # A half without weights (a cut right before the last pooling, say) has nothing to update.
        parameters = [nn.Parameter(torch.zeros((), device=precision.device))]
    if optimizer.name == "adam":
        return torch.optim.Adam(parameters, lr=lr, weight_decay=optimizer.weight_decay, fused=fused)
    return torch.optim.SGD(
        parameters, lr=lr, momentum=optimizer.momentum, weight_decay=optimizer.weight_decay, fused=fused
    )


def is_measured(settings: Settings, step: int) -> bool:
    """Whether the injection of this step (from 1) is recorded."""
    every = settings.watermark.statistics_every if settings.marked else 0
    return every > 0 and (step - 1) % every == 0


def check_loss(client: Client, round_number: int) -> float:
    """The sum of a client's losses over its round, if it is a number."""
    loss = float(client.loss)
    if not math.isfinite(loss):
        raise TrainingError(
            f"The loss of client {client.index} is {loss} in round {round_number}, so training stops here "
            "with the last good checkpoint kept; lower optimizer.lr or lengthen optimizer.warmup_rounds."
        )
    return loss


def scheduled_rate(settings: Settings, round_number: int) -> float:
    """Learning rate of a round of a training with these settings."""
    optimizer = settings.optimizer
    return learning_rate(
        round_number,
        rounds=settings.federation.rounds,
        base=optimizer.lr,
        minimum=optimizer.lr_min,
        warmup_rounds=optimizer.warmup_rounds,
    )


def learning_rate(
    round_number: int, *, rounds: int, base: float, minimum: float, warmup_rounds: int
) -> float:
    """Learning rate of round 1, 2, …, `rounds`: linear warm-up, then cosine (paper, appendix B).

    Rises linearly to `base` at round `warmup_rounds`, then falls as a half cosine to `minimum` at the last.

    >>> [round(learning_rate(r, rounds=80, base=0.1, minimum=1e-4, warmup_rounds=5), 4) for r in (1, 5, 80)]
    [0.02, 0.1, 0.0001]
    """
    if round_number <= warmup_rounds:
        return base * round_number / warmup_rounds
    progress = (round_number - max(warmup_rounds, 1)) / max(1, rounds - max(warmup_rounds, 1))
    return minimum + 0.5 * (base - minimum) * (1 + math.cos(math.pi * progress))
