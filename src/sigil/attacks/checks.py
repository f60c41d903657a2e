"""Checks of what an attack is asked for, each an :class:`~sigil.errors.AttackError` of one sentence."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

from sigil.arguments import is_number, sizes
from sigil.data import Dataset
from sigil.errors import AttackError, shown
from sigil.models import Model


def check_choice(what: str, value: object, choices: Sequence[str]) -> None:
    """Raise unless ``value`` is one of ``choices``."""
    if value not in choices:
        raise AttackError(f"There is no {what} {value!r}; choose {', '.join(choices[:-1])} or {choices[-1]}.")


def check_share(what: str, value: float) -> None:
    """Raise unless ``value`` lies in [0, 1]."""
    if not is_number(value) or not 0 <= value <= 1:
        raise AttackError(f"The {what} is {shown(value)}, but it must lie between 0 and 1, such as 0.6.")


def check_positive(what: str, value: float) -> None:
    """Raise unless ``value`` is a finite number above 0."""
    if not (is_number(value) and math.isfinite(value) and value > 0):
        raise AttackError(f"The {what} is {shown(value)}, but it must be a finite number above 0.")


def check_not_negative(what: str, value: float) -> None:
    """Raise unless ``value`` is a finite number of at least 0."""
    if not (is_number(value) and math.isfinite(value) and value >= 0):
        raise AttackError(f"The {what} is {shown(value)}, but it must be a finite number of at least 0.")


def check_at_least(what: str, value: int, least: int) -> None:
    """Raise unless ``value`` is a whole number of at least ``least``."""
    if type(value) is not int or value < least:
        raise AttackError(f"{what} is {shown(value)}, but it must be a whole number of at least {least}.")


def check_data(data: object) -> None:
    """Raise unless ``data`` is a data set."""
    if not isinstance(data, Dataset):
        raise AttackError(
            f"The data is of type {type(data).__name__}, but a data set is wanted, such as "
            'sigil.data.load("digits").'
        )


def check_clients(clients: Iterable[int] | None) -> frozenset[int] | None:
    """The numbers of the clients that take part; None is all of them."""
    if clients is None:
        return None
    return frozenset(sizes("list of clients", clients, raises=AttackError))


def check_fits(model: Model, data: Dataset) -> None:
    """Raise unless the data set has the classes and the channels of the model."""
    check_data(data)
    spec = model.spec
    if data.classes != spec.classes or data.shape[0] != spec.channels:
        raise AttackError(
            f"The data set {data.name!r} has {data.classes} classes and images of {data.shape[0]} channels, "
            f"but the model has {spec.classes} classes and takes {spec.channels} channels; "
            "give the data that the model was trained for."
        )
