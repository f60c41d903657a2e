"""Clean models' p-values on noise and on real inputs, and what verification costs beyond its forward passes.

    python benchmarks/readings.py --json benchmarks/results/readings.json

*Null*: models that never saw a key are trained on digits, and with ``--data-dir`` on CIFAR-10. Keys are
drawn, others for each model, and each model is read with each of its keys as `sigil.verify` does it: on
noise, on 256 test images that the key draws, and, for short halves of VGG11 and networks of one's own on
digits, on the same images after the channels were put in the order that the key's initial weights suggest, by
force, whether that is believed or not. A short key has few possible p-values, so two things are tested: that
P(p ≤ x) ≤ x for every x within sampling error, and that the randomised p, which is uniform if the null holds,
is uniform (Kolmogorov and Smirnov). The shares of p ≤ 0.1, 0.01 and 0.001 over all models have intervals of
95 % (Clopper and Pearson).

*Cost*: 512 probes and 256 inputs through `sigil.verify`, against the same inputs through the model alone.
Both are timed in turns by the processor's clock, and the ratio of the medians counts.

What the file holds already is not measured again.
"""

from __future__ import annotations

import copy
import functools
import json
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import scipy.stats
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from common import command_line, write_result
from sigil import data, models, statistics
from sigil.alignment import align
from sigil.data import Dataset, Inputs
from sigil.keys.key import Key
from sigil.models import Model
from sigil.verdict.readings import read
from sigil.verdict.verification import INPUTS_READ, verify

BITS = 32
PROBES = 256
COST_CLAIM = 1.2
SHORT = ("vgg11", "stage2")
OWN = "own"


class Own(nn.Module):
    """A client half that is none of Sigil's models: convolutions in a row, or with what they read added."""

    def __init__(self, channels: int, *, residual: bool) -> None:
        super().__init__()
        self.residual = residual
        sizes = (channels, 16, 32, 32)
        self.layers = nn.ModuleList(
            nn.Sequential(nn.Conv2d(before, after, 3, stride, padding=1, bias=False), nn.BatchNorm2d(after))
            for before, after, stride in zip(sizes, sizes[1:], (1, 2, 1), strict=False)
        )

    def forward(self, images: Tensor) -> Tensor:
        for layer in self.layers:
            found = layer(images)
            images = torch.relu(found + images if self.residual and found.shape == images.shape else found)
        return images


def clean_model(dataset: Dataset, *, name: str, cut: str, seed: int, epochs: int) -> nn.Module:
    """The client half of a model that was trained without any key."""
    whole: nn.Module
    half: nn.Module
    if name == OWN:
        torch.manual_seed(seed)
        half = Own(dataset.shape[0], residual=bool(seed % 2))
        whole = nn.Sequential(half, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(32, 10))
    else:
        whole = models.build(
            name, classes=10, width=8, channels=dataset.shape[0], input_size=dataset.shape[1:], seed=seed
        )
    optimizer = torch.optim.SGD(whole.parameters(), lr=0.05, momentum=0.9, weight_decay=5e-4)
    generator = torch.Generator().manual_seed(seed)
    batches = data.Batches(
        dataset.train.images, dataset.train.labels, batch_size=32, mean=dataset.mean, std=dataset.std
    )
    whole.train()
    for images, labels in (batch for _ in range(epochs) for batch in batches.epoch(generator)):
        optimizer.zero_grad()
        cross_entropy(whole(images), labels).backward()
        optimizer.step()
    if isinstance(whole, Model):
        half = models.split(whole, cut)[0]
    return half.eval()


@torch.no_grad()
def answers(model: nn.Module, inputs: Tensor) -> Tensor:
    """Activations of all inputs."""
    return torch.cat([model(batch) for batch in inputs.split(64)])


