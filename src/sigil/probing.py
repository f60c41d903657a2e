"""Ask a suspect for its activations, and leave it and its surroundings as they were."""

from __future__ import annotations

import math
import operator
import random
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from sigil import arguments
from sigil.eager import Mode
from sigil.errors import NotReadable, ShapeError, SigilError, SuspectError, reason

Suspect = Callable[[Tensor], Tensor]
"""A model up to the cut: float batch (n, *input shape) to activations (n, channels, …)."""


MAX_INPUT_ELEMENTS = 1 << 24
"""Numbers that one input may have: five images of 1024 by 1024 pixels in colour."""
_BATCH_ELEMENTS = 1 << 24


def input_shape_of(suspect: Suspect, given: Sequence[int] | None = None) -> tuple[int, ...]:
    """The shape of one input: the given one, or else what the suspect says of itself."""
    known = given if given is not None else getattr(suspect, "input_shape", None)
    if known is None:
        raise ShapeError(
            "The suspect does not say what input it takes: give its input shape without the batch "
            "(--input-shape 3,32,32, input_shape=(3, 32, 32))."
        )
    shape = tuple(map(operator.index, known))
    if not shape or min(shape) < 1:
        raise ShapeError(f"The input shape {shape} is not one: every size must be at least 1.")
    if math.prod(shape) > MAX_INPUT_ELEMENTS:
        raise ShapeError(
            f"An input of shape {shape} has {math.prod(shape):,} numbers, more than the limit of "
            f"{MAX_INPUT_ELEMENTS:,}: give the shape that the suspect was trained with."
        )
    return shape


