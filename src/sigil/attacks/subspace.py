"""Adaptive subspace removal: find the mark's directions in recorded gradients, then train them away.

The paper's strongest attack (section 5.4). The mark's gradients dominate early in training, the task's late;
both lie in few dimensions. So what the early gradients have and the late ones have not is an estimate of the
span of the secret matrix M.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from sigil import files
from sigil.attacks.halves import (
    ModelOrHalves,
    OpenedAtCut,
    check_at_least,
    check_choice,
    check_not_negative,
    open_at_cut,
    same_kind,
)
from sigil.attacks.training import BATCH_SIZE, Effect, Tuning, finetune_at_cut
from sigil.data import Dataset
from sigil.errors import AttackError
from sigil.federation.recording import Recording
from sigil.keys.key import Key
from sigil.seeds import generator

Unit = Literal["sample", "batch", "window"]
Rows = Callable[[], Iterable[npt.NDArray[np.float32]]]
"""Rows of more numbers than fit into memory, batch by batch, to go through again and again."""

SUBSPACE = Tuning(1e-4, epochs=100, batch_size=BATCH_SIZE)

# More directions are followed than are wanted: the extra ones take the error of the random start.
OVERSAMPLING = 16
# Each pass multiplies the ratio of two neighbouring variances' errors by that ratio: four are plenty for
# gradients, whose variances fall fast.
PASSES = 4


@dataclass(frozen=True)
class Subspace:
    """An estimate of the mark's subspace, and how it came about.

    ``directions`` (d, k′) is V_wm with orthonormal columns and ``variances`` (k′,) the mean squares of the
    early gradients' residuals along them; ``main`` (d, m) is V_main. ``main_share`` is the share of the early
    gradients' energy inside V_main, which the attack gives up, ``residual_share`` the share of the rest that
    V_wm holds. ``early_rows`` and ``late_rows`` count the gradients.
    """

    directions: Tensor
    variances: Tensor
    main: Tensor
    main_share: float
    residual_share: float
    early_rows: int
    late_rows: int

    def weights(self, *, normalise: bool = True) -> Tensor:
        """The w_j of the penalty: the variances, normalised to the sum 1 unless told otherwise."""
        total = self.variances.sum()
        return self.variances / total if normalise and total > 0 else self.variances


def subspace(
    model: ModelOrHalves,
    recording: Recording,
    data: Dataset,
    *,
    early_rounds: Sequence[int],
    late_rounds: Sequence[int] = (),
    early_steps: int | None = None,
    unit: Unit = "sample",
    main_components: int = 64,
    components: int = 64,
    gamma: float = 1.0,
    centre: bool = False,
    normalise: bool = True,
    cut: str | None = None,
    tuning: Tuning = SUBSPACE,
    **changes: Any,
) -> tuple[ModelOrHalves, Subspace]:
    """Estimate the mark's subspace from a recording and fine-tune a copy of the model out of it.

    Returns the attacked model and the estimate (see :func:`estimate`, which takes the arguments from
    ``early_rounds`` to ``components``, and ``centre``). The fine-tuning on ``data.train`` lowers

        cross-entropy + γ · mean over the batch of Σ_j w_j (A·v_j)²

    with A the flattened activation at the cut and v_j, w_j the estimated directions and their variances.

    Components, γ, epochs and rate are the paper's; early rounds are its R_wm, 1 to 10, 5, 2 or 1 of 80, late
    ones 70 to 80. What it leaves open:

    - ``normalise``: variances of gradients sum to about 1e-5, and the penalty would do nothing; normalised to
      sum to one they give the attack its force.
    - ``optimizer``: Adam, because at this rate SGD hardly moves the weights, while the paper's attack costs
      four points of accuracy even where it finds nothing; ``sgd`` is that of the training, for larger rates.
    - ``cut``: none is where the halves meet, or for a whole model the paper's cut. The recording must be of
      that place.
    """
    tuning = tuning.changed(**changes)
    check_not_negative("weight gamma", gamma)
    attacked = open_at_cut(model, data, cut)
    check_recording(recording, attacked)
    estimated = estimate(
        recording,
        early_rounds=early_rounds,
        late_rounds=late_rounds,
        early_steps=early_steps,
        unit=unit,
        main_components=main_components,
        components=components,
        centre=centre,
        seed=tuning.seed,
    )
    weights = estimated.weights(normalise=normalise)
    # One product gives all weighted projections: Σ_j w_j (A·v_j)² = ‖A V diag(√w)‖².
    weighted = (estimated.directions * weights.sqrt()).to(tuning.chosen_precision.device)

    def penalty(activation: Tensor) -> Tensor:
        return gamma * (activation.float().flatten(1) @ weighted).square().sum(1).mean()

    effect = Effect(f"subspace {gamma} {files.digest([weighted])}", penalty)
    finetune_at_cut(attacked, data, tuning, effect)
    return same_kind(attacked.whole, model), estimated


def estimate(
    recording: Recording,
    *,
    early_rounds: Sequence[int],
    late_rounds: Sequence[int] = (),
    early_steps: int | None = None,
    unit: Unit = "sample",
    main_components: int = 64,
    components: int = 64,
    centre: bool = False,
    seed: int = 0,
) -> Subspace:
    """Estimate the span of the secret matrix from the gradients that a client recorded; needs no model.

    1. V_main: the first ``main_components`` principal components of the gradients of ``late_rounds``. The
       paper gives no number; 64 is as many as it takes for the mark. 0 leaves the step out, and then late
       rounds are not looked at.
    2. The gradients of ``early_rounds`` lose what lies in V_main.
    3. V_wm: the first ``components`` principal components of the rest (the paper's k′ = 64).

    ``early_steps`` limits the early rounds to the first recorded steps of each client: a window shorter than
    a round, for a training that is shorter than the paper's.

    ``unit`` is what a gradient is: one of each ``"sample"``, or the mean over each ``"batch"``, or over the
    whole ``"window"`` of rounds and steps. Samples disagree about the task and agree about the mark, so that
    means over many are mostly mark. With ``unit="window", main_components=0`` the estimate is one direction,
    that of the mean: the averaging attack, which the paper does not try, and which clipping does not hinder.

    ``centre`` subtracts the mean gradient first, as textbook PCA does. The default does not: the mark pushes
    all samples the same way, so that the mean is where much of it is, and not centred the attack is stronger.

    All clients in the recording count, and all steps of rounds that were recorded whole. Gradients are read
    batch by batch, several times over; memory does not grow with the recording.
    """
    check_at_least("main_components", main_components, 0)
    check_at_least("components", components, 1)
    check_choice("unit", unit, ("sample", "batch", "window"))
    if early_steps is not None:
        check_at_least("early_steps", early_steps, 1)
    early = recorded_rows(recording, early_rounds, "early", unit, early_steps)
    late = recorded_rows(recording, late_rounds, "late", unit) if main_components else list
    dimension = recording.gradients.shape[1]
    if main_components >= dimension:
        raise AttackError(
            f"{main_components} main components were asked for, but the gradients have only {dimension} "
            "dimensions, and some must be left for the mark; ask for fewer."
        )
    task = principal_components(late, dimension=dimension, count=main_components, centre=centre, seed=seed)
    mark = principal_components(
        early, dimension=dimension, count=components, outside=task.directions, centre=centre, seed=seed
    )
    energy = sum(float(torch.from_numpy(batch.astype("f8")).square().sum()) for batch in early()) / mark.rows
    return Subspace(
        directions=mark.directions,
        variances=mark.variances,
        main=task.directions,
        main_share=1 - mark.total / energy if energy > 0 else 0.0,
        residual_share=float(mark.variances.sum()) / mark.total if mark.total > 0 else 0.0,
        early_rows=mark.rows,
        late_rows=task.rows,
    )


def overlap(directions: Tensor, key: Key) -> float:
    """The share of the span of a key's matrix M that lies in the span of ``directions`` (d, k′), 0 to 1.

    With Q_V and Q_M orthonormal bases of both, ‖Q_Vᵀ Q_M‖² / k. By chance it is k′/d. It tells a weak attack
    from a strong mark; the attacker, who has no key, cannot know it.
    """
    if directions.ndim != 2:
        raise AttackError(f"Directions are columns of a matrix, but the shape is {tuple(directions.shape)}.")
    if directions.shape[0] != key.dimension:
        raise AttackError(
            f"The directions have {directions.shape[0]} dimensions, but the key is for {key.dimension}; "
            "give the key of the same cut."
        )
    given, secret = (torch.linalg.qr(matrix.float())[0] for matrix in (directions, key.matrix))
    return float((given.mT @ secret).square().sum()) / secret.shape[1]


def check_recording(recording: Recording, attacked: OpenedAtCut) -> None:
    """Raise unless the recording is of gradients at the place where the model was opened."""
    if recording.shape != attacked.shape:
        raise AttackError(
            f"The recording holds gradients of {recording.shape}, but the model cut at {attacked.cut!r} has "
            f"activations of {attacked.shape}; give the recording of this model's own training."
        )


def recorded_rows(
    recording: Recording, rounds: Sequence[int], phase: str, unit: Unit, steps: int | None = None
) -> Rows:
    """The gradients of some rounds, or of each client's first steps in them."""
    chosen = list(rounds)
    missing = sorted(set(chosen) - set(recording.rounds))
    if not chosen or missing:
        wrong = f"round {missing[0]} as {phase}" if missing else f"no {phase} round"
        have = recording.rounds
        raise AttackError(
            f"The attack was given {wrong}, but the recording holds {_ranges(have)}; "
            "choose rounds that were recorded."
        )

    def batches() -> Iterator[npt.NDArray[np.float32]]:
        seen: Counter[int] = Counter()
        for step in recording.steps(rounds=chosen, whole=True):
            seen[step.at.client] += 1
            if steps is None or seen[step.at.client] <= steps:
                yield step.gradients

    if unit == "sample":
        return batches
    if unit == "batch":
        return lambda: (batch.mean(0, keepdims=True) for batch in batches())
    mean = mean_gradient(recording, chosen) if steps is None else mean_row(batches, _width(recording))[1]
    return lambda: [mean[None].numpy()]


def mean_gradient(recording: Recording, rounds: Sequence[int]) -> Tensor:
    """The mean gradient (d,) of some rounds: of all that the client was sent, where not all were kept."""
    known = recording.mean(rounds) if recording.partial else None
    if known is not None:
        return torch.from_numpy(known).float()
    return mean_row(recorded_rows(recording, rounds, "averaged", "sample"), _width(recording))[1]


def _width(recording: Recording) -> int:
    return int(recording.gradients.shape[1])


def _ranges(rounds: Sequence[int]) -> str:
    """Round numbers in order, in short: "rounds 1-3, 11-12"."""
    parts: list[list[int]] = []
    for number in rounds:
        if parts and parts[-1][1] == number - 1:
            parts[-1][1] = number
        else:
            parts.append([number, number])
    return "rounds " + ", ".join(str(a) if a == b else f"{a}-{b}" for a, b in parts)


@dataclass(frozen=True)
class Components:
    """The first principal components of some rows.

    ``directions`` (d, count) are orthonormal columns, the largest first; ``variances`` (count,) the mean
    squares of the rows along them; ``total`` the mean square norm of the rows, so that
    ``variances.sum() / total`` is the share that the components explain; ``rows`` how many rows there were.
    """

    directions: Tensor
    variances: Tensor
    total: float
    rows: int


def principal_components(
    rows: Rows,
    *,
    dimension: int,
    count: int,
    outside: Tensor | None = None,
    centre: bool = False,
    seed: int = 0,
) -> Components:
    """The ``count`` first principal components of the rows (n, d) that ``rows()`` gives batch by batch.

    ``rows()`` is called once per pass and nothing but one batch and a few d×count matrices is held. With Q a
    random orthonormal basis, each pass sets Q to an orthonormal basis of Xᵀ X Q; the last solves the small
    problem (X Q)ᵀ(X Q) exactly.

    ``outside`` (d, m), orthonormal columns, are directions to leave out: the components are those of the
    rows' residuals X (I − V Vᵀ). With ``centre`` the mean row is subtracted first. There are never more
    components than rows or free dimensions.
    """
    known = torch.empty(dimension, 0) if outside is None else outside
    number, mean = mean_row(rows, dimension) if centre else (sum(map(len, rows())), None)
    count = min(count, number, dimension - known.shape[1])
    followed = min(count + OVERSAMPLING, number, dimension - known.shape[1])
    start = torch.randn(dimension, followed, generator=generator(seed, "attack", "components"))
    basis = _orthonormal(start, known)
    for _ in range(PASSES):
        image = torch.zeros_like(basis)
        for batch in _batches(rows, mean):
            image.addmm_(batch.mT, batch @ basis)
        basis = _orthonormal(image, known)
    gram = torch.zeros(followed, followed, dtype=torch.float64)
    total = 0.0
    for batch in _batches(rows, mean):
        along = (batch @ basis).double()
        gram += along.mT @ along
        total += float(batch.double().square().sum() - (batch @ known).double().square().sum())
    squares, turn = torch.linalg.eigh(gram)
    largest = torch.arange(followed - 1, followed - 1 - count, -1)
    return Components(
        directions=basis @ turn[:, largest].float(),
        variances=(squares[largest] / max(1, number)).clamp(min=0).float(),
        total=total / max(1, number),
        rows=number,
    )


def mean_row(rows: Rows, dimension: int) -> tuple[int, Tensor]:
    """The number of rows, and their mean (d,)."""
    number, total = 0, torch.zeros(dimension, dtype=torch.float64)
    for batch in _batches(rows, None):
        number += len(batch)
        total += batch.sum(0, dtype=torch.float64)
    return number, (total / max(1, number)).float()


def _batches(rows: Rows, mean: Tensor | None) -> Iterable[Tensor]:
    for batch in rows():
        # Copied, because it may be a view of a file.
        values = torch.from_numpy(np.array(batch, dtype=np.float32))
        yield values if mean is None else values - mean


def _orthonormal(columns: Tensor, known: Tensor) -> Tensor:
    """An orthonormal basis, orthogonal to ``known``, of what the columns span besides.

    The columns are put behind the known ones, so that even where they have no rank left of their own the
    basis is filled up with directions outside.
    """
    residual = columns - known @ (known.mT @ columns)
    # Only directions matter, and gradients are so small that their squares would leave float32's range.
    residual = residual / residual.norm(dim=0).clamp(min=torch.finfo(torch.float32).tiny)
    return torch.linalg.qr(torch.cat([known, residual], 1))[0][:, known.shape[1] :]
