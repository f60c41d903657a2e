"""Updates are judged before they are averaged: could a client that trained as agreed have sent this?

A finite update can still ruin a model: a half multiplied by a million is made of ordinary numbers. So each
half is compared with what the round began with, and an update is left out for one of these reasons:

- ``values``: a number in it is NaN or infinite;
- ``variance``: a variance of batch normalisation is negative;
- ``rate``: its weights moved further than the learning rate, the client's steps and any plausible gradient
  allow;
- ``norm``: its weights or statistics moved :data:`RELATIVE` times further than the round's median, both in
  all and per step, so that neither many steps nor few make an honest client stand out;
- ``pattern``: where each client has its own copy, its change has to do with the pattern of one of them
  (:meth:`sigil.imprint.Patterns.carried`), so that it would carry that into everybody's copies.

The median is that of the round's clients; with fewer than three nobody can say which of them stands out, and
only the other tests are made.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from statistics import median_low

import torch
from torch import nn

from sigil.federation.averaging import State
from sigil.federation.settings import Settings
from sigil.federation.trainer import RoundStart
from sigil.imprint import recipient

# How many times what the round's median allows a change may be. `benchmarks/poisoned.py --honest` prints what
# honest clients reach with shares of very different sizes and classes: 1.5 at most.
RELATIVE = 5.0
# The largest mean gradient norm that counts as plausible for a mean loss, of a whole half.
GRADIENT_NORM = 1_000.0
# Adam moves a weight by at most a few learning rates per step, whatever the gradient.
ADAM_RATES = 10.0


class Fault(Enum):
    """Why an update is left out of an average."""

    VALUES = "values"
    VARIANCE = "variance"
    RATE = "rate"
    NORM = "norm"
    PATTERN = "pattern"


@dataclass(frozen=True)
class Update:
    """What one client made of the two halves in a round, and in how many steps by the server's count."""

    client: State
    server: State
    steps: int


@dataclass(frozen=True)
class Finding:
    """One update that is not averaged, and why; `sentence` is for the owner's log."""

    fault: Fault
    sentence: str


class UpdateJudge:
    """Finds the updates of a round that training as agreed cannot have made."""

    def __init__(self, client: nn.Module, server: nn.Module, settings: Settings) -> None:
        self._halves = {"client": _Tensors.of(client), "server": _Tensors.of(server)}
        optimizer, federation = settings.optimizer, settings.federation
        self._adam = optimizer.name == "adam"
        self._reach = GRADIENT_NORM / (1 - optimizer.momentum)
        if federation.loss_reduction == "sum":
            self._reach *= federation.batch_size

    def findings(self, start: RoundStart, updates: Mapping[int, Update]) -> dict[int, Finding]:
        """What is wrong with which client's update; nothing for those that may be averaged."""
        faulty: dict[int, Finding] = {}
        moves: dict[str, dict[int, float]] = {}
        for name, tensors in self._halves.items():
            before: State = getattr(start, name)
            for client, update in updates.items():
                if client in faulty:
                    continue
                state: State = getattr(update, name)
                finding = tensors.broken(name, state)
                weights, statistics = tensors.moved(before, state)
                reach = ADAM_RATES * math.sqrt(tensors.size) if self._adam else self._reach
                limit = start.lr * update.steps * reach
                if finding is None and weights > limit:
                    finding = Finding(
                        Fault.RATE,
                        f"the weights of its {name} half moved by {weights:.3g}, but {update.steps} steps at "
                        f"this learning rate reach {limit:.3g}",
                    )
                if finding is not None:
                    faulty[client] = finding
                moves.setdefault(f"weights of its {name} half", {})[client] = weights
                moves.setdefault(f"statistics of its {name} half", {})[client] = statistics
        for what, norms in moves.items():
            sound = {client: norm for client, norm in norms.items() if client not in faulty}
            for client, times in _standing_out(sound, updates).items():
                sentence = f"the {what} moved {times:.3g} times as far as the round's median"
                faulty[client] = Finding(Fault.NORM, sentence)
        return faulty | _patterned(start, {c: u.client for c, u in updates.items() if c not in faulty})


def _standing_out(
    norms: Mapping[int, float], updates: Mapping[int, Update], *, limit: float = RELATIVE
) -> dict[int, float]:
    """The clients whose change is too large beside the median's, with how many times it is."""
    if len(norms) < 3:
        return {}
    # The lower one of two middle values: half of the clients cannot lift it.
    middle = median_low(norms.values())
    per_step = median_low(norm / max(1, updates[client].steps) for client, norm in norms.items())
    times = {
        client: norm / allowed
        for client, norm in norms.items()
        if (allowed := max(middle, per_step * updates[client].steps)) > 0
    }
    return {client: ratio for client, ratio in times.items() if ratio > limit}


def _patterned(start: RoundStart, halves: Mapping[int, State]) -> dict[int, Finding]:
    """The clients whose change agrees with somebody's pattern more than chance and healing explain."""
    if start.patterns is None:
        return {}
    changes = {
        client: {
            name: half[name].detach().cpu().double() - start.client[name].detach().cpu().double()
            for name in start.patterns.steps
        }
        for client, half in halves.items()
    }
    carried = start.patterns.carried({recipient(client): change for client, change in changes.items()})
    return {
        client: Finding(Fault.PATTERN, f"its change {carried[recipient(client)]}")
        for client in changes
        if recipient(client) in carried
    }


@dataclass(frozen=True)
class _Tensors:
    """Which tensors of a half are trained weights, statistics, and variances among these."""

    weights: frozenset[str]
    variances: frozenset[str]
    size: int

    @classmethod
    def of(cls, half: nn.Module) -> _Tensors:
        return cls(
            weights=frozenset(name for name, _ in half.named_parameters()),
            variances=frozenset(
                name for name, _ in half.named_buffers() if name.rpartition(".")[2] == "running_var"
            ),
            size=sum(value.numel() for value in half.parameters()),
        )

    def broken(self, half: str, state: State) -> Finding | None:
        for name, value in state.items():
            if value.is_floating_point() and not bool(torch.isfinite(value).all()):
                return Finding(Fault.VALUES, f"{name} of its {half} half holds NaN or infinity")
            # Zero is honest: the variance of a channel that is never active decays to it.
            if name in self.variances and bool((value < 0).any()):
                return Finding(Fault.VARIANCE, f"{name} of its {half} half holds a negative variance")
        return None

    def moved(self, before: State, after: State) -> tuple[float, float]:
        """How far weights and statistics are from where they were: two Euclidean norms."""
        weights = statistics = 0.0
        for name, value in after.items():
            if not value.is_floating_point():
                continue
            # Double before the difference, not after: finite numbers may lie too far apart for float32.
            change = value.detach().cpu().double() - before[name].detach().cpu().double()
            square = float(change.square().sum())
            if name in self.weights:
                weights += square
            else:
                statistics += square
        return math.sqrt(weights), math.sqrt(statistics)
