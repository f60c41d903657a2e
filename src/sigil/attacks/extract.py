"""Extraction: teach a fresh model to answer like the stolen one."""

from __future__ import annotations

from typing import Any, Literal

from torch import Tensor

from sigil import models
from sigil.attacks.halves import (
    Halves,
    ModelOrHalves,
    check_choice,
    cut_of,
    same_kind,
    whole_copy,
)
from sigil.attacks.training import BATCH_SIZE, Task, Tuning, digest, train
from sigil.data import Dataset
from sigil.errors import AttackError
from sigil.models import Model

Part = Literal["whole", "server"]
EXTRACT = Tuning(
    0.05,
    epochs=50,
    batch_size=BATCH_SIZE,
    optimizer="sgd",
    decay=True,
    labels=0.0,
    logits=1.0,
    temperature=4.0,
)


def extract(
    teacher: Model | Halves,
    student: ModelOrHalves,
    data: Dataset,
    *,
    part: Part = "whole",
    tuning: Tuning = EXTRACT,
    **changes: Any,
) -> ModelOrHalves:
    """Distil the teacher into a copy of ``student``, which it returns; both that are given stay as they are.

    The student is a fresh model: ``sigil.models.build(…, seed=1)``, of the same architecture or another. It
    sees the images of ``data.train`` and the teacher's logits for them, no label unless the ``tuning`` gives
    ``labels`` a weight, and lowers

        T² · KL( softmax(teacher / T) ‖ softmax(student / T) )

    with T the ``temperature``. The paper says that extraction removes the mark and gives no numbers. Defaults
    are the usual ones for distillation: T = 4, and as the student starts from nothing a high rate that falls
    to 0 as a half cosine over 50 epochs (SGD, momentum 0.9, weight decay 5e-4).

    In U-SFL a thief has more than the answers: its own client half. With ``part="server"`` only the rows
    behind the cut are trained, so that ``student`` is the pair of that client half and a fresh server half,
    which becomes a substitute for the one that the server kept. The mark, which lies in front, stays.
    """
    check_choice("part", part, ("whole", "server"))
    tuning = tuning.changed(**changes)
    if tuning.features:
        raise AttackError("A fresh student is taught by answers alone; leave the features out.")
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
    only = models.split(pupil, cut_of(student), copy=False)[1] if part == "server" else None
    identity = f"extract {part} {digest(source)}"
    halves = models.split(source, models.default_cut(source.spec.name), copy=False)
    task = Task(halves if tuning.logits else (), tuning)

    def loss(images: Tensor, labels: Tensor) -> Tensor:
        with task.precision.autocast():
            given = pupil(images)
        return task.loss(images, labels, given)

    train(pupil, data, loss, tuning, identity=identity, only=only)
    return same_kind(pupil, student)
