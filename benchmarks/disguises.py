"""Disguises that change no answer, composed at random: what is left of the mark, the origin and the verdict.

    PYTHONPATH=tests python benchmarks/disguises.py --json disguises.json

For each of the four architectures, a small marked model, as ``tests/harness/disguises.py`` makes it, is
disguised by a random composition: channels of all layers reordered, scaled, turned, a bias of −∞, a channel
that overflows on noise. A third is then exported to ONNX and written otherwise there: padded, in halves,
transposed, computed from the input, behind idle layers, with other rectifiers. Another third is renamed: the
rows of the client half in a module of one's own, in which no layer has its name. A composition counts if the
copy computes what the model computes: answers differ by less than a thousandth of the largest, by less than a
twentieth with a bias of −∞.

Besides, a network of one's own, whose key states a digest of its layers.

``--held-out`` runs disguises that the reader had never been tried on when it was frozen. A table goes on only
with the reader that began it, of which it holds the commit.
"""

from __future__ import annotations

import argparse
import copy
import functools
import itertools
import json
import tempfile
from collections import Counter
from collections.abc import Container, Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import torch
from torch import Tensor, nn

from common import reader, write_result
from harness.disguises import (
    DISGUISES,
    INPUT,
    REWRITES,
    Case,
    exported,
    marked,
    pictures,
    push,
    unaliased,
)
from harness.held_out import FILES, GRAPHS, SECOND_FILES, SECOND_GRAPHS
from sigil import models, verify
from sigil.alignment import layers_of
from sigil.errors import SigilError
from sigil.keys.key import Key
from sigil.models import Model
from sigil.suspect import open_suspect
from sigil.verdict.report import Report

SCALES = ("scaled", "scaled widely", "shrunk")
OTHERS = ("turned", "silenced", "overflowing")
# Which channel is worth least shows before it is scaled, and how much room there is above it afterwards.
TURNS = {"silenced": 0, "overflowing": 2} | dict.fromkeys((*SCALES, "turned"), 1)
WAYS = ("module", "renamed", "graph")
cached = functools.cache(marked)


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
    found = next((one for one in report.readings if one.kind == "origin"), None)
    return {
        "wsr": round(report.wsr, 4),
        "log10_p": round(report.best.log10_p_before, 1),
        "log10_p_origin": None if found is None else round(found.log10_p_before, 1),
        "verdict": outcome(report),
    }


@torch.no_grad()
def composed(case: Case, chance: np.random.Generator) -> tuple[list[str], Model]:
    """A random composition of what can be done to a model, drawn until one computes the same.

    Some exclude each other in single precision: a channel that overflows cannot grow any further.
    """
    wanted = case.whole(case.inputs)
    while True:
        chosen = [*(name for name in OTHERS if chance.random() < 0.6), str(chance.choice(SCALES))]
        chosen = ["reordered", *sorted(chance.permutation(chosen).tolist(), key=TURNS.__getitem__)]
        random = torch.Generator().manual_seed(int(chance.integers(1 << 32)))
        whole = case.whole
        for name in chosen:
            whole = DISGUISES[name](case, whole, random)
        allowed = 0.05 if "silenced" in chosen else 1e-3
        if bool((whole(case.inputs) - wanted).abs().max() <= allowed * wanted.abs().max()):
            return chosen, whole


@contextmanager
def written(
    half: Model, way: str, chance: np.random.Generator, case: Case
) -> Iterator[tuple[list[str], Any]]:
    """A client half as the thief hands it on, and how that was rewritten."""
    if way != "graph":
        yield [], half if way == "module" else Renamed(half).eval()
        return
    rewrites = chance.permutation([name for name in REWRITES if name != "exported"]).tolist()
    rewrites = sorted(rewrites[: int(chance.integers(0, 3))], key=lambda name: name != "rerouted")
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "copy.onnx"
        graph = exported(half, path)
        for name in rewrites:
            graph = REWRITES[name](graph)
        onnx.save(graph, str(path))
        at = graph.graph.output[0].name
        with closing(open_suspect(path, key=case.key, at=at, time_limit=3600)) as opened:
            yield rewrites, opened


@torch.no_grad()
def is_same(suspect: Any, half: Model, inputs: Tensor) -> bool:
    """Whether a suspect gives what the client half gives, channel by channel."""
    wanted = half(inputs)
    off, sizes = (values.abs().amax((0, 2, 3)) for values in (suspect(inputs) - wanted, wanted))
    return bool((off <= 1e-3 * sizes).all())


def examined(case: Case, way: str, chance: np.random.Generator | None) -> dict[str, Any]:
    """The verdict on a random composition, drawn until one computes the same, or on the plain model."""
    while True:
        disguises, whole = ([], case.whole) if chance is None else composed(case, chance)
        half = models.split(whole, case.cut)[0].eval()
        with written(half, way, chance or np.random.default_rng(0), case) as (rewrites, suspect):
            if is_same(suspect, half, case.inputs):
                report = verify(
                    suspect, case.key, case.inputs, input_shape=INPUT, inputs_from="judge", register=1
                )
                return {"disguises": disguises + rewrites} | numbers(report)


def table(count: int, done: Container[tuple[str, int]]) -> Iterator[dict[str, Any]]:
    """Compositions for each architecture, number 0 being the plain model, without those that are done."""
    for number, (place, name) in itertools.product(range(count + 1), enumerate(models.names())):
        if (name, number) in done:
            continue
        case = cached(name)
        chance = np.random.default_rng((place, number)) if number else None
        way = WAYS[number % len(WAYS)]
        yield {"model": name, "number": number, "way": way} | examined(case, way, chance)


