"""The paper's four models, each a chain of named rows that can be cut after any of them."""

from __future__ import annotations

from sigil.models.building import Model, activation_shape, build, join, split
from sigil.models.spec import ModelSpec, cut_points, default_cut, names
from sigil.models.storage import (
    Description,
    from_state,
    load,
    read_description,
    read_spec,
    save,
)

__all__ = [
    "Description",
    "Model",
    "ModelSpec",
    "activation_shape",
    "build",
    "cut_points",
    "default_cut",
    "from_state",
    "join",
    "load",
    "names",
    "read_description",
    "read_spec",
    "save",
    "split",
]
