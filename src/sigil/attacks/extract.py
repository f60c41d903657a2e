"""Extraction: teach a fresh model to answer like the stolen one."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import torch
from torch import Tensor
from torch.nn import functional as F

from sigil.attacks.checkpoint import digest
from sigil.attacks.checks import check_choice, check_positive
from sigil.attacks.halves import Halves, ModelOrHalves, at_cut, cut_of, same_kind, whole_copy
from sigil.attacks.training import BATCH_SIZE, Plan, Progress, descend
from sigil.data import Dataset
from sigil.errors import AttackError
from sigil.federation.precision import Precision, choose
from sigil.models import Model

Part = Literal["whole", "server"]


def extract(
    teacher: Model | Halves,
    student: ModelOrHalves,
    data: Dataset,
    *,
    epochs: int = 50,
    lr: float = 0.05,
    temperature: float = 4.0,
    part: Part = "whole",
    batch_size: int = BATCH_SIZE,
    seed: int = 0,
    precision: Precision | None = None,
    progress: Progress | None = None,
    checkpoint: Path | None = None,
) -> ModelOrHalves:
    """Distil the teacher into a copy of ``student``, which it returns; both that are given stay as they are.

    The student is a fresh model: ``sigil.models.build(…, seed=1)``, of the same architecture or another. It
    sees the images of ``data.train`` and the teacher's logits for them, never a label, and lowers

        T² · KL( softmax(teacher / T) ‖ softmax(student / T) )

    with T the ``temperature``. The paper says that extraction removes the mark and gives no numbers. Defaults
    are the usual ones for distillation: T = 4, and as the student starts from nothing a high rate that falls
    to 0 as a half cosine over 50 epochs (SGD, momentum 0.9, weight decay 5e-4).

    In U-SFL a thief has more than the answers: its own client half. With ``part="server"`` only the rows
    behind the cut are trained, so that ``student`` is the pair of that client half and a fresh server half,
    which becomes a substitute for the one that the server kept. The mark, which lies in front, stays.
    """
    check_choice("part", part, ("whole", "server"))
    plan = Plan(lr, epochs=epochs, batch_size=batch_size, decay=True, seed=seed)
    check_positive("temperature", temperature)
    source = whole_copy(teacher)
    pupil = whole_copy(student)
    for what, there, here in (
        ("classes", source.spec.classes, pupil.spec.classes),
        ("image channels", source.spec.channels, pupil.spec.channels),
    ):
        if there != here:
            raise AttackError(
                f"The student has {here} {what}, but the teacher has {there}; build a student with {there}."
            )
    if data.shape[0] != source.spec.channels:
        raise AttackError(
            f"The images of {data.name!r} have {data.shape[0]} channels, but the models take "
            f"{source.spec.channels}; give images of that kind."
        )
    only = at_cut(pupil, cut_of(student))[1] if part == "server" else None
    place = precision or choose()
    source.to(device=place.device, memory_format=place.layout).eval()  # type: ignore[call-overload]

    def loss(images: Tensor, labels: Tensor) -> Tensor:
        with place.autocast():
            with torch.no_grad():
                wanted = source(images)
            given = pupil(images)
        return temperature**2 * F.kl_div(
            F.log_softmax(given.float() / temperature, 1),
            F.log_softmax(wanted.float() / temperature, 1),
            reduction="batchmean",
            log_target=True,
        )

    descend(
        pupil,
        data,
        loss,
        plan,
        precision=place,
        only=only,
        progress=progress,
        checkpoint=checkpoint,
        identity=f"extract {temperature} {part} {digest(source)}",
    )
    return same_kind(pupil, student)
