"""The gradient injector: turns the gradient that a server returns into one that carries the mark.

With A the activations of one batch, flattened to N×d, M the secret d×k matrix and b the secret bits,
the watermark loss is the mean binary cross-entropy of sigmoid(A M) against b. Its gradient has a closed
form (paper, equations 1 to 3)::

    E       = (sigmoid(A M) - b) / (N k)                            N×k
    G_wm    = E Mᵀ                                                  N×d
    s       = min(1, strength · ‖G_main‖ / ‖G_wm‖)
    G_final = G_main + s G_wm

Without the cap at 1 the mark's part of G_final is the share ``strength`` of G_main's norm whatever a client
multiplies its gradients by; with it a client that scales them up starves the mark, so that the server must
judge the logit gradients first (:mod:`sigil.logit_gradients`). With a share of the bits, M and b are reduced
to the columns that this client carries.

The cap compares two losses, so that it must know the scale of both: where the task's loss is multiplied by c
and its gradients are divided by c afterwards (loss scaling), G_wm is multiplied by c as well, and s ≤ 1
becomes s ≤ c. :meth:`Injector.attach` takes c from the ``GradScaler`` of the process.

Norms neither underflow nor overflow: they are taken of values rescaled by a power of two, which is exact,
where the plain norm leaves the comfortable range of float32. The paper's ε is the smallest number of the
format, so that it never decides anything.

Nothing of size N×d is formed twice: ‖G_wm‖² = trace(E (MᵀM) Eᵀ) needs only the k×k Gram matrix of M, so
that s is known before G_wm exists, and G_final is one fused multiply-add. The rows of M are kept in the
order in which the activation lies in memory, so that flattening a channels-last tensor copies nothing.

Only tensors go in and out: this file knows nothing of models, data or federations.
"""

from __future__ import annotations

import gc
import math
import operator
import os
import sys
import warnings
import weakref
from dataclasses import dataclass
from inspect import getattr_static
from typing import Protocol

import torch
from torch import Tensor
from torch.utils.hooks import RemovableHandle

from sigil import arguments, hardware
from sigil.errors import ConfigError, ShapeError, SigilError, shown

# Norms between these are exact enough in float32 for any batch; outside, values are rescaled first.
_COMFORTABLE = (1e-12, 1e15)
_FORMATS = (torch.float32, torch.bfloat16, torch.float16, torch.float64)
# This many activations without one gradient are a loop that attaches too late, and no pipeline.
_SUSPICIOUS = 32
# ‖G_main‖ over the norm of G_wm while all bits are undecided. A mean cross-entropy that nobody scaled begins
# between 0.03 and 7 at every cut of the four architectures; a scale of 2^16 brings it to thousands. Later
# single batches, and trainings that diverge, go above 64: harmless, unless a scaler of another loss is there.
# Below the second number times a scale nothing was scaled by it.
_SCALED = 64.0
_VANISHED = 2.0**-14
# This many gradients in a row that starve the mark are not an accident of one batch.
_STARVED = 8
# A search takes a tenth of a second, and a client decides how large its gradients are: this many in vain.
_SEARCHES = 8


class Secret(Protocol):
    """What an injector needs of a :class:`sigil.Key`: the shape at the cut, M (d, k) and b (k,).

    With a share of the bits also ``share_of(client, clients, carriers_per_bit)``, a mask (k,).
    """

    @property
    def shape(self) -> tuple[int, ...]: ...
    @property
    def matrix(self) -> Tensor: ...
    @property
    def target(self) -> Tensor: ...
    def share_of(self, client: int, clients: int, carriers_per_bit: int | None = None) -> Tensor: ...


@dataclass(frozen=True)
class InjectionStatistics:
    """What one injection did, as plain numbers.

    ``main_norm``, ``watermark_norm`` and ``injected_norm`` are the norms over the whole batch of G_main, of
    G_wm before clipping and of s·G_wm; ``factor`` is s (the mean over the samples if clipping is per
    sample); ``cosine`` is that of G_main and G_wm; ``wsr`` the share of the batch's bits that are right.
    """

    main_norm: float
    watermark_norm: float
    injected_norm: float
    factor: float
    cosine: float
    wsr: float


