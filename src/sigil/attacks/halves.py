"""What an attack is given and returns: a whole model, or both halves as a pair.

An attack that is given a pair (client half, server half) returns a pair cut at the same row, and one that
is given a whole model returns a whole model. Pruning and quantization, which look at one layer at a time,
also take a client half alone.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass
from typing import TypeVar, cast

from torch import nn

from sigil import models
from sigil.attacks.checks import check_fits
from sigil.data import Dataset
from sigil.errors import AttackError
from sigil.models import Model
from sigil.models.spec import check_cut

Halves = tuple[Model, Model]
ModelOrHalves = TypeVar("ModelOrHalves", bound=Model | Halves)


def whole_copy(model: Model | Halves) -> Model:
    """A whole model that shares no memory with what was given."""
    _check_model(model)
    if isinstance(model, tuple):
        return models.join(*model)
    if model.spec.part != "whole":
        raise AttackError(
            f"This attack needs a whole model or both halves, but was given only the {model.spec}; "
            "give the other half too."
        )
    return copy.deepcopy(model)


def whole_or_half_copy(model: Model | Halves) -> Model:
    """The same, but a half alone stays a half."""
    _check_model(model)
    if isinstance(model, tuple):
        return whole_copy(model)
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


def at_cut(model: Model, cut: str) -> tuple[nn.Sequential, nn.Sequential]:
    """The rows of a whole model up to the cut and those behind it; they are shared, not copied."""
    rows = dict(model.named_children())
    end = list(rows).index(cut) + 1
    modules = list(rows.values())
    return nn.Sequential(*modules[:end]), nn.Sequential(*modules[end:])


@dataclass(frozen=True)
class OpenedAtCut:
    """A whole model to attack, with its rows up to the cut and behind it.

    ``shape`` is that of one activation at the cut.
    """

    whole: Model
    cut: str
    front: nn.Sequential
    back: nn.Sequential
    shape: tuple[int, ...]


def open_at_cut(model: Model | Halves, data: Dataset, cut: str | None = None) -> OpenedAtCut:
    """A copy of a model that is attacked with these images at the cut (see :func:`cut_of`)."""
    place = cut_of(model, cut)
    whole = whole_copy(model)
    check_fits(whole, data)
    front, back = at_cut(whole, place)
    return OpenedAtCut(whole, place, front, back, models.activation_shape(front, data.shape))


def _check_model(model: object) -> None:
    parts = model if isinstance(model, tuple) and len(model) == 2 else (model,)
    if not all(isinstance(part, Model) for part in parts):
        raise AttackError(
            f"An attack takes a model of sigil.models or a pair of its halves, not a "
            f"{type(model).__name__}; build or load one with sigil.models."
        )
