"""Carriers that do not stand out: what is left of marks with other carriers after attacks that cost little.

This is not in the paper. Reading finds the product's mark because natural mean maps are smoother than random
carriers. Here carriers are channel-wise, shaped like the activations themselves, relative to a running
centre, or half of them gated; each was embedded as shares, and every attack is a point of a curve: log10 p on
test images over the accuracy that the attack costs.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from torch.nn import functional as F

from sigil import attacks, files, statistics
from sigil.attacks.halves import Halves, OpenedAtCut, open_at_cut, same_kind
from sigil.attacks.read import over_channels, over_positions
from sigil.attacks.training import Effect, Tuning, finetune_at_cut, push_along
from sigil.data import Dataset, Inputs, evaluate_batches
from sigil.federation.federation import accuracy
from sigil.federation.from_settings import Training, what_a_key_states
from sigil.federation.precision import choose
from sigil.federation.run import Run, train
from sigil.federation.server import Server
from sigil.federation.settings import Settings
from sigil.federation.trainer import LocalTrainer, RoundStart, RoundSums, Tick
from sigil.keys.key import Key
from sigil.models.spec import default_cut
from sigil.pages import figures
from sigil.pages.tables import NOT_RUN, Entry, Number, Page, Picture, Place, Row, Table
from sigil.seeds import derive, generator
from sigil_reproduction.beyond.curves import GENTLE_RATE, SOFTLY
from sigil_reproduction.beyond.thief import Attacker
from sigil_reproduction.runner.attacked import attackers_share
from sigil_reproduction.runner.experiment import Experiment, Finding, Measured, check_claim
from sigil_reproduction.runner.reading import KEYS
from sigil_reproduction.runner.scales import PerScale, Scale
from sigil_reproduction.runner.store import Cell, Store

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
    # Whether bits are judged where the rough part of the mean map was removed: a model that was flattened
    # is then pushed no harder than any other, and every other as hard as that one.
    level: bool = False

    @property
    def measured(self) -> bool:
        """Whether something of the mark is measured in training, before anything is injected."""
        return self.carriers == "covariance" or self.centre != "none"


class Mark:
    """A mark for research: bits, carriers, gates and the shares of the clients.

    It asks for the sign of k numbers y of each activation a, flattened to d numbers:

        y_j = (a · M_j − c_j) · g_j(a),      bit j = 1[y_j >= 0]

    with carriers M (d, k), centres c and gates g, each +1 or -1. Bits b and everything drawn come from one
    secret seed; what is measured is measured on activations of rounds in which nothing is injected yet, or
    on the suspect itself. So under the null hypothesis b remains k fair coins that depend on neither M, c, g
    nor the suspect, and the exact test of :mod:`sigil.statistics` holds for every kind of mark here.
    """

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
        if self.kind.level:
            flat = flat - over_positions(mean.view(self.shape)).flatten()
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


@dataclass(frozen=True)
class Thief(Attacker):
    """Client 0 with its own images, the finished model and the gradients that it was sent.

    It has no key and knows which kind of mark was embedded.
    """

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


BITS = PerScale(512, desk=256, cpu=128, smoke=32)
# Where networks have learned: do more bits hold where these do not?
MORE_BITS = PerScale(0, desk=512)
LEVEL = PerScale(True, smoke=False)
WAITS = PerScale(3, smoke=1)
EPOCHS = PerScale(4, smoke=1)
RECORDED = PerScale(0.05, cpu=0.5, smoke=1.0)
# Where networks have learned, fine-tuning at the usual rate costs more than two points by itself.
RATE = PerScale(Tuning.lr, desk=GENTLE_RATE)
# VGG11 takes a third of ResNet-18's time, and half of the scale's rounds are enough to learn most of what it
# can. Cut at its third stage it has as many channels and positions there.
MODEL = PerScale("resnet18", desk="vgg11")
# The tasks of each scale, and what differs from the scale's other trainings: every kind of carriers needs a
# training of its own.
TASKS: PerScale[Mapping[str, Mapping[str, Mapping[str, Any]]]] = PerScale(
    {"cifar10": {}},
    desk={
        "cifar10": {
            "model": {"cut": "stage3"},
            "federation": {"rounds": 10},
            "optimizer": {"warmup_rounds": 1},
        }
    },
    cpu={
        "digits": {
            "model": {"width": 16, "cut": "layer2"},
            "data": {"name": "digits", "train_limit": None},
            "federation": {"rounds": 8, "local_epochs": 2},
            "run": {"evaluate_every": 8},
        },
        "cifar10": {
            "data": {"train_limit": 5_000, "test_limit": 2_000},
            "federation": {"batch_size": 32},
            "run": {"evaluate_every": 10},
        },
    },
    smoke={"digits": {"data": {"test_limit": None}}},
)
# Channel-wise carriers need channels: 128 of them.
WIDE: PerScale[Mapping[str, Mapping[str, Any]]] = PerScale(
    {"cifar10": {"cut": "layer4"}},
    desk={"cifar10": {"cut": "stage4"}},
    cpu={"digits": {"width": 32, "cut": "layer3"}, "cifar10": {"width": 16, "cut": "layer4"}},
    smoke={"digits": {}},
)
# What a reading of a stamped key must reach before its allowances to be proof at 3e-7.
PROOF = KEYS["stamped"].log10_level()
AFFORDABLE = 2.0

WORDS = {
    "random": "random, as in the product",
    "channel-wise": "channel-wise, 128 channels",
    "covariance": "covariance of the activations, centre before the first injection",
    "covariance, running centre": "covariance, targets relative to a running centre",
    "half gated": "random, half of the bits gated",
    "more bits": "random, twice as many bits",
    "level": "random, bits judged without the rough part of the mean map",
}


def kinds(scale: Scale) -> dict[str, Kind]:
    """The marks that are compared."""
    bits, waits, more = BITS.at(scale), WAITS.at(scale), MORE_BITS.at(scale)
    found = {
        "random": Kind(bits=bits),
        "channel-wise": Kind("channels", bits=bits // 2),
        "covariance": Kind("covariance", "before", bits=bits, waits=waits),
        "covariance, running centre": Kind("covariance", "running", bits=bits, waits=waits),
        "half gated": Kind(gated=0.5, bits=bits),
    }
    found |= {"more bits": Kind(bits=more)} if more else {}
    return found | ({"level": Kind(bits=bits, level=True)} if LEVEL.at(scale) else {})


def settings_of(scale: Scale, task: str, name: str, seed: int) -> Settings:
    """An unmarked training, in which another server embeds the mark; client 0 is recorded."""
    sections = {section: dict(values) for section, values in TASKS.at(scale)[task].items()}
    sections["watermark"] = {"strength": 0.0}
    sections["record"] = {"clients": [0], "share": RECORDED.at(scale)}
    if name == "channel-wise":
        sections["model"] = {**sections.get("model", {}), **WIDE.at(scale)[task]}
    return scale.settings(MODEL.at(scale), seed=seed, variation=False, **sections)


def cells(scale: Scale, seeds: Sequence[int]) -> list[Cell]:
    """Every attack on the models of every kind; the trainings of a seed come first."""
    return [
        Cell(
            "carriers",
            name_of(task, name, attack),
            seed,
            (),
            {
                "task": task,
                "carriers": name,
                "attack": attack,
                "mark": asdict(kind),
            },
            live=settings_of(scale, task, name, seed),
        )
        for task in TASKS.at(scale)
        for seed in seeds
        for attack in ATTACKS
        for name, kind in kinds(scale).items()
    ]


def name_of(task: str, name: str, attack: str) -> str:
    """Name of a cell."""
    return f"{task} {name} {attack}"


def measure(cell: Cell, runs: list[Run], store: Store) -> dict[str, Any]:
    """Train with the mark unless that is done, attack, and measure accuracy and the mark."""
    settings, kind = cell.live, Kind(**cell.options["mark"])
    assert settings is not None
    dataset, precision = store.dataset(settings), choose(settings.run.device, settings.run.precision)
    shape = what_a_key_states(settings, store.data_dir)["shape"]
    mark = Mark(kind, shape, clients=settings.federation.clients, seed=settings.run.seed)
    folder = store.runs / f"carriers {cell.options['task']} {cell.options['carriers']} seed {cell.seed}"
    carriers = folder / "carriers.safetensors"
    run = train(settings, folder, data_dir=store.data_dir, wait=True, trainer=trainer(mark, carriers))
    if carriers.exists():
        mark.load(carriers)
    tuning = Tuning(
        lr=RATE.at(store.scale), epochs=EPOCHS.at(store.scale), seed=cell.seed, precision=precision
    )
    thief = Thief(
        run.halves(),
        attackers_share(dataset, settings),
        folder,
        tuning,
        kind,
    )
    client, server = ATTACKS[cell.options["attack"]](thief)
    return {
        "accuracy": 100 * accuracy(client, server, dataset, precision=precision),
        **mark.read(client, dataset, seed=cell.seed),
        "machine": precision.describe(),
    }


Points = dict[int, tuple[float, float]]


def lost(measured: Measured, task: str, name: str, attack: str) -> Points:
    """By seed: points of accuracy that the attack costs, and log10 p afterwards."""
    before, after = (measured.by_seed(name_of(task, name, each), "accuracy") for each in ("none", attack))
    left = measured.by_seed(name_of(task, name, attack), "log10_p_inputs")
    return {seed: (before[seed] - after[seed], left[seed]) for seed in sorted(before.keys() & after.keys())}


def show(measured: Measured, folder: Path) -> Page:
    """Per task the curves and a table of all attacks; before them what was tried and what removed it."""
    names, tasks = measured.options("carriers"), measured.options("task")
    page: list[str | Table | Picture] = [
        Table(
            ["carriers", "seeds", "embeds", "cheapest removal", "proof after all attacks of two points"],
            [_summary(measured, task, name) for task in tasks for name in names],
            caption="## What was tried, and what removed it",
        )
    ]
    for task in tasks:
        _draw(measured, task, names, folder / f"{task}.png")
        page += [
            f"## {task}",
            _trainings(measured, task, names),
            Picture(
                "log10 p on images over the accuracy that an attack costs: green the product's attacks, "
                "orange those aimed at the carriers; dashed what a stamped key needs, dotted two points of "
                "accuracy",
                f"{task}.png",
            ),
            Table(
                ["attack", *(WORDS[name] for name in names)],
                [[attack, *(_place(measured, task, name, attack) for name in names)] for attack in ATTACKS],
                notes=(
                    "Accuracy (%), WSR on 256 test images (%) and log10 p, the largest of the seeds, before "
                    f"any allowance; a stamped key needs {PROOF:.1f}. The numbers behind an attack's name "
                    "are its weight."
                ),
            ),
        ]
    return page


def _trainings(measured: Measured, task: str, names: Sequence[str]) -> str:
    """The architecture and rounds of a task's trainings, and where each kind of carriers is cut."""
    made = {
        name: cell.live
        for name in names
        for cell in measured.cells
        if cell.live is not None and (cell.options["task"], cell.options["carriers"]) == (task, name)
    }
    cuts = {
        name: f"cut at {each.model.cut or default_cut(each.model.name)} with width {each.model.width}"
        for name, each in made.items()
    }
    usual, first = cuts[names[0]], made[names[0]]
    others = "".join(f"; {name}: {words}" for name, words in cuts.items() if words != usual)
    return f"{first.model.name} in {first.federation.rounds} rounds, {usual}{others}."


