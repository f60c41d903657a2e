"""Values of several numbers, as they are written on the command line."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sigil.errors import ConfigError

if TYPE_CHECKING:
    from sigil.data.inputs import Normalisation

_LONGEST = 2**16


def read_activation_shape(text: str) -> tuple[int, ...]:
    """The shape of one activation, such as 256,8,8 or 256x8x8; its sizes are checked with the key."""
    try:
        return tuple(int(size) for size in text.strip(" ()[]").replace("x", ",").split(","))
    except ValueError:
        raise ConfigError(
            "The shape must be whole numbers with commas between them, such as 256,8,8."
        ) from None


def read_input_shape(text: str) -> tuple[int, ...]:
    """The shape of one input, such as 3,32,32."""
    try:
        shape = tuple(int(size) for size in text.strip(" ()[]").replace("x", ",").split(","))
    except ValueError:
        shape = ()
    if not 1 <= len(shape) <= 4 or not all(1 <= size <= _LONGEST for size in shape):
        raise ConfigError(
            "--input-shape must be whole numbers of at least 1 with commas between them, such as 3,32,32."
        )
    return shape


def read_normalisation(text: str) -> Normalisation:
    """Means and deviations per channel, with a slash between them."""
    from sigil.data.inputs import parse_normalisation

    try:
        found = parse_normalisation(text)
    except ValueError:
        found = None
    if found is None:
        raise ConfigError(
            "--normalisation must be means, a slash and deviations, such as 0.49,0.48,0.45/0.25,0.24,0.26."
        )
    return found
