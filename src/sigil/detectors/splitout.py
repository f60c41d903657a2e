"""SplitOut (Erdoğan et al., 2024): do the server's gradients look like those of an honest training?

Before the training the client trains the whole network by itself on a hundredth of its data and keeps the
gradients (:func:`~sigil.detectors.local_gradients`). A local outlier factor over all of them, with n − 1
neighbours for n gradients, then calls each gradient that arrives an inlier or an outlier; when outliers
outnumber inliers, the server is not training what was agreed.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from sigil import eager, extras, models
from sigil.data import Batches, Dataset
from sigil.detectors.detector import Detector, Gradients, as_tensor
from sigil.errors import DetectorError, ShapeError
from sigil.federation.from_settings import build_halves, client_parts
from sigil.federation.precision import Precision, choose
from sigil.federation.settings import Settings
from sigil.seeds import derive, generator

# With fewer, "all but the farthest one are neighbours" describes hardly more than two or three points.
MINIMUM = 10

Unit = Literal["sample", "batch"]


class SplitOut(Detector):
    """Count gradients that lie outside those of a local, honest training; more than half is an attack.

    ``local`` are the gradients of that training, one (n, …) batch after another, as
    :func:`~sigil.detectors.local_gradients` returns them. What is judged is a ``unit``:

    - ``"sample"``, one gradient per sample: how the Sigil paper counts (alarm at 128 of a batch of 256);
    - ``"batch"``, one vector per batch, the sum over its samples: closest to the original, which takes the
      gradient of the client's first layer.

    The score is the share of outliers among the units of the last ``window`` batches, and an alarm is a score
    above ``threshold`` once the window is full. ``mean_outliers`` is the mean number of outliers per batch.

    ``curves``: ``outliers`` and ``judged`` (numbers of units) and ``factor`` (mean local outlier factor;
    above 1.5 is an outlier) for every batch, beside ``scored_step`` and ``score``.
    """

    name = "splitout"

    def __init__(
        self,
        local: Sequence[Gradients],
        *,
        unit: Unit = "sample",
        window: int = 1,
        threshold: float = 0.5,
        client: int = 0,
    ) -> None:
        super().__init__(threshold=threshold, client=client)
        self.unit: Unit = unit
        self.window = window
        self.curves |= {"outliers": [], "judged": [], "factor": []}
        vectors = [_in_units(as_tensor(part).flatten(1).float().cpu(), unit) for part in local]
        count = sum(map(len, vectors))
        if count < MINIMUM:
            raise DetectorError(
                f"SplitOut was given {count} local gradient{'' if count == 1 else 's'} "
                f"(one per {unit}), but it needs at least {MINIMUM} "
                "to know what is normal; let the client train locally on a larger share of its data"
                f"{'' if unit == 'sample' else ' or in smaller batches'}."
            )
        reference = torch.cat(vectors).numpy()
        if not np.isfinite(reference).all():
            raise DetectorError(
                "The local gradients are not all finite, so SplitOut cannot learn what is normal from them; "
                "lower the learning rate of the local training."
            )
        self._size = reference.shape[1]
        self._about = [count, self._size, float(np.linalg.norm(reference))]
        extras.need("train", "sklearn")
        from sklearn.neighbors import LocalOutlierFactor

        self._factor = LocalOutlierFactor(n_neighbors=count - 1, novelty=True).fit(reference)

    @property
    def mean_outliers(self) -> float:
        return float(np.mean(self.curves["outliers"])) if self.curves["outliers"] else 0.0

    def look(self, rows: Tensor, labels: Tensor) -> float:
        if rows.shape[1] != self._size:
            raise ShapeError(
                f"A gradient of {rows.shape[1]} numbers per sample arrived, but the local ones have "
                f"{self._size}; train locally with the same cut."
            )
        units = _in_units(rows.cpu(), self.unit).numpy()
        finite = np.isfinite(units).all(axis=1)
        # The opposite of the local outlier factor, judged by scikit-learn's own limit.
        scores = self._factor.score_samples(units[finite]) if finite.any() else np.empty(0)
        outliers = int((scores < self._factor.offset_).sum()) + int((~finite).sum())
        self.curves["outliers"].append(outliers)
        self.curves["judged"].append(len(units))
        self.curves["factor"].append(float(-scores.mean()) if len(scores) else 0.0)
        return sum(self.curves["outliers"][-self.window :]) / sum(self.curves["judged"][-self.window :])

    def suspicious(self, score: float) -> bool:
        return self.step >= self.window and score > self.threshold

    def state_dict(self) -> dict[str, Any]:
        # The local gradients are made again from the seed; a summary tells whether they are the same.
        return super().state_dict() | {"local": self._about}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        if not np.allclose(state["local"], self._about, rtol=1e-3):
            raise DetectorError(
                f"SplitOut was interrupted with {state['local'][0]} local gradients of norm "
                f"{state['local'][2]:.4g}, but goes on with {self._about[0]} of norm {self._about[2]:.4g}; "
                "make them again from the same data, settings and seed."
            )
        super().load_state_dict(state)


def _in_units(rows: Tensor, unit: Unit) -> Tensor:
    """What is judged of one batch (n, d): (n, d) or (1, d), on one scale whatever the batch size.

    A client's loss is a mean over the batch, so each row is 1/n of that sample's own gradient: times n they
    can be compared with those of a batch of another size. The sum of the rows has no such factor.
    """
    return rows * len(rows) if unit == "sample" else rows.sum(0, keepdim=True)


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
    if not 0 < share <= 1:
        raise DetectorError(
            f"The share of the client's data is {share:g}, but it must be more than 0 and at most 1."
        )
    count = round(share * len(indices))
    if count < MINIMUM:
        least = min(1.0, MINIMUM / max(1, len(indices)))
        raise DetectorError(
            f"A share of {share:g} of the client's {len(indices)} samples is {count}, but at least {MINIMUM} "
            f"are needed for local gradients; give a share of at least {least:.2g} or more data."
        )
    precision = precision or choose("cpu", "float32")
    client_half, server_half = (precision.move(copy.deepcopy(half)).train() for half in halves)
    parameters = [*client_half.parameters(), *server_half.parameters()]
    optimizer = eager.Adam(parameters, lr=lr, amsgrad=amsgrad)
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
        **precision.place,
    )
    gradients = []
    # Layers with randomness of their own (dropout) draw from torch's global stream.
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(derive(seed, "layers"))
        for _ in range(epochs):
            for images, labels in batches.epoch(random):
                with precision.autocast():
                    sent = client_half(images)
                    received = sent.detach().requires_grad_()
                    logits = server_half(received)
                optimizer.zero_grad(set_to_none=True)
                F.cross_entropy(logits.float(), labels).backward()
                eager.backward(sent, received.grad)
                optimizer.step()
                gradients.append(received.grad.float().cpu())
    return gradients


def local_gradients_of_run(
    settings: Settings, dataset: Dataset, *, client: int = 0, share: float = 0.01, **training: Any
) -> list[Tensor]:
    """What :func:`local_gradients` gives one client of a run: its data, the run's first client half.

    The client half has the weights that follow from the run's seed, which are those that every client starts
    with unless the key drew them; the server half is the client's own, of the same architecture and with
    weights that have nothing to do with the server's. The rest is as there: batch_size, epochs, lr, amsgrad.
    """
    precision = choose(settings.run.device, settings.run.precision)
    halves = build_halves(settings, classes=dataset.classes, input_shape=dataset.shape, precision=precision)
    parts = client_parts(settings, dataset)
    seed = derive(settings.run.seed, "local", client)
    fresh = models.build(
        settings.model.name,
        classes=dataset.classes,
        width=settings.model.width,
        channels=dataset.shape[0],
        seed=seed,
    )
    _, server_half = models.split(fresh, halves.cut)
    if not 0 <= client < len(parts):
        raise DetectorError(f"There is no client {client}: the run has {len(parts)}, from 0 on.")
    return local_gradients(
        (halves.client, server_half),
        dataset,
        parts[client],
        share=share,
        augment=settings.data.augment,
        seed=seed,
        precision=precision,
        **training,
    )
