"""Before a training: can this cut carry a mark that will be provable, and if not, what to change?

Three things decide. The *dimension* d of the activation bounds the bits that fit, and a verdict needs a least
number of bits (:mod:`sigil.rules`). The *layers* in front of the cut must be able to move the
activation towards the mark: that is tried out, on a copy of the half that follows the gradient of the mark
alone. And what lies *at* the cut decides what a thief can undo without a trace.
"""

from __future__ import annotations

import copy
import dataclasses
import math
from dataclasses import dataclass
from typing import Final, Literal

import torch
from torch import Tensor, nn

from sigil import arguments
from sigil.errors import ConfigError, ShapeError, reason, shown
from sigil.injector import Injector
from sigil.keys.key import Key
from sigil.keys.length import LEAST_DIMENSIONS_PER_BIT, default_bits
from sigil.keys.statement import check_bits
from sigil.probing import undisturbed
from sigil.rules import ALPHA, MOST_CUTS, PLAIN_ALLOWANCE_LOG2, STAMPED_ALLOWANCE_LOG2, Price
from sigil.verdict import choices, wording

TRIAL_STEPS: Final = 60
_TRIAL_BATCH: Final = 32
_NORMS: Final = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d, nn.SyncBatchNorm)
# In a trial the mark has the gradient to itself; below this share of the bits it will not take beside a task.
_HOPELESS: Final = 0.75


@dataclass(frozen=True)
class Inspection:
    """What :func:`inspect` found: whether the cut can carry a provable mark, and what to change.

    ``shape`` is that of one activation, ``dimension`` its d, ``channels`` its first size; ``bits`` is the
    length that a key has by default and ``most_bits`` what fits; ``needed_rate`` is the success rate (WSR)
    that proves such a key if all inputs agree, infinite if none does; ``trial_rate`` the rate that the trial
    reached without a task beside the mark, None if it was left out. ``problems`` prevent a proof, ``advice``
    improves it. ``key`` says in words with which key.
    """

    provable: bool
    shape: tuple[int, ...]
    dimension: int
    channels: int
    bits: int
    most_bits: int
    needed_rate: float
    trial_rate: float | None
    problems: tuple[str, ...]
    advice: tuple[str, ...]
    key: str = "a key"

    def __str__(self) -> str:
        verdict = "can" if self.provable else "CANNOT"
        lines = [
            f"This cut {verdict} carry a provable mark: {self.dimension:,} dimensions in {self.channels} "
            f"channels, {self.bits} bits by default, at most {self.most_bits}."
        ]
        if self.trial_rate is not None:
            proof = f"no rate is proof with {self.key}"
            if math.isfinite(self.needed_rate):
                needed = wording.needed_percent(self.needed_rate)
                proof = f"proof with {self.key} takes {needed} {wording.IF_ALL_AGREE}"
            lines.append(f"A trial without a task reached {wording.percent(self.trial_rate)}; {proof}.")
        lines += [f"Problem: {problem}" for problem in self.problems]
        lines += [f"Advice: {sentence}" for sentence in self.advice]
        return "\n".join(lines)