def own_network(key: Key | None = None) -> nn.Sequential:
    """A client half that is none of Sigil's models, with the weights that a key draws."""
    layers: list[nn.Module] = []
    for inputs, outputs, stride in ((3, 16, 1), (16, 32, 2), (32, 32, 1)):
        layers.append(nn.Conv2d(inputs, outputs, 3, stride=stride, padding=1, bias=False))
        layers += [nn.BatchNorm2d(outputs), nn.ReLU()]
    network = nn.Sequential(*layers).eval()
    if key is not None:
        key.initialise(network)
    return network


@torch.no_grad()
def shuffled(network: nn.Sequential, places: Sequence[int], random: torch.Generator) -> nn.Sequential:
    """The channels of these convolutions in another order; behind the last one the next model reads them."""
    network = copy.deepcopy(network)
    for place in places:
        layer, norm = network[place], network[place + 1]
        assert isinstance(layer, nn.Conv2d)
        order = torch.randperm(layer.out_channels, generator=random)
        layer.weight.copy_(layer.weight[order])
        for values in (*norm.parameters(), *norm.buffers()):
            if values.ndim:
                values.copy_(values[order])
        if place + 3 < len(network):
            following = network[place + 3]
            assert isinstance(following, nn.Conv2d)
            following.weight.copy_(following.weight[:, order])
    return network


def own() -> Iterator[dict[str, Any]]:
    """A network of one's own, whose key states its layers: plain, as a graph, and in another order."""
    stated = layers_of(own_network(), INPUT)
    key = Key.generate("ACME", shape=(32, 8, 8), bits=50, seed=bytes(32), input_shape=INPUT, model=stated)
    network, inputs = own_network(key), pictures(300, seed=3)
    push(network, key)
    random = torch.Generator().manual_seed(1)
    copies = {
        "plain": network,
        "reordered in front of the cut": shuffled(network, (0, 3), random),
        "reordered at the cut": shuffled(network, (6,), random),
        "reordered in every layer": shuffled(network, (0, 3, 6), random),
    }
    settings: dict[str, Any] = {"input_shape": INPUT, "inputs_from": "judge", "register": 1}
    for number, ((name, network), way) in enumerate(itertools.product(copies.items(), ("module", "graph"))):
        if way == "module":
            report = verify(network, key, inputs, **settings)
        else:
            with tempfile.TemporaryDirectory() as folder:
                path = Path(folder) / "copy.onnx"
                onnx.save(exported(network, path), str(path))
                with closing(open_suspect(path, key=key)) as suspect:
                    report = verify(suspect, key, inputs, reference=own_network(), **settings)
        yield {"model": "own", "number": number, "way": way, "disguises": [name]} | numbers(report)


def held_out(done: Container[tuple[str, str]]) -> Iterator[dict[str, Any]]:
    """What nobody looked at while the reader was written, each on a reordered and scaled copy."""
    for name in models.names():
        for disguise in (*GRAPHS, *FILES, *SECOND_GRAPHS, *SECOND_FILES):
            if (name, disguise) in done:
                continue
            case, random = cached(name), torch.Generator().manual_seed(1)
            whole = DISGUISES["scaled"](case, DISGUISES["reordered"](case, case.whole, random), random)
            half = models.split(whole, case.cut)[0].eval()
            part = 1 if disguise in GRAPHS | FILES else 2
            yield {"model": name, "part": part, "disguise": disguise} | stored(case, half, disguise)


def stored(case: Case, half: Model, disguise: str) -> dict[str, Any]:
    """The verdict on a copy in another graph or file, or the sentence with which it is refused."""
    with tempfile.TemporaryDirectory() as folder:
        if disguise in GRAPHS | SECOND_GRAPHS:
            path = Path(folder) / "copy.onnx"
            graph = (GRAPHS | SECOND_GRAPHS)[disguise](unaliased(exported(half, path)))
            onnx.save(graph, str(path))
            options = {"at": graph.graph.output[0].name}
        else:
            path, options = Path(folder) / "copy", {}
            (FILES | SECOND_FILES)[disguise](half, path)
        try:
            with closing(open_suspect(path, key=case.key, time_limit=3600, **options)) as suspect:
                return numbers(verify(suspect, case.key, case.inputs, inputs_from="judge", register=1))
        except SigilError as error:
            return {"verdict": "refused", "sentence": str(error).replace(folder, "")}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--json", type=Path, help="write the table to this file, or go on with it")
    parser.add_argument("--compositions", type=int, default=51, help="compositions for each architecture")
    parser.add_argument("--held-out", action="store_true", help="the held-out disguises instead")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    found: dict[str, Any] = {"reader": reader(), "compositions": [], "held_out": []}
    if arguments.json and arguments.json.exists():
        known = json.loads(arguments.json.read_text())
        if known["reader"] != found["reader"]:
            parser.error(f"{arguments.json} is of the reader of {known['reader']}: begin another table.")
        found = known
    part = "held_out" if arguments.held_out else "compositions"
    done = {(row["model"], row["disguise" if arguments.held_out else "number"]) for row in found[part]}
    rest = () if any(row["model"] == "own" for row in found["compositions"]) else own()
    rows = (
        held_out(done) if arguments.held_out else itertools.chain(rest, table(arguments.compositions, done))
    )
    for row in rows:
        found[part].append(row)
        print(json.dumps(row), flush=True)
        write_result(arguments.json, found)
    for (model, verdict), count in sorted(
        Counter((row["model"], row["verdict"]) for row in found[part]).items()
    ):
        print(f"{model:12} {verdict:12} {count}")


if __name__ == "__main__":
    main()