def _draw(measured: Measured, task: str, names: Sequence[str], path: Path) -> None:
    figure, axes = figures.panels(len(names), columns=3)
    for axis, name in zip(axes, names, strict=True):
        for aimed, colour in ((False, figures.SERIES[0]), (True, figures.SERIES[1])):
            points = [
                point
                for attack in ATTACKS
                if (attack in AIMED) == aimed
                for point in lost(measured, task, name, attack).values()
            ]
            axis.scatter([cost for cost, _ in points], [p for _, p in points], s=14, color=colour)
        axis.axhline(PROOF, color="#000000", linewidth=0.8, linestyle="--")
        axis.axvline(AFFORDABLE, color="#000000", linewidth=0.8, linestyle=":")
        axis.set_title(WORDS[name], fontsize=7)
        axis.set_xlabel("accuracy lost, points")
        axis.set_ylabel("log10 p on images")
    figures.save(figure, path)


def _place(measured: Measured, task: str, name: str, attack: str) -> list[Entry]:
    cell = name_of(task, name, attack)
    exponents = measured.values(cell, "log10_p_inputs")
    if not exponents:
        return [NOT_RUN]
    return [
        measured.number(cell, "accuracy", "acc"),
        measured.number(cell, "wsr_inputs", "WSR"),
        Number(max(exponents), "log10 p"),
    ]


