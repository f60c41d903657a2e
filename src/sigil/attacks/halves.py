"""What an attack is given, checked, and what it returns: a whole model, or both halves as a pair.

An attack that is given a pair (client half, server half) returns a pair cut at the same row, and one that
is given a whole model returns a whole model. Pruning and quantization, which look at one layer at a time,
also take a client half alone.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TypeVar, cast

from torch import nn

from sigil import models
from sigil.data import Dataset
from sigil.errors import AttackError, shown
from sigil.models import Model
from sigil.models.spec import check_cut

Halves = tuple[Model, Model]
ModelOrHalves = TypeVar("ModelOrHalves", bound=Model | Halves)


def whole_copy(model: Model | Halves, *, or_half: bool = False) -> Model:
    """A whole model that shares no memory with what was given, or a half if that may be given alone."""
    _check_model(model)
    if isinstance(model, tuple):
        return models.join(*model)
    if model.spec.part != "whole" and not or_half:
        raise AttackError(
            f"This attack needs a whole model or both halves, but was given only the {model.spec}; "
            "give the other half too."
        )
    return copy.deepcopy(model)


def same_kind(model: Model, given: ModelOrHalves) -> ModelOrHalves:
    """An attacked whole model in the form in which the attack was given its original, without a copy."""
    if isinstance(given, tuple):
        return cast(ModelOrHalves, models.split(model, cut_of(given), copy=False))
    return cast(ModelOrHalves, model)


def cut_of(model: Model | Halves, cut: str | None = None) -> str:
    """The row that an attack at the cut looks at.

    That is ``cut`` if it is given; otherwise where the halves meet, or for a whole model the paper's cut.
    """
    _check_model(model)
    spec = model[0].spec if isinstance(model, tuple) else model.spec
    if cut is None:
        return spec.cut or models.default_cut(spec.name)
    check_cut(spec.name, cut)
    return cut


@dataclass(frozen=True)
class OpenedAtCut:
    """A whole model to attack, with its rows up to the cut and behind it.

    ``shape`` is that of one activation at the cut.
    """

    whole: Model
    cut: str
    front: Model
    back: Model
    shape: tuple[int, ...]

    def filtering(self) -> Iterator[tuple[str, nn.Conv2d | nn.Linear]]:
        """The convolutions and linear layers up to the cut, with their names in the whole model."""
        inside = {id(value) for value in self.front.parameters()}
        for path, layer in self.whole.named_modules():
            if isinstance(layer, nn.Conv2d | nn.Linear) and id(layer._parameters.get("weight")) in inside:
                yield path, layer


def open_at_cut(model: Model | Halves, data: Dataset, cut: str | None = None) -> OpenedAtCut:
    """A copy of a model that is attacked with these images at the cut (see :func:`cut_of`)."""
    cut = cut_of(model, cut)
    whole = whole_copy(model)
    check_fits(whole, data)
    front, back = models.split(whole, cut, copy=False)
    return OpenedAtCut(whole, cut, front, back, models.activation_shape(front, data.shape))


def _check_model(model: object) -> None:
    parts = model if isinstance(model, tuple) and len(model) == 2 else (model,)
    if not all(isinstance(part, Model) for part in parts):
        raise AttackError(
            f"An attack takes a model of sigil.models or a pair of its halves, not a "
            f"{type(model).__name__}; build or load one with sigil.models."
        )


def check_choice(what: str, value: object, choices: Sequence[str]) -> None:
    """Raise unless ``value`` is one of ``choices``."""
    if value not in choices:
        raise AttackError(f"There is no {what} {value!r}; choose {', '.join(choices[:-1])} or {choices[-1]}.")


def check_share(what: str, value: float) -> None:
    """Raise unless ``value`` lies in [0, 1]."""
    if not 0 <= value <= 1:
        raise AttackError(f"The {what} is {shown(value)}, but it must lie between 0 and 1, such as 0.6.")


def check_positive(what: str, value: float) -> None:
    """Raise unless ``value`` is a finite number above 0."""
    if not (math.isfinite(value) and value > 0):
        raise AttackError(f"The {what} is {shown(value)}, but it must be a finite number above 0.")


def check_not_negative(what: str, value: float) -> None:
    """Raise unless ``value`` is a finite number of at least 0."""
    if not (math.isfinite(value) and value >= 0):
        raise AttackError(f"The {what} is {shown(value)}, but it must be a finite number of at least 0.")


def check_at_least(what: str, value: int, least: int) -> None:
    """Raise unless ``value`` is a whole number of at least ``least``."""
    if value < least:
        raise AttackError(f"{what} is {shown(value)}, but it must be a whole number of at least {least}.")


def check_fits(model: Model, data: Dataset) -> None:
    """Raise unless the data set has the classes and the channels of the model."""
    spec = model.spec
    if data.classes != spec.classes or data.shape[0] != spec.channels:
        raise AttackError(
            f"The data set {data.name!r} has {data.classes} classes and images of {data.shape[0]} channels, "
            f"but the model has {spec.classes} classes and takes {spec.channels} channels; "
            "give the data that the model was trained for."
        )
