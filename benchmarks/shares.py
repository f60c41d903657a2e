"""Shares of the mark where clients collude, leave or are trimmed from the average; on the embedded digits.

    python benchmarks/shares.py --json benchmarks/results/shares.json

ResNet-18 at width 8 cut at layer2 (256 numbers), 64 bits, ten clients, eight rounds of two epochs. `r` is the
number of clients that carry a bit. Each row says the accuracy, and WSR and log10 p (before any allowance) on
512 noise probes and on 256 test images.

- *leave*: two of the ten clients, with their bits, take part in the first half of the rounds only.
- *trimmed mean*: each weight's largest and smallest value among the clients is left out of the average.
- *reversed by c*: the first c clients put their gradients together and push past zero along the mean
  (`sigil attack reverse`, reversal 0.5) with their own images.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch

from common import command_line, write_result
from sigil import attacks, data
from sigil.attacks.halves import Halves, open_at_cut
from sigil.attacks.training import finetune_at_cut, push_along
from sigil.data import Dataset
from sigil.data.inputs import Inputs
from sigil.federation.averaging import WeightedAverage
from sigil.federation.federation import Federation
from sigil.federation.from_settings import Training
from sigil.federation.precision import choose
from sigil.federation.recording import GradientRecorder, Recording
from sigil.federation.settings import Settings, make
from sigil.federation.trainer import LocalTrainer, RoundStart, RoundSums, RoundTrainer
from sigil.keys.key import Key
from sigil.models import Model
from sigil.verdict.verification import read_mark

SHAPE = (16, 4, 4)
CLIENTS, ROUNDS = 10, 8
COLLUDERS = (1, 2, 3, 5)


def settings(scheme: str, rounds: int) -> Settings:
    return make(
        {
            "model": {"name": "resnet18", "width": 8, "cut": "layer2"},
            "data": {"name": "digits"},
            "federation": {"clients": CLIENTS, "rounds": rounds, "local_epochs": 2, "batch_size": 16},
            "optimizer": {"lr": 0.05, "warmup_rounds": 1},
            "watermark": {"scheme": scheme},
            "run": {"workers": 1, "threads": 1},
        }
    )


class Leaving(LocalTrainer):
    """The last two clients are gone in the second half."""

    def train(self, start: RoundStart, **_: Any) -> RoundSums:
        rounds = self.training.settings.federation.rounds
        here = range(CLIENTS if 2 * start.number <= rounds else CLIENTS - 2)
        return super().train(start, clients=here)


class Trimmed(LocalTrainer):
    """Averages what is left of each weight without its largest and its smallest value."""

    def train(self, start: RoundStart, **_: Any) -> RoundSums:
        each = [super(Trimmed, self).train(start, clients=[index]) for index in range(CLIENTS)]
        sums = RoundSums()
        for name in ("client", "server"):
            states = [getattr(one, name).result() for one in each]
            average: WeightedAverage = getattr(sums, name)
            average.add({key: _trim([state[key] for state in states]) for key in states[0]}, weight=1)
        sums.images = sum(one.images for one in each)
        sums.steps = sum(one.steps for one in each)
        sums.loss = sum(one.loss for one in each)
        return sums


def _trim(values: list[torch.Tensor]) -> torch.Tensor:
    stacked = torch.stack([value.double() for value in values]).sort(0).values
    return stacked[1:-1].mean(0).to(values[0].dtype)


def trained(
    key: Key,
    dataset: Dataset,
    rounds: int,
    *,
    trainer: Callable[[Training], RoundTrainer] | None = None,
    recording: Path | None = None,
) -> Halves:
    federation = Federation(settings(key.fields.scheme, rounds), dataset, key=key, trainer=trainer)
    if recording is not None:
        recorder = GradientRecorder(recording, SHAPE, clients=range(max(COLLUDERS)))
        federation.client_observers.append(recorder)
    for _ in range(rounds):
        federation.run_round()
    client, server = federation.halves()
    federation.close()
    assert isinstance(client, Model)
    assert isinstance(server, Model)
    return client, server


def reversed_by(
    halves: Halves, colluders: int, key: Key, dataset: Dataset, recording: Path
) -> tuple[Halves, float]:
    """The model after a reversal by the first clients, and the cosine of what they found with the mark."""
    found = np.zeros(int(np.prod(SHAPE)))
    for client in range(colluders):
        for step in Recording(recording).steps(client=client):
            found += step.gradients.sum(0, dtype=np.float64)
    direction = torch.from_numpy(found).float()
    federation = settings(key.fields.scheme, 1)
    parts = Training.prepare(federation, dataset, key=key).parts
    own = attacks.share(dataset, np.concatenate(parts[:colluders]))
    attacked = open_at_cut(halves, dataset)
    tuning = attacks.Tuning(precision=choose("cpu", "float32"))
    effect = push_along(attacked, own, direction, tuning, reversal=0.5, gamma=10.0)
    finetune_at_cut(attacked, own, tuning, effect)
    mark = key.matrix @ (0.5 - key.target)
    cosine = float(torch.nn.functional.cosine_similarity(direction, mark, dim=0))
    return attacks.halves.same_kind(attacked.whole, halves), cosine


def row(name: str, halves: Halves, key: Key, dataset: Dataset, **more: Any) -> dict[str, Any]:
    accuracy = attacks.measure(halves, data=dataset).accuracy
    inputs = Inputs(dataset.test.images, normalisation=(dataset.mean, dataset.std))
    noise, images = read_mark(halves[0], key, inputs, input_shape=dataset.shape, probes=512)
    found = {
        "training": name,
        "accuracy": accuracy,
        "wsr_noise": noise.wsr,
        "log10_p_before_noise": noise.log10_p_before,
        "wsr_images": images.wsr,
        "log10_p_before_images": images.log10_p_before,
    } | more
    print(json.dumps(found), flush=True)
    return found


def main() -> None:
    parser = command_line(__doc__)
    parser.add_argument("--rounds", type=int, default=ROUNDS, help="rounds of each training")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    dataset, rounds = data.load("digits"), arguments.rounds

    def key_of(carriers: int | None) -> Key:
        scheme = "paper" if carriers is None else "shares"
        return Key.generate(
            "ACME",
            shape=SHAPE,
            bits=64,
            seed=bytes(range(32)),
            scheme=scheme,  # type: ignore[arg-type]
            carriers_per_bit=carriers,
        )

    rows = []
    with TemporaryDirectory() as place:
        for name, carriers in (("shares, r = 1", 1), ("paper", None), ("shares, r = 2", 2)):
            key, folder = key_of(carriers), Path(place) / name
            halves = trained(key, dataset, rounds, recording=folder)
            rows.append(row(name, halves, key, dataset))
            for colluders in COLLUDERS if carriers == 1 else (1,):
                attacked, cosine = reversed_by(halves, colluders, key, dataset, folder)
                rows.append(row(f"{name}, reversed by {colluders}", attacked, key, dataset, cosine=cosine))
    for carriers in (1, 2):
        key = key_of(carriers)
        for name, trainer in (("two leave", Leaving), ("trimmed mean", Trimmed)):
            halves = trained(key, dataset, rounds, trainer=trainer)
            rows.append(row(f"shares, r = {carriers}, {name}", halves, key, dataset))
    write_result(arguments.json, {"rounds": rounds, "rows": rows})


if __name__ == "__main__":
    main()
