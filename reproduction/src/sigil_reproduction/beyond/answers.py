"""A mark in the answers: does what a thief teaches by the server's logits carry a mark of these logits?

This is not in the paper, whose mark a distilled student does not carry. The owner serves

    z(x) + δ / √M · S Bᵀ (h(x) − μ),

with h the penultimate features of the finished model, B their whitening along M chosen eigenvectors, and S
secret fair coins (classes × directions), centred over the classes. It is the finished model with another
last layer. A suspect is read from its answers alone: its centred logits are regressed on the owner's
whitened features, d is that less the owner's own regression, and T = Σ S d. Given suspect and owner's model
the coins are fair, so that the tail of Σ ± |d| is exact. Each block of directions has coins of its own and
is one test.

A design must prove two thieves, with few own labels and with many: one who teaches a substitute for the
server half and fits its last layer anew to own labels, and one who teaches a fresh model.
"""

from __future__ import annotations

import hashlib
import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from sigil import attacks, models, statistics
from sigil.attacks import BEST
from sigil.attacks.halves import Halves
from sigil.data import Dataset, evaluate_batches
from sigil.data.partitions import stratified
from sigil.federation.run import Run
from sigil.models import Model
from sigil.pages.tables import NOT_RUN, Number, Page, Row, Table
from sigil.rules import ALPHA, STAMPED_ALLOWANCE_LOG2
from sigil_reproduction.beyond.frontier import FRESH, FRESH_EPOCHS, fresh
from sigil_reproduction.beyond.thief import Thief
from sigil_reproduction.runner.experiment import Experiment, Finding, Measured
from sigil_reproduction.runner.scales import PerScale, Scale, shares
from sigil_reproduction.runner.store import Cell, Store

Floats = npt.NDArray[np.float64]
STRENGTH = 0.3
# The first and the last direction of each block, in the order of the features' variance.
DESIGNS: dict[str, tuple[tuple[int, int], ...]] = {"0–8 and 9–31": ((0, 9), (9, 32)), "9–72": ((9, 73),)}
KEYS = PerScale(3, smoke=1)
OWNER, SERVED, SUBSTITUTE, STUDENT = "owner", "served", "substitute", "fresh student"
LABELS = PerScale((500, 5_000), smoke=(20, 40))
# Epochs on all of a thief's images; with few of them a quarter as many steps.
SUBSTITUTE_EPOCHS = PerScale(10, smoke=1)
STUDENT_EPOCHS = PerScale(FRESH_EPOCHS, smoke=1)
REFIT = BEST.changed(lr=1e-2, steps=600, logits=0.0, labels=1.0)
MOST_LOST = 0.3  # points of accuracy that serving a mark may cost
_LEAST = 1e-9  # of the largest variance: directions in which few inputs differ are not blown up
_UNIT = 1e-3  # of the largest |d|, to which the others are rounded


def cells(scale: Scale, seeds: Sequence[int]) -> list[Cell]:
    """Each design with three keys: the substitute, and a student of few and of many images."""
    wanted: list[tuple[str, dict[str, Any]]] = []
    for number in range(KEYS.at(scale)):
        for design in DESIGNS:
            for kind, images in (
                (SUBSTITUTE, LABELS.at(scale)[-1]),
                *((STUDENT, count) for count in LABELS.at(scale)),
            ):
                name = f"{design}, key {number}, {kind} of {images} images"
                wanted.append((name, {"design": design, "key": number, "kind": kind, "images": images}))
    record = {} if scale.keeps_models else scale.recording
    return [
        Cell(
            "answers",
            name,
            seed,
            (scale.settings(seed=seed, watermark=shares(scale), record=record),),
            options,
        )
        for seed in seeds
        for name, options in wanted
    ]