class Injector:
    """Add a clipped watermark gradient to the gradient that goes back to a client.

    >>> import sigil, torch
    >>> key = sigil.Key.generate(owner="ACME", shape=(8, 4, 4), bits=16)
    >>> injector = sigil.Injector(key, strength=0.1)
    >>> activation, gradient = torch.rand(32, 8, 4, 4), torch.randn(32, 8, 4, 4)
    >>> final = injector(activation, gradient)
    >>> bool((final - gradient).norm() <= 0.1001 * gradient.norm())
    True

    ``key`` is a key or the path of its file.
    ``strength`` is the paper's λ, the largest ratio of the watermark gradient's norm to the task gradient's.
    ``clip=False`` adds G_wm as it is (a positive control for detectors; never use it to hide a mark).
    ``cap=False`` lifts the paper's s ≤ 1: the mark's part is then always ``strength`` of the gradient's norm.
    ``share=(i, n)`` makes this the injector of client i of 0 … n - 1, which carries its part of the bits
    only; each bit is carried by ``carriers_per_bit`` of the clients.
    ``per_sample=True`` clips each sample's gradient by its own norms instead of the batch's.
    ``statistics=True`` fills :attr:`last` at each call; without it nothing extra is computed.
    """

    def __init__(
        self,
        key: Secret | str | os.PathLike[str],
        strength: float = 0.1,
        *,
        clip: bool = True,
        cap: bool = True,
        share: tuple[int, int] | None = None,
        carriers_per_bit: int | None = None,
        per_sample: bool = False,
        statistics: bool = False,
    ) -> None:
        wanted = "a finite number of at least 0; the paper uses 0.01, 0.1 and 1.0"
        if not 0.0 <= strength <= sys.float_info.max:
            raise ConfigError(f"The watermark strength is {shown(strength)}, but it must be {wanted}.")
        if share is None and carriers_per_bit is not None:
            raise ConfigError("carriers_per_bit is about a share of the bits: give share=(i, n) as well.")
        self.key: Secret = _secret(key)
        self.strength = float(strength)
        self.clip = clip
        self.cap = cap
        self.share = share
        self.per_sample = per_sample
        self.statistics = statistics
        self._carried = None if share is None else _carried(self.key, share, carriers_per_bit)
        self._operands: dict[tuple[torch.device, torch.dtype, bool], tuple[Tensor, Tensor, Tensor]] = {}
        self._last: dict[str, Tensor] | None = None
        self._attached, self._arrived = 0, False
        self._scaler: weakref.ref[torch.amp.GradScaler] | None = None
        self._searches, self._starved, self._warned = 0, 0, False

    def __repr__(self) -> str:
        share = "" if self.share is None else f", share={self.share}"
        return f"Injector({self.key!r}, strength={self.strength:g}, clip={self.clip}{share})"

    @property
    def last(self) -> InjectionStatistics | None:
        """Statistics of the last call, or None if they were not asked for (or nothing was injected yet)."""
        if self._last is None:
            return None
        return InjectionStatistics(**{name: float(value) for name, value in self._last.items()})

    def __call__(self, activation: Tensor, gradient: Tensor) -> Tensor:
        """Return G_final for a batch: (N, *shape), (N, *shape) -> (N, *shape), inputs untouched.

        The result has the gradient's dtype, device and memory layout. If the gradient is zero or not
        finite, or the activation is not finite, nothing is added.
        """
        return self._final(activation, gradient, 1.0)

    @torch.no_grad()
    def _final(self, activation: Tensor, gradient: Tensor, loss_scale: float | None) -> Tensor:
        """G_final where the loss was multiplied by `loss_scale`, which is found out if it is None."""
        self._check(activation, gradient)
        if self._carried is not None and not len(self._carried):
            return gradient.clone()  # more clients than bits: this one carries none
        work = _work_dtype(gradient)
        read, target, gram = self._prepared(activation.device, work, _channels_last(activation))
        write, _, _ = self._prepared(gradient.device, work, _channels_last(gradient))

        projection = _flat(activation).to(work) @ read
        # σ(P) - b as -s σ(-s P), which keeps its relative accuracy where a bit has long been right.
        signs = 2.0 * target - 1.0
        error = torch.sigmoid(projection.to(gram.dtype) * -signs).mul_(-signs)
        scale = 1.0 / max(1, error.numel())
        # Norms as columns: one row for the batch, or one per sample; main is that of power · G_main.
        main, power = _norms(gradient, self.per_sample)
        mark = scale * _mark_norms(error, gram, self.per_sample)

        if loss_scale is None:
            undecided = 0.5 * gram.trace().div(len(error)).sqrt() / len(gram)
            size = _whole(main / power)
            loss_scale = self._loss_scale(float(size / undecided), float(_whole(mark) / size))
        # s times power: the cap s <= 1 is s · power <= power, times the scale of the loss.
        factor = torch.ones_like(mark) * power * loss_scale
        if self.clip:
            reach = self.strength * main.to(mark.dtype) / mark.clamp(min=torch.finfo(mark.dtype).tiny)
            factor = torch.minimum(reach, factor) if self.cap else reach
        sound = torch.isfinite(main) & (main > 0) & torch.isfinite(mark) & (mark > 0)
        coefficients = torch.where(sound, error * (scale * factor), 0.0)
        final = _fused(gradient, coefficients.to(work), write, power)

        if self.statistics:
            factor, main = torch.where(sound, factor, 0.0) / power, main / power
            inner = ((_flat(gradient).to(work) @ write).to(error.dtype) * error).sum() * scale
            whole, raw, least = _whole(main), _whole(mark), torch.finfo(mark.dtype).tiny
            self._last = {
                "main_norm": whole,
                "watermark_norm": raw,
                "injected_norm": _whole(factor * mark),
                "factor": factor.mean(),
                "cosine": inner / raw.clamp(min=least) / whole.clamp(min=least),
                "wsr": ((projection >= 0) == (target > 0.5)).float().mean(),
            }
        return final

    def attach(self, activation: Tensor, *, loss_scale: float | None = None) -> RemovableHandle:
        """Hook a tensor, so that what flows back through it is watermarked.

        Works on the activation as it arrived (a leaf) and on one in the middle of a graph. Only the
        gradient with respect to the activation changes: the parameters behind it, the server's own, get
        their clean gradients. The hook lives as long as the tensor, or until the returned handle's
        ``remove()``.

        ``loss_scale`` is the number by which the loss is multiplied before ``backward()`` in mixed precision.
        It need not be given for a ``torch.amp.GradScaler``, whose scale is used where the gradients show
        that one scaled them.
        """
        if loss_scale is not None:
            wanted = "a finite number above 0, by which the loss is multiplied"
            if not 0.0 < loss_scale < float("inf"):
                raise ConfigError(f"The loss scale is {loss_scale}, but it must be {wanted}.")
        self._check_activation(activation)
        if any(getattr(hook, "__sigil__", False) for hook in (activation._backward_hooks or {}).values()):
            raise ConfigError(
                "An injector is attached to this activation already, and a second one would mark its "
                "gradient twice; attach once for each batch, or remove() the first handle."
            )
        if not activation.requires_grad:
            raise SigilError(
                "The activation does not require a gradient, so none would ever arrive to be watermarked; "
                "call activation.requires_grad_() before the server's forward pass."
            )
        # A detached alias shares the storage but not the graph: no reference cycle, nothing kept alive.
        values, version = activation.detach(), activation._version

        self._attached += 1
        if self._attached == _SUSPICIOUS and not self._arrived:
            warnings.warn(
                f"{_SUSPICIOUS} activations were attached, and no gradient came back through any of them: "
                "attach before backward(), to the tensor that the server's forward pass takes.",
                stacklevel=2,
            )

        if self._starved >= _STARVED and not self._warned:
            self._warned = True
            warnings.warn(
                f"The last {_STARVED} gradients were so large that the mark's cap left it less than a tenth "
                f"of the strength {self.strength:g}; that is loss scaling, a loss summed over the batch or a "
                "training that diverges. Give attach(activation, loss_scale=…) the number that the loss is "
                "multiplied by.",
                stacklevel=2,
            )

        def inject(gradient: Tensor) -> Tensor:
            self._arrived = True
            if values._version != version:
                raise SigilError(
                    "The activation was changed in place after attach(), so its watermark gradient cannot be "
                    "computed; make the first layer behind it not in-place, or attach to a clone."
                )
            return self._final(values, gradient, loss_scale)

        inject.__sigil__ = True  # type: ignore[attr-defined]  # by which a second attach() knows the first
        return activation.register_hook(inject)

    def _loss_scale(self, size: float, share: float) -> float:
        """The number by which the loss was scaled, at least 1.

        `size` is ‖G_main‖ over the norm of G_wm while all bits are undecided, `share` ‖G_wm‖ over ‖G_main‖.
        The answer is never below 1, so that no gradient gets less of the mark than by the paper's cap, and
        none gets more than ``strength``, which clips whatever the answer is.
        """
        if not math.isfinite(size) or (self.clip and not self.cap):
            return 1.0
        scaler = None if self._scaler is None else self._scaler()
        if scaler is None and size > _SCALED and self._searches < _SEARCHES:
            scaler = _scaler_behind(size)
            self._searches = self._searches + 1 if scaler is None else 0
            self._scaler = None if scaler is None else weakref.ref(scaler)
        scale = 1.0 if scaler is None else max(1.0, scaler.get_scale())
        if size < _VANISHED * scale:
            scale = 1.0  # not by this scaler
        starved = size > _SCALED * scale and share * scale < 0.1 * self.strength
        self._starved = self._starved + 1 if starved else 0
        return scale

    def _check_activation(self, activation: Tensor, *, outline: bool = False) -> None:
        arguments.tensor("activation", activation, outline=outline)
        if tuple(activation.shape[1:]) != self.key.shape or activation.ndim == 0 or len(activation) == 0:
            batch = tuple(activation.shape) == self.key.shape
            raise ShapeError(
                f"The activation has the shape {tuple(activation.shape)}, but the key is for batches of "
                f"activations of shape {self.key.shape}; make the key with the shape at the cut"
                + (", without the size of the batch: activation.shape[1:]." if batch else ".")
            )
        _check_format("activation", activation)

    def _check(self, activation: Tensor, gradient: Tensor) -> None:
        # On the device meta nothing is computed, but the arithmetic can be counted.
        self._check_activation(activation, outline=True)
        arguments.tensor("gradient", gradient, outline=True)
        if gradient.shape != activation.shape or gradient.device != activation.device:
            raise ShapeError(
                f"The gradient is {tuple(gradient.shape)} on {gradient.device}, but the activation is "
                f"{tuple(activation.shape)} on {activation.device}; they must agree."
            )
        _check_format("gradient", gradient)

    def _prepared(
        self, device: torch.device, work: torch.dtype, channels_last: bool
    ) -> tuple[Tensor, Tensor, Tensor]:
        """M in the wanted memory order and dtype, b, and the Gram matrix MᵀM, made once."""
        place = (device, work, channels_last)
        if place not in self._operands:
            matrix, bits = self.key.matrix, self.key.target
            if self._carried is not None:
                matrix, bits = matrix[:, self._carried], bits[self._carried]
            if channels_last:
                matrix = matrix.unflatten(0, self.key.shape).permute(1, 2, 0, 3).flatten(0, 2)
            # Half precision would lose the norm: errors, target and Gram matrix stay in float32 or wider.
            wide = torch.promote_types(work, torch.float32)
            matrix, target = matrix.to(device), bits.to(device, wide)
            gram = matrix.to(wide).mT @ matrix.to(wide)
            self._operands[place] = (matrix.to(work).contiguous(), target, gram)
        return self._operands[place]


