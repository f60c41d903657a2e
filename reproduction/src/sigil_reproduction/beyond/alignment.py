"""Verification of disguised copies: the paper's first limitation, undone (ResNet-18, 128 channels).

The disguise is a random order of the channels at the cut and log-normal scales, carried through the layers
behind so that the model computes the same. Three ways to undo it are compared: by correlations under images,
by correlations under noise, and by the initial weights; the last two need no data.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from sigil import attacks, data
from sigil.alignment import Alignment, Reference, align, initial_half
from sigil.attacks.halves import Halves
from sigil.data import Dataset, Split
from sigil.errors import SigilError
from sigil.federation.measuring import accuracy
from sigil.federation.precision import choose
from sigil.federation.recording import Recording
from sigil.federation.run import Run
from sigil.federation.settings import Settings
from sigil.keys.key import Key
from sigil.models import Model
from sigil.probing import noise
from sigil_reproduction.beyond import alignment_null as null
from sigil_reproduction.beyond.alignment_page import show, verdict
from sigil_reproduction.beyond.disguises import DISGUISES, Disguised, permuted
from sigil_reproduction.paper import table4_removal as removal
from sigil_reproduction.paper.table5_adaptive import FINETUNING
from sigil_reproduction.runner.attacked import attackers_share
from sigil_reproduction.runner.experiment import Experiment
from sigil_reproduction.runner.reading import on_noise
from sigil_reproduction.runner.scales import TASKS, PerScale, Scale, Sections
from sigil_reproduction.runner.store import Cell, Store

# Images on which accuracy is compared before and after a disguise.
TESTED = 2_000


@dataclass(frozen=True)
class Extent:
    """How much is tried: probe images of the training's kind come first, then other kinds.

    ``clean`` models of other origin stand against random keys, ``pairs`` of clean and marked ones from short
    trainings against real keys.
    """

    attacks: tuple[str, ...] = ("none", "finetune 100", "prune 60 %", "prune 80 %", "INT4", "adaptive")
    disguises: tuple[str, ...] = tuple(DISGUISES)
    kinds: tuple[str, ...] = ("cifar10", "tiny-imagenet", "digits32", "noise")
    counts: tuple[int, ...] = (50, 200, 2_000)
    models: tuple[str, ...] = tuple(TASKS)
    clean: int = 5
    pairs: int = 20
    short: Sections = field(
        default_factory=lambda: {
            "data": {"train_limit": 1_000, "test_limit": 500},
            "federation": {"clients": 2, "rounds": 3},
            "run": {"evaluate_every": 3},
        }
    )


EXTENTS = PerScale(
    Extent(),
    smoke=Extent(
        attacks=("none", "adaptive"),
        disguises=("25 % more channels",),
        kinds=("digits", "noise"),
        counts=(50,),
        models=("vgg11",),
        clean=1,
        pairs=2,
        short={},
    ),
)


def cells(scale: Scale, seeds: Sequence[int]) -> list[Cell]:
    """Attacks, architectures, probes, what an adversary does next, and the null hypothesis."""
    found = []
    extent = EXTENTS.at(scale)
    for seed in seeds:
        mark = {"strength": 0.1}
        main = scale.settings(
            seed=seed, variation=False, **scale.wide, watermark=mark, record=scale.recording
        )
        plan: list[tuple[str, dict[str, Any], tuple[Settings, ...]]] = []
        plan += [(f"attack {name}", {"attack": name}, (main,)) for name in extent.attacks]
        plan += [(f"disguise {name}", {"disguise": name}, (main,)) for name in extent.disguises]
        plan += [
            (f"probes {kind} {count}", {"kind": kind, "count": count}, (main,))
            for kind in extent.kinds
            for count in extent.counts
        ]
        for model in extent.models:
            plan.append(
                (f"model {model}", {"model": model}, (scale.settings(model, seed=seed, watermark=mark),))
            )
        if scale.paper_steps:
            longer = scale.settings(seed=seed, watermark=mark, federation=scale.paper_steps)
            plan.append(("model resnet18 longer", {"model": "resnet18, longer"}, (longer,)))
        # The clean model of the same number begins from the same weights as the marked one.
        others = [number for number in range(extent.clean + 1) if number != seed]
        clean = {
            number: scale.settings(seed=number, variation=True, **scale.wide, watermark={"strength": 0.0})
            for number in (seed, *others)
        }
        for number, settings in clean.items():
            options = {"keys": scale.keys_per_model, "sibling": number == seed}
            plan.append((f"random keys {number}", options, (main, settings)))
        plan.append(("order chosen afterwards", {"forged": True}, (main, clean[others[0]])))
        short = [
            _short(scale, extent, seed=first + 1_000 * seed + number, strength=strength)
            for first, strength in ((100, 0.0), (200, 1.0))
            for number in range(extent.pairs)
        ]
        options = {"pairs": extent.pairs, "keys": scale.keys_per_model // 5}
        plan.append(("real keys", options, (main, *short)))
        found += [Cell("alignment", name, seed, trainings, options) for name, options, trainings in plan]
    return found


def _short(scale: Scale, extent: Extent, *, seed: int, strength: float) -> Settings:
    sections = {
        name: {**scale.wide.get(name, {}), **extent.short.get(name, {})}
        for name in {*scale.wide, *extent.short}
    }
    return scale.settings(seed=seed, variation=False, **sections, watermark={"strength": strength})


def measure(cell: Cell, runs: list[Run], store: Store) -> dict[str, Any]:
    """One cell; what it is about is in its options."""
    options, owner = cell.options, runs[0]
    dataset, key = store.dataset(owner.settings), store.key(owner)
    assert key is not None
    if "pairs" in options:
        clean, marked = runs[1 : 1 + options["pairs"]], runs[1 + options["pairs"] :]
        images = test_images(dataset, null.IMAGES)
        return null.real_keys(owner, clean, marked, keys=options["keys"], images=images, store=store)
    if "keys" in options:
        images = test_images(dataset, null.IMAGES)
        return null.random_keys(owner, runs[1], keys=options["keys"], images=images, store=store)
    if "forged" in options:
        return null.chosen_afterwards(runs[1], key)
    if "kind" in options:
        return _with_probes(owner, options["kind"], options["count"], store)
    if "disguise" in options:
        before = owner.halves()
        return _examined(owner, before, DISGUISES[options["disguise"]](before, cell.seed), store)
    before = _attacked(owner, options.get("attack", "none"), dataset, store)
    return _examined(owner, before, permuted(before, seed=cell.seed), store)


def _attacked(owner: Run, attack: str, dataset: Dataset, store: Store) -> Halves:
    settings, halves = owner.settings, owner.halves()
    own = attackers_share(dataset, settings)
    if attack != "adaptive":
        return removal.ATTACKS[attack][0](halves, own, settings, store.scale)
    rounds = settings.federation.rounds
    tuning = FINETUNING.at(store.scale)
    attacked, _ = attacks.subspace(
        halves,
        Recording(owner.folder / "recording"),
        own,
        early_rounds=range(1, math.ceil(rounds / 8) + 1),
        late_rounds=range(math.ceil(rounds * 7 / 8), rounds + 1),
        epochs=tuning.epochs,
        lr=tuning.lr,
        batch_size=settings.federation.batch_size,
        seed=settings.run.seed,
        precision=choose(settings.run.device, settings.run.precision),
    )
    return attacked


def _examined(owner: Run, before: Halves, disguised: Disguised, store: Store) -> dict[str, Any]:
    """Accuracy (%) before and after a disguise, and the verdicts: before, as it is, and aligned."""
    settings, key, dataset = owner.settings, store.key(owner), store.dataset(owner.settings)
    assert key is not None
    precision = choose(settings.run.device, settings.run.precision)
    tested = replace(dataset, test=_evenly(dataset.test, TESTED))
    numbers: dict[str, Any] = {
        "accuracy_before": 100 * accuracy(*before, tested, precision=precision),
        "accuracy": 100 * accuracy(disguised.client, disguised.server, tested, precision=precision),
        "before": _verdict(before[0], key, dataset),
        "as it is": _verdict(disguised.client, key, dataset),
    }
    same = same_channels(before[0], disguised.client, dataset.shape)
    reference = Reference.load(owner.folder / "reference.safetensors")
    compared: dict[str, tuple[Reference | Model, Tensor | None]] = {
        "images": (reference, test_images(dataset, null.IMAGES)),
        "noise": (reference, None),
        "initial weights": (initial_half(owner.folder, key), None),
    }
    for way, (known, probes) in compared.items():
        try:
            alignment = align(disguised.client, known, probes, input_shape=dataset.shape)
        except SigilError as error:
            numbers[way] = {"error": str(error)}
        else:
            numbers[way] = _verdict(disguised.client, key, dataset, alignment, same)
    return numbers


def _with_probes(owner: Run, kind: str, count: int, store: Store) -> dict[str, Any]:
    """The plain disguise, undone with `count` probes of some kind."""
    dataset, key = store.dataset(owner.settings), store.key(owner)
    assert key is not None
    halves = owner.halves()
    suspect = permuted(halves, seed=owner.settings.run.seed).client
    if kind == "noise":
        probes = noise(dataset.shape, count, generator=torch.Generator().manual_seed(2))
    else:
        probes = _fitted(test_images(data.load(kind, data_dir=store.data_dir), count), dataset.shape)
    reference = Reference.load(owner.folder / "reference.safetensors")
    alignment = align(suspect, reference, probes, input_shape=dataset.shape)
    same = same_channels(halves[0], suspect, dataset.shape)
    return {"probes": len(probes)} | _verdict(suspect, key, dataset, alignment, same)


def _verdict(
    suspect: nn.Module,
    key: Key,
    dataset: Dataset,
    alignment: Alignment | None = None,
    same: Tensor | None = None,
) -> dict[str, Any]:
    """WSR (%) and p, as `verify` would find them, and the channels recovered (%) of those that are left."""
    numbers: dict[str, Any] = {}
    if alignment is not None and same is not None:
        left = same.any(1)
        right = [found >= 0 and bool(same[channel, found]) for channel, found in enumerate(alignment.order)]
        numbers = {
            "left": int(left.sum()),
            "recovered": 100 * sum(right) / int(left.sum()) if left.any() else None,
            "sure": alignment.sure,
            "agreement": alignment.agreement,
            "aligned": alignment.believed,
        }
        if alignment.believed:
            suspect = nn.Sequential(suspect, _Aligned(alignment))
    try:
        report = on_noise(suspect, key, dataset.shape)
    except SigilError as error:
        return numbers | {"error": str(error)}
    return numbers | {
        "wsr": 100 * report.wsr,
        "log10_p": report.log10_p_before,
    }


class _Aligned(nn.Module):
    """An alignment as a layer."""

    def __init__(self, alignment: Alignment) -> None:
        super().__init__()
        self.alignment = alignment

    def forward(self, activation: Tensor) -> Tensor:
        return self.alignment(activation)


@torch.no_grad()
def same_channels(before: nn.Module, after: nn.Module, shape: tuple[int, ...]) -> Tensor:
    """Whether a channel of ``before`` and one of ``after`` vary together (correlation above 0.9), (C, C′)."""
    inputs = noise(shape, 32, generator=torch.Generator().manual_seed(3))
    values = (half.eval()(inputs).transpose(0, 1).flatten(1).double() for half in (before, after))
    ours, theirs = (nn.functional.normalize(some - some.mean(1, keepdim=True), dim=1) for some in values)
    return ours @ theirs.T > 0.9


def test_images(dataset: Dataset, count: int) -> Tensor:
    """`count` test images, evenly chosen, normalised as in training."""
    chosen = _evenly(dataset.test, count)
    ((images, _),) = data.evaluate_batches(chosen, dataset, batch_size=len(chosen))
    return images


def _evenly(split: Split, count: int) -> Split:
    chosen = np.linspace(0, len(split) - 1, min(count, len(split))).astype(int)
    return Split(np.asarray(split.images)[chosen], split.labels[chosen])


def _fitted(images: Tensor, shape: tuple[int, int, int]) -> Tensor:
    """Images of another set, resized and with as many colours as the model takes."""
    if images.shape[1] != shape[0]:
        images = images.mean(1, keepdim=True).expand(-1, shape[0], -1, -1)
    if tuple(images.shape[2:]) != shape[1:]:
        images = nn.functional.interpolate(images, size=shape[1:], mode="bilinear", antialias=True)
    return images.contiguous()


CAPTION = (
    "Verification of copies whose channels were reordered and rescaled: as they are, and aligned by "
    "correlations under 200 images, by correlations under noise, and by the initial weights. Accuracy is "
    "that on at most 2,000 test images."
)
EXPERIMENT = Experiment("alignment", CAPTION, cells, show, measure, verdict)
