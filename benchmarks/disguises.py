"""Disguises that change no answer, composed at random: what is left of the mark, the origin and the verdict.

    python benchmarks/disguises.py --json results/benchmarks/disguises.json

For each of the four architectures, a small marked model, as ``tests/harness/disguises.py`` makes it, is
disguised by a random composition: channels of all layers reordered, scaled, turned, a bias of −∞, a channel
that overflows on noise. A third is then exported to ONNX and written otherwise there: padded, in halves,
transposed, computed from the input, behind idle layers, with other rectifiers. Another third is renamed: the
rows of the client half in a module of one's own, in which no layer has its name. A composition counts if the
copy computes what the model computes: answers differ by less than a thousandth of the largest, by less than a
twentieth with a bias of −∞.

*Null*: clean models, disguised, under keys that nobody used: P(p <= x) <= x for the reading in the order that
the key's initial weights suggest, by force, whether that is believed or not.
"""

from __future__ import annotations

import argparse
import json
import platform
import tempfile
from collections import Counter
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import scipy.stats
import torch
from torch import Tensor, nn

from harness.disguises import (
    CUTS,
    DISGUISES,
    INPUT,
    REWRITES,
    Case,
    exported,
    marked,
    pictures,
    scaled_widely,
)
from sigil import models, statistics, verify
from sigil.alignment import align
from sigil.keys.key import Key
from sigil.models import Model
from sigil.suspect import open_suspect
from sigil.verdict.report import Report

SCALES = ("scaled", "scaled widely", "shrunk")
OTHERS = ("reordered", "turned", "silenced", "overflowing")
WAYS = ("module", "renamed", "graph")


class Renamed(nn.Module):
    """The rows of a client half under other names."""

    def __init__(self, half: Model) -> None:
        super().__init__()
        self.parts = nn.ModuleList(half.children())

    def forward(self, images: Tensor) -> Tensor:
        for part in self.parts:
            images = part(images)
        return images


def outcome(report: Report) -> str:
    """The verdict in a word."""
    return "owned" if report.owned else "descends" if report.descends else "not proven"


def numbers(report: Report) -> dict[str, Any]:
    """WSR and log10 p of the best reading, the same of the origin, and the verdict."""
    found = next(one for one in report.readings if one.kind == "origin")
    return {
        "wsr": round(report.wsr, 4),
        "log10_p": round(report.best.log10_p_before, 1),
        "log10_p_origin": round(found.log10_p_before, 1),
        "verdict": outcome(report),
    }


@torch.no_grad()
def composed(case: Case, seed: int) -> tuple[list[str], Model] | None:
    """A random composition of what can be done to a model; None if it does not compute the same."""
    random, chance = torch.Generator().manual_seed(seed), np.random.default_rng(seed)
    chosen = [*(one for one in OTHERS if chance.random() < 0.6), str(chance.choice(SCALES))]
    chosen = ["reordered", *(one for one in chance.permutation(chosen).tolist() if one != "reordered")]
    whole = case.whole
    for name in chosen:
        whole = DISGUISES[name](case, whole, random)
    wanted, found = case.whole(case.inputs), whole(case.inputs)
    allowed = 0.05 if "silenced" in chosen else 1e-3
    same = bool((found - wanted).abs().max() <= allowed * wanted.abs().max())
    return (chosen, whole) if same else None


def examined(case: Case, half: Model, way: str, seed: int, folder: Path) -> tuple[list[str], Report]:
    """What was done to the copy besides, and the verdict on it."""
    options: dict[str, Any] = {"inputs_from": "judge", "register": 1}
    if way != "graph":
        suspect = half if way == "module" else Renamed(half).eval()
        return [], verify(suspect, case.key, case.inputs, input_shape=INPUT, **options)
    chance, path = np.random.default_rng(seed), folder / "copy.onnx"
    graph = exported(half, path)
    rewrites = chance.permutation([name for name in REWRITES if name != "exported"]).tolist()
    rewrites = rewrites[: int(chance.integers(0, 3))]
    for name in rewrites:
        graph = REWRITES[name](graph)
    onnx.save(graph, str(path))
    at = graph.graph.output[0].name
    with closing(open_suspect(path, key=case.key, at=at, time_limit=3600)) as opened:
        return rewrites, verify(opened, case.key, case.inputs, **options)