def _secret(key: Secret | str | os.PathLike[str]) -> Secret:
    """The key that was given, or the one in the file that was named."""
    if isinstance(key, str | os.PathLike):
        from sigil.keys.key import Key

        return Key.load(key)
    # Without asking for the attributes, as a key derives its matrix only then.
    if isinstance(key, type) or any(
        getattr_static(key, name, None) is None for name in ("shape", "matrix", "target")
    ):
        raise ConfigError(
            f"The key is of type {type(key).__name__}, but a sigil.Key or the path of a key file is wanted."
        )
    return key


def _scaler_behind(size: float) -> torch.amp.GradScaler | None:
    """The GradScaler of this process whose scale explains a gradient of `size`, or None.

    A hook sees the scaled gradient and nothing of the loss. The size at an unscaled loss differs a
    hundredfold between networks, so the scale cannot be estimated from it; but the object that holds it can
    be found, and the size tells it from one that scales another loss.
    """
    scalers = [
        it for it in gc.get_objects() if issubclass(type(it), torch.amp.GradScaler) and it.is_enabled()
    ]
    fitting = [it for it in scalers if _VANISHED <= size / it.get_scale() <= _SCALED]
    return min(fitting, key=lambda it: abs(math.log(size / it.get_scale())), default=None)


def _check_format(what: str, tensor: Tensor) -> None:
    if tensor.dtype not in _FORMATS:
        names = ", ".join(str(dtype).removeprefix("torch.") for dtype in _FORMATS)
        raise ShapeError(
            f"The {what} is of type {str(tensor.dtype).removeprefix('torch.')}, but floating point is wanted "
            f"({names})."
        )