def inspect(
    client_half: nn.Module,
    example_input: Tensor,
    *,
    server_half: nn.Module | None = None,
    key: Key | Literal["plain", "stamped"] = "plain",
    bits: int | None = None,
    steps: int = TRIAL_STEPS,
) -> Inspection:
    """Say before training whether a client half, cut where it ends, can carry a provable mark.

    ``example_input`` is a batch (n, *input shape); a few real inputs are best. The half and the random states
    stay as they are. ``server_half`` is looked at for a batch norm behind the cut; ``key`` is the key to be
    used, or its kind and ``bits`` its length, by default that of :meth:`sigil.Key.generate`. Of a kind alone
    it is taken that the key will state neither cut nor input shape, which p pays for. ``steps`` is the length
    of the trial; 0 leaves it out.
    """
    steps = arguments.whole("The number of steps", steps)
    bits = None if bits is None else check_bits(bits)
    activation = _activation(client_half, example_input)
    if not example_input.is_floating_point() and example_input.dtype is not torch.uint8:
        raise ShapeError(
            f"The example input is of type {example_input.dtype}, but a mark is read on numbers like noise: "
            "of a model that begins with an embedding of tokens, give the part behind it and what it takes."
        )
    shape = tuple(activation.shape[1:])
    rectified = bool((activation >= 0).all())
    dimension = math.prod(shape)
    if isinstance(key, Key):
        if bits is not None or key.shape != shape:
            raise ConfigError(
                f"The key has {key.bits} bits for activations of shape {key.shape}; give it without bits, "
                f"and with the half that it was made for; this one has the shape {shape}."
            )
        kind, length, alpha = key.kind, key.bits, float(key.fields.alpha)
        price = choices.price(key, cuts=choices.count_cuts(client_half, key))
    elif key in ("plain", "stamped"):
        kind, alpha = key, ALPHA
        length = default_bits(shape, "none" if kind == "plain" else "rfc3161") if bits is None else bits
        price = Price(PLAIN_ALLOWANCE_LOG2 if kind == "plain" else STAMPED_ALLOWANCE_LOG2, cuts=MOST_CUTS)
    else:
        raise ConfigError(f'key is {shown(key)}, but a key or its kind is wanted: "plain" or "stamped".')
    rate = price.needed_rate(length, alpha)
    reached = _trial(client_half, example_input, shape, length, steps) if steps else None
    problems = _length_problems(dimension, length, kind, price, alpha)
    if reached is not None and reached < _HOPELESS:
        problems.append(
            "Even without a task the layers in front of the cut bring only "
            f"{wording.percent(reached)} of {length} bits right; cut deeper, where more layers shape the "
            "activation, or use fewer bits."
        )
    return Inspection(
        provable=not problems,
        shape=shape,
        dimension=dimension,
        channels=shape[0],
        bits=length,
        most_bits=dimension // LEAST_DIMENSIONS_PER_BIT,
        needed_rate=rate,
        trial_rate=reached,
        key=f"a {kind} key{wording.left_open(price)}",
        problems=tuple(problems),
        advice=tuple(_advice(server_half, rectified, dimension, length, reached, rate)),
    )


def _activation(half: nn.Module, batch: Tensor) -> Tensor:
    with undisturbed(half, seed=0):
        try:
            activation = half(batch)
        except Exception as error:  # it is the caller's own code, which can fail in any way
            raise ShapeError(
                f"The client half does not run on the example input of shape {tuple(batch.shape)} "
                f"({reason(error)}); give a batch as it takes them."
            ) from error
    activation = arguments.tensor("activation that the client half returns", activation)
    if not activation.is_floating_point() or not bool(activation.isfinite().all()):
        raise ShapeError(
            "The client half returns values that are not finite numbers for the example input; give a batch "
            "of usual inputs."
        )
    if activation.ndim < 2 or len(activation) != len(batch) or not activation.numel():
        raise ShapeError(
            f"The client half returns shape {tuple(activation.shape)} for an example of shape "
            f"{tuple(batch.shape)}, not one activation for each of {len(batch)} inputs; give a batch (n, …), "
            "such as images[:32]."
        )
    return activation


def _length_problems(dimension: int, bits: int, kind: str, price: Price, alpha: float) -> list[str]:
    least = price.shortest_bits(alpha)
    wanted, fits = least * LEAST_DIMENSIONS_PER_BIT, dimension // LEAST_DIMENSIONS_PER_BIT
    if dimension < wanted:
        fewer = dataclasses.replace(price, allowance_log2=STAMPED_ALLOWANCE_LOG2).shortest_bits(alpha)
        enough = kind == "plain" and fewer <= fits
        other = f", or have the key stamped, which takes {fewer} bits" if enough else ""
        return [
            f"{dimension} dimensions hold {fits} bits, and a {kind} key{wording.left_open(price)} proves "
            f"nothing with fewer than {least}; cut where there are at least {wanted} dimensions{other}."
        ]
    if bits < least:
        problem = wording.too_short(bits, kind, price, alpha)
        return [f"{problem[0].upper()}{problem[1:]}."]
    if bits > fits:
        return [f"{bits} bits do not fit into {dimension} dimensions; give the key at most {fits}."]
    return []


