"""Marks for research: other carriers than a key's random matrix, embedded and read outside the product.

A mark asks for the sign of k numbers y of each activation a, flattened to d numbers:

    y_j = (a · M_j − c_j) · g_j(a),      bit j = 1[y_j >= 0]

with carriers M (d, k), centres c and gates g, each +1 or -1. Bits b and everything drawn come from one secret
seed; what is measured is measured on activations of rounds in which nothing is injected yet, or on the
suspect itself. So under the null hypothesis b remains k fair coins that depend on neither M, c, g nor the
suspect, and the exact test of :mod:`sigil.statistics` holds for every kind of mark here.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from sigil import files, statistics
from sigil.data import Dataset, Inputs
from sigil.federation.from_settings import Training
from sigil.federation.server import Server
from sigil.federation.trainer import LocalTrainer, RoundStart, RoundSums, Tick
from sigil.seeds import derive, generator

Carriers = Literal["random", "channels", "covariance"]
Centre = Literal["none", "before", "running"]

READ = 256
SAMPLES = 1_024
"""Activations from which the covariance is measured; the carriers are their random combinations."""
MOMENTUM = 0.98


@dataclass(frozen=True)
class Kind:
    """What a mark is like: its carriers, what its targets are relative to, and the share of gated bits.

    ``waits`` is the number of rounds without any injection, in which carriers and centres are measured.
    """

    carriers: Carriers = "random"
    centre: Centre = "none"
    gated: float = 0.0
    bits: int = 128
    waits: int = 0
    strength: float = 0.3

    @property
    def measured(self) -> bool:
        """Whether something of the mark is measured in training, before anything is injected."""
        return self.carriers == "covariance" or self.centre != "none"


class Mark:
    """One mark: bits, carriers, gates and the shares of the clients."""

    def __init__(self, kind: Kind, shape: Sequence[int], *, clients: int, seed: int) -> None:
        self.kind, self.shape, self.clients = kind, tuple(shape), clients
        self.dimension, bits = math.prod(self.shape), kind.bits
        draws = generator(seed, "carriers", "secret")
        self.target = torch.randint(0, 2, (bits,), generator=draws).float()
        order = torch.randperm(bits, generator=draws)
        self.carrier_of = torch.empty(bits, dtype=torch.long)
        self.carrier_of[order] = torch.arange(bits) % clients
        self.gated = torch.zeros(bits, dtype=torch.bool)
        self.gated[torch.randperm(bits, generator=draws)[: round(kind.gated * bits)]] = True
        self.gate = torch.randn(self.dimension, bits, generator=draws)
        self._mixture = torch.randn(SAMPLES, bits, generator=draws)
        self.matrix = self._drawn(draws)
        self.centre = torch.zeros(bits)
        self._running: tuple[Tensor, Tensor] | None = None
        self._seen: list[Tensor] = []
        self.ready = not kind.measured

    def _drawn(self, draws: torch.Generator) -> Tensor:
        bits = self.kind.bits
        if self.kind.carriers == "channels":
            rows = torch.randn(self.shape[0], bits, generator=draws)
            return rows.repeat_interleave(math.prod(self.shape[1:]), dim=0)
        return torch.randn(self.dimension, bits, generator=draws)

    def watch(self, activation: Tensor) -> None:
        """Keep some of the activations that the server sees before the first injection."""
        self._seen.append(activation.detach().float().flatten(1)[:2].clone())

    def measure(self) -> None:
        """Shape carriers and centres by what was seen; from now on the mark can be injected."""
        seen = torch.cat(self._seen)[-SAMPLES:]
        self._seen = []
        centred = seen - seen.mean(0)
        if self.kind.carriers == "covariance":
            # Random combinations of centred activations have their covariance.
            matrix = centred.T @ self._mixture[: len(seen)]
            self.matrix = matrix / matrix.norm(dim=0) * math.sqrt(self.dimension)
        if self.kind.centre != "none":
            self.centre = (seen @ self.matrix).mean(0)
        self.ready = True

    def oriented(
        self, flat: Tensor, centre: Tensor, own: tuple[Tensor, Tensor], bits: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """The numbers y (n, k) whose signs are the bits, and the gates (n, k); of some ``bits`` or of all.

        ``centre`` is that of ungated bits; ``own`` are the means of projections and of gates that gated bits
        are relative to.
        """
        chosen = torch.ones_like(self.gated) if bits is None else bits
        gated = self.gated[chosen]
        projection = flat @ self.matrix[:, chosen] - torch.where(gated, own[0][chosen], centre[chosen])
        if not bool(gated.any()):
            return projection, torch.ones_like(projection)
        gates = torch.where((flat @ self.gate[:, chosen] >= own[1][chosen]) | ~gated, 1.0, -1.0)
        return projection * gates, gates

    @torch.no_grad()
    def inject(self, activation: Tensor, main: Tensor, *, client: int) -> Tensor:
        """G_final for one client: the task's gradient and, at ``strength`` of its norm, the mark's."""
        flat = activation.float().flatten(1)
        mean = flat.mean(0)
        means = mean @ self.matrix, mean @ self.gate
        if self._running is None:
            self._running = means
        old = self._running
        self._running = (
            MOMENTUM * old[0] + (1 - MOMENTUM) * means[0],
            MOMENTUM * old[1] + (1 - MOMENTUM) * means[1],
        )
        centre = self._running[0] if self.kind.centre == "running" else self.centre
        own = self.carrier_of == client
        y, gates = self.oriented(flat, centre, self._running, own)
        error = (torch.sigmoid(y) - self.target[own]) * gates
        mark = error @ self.matrix[:, own].T
        size = mark.norm()
        if float(size) == 0.0 or not bool(torch.isfinite(size)):
            return main
        factor = self.kind.strength * main.float().norm() / size
        return main + (factor * mark).view(activation.shape).to(main.dtype)

    @torch.no_grad()
    def read(self, half: nn.Module, dataset: Dataset, *, seed: int) -> dict[str, float]:
        """WSR (%) and log10 p of the mark on 256 test images, before any allowance."""
        inputs = Inputs(dataset.test.images, normalisation=(dataset.mean, dataset.std))
        chosen = np.random.default_rng(derive(seed, "carriers", "inputs")).choice(
            len(inputs), READ, replace=False
        )
        half.eval()
        flat = torch.cat([half(batch).float().flatten(1) for batch in inputs.batches(chosen.tolist(), 128)])
        own = (flat @ self.matrix).mean(0), (flat @ self.gate).mean(0)
        y, _ = self.oriented(flat, self.centre, own)
        ones = (y >= 0).sum(0)
        tail = statistics.p_value(ones.numpy(), self.target.long().numpy(), READ)
        matches = torch.where(self.target > 0.5, ones, READ - ones)
        found = {
            "wsr_inputs": 100 * float(matches.sum()) / (READ * self.kind.bits),
            "log10_p_inputs": tail.log10_p,
        }
        for name, part in (("gated", self.gated), ("plain", ~self.gated)):
            if bool(self.gated.any()):
                tail = statistics.p_value(ones[part].numpy(), self.target[part].long().numpy(), READ)
                found[f"log10_p_{name}"] = tail.log10_p
        return found

    def save(self, path: Path) -> None:
        """Write what was measured."""
        tensors = {"matrix": self.matrix.contiguous(), "centre": self.centre.contiguous()}
        with files.draft(path, replace=True) as place:
            save_file(tensors, place)

    def load(self, path: Path) -> None:
        """Take back what :meth:`save` wrote."""
        found = load_file(path)
        self.matrix, self.centre, self.ready = found["matrix"], found["centre"], True


class MarkingServer(Server):
    """The server of U-SFL with a mark for research in the injector's place."""

    mark: Mark

    def _marked(self, activation: Tensor, main: Tensor) -> Tensor:
        if not self.mark.ready:
            self.mark.watch(activation)
        if self.round <= self.mark.kind.waits:
            return main
        return self.mark.inject(activation, main, client=self.client)


class MarkingTrainer(LocalTrainer):
    """Trains clients in this process while a mark is embedded, and measures the mark when it is time."""

    def __init__(self, training: Training, mark: Mark, path: Path) -> None:
        super().__init__(training)
        self.mark, self.path = mark, path
        if path.exists():
            mark.load(path)

        def make(*arguments: Any, **options: Any) -> Server:
            server = MarkingServer(*arguments, **options)
            server.mark = mark
            return server

        training.server_factory = make

    def train(
        self, start: RoundStart, *, tick: Tick | None = None, clients: Sequence[int] | None = None
    ) -> RoundSums:
        """One round; after the last one without injection the carriers are fixed and written down."""
        sums = super().train(start, tick=tick, clients=clients)
        if not self.mark.ready and start.number >= self.mark.kind.waits:
            self.mark.measure()
            self.mark.save(self.path)
        return sums


def trainer(mark: Mark, path: Path) -> Callable[[Training], MarkingTrainer]:
    """What :func:`sigil.federation.run.train` calls to have the clients of a round trained."""
    return lambda training: MarkingTrainer(training, mark, path)
