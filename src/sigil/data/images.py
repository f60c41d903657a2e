"""Picture files to arrays, with limits on what is read."""

from __future__ import annotations

import io
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import numpy as np
import numpy.typing as npt

from sigil import extras, hardware
from sigil.errors import DataError

if TYPE_CHECKING:
    from PIL import Image

MAX_FILE_BYTES = 64 * 2**20
MAX_PIXELS = 50_000_000
MAX_SIDE = 4096
# Formats whose decoders are asked at all: the fewer, the less code an odd file can reach.
_FORMATS = ("JPEG", "PNG", "WEBP", "BMP")
_GREY = frozenset({"1", "L", "LA", "I", "I;16"})

T = TypeVar("T")


def open_picture(source: Path | bytes, *, label: str | None = None) -> Image.Image:
    """Open a picture without decoding it, refusing files and sizes beyond the limits.

    `source` is a path or the bytes of a file; `label` names it in error messages (the path
    otherwise).
    """
    extras.need("train", "PIL")
    from PIL import Image, UnidentifiedImageError

    name = label or (str(source) if isinstance(source, Path) else "a picture")
    try:
        if isinstance(source, Path):
            with source.open("rb") as file:
                data = file.read(MAX_FILE_BYTES + 1)
        else:
            data = source
        if len(data) > MAX_FILE_BYTES:
            raise DataError(
                f"{name} is larger than {MAX_FILE_BYTES // 2**20} MiB, the limit for one picture: "
                "make it smaller or remove it."
            )
        picture = Image.open(io.BytesIO(data), formats=_FORMATS)
    except (OSError, UnidentifiedImageError, Image.DecompressionBombError, ValueError) as error:
        raise DataError(
            f"{name} cannot be read as a {', '.join(_FORMATS)} picture ({error}): replace or remove it."
        ) from error
    if picture.width * picture.height > MAX_PIXELS:
        raise DataError(
            f"{name} has {picture.width} x {picture.height} pixels, more than the limit of "
            f"{MAX_PIXELS:,}: make it smaller or remove it."
        )
    return picture


def shape_of(picture: Image.Image, *, size: int | None) -> tuple[int, int, int]:
    """Give the shape (C, H, W) that a set takes from its first picture, or from `size` if given."""
    height, width = (size, size) if size is not None else (picture.height, picture.width)
    if not 1 <= min(height, width) <= max(height, width) <= MAX_SIDE:
        raise DataError(
            f"Images of {width} x {height} were asked for, but a side must be 1 to {MAX_SIDE}: "
            "choose another size."
        )
    return (1 if picture.mode in _GREY else 3, height, width)


def decode(
    source: Path | bytes, shape: tuple[int, int, int], *, label: str | None = None
) -> npt.NDArray[np.uint8]:
    """Decode one picture to a uint8 array of `shape` (C, H, W), resized if it has another size."""
    extras.need("train", "PIL")
    from PIL import Image

    channels, height, width = shape
    picture = open_picture(source, label=label)
    try:
        # 16-bit greys do not fit 8 bits: `convert` would clip them to white.
        if picture.mode.startswith("I"):
            picture = Image.fromarray((np.asarray(picture) >> 8).astype(np.uint8))
        mode = "L" if channels == 1 else "RGB"
        if picture.mode != mode:
            picture = picture.convert(mode)
        if picture.size != (width, height):
            picture = picture.resize((width, height), Image.Resampling.BILINEAR)
        pixels = np.asarray(picture).reshape(height, width, channels)
    except (OSError, ValueError, SyntaxError, Image.DecompressionBombError) as error:
        name = label or (str(source) if isinstance(source, Path) else "a picture")
        raise DataError(f"{name} cannot be decoded ({error}): replace or remove it.") from error
    return pixels.transpose(2, 0, 1)


def fill(
    images: npt.NDArray[np.uint8],
    items: Sequence[T],
    decode_one: Callable[[T], npt.NDArray[np.uint8]],
) -> None:
    """Write `decode_one(items[i])` to `images[i]` for every i, in as many threads as there are cores.

    The decoders release the interpreter lock, so threads do run side by side.
    """

    def write(start: int) -> None:
        for position in range(start, min(start + 64, len(items))):
            images[position] = decode_one(items[position])

    with ThreadPoolExecutor(max_workers=hardware.cores()) as pool:
        for _ in pool.map(write, range(0, len(items), 64)):
            pass  # an error in one of them ends the others
