"""SplitOut (Erdoğan et al., 2024): do the server's gradients look like those of an honest training?

Before the training the client trains the whole network by itself on a hundredth of its data and keeps the
gradients (:func:`~sigil.detectors.local_gradients`). A local outlier factor over all of them, with n − 1
neighbours for n gradients, then calls each gradient that arrives an inlier or an outlier; when outliers
outnumber inliers, the server is not training what was agreed.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from sigil import extras
from sigil.detectors.detector import Detector, Gradients, as_tensor
from sigil.errors import DetectorError, ShapeError

# With fewer, "all but the farthest one are neighbours" describes hardly more than two or three points.
MINIMUM = 10

Unit = Literal["sample", "batch"]


class SplitOut(Detector):
    """Count gradients that lie outside those of a local, honest training; more than half is an attack.

    ``local`` are the gradients of that training, one (n, …) batch after another, as
    :func:`~sigil.detectors.local_gradients` returns them. What is judged is a ``unit``:

    - ``"sample"``, one gradient a sample: how the Sigil paper counts (alarm at 128 of a batch of 256);
    - ``"batch"``, one vector a batch, the sum over its samples: closest to the original, which takes the
      gradient of the client's first layer.

    The score is the share of outliers among the units of the last ``window`` batches, and an alarm is a score
    above ``threshold`` once the window is full. ``mean_outliers`` is the mean number of outliers a batch.

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
        tensors = _tensors(local)
        vectors = [_in_units(part.detach().flatten(1).float().cpu(), unit) for part in tensors]
        found = sum(map(len, vectors))
        if found < MINIMUM:
            raise DetectorError(
                f"SplitOut was given {found} local gradient{'' if found == 1 else 's'} "
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
        self._about = [found, self._size, float(np.linalg.norm(reference))]
        extras.need("train", "sklearn")
        from sklearn.neighbors import LocalOutlierFactor

        self._factor = LocalOutlierFactor(n_neighbors=found - 1, novelty=True).fit(reference)

    @property
    def mean_outliers(self) -> float:
        return float(np.mean(self.curves["outliers"])) if self.curves["outliers"] else 0.0

    def look(self, rows: Tensor, labels: Tensor) -> float:
        if rows.shape[1] != self._size:
            raise ShapeError(
                f"A gradient of {rows.shape[1]} numbers a sample arrived, but the local ones have "
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


def _tensors(local: Sequence[Gradients]) -> list[Tensor]:
    """The local gradients, one tensor (n, …) of real numbers per batch."""
    try:
        found = [as_tensor("local gradients", part) for part in local]
    except (TypeError, DetectorError):
        found = [torch.empty(0)]
    if any(part.ndim < 2 for part in found):
        raise DetectorError(
            "SplitOut takes the local gradients of a client, one tensor (n, …) per batch, as "
            "sigil.detectors.local_gradients makes them."
        )
    return found
