"""Real inputs to read a mark on: a folder of pictures, an array, or a data set, with their digest.

The mark is trained on the activations of real inputs, so that is where it is read best; noise does not
elicit it at every cut, and a thief can answer noise differently at no cost. The p-value is exact for any
inputs that were chosen independently of the key's bits. Somebody who knows the bits and may pick 256 of
50,000 images is not independent of them, so the digest of a set says which it is, in which order, and the key
draws the part that is used.
"""

from __future__ import annotations

import itertools
import json
import math
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

import numpy as np
import numpy.typing as npt
import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from sigil import arguments, files
from sigil.data.cache import Dataset
from sigil.errors import DataError, reason, shown

LEAST_INPUTS: Final = 256
"""Fewer inputs than this do not sample a task, and are refused."""

MOST_PICTURES: Final = 200_000
MAX_INPUTS: Final = 10**7
MAX_ELEMENTS: Final = 1 << 26
_PICTURES: Final = (".png", ".jpg", ".jpeg")
_FILES: Final = (".npy", ".safetensors")
_BLOCK: Final = 1024
_DTYPES: Final = {"U8": np.uint8, "F16": np.float16, "F32": np.float32, "F64": np.float64}

Normalisation = tuple[Sequence[float], Sequence[float]]
"""Means and standard deviations per channel, on the scale 0 to 1."""

Array = npt.NDArray[np.uint8] | npt.NDArray[np.floating]


class Inputs:
    """An ordered set of inputs, (n, *shape), read from where it lies as far as it is asked for.

    8-bit images are divided by 255 and normalised; floating-point inputs are taken as they are unless a
    normalisation is given. `is_data_set` says that it is the one of a known data set, which nobody gave.
    """

    def __init__(
        self, values: Array | Tensor, *, normalisation: Normalisation | None = None, is_data_set: bool = False
    ) -> None:
        self._values = _array(values)
        self.shape: tuple[int, ...] = self._values.shape[1:]
        self.normalisation = normalisation
        self.is_data_set = is_data_set
        if normalisation is not None:
            check_normalisation(normalisation, self.shape)
        self._digest: str | None = None

    @classmethod
    def of_test(cls, dataset: Dataset) -> Inputs | None:
        """The test images of a data set, if there are enough of them to read a mark on."""
        if len(dataset.test) < LEAST_INPUTS:
            return None
        return cls(dataset.test.images, normalisation=(dataset.mean, dataset.std), is_data_set=True)

    def __len__(self) -> int:
        return len(self._values)

    @property
    def is_image(self) -> bool:
        """Whether these are 8-bit images, which need a normalisation."""
        return self._values.dtype == np.uint8

    @property
    def digest(self) -> str:
        """SHA-256 over type, shape and all values in their order, in hex: what a key's statement names."""
        if self._digest is None:
            header = f"sigil inputs v1 {self._values.dtype.str} {self._values.shape}\n"
            starts = range(0, len(self), _BLOCK)
            blocks = (self._values[start : start + _BLOCK].tobytes() for start in starts)
            self._digest = files.digest(itertools.chain([header], blocks))
        return self._digest

    def normalised(self, given: Normalisation | None, *, otherwise: Normalisation | None = None) -> Inputs:
        """The same inputs with a normalisation that was given.

        If none was, 8-bit images get the one `otherwise` (a key's), or else keep their own.
        """
        chosen = given or (otherwise if self.is_image else None) or self.normalisation
        same = Inputs(self._values, normalisation=chosen, is_data_set=self.is_data_set)
        same._digest = self._digest
        return same

    def batches(self, chosen: Sequence[int], batch_size: int) -> Iterator[Tensor]:
        """The chosen inputs in their order, float32 and normalised, `batch_size` at a time."""
        moments = self.normalisation
        if self.is_image and moments is None:
            raise DataError(
                "The inputs are 8-bit images and nobody says how the model's inputs were normalised: give "
                "the means and standard deviations (--normalisation), or make the key with them."
            )
        for start in range(0, len(chosen), batch_size):
            # In ascending order a map is read once from front to back; the batch gets its own order back.
            wanted = np.asarray(chosen[start : start + batch_size], dtype=np.int64)
            order = np.argsort(wanted, kind="stable")
            values = np.empty((len(wanted), *self.shape), dtype=np.float32)
            values[order] = self._values[wanted[order]]
            batch = torch.from_numpy(values)
            if self.is_image:
                batch /= 255.0
            if moments is not None:
                sizes = (1, -1, *(1 for _ in self.shape[1:]))
                means, deviations = (
                    torch.tensor(list(part), dtype=torch.float32).view(sizes) for part in moments
                )
                batch = (batch - means) / deviations
            if not bool(torch.isfinite(batch).all()):
                raise DataError(
                    "The inputs hold values that are not finite: give inputs as the model takes them."
                )
            yield batch