def removal(measured: Measured, task: str, name: str) -> tuple[str, float] | None:
    """The attack that removes the proof at the smallest cost in any seed, and that cost."""
    found = [
        (cost, attack)
        for attack in ATTACKS
        for cost, exponent in lost(measured, task, name, attack).values()
        if attack != "none" and exponent > PROOF
    ]
    return None if not found else (min(found)[1], min(found)[0])


def _summary(measured: Measured, task: str, name: str) -> Row:
    title = f"{task}: {WORDS[name]}"
    start = measured.values(name_of(task, name, "none"), "log10_p_inputs")
    if not start:
        return [title, NOT_RUN, NOT_RUN, NOT_RUN, NOT_RUN]
    embeds = f"log10 p {max(start):.1f}, " + ("yes" if max(start) <= PROOF else "**no**")
    cheapest = removal(measured, task, name)
    attacked = any(lost(measured, task, name, attack) for attack in ATTACKS if attack != "none")
    removed: Place = "none of these attacks" if attacked else NOT_RUN
    holds: Place = "yes" if attacked else NOT_RUN
    if cheapest is not None:
        attack, cost = cheapest
        removed, holds = f"{attack}: {cost:+.1f} points", "yes" if cost > AFFORDABLE else "**no**"
    return [title, str(len(start)), embeds, removed, holds if max(start) <= PROOF else "**no**"]


def verdict(measured: Measured) -> list[Finding]:
    """The rule for a new default: proof after every attack of at most two points."""
    return [
        check_claim(
            f"{task}, {WORDS[name]}: proof with a stamped key after every attack that costs at most two "
            "points (largest log10 p)",
            {
                attack: max(affordable)
                for attack in ATTACKS
                if (
                    affordable := [
                        exponent
                        for cost, exponent in lost(measured, task, name, attack).values()
                        if cost <= AFFORDABLE
                    ]
                )
            },
            lambda x: x <= PROOF,
        )
        for task in measured.options("task")
        for name in measured.options("carriers")
    ]


CAPTION = (
    "Marks with carriers that were meant not to stand out, after the product's attacks and after some that "
    "are aimed at them: what a thief must pay to remove each."
)
EXPERIMENT = Experiment("carriers", CAPTION, cells, show, measure, verdict)
