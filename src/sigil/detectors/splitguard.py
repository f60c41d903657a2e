"""SplitGuard (Erdoğan et al., 2022): does the server react when the labels are wrong?

After some batches the client begins to send, now and then, a batch with all labels shifted by one random
class offset, and does not learn from it. An honest server's gradients for such a fake batch are longer and
point elsewhere; a server that ignores the labels returns what it always returns.

F are the gradients of fake batches, R those of regular ones, divided by coin into R1 and R2. With m the mean
norm, a bar the mean vector, R̄ half of each group's and θ the angle in radians::

    dF    = |m(F) − (m(R1) + m(R2))/2|
    dR    = |m(R1) − m(R2)|
    x     = (θ(F̄, R̄) dF − θ(R̄1, R̄2) dR) / (dF + dR)
    score = sigmoid(5 x)²

Near 1 is honest; a server to which labels make no difference has x near 0, a score of 1/4.
"""

from __future__ import annotations

import base64
import math
from collections.abc import Mapping, Sequence
from dataclasses import astuple, dataclass
from typing import Any, Self

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from sigil.detectors.detector import Detector, Gradients, Labels
from sigil.errors import DetectorError
from sigil.federation.observers import Step
from sigil.federation.recording import Recording
from sigil.seeds import derive

Vector = npt.NDArray[np.float32]

# More classes than this share groups, so that what must be remembered stays small.
GROUPS = 16


@dataclass
class Gathered:
    """Sums over the gradients of some batches: all that the score needs of them, whatever their number."""

    count: int = 0
    norm: float = 0.0
    vector: Vector | None = None

    def add(self, gradient: Vector) -> None:
        self.count += 1
        self.norm += float(np.linalg.norm(gradient))
        self.vector = gradient if self.vector is None else self.vector + gradient

    @property
    def mean(self) -> npt.NDArray[np.float64]:
        assert self.vector is not None
        return self.vector.astype(np.float64) / self.count

    @property
    def mean_norm(self) -> float:
        return self.norm / self.count

    def pack(self) -> dict[str, Any]:
        vector = None if self.vector is None else base64.b64encode(self.vector.tobytes()).decode("ascii")
        return {"count": self.count, "norm": self.norm, "vector": vector}

    @classmethod
    def unpack(cls, packed: dict[str, Any]) -> Gathered:
        text = packed["vector"]
        vector = None if text is None else np.frombuffer(base64.b64decode(text), np.float32)
        return cls(packed["count"], packed["norm"], vector)