def open_inputs(
    source: Inputs | Array | Tensor | str | os.PathLike[str],
    *,
    shape: Sequence[int] | None = None,
    normalisation: Normalisation | None = None,
    data_dir: Path | None = None,
) -> Inputs:
    """Open inputs for :func:`sigil.verify`.

    `source` is a tensor or array (n, *shape), a folder of PNG or JPEG pictures (resized to `shape`, in the
    order of their paths), a ``.npy`` or ``.safetensors`` file with one array, or the name of a data set,
    whose test images are taken unless ``:train`` follows the name. `shape` is that of one input of the
    model.
    """
    if isinstance(source, Inputs):
        inputs = source
    elif isinstance(source, str | os.PathLike):
        inputs = _opened(os.fspath(source), shape, normalisation, data_dir)
    else:
        inputs = Inputs(source, normalisation=normalisation)
    if len(inputs) < LEAST_INPUTS:
        raise DataError(
            f"There are {len(inputs)} inputs, but at least {LEAST_INPUTS} are needed to read a mark on: "
            "give more."
        )
    if shape is not None and inputs.shape != tuple(shape):
        raise DataError(
            f"The inputs have the shape {inputs.shape}, but the model takes {tuple(shape)}: give inputs of "
            "its task."
        )
    return inputs


def shape_of(source: object) -> tuple[int, ...] | None:
    """The shape of one of these inputs, if they are in memory; of a file nobody knows before it is opened."""
    if source is None or isinstance(source, str | os.PathLike):
        return None
    return source.shape if isinstance(source, Inputs) else _array(source).shape[1:]


def _opened(
    source: str, shape: Sequence[int] | None, normalisation: Normalisation | None, data_dir: Path | None
) -> Inputs:
    path = Path(source).expanduser()
    try:
        if path.is_dir():
            return Inputs(_pictures(path, shape), normalisation=normalisation)
        if path.is_file() and path.suffix not in _FILES:
            raise DataError(
                f"{path} is not a folder of pictures, a .npy array or a .safetensors file with one array."
            )
        if path.is_file():
            return Inputs(_array_in(path), normalisation=normalisation)
    except OSError as error:
        raise DataError(f"The inputs {shown(source)} cannot be read: {reason(error)}.") from None
    from sigil.data.datasets import load

    name, _, split = source.partition(":") if not source.startswith(("folder:", "hub:")) else (source, "", "")
    if split not in ("", "test", "train"):
        raise DataError(f"A data set has the splits train and test, not {split!r}.")
    dataset = load(name, data_dir=data_dir)
    images = (dataset.train if split == "train" else dataset.test).images
    if normalisation is not None:
        return Inputs(images, normalisation=normalisation)
    return Inputs(images, normalisation=(dataset.mean, dataset.std), is_data_set=True)


def _pictures(folder: Path, shape: Sequence[int] | None) -> npt.NDArray[np.uint8]:
    from sigil.data import images

    if shape is None or len(shape) != 3:
        raise DataError(
            f"The pictures in {folder} must be resized, and nobody says to which shape: give the input "
            "shape C,H,W."
        )
    channels, height, width = (int(size) for size in shape)
    if channels not in (1, 3):
        raise DataError(f"Pictures have 1 or 3 channels, but the model takes inputs of shape {tuple(shape)}.")
    pictures = (
        path
        for directory, _, names in os.walk(folder)
        for name in names
        # A pipe of that name would be waited for.
        if name.lower().endswith(_PICTURES) and (path := Path(directory, name)).is_file()
    )
    paths = sorted(itertools.islice(pictures, MOST_PICTURES + 1))
    if not paths:
        raise DataError(f"There are no PNG or JPEG pictures in {folder}: name a folder that holds some.")
    if len(paths) > MOST_PICTURES:
        raise DataError(
            f"There are more than {MOST_PICTURES:,} pictures in {folder}: put the inputs into one .npy file."
        )
    table = np.empty((len(paths), channels, height, width), np.uint8)
    images.fill(table, paths, lambda file: images.decode(file, (channels, height, width)))
    return table


