"""What callers may give where a key or a suspect is wanted; anything else is one clear sentence."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from typing import cast

from torch import Tensor

from sigil.data.inputs import shape_of
from sigil.errors import ConfigError, SuspectError
from sigil.keys.key import Key
from sigil.probing import input_shape_of


def as_key(given: object) -> Key:
    """The key that was given, itself or as the path of its file."""
    if isinstance(given, Key):
        return given
    if isinstance(given, str | os.PathLike):
        return Key.load(given)
    if hasattr(given, "commitment"):  # something that behaves like a key
        return cast(Key, given)
    raise ConfigError(
        f"The key is of type {type(given).__name__}, but a sigil.Key or the path of a key file is wanted."
    )


def check_suspect(given: object) -> None:
    """Raise unless a path, a module or something else that can be called was given as the suspect."""
    if isinstance(given, str | os.PathLike) or (callable(given) and not isinstance(given, type)):
        return
    hint = "give the path of the model's file, or the model up to the cut"
    if isinstance(given, type):
        hint = "it is a class: make a model of it and load its weights"
    if isinstance(given, Mapping):
        hint = "a state dict does not say how it is computed: load it into its module, or give its file"
    raise SuspectError(f"The suspect is of type {type(given).__name__}, which cannot be run; {hint}.")


def asked_shape(
    suspect: Callable[[Tensor], Tensor], key: Key, inputs: object, given: Sequence[int] | None
) -> tuple[int, ...]:
    """The shape of one input: the given one, or the key's, the suspect's own, or that of the inputs."""
    known = key.fields.input_shape if given is None else given
    if known is None and getattr(suspect, "input_shape", None) is None:
        known = shape_of(inputs)
    return input_shape_of(suspect, known)
