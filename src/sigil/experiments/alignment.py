"""Verification of disguised copies: the paper's first limitation, undone (ResNet-18, 128 channels at the cut).

The disguise is a random order of the channels at the cut and log-normal scales, carried through the layers
behind so that the model computes the same. Three ways to undo it are compared: by correlations under images,
by correlations under noise, and by the initial weights; the last two need no data.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from scipy import stats
from torch import Tensor, nn

from sigil import attacks, data
from sigil.alignment import Alignment, Reference, align
from sigil.attacks.subject import Halves
from sigil.data import Dataset
from sigil.errors import SigilError
from sigil.experiments import alignment_null as null
from sigil.experiments import figures, removal, scales
from sigil.experiments.disguises import DISGUISES, Disguised, permuted
from sigil.experiments.experiment import Experiment, Finding, Results
from sigil.experiments.scales import TASKS, Scale
from sigil.experiments.store import Cell, Store
from sigil.experiments.tables import MISSING, markdown
from sigil.federation.initial import initial_half
from sigil.federation.precision import choose
from sigil.federation.recording import Recording
from sigil.federation.run import Run
from sigil.federation.settings import Settings
from sigil.key import Key
from sigil.probing import noise
from sigil.verification import verify

WAYS = ("images", "noise", "initial weights")
ATTACKS = ("none", "finetune 100", "prune 60 %", "prune 80 %", "INT4", "adaptive")
COUNTS = (50, 200, 2_000)
# Probe images of the same kind as the training's, and of others.
KINDS = {"smoke": ("digits", "noise"), "cpu": ("cifar10", "tiny-imagenet", "digits32", "noise")}
# Short trainings where many models are needed, and how many.
SHORT: dict[str, dict[str, dict[str, Any]]] = {
    "cpu": {
        "data": {"train_limit": 1_000, "test_limit": 500},
        "federation": {"clients": 2, "rounds": 3},
        "run": {"evaluate_every": 3},
    }
}
CLEAN, PAIRS = {"smoke": 2}, {"smoke": 3}


def cells(scale: Scale, seeds: Sequence[int]) -> list[Cell]:
    """Attacks, architectures, probes, what an adversary does next, and the null hypothesis."""
    found = []
    for seed in seeds:
        main = scale.settings(
            seed=seed, **scale.alignment, watermark={"strength": 0.1}, record={"clients": [0]}
        )
        plan: list[tuple[str, dict[str, Any], tuple[Settings, ...]]] = []
        plan += [(f"attack {name}", {"attack": name}, (main,)) for name in ATTACKS]
        plan += [(f"disguise {name}", {"disguise": name}, (main,)) for name in DISGUISES]
        plan += [
            (f"probes {kind} {count}", {"kind": kind, "count": count}, (main,))
            for kind in KINDS.get(scale.name, KINDS["cpu"])
            for count in COUNTS
        ]
        for model in TASKS:
            trained = scale.settings(model, seed=seed, watermark={"strength": 0.1})
            plan.append((f"model {model}", {"model": model}, (trained,)))
        for number in range(CLEAN.get(scale.name, 5)):
            clean = scale.settings(
                seed=number, variation=True, **scale.alignment, watermark={"strength": 0.0}
            )
            plan.append((f"random keys {number}", {"keys": scale.keys_per_model}, (main, clean)))
        count = PAIRS.get(scale.name, 20)
        short = [
            *(_short(scale, 100 + 1_000 * seed + number, 0.0) for number in range(count)),
            *(_short(scale, 200 + 1_000 * seed + number, 1.0) for number in range(count)),
        ]
        plan.append(("real keys", {"pairs": count}, (main, *short)))
        found += [Cell("alignment", name, seed, trainings, options) for name, options, trainings in plan]
    return found


def _short(scale: Scale, seed: int, strength: float) -> Settings:
    sections = {
        name: dict(scale.alignment.get(name, {})) | SHORT.get(scale.name, {}).get(name, {})
        for name in {*scale.alignment, *SHORT.get(scale.name, {})}
    }
    return scale.settings(seed=seed, **sections, watermark={"strength": strength})


def measure(cell: Cell, runs: list[Run], store: Store) -> dict[str, Any]:
    """One cell; what it is about is in its options."""
    options, owner = cell.options, runs[0]
    dataset = store.dataset(owner.settings)
    if "keys" in options:
        images = test_images(dataset, null.IMAGES)
        return null.random_keys(owner, runs[1], keys=options["keys"], images=images)
    if "pairs" in options:
        clean, marked = runs[1 : 1 + options["pairs"]], runs[1 + options["pairs"] :]
        return null.real_keys(owner, clean, marked, images=test_images(dataset, null.IMAGES), store=store)
    if "kind" in options:
        return _with_probes(owner, options["kind"], options["count"], store)
    if "disguise" in options:
        disguised = DISGUISES[options["disguise"]](owner.halves(), cell.seed)
        return _examined(owner, disguised, disguised.client, dataset, store)
    attacked = _attacked(owner, options.get("attack", "none"), dataset, store)
    return _examined(owner, permuted(attacked, seed=cell.seed), attacked[0], dataset, store)


def _attacked(owner: Run, attack: str, dataset: Dataset, store: Store) -> Halves:
    settings, halves = owner.settings, owner.halves()
    own = removal.attackers_share(dataset, settings)
    if attack != "adaptive":
        return removal.ATTACKS[attack][0](halves, own, settings)
    rounds = settings.federation.rounds
    epochs, lr = scales.get(store.scale).adaptive
    attacked, _ = attacks.subspace(
        halves,
        Recording(owner.folder / "recording"),
        own,
        early_rounds=range(1, math.ceil(rounds / 8) + 1),
        late_rounds=range(math.ceil(rounds * 7 / 8), rounds + 1),
        epochs=epochs,
        lr=lr,
        batch_size=settings.federation.batch_size,
        seed=settings.run.seed,
        precision=choose(settings.run.device, settings.run.precision),
    )
    return attacked


def _examined(
    owner: Run, disguised: Disguised, before: nn.Module, dataset: Dataset, store: Store
) -> dict[str, Any]:
    """Accuracy, and the verdict on a disguised model as it is and after each alignment."""
    settings, key = owner.settings, store.key(owner.settings)
    assert key is not None
    precision = choose(settings.run.device, settings.run.precision)
    numbers: dict[str, Any] = {}
    for name, halves in (("accuracy_before", owner.halves()), ("accuracy", disguised.halves)):
        if halves is not None:
            found = attacks.measure(halves, data=dataset, precision=precision).accuracy
            numbers[name] = 100 * (found or 0.0)
    suspect = disguised.client.eval()
    order = true_order(before.eval(), suspect, dataset.shape)
    numbers["as it is"] = _verdict(suspect, key, dataset)
    reference = Reference.load(owner.folder / "reference.safetensors")
    images = test_images(dataset, null.IMAGES)
    compared = {
        "images": (reference, images),
        "noise": (reference, None),
        "initial weights": (initial_half(owner.folder), None),
    }
    for way, (known, probes) in compared.items():
        try:
            alignment = align(suspect, known, probes, input_shape=dataset.shape)
        except SigilError as error:
            numbers[way] = {"error": str(error)}
        else:
            numbers[way] = _verdict(suspect, key, dataset, alignment, order)
    return numbers


def _with_probes(owner: Run, kind: str, count: int, store: Store) -> dict[str, Any]:
    """The plain disguise, undone with so many probes of some kind."""
    dataset, key = store.dataset(owner.settings), store.key(owner.settings)
    assert key is not None
    suspect = permuted(owner.halves(), seed=owner.settings.run.seed).client.eval()
    if kind == "noise":
        probes = noise(dataset.shape, count, generator=torch.Generator().manual_seed(2))
    else:
        probes = _fitted(test_images(data.load(kind, data_dir=store.data_dir), count), dataset.shape)
    reference = Reference.load(owner.folder / "reference.safetensors")
    alignment = align(suspect, reference, probes, input_shape=dataset.shape)
    order = true_order(owner.halves()[0].eval(), suspect, dataset.shape)
    return {"probes": len(probes)} | _verdict(suspect, key, dataset, alignment, order)


def _verdict(
    suspect: nn.Module,
    key: Key,
    dataset: Dataset,
    alignment: Alignment | None = None,
    order: Sequence[int] = (),
) -> dict[str, Any]:
    """WSR (%) and p, as `verify` would find them; channels recovered (%) of those that are left."""
    numbers: dict[str, Any] = {}
    if alignment is not None:
        left = [(found, true) for found, true in zip(alignment.order, order, strict=True) if true >= 0]
        numbers = {
            "recovered": 100 * sum(found == true for found, true in left) / max(1, len(left)),
            "sure": alignment.sure,
            "agreement": alignment.agreement,
            "aligned": alignment.believed,
        }
        if alignment.believed:
            suspect = nn.Sequential(suspect, _Aligned(alignment))
    try:
        report = verify(suspect, key, input_shape=dataset.shape)
    except SigilError as error:
        return numbers | {"error": str(error)}
    return numbers | {"wsr": 100 * report.wsr, "log10_p": report.log10_p, "owned": report.owned}


class _Aligned(nn.Module):
    """An alignment as a layer."""

    def __init__(self, alignment: Alignment) -> None:
        super().__init__()
        self.alignment = alignment

    def forward(self, activation: Tensor) -> Tensor:
        return self.alignment(activation)


@torch.no_grad()
def true_order(before: nn.Module, after: nn.Module, shape: tuple[int, ...]) -> list[int]:
    """Which channel of ``after`` is which of ``before``; −1 where none is the same up to its scale."""
    inputs = noise(shape, 32, generator=torch.Generator().manual_seed(3))
    ours, theirs = (_directions(half(inputs)) for half in (before, after))
    likeness = ours @ theirs.T
    best = likeness.argmax(1)
    return [
        int(channel) if likeness[index, channel] > 0.999 else -1
        for index, channel in enumerate(best.tolist())
    ]


def _directions(activation: Tensor) -> Tensor:
    return nn.functional.normalize(activation.transpose(0, 1).flatten(1).double(), dim=1)


def test_images(dataset: Dataset, count: int) -> Tensor:
    """The first test images, normalised as in training."""
    split = dataset.test
    chosen = np.arange(min(count, len(split)))
    ((images, _),) = data.evaluate_batches(
        np.asarray(split.images)[chosen],
        split.labels[chosen],
        batch_size=len(chosen),
        mean=dataset.mean,
        std=dataset.std,
    )
    return images


def _fitted(images: Tensor, shape: tuple[int, int, int]) -> Tensor:
    """Images of another set, resized and with as many colours as the model takes."""
    if images.shape[1] != shape[0]:
        images = images.mean(1, keepdim=True).expand(-1, shape[0], -1, -1)
    if tuple(images.shape[2:]) != shape[1:]:
        images = nn.functional.interpolate(images, size=shape[1:], mode="bilinear", antialias=True)
    return images.contiguous()


def show(cells: list[Cell], results: Results, folder: Path) -> str:
    """Tables of what alignment recovers, and figures of the probes and of the null hypothesis."""
    found = {
        cell.name: results[cell.name, cell.seed].numbers for cell in _first(cells) if _has(cell, results)
    }
    parts = [
        "## Disguise, alone and after other attacks\n",
        _table("attack", [(name, f"attack {name}") for name in ATTACKS], found),
        "## Four architectures\n",
        _table("model", [(name, f"model {name}") for name in TASKS], found),
        "## How little the probes need\n",
        _probes(cells, found, folder / "probes.png"),
        "## What an adversary does next\n",
        _table("disguise", [(name, f"disguise {name}") for name in DISGUISES], found),
        "## The null hypothesis\n",
        _null(cells, found, folder / "null.png"),
    ]
    return "\n".join(parts)


def _first(cells: list[Cell]) -> list[Cell]:
    """The cells of the first seed."""
    return [cell for cell in cells if cell.seed == min(other.seed for other in cells)]


def _has(cell: Cell, results: Results) -> bool:
    return (cell.name, cell.seed) in results


def _table(head: str, rows: list[tuple[str, str]], found: dict[str, Any]) -> str:
    lines = []
    for label, name in rows:
        numbers = found.get(name)
        if numbers is None:
            lines.append([label, *[MISSING] * (2 + len(WAYS))])
            continue
        accuracy = f"{numbers['accuracy']:.1f}" if "accuracy" in numbers else "as before"
        line = [label, f"{numbers['accuracy_before']:.1f} → {accuracy}", _entry(numbers["as it is"])]
        lines.append(line + [_entry(numbers[way]) for way in WAYS])
    return markdown([head, "accuracy (%)", "as it is", *WAYS], lines)


def _entry(numbers: dict[str, Any]) -> str:
    if "wsr" not in numbers:
        return "not comparable"
    text = f"WSR {numbers['wsr']:.1f}, p = 10^{numbers['log10_p']:.1f}"
    if "recovered" in numbers:
        recovered = f"{numbers['recovered']:.0f} % recovered"
        text = f"{recovered}<br>{text}" if numbers["aligned"] else f"not believed ({recovered})<br>{text}"
    return text


def _probes(cells: list[Cell], found: dict[str, Any], path: Path) -> str:
    kinds = list(dict.fromkeys(cell.options["kind"] for cell in cells if "kind" in cell.options))
    figure, (left, right) = figures.panels(2)
    lines = []
    for kind, colour in zip(kinds, figures.SERIES, strict=False):
        rows = [found.get(f"probes {kind} {count}") for count in COUNTS]
        lines.append([kind, *(MISSING if row is None else _entry(row) for row in rows)])
        known = [row for row in rows if row is not None]
        counts = [row["probes"] for row in known]
        style = {"color": colour, "label": kind}
        figures.curve(left, counts, [row["recovered"] for row in known], **style)
        figures.curve(right, counts, [row["agreement"] for row in known], **style)
    left.set(title="channels recovered (%)", xlabel="probes", xscale="log", ylim=(-3, 103))
    right.set(title="agreement with the reference", xlabel="probes", xscale="log")
    figures.legend(right)
    figures.save(figure, path)
    return f"![Channels recovered over the number of probes](probes.png)\n\n" + markdown(
        ["probes", *map(str, COUNTS)], lines
    )


def _null(cells: list[Cell], found: dict[str, Any], path: Path) -> str:
    random = [found[cell.name] for cell in _first(cells) if "keys" in cell.options and cell.name in found]
    pairs = found.get("real keys", {}).get("pairs", [])
    figure, (left, right) = figures.panels(2)
    rows = []
    for way, colour in zip(("as it is", *WAYS, "recorded scales"), figures.SERIES, strict=False):
        by_random = np.concatenate([numbers["p_values"].get(way, []) for numbers in random] or [[]])
        by_real = np.array([pair["p"][way] for pair in pairs if pair["reference"] != "owner"])
        _distribution(left, by_random, colour, way)
        _distribution(right, by_real, colour, way)
        rows.append([way, _uniform(by_random), _uniform(by_real), *_shift(pairs, way)])
    left.set(title=f"random keys on {len(random)} clean models")
    right.set(title="keys that shaped the reference")
    for axis in (left, right):
        axis.plot([0, 1], [0, 1], color="black", linewidth=0.9)
        axis.set(xlabel="p", ylabel="share of tests with a smaller p", xlim=(0, 1), ylim=(0, 1))
    figures.legend(right, {"loc": "lower right"})
    figures.save(figure, path)
    head = [
        "alignment by force",
        "random keys: KS test",
        "real keys: KS test",
        "real keys: mean z",
        "owner's key",
    ]
    return "![p-values of clean models](null.png)\n\n" + markdown(head, rows)


def _distribution(axis: Any, p: null.Floats, colour: str, label: str) -> None:
    if len(p):
        share = np.arange(1, len(p) + 1) / len(p)
        axis.step(np.sort(p), share, where="post", color=colour, linewidth=1.3, label=label)


def _uniform(p: null.Floats) -> str:
    return f"p = {stats.kstest(p, 'uniform').pvalue:.2g} ({len(p):,} tests)" if len(p) else "not used"


def _shift(pairs: list[dict[str, Any]], way: str) -> list[str]:
    """Mean z over the real keys, with its error over keys; and over clean models for the owner's one key."""
    by_key: dict[str, list[float]] = {}
    for pair in pairs:
        by_key.setdefault(pair["reference"], []).append(pair["z"][way])
    own = by_key.pop("owner", [])
    means = np.array([np.mean(values) for values in by_key.values()])
    if len(means) < 2:
        return [MISSING, MISSING]
    error = means.std(ddof=1) / np.sqrt(len(means))
    return [f"{means.mean():+.2f} ± {error:.2f}", f"{np.mean(own):+.2f}"]


def verdict(cells: list[Cell], results: Results) -> list[Finding]:
    """What alignment promises."""
    found = {
        cell.name: results[cell.name, cell.seed].numbers for cell in _first(cells) if _has(cell, results)
    }
    plain = found.get("attack none")
    if plain is None:
        return [Finding("A disguised copy is proven once it is aligned: not run.", None)]
    findings = [
        Finding(
            f"Without alignment the disguised copy is not proven: p = 10^{plain['as it is']['log10_p']:.1f}.",
            plain["as it is"]["log10_p"] > -2,
        )
    ]
    findings += [
        Finding(
            f"Aligned by {way} it has WSR ≥ 99 % and p < 1e-9: {plain[way]['wsr']:.1f} %, "
            f"10^{plain[way]['log10_p']:.1f}.",
            plain[way]["wsr"] >= 99 and plain[way]["log10_p"] < -9,
        )
        for way in WAYS
    ]
    return findings


EXPERIMENT = Experiment(
    name="alignment",
    caption=(
        "Verification of copies whose channels were reordered and rescaled: as they are, and aligned by "
        "correlations under 200 images, by correlations under noise, and by the initial weights."
    ),
    cells=cells,
    measure=measure,
    show=show,
    verdict=verdict,
)
