"""What a thief tries against every kind of carrier: the product's attacks, and some aimed at the carriers.

The thief is client 0 with its own images, the finished model and the gradients that it was sent. It has no
key and knows which kind of mark was embedded.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Tensor
from torch.nn import functional as F

from sigil import attacks
from sigil.attacks.halves import Halves, OpenedAtCut, open_at_cut, same_kind
from sigil.attacks.read import over_channels
from sigil.attacks.training import Effect, finetune_at_cut, push_along
from sigil.data import Dataset, evaluate_batches
from sigil.keys.key import Key
from sigil_reproduction.beyond.carriers_mark import Kind, Mark
from sigil_reproduction.beyond.curves import SOFTLY
from sigil_reproduction.beyond.thief import Attacker


@dataclass(frozen=True)
class Thief(Attacker):
    """Client 0 of a training, and which kind of mark it knows to be in the model."""

    kind: Kind

    def read_softly(self, reversal: float) -> Halves:
        """A hundredth of the weight for twice the epochs: the network has time to follow."""
        assert self.tuning.epochs is not None
        tuning = replace(self.tuning, epochs=2 * self.tuning.epochs)
        return attacks.read(self.halves, self.own, reversal=reversal, gamma=SOFTLY, tuning=tuning)[0]

    def overwrite(self) -> Halves:
        """The product's attack: a second random mark by an injector at full strength."""
        opened = open_at_cut(self.halves, self.own)
        other = Key.generate("Mallory", shape=opened.shape, bits=self.kind.bits, seed=b"m" * 32)
        return self.overwrite_with(other)

    def overwrite_in_kind(self, gamma: float) -> Halves:
        """A second mark of the same kind, shaped by the thief's own activations, as a penalty."""
        opened = open_at_cut(self.halves, self.own)
        mark = Mark(replace(self.kind, waits=0), opened.shape, clients=1, seed=987_654_321 + self.tuning.seed)
        flat = own_activations(opened, self.own)
        if not mark.ready:
            for row in flat.split(2):
                mark.watch(row)
            mark.measure()
        own = (flat @ mark.matrix).mean(0), (flat @ mark.gate).mean(0)
        scale = (flat @ mark.matrix).std(0).mean()

        def penalty(activation: Tensor) -> Tensor:
            y, _ = mark.oriented(activation.float().flatten(1), mark.centre, own)
            return gamma * F.binary_cross_entropy_with_logits(y / scale, mark.target.expand(len(y), -1))

        return self._finetuned(opened, Effect(f"overwrite in kind {gamma}", penalty))

    def push_whitened(self, reversal: float, gamma: float = 10.0) -> Halves:
        """Push the mean away from where it is largest for the activations' own spread: Σ⁻¹ · mean."""
        opened = open_at_cut(self.halves, self.own)
        flat = own_activations(opened, self.own)
        mean = flat.mean(0)
        centred = (flat - mean).double()
        # Of n samples in d dimensions; the ridge is the mean variance.
        ridge = float(centred.square().mean())
        small = centred @ centred.T / len(flat) + ridge * torch.eye(len(flat), dtype=torch.float64)
        inner = torch.linalg.solve(small, centred @ mean.double() / len(flat))
        direction = (mean.double() - centred.T @ inner) / ridge
        return self._pushed(opened, direction.float(), reversal, gamma)

    def push_channels(self, reversal: float, gamma: float = 10.0) -> Halves:
        """Push along the channels' means minus their mean: the part of the mean map that reading leaves."""
        opened = open_at_cut(self.halves, self.own)
        mean = own_activations(opened, self.own).mean(0).view(opened.shape)
        direction = -over_channels(mean).flatten()
        return self._pushed(opened, direction, reversal, gamma)

    def _pushed(self, opened: OpenedAtCut, direction: Tensor, reversal: float, gamma: float) -> Halves:
        return self._finetuned(
            opened, push_along(opened, self.own, direction, self.tuning, reversal=reversal, gamma=gamma)
        )

    def _finetuned(self, opened: OpenedAtCut, effect: Effect) -> Halves:
        finetune_at_cut(opened, self.own, self.tuning, effect)
        return same_kind(opened.whole, self.halves)


@torch.no_grad()
def own_activations(opened: OpenedAtCut, own: Dataset) -> Tensor:
    """The activations (n, d) of the thief's images, as the model is now."""
    opened.whole.eval()
    batches = evaluate_batches(own.train, own, batch_size=256)
    return torch.cat([opened.front(images).float().flatten(1) for images, _ in batches])


ATTACKS: dict[str, Callable[[Thief], Halves]] = {
    "none": lambda thief: thief.halves,
    "fine-tuning": lambda thief: thief.reverse(0.0, gamma=0.0),
    "averaging": lambda thief: thief.reverse(0.0),
    "reversal": lambda thief: thief.reverse(0.5),
    "reading": lambda thief: thief.read(),
    "reading, reversed by half": lambda thief: thief.read(reversal=0.5),
    "reading softly, reversed by half": lambda thief: thief.read_softly(0.5),
    "flattening, 0.1": lambda thief: thief.read(way="flatten", gamma=0.1),
    "flattening, 1": lambda thief: thief.read(way="flatten", gamma=1.0),
    "flattening, 3": lambda thief: thief.read(way="flatten", gamma=3.0),
    "flattening, 10": lambda thief: thief.read(way="flatten", gamma=10.0),
    "equalising, 0.1": lambda thief: thief.read(way="equalise", gamma=0.1),
    "equalising, 1": lambda thief: thief.read(way="equalise", gamma=1.0),
    "channel means, reversed by half": lambda thief: thief.push_channels(0.5),
    "whitened mean, reversed by half": lambda thief: thief.push_whitened(0.5),
    "overwriting": Thief.overwrite,
    "overwriting in kind, 0.3": lambda thief: thief.overwrite_in_kind(0.3),
    "overwriting in kind, 3": lambda thief: thief.overwrite_in_kind(3.0),
}
AIMED = (
    "channel means, reversed by half",
    "whitened mean, reversed by half",
    "overwriting in kind, 0.3",
    "overwriting in kind, 3",
)