def _work_dtype(gradient: Tensor) -> torch.dtype:
    """The dtype to multiply in: bfloat16 only where the device has instructions for it, never float16.

    The coefficients of a large batch lie below float16's smallest number, and a processor without
    bfloat16 instructions emulates them, slower than it multiplies float32.
    """
    if gradient.dtype is torch.float64:
        return torch.float64
    if gradient.dtype is torch.bfloat16:
        return torch.bfloat16 if hardware.prefers_bfloat16(gradient.device) else torch.float32
    return torch.float32


def _channels_last(tensor: Tensor) -> bool:
    return (
        tensor.ndim == 4
        and tensor.is_contiguous(memory_format=torch.channels_last)
        and not tensor.is_contiguous()
    )


def _flat(tensor: Tensor) -> Tensor:
    """(N, *shape) -> (N, d) in memory order; a copy only if the tensor is in neither usual layout."""
    return (tensor.permute(0, 2, 3, 1) if _channels_last(tensor) else tensor).flatten(1)


def _norms(gradient: Tensor, per_sample: bool) -> tuple[Tensor, Tensor]:
    """Norms of power · gradient, and power: (1, 1) for the batch or (N, 1) for the samples.

    The power of two is 1 wherever the plain norm is far from both ends of the format.
    """
    flat = _flat(gradient)
    wide = torch.promote_types(gradient.dtype, torch.float32)
    plain = _vector_norm(flat.to(wide), per_sample)
    least, most = _COMFORTABLE
    if _all((plain > least) & (plain < most)):
        return plain, torch.ones_like(plain)
    largest = flat.abs().amax(dim=1, keepdim=True).to(wide)
    if not per_sample:
        largest = largest.amax(dim=0, keepdim=True)
    usual = torch.isfinite(largest) & (largest > 0)
    exponent = torch.frexp(torch.where(usual, largest, 1.0)).exponent
    power = torch.exp2(-exponent.clamp(-120, 120).to(wide))
    return _vector_norm(flat.to(wide) * power, per_sample), power