def batch_size_for(shape: Sequence[int], wanted: int) -> int:
    """How many inputs of this shape to ask for at once, at most ``wanted``: the file may have chosen it."""
    return max(1, min(wanted, _BATCH_ELEMENTS // math.prod(shape)))


def module_of(suspect: Suspect) -> nn.Module | None:
    """The suspect as a module of PyTorch, or None if it is something else that can be called."""
    return suspect if isinstance(suspect, nn.Module) else getattr(suspect, "module", None)


def filters_of(suspect: Suspect, input_shape: Sequence[int]) -> tuple[Tensor, ...]:
    """The weights of the suspect's two-dimensional convolutions and linear layers, in the order of computing.

    Filters have the sign with which a batch norm behind them passes them on. A module runs on one random
    input to show them. A suspect that is not a module may tell by a method ``filters``; of one that does not,
    nothing is known.
    """
    if module_of(suspect) is None:
        return tuple(getattr(suspect, "filters", tuple)())
    seen = _Filters()
    with undisturbed(suspect, seed=0), seen:
        activations(suspect, noise(input_shape, 1, generator=torch.Generator().manual_seed(0)))
    return tuple(seen.found.values())


class _Filters(Mode):
    """Notes the weights that a computation convolves or multiplies with, whatever layers they are of."""

    def __init__(self) -> None:
        super().__init__()
        self.found: dict[tuple[int, ...], Tensor] = {}
        # What a layer wrote and what it computed with: held, or another tensor could get the same number.
        self._written: dict[int, tuple[tuple[int, ...], Tensor, Tensor]] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        operator = str(func.overloadpacket.__name__)
        if operator == "convolution" and args[1].ndim == 4:
            transposed, groups = args[6], args[8]
            if not transposed:
                self._note(args[1], args[1], out)
            elif groups == 1:
                self._note(args[1].transpose(0, 1).flip(2, 3), args[1], out)
        elif operator in ("addmm", "mm"):
            self._note(args[-1].t()[:, :, None, None], args[-1], out)
        elif "batch_norm" in operator and isinstance(args[1], Tensor) and id(args[0]) in self._written:
            place = self._written.pop(id(args[0]))[0]
            turned = torch.where(args[1] < 0, -1.0, 1.0).to(args[1].dtype)
            self.found[place] = self.found[place] * turned.view(-1, 1, 1, 1).to("cpu")
        return out

    def _note(self, filters: Tensor, weight: Tensor, output: Tensor) -> None:
        place = (weight.data_ptr(), *weight.shape)
        self.found.setdefault(place, filters.detach().to("cpu"))
        self._written[id(output)] = place, weight, output


def noise(shape: Sequence[int], count: int, *, generator: torch.Generator) -> Tensor:
    """``count`` inputs from N(0, 1), drawn one by one, so that batches do not change the stream."""
    return torch.stack([torch.randn(tuple(shape), generator=generator) for _ in range(count)])


def activations(suspect: Suspect, batch: Tensor) -> Tensor:
    """Run one batch where the suspect lives; returns float32 on the CPU, in logical order."""
    device, dtype = _placement(module_of(suspect))
    try:
        activation = suspect(batch.to(device, dtype))
    except SigilError:
        raise
    except Exception as error:  # it is the suspect's own code, which can fail in any way
        raise SuspectError(
            f"The suspect does not run on inputs of shape {tuple(batch.shape[1:])} ({reason(error)}): "
            "give the input shape that it was trained with, and real inputs if it only fails on noise."
        ) from error
    if not isinstance(activation, Tensor):
        raise SuspectError(
            f"The suspect returns {type(activation).__name__} and not one tensor: give the part of "
            "the model that ends at the cut."
        )
    arguments.tensor("suspect's activation", activation, raises=SuspectError)
    if activation.is_complex():
        raise SuspectError("The suspect returns complex numbers, but activations are real ones.")
    if activation.ndim < 2 or len(activation) != len(batch):
        raise ShapeError(
            f"The suspect returns shape {tuple(activation.shape)} for a batch of {len(batch)} inputs: it "
            "must return one activation for each input."
        )
    return activation.detach().to("cpu", torch.float32)


def check_finite(values: Tensor) -> None:
    """Raise :class:`~sigil.errors.NotReadable` unless all values computed from activations are finite."""
    check_readable(1.0 if bool(torch.isfinite(values).all()) else 0.0)


def check_readable(finite: float) -> None:
    """Raise :class:`~sigil.errors.NotReadable` unless at least half of what was computed is finite."""
    if not finite >= 0.5:
        raise NotReadable(
            "The suspect's activations at the cut hold values that are not finite: its weights are "
            "damaged, it does not fit this input, or it was made so that it cannot be read on it."
        )


@contextmanager
def undisturbed(suspect: Suspect, *, seed: int) -> Iterator[None]:
    """Evaluation mode, no gradients and fixed random states inside; all as before afterwards.

    A suspect that draws random numbers in its forward pass draws the same ones every time.
    """
    module = module_of(suspect)
    device, _ = _placement(module)
    flags = [(part, part.training) for part in module.modules()] if module is not None else []
    python_state = random.getstate()
    numpy_state = np.random.get_state()  # noqa: NPY002  the caller's legacy state is what we guard
    devices = [device] if device.type == "cuda" else []
    try:
        # no_grad and not inference_mode: what a module caches in its forward pass must remain
        # usable in training.
        with (
            torch.no_grad(),
            torch.autocast(device.type, enabled=False),
            torch.random.fork_rng(devices=devices),
        ):
            torch.default_generator.manual_seed(seed)
            for used in devices:
                with torch.cuda.device(used):
                    torch.cuda.manual_seed(seed)
            random.seed(seed)
            np.random.seed(seed % (1 << 32))  # noqa: NPY002
            if module is not None:
                module.eval()
            yield
    finally:
        random.setstate(python_state)
        np.random.set_state(numpy_state)  # noqa: NPY002
        for part, training in flags:
            part.training = training


def _placement(module: nn.Module | None) -> tuple[torch.device, torch.dtype]:
    """Where the module's floating-point numbers live, and in which dtype."""
    if module is not None:
        for tensor in (*module.parameters(), *module.buffers()):
            if tensor.is_floating_point():
                return tensor.device, tensor.dtype
    return torch.device("cpu"), torch.float32
