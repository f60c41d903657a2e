"""Before a training: can this cut carry a mark that will be provable, and if not, what to change?

Three things decide. The *dimension* d of the activation bounds the bits that fit, and a verdict needs a least
number of bits (:mod:`sigil.keys.length`). The *layers* in front of the cut must be able to move the
activation towards the mark: that is tried out, on a copy of the half that follows the gradient of the mark
alone. And what lies *at* the cut decides what a thief can undo without a trace.
"""

from __future__ import annotations

import copy
import math
from dataclasses import dataclass
from typing import Final, Literal

import torch
from torch import Tensor, nn

from sigil import arguments
from sigil.errors import ConfigError, ShapeError, reason, shown
from sigil.injector import Injector
from sigil.keys.key import Key
from sigil.keys.length import (
    LEAST_DIMENSIONS_PER_BIT,
    PLAIN_ALLOWANCE_LOG2,
    STAMPED_ALLOWANCE_LOG2,
    default_bits,
    needed_rate,
    shortest_bits,
)
from sigil.keys.statement import check_bits
from sigil.probing import undisturbed
from sigil.verdict import wording

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
    that proves such a key, infinite if none does; ``trial_rate`` the rate that the trial reached without a
    task beside the mark, None if it was left out. ``problems`` prevent a proof, ``advice`` improves it.
    """

    provable: bool
    shape: tuple[int, ...]
    dimension: int
    channels: int
    bits: int
    most_bits: int
    needed_rate: float
    trial_rate: float | None
    strength: float
    problems: tuple[str, ...]
    advice: tuple[str, ...]

    def __str__(self) -> str:
        verdict = "can" if self.provable else "CANNOT"
        lines = [
            f"This cut {verdict} carry a provable mark: {self.dimension:,} dimensions in {self.channels} "
            f"channels, {self.bits} bits by default, at most {self.most_bits}, strength {self.strength:g}."
        ]
        if self.trial_rate is not None:
            needed = "no rate" if math.isinf(self.needed_rate) else wording.percent(self.needed_rate)
            lines.append(
                f"A trial without a task reached {wording.percent(self.trial_rate)}; proof takes {needed}."
            )
        lines += [f"Problem: {problem}" for problem in self.problems]
        lines += [f"Advice: {sentence}" for sentence in self.advice]
        return "\n".join(lines)


def inspect(
    client_half: nn.Module,
    example_input: Tensor,
    *,
    server_half: nn.Module | None = None,
    key: Literal["plain", "stamped"] = "plain",
    bits: int | None = None,
    steps: int = TRIAL_STEPS,
) -> Inspection:
    """Say before training whether a client half, cut where it ends, can carry a provable mark.

    ``example_input`` is a batch (n, *input shape); a few real inputs are best. The half and the random states
    stay as they are. ``server_half`` is looked at for a batch norm behind the cut; ``key`` is the kind of key
    to be used and ``bits`` its length, by default that of :meth:`sigil.Key.generate`. ``steps`` is the
    length of the trial; 0 leaves it out.
    """
    arguments.module("client half", client_half)
    if server_half is not None:
        arguments.module("server half", server_half)
    batch = arguments.tensor("example input", example_input)
    steps = arguments.whole("The number of steps", steps)
    bits = None if bits is None else check_bits(bits)
    if key not in ("plain", "stamped"):
        raise ConfigError(f'key is {shown(key)}, but the kind of key is wanted: "plain" or "stamped".')
    activation = _activation(client_half, batch)
    shape = tuple(activation.shape[1:])
    rectified = bool((activation >= 0).all())
    dimension = math.prod(shape)
    allowance = PLAIN_ALLOWANCE_LOG2 if key == "plain" else STAMPED_ALLOWANCE_LOG2
    length = default_bits(shape, "none" if key == "plain" else "rfc3161") if bits is None else bits
    rate = needed_rate(length, allowance)
    reached = _trial(client_half, batch, shape, length, steps) if steps else None
    problems = [*_length_problems(dimension, length, key, allowance), *_trial_problems(reached, length)]
    return Inspection(
        provable=not problems,
        shape=shape,
        dimension=dimension,
        channels=shape[0],
        bits=length,
        most_bits=dimension // LEAST_DIMENSIONS_PER_BIT,
        needed_rate=rate,
        trial_rate=reached,
        strength=0.1,
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


def _length_problems(dimension: int, bits: int, kind: str, allowance: int) -> list[str]:
    least = shortest_bits(allowance)
    wanted = least * LEAST_DIMENSIONS_PER_BIT
    if dimension < wanted:
        fewer = shortest_bits(STAMPED_ALLOWANCE_LOG2)
        enough = kind == "plain" and dimension >= fewer * LEAST_DIMENSIONS_PER_BIT
        other = f", or have the key stamped, which takes {fewer} bits" if enough else ""
        return [
            f"{dimension} dimensions hold {dimension // LEAST_DIMENSIONS_PER_BIT} bits, and a {kind} key "
            f"proves nothing with fewer than {least}; cut where there are at least {wanted} dimensions"
            f"{other}."
        ]
    if bits < least:
        return [f"A {kind} key of {bits} bits proves nothing; give it at least {least}."]
    if bits * LEAST_DIMENSIONS_PER_BIT > dimension:
        most = dimension // LEAST_DIMENSIONS_PER_BIT
        return [f"{bits} bits do not fit into {dimension} dimensions; give the key at most {most}."]
    return []


def _trial_problems(reached: float | None, bits: int) -> list[str]:
    if reached is None or reached >= _HOPELESS:
        return []
    return [
        f"Even without a task the layers in front of the cut bring only {wording.percent(reached)} of {bits} "
        "bits right; cut deeper, where more layers shape the activation, or use fewer bits."
    ]


def _advice(
    server: nn.Module | None,
    rectified: bool,
    dimension: int,
    bits: int,
    reached: float | None,
    rate: float,
) -> list[str]:
    found = []
    if reached is not None and _HOPELESS <= reached < rate < math.inf:
        found.append(
            "The trial fell short of the rate of proof; train for many rounds, raise the strength to 0.3, "
            "and ask sigil.check after the training."
        )
    if bits * 16 > dimension:
        found.append(
            f"{dimension // bits} dimensions per bit are few, and attacks leave less of such a mark; a cut "
            f"with {16 * bits:,} dimensions would be better."
        )
    if not rectified:
        found.append(
            "The activation has negative values, so no ReLU ends the half, and a thief can mix its channels "
            "by any matrix and undo that behind the cut; cut behind a ReLU if the network has one."
        )
    if server is not None and isinstance(_first(server), _NORMS):
        found.append(
            "A batch norm follows the cut, which undoes every shift and scale of a channel; cut behind it, "
            "or behind its rectifier."
        )
    return found


def _leaves(module: nn.Module) -> list[nn.Module]:
    return [part for part in module.modules() if not list(part.children())]


def _first(module: nn.Module) -> nn.Module:
    return _leaves(module)[0]


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
