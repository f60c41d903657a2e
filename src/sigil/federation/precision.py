"""Where and in which number format to compute: the fastest that this machine really has.

bfloat16 autocast doubles the speed of a processor that has instructions for it and divides it by ten on
one that has not (`benchmarks/training.py` measures both), so `auto` asks the processor.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass

import torch

from sigil.errors import ConfigError, reason


@dataclass(frozen=True)
class Precision:
    """A device, whether to autocast to bfloat16 there, and the memory layout of images."""

    device: torch.device
    bfloat16: bool
    channels_last: bool = True

    @property
    def layout(self) -> torch.memory_format:
        return torch.channels_last if self.channels_last else torch.contiguous_format

    def autocast(self) -> AbstractContextManager[object]:
        """The context in which the halves run forward."""
        if not self.bfloat16:
            return nullcontext()
        return torch.autocast(self.device.type, torch.bfloat16)


def choose(device: str = "auto", precision: str = "auto") -> Precision:
    """Turn the settings `device` (auto, cpu, cuda, mps, cuda:1) and `precision` into a :class:`Precision`."""
    if device == "auto":
        if torch.cuda.is_available():
            device = "cuda"
        elif torch.backends.mps.is_available():
            device = "mps"
        else:
            device = "cpu"
    try:
        place = torch.device(device)
        torch.empty(0, device=place)
    except (RuntimeError, AssertionError) as error:
        raise ConfigError(
            f"The device {device!r} cannot be used here ({reason(error)}); "
            'set run.device to "auto", "cpu" or a device that this machine has.'
        ) from None
    return Precision(place, bfloat16=precision == "bfloat16" or (precision == "auto" and _native(place)))


def _native(device: torch.device) -> bool:
    """Whether the device multiplies bfloat16 numbers in hardware."""
    if device.type == "cuda":
        return torch.cuda.is_bf16_supported(including_emulation=False)
    if device.type == "cpu":
        return bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())
    return False
