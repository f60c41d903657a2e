"""What poisoned clients cost under each average, and how far honest updates are from being left out.

    python benchmarks/poisoned.py [--rounds 8] [--json poisoned.json]
    python benchmarks/poisoned.py --honest

Ten clients train on the digits in this process, each from the round's weights; then two of them lie about
both halves. `scaled` multiplies them by a million, as an accident might: it is to be left out. `turned` takes
its change back and the same four times over in the other direction, which is small enough to be averaged:
only the average itself can help.

With `--honest` nobody lies, and the largest change is printed as a multiple of what the round's median allows
(an update is left out above 5), for clients with very different shares of the data.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import partial
from typing import Any

import torch

from common import command_line, write_result
from sigil.federation import Federation, judging
from sigil.federation.averaging import State
from sigil.federation.from_settings import Training, build_halves, load_data
from sigil.federation.judging import Update, UpdateJudge
from sigil.federation.settings import Settings, make
from sigil.federation.trainer import LocalTrainer, RoundStart, RoundSums, Tick
from sigil.keys.key import Key

CLIENTS, POISONED = 10, (2, 7)
Lie = Callable[[State, State], State]


def scaled(before: State, after: State) -> State:
    return {name: value * 1e6 if value.is_floating_point() else value for name, value in after.items()}


def turned(before: State, after: State) -> State:
    return {
        name: before[name] - 4 * (value - before[name])
        if value.is_floating_point() and not name.endswith("running_var")
        else value
        for name, value in after.items()
    }


class PoisonedTrainer:
    """Trains each client by itself, lets some of them lie, judges all updates and averages the rest."""

    def __init__(self, training: Training, *, lie: Lie | None, largest: list[float]) -> None:
        self._local = LocalTrainer(training)
        self._settings = training.settings
        self._judge = UpdateJudge(training.halves.client, training.halves.server, training.settings)
        self._lie = lie
        self._largest = largest

    def train(self, start: RoundStart, *, tick: Tick | None = None) -> RoundSums:
        sums = RoundSums.begin(self._settings)
        updates: dict[int, Update] = {}
        for client in range(self._settings.federation.clients):
            one = self._local.train(start, clients=[client])
            client_half, server_half = one.client.result(), one.server.result()
            if self._lie is not None and client in POISONED:
                client_half = self._lie(start.client, client_half)
                server_half = self._lie(start.server, server_half)
            updates[client] = Update(client_half, server_half, one.steps)
            sums.loss += one.loss
            sums.steps += one.steps
            sums.images += one.images
        findings = self._judge.findings(start, updates)
        self._note(start, updates)
        for client, update in updates.items():
            if client not in findings:
                weight = len(self._local.training.parts[client])
                sums.client.add(update.client, weight=weight)
                sums.server.add(update.server, weight=weight)
        sums.left_out = {client: finding.fault.value for client, finding in findings.items()}
        return sums

    def _note(self, start: RoundStart, updates: dict[int, Update]) -> None:
        """The largest multiple of what the median allows, of all four norms."""
        for name, tensors in self._judge._halves.items():
            before = getattr(start, name)
            moves = [tensors.moved(before, getattr(update, name)) for update in updates.values()]
            for kind in (0, 1):
                norms = {client: move[kind] for client, move in zip(updates, moves, strict=True)}
                times = judging._standing_out(norms, updates, limit=0.0)
                self._largest.append(max(times.values(), default=0.0))

    def close(self) -> None:
        """Nothing is open."""


def settings_for(rounds: int, **federation: Any) -> Settings:
    return make(
        {
            "model": {"name": "resnet18", "width": 8, "cut": "layer2"},
            "data": {"name": "digits"},
            "federation": {
                "clients": CLIENTS,
                "rounds": rounds,
                "local_epochs": 1,
                "batch_size": 32,
                **federation,
            },
            "optimizer": {"warmup_rounds": 1, "lr": 0.05},
            "run": {"device": "cpu", "precision": "float32", "threads": 1, "workers": 1},
        }
    )


def measure(settings: Settings, *, scheme: str, lie: Lie | None) -> dict[str, Any]:
    settings = settings.model_copy(
        update={"watermark": settings.watermark.model_copy(update={"scheme": scheme, "bits": 64})}
    )
    dataset = load_data(settings)
    shape = build_halves(settings, classes=dataset.classes, input_shape=dataset.shape).shape
    key = Key.generate("ACME", shape=shape, bits=64, scheme=scheme, seed=bytes(range(32)))  # type: ignore[arg-type]
    largest: list[float] = []
    trainer = partial(PoisonedTrainer, lie=lie, largest=largest)
    federation = Federation(settings, dataset, key=key, trainer=trainer)
    left_out = 0
    for _ in range(settings.federation.rounds):
        left_out += len(federation.run_round().left_out)
    readings = {reading.kind: reading.wsr for reading in federation.read_mark(key)}
    return {
        "accuracy": federation.accuracy(),
        "wsr": readings["noise"],
        "wsr_inputs": readings.get("inputs"),
        "left_out": left_out,
        "largest": max(largest),
    }


def poisoned(rounds: int) -> list[dict[str, Any]]:
    rows = []
    print(
        f"{'average':14}{'scheme':8}{'clients lie':12}{'accuracy':>9}{'WSR noise':>11}{'inputs':>8}  left out"
    )
    for scheme in ("paper", "shares"):
        for average in ("mean", "trimmed-mean", "median"):
            for name, lie in (("none", None), ("scaled", scaled), ("turned", turned)):
                if name == "scaled" and (average != "mean" or scheme != "paper"):
                    continue  # left out before any average sees it
                row = {"average": average, "scheme": scheme, "lie": name}
                row |= measure(settings_for(rounds, average=average), scheme=scheme, lie=lie)
                rows.append(row)
                print(
                    f"{average:14}{scheme:8}{name:12}{100 * row['accuracy']:8.1f}%{100 * row['wsr']:10.1f}%"
                    f"{100 * row['wsr_inputs']:7.1f}%  {row['left_out']}",
                    flush=True,
                )
    return rows


def honest(rounds: int) -> list[dict[str, Any]]:
    rows = []
    for name, partition in (
        ("iid", {}),
        ("dirichlet 0.1", {"partition": "dirichlet", "beta": 0.1}),
        ("lognormal 1.5", {"partition": "lognormal", "sigma": 1.5}),
    ):
        row = {"partition": name} | measure(settings_for(rounds, **partition), scheme="paper", lie=None)
        rows.append(row)
        print(f"{name:14} largest {row['largest']:.2f}  left out {row['left_out']}", flush=True)
    return rows


def main() -> int:
    parser = command_line(__doc__)
    parser.add_argument("--rounds", type=int, default=8)
    parser.add_argument("--honest", action="store_true")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    rows = (honest if arguments.honest else poisoned)(arguments.rounds)
    write_result(arguments.json, {"rows": rows})
    return 0


if __name__ == "__main__":
    sys.exit(main())