def _advice(
    server: nn.Module | None,
    rectified: bool,
    dimension: int,
    bits: int,
    reached: float | None,
    rate: float,
) -> list[str]:
    advice = []
    if reached is not None and _HOPELESS <= reached < rate < math.inf:
        advice.append(
            "The trial fell short of the rate of proof; train for many rounds, raise the strength to 0.3, "
            "and ask sigil.check after the training."
        )
    if bits * 16 > dimension:
        advice.append(
            f"{dimension / bits:.2g} dimensions per bit are few, and attacks leave less of such a mark; a "
            f"cut with {16 * bits:,} dimensions would be better."
        )
    if not rectified:
        advice.append(
            "The activation has negative values, so no ReLU ends the half, and a thief can mix its channels "
            "by any matrix and undo that behind the cut; cut behind a ReLU if the network has one."
        )
    layers = () if server is None else (part for part in server.modules() if not any(part.children()))
    if isinstance(next(iter(layers), None), _NORMS):
        advice.append(
            "A batch norm follows the cut, which undoes every shift and scale of a channel; cut behind it, "
            "or behind its rectifier."
        )
    return advice


def _trial(half: nn.Module, batch: Tensor, shape: tuple[int, ...], bits: int, steps: int) -> float:
    """The share of bits that a copy of the half answers rightly after following the mark's gradient alone."""
    injector = Injector(Key.generate("trial", shape, bits=bits, seed=bytes(32)), statistics=True)
    with undisturbed(half, seed=0), torch.enable_grad():
        trial = copy.deepcopy(half).float().train().requires_grad_(True)
        inputs = batch[:_TRIAL_BATCH].float()
        if len(inputs) < _TRIAL_BATCH:  # batch norms need several, and the mark must hold beyond one input
            more = torch.randn(_TRIAL_BATCH - len(inputs), *inputs.shape[1:]).to(inputs.device)
            inputs = torch.cat([inputs, more])
        parameters = list(trial.parameters())
        steps = steps if parameters else 0
        velocity = [torch.zeros_like(parameter) for parameter in parameters]
        for step in range(steps):
            activation = trial(inputs)
            # Of a unit gradient as the task's, the injector's part is the direction of the mark.
            unit = torch.ones_like(activation) / activation.numel() ** 0.5
            mark = injector(activation.detach(), unit) - unit
            if not bool(mark.any()):
                break
            gradients = torch.autograd.grad(activation, parameters, mark, allow_unused=True)
            _follow(parameters, velocity, gradients, 0.1 * (1 - step / steps))
        trial.eval()
        with torch.no_grad():
            final = trial(inputs)
            injector(final, torch.ones_like(final))
    assert injector.last is not None
    return injector.last.wsr


@torch.no_grad()
def _follow(
    parameters: list[nn.Parameter],
    velocity: list[Tensor],
    gradients: tuple[Tensor | None, ...],
    rate: float,
) -> None:
    """Move every parameter against its gradient by a share of its own norm, with momentum."""
    for parameter, speed, gradient in zip(parameters, velocity, gradients, strict=True):
        if gradient is None or not bool(gradient.any()):
            continue
        length = parameter.norm().clamp(min=parameter.numel() ** 0.5 * 0.1)
        speed.mul_(0.9).add_(gradient / gradient.norm() * length, alpha=0.1)
        parameter.sub_(speed, alpha=rate * 5)