def draws(
    model: nn.Module, dataset: Dataset, shape: tuple[int, ...], keys: range, *, aligned: bool
) -> Iterator[dict[str, Any]]:
    """The p-values of one clean model under many keys, on noise and on the images that each key draws."""
    test = Inputs(dataset.test.images, normalisation=(dataset.mean, dataset.std))
    images = torch.cat(list(test.batches(range(len(test)), 256)))
    everything = answers(model, images).flatten(1)
    # The noise of a key does not depend on its bits, so that one sample serves all keys.
    noise = torch.randn(PROBES, *dataset.shape, generator=torch.Generator().manual_seed(1))
    on_noise = answers(model, noise).flatten(1)
    chance, start = np.random.default_rng(0), copy.deepcopy(model)
    for number in keys:
        key = Key.generate("Nobody", shape=shape, bits=BITS, seed=number.to_bytes(32, "big"))
        chosen = key.choose(INPUTS_READ, len(everything))
        target = key.target.numpy()
        for kind, asked in (("noise", on_noise), ("inputs", everything[chosen])):
            ones = (asked @ key.matrix >= 0).sum(0).numpy()
            yield {"kind": kind} | p_values(ones, target, len(asked), chance)
        if aligned:
            key.initialise(start)
            found = align(model, start, input_shape=dataset.shape)
            batches = functools.partial(iter, images[chosen].split(64))
            reading = read(model, key, batches, kind="inputs", count=INPUTS_READ, alignment=found)
            right = np.rint(np.array(reading.bit_shares) * INPUTS_READ).astype(np.int64)
            ones = np.where(target == 1, right, INPUTS_READ - right)
            yield {"kind": "aligned", "believed": found.believed} | p_values(
                ones, target, INPUTS_READ, chance
            )


def p_values(
    ones: np.ndarray, target: np.ndarray, count: int, chance: np.random.Generator
) -> dict[str, float]:
    """p, and the randomised p: P(T' > T) + U·P(T' = T), which is uniform under the null."""
    weights = 2 * ones.astype(np.int64) - count
    signs = 2 * target.astype(np.int64) - 1
    found = int((signs * weights).sum())
    at_least = 10 ** statistics.tail(np.abs(weights).tolist(), found).log10_p
    reachable = found < int(np.abs(weights).sum())
    more = 10 ** statistics.tail(np.abs(weights).tolist(), found + 1).log10_p if reachable else 0.0
    return {"p": at_least, "randomised": more + chance.random() * (at_least - more)}


def shares(p: Sequence[float]) -> list[dict[str, float]]:
    """How many of these p-values are at most 0.1, 0.01 and 0.001, with intervals of 95 %."""
    found = []
    for level in (0.1, 0.01, 0.001):
        count = int((np.array(p) <= level).sum())
        interval = scipy.stats.binomtest(count, len(p)).proportion_ci(0.95)
        found.append(
            {"level": level, "share": count / len(p), "from": float(interval.low), "to": float(interval.high)}
        )
    return found


