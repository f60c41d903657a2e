"""What is recorded in training: the gradients that a client received, and sums of what the server saw.

Per-sample gradients at the cut are appended to a flat float32 file, their labels to another; an index says
which rows belong to which step. All are read memory-mapped, so a recording may be larger than memory, and
its size has a limit, past which it stops and says so.

A client that averages its gradients keeps no more than a sum. So the sums of all of them are recorded too,
per client and round, whatever share of the steps is kept: an attack that averages has what a thief has.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from sigil import files
from sigil.alignment import save_sums
from sigil.errors import DataError
from sigil.federation.observers import ClientObserver, ServerObserver, Step

GRADIENTS, LABELS, INDEX, SUMS = "gradients.f32", "labels.i64", "index.json", "sums.f64"


class GradientRecorder(ClientObserver):
    """Record the gradients of chosen clients, rounds and a share of their steps, up to a size.

    Who estimates the mark from its first gradients needs all of them: `whole_rounds` keeps every step of the
    first rounds.
    """

    def __init__(
        self,
        folder: Path,
        shape: Sequence[int],
        *,
        clients: Sequence[int],
        rounds: Sequence[int] = (),
        share: float = 1.0,
        whole_rounds: int = 0,
        limit_mb: int = 512,
    ) -> None:
        self.folder = folder
        self.shape = tuple(shape)
        self.clients, self.rounds = set(clients), set(rounds)
        self.share, self.whole_rounds = share, whole_rounds
        self.limit = limit_mb * 2**20
        self.steps: list[list[int]] = []
        self.rows = 0
        self.full = False
        # Round, client, number of gradients; and their sums in the same order.
        self.summed: list[list[int]] = []
        self._sums: list[npt.NDArray[np.float64]] = []
        self._files: tuple[BinaryIO, BinaryIO] | None = None

    def on_gradient_received(self, at: Step, gradient: Tensor, labels: Tensor) -> Tensor:
        if at.client not in self.clients or (self.rounds and at.round not in self.rounds):
            return gradient
        self._sum(at, gradient)
        if at.round <= self.whole_rounds or _of_the_share(at.step, self.share):
            size = self.rows * math.prod(self.shape) * 4 + gradient.numel() * 4
            self.full = self.full or size > self.limit
            if not self.full:
                self._append(at, gradient, labels)
        return gradient

    def on_round_end(self, round_number: int) -> None:
        if self._files is not None:
            for file in self._files:
                file.flush()
        self.folder.mkdir(parents=True, exist_ok=True)
        if self._sums:
            files.write(self.folder / SUMS, np.stack(self._sums).tobytes(), replace=True)
        index = self.state_dict() | {
            "shape": self.shape,
            "share": self.share,
            "whole_rounds": self.whole_rounds,
        }
        files.write(self.folder / INDEX, json.dumps(index), replace=True)

    def state_dict(self) -> dict[str, Any]:
        summed = [list(row) for row in self.summed]  # a round adds to its own row
        return {"rows": self.rows, "steps": self.steps, "full": self.full, "summed": summed}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.rows, self.steps, self.full = state["rows"], state["steps"], state["full"]
        self.summed = [list(row) for row in state["summed"]]  # a round that was interrupted is done again
        self._sums = list(_sums(self.folder, self.summed, math.prod(self.shape)).copy())

    def close(self) -> None:
        if self._files is not None:
            for file in self._files:
                file.close()
            self._files = None

    def _sum(self, at: Step, gradient: Tensor) -> None:
        total = gradient.detach().cpu().flatten(1).sum(0, dtype=torch.float64).numpy()
        if not self.summed or self.summed[-1][:2] != [at.round, at.client]:
            self.summed.append([at.round, at.client, 0])
            self._sums.append(np.zeros_like(total))
        self.summed[-1][2] += len(gradient)
        self._sums[-1] += total

    def _append(self, at: Step, gradient: Tensor, labels: Tensor) -> None:
        if self._files is None:
            self._files = self._open()
        gradients_file, labels_file = self._files
        gradients_file.write(gradient.detach().float().cpu().flatten(1).contiguous().numpy().tobytes())
        labels_file.write(labels.cpu().numpy().astype(np.int64).tobytes())
        self.steps.append([at.round, at.client, at.step, self.rows, len(gradient)])
        self.rows += len(gradient)

    def _open(self) -> tuple[BinaryIO, BinaryIO]:
        """Open both files and cut off what an interrupted round left behind."""
        self.folder.mkdir(parents=True, exist_ok=True)
        opened = []
        for name, row in ((GRADIENTS, math.prod(self.shape) * 4), (LABELS, 8)):
            file = (self.folder / name).open("ab")
            file.truncate(self.rows * row)
            opened.append(file)
        return opened[0], opened[1]


def _of_the_share(step: int, share: float) -> bool:
    """Whether a step of a round is one of the share that is recorded."""
    return math.floor(step * share) > math.floor((step - 1) * share)


def _sums(folder: Path, summed: Sequence[Sequence[int]], width: int) -> npt.NDArray[np.float64]:
    """The sums in a folder, one row for each of ``summed``; what an interrupted round left is passed over."""
    if not summed:
        return np.zeros((0, width))
    try:
        return np.memmap(folder / SUMS, np.float64, "r", shape=(len(summed), width))
    except (OSError, ValueError):
        raise DataError(
            f"The sums of gradients in {folder} are shorter than its index says; record it again."
        ) from None


@dataclass(frozen=True)
class RecordedStep:
    """One recorded batch: its step, the gradients (n, d) and the labels (n,)."""

    at: Step
    gradients: npt.NDArray[np.float32]
    labels: npt.NDArray[np.int64]


class Recording:
    """A recording opened for reading; nothing is loaded until it is asked for."""

    def __init__(self, folder: Path) -> None:
        try:
            index = json.loads((folder / INDEX).read_text())
            self.shape = tuple(int(size) for size in index["shape"])
            self.full = bool(index["full"])
            self._steps = [tuple(map(int, row)) for row in index["steps"]]
            rows, width = int(index["rows"]), math.prod(self.shape)
            summed = [tuple(map(int, row)) for row in index["summed"]]
            self.share, self.whole_rounds = float(index["share"]), int(index["whole_rounds"])
            self.partial = self.full or self.share < 1
        except (OSError, ValueError, KeyError, TypeError):
            raise DataError(
                f"There is no gradient recording in {folder}; train with record.clients=[0] to make one."
            ) from None
        if rows == 0:
            raise DataError(f"The recording in {folder} is empty: no step matched record.rounds.")
        try:
            self.gradients = np.memmap(folder / GRADIENTS, np.float32, "r", shape=(rows, width))
            self.labels = np.memmap(folder / LABELS, np.int64, "r", shape=(rows,))
        except (OSError, ValueError):
            raise DataError(
                f"The recording in {folder} is shorter than its index says; record it again."
            ) from None

        self._summed, self._sums = summed, _sums(folder, summed, width)
        self._even = [row for row in self._steps if _of_the_share(row[2], self.share)]

    def __len__(self) -> int:
        return len(self._even)

    def mean(self, rounds: Sequence[int]) -> npt.NDArray[np.float64] | None:
        """The mean of all gradients of some rounds, kept or not; None if no sums were recorded."""
        chosen = [position for position, row in enumerate(self._summed) if row[0] in set(rounds)]
        count = sum(self._summed[position][2] for position in chosen)
        return np.asarray(self._sums[chosen].sum(0) / count) if count else None

    @property
    def rounds(self) -> list[int]:
        """The rounds of which there are steps, in order."""
        return sorted({row[0] for row in self._steps})

    @property
    def whole(self) -> list[int]:
        """The rounds recorded without a gap, as the client saw them; the last ends where the limit was."""
        return [number for number in self.rounds if self.share >= 1 or number <= self.whole_rounds]

    def steps(
        self, *, rounds: Sequence[int] | None = None, client: int | None = None, whole: bool = False
    ) -> Iterator[RecordedStep]:
        """The recorded steps in order, of some rounds or one client only.

        Of rounds that were recorded whole there are as many as of all others, so that no time of a training
        counts more than another; with `whole` there are all.
        """
        chosen = None if rounds is None else set(rounds)
        for number, index, step, start, count in self._steps if whole else self._even:
            if (chosen is None or number in chosen) and (client is None or client == index):
                rows = slice(start, start + count)
                yield RecordedStep(Step(number, index, step), self.gradients[rows], self.labels[rows])


class ReferenceRecorder(ServerObserver):
    """Sums of pooled activations, of their products and of squares, for each channel at the cut.

    They are enough for the correlations between channels, by which a permuted and rescaled copy of the model
    can be put back in order (:mod:`sigil.alignment`), and hold nothing of a single sample.

    With a the activation of one sample averaged over its positions, (C,): ``count``, ``pooled`` = Σ a,
    ``products`` = Σ a aᵀ, and ``squares`` = Σ of the mean square over positions. The sums start anew each
    round, so that after training they describe the model that left.
    """

    mergeable = True

    def __init__(self, shape: tuple[int, ...]) -> None:
        self.shape = shape
        self.on_round_start(0)

    def on_round_start(self, round_number: int) -> None:
        channels = self.shape[0]
        self.sums: dict[str, Tensor] = {
            "count": torch.zeros((), dtype=torch.float64),
            "pooled": torch.zeros(channels, dtype=torch.float64),
            "products": torch.zeros(channels, channels, dtype=torch.float64),
            "squares": torch.zeros(channels, dtype=torch.float64),
        }

    @torch.no_grad()
    def on_gradient_sent(self, at: Step, *, activation: Tensor, main: Tensor, final: Tensor) -> None:
        positions = tuple(range(2, activation.ndim))
        values = activation.float()
        pooled = values.mean(positions) if positions else values
        squares = values.square().sum(tuple(i for i in range(activation.ndim) if i != 1))
        self.merge(
            {
                "count": torch.tensor(float(len(activation)), dtype=torch.float64),
                "pooled": pooled.sum(0),
                "products": pooled.mT @ pooled,
                "squares": squares * (len(activation) * activation.shape[1] / activation.numel()),
            }
        )

    def collect(self) -> dict[str, Tensor]:
        return self.sums

    def merge(self, sums: dict[str, Tensor]) -> None:
        for name, value in sums.items():
            self.sums[name] += value.to("cpu", torch.float64)

    def save(self, path: Path) -> None:
        """Write the sums in float64, a few hundred kilobytes."""
        save_sums(path, self.shape, self.sums)
