"""The origin test: exact for strangers, also in a restored order; what disguises and attacks leave of it.

    python benchmarks/origin.py --json benchmarks/results/origin.json

Everything runs on the embedded digits with a small ResNet-18: clean models of width 4 cut at layer2, of which
thousands of keys are tried, and for the power one of width 8 cut at layer3.

- *Strangers*: keys that nobody used against clean models that were trained without one. The p-values, made
  continuous by a random share of the probability of the very sum observed, must be uniform
  (Kolmogorov-Smirnov), and none may be proof, not even before any allowance. The shares of p ≤ 0.1, 0.01 and
  0.001 are those of the p-values that a verdict sees.
- *Restored*: the same for the held-out signs after the channels were put back in the order that fits the rest
  best. The order is found anew for every key.
- *Filters*: the same for the held-out signs where nothing but the filters is known, no name and no shape.
- *Own*: the same for networks of one's own, by the names of their layers.
- *Power*: a model that was trained from a key's initial weights, after attacks and disguises: log10 p in the
  order as it is and restored, the accuracy, and z, the sum in standard deviations.

What the file holds already is not measured again.
"""

from __future__ import annotations

import functools
import hashlib
import json
import math
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from scipy import stats

from common import command_line, write_result
from readings import OWN, clean_model, shares
from sigil import attacks, data, origin
from sigil.alignment import initial_half
from sigil.attacks.halves import Halves
from sigil.data import Dataset
from sigil.federation import train
from sigil.federation.precision import choose
from sigil.federation.recording import Recording
from sigil.federation.settings import Settings, make
from sigil.keys.key import Key
from sigil.models import Model
from sigil.origin import WEIGHTS, Origin, compare
from sigil.rules import ALPHA
from sigil.statistics import log10_at_most
from sigil.verdict.descent import filters_origin, restored_origin
from sigil_reproduction.beyond.disguises import DISGUISES

SHAPE = (32, 2, 2)
# For the owner of the wider model the cut and the width are others, which only the filters' test asks for.
STATED: dict[str, Any] = {"model": "resnet18", "width": 4, "cut": "layer2", "input_shape": (1, 8, 8)}


class Unnamed(torch.nn.Module):
    """The rows of a client half, of which nothing but the layers is known."""

    def __init__(self, half: Model) -> None:
        super().__init__()
        self.parts = torch.nn.ModuleList(half.children())

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        for part in self.parts:
            images = part(images)
        return images


def settings(seed: int, *, marked: bool, rounds: int) -> Settings:
    """A short training on digits; with a mark the model is wider, and the first client records gradients."""
    return make(
        {
            "model": {
                "name": "resnet18",
                "width": 8 if marked else 4,
                "cut": "layer3" if marked else "layer2",
            },
            "data": {"name": "digits"},
            "federation": {"clients": 2, "rounds": rounds, "local_epochs": 1, "batch_size": 32},
            "optimizer": {"lr": 0.05, "warmup_rounds": 1},
            "watermark": {"strength": 0.1 if marked else 0.0, "scheme": "paper", "bits": 8},
            "record": {"clients": [0]} if marked else {},
            "run": {"seed": seed, "workers": 1, "threads": 1, "evaluate_every": rounds},
        }
    )


def key_of(number: int, **stated: Any) -> Key:
    secret = hashlib.sha256(f"origin benchmark {number}".encode()).digest()
    return Key.generate("ACME", shape=SHAPE, bits=8, seed=secret, **(stated or STATED))


def direct(half: Model, key: Key) -> Origin:
    """The test of all signs in the order as it is."""
    shapes = {name: tuple(value.shape) for name, value in half.state_dict().items() if value.ndim >= 2}
    return compare(half.state_dict(), shapes, key.initial)


def by_filters(half: Model, key: Key) -> Origin | None:
    """The test of the held-out signs without the names of layers; a verdict takes the better of two tests."""
    assert key.fields.input_shape is not None
    return filters_origin(Unnamed(half), key, key.fields.input_shape)


def deficit(found: Origin) -> int:
    counts = zip(WEIGHTS, found.agreeing, found.tested, strict=True)
    return sum(q * (tested - agreeing) for q, agreeing, tested in counts)


def z(found: Origin) -> float:
    """The sum of signs in standard deviations."""
    counts = list(zip(WEIGHTS, found.agreeing, found.tested, strict=True))
    total = sum(q * (2 * agreeing - tested) for q, agreeing, tested in counts)
    return total / math.sqrt(max(1, sum(q * q * tested for q, _, tested in counts)))


def continuous_p(found: Origin, random: np.random.Generator) -> float:
    """P(a larger sum) plus a random share of P(this very sum): uniform under the null, exactly."""
    least = deficit(found)
    at_most = 10 ** log10_at_most(least, found.tested, WEIGHTS)
    below = 10 ** log10_at_most(least - 1, found.tested, WEIGHTS) if least else 0.0
    return below + float(random.random()) * (at_most - below)


