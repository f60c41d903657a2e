"""Clean models that are handed on as graphs, and keys that nobody used: are p-values those of the null?

    PYTHONPATH=tests python benchmarks/disguised_null.py --draws draws.json --json disguised_null.json

Halves of VGG11 are trained on digits without a key and exported to ONNX, so that nothing but filters is
known of them: the path that a disguised copy takes. Filters are found once per model, as they do not depend
on a key. Then, for keys that have nothing to do with it:

- *origin*: the test of the held-out signs, after the order that fits the others best was found anew.
- *reading*: the mark on 256 test images that the key draws, after the channels were put in the order that its
  initial weights suggest, by force, whether that is believed or not.

Judged as in ``readings.py``. Single draws are kept in a file of their own (``--draws``), with which another
run goes on if it has the same reader.
"""

from __future__ import annotations

import argparse
import functools
import hashlib
import json
import tempfile
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import torch
from torch import Tensor

from common import reader, write_result
from harness.disguises import exported
from origin import continuous_p
from readings import BITS, SHORT, clean_model, judge, p_values, shares
from sigil import data
from sigil.alignment import align
from sigil.data import Dataset, Inputs
from sigil.keys.key import Key
from sigil.models import Model
from sigil.suspect import open_suspect
from sigil.verdict.descent import filters_origin, start_of
from sigil.verdict.readings import read
from sigil.verdict.verification import INPUTS_READ

NAME, CUT = SHORT
EVERY = 100
"""Keys for one model before the next one has its turn."""


class Graph:
    """What a suspect that came as a graph shows: answers, and the filters that were found once."""

    def __init__(self, half: Model, shape: tuple[int, ...]) -> None:
        self.half = half
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "copy.onnx"
            onnx.save(exported(half, path, shape), str(path))
            with closing(open_suspect(path)) as suspect:
                self.found = suspect.filters()

    @torch.no_grad()
    def __call__(self, images: Tensor) -> Tensor:
        answer: Tensor = self.half(images)
        return answer

    def filters(self) -> tuple[Tensor, ...]:
        """Weights (outputs, inputs, height, width) of its linear parts."""
        return self.found


def key_of(number: int, shape: tuple[int, ...], input_shape: tuple[int, ...]) -> Key:
    """A key that no training used, for the architecture of the suspect."""
    secret = hashlib.sha256(f"disguised null {number}".encode()).digest()
    stated: dict[str, Any] = {"model": NAME, "width": 8, "cut": CUT, "input_shape": input_shape}
    return Key.generate("Nobody", shape=shape, bits=BITS, seed=secret, **stated)


def draws(suspect: Graph, dataset: Dataset, numbers: range) -> Iterator[dict[str, Any]]:
    """For each key p of the origin and of the reading, and their randomised forms."""
    test = Inputs(dataset.test.images, normalisation=(dataset.mean, dataset.std))
    images = torch.cat(list(test.batches(range(len(test)), 256)))
    shape = tuple(suspect(images[:1]).shape[1:])
    for number in numbers:
        key, chance = key_of(number, shape, dataset.shape), np.random.default_rng(number)
        origin, start = filters_origin(suspect, key, dataset.shape), start_of(key)
        assert origin is not None
        assert start is not None
        order = align(suspect, start, input_shape=dataset.shape)
        batches = functools.partial(iter, images[key.choose(INPUTS_READ, len(images))].split(64))
        reading = read(suspect, key, batches, kind="inputs", count=INPUTS_READ, alignment=order)
        right = np.rint(np.array(reading.bit_shares) * INPUTS_READ).astype(np.int64)
        target = key.target.numpy()
        ones = np.where(target == 1, right, INPUTS_READ - right)
        yield {
            "origin": {"p": 10.0**origin.log10_p, "randomised": continuous_p(origin, chance)},
            "reading": p_values(ones, target, INPUTS_READ, chance) | {"believed": order.believed},
        }


def judged(every: list[dict[str, Any]]) -> dict[str, Any]:
    """Counts, and how likely p-values as these are under the null."""
    found = {}
    for kind in ("origin", "reading"):
        drawn = [one[kind] for one in every]
        found[kind] = judge(drawn) | {"shares": shares([one["p"] for one in drawn])}
    found["reading"]["believed"] = sum(one["reading"]["believed"] for one in every)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--json", type=Path, help="also write the outcome to this file")
    parser.add_argument("--draws", type=Path, required=True, help="single draws, to go on with")
    parser.add_argument("--clean", type=int, default=8, help="clean models")
    parser.add_argument("--keys", type=int, default=10_000, help="keys in all")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    dataset = data.load("digits")
    known: dict[str, Any] = {"reader": reader(), "draws": {}}
    if arguments.draws.exists():
        known = json.loads(arguments.draws.read_text())
        if known["reader"] != reader():
            parser.error(f"{arguments.draws} is of the reader of {known['reader']}: begin another file.")

    @functools.cache
    def clean(number: int) -> Graph:
        half = clean_model(dataset, name=NAME, cut=CUT, seed=number, epochs=3)
        assert isinstance(half, Model)
        return Graph(half, dataset.shape)

    for begin in range(0, arguments.keys, EVERY):
        if str(begin) not in known["draws"]:
            model = begin // EVERY % arguments.clean
            known["draws"][str(begin)] = list(draws(clean(model), dataset, range(begin, begin + EVERY)))
            arguments.draws.write_text(json.dumps(known))
        every = [one for some in known["draws"].values() for one in some]
        models = {int(begin) // EVERY % arguments.clean for begin in known["draws"]}
        outcome = {"reader": known["reader"], "clean_models": len(models)} | judged(every)
        print(
            f"{len(every)} draws; validity: {[outcome[one]['valid_pvalue'] for one in every[0]]}",
            flush=True,
        )
        write_result(arguments.json, outcome)


if __name__ == "__main__":
    main()
