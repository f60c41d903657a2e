"""A client's own honest training, for detectors that must know what honest gradients look like."""

from __future__ import annotations

import copy

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from sigil import arguments, models, optimizers
from sigil.data import Batches, Dataset
from sigil.detectors.splitout import MINIMUM
from sigil.errors import DetectorError
from sigil.federation.from_settings import build_halves, client_parts
from sigil.federation.precision import Precision, choose
from sigil.federation.seeds import derive, generator
from sigil.federation.settings import Settings


def local_gradients(
    halves: tuple[nn.Module, nn.Module],
    dataset: Dataset,
    indices: npt.NDArray[np.int64],
    *,
    share: float = 0.01,
    batch_size: int = 64,
    epochs: int = 1,
    lr: float = 1e-3,
    amsgrad: bool = True,
    augment: bool = True,
    seed: int = 0,
    precision: Precision | None = None,
) -> list[Tensor]:
    """Train copies of both halves on a share of a client's samples; the gradients at the cut, batch by batch.

    ``halves`` are (client half, server half) and stay as they are; ``indices`` are the client's samples of
    ``dataset.train``, of which a random ``share`` is used. Each result is float32 (n, *shape at the cut) with
    the usual factor 1/n of a mean loss. The optimizer is Adam, with AMSGrad as in the published code unless
    told otherwise.

    In U-SFL a client has no server half. It must simulate with one of its own: of the architecture that it
    supposes, with fresh weights.
    """
    if not isinstance(dataset, Dataset) or not isinstance(indices, np.ndarray | list | tuple):
        raise DetectorError("Local gradients need a data set and the indices of a client's samples in it.")
    if not isinstance(halves, tuple) or len(halves) != 2:
        raise DetectorError("Local gradients need a pair of modules, the client half and the server half.")
    for half in halves:
        arguments.module("half", half, raises=DetectorError)
    wanted = "a number between 0 and 1"
    count = round(arguments.number("The share", share, wanted, raises=DetectorError) * len(indices))
    if count < MINIMUM:
        least = min(1.0, MINIMUM / max(1, len(indices)))
        raise DetectorError(
            f"A share of {share:g} of the client's {len(indices)} samples is {count}, but at least {MINIMUM} "
            f"are needed for local gradients; give a share of at least {least:.2g} or more data."
        )
    place = precision or choose("cpu", "float32")
    client_half, server_half = (
        copy.deepcopy(half).to(device=place.device, memory_format=place.layout).train()  # type: ignore[call-overload]
        for half in halves
    )
    parameters = [*client_half.parameters(), *server_half.parameters()]
    optimizer = optimizers.Adam(parameters, lr=lr, amsgrad=amsgrad)
    random = generator(seed, "local gradients")
    chosen = np.sort(np.asarray(indices)[torch.randperm(len(indices), generator=random)[:count].numpy()])
    batches = Batches(
        dataset.train.images,
        dataset.train.labels,
        chosen,
        batch_size=batch_size,
        mean=dataset.mean,
        std=dataset.std,
        augment=dataset.augment if augment else "none",
        device=place.device,
        memory_format=place.layout,
    )
    gradients = []
    # Layers with randomness of their own (dropout) draw from torch's global stream.
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(derive(seed, "layers"))
        for _ in range(epochs):
            for images, labels in batches.epoch(random):
                with place.autocast():
                    sent = client_half(images)
                    received = sent.detach().requires_grad_()
                    logits = server_half(received)
                optimizer.zero_grad(set_to_none=True)
                F.cross_entropy(logits.float(), labels).backward()
                sent.backward(received.grad)
                optimizer.step()
                gradients.append(received.grad.float().cpu())
    return gradients


def local_gradients_of_run(
    settings: Settings,
    dataset: Dataset,
    *,
    client: int = 0,
    share: float = 0.01,
    batch_size: int = 64,
    epochs: int = 1,
    lr: float = 1e-3,
    amsgrad: bool = True,
) -> list[Tensor]:
    """What :func:`local_gradients` gives one client of a run: its data, the run's first client half.

    The client half has the weights that follow from the run's seed, which are those that every client starts
    with unless the key drew them; the server half is the client's own, of the same architecture and with
    weights that have nothing to do with the server's.
    """
    if not isinstance(settings, Settings) or not isinstance(dataset, Dataset):
        raise DetectorError("Local gradients of a run need its settings and its data set.")
    precision = choose(settings.run.device, settings.run.precision)
    halves = build_halves(settings, classes=dataset.classes, input_shape=dataset.shape, precision=precision)
    parts = client_parts(settings, dataset)
    seed = derive(settings.run.seed, "local", client)
    own = models.build(
        settings.model.name,
        classes=dataset.classes,
        width=settings.model.width,
        channels=dataset.shape[0],
        seed=seed,
    )
    _, server_half = models.split(own, halves.cut)
    if not 0 <= client < len(parts):
        raise DetectorError(f"There is no client {client}: the run has {len(parts)}, from 0 on.")
    return local_gradients(
        (halves.client, server_half),
        dataset,
        parts[client],
        share=share,
        batch_size=batch_size,
        epochs=epochs,
        lr=lr,
        amsgrad=amsgrad,
        augment=settings.data.augment,
        seed=seed,
        precision=precision,
    )
