"""Where and in which number format to compute: the fastest that this machine really has.

bfloat16 autocast doubles the speed of a processor that has instructions for it and takes two to ten times as
long as float32 on one that has not, so `auto` asks the processor (:mod:`sigil.hardware`).
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any, Literal, TypedDict, TypeVar

import torch
from torch import nn

from sigil import hardware

Module = TypeVar("Module", bound=nn.Module)


class Place(TypedDict):
    """A device and a memory layout, by the names that PyTorch's functions have for them."""

    device: torch.device
    memory_format: torch.memory_format


@dataclass(frozen=True)
class Precision:
    """A device, whether to autocast to bfloat16 there, and the memory layout of images."""

    device: torch.device
    bfloat16: bool
    channels_last: bool = True

    @property
    def layout(self) -> torch.memory_format:
        return torch.channels_last if self.channels_last else torch.contiguous_format

    @property
    def place(self) -> Place:
        """Where images are to be, and in which layout."""
        return {"device": self.device, "memory_format": self.layout}

    def move(self, module: Module) -> Module:
        """Bring a module to that place; returns it."""
        moved: Module = module.to(**self.place)  # type: ignore[call-overload]
        return moved

    @property
    def number_format(self) -> Literal["float32", "bfloat16"]:
        """The number format by its name."""
        return "bfloat16" if self.bfloat16 else "float32"

    def describe(self) -> dict[str, Any]:
        """What to write beside a result: the processor, the device, the number format and the threads."""
        return hardware.describe(self.device, bfloat16=self.bfloat16)

    def autocast(self) -> AbstractContextManager[object]:
        """The context in which the halves run forward."""
        if not self.bfloat16:
            return nullcontext()
        return torch.autocast(self.device.type, torch.bfloat16)


def choose(device: str = "auto", precision: str = "auto") -> Precision:
    """Turn the settings `device` (auto, cpu, cuda, mps, cuda:1) and `precision` into a :class:`Precision`."""
    chosen = hardware.device(device)
    automatic = precision == "auto" and hardware.prefers_bfloat16(chosen)
    return Precision(chosen, bfloat16=precision == "bfloat16" or automatic)
