"""What a model is worth before and after an attack: accuracy, and what verification says of it."""

from __future__ import annotations

from dataclasses import dataclass

from torch import nn

from sigil import models
from sigil.attacks.checks import check_fits
from sigil.attacks.halves import Halves, cut_of, whole_or_half_copy
from sigil.data import Dataset, Inputs
from sigil.data.inputs import LEAST_INPUTS
from sigil.errors import AttackError
from sigil.federation.evaluation import accuracy
from sigil.federation.precision import Precision, choose
from sigil.keys.key import Key
from sigil.models import Model
from sigil.verdict.report import Report
from sigil.verdict.verification import verify


@dataclass(frozen=True)
class Measurement:
    """Accuracy on the test images and the verification of the mark; None where it was not asked for."""

    accuracy: float | None
    report: Report | None


def measure(
    model: Model | Halves,
    *,
    data: Dataset | None = None,
    key: Key | None = None,
    cut: str | None = None,
    probes: int | None = None,
    seed: int | None = None,
    precision: Precision | None = None,
) -> Measurement:
    """Measure a model: accuracy on ``data.test`` if data is given, the mark of ``key`` if a key is.

    Accuracy needs a whole model or both halves and is None for a client half alone. ``cut`` is where the
    mark is: none is where the halves meet, or for a whole model the paper's cut. The model is unchanged.
    """
    copied = whole_or_half_copy(model)
    if data is not None:
        check_fits(copied, data)
    report = None
    if key is not None:
        shape = data.shape if data is not None else copied.input_shape
        if shape is None:
            raise AttackError("The model does not say what images it takes; give the data set as well.")
        client = client_part(copied, cut_of(model, cut))
        report = verify(client, key, _inputs(data), input_shape=shape, probes=probes, seed=seed)
    right = None
    if data is not None and copied.spec.part == "whole":
        place = precision or choose()
        copied.to(device=place.device, memory_format=place.layout)  # type: ignore[call-overload]
        right = accuracy(copied, nn.Identity(), data, precision=place)
    return Measurement(right, report)


def _inputs(data: Dataset | None) -> Inputs | None:
    """The test images to read the mark on, if there are enough of them."""
    if data is None or len(data.test) < LEAST_INPUTS:
        return None
    return Inputs(data.test.images, normalisation=(data.mean, data.std), is_data_set=True)


def client_part(model: Model, cut: str) -> nn.Module:
    """The part of a model that ends at the cut; a client half is that already."""
    return models.split(model, cut)[0] if model.spec.part == "whole" else model