class SplitGuard(Detector):
    """Send batches with wrong labels now and then, and score how differently the server answers them.

    ``classes`` is the number of classes. From batch ``warmup`` + 1 on a batch is fake with ``probability``,
    and only from there on are regular gradients gathered: those of the first steps are of another size.
    Which batches are fake, and by how many classes, follows from ``seed`` and the step. One batch is one
    vector, see :func:`by_class`. The regular groups count half each, as published; with ``by_count=True``
    each counts by the number of its batches.

    A score comes with every fake batch. An alarm is a mean of the last ``window`` scores below ``threshold``.

    Live it must come before other observers, which then never see a fake batch. Alone, give :meth:`update`
    the true labels and the argument ``fake``. ``fakes`` maps the steps of the fake batches to the offsets.

    ``curves``: ``fake_angle``, ``fake_distance``, ``regular_angle``, ``regular_distance`` beside
    ``scored_step`` and ``score``.
    """

    name = "splitguard"

    def __init__(
        self,
        classes: int,
        *,
        probability: float = 0.1,
        warmup: int = 21,
        window: int = 10,
        threshold: float = 0.5,
        by_count: bool = False,
        seed: int = 0,
        client: int = 0,
    ) -> None:
        super().__init__(threshold=threshold, client=client)
        if classes < 2:
            raise DetectorError(
                f"SplitGuard was given {classes} classes, but needs at least 2 to move labels to another one."
            )
        if not 0 <= probability <= 1:
            raise DetectorError(f"The probability is {probability}, but it must lie between 0 and 1.")
        self.classes = classes
        self.probability = probability
        self.warmup = warmup
        self.window = window
        self.by_count = by_count
        self.seed = seed
        self.fakes: dict[Step, int] = {}
        names = ("fake_angle", "fake_distance", "regular_angle", "regular_distance")
        self.curves |= {name: [] for name in names}
        self._fake, self._first, self._second = Gathered(), Gathered(), Gathered()
        self._is_fake = False
        self._asked: Step | None = None

    def offset(self, at: Step) -> int:
        """By how many classes the labels are shifted at this step, 0 for a regular batch."""
        if self.step < self.warmup:
            return 0
        random = np.random.default_rng(derive(self.seed, "fake", at.round, at.client, at.step))
        return int(random.integers(1, self.classes)) if random.random() < self.probability else 0

    def update(self, gradients: Gradients, labels: Labels, *, fake: bool = False) -> float | None:
        """Look at one batch with its true labels; ``fake`` says whether it was sent with others."""
        self._is_fake = fake
        return super().update(gradients, labels)

    def look(self, rows: Tensor, labels: Tensor) -> float | None:
        vector = by_class(rows, labels, groups=min(self.classes, GROUPS))
        if self.step <= self.warmup or not np.isfinite(vector).all():
            return None
        if not self._is_fake:
            coin = derive(self.seed, "coin", self.step) % 2
            (self._second if coin else self._first).add(vector)
            return None
        self._fake.add(vector)
        if not self._first.count or not self._second.count:
            return None
        terms = comparison(self._fake, self._first, self._second, by_count=self.by_count)
        for name, value in terms.items():
            self.curves[name].append(value)
        return guard_score(**terms)

    def suspicious(self, score: float) -> bool:
        last = self.curves["score"][-self.window :]
        return len(last) == self.window and sum(last) / self.window < self.threshold

    def on_labels(self, at: Step, labels: Tensor) -> Tensor:
        if at.client != self.client:
            return labels
        self._asked = at
        offset = self.offset(at)
        if offset == 0:
            return labels
        self.fakes[at] = offset
        return (labels + offset) % self.classes

    def on_gradient_received(self, at: Step, gradient: Tensor, labels: Tensor) -> Tensor | None:
        if at.client != self.client:
            return gradient
        if self._asked != at:
            raise DetectorError(
                "SplitGuard sends wrong labels, so the client must be the one who computes the loss: that "
                "is U-SFL (federation.mode=usfl)."
            )
        self._judge(at, gradient, labels)
        return None if at in self.fakes else gradient

    def replay(
        self,
        recording: Recording,
        *,
        rounds: Sequence[int] | None = None,
        fakes: Mapping[Step, int] | None = None,
    ) -> Self:
        """Look at a recording that was made while SplitGuard was at work, with the ``fakes`` of that one.

        An ordinary recording has no fake batches, and without them there is no score.
        """
        if fakes is None:
            raise DetectorError(
                "SplitGuard cannot judge a recording afterwards, because it must have sent batches with "
                "wrong labels while the training ran; give it to the training as a client observer."
            )
        self.fakes = dict(fakes)
        return super().replay(recording, rounds=rounds)

    def _judge(self, at: Step, gradients: Gradients, labels: Labels) -> None:
        """Update with the true labels of a batch, from the ones that were sent."""
        self.update(gradients, (labels - self.fakes.get(at, 0)) % self.classes, fake=at in self.fakes)

    def state_dict(self) -> dict[str, Any]:
        return super().state_dict() | {
            "fakes": [[*astuple(at), offset] for at, offset in self.fakes.items()],
            "gathered": [group.pack() for group in (self._fake, self._first, self._second)],
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        super().load_state_dict(state)
        self.fakes = {Step(*step): offset for *step, offset in state["fakes"]}
        self._fake, self._first, self._second = map(Gathered.unpack, state["gathered"])


def by_class(rows: Tensor, labels: Tensor, *, groups: int) -> Vector:
    """A batch (n, d) as one vector: the sums of its gradients over each class, one after another.

    That is the gradient with respect to a shift of all activations of a class. The sum over the whole batch
    says little: a server half that begins with a batch norm does not feel a shift of all samples, so that
    this sum is about zero whatever the labels. If there are more classes than ``groups``, some share one.
    """
    members = torch.zeros(groups, len(rows), device=rows.device)
    members[labels % groups, torch.arange(len(rows), device=rows.device)] = 1.0
    vector: Vector = (members @ rows).flatten().cpu().numpy()
    return vector


def comparison(
    fake: Gathered, first: Gathered, second: Gathered, *, by_count: bool = False
) -> dict[str, float]:
    """θ(F̄, R̄), dF, θ(R̄1, R̄2) and dR."""
    weights = (first.count, second.count) if by_count else (1, 1)
    regular = weights[0] * first.mean + weights[1] * second.mean  # R̄ but for its length
    return {
        "fake_angle": angle(fake.mean, regular),
        "fake_distance": abs(fake.mean_norm - (first.mean_norm + second.mean_norm) / 2),
        "regular_angle": angle(first.mean, second.mean),
        "regular_distance": abs(first.mean_norm - second.mean_norm),
    }


def angle(first: npt.NDArray[np.float64], second: npt.NDArray[np.float64]) -> float:
    """The angle between two vectors in radians, 0 if one of them is zero.

    >>> round(angle(np.array([1.0, 0.0]), np.array([0.0, 2.0])) / math.pi, 6)
    0.5
    """
    norms = float(np.linalg.norm(first)), float(np.linalg.norm(second))
    if min(norms) == 0.0:
        return 0.0
    return math.acos(min(1.0, max(-1.0, float((first / norms[0]) @ (second / norms[1])))))


def guard_score(
    fake_angle: float, fake_distance: float, regular_angle: float, regular_distance: float
) -> float:
    """sigmoid(5 x)² with x = (fake angle · distance − regular angle · distance) / sum of both distances.

    >>> guard_score(0.0, 1.0, 0.0, 1.0)
    0.25
    """
    distances = fake_distance + regular_distance
    if distances == 0.0:
        return 0.25
    x = (fake_angle * fake_distance - regular_angle * regular_distance) / distances
    return (1.0 / (1.0 + math.exp(-5.0 * x))) ** 2
