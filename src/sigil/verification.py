"""Verification: ask a suspect model for the bits of a key and say how surprising the answer is.

The paper's verification algorithm (Algorithm 2) followed by the exact test. ``N`` random inputs go
through the suspect up to the cut; their activations, flattened, are projected by the key,

    P = A M,        B'_ij = 1[P_ij >= 0],        WSR = share of B'_ij that equal b_j,

and the p-value is the probability that a target drawn by coin flips would have matched at least
this well (see :mod:`sigil.statistics`). It holds for every suspect, without any clean model to
compare with, because under the null hypothesis only the key's target is random.
"""

from __future__ import annotations

import dataclasses
import math
import random
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from sigil import statistics
from sigil.errors import ConfigError, ShapeError, SuspectError
from sigil.key import Key

ALPHA = 3e-7
"""The paper's five-sigma level: the default p-value below which ownership is proven."""

PAPER_THRESHOLD = 0.70
"""The paper's fixed rule, ``WSR > 0.70``: reported beside the verdict, never instead of it."""

# Floats held at once: activations waiting for their projection, or one block of rows of M (128 MB).
_BUDGET = 1 << 25


@dataclass(frozen=True)
class Report:
    """What one verification found.

    ``owned`` is the verdict: the p-value, corrected for ``tries``, is at most ``alpha``. ``wsr`` is
    the watermark success rate over all probes and bits. ``threshold`` is the smallest WSR at which
    this very suspect would have been found owned (infinite if no WSR can: the key is too short).

    Per bit ``j``, in the key's order: ``bit_shares`` is the share of probes whose bit equals the
    target; ``margins`` is ``s_j * mean_i(P_ij) / sqrt(mean_i(P_ij ** 2))`` with ``s_j`` the sign
    that the target asks for, so +1 is a constant projection on the right side of zero and -1 one
    on the wrong side. ``bit_error`` is the share of bits whose majority over the probes is wrong.
    """

    owned: bool
    wsr: float
    p_value: float
    log10_p: float
    exact: bool
    threshold: float
    alpha: float
    tries: int
    bits: int
    probes: int
    seed: int
    bit_error: float
    bit_shares: tuple[float, ...]
    margins: tuple[float, ...]
    paper_rule: bool
    commitment: str
    owner: str
    aligned: bool

    @property
    def weights(self) -> tuple[int, ...]:
        """``|w_j| = |2 n_j - N|``, the numbers whose random signs make up the null distribution."""
        return tuple(round(abs(2 * share - 1) * self.probes) for share in self.bit_shares)

    def to_dict(self) -> dict[str, Any]:
        """The report as plain JSON values; an infinite threshold becomes ``None``."""
        values = dataclasses.asdict(self)
        for name, value in values.items():
            if isinstance(value, tuple):
                values[name] = list(value)
            elif isinstance(value, float) and not math.isfinite(value):
                values[name] = None
        return values

    def sentence(self) -> str:
        """The verdict in one sentence for people."""
        chance = statistics.in_words(self.log10_p)
        bound = "" if self.exact else "at most "
        found = f"its bits agree with the key of {self.owner} in {self.wsr:.1%} of cases"
        if self.owned:
            return (
                f"The suspect carries the mark: {found}, which chance alone would reach with a "
                f"probability of {bound}{chance}."
            )
        if math.isinf(self.threshold):
            needed = f"no agreement on its {self.bits} bits would be proof (p <= {self.alpha:.1g})"
        else:
            needed = f"proof (p <= {self.alpha:.1g}) takes {self.threshold:.1%}"
        return (
            f"The suspect is not shown to carry the mark: {found}, which chance alone would reach "
            f"with a probability of {bound}{chance}, and {needed}."
        )


def verify(
    suspect: Callable[[Tensor], Tensor],
    key: Key,
    *,
    input_shape: Sequence[int] | None = None,
    probes: int = 512,
    seed: int = 0,
    alpha: float = ALPHA,
    tries: int = 1,
    batch_size: int = 64,
) -> Report:
    """Say whether ``suspect`` carries the mark of ``key``, and how sure that is.

    ``suspect`` is the model up to the cut: an ``nn.Module`` or a :class:`sigil.suspect.Suspect`
    (any callable from a float batch ``(n, *input_shape)`` to activations ``(n, *key.shape)``). A
    module stays where it is and as it is: it runs on its own device and in its own dtype, in
    evaluation mode and without gradients, and gets the training flag of every submodule back. The
    random states of torch, numpy and Python are the same before and after.

    ``probes`` inputs are drawn from N(0, 1) with ``seed``; the same seed gives the same probes
    whatever the ``batch_size``. ``tries`` is the number of keys and suspects that were tried in
    all: the p-value is multiplied by it. ``input_shape`` may be left out when the suspect knows it.
    """
    _check_settings(probes=probes, seed=seed, alpha=alpha, tries=tries, batch_size=batch_size)
    shape = _input_shape(suspect, input_shape)
    ones, sums, squares = _project(suspect, key, shape=shape, probes=probes, seed=seed, batch_size=batch_size)

    target = key.target.to(torch.int64)
    signs = 2 * target - 1
    matches = torch.where(target == 1, ones, probes - ones)
    rms = (squares / probes).sqrt()
    margins = torch.where(rms > 0, signs * (sums / probes) / rms, 0.0)
    majority = (2 * ones >= probes).to(torch.int64)

    tail = statistics.p_value(ones.numpy(), target.numpy(), probes)
    log10_p = statistics.correct(tail.log10_p, tries)
    wsr = int(matches.sum()) / (probes * key.bits)
    return Report(
        owned=bool(log10_p <= math.log10(alpha)),
        wsr=wsr,
        p_value=10.0**log10_p,
        log10_p=log10_p,
        exact=tail.exact,
        threshold=statistics.threshold((2 * ones - probes).numpy(), probes=probes, alpha=alpha / tries),
        alpha=alpha,
        tries=tries,
        bits=key.bits,
        probes=probes,
        seed=seed,
        bit_error=float((majority != target).double().mean()),
        bit_shares=tuple((matches / probes).tolist()),
        margins=tuple(margins.tolist()),
        paper_rule=wsr > PAPER_THRESHOLD,
        commitment=key.commitment,
        owner=key.owner,
        aligned=False,
    )