def summary(found: Iterator[Origin]) -> dict[str, Any]:
    """How uniform the p-values are, and the smallest one that a verdict would have seen."""
    random = np.random.default_rng(0)
    values, said = [], []
    for one in found:
        values.append(continuous_p(one, random))
        said.append(one.log10_p)
    smallest = min(said)
    tested = stats.kstest(values, "uniform")
    return {
        "draws": len(values),
        "kolmogorov_smirnov": tested.statistic,
        "p_of_uniformity": tested.pvalue,
        "shares": shares([10.0**log10_p for log10_p in said]),
        "smallest_log10_p": smallest,
        "proven_before_any_allowance": int(smallest <= math.log10(ALPHA)),
    }


def power(halves: Halves, key: Key, dataset: Dataset, folder: Path) -> list[dict[str, Any]]:
    """What is left after each attack and disguise."""
    initial, own = initial_half(folder, key), attacks.share(dataset, np.arange(0, len(dataset.train), 10))
    tuning = attacks.Tuning(precision=choose("cpu", "float32"))
    recording = Recording(folder / "recording")

    def away(model: Halves, **options: Any) -> Halves:
        return attacks.orthogonalise(model, own, initial, tuning=tuning, **options)

    changed: dict[str, Halves] = {
        "nothing": halves,
        "pruning 60 %": attacks.prune(halves, 0.6),
        "pruning 80 %": attacks.prune(halves, 0.8),
        "INT4": attacks.quantize(halves, "int4"),
        "fine-tuning": attacks.finetune(halves, own, epochs=4, batch_size=32),
        "adaptive": attacks.subspace(
            halves,
            recording,
            own,
            early_rounds=recording.rounds[:1],
            late_rounds=recording.rounds[-1:],
            components=16,
            main_components=16,
            epochs=10,
            lr=1e-3,
            batch_size=32,
        )[0],
        "orthogonalise --way flip": away(halves, way="flip"),
        "orthogonalise --way turn": away(halves, way="turn"),
        "orthogonalise --keep": away(halves, keep=True),
    }
    rows = [row(name, model[0], key, (model, dataset)) for name, model in changed.items()]
    for name, disguise in DISGUISES.items():
        disguised = disguise(halves, 3)
        half = next(part for part in disguised.client.modules() if isinstance(part, Model))
        rows.append(row(f"disguise: {name}", half, key))
    both = attacks.permute(changed["pruning 60 %"], seed=3)
    return [*rows, row("disguise: permuted after pruning 60 %", both[0], key, (both, dataset))]


def row(name: str, half: Model, key: Key, whole: tuple[Halves, Dataset] | None = None) -> dict[str, Any]:
    plain, restored = direct(half, key), restored_origin(half, key)
    accuracy = None if whole is None else attacks.measure(whole[0], data=whole[1]).accuracy
    found = {
        "change": name,
        "accuracy": accuracy,
        "share": plain.share,
        "z": z(plain),
        "log10_p": plain.log10_p,
        "z_restored": None if restored is None else z(restored),
        "log10_p_restored": None if restored is None else restored.log10_p,
    }
    print(json.dumps(found), flush=True)
    return found


def main() -> None:
    parser = command_line(__doc__)
    parser.add_argument("--strangers", type=int, default=10_000, help="keys against clean models")
    parser.add_argument("--restored", type=int, default=5_000, help="keys whose order is found first")
    parser.add_argument("--filters", type=int, default=2_000, help="keys that know nothing but filters")
    parser.add_argument("--own", type=int, default=6_000, help="keys against networks of one's own")
    parser.add_argument("--clean", type=int, default=8, help="clean models to train")
    parser.add_argument("--rounds", type=int, default=3, help="rounds of each training")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    dataset = data.load("digits")
    result: dict[str, Any] = {"clean_models": arguments.clean}
    if arguments.json and arguments.json.exists():
        result |= json.loads(arguments.json.read_text())
    with tempfile.TemporaryDirectory() as place:
        folder, rounds = Path(place), arguments.rounds

        @functools.cache
        def clean(number: int) -> Model:
            return train(settings(number, marked=False, rounds=rounds), folder / str(number)).halves()[0]

        @functools.cache
        def own(number: int) -> torch.nn.Module:
            return clean_model(dataset, name=OWN, cut="end", seed=number, epochs=3)

        def tried(test: Callable[[Model, Key], Origin | None], number: int) -> Origin | None:
            return test(clean(number % arguments.clean), key_of(number))

        def tried_own(number: int) -> Origin | None:
            key, network = key_of(number, input_shape=dataset.shape), own(number % arguments.clean)
            return filters_origin(network, key, dataset.shape, network)

        tests: dict[str, tuple[int, Callable[[int], Origin | None]]] = {
            "strangers": (arguments.strangers, functools.partial(tried, direct)),
            "restored": (arguments.restored, functools.partial(tried, restored_origin)),
            "filters": (arguments.filters, functools.partial(tried, by_filters)),
            "own": (arguments.own, tried_own),
        }
        for name, (draws, test) in tests.items():
            if name not in result:
                result[name] = summary(one for one in map(test, range(draws)) if one is not None)
                print(json.dumps({name: result[name]}), flush=True)
        if "power" not in result:
            owner = key_of(-1)
            marked = train(settings(100, marked=True, rounds=rounds), folder / "marked", key=owner)
            result["power"] = power(marked.halves(), owner, dataset, folder / "marked")
    write_result(arguments.json, result | {"weights": origin.WEIGHTS})


if __name__ == "__main__":
    main()