def _all(conditions: Tensor) -> bool:
    """Whether all hold; assumed of tensors without values, on which arithmetic is only counted."""
    return conditions.is_meta or bool(conditions.all())


def _vector_norm(flat: Tensor, per_sample: bool) -> Tensor:
    if per_sample:
        return torch.linalg.vector_norm(flat, dim=1, keepdim=True)
    return torch.linalg.vector_norm(flat)[None, None]


def _whole(norms: Tensor) -> Tensor:
    """The norm over the batch, of the norms of its parts; that of one part is itself, however small."""
    largest = norms.amax()
    relative = norms / largest.clamp(min=torch.finfo(norms.dtype).tiny)
    return largest * relative.square().sum().sqrt()


def _mark_norms(error: Tensor, gram: Tensor, per_sample: bool) -> Tensor:
    """Norms of E Mᵀ without its factor 1 / (N k), from the Gram matrix: (1, 1) or (N, 1)."""
    # Errors of bits that have long been right are too small to be squared as they are.
    largest = error.abs().amax(dim=1, keepdim=True)
    if not per_sample:
        largest = largest.amax(dim=0, keepdim=True)
    relative = error / largest.clamp(min=torch.finfo(error.dtype).tiny)
    square = (relative @ gram).mul_(relative)
    total = square.sum(1, keepdim=True) if per_sample else square.sum()[None, None]
    return largest * total.clamp(min=0.0).sqrt()


def _carried(key: Secret, share: tuple[int, int], carriers_per_bit: int | None) -> Tensor:
    """The indices of the bits that this client carries."""
    try:
        client, clients = map(operator.index, share)
    except (TypeError, ValueError):
        client, clients = -1, 0
    if not 0 <= client < clients:
        raise ConfigError(
            f"The share {shown(share)} names no client of a number of clients; give (i, n) with i from 0 "
            "to n - 1."
        )
    return key.share_of(client, clients, carriers_per_bit).nonzero().flatten()


def _fused(gradient: Tensor, coefficients: Tensor, matrix: Tensor, power: Tensor) -> Tensor:
    """gradient + coefficients · matrixᵀ / power as one multiply-add, in the gradient's dtype and layout."""
    flat = _flat(gradient).to(matrix.dtype)
    if _all(power == 1):
        flat = torch.addmm(flat, coefficients, matrix.mT)
    else:
        flat = torch.addmm(flat * power.to(flat.dtype), coefficients, matrix.mT) / power.to(flat.dtype)
    flat = flat.to(gradient.dtype)
    if _channels_last(gradient):
        n, c, h, w = gradient.shape
        return flat.view(n, h, w, c).permute(0, 3, 1, 2)
    final = flat.view(gradient.shape)
    if gradient.is_contiguous():
        return final
    return torch.empty_like(gradient, memory_format=torch.preserve_format).copy_(final)