def _array_in(path: Path) -> Array:
    """The one array of a file as a map, so that one larger than the memory is read in pieces."""
    try:
        if path.suffix == ".npy":
            return np.load(path, mmap_mode="r", allow_pickle=False)
        with safe_open(path, framework="np") as file:
            names = list(file.keys())
            if len(names) != 1:
                raise DataError(
                    f"{path} holds {len(names)} tensors, but inputs are one: leave labels and the rest out."
                )
        # Opening it has checked the header against the file.
        with path.open("rb") as stream:
            length = int.from_bytes(stream.read(8), "little")
            entry = json.loads(stream.read(length))[names[0]]
        kind = _DTYPES.get(entry["dtype"])
        if kind is None:
            raise DataError(
                f"The inputs in {path} are {shown(entry['dtype'])}, but they must be 8-bit images or "
                "floating-point numbers of 16, 32 or 64 bits."
            )
        begin = 8 + length + int(entry["data_offsets"][0])
        shape = tuple(entry["shape"])
        return np.empty(shape, kind) if 0 in shape else np.memmap(path, kind, "r", begin, shape)
    except (SafetensorError, OSError, ValueError, TypeError, KeyError, EOFError) as error:
        raise DataError(f"{path} cannot be read as an array: {reason(error)}.") from error


def _array(values: object) -> Array:
    """The inputs as an array of NumPy, of a kind and size that can be read."""
    if isinstance(values, Tensor):
        tensor = arguments.tensor("batch of inputs", values, raises=DataError).detach().cpu().contiguous()
        array = tensor.float().numpy() if tensor.dtype is torch.bfloat16 else tensor.numpy()
    elif isinstance(values, np.ndarray):
        array = values
    else:
        raise DataError(
            f"The inputs are of type {type(values).__name__}, but one tensor or array (n, …) without labels, "
            "a path or the name of a data set is wanted: put batches together with torch.cat, single inputs "
            "with torch.stack."
        )
    if array.dtype.hasobject or (array.dtype != np.uint8 and not np.issubdtype(array.dtype, np.floating)):
        raise DataError(
            f"The inputs are {array.dtype}, but they must be 8-bit images or floating-point numbers; labels "
            "do not belong to them, and a model of tokens is read behind its embedding."
        )
    if not 2 <= array.ndim <= 5 or 0 in array.shape:
        raise DataError(
            f"The inputs have the shape {array.shape}, but they must be (number, *shape of one input), all "
            "above 0."
        )
    if len(array) > MAX_INPUTS or array[0].size > MAX_ELEMENTS:
        raise DataError(
            f"The inputs have the shape {array.shape}, more than {MAX_INPUTS:,} inputs or {MAX_ELEMENTS:,} "
            "numbers each: give a part of them."
        )
    return array


def parse_normalisation(text: str | None) -> Normalisation | None:
    """Means and deviations from the spelling of a key's statement, "mean,…/deviation,…"."""
    if text is None:
        return None
    means, deviations = ([float(number) for number in part.split(",")] for part in text.split("/"))
    return means, deviations


def check_normalisation(moments: Normalisation, shape: tuple[int, ...] | None = None) -> None:
    """Raise unless these are means and deviations, one per channel of inputs of this shape."""
    try:
        means, deviations = ([float(value) for value in part] for part in moments)
    except (TypeError, ValueError, RuntimeError):
        raise DataError(
            f"The normalisation is {shown(moments)}, but it must be two lists of numbers, the means and the "
            "deviations of the channels."
        ) from None
    shape = (len(means),) if shape is None else shape
    sound = all(map(math.isfinite, (*means, *deviations))) and all(value > 0 for value in deviations)
    if not (sound and len(means) == len(deviations) == shape[0]):
        raise DataError(
            f"The normalisation has {len(means)} means and {len(deviations)} deviations, but inputs of shape "
            f"{shape} have {shape[0]} channels; give one of each per channel, finite, the deviations above 0."
        )
