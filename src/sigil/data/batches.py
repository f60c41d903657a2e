"""Batches of float tensors from uint8 images: shuffled, augmented, normalised, reproducible."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from sigil.data.cache import Dataset, Split
from sigil.errors import DataError

AUGMENTATIONS = ("none", "crop", "crop-flip")


class Batches:
    """The samples of one client as batches, a new order and new augmentation every epoch.

    `images` is uint8 (n, C, H, W), `labels` int64 (n,), `indices` the samples that belong to this
    client; none of them is copied. `augment` is one of

    - `none`,
    - `crop`: a random crop after padding each side with black, by an eighth of the side (4 pixels
      for 32 x 32, 8 for 64 x 64),
    - `crop-flip`: the same, and a horizontal flip with probability one half.

    A pixel v becomes (v/255 − mean)/std of its channel. A last batch of a single sample, on which
    batch norm cannot be trained, is joined to the one before it.
    """

    def __init__(
        self,
        images: npt.NDArray[np.uint8],
        labels: npt.NDArray[np.int64],
        indices: npt.NDArray[np.int64] | None = None,
        *,
        batch_size: int,
        mean: Sequence[float],
        std: Sequence[float],
        augment: str = "none",
        device: torch.device | str = "cpu",
        memory_format: torch.memory_format = torch.contiguous_format,
    ) -> None:
        if augment not in AUGMENTATIONS:
            raise DataError(f"There is no augmentation '{augment}': choose {', '.join(AUGMENTATIONS)}.")
        if batch_size < 2:
            raise DataError(
                f"The batch size is {batch_size}, but batch norm needs two samples or more: choose a "
                "larger one."
            )
        members = np.arange(len(labels), dtype=np.int64) if indices is None else indices
        if len(members) < 2:
            raise DataError(
                f"A client holds {len(members)} samples, but batch norm needs two or more: give it more "
                "data or use fewer clients."
            )
        # As plain arrays: indexing a memory map object costs several microseconds more each time.
        self._images = np.asarray(images)
        self._labels = np.asarray(labels)
        self._indices = np.asarray(members, dtype=np.int64)
        self._normalise = _Normaliser(mean, std, device=device, memory_format=memory_format)
        self._augment = augment
        starts = list(range(0, len(members), batch_size))
        if len(starts) > 1 and len(members) - starts[-1] == 1:
            starts.pop()
        self._bounds = list(zip(starts, [*starts[1:], len(members)], strict=True))

    def __len__(self) -> int:
        """Give the number of batches in an epoch."""
        return len(self._bounds)

    def epoch(self, generator: torch.Generator) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        """Go once through the samples: (images float32 (b, C, H, W), labels int64 (b,)) each time.

        All random numbers of the epoch are drawn from `generator`, which lives on the CPU, by this
        call itself: the batches follow from its state now and from nothing that happens later.
        """
        count = len(self._indices)
        order = self._indices[torch.randperm(count, generator=generator).numpy()]
        if self._augment == "none":
            return self._batches(order, None)
        corners = [
            torch.randint(2 * margin + 1, (count,), generator=generator).numpy()
            for margin in _margins(self._images.shape[2:])
        ]
        flipped = np.zeros(count, dtype=bool)
        if self._augment == "crop-flip":
            flipped = torch.randint(2, (count,), generator=generator).numpy().astype(bool)
        return self._batches(order, (*corners, flipped))

    def _batches(
        self, order: npt.NDArray[np.int64], augmentation: Sequence[npt.NDArray[Any]] | None
    ) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        """The batches in this order, cropped and flipped as was drawn for each sample, if anything was."""
        for start, stop in self._bounds:
            chosen = order[start:stop]
            images = self._images[chosen]
            if augmentation is not None:
                top, left, flipped = (drawn[start:stop] for drawn in augmentation)
                mirrored = np.flatnonzero(flipped)
                images[mirrored] = images[mirrored][..., ::-1]
                images = crop(images, top=top, left=left)
            yield self._normalise(images, self._labels[chosen])


def evaluate_batches(
    split: Split,
    dataset: Dataset,
    *,
    batch_size: int,
    device: torch.device | str = "cpu",
    memory_format: torch.memory_format = torch.contiguous_format,
) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """Go once through the samples in their own order, normalised as the data set is, and not augmented.

    Gives (images float32 (b, C, H, W), labels int64 (b,)); the last batch may be smaller.
    """
    if batch_size < 1:
        raise DataError(f"The batch size is {batch_size}, but it must be at least 1: choose another.")
    normalise = _Normaliser(dataset.mean, dataset.std, device=device, memory_format=memory_format)
    for start in range(0, len(split), batch_size):
        # Copies, because a tensor must not share memory with a read-only map.
        chosen = slice(start, start + batch_size)
        yield normalise(np.array(split.images[chosen]), np.array(split.labels[chosen]))


def crop(
    images: npt.NDArray[np.uint8], *, top: npt.NDArray[np.int64], left: npt.NDArray[np.int64]
) -> npt.NDArray[np.uint8]:
    """Pad every image (n, C, H, W) with black and cut H x W out of it again, each at its own place.

    `top` and `left`, (n,) each, are the corners in the padded images, from 0 to twice the margin;
    the margin itself cuts out the original.
    """
    count, channels, height, width = images.shape
    above, beside = _margins((height, width))
    padded = np.zeros((count, channels, height + 2 * above, width + 2 * beside), dtype=np.uint8)
    padded[:, :, above : above + height, beside : beside + width] = images
    windows = np.lib.stride_tricks.sliding_window_view(padded, (height, width), axis=(2, 3))
    return windows[np.arange(count), :, top, left]


def _margins(size: tuple[int, ...]) -> tuple[int, int]:
    """Give the padding above and beside an image: an eighth of each side, at least one pixel."""
    return max(1, size[0] // 8), max(1, size[1] // 8)


class _Normaliser:
    """Turns uint8 images into normalised float32 tensors on the device."""

    def __init__(
        self,
        mean: Sequence[float],
        std: Sequence[float],
        *,
        device: torch.device | str,
        memory_format: torch.memory_format,
    ) -> None:
        self._device = torch.device(device)
        self._memory_format = memory_format
        average, spread = (torch.tensor(list(v), dtype=torch.float64) for v in (mean, std))
        # (v/255 − mean)/std as one multiplication and one addition.
        self._scale = (1 / (255 * spread)).float().view(-1, 1, 1).to(self._device)
        self._shift = (-average / spread).float().view(-1, 1, 1).to(self._device)

    def __call__(
        self, images: npt.NDArray[np.uint8], labels: npt.NDArray[np.int64]
    ) -> tuple[torch.Tensor, torch.Tensor]:
        # Bytes cross to the device, a quarter of the floats. The layout comes last: permuting floats
        # takes a third of the time that permuting while converting does.
        pixels = torch.from_numpy(images).to(self._device, non_blocking=True)
        floats = pixels.to(torch.float32).mul_(self._scale).add_(self._shift)
        return (
            floats.contiguous(memory_format=self._memory_format),
            torch.from_numpy(labels).to(self._device, non_blocking=True),
        )
