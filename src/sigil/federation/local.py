"""A client's local epochs: which batches in which order, with which optimizer, and what a good end is.

In one process and across a network a client does exactly this, so that the same seed gives the same weights.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from sigil.data import Batches, Dataset
from sigil.errors import TrainingError
from sigil.federation.client import Client
from sigil.federation.observers import ClientObserver, Moment
from sigil.federation.precision import Precision
from sigil.federation.seeds import derive, generator
from sigil.federation.settings import Settings


def local_batches(
    settings: Settings,
    dataset: Dataset,
    *,
    indices: npt.NDArray[np.int64],
    round_number: int,
    client: int,
    precision: Precision,
    observers: Sequence[ClientObserver] = (),
) -> Iterator[tuple[Moment, Tensor, Tensor]]:
    """The batches of one client in one round: (moment, images (N, C, H, W), labels (N,)) each time.

    `indices` are the training images that the client holds. Order and augmentation follow from the seed,
    the round and the client alone; torch's global random stream is set from them as well.
    """
    seed = settings.run.seed
    batches = Batches(
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
            moment = Moment(round_number, client, count)
            for observer in observers:
                images, labels = observer.on_batch(moment, images, labels)
            yield moment, images, labels


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
