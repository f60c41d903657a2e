"""What a model is, in six values; which architectures exist and where each can be cut."""

from __future__ import annotations

import difflib
import functools
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal, Protocol

import torch
from torch import nn

from sigil.errors import ModelError, shown
from sigil.models import densenet121, mobilenetv2, resnet18, vgg11
from sigil.models.topology import Topology

Part = Literal["whole", "client", "server"]
PARTS = ("whole", "client", "server")

# A spec may come out of an adversary's file: these bound what it can make us build.
MAX_WIDTH = 1024
MAX_CLASSES = 100_000
MAX_CHANNELS = 64


class Architecture(Protocol):
    """One table of the paper, which is a module: ``rows(width, channels, classes)`` makes its rows in order.

    ``topology(width)`` says which of its layers share channels.
    """

    STANDARD_WIDTH: int
    DEFAULT_CUT: str

    def rows(self, width: int, channels: int, classes: int) -> dict[str, nn.Module]: ...
    def topology(self, width: int) -> Topology: ...


ARCHITECTURES: dict[str, Architecture] = {
    "resnet18": resnet18,
    "vgg11": vgg11,
    "mobilenetv2": mobilenetv2,
    "densenet121": densenet121,
}


@dataclass(frozen=True)
class ModelSpec:
    """Everything that fixes the structure of a model or half; a spec that exists is a valid one.

    ``width`` is the number of channels of the first convolution, ``channels`` that of the images. A
    half has the ``cut`` it was made at: the client half ends with that row, the server half starts
    after it.
    """

    name: str
    classes: int
    width: int
    channels: int
    part: Part = "whole"
    cut: str | None = None

    def __post_init__(self) -> None:
        architecture(self.name)
        check_range("classes", self.classes, 1, MAX_CLASSES)
        check_range("width", self.width, 1, MAX_WIDTH)
        check_range("channels", self.channels, 1, MAX_CHANNELS)
        if self.part not in PARTS:
            raise unknown("part of a model", self.part, PARTS)
        if self.part == "whole":
            if self.cut is not None:
                raise ModelError(f"a whole model has no cut, but the cut {shown(self.cut)} was given")
        elif self.cut is None:
            raise ModelError(f"a {self.part} half needs the name of the cut that it was made at")
        else:
            check_cut(self.name, self.cut)

    def __str__(self) -> str:
        half = "" if self.part == "whole" else f"{self.part} half at {self.cut} of "
        return f"{half}{self.name} with width {self.width} and {self.classes} classes"


def names() -> list[str]:
    """The architectures that :func:`sigil.models.build` knows."""
    return list(ARCHITECTURES)


def cut_points(name: str) -> list[str]:
    """The rows after which a model can be cut, in order: all but the last, as no half is empty."""
    return list(row_names(name)[:-1])


def default_cut(name: str) -> str:
    """The row after which the paper cuts this architecture."""
    return architecture(name).DEFAULT_CUT


def architecture(name: str) -> Architecture:
    """The architecture of that name, or an error that says which one was probably meant."""
    if isinstance(name, str) and name.startswith("layers-"):  # sigil.alignment.LAYERS, which is above
        raise ModelError(
            "the key states a model of its owner's own, and a file of weights does not say how it computes: "
            "name the code that builds its client half (--module FILE.py:NAME), or give the module itself."
        )
    if not isinstance(name, str) or name not in ARCHITECTURES:
        raise unknown("architecture", name, ARCHITECTURES)
    return ARCHITECTURES[name]


def channel_topology(spec: ModelSpec) -> Topology:
    """Which layers of the whole model share channels, a half's too (see :mod:`sigil.models.topology`)."""
    return architecture(spec.name).topology(spec.width)


def row_names(name: str) -> tuple[str, ...]:
    """All rows of the architecture's table in order, the last one included."""
    architecture(name)  # before the cache, whose argument must be hashable
    return _row_names(name)


@functools.cache
def _row_names(name: str) -> tuple[str, ...]:
    with torch.device("meta"):
        return tuple(ARCHITECTURES[name].rows(1, 1, 1))


def check_cut(name: str, cut: str) -> None:
    """Raise unless ``cut`` is a cut point of the architecture ``name``."""
    points = cut_points(name)
    if cut not in points:
        raise unknown(f"cut point of {name}", cut, points)


def check_range(what: str, value: object, least: int, most: int) -> None:
    """Raise unless ``value`` is a whole number from ``least`` to ``most``."""
    if type(value) is not int or not least <= value <= most:
        raise ModelError(f"{what} must be a whole number from {least:,} to {most:,}, not {shown(value)}")


def unknown(kind: str, given: object, known: Iterable[str]) -> ModelError:
    """The error for a name that does not exist: says the nearest, then all."""
    known = list(known)
    nearest = difflib.get_close_matches(shown(given).strip("'"), known, n=1, cutoff=0)[0]
    return ModelError(
        f"there is no {kind} {shown(given)}, the nearest is {nearest!r}: choose one of {', '.join(known)}"
    )
