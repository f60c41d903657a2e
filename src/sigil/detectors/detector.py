"""What all detectors are: a client that looks at each gradient it receives and keeps a score.

A detector works in three places with the same code: alone (:meth:`Detector.update`), live in a training (it
is a :class:`~sigil.federation.ClientObserver`), and over a recording (:meth:`Detector.replay`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar, Self, TypeAlias

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from sigil.errors import DetectorError, ShapeError
from sigil.federation.observers import ClientObserver, Step
from sigil.federation.recording import Recording

Gradients: TypeAlias = Tensor | npt.NDArray[np.floating[Any]]
Labels: TypeAlias = Tensor | npt.NDArray[np.integer[Any]]


class Detector(ClientObserver):
    """A client's watch over the gradients at the cut; subclasses have :meth:`look` and :meth:`suspicious`.

    ``client`` is the one on whose side the detector stands: in a federation it sees only that client's
    gradients, as in reality. What it found is in

    - ``score``: the last score, None before there is one,
    - ``alarm``: whether it ever raised an alarm, and ``first_alarm``: the number of the update (from 1) at
      which it first did, or None,
    - ``alarm_share``: the share of its scores that were suspicious,
    - ``curves``: lists of numbers for plots; ``scored_step`` and ``score`` are in all of them.
    """

    name: ClassVar[str]

    def __init__(self, *, threshold: float, client: int = 0) -> None:
        self.threshold = threshold
        self.client = client
        self.step = 0
        self.alarms = 0
        self.first_alarm: int | None = None
        self.curves: dict[str, list[float]] = {"scored_step": [], "score": []}

    @property
    def score(self) -> float | None:
        return self.curves["score"][-1] if self.curves["score"] else None

    @property
    def alarm(self) -> bool:
        return self.first_alarm is not None

    @property
    def alarm_share(self) -> float:
        return self.alarms / max(1, len(self.curves["score"]))

    def update(self, gradients: Gradients, labels: Labels) -> float | None:
        """Look at the gradients (n, d) or (n, C, H, W) and labels (n,) of a batch: the score so far."""
        rows, classes = _as_rows(gradients, labels)
        self.step += 1
        score = self.look(rows, classes)
        if score is not None:
            self.curves["scored_step"].append(self.step)
            self.curves["score"].append(score)
            if self.suspicious(score):
                self.alarms += 1
                self.first_alarm = self.first_alarm or self.step
        return self.score

    def look(self, rows: Tensor, labels: Tensor) -> float | None:
        """Take in one batch, float32 (n, d) and int64 (n,): a new score, or None if this batch gives none."""
        raise NotImplementedError

    def suspicious(self, score: float) -> bool:
        """Whether this new score, already the last one in ``curves``, is an alarm."""
        raise NotImplementedError

    def on_gradient_received(self, at: Step, gradient: Tensor, labels: Tensor) -> Tensor | None:
        if at.client == self.client:
            self._judge(at, gradient, labels)
        return gradient

    def replay(self, recording: Recording, *, rounds: Sequence[int] | None = None) -> Self:
        """Look at the recorded batches of this detector's client, in order.

        Of rounds that were recorded whole it sees the same share as of all others; of `rounds`, if these are
        given, every batch that there is.
        """
        seen = False
        for step in recording.steps(client=self.client, rounds=rounds, whole=rounds is not None):
            self._judge(step.at, step.gradients, step.labels)
            seen = True
        if not seen:
            raise DetectorError(
                f"The recording holds no gradient of client {self.client}; record that client, or choose one "
                "that was recorded."
            )
        return self

    def _judge(self, at: Step, gradients: Gradients, labels: Labels) -> None:
        self.update(gradients, labels)

    def state_dict(self) -> dict[str, Any]:
        return {
            "step": self.step,
            "alarms": self.alarms,
            "first_alarm": self.first_alarm,
            "curves": {name: list(values) for name, values in self.curves.items()},
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.step, self.alarms, self.first_alarm = (state[it] for it in ("step", "alarms", "first_alarm"))
        self.curves = {name: list(values) for name, values in state["curves"].items()}


def _as_rows(gradients: Gradients, labels: Labels) -> tuple[Tensor, Tensor]:
    """(n, …) and (n,), tensors or arrays, as float32 (n, d) and int64 (n,) tensors without a graph."""
    values, classes = as_tensor(gradients), as_tensor(labels)
    if values.ndim < 2 or classes.ndim != 1 or len(values) != len(classes) or values.numel() == 0:
        raise ShapeError(
            f"Gradients of the shape {tuple(values.shape)} and labels of {tuple(classes.shape)} were given, "
            "but a detector needs one gradient and one label per sample: (n, …) and (n,)."
        )
    return values.flatten(1).float(), classes.to(values.device, torch.int64)


def as_tensor(given: Gradients | Labels) -> Tensor:
    """A tensor without a graph; of an array, which may be a read-only piece of a file, a copy."""
    return given.detach() if isinstance(given, Tensor) else torch.tensor(np.asarray(given))