@dataclass(frozen=True)
class AnswerMark:
    """The marked last layer of an owner's finished model, and how the answers of a suspect are read.

    ``features`` (inputs, width) are the owner's on the inputs that the register fixes, ``own`` its logits.
    """

    whole: Model
    features: Tensor
    own: Tensor
    blocks: Sequence[tuple[int, int]]
    secret: bytes

    @property
    def basis(self) -> tuple[Floats, Floats]:
        """μ (width,), and B (width, directions of all blocks) by which the features have variance 1."""
        values = self.features.double().numpy()
        mean = values.mean(0)
        variances, vectors = np.linalg.eigh(np.cov(values, rowvar=False, bias=True))
        chosen = [-1 - place for start, stop in self.blocks for place in range(start, stop)]
        spreads = np.sqrt(np.maximum(variances[chosen], _LEAST * variances[-1]))
        return mean, np.asarray(vectors[:, chosen] / spreads)

    @property
    def coins(self) -> Floats:
        """±1, (classes, directions of all blocks), from the secret and all that the reading rests on."""
        mean, basis = self.basis
        rests_on = [
            self.secret,
            repr(self.blocks).encode(),
            *(a.tobytes() for a in (mean, basis, self.own.numpy())),
        ]
        seed = hashlib.sha256(b"".join(rests_on)).digest()
        drawn = np.random.default_rng(list(seed)).integers(0, 2, (self.own.shape[1], basis.shape[1]))
        return np.asarray(2.0 * drawn - 1.0, np.float64)

    @torch.no_grad()
    def served(self, strength: float = STRENGTH) -> Model:
        """The owner's model with the mark in its answers."""
        (mean, basis), coins = self.basis, self.coins
        marked = models.from_state(self.whole.spec, self.whole.state_dict())
        step = np.asarray((coins - coins.mean(0)) @ basis.T * strength / math.sqrt(basis.shape[1]))
        layer = last_layer(marked)
        layer.weight.add_(torch.from_numpy(step).to(layer.weight))
        layer.bias.sub_(torch.from_numpy(step @ mean).to(layer.bias))
        return marked

    def read(self, logits: Tensor) -> dict[str, float]:
        """log10 p before correction and deviations, the best of all blocks, of answers to the same inputs."""
        (mean, basis), coins = self.basis, self.coins
        white = (self.features.double().numpy() - mean) @ basis
        own, given = (_centred(each.double().numpy()) for each in (self.own, logits))
        slope = float((own * given).sum() / (own * own).sum())
        if not math.isfinite(slope) or slope <= 0:
            return {"log10_p": 0.0, "z": 0.0}
        found = (given / slope - own).T @ white / len(white)
        best: tuple[float, float] = (0.0, 0.0)
        start = 0
        for first, after in self.blocks:
            part = slice(start, start := start + after - first)
            best = min(best, _tail(coins[:, part], found[:, part]))
        return {"log10_p": best[0], "z": best[1]}


def _tail(coins: Floats, found: Floats) -> tuple[float, float]:
    """log10 of P(Σ ± |d| ≥ Σ S d), with d rounded, which depends on no coin; and Σ S d over its deviation."""
    largest = float(np.abs(found).max())
    sizes = np.rint(found / (_UNIT * largest)).astype(np.int64).ravel() if largest else np.zeros(1, np.int64)
    if not sizes.any():
        return 0.0, 0.0
    statistic = int(coins.ravel().astype(np.int64) @ sizes)
    return statistics.tail(sizes, statistic).log10_p, statistic / math.sqrt(float((sizes**2).sum()))


def _centred(logits: Floats) -> Floats:
    """Without the means over the classes, which answer nothing, and over the inputs."""
    logits = logits - logits.mean(1, keepdims=True)
    return np.asarray(logits - logits.mean(0))


def last_layer(whole: nn.Module) -> nn.Linear:
    """The layer that gives the logits."""
    return [layer for layer in whole.modules() if isinstance(layer, nn.Linear)][-1]


@torch.no_grad()
def answers(whole: nn.Module, data: Dataset) -> tuple[Tensor, Tensor]:
    """Features in front of the last layer, and logits, for the test images."""
    kept: list[Tensor] = []
    handle = last_layer(whole).register_forward_pre_hook(lambda _, given: kept.append(given[0]))
    whole.eval()
    logits = [whole(images) for images, _ in evaluate_batches(data.test, data, batch_size=250)]
    handle.remove()
    return torch.cat(kept), torch.cat(logits)