def table(count: int, folder: Path) -> Iterator[dict[str, Any]]:
    """Compositions for each architecture, beginning with the plain model."""
    for name in models.names():
        case = marked(name)
        plain = models.split(case.whole, case.cut)[0].eval()
        report = verify(plain, case.key, case.inputs, inputs_from="judge", register=1)
        yield {"model": name, "way": "module", "disguises": []} | numbers(report)
        for seed in range(count):
            made = composed(case, seed)
            if made is None:
                yield {"model": name, "seed": seed, "verdict": "not the same function"}
                continue
            disguises, whole = made
            half, way = models.split(whole, case.cut)[0].eval(), WAYS[seed % len(WAYS)]
            rewrites, report = examined(case, half, way, seed, folder)
            yield (
                {"model": name, "seed": seed, "way": way, "disguises": disguises + rewrites} | numbers(report)
            )


@torch.no_grad()
def null(keys: int, clean: int) -> list[dict[str, Any]]:
    """p-values of disguised clean models under keys that nobody used, in the order that each suggests."""
    rows = []
    for seed in range(clean):
        name = ("resnet18", "vgg11")[seed % 2]
        whole = models.build(name, classes=4, width=4, input_size=INPUT[1:], seed=100 + seed).eval()
        case = Case(Key.generate("Nobody", shape=(2,), bits=2, seed=bytes(32)), whole, pictures(64, seed=3))
        whole = scaled_widely(case, whole, torch.Generator().manual_seed(seed))
        half = models.split(whole, CUTS[name])[0].eval()
        shape, answers = models.activation_shape(half, INPUT), half(case.inputs)
        values = []
        for number in range(keys):
            key = Key.generate("Nobody", shape=shape, bits=32, seed=(seed << 32 | number).to_bytes(32, "big"))
            start = models.split(
                models.build(name, classes=4, width=4, input_size=INPUT[1:], seed=0), CUTS[name]
            )[0]
            key.initialise(start)
            found = align(half, start, input_shape=INPUT)
            ones = (found(answers).nan_to_num(0.0).flatten(1) @ key.matrix >= 0).sum(0).numpy()
            tail = statistics.p_value(ones, key.target.numpy(), len(answers))
            values.append(10.0**tail.log10_p)
        p = np.sort(values)
        above = float((np.arange(1, len(p) + 1) / len(p) - p).max())
        rows.append(
            {
                "model": name,
                "seed": seed,
                "draws": len(p),
                "below_0.05": float((p <= 0.05).mean()),
                "smallest": float(p[0]),
                "valid_pvalue": float(scipy.stats.ksone.sf(max(0.0, above), len(p))),
            }
        )
        print(json.dumps(rows[-1]), flush=True)
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--json", type=Path, help="also write the measurements to this file")
    parser.add_argument("--compositions", type=int, default=51, help="compositions for each architecture")
    parser.add_argument("--keys", type=int, default=1000, help="keys for each clean model")
    parser.add_argument("--clean", type=int, default=5, help="clean models")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    rows = []
    with tempfile.TemporaryDirectory() as place:
        for row in table(arguments.compositions, Path(place)):
            rows.append(row)
            print(json.dumps(row), flush=True)
    print(dict(Counter((row["model"], row["verdict"]) for row in rows)))
    found = null(arguments.keys, arguments.clean)
    if arguments.json:
        versions = {"python": platform.python_version(), "torch": str(torch.__version__)}
        content = {"versions": versions, "compositions": rows, "null": found}
        lines = [f'  "{name}": {json.dumps(value)}' for name, value in content.items() if name == "versions"]
        for name in ("compositions", "null"):
            inside = ",\n    ".join(json.dumps(row) for row in content[name])
            lines.append(f'  "{name}": [\n    {inside}\n  ]')
        arguments.json.write_text("{\n" + ",\n".join(lines) + "\n}\n")


if __name__ == "__main__":
    main()