def judge(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """Whether the p-values of one model and one kind of reading are those of the null."""
    p = np.sort([row["p"] for row in rows])
    # P(p <= x) <= x: how far the empirical distribution lies above the diagonal, at most.
    above = float((np.arange(1, len(p) + 1) / len(p) - p).max())
    one_sided = float(scipy.stats.ksone.sf(max(0.0, above), len(p)))
    uniform = scipy.stats.kstest([row["randomised"] for row in rows], "uniform")
    return {
        "draws": len(p),
        "below_0.05": float((p <= 0.05).mean()),
        "below_0.001": float((p <= 0.001).mean()),
        "smallest": float(p[0]),
        "above_diagonal": above,
        "valid_pvalue": one_sided,
        "uniform_pvalue": float(uniform.pvalue),
    }


def null(
    datasets: dict[str, Dataset], *, each: int, own: int, keys: int, known: dict[str, Any]
) -> tuple[list[dict[str, Any]], dict[str, dict[str, Any]]]:
    """Every clean model under keys of its own, by model and kind of reading, and the shares of each kind."""
    rows: list[dict[str, Any]] = list(known.get("null", ()))
    every: dict[str, list[dict[str, Any]]] = {}
    plan = [
        (name, "resnet18", ("layer3", "layer2")[seed % 2], seed) for name in datasets for seed in range(each)
    ]
    # The order is found anew for every key, which takes the longer the deeper the half is.
    plan += [("digits", *SHORT, seed) for seed in range(each)]
    plan += [("digits", OWN, "end", seed) for seed in range(own)]
    done = {row["model"] for row in rows}
    for number, (name, architecture, cut, seed) in enumerate(plan):
        if architecture in done:
            continue
        dataset = datasets[name]
        model = clean_model(dataset, name=architecture, cut=cut, seed=seed, epochs=3)
        shape = tuple(answers(model, torch.zeros(1, *dataset.shape)).shape[1:])
        here = list(
            draws(
                model,
                dataset,
                shape,
                range(keys * number, keys * (number + 1)),
                aligned=architecture in (SHORT[0], OWN),
            )
        )
        for kind in dict.fromkeys(one["kind"] for one in here):
            drawn = [one for one in here if one["kind"] == kind]
            every.setdefault(f"own, {kind}" if architecture == OWN else kind, []).extend(drawn)
            row = {"data": name, "model": architecture, "seed": seed, "cut": cut, "kind": kind} | judge(drawn)
            rows.append(row)
            print(
                f"{name:8} {architecture} {seed} {cut} {kind:7} {row['draws']:5} draws, "
                f"{row['below_0.05']:.3f} at p <= 0.05; valid {row['valid_pvalue']:.2f}, uniform "
                f"{row['uniform_pvalue']:.2f}",
                flush=True,
            )
    pooled: dict[str, dict[str, Any]] = dict(known.get("shares", {}))
    for kind, drawn in every.items():
        pooled[kind] = {"draws": len(drawn), "shares": shares([one["p"] for one in drawn])}
        if "believed" in drawn[0]:
            pooled[kind]["believed"] = sum(one["believed"] for one in drawn)
    return rows, pooled


def cost(*, width: int, repeats: int) -> dict[str, Any]:
    """Time of a verification over that of its forward passes, medians of runs in turns."""
    whole = models.build("resnet18", classes=10, width=width, channels=3, input_size=32, seed=0)
    client, _ = models.split(whole, "layer3")
    client.eval()
    shape = models.activation_shape(client, (3, 32, 32))
    key = Key.generate("Nobody", shape=shape, seed=bytes(32), input_shape=(3, 32, 32), initialiser=None)
    images = torch.randn(1000, 3, 32, 32, generator=torch.Generator().manual_seed(0))
    asked = torch.cat([images[:INPUTS_READ], key.noise_probes(0, key.fields.probes)])
    _ = key.matrix

    def plain() -> None:
        answers(client, asked)

    def verification() -> None:
        verify(client, key, images, inputs_from="judge")

    seconds: dict[str, list[float]] = {"plain": [], "verification": []}
    for _ in range(repeats + 1):
        for what, run in (("plain", plain), ("verification", verification)):
            began = time.process_time()
            run()
            seconds[what].append(time.process_time() - began)
    medians = {what: float(np.median(times[1:])) for what, times in seconds.items()}
    ratio = medians["verification"] / medians["plain"]
    print(f"width {width}, {key.bits} bits: {ratio:.3f} of the plain forward passes (claim: {COST_CLAIM})")
    return {"width": width, "bits": key.bits, "repeats": repeats, "ratio": ratio, "claim": COST_CLAIM} | {
        f"{what}_seconds": value for what, value in medians.items()
    }


def main() -> None:
    parser = command_line(__doc__)
    parser.add_argument("--data-dir", type=Path, help="where CIFAR-10 is; without it digits only")
    parser.add_argument("--models", type=int, default=5, help="clean models per data set")
    parser.add_argument("--own", type=int, default=6, help="clean networks of one's own, on digits")
    parser.add_argument("--keys", type=int, default=1000, help="keys per model")
    parser.add_argument("--repeats", type=int, default=7, help="repetitions of each timing")
    parser.add_argument("--width", type=int, default=16, help="width of the network that is timed")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    datasets = {"digits": data.load("digits")}
    if arguments.data_dir is not None:
        datasets["cifar10"] = data.load("cifar10", data_dir=arguments.data_dir, train_limit=1000)
    known = json.loads(arguments.json.read_text()) if arguments.json and arguments.json.exists() else {}
    rows, pooled = null(datasets, each=arguments.models, own=arguments.own, keys=arguments.keys, known=known)
    print(json.dumps(pooled, indent=1))
    timing = known.get("cost") or cost(width=arguments.width, repeats=arguments.repeats)
    total = sum(row["draws"] for row in rows if row["kind"] == "inputs")
    worst = min(row["valid_pvalue"] for row in rows)
    print(f"{total} draws on inputs; worst of {len(rows)} tests of P(p <= x) <= x: {worst:.3f}")
    write_result(arguments.json, {"bits": BITS, "null": rows, "shares": pooled, "cost": timing})


if __name__ == "__main__":
    main()