def measure(cell: Cell, runs: list[Run], store: Store) -> dict[str, Any]:
    """Serve marked answers, let a thief learn from them, and read what it has."""
    (run,) = runs
    thief, options = Thief.of(run, store), cell.options
    data, own = store.dataset(run.settings), thief.own
    whole = models.join(*thief.halves)
    features, logits = answers(whole, data)
    secret = hashlib.sha256(f"answers, key {options['key']}".encode()).digest()
    width = features.shape[1]
    blocks = [(start, min(stop, width)) for start, stop in DESIGNS[options["design"]]]
    mark = AnswerMark(whole, features, logits, blocks, secret)
    served = mark.served()

    def left(suspect: Model | Halves) -> dict[str, Any]:
        found = answers(suspect if isinstance(suspect, Model) else models.join(*suspect), data)[1]
        right = float((found.argmax(1).numpy() == data.test.labels).mean())
        return {"accuracy": 100 * right} | mark.read(found)

    numbers: dict[str, Any] = {OWNER: left(whole), SERVED: left(served)}
    given = {"seed": thief.tuning.seed, "precision": thief.tuning.precision}
    taught = FRESH.changed(labels=0.0, logits=1.0, epochs=STUDENT_EPOCHS.at(store.scale), **given)
    if options["kind"] == STUDENT:
        images = few(own, options["images"], cell.seed)
        if len(images.train) < len(own.train):
            taught = taught.changed(steps=taught.total(len(own.train) // taught.batch_size) // 4)
        student = attacks.extract(served, fresh(run, thief), images, tuning=taught)
        return numbers | {taught_by(options["images"]): left(student)}
    student = (thief.halves[0], fresh(run, thief)[1])
    taught = taught.changed(epochs=SUBSTITUTE_EPOCHS.at(store.scale))
    stolen = attacks.extract(served, student, own, part="server", tuning=taught)
    numbers[SUBSTITUTE] = left(stolen)
    for count in LABELS.at(store.scale):
        refit = REFIT.changed(**given)
        refitted = attacks.finetune(stolen, few(own, count, cell.seed), kind="last", tuning=refit)
        numbers[refitted_by(count)] = left(refitted)
    return numbers


def few(own: Dataset, count: int, seed: int) -> Dataset:
    """This number of a thief's images, or all."""
    if count >= len(own.train):
        return own
    return attacks.share(own, stratified(own.train.labels, count, seed=seed))


def taught_by(images: int) -> str:
    """Name of a fresh student."""
    return f"{STUDENT} of {images} images"


def refitted_by(labels: int) -> str:
    """Name of a substitute whose last layer was fitted anew."""
    return f"{SUBSTITUTE}, last layer by {labels} labels"


def level(design: str) -> float:
    """The log10 p before correction at which a stamped register's answers prove something."""
    return math.log10(ALPHA / len(DESIGNS[design])) - STAMPED_ALLOWANCE_LOG2 * math.log10(2)


def suspects(measured: Measured) -> list[str]:
    """What is read of each design: the names of these among the numbers of the cells."""
    counts = sorted({int(cell.options["images"]) for cell in measured.cells})
    return [SERVED, SUBSTITUTE, *map(refitted_by, counts), *map(taught_by, counts)]


def found(measured: Measured, design: str, suspect: str) -> list[dict[str, float]]:
    """What was read of a suspect with each key, and what it lost of the owner's accuracy."""
    results = []
    for cell in measured.cells:
        numbers = measured.first(cell.name) or {}
        # The served model was measured in every cell, and is the same in all of one key.
        again = suspect == SERVED and cell.options["kind"] != SUBSTITUTE
        if cell.options["design"] == design and suspect in numbers and not again:
            lost = numbers[OWNER]["accuracy"] - numbers[suspect]["accuracy"]
            results.append(numbers[suspect] | {"lost": lost})
    return results


def show(measured: Measured, folder: Path) -> Page:
    """For each design and suspect: what it costs, and how much of the mark is in its answers."""
    rows: list[Row] = []
    for design, suspect in itertools.product(DESIGNS, suspects(measured)):
        read = found(measured, design, suspect)
        proven = sum(numbers["log10_p"] <= level(design) for numbers in read)
        rows.append(
            [
                f"{design}: {suspect}",
                Number.over([numbers["accuracy"] for numbers in read]),
                Number.over([numbers["z"] for numbers in read]),
                ", ".join(f"{numbers['log10_p']:.1f}" for numbers in read) if read else NOT_RUN,
                f"{proven} of {len(read)} (at {level(design):.1f})" if read else NOT_RUN,
            ]
        )
    return [
        Table(
            ["directions: suspect", "accuracy", "deviations", "log10 p before correction", "keys proven"],
            rows,
            notes=f"δ = {STRENGTH:g}. One number per key. Proof takes {ALPHA:g} after 2^"
            f"{STAMPED_ALLOWANCE_LOG2} for a stamped register and one test per block of directions. To mark "
            "the logits of the training itself, which is harder, as they change from round to round, was not "
            "tried: it needs a design that holds when the model is finished.",
        )
    ]


def holds(measured: Measured, design: str) -> bool | None:
    """Whether two of three keys prove both thieves at the price allowed; None where that is not known."""
    answers = []
    for suspect in suspects(measured):
        if suspect != SUBSTITUTE:  # a thief who leaves it at that is no test
            read = found(measured, design, suspect)
            good = [
                numbers["lost"] <= MOST_LOST if suspect == SERVED else numbers["log10_p"] <= level(design)
                for numbers in read
            ]
            answers.append(False if good.count(False) >= 2 else True if good.count(True) >= 2 else None)
    return False if False in answers else None if None in answers else True


def verdict(measured: Measured) -> list[Finding]:
    """Does a design do what the answers would have to do?"""
    return [
        Finding(
            f"With directions {design}, a substitute whose last layer was fitted anew and a fresh student, "
            f"with few own images and with many, are proven at a cost of at most {MOST_LOST:g} points of "
            "accuracy, for two of three keys.",
            holds(measured, design),
        )
        for design in DESIGNS
    ]


CAPTION = "A mark in the answers that a server gives, read from the answers of what was taught by them."
EXPERIMENT = Experiment("answers", CAPTION, cells, show, measure, verdict)
