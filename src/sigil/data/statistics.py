"""Mean and standard deviation of pixels, for sets without published constants."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

# Images read at a time: 1,024 of 3x64x64 are 12 MB, whatever the size of the set.
_CHUNK = 1024


def channel_statistics(
    images: npt.NDArray[np.uint8],
) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Give the mean and standard deviation of each channel of uint8 images, on the scale 0 to 1.

    `images` is (n, C, H, W) and is read in chunks. The sums are of integers and therefore exact:
    mean = S1 / N / 255 and std = sqrt(S2/N - (S1/N)^2) / 255 with N = n·H·W. A channel without any
    contrast gets one grey level, 1/255, so that dividing by it is always possible.
    """
    channels = images.shape[1]
    total = np.zeros(channels, dtype=np.uint64)
    squares = np.zeros(channels, dtype=np.uint64)
    for start in range(0, len(images), _CHUNK):
        chunk = np.asarray(images[start : start + _CHUNK])
        total += chunk.sum(axis=(0, 2, 3), dtype=np.uint64)
        squares += np.square(chunk, dtype=np.uint32).sum(axis=(0, 2, 3), dtype=np.uint64)
    count = images.shape[0] * images.shape[2] * images.shape[3]
    mean = total / count
    variance = np.maximum(squares / count - mean**2, 0.0)
    std = np.maximum(np.sqrt(variance), 1.0)
    return tuple((mean / 255).tolist()), tuple((std / 255).tolist())