def _check_settings(*, probes: int, seed: int, alpha: float, tries: int, batch_size: int) -> None:
    for name, value in (("probes", probes), ("tries", tries), ("batch_size", batch_size)):
        if value < 1:
            raise ConfigError(f"{name} is {value}, but it must be at least 1.")
    if not 0 <= seed < 1 << 63:
        raise ConfigError(f"seed is {seed}, but it must lie between 0 and 2**63 - 1.")
    if not 0 < alpha < 1:
        raise ConfigError(f"alpha is {alpha}, but it must lie between 0 and 1, such as {ALPHA:g}.")


def _input_shape(suspect: Callable[[Tensor], Tensor], given: Sequence[int] | None) -> tuple[int, ...]:
    known = given if given is not None else getattr(suspect, "input_shape", None)
    if known is None:
        raise ShapeError(
            "The suspect does not say what input it takes: give its input shape without the batch, "
            "such as 3,32,32."
        )
    shape = tuple(int(size) for size in known)
    if not shape or min(shape) < 1:
        raise ShapeError(f"The input shape {shape} is not one: every size must be at least 1.")
    return shape


def _project(
    suspect: Callable[[Tensor], Tensor],
    key: Key,
    *,
    shape: tuple[int, ...],
    probes: int,
    seed: int,
    batch_size: int,
) -> tuple[Tensor, Tensor, Tensor]:
    """Per bit over all probes: how many bits are one, the sum and the sum of squares of P."""
    module = suspect if isinstance(suspect, nn.Module) else getattr(suspect, "module", None)
    device, dtype = _placement(module)
    generator = torch.Generator().manual_seed(seed)
    ones = torch.zeros(key.bits, dtype=torch.int64)
    sums = torch.zeros(key.bits, dtype=torch.float64)
    squares = torch.zeros(key.bits, dtype=torch.float64)

    # Several batches wait for one projection, so that a key too large to be held as a whole is
    # derived once for all of them.
    wave = max(1, _BUDGET // max(key.dimension, key.bits) // batch_size) * batch_size
    with _undisturbed(module, device=device, seed=seed):
        for first in range(0, probes, wave):
            last = min(first + wave, probes)
            waiting = []
            for start in range(first, last, batch_size):
                count = min(batch_size, last - start)
                # One draw a probe: the stream of normals is cut the same way for every batch size.
                batch = torch.stack([torch.randn(shape, generator=generator) for _ in range(count)])
                waiting.append(_activations(suspect, key, batch.to(device, dtype)))
            projection = _times_matrix(torch.cat(waiting), key)
            if not bool(torch.isfinite(projection).all()):
                raise SuspectError(
                    "The suspect's activations at the cut hold values that are not finite: its "
                    "weights are damaged or it does not fit this input."
                )
            ones += (projection >= 0).sum(dim=0)
            sums += projection.sum(dim=0, dtype=torch.float64)
            squares += projection.double().square_().sum(dim=0)
    return ones, sums, squares


def _activations(suspect: Callable[[Tensor], Tensor], key: Key, batch: Tensor) -> Tensor:
    """Run one batch and return its activations as float32 on the CPU, ``(n, d)``."""
    try:
        activation = suspect(batch)
    except (RuntimeError, ValueError, TypeError, IndexError) as error:
        reason = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise SuspectError(
            f"The suspect does not run on inputs of shape {tuple(batch.shape[1:])} ({reason}): "
            "give the input shape that it was trained with."
        ) from error
    if not isinstance(activation, Tensor):
        raise SuspectError(
            f"The suspect returns {type(activation).__name__} and not one tensor: give the part of "
            "the model that ends at the cut."
        )
    if tuple(activation.shape) != (len(batch), *key.shape):
        raise ShapeError(
            f"The suspect's activation has shape {tuple(activation.shape[1:])} but the key was "
            f"made for {key.shape}: cut the suspect where the key's activation is, or use the key "
            "of this cut."
        )
    # reshape reads in logical order (channel, row, column), also when channels lie last in memory.
    return activation.detach().to("cpu", torch.float32).reshape(len(batch), key.dimension)


def _times_matrix(activation: Tensor, key: Key) -> Tensor:
    """``A M`` for ``A`` of shape (n, d), by blocks of rows of M when M is too large to hold."""
    rows = max(1, _BUDGET // key.bits)
    if key.dimension <= rows:
        return activation @ key.matrix
    projection = torch.zeros(len(activation), key.bits)
    for start in range(0, key.dimension, rows):
        stop = min(start + rows, key.dimension)
        projection.addmm_(activation[:, start:stop], key.rows(start, stop))
    return projection


def _placement(module: nn.Module | None) -> tuple[torch.device, torch.dtype]:
    """Where the module's floating-point numbers live, and in which dtype."""
    if module is not None:
        for tensor in (*module.parameters(), *module.buffers()):
            if tensor.is_floating_point():
                return tensor.device, tensor.dtype
    return torch.device("cpu"), torch.float32


@contextmanager
def _undisturbed(module: nn.Module | None, *, device: torch.device, seed: int) -> Iterator[None]:
    """Evaluation mode, no gradients and fixed random states inside; all as before afterwards.

    A suspect that draws random numbers in its forward pass draws the same ones every time.
    """
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
