"""Trainings for the experiment on tracing, with the local models that clients could have leaked.

A training keeps, beside the run's own files, every round's global model and in some rounds the local models
of all clients after half, one and all of their local epochs.
"""

from __future__ import annotations

import copy
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import nn

from sigil import files
from sigil.federation.averaging import State
from sigil.federation.from_settings import Training
from sigil.federation.observers import ClientObserver, Step
from sigil.federation.run import Run, train
from sigil.federation.settings import Settings
from sigil.federation.trainer import LocalTrainer, RoundStart, RoundSums, Tick
from sigil_reproduction.runner.scales import PerScale, Scale
from sigil_reproduction.runner.store import Store

KINDS: dict[str, Mapping[str, Any]] = {
    "equal": {},
    "non-IID": {"partition": "dirichlet", "beta": 0.3},
    "unbalanced": {"partition": "lognormal", "sigma": 1.0},
    "two absent": {},
}
MOMENTS = ("half", "one", "all")
LEAKS: PerScale[Mapping[str, Sequence[int]]] = PerScale(
    {"cifar10": (20, 50, 79)},
    desk={"cifar10": (5, 12, 19)},
    cpu={"digits": (3, 5, 7), "cifar10": (2, 4, 6, 8, 10)},
    smoke={"digits": (2,)},
)
# The tasks of each scale, and what differs from the scale's other trainings.
TASKS: PerScale[Mapping[str, Mapping[str, Mapping[str, Any]]]] = PerScale(
    {"cifar10": {}},
    cpu={
        "digits": {
            "model": {"width": 16, "cut": "layer2"},
            "data": {"name": "digits", "train_limit": None},
            "federation": {"rounds": 8},
            "run": {"evaluate_every": 8},
        },
        "cifar10": {
            "data": {"train_limit": 4_000},
            "run": {"evaluate_every": 10},
        },
    },
    smoke={"digits": {"data": {"test_limit": None}}},
)


def settings_of(scale: Scale, task: str, kind: str, seed: int) -> Settings:
    """A training with shares of a key of the default length, two local epochs, clients equal or not."""
    sections = {section: dict(values) for section, values in TASKS.at(scale)[task].items()}
    sections["federation"] = {**sections.get("federation", {}), "local_epochs": 2, **KINDS[kind]}
    sections["watermark"] = {"scheme": "shares", "strength": 0.3, "bits": None}
    return scale.settings("resnet18", seed=seed, variation=False, **sections)


class Leaks(ClientObserver):
    """Keeps a client's half in the middle of its first local epoch, and after the first."""

    def __init__(self, folder: Path, rounds: Sequence[int]) -> None:
        self.folder, self.rounds = folder, rounds
        self.steps: dict[int, int] = {}

    def on_update(self, at: Step, half: nn.Module) -> None:
        steps = self.steps.get(at.client, 0)
        if at.round in self.rounds and steps:
            for moment, step in (("half", 1 + max(1, steps // 2)), ("one", 1 + steps)):
                if at.step == step:
                    _save(self.folder, at.round, at.client, moment, half.state_dict())


class LeakingTrainer(LocalTrainer):
    """Trains clients in this process; keeps the global model, and what each client ends a round with."""

    def __init__(self, training: Training, folder: Path, leaks: Leaks, kind: str) -> None:
        super().__init__(training)
        self.folder, self.leaks, self.kind = folder, leaks, kind
        federation = training.settings.federation
        for client, part in enumerate(training.parts):
            leaks.steps[client] = len(part) // federation.batch_size or 1

    def train(
        self, start: RoundStart, *, tick: Tick | None = None, clients: Sequence[int] | None = None
    ) -> RoundSums:
        """One round, client by client; under "two absent" the last two leave after half of the rounds."""
        settings = self.training.settings
        save_global(self.folder, start.number - 1, start.client)
        gone = 2 if self.kind == "two absent" and 2 * start.number > settings.federation.rounds else 0
        sums = RoundSums.begin(settings)
        for client in range(len(self.training.parts) - gone):
            if len(self.training.parts[client]) < 2:
                continue  # nothing to train on
            one = super().train(start, tick=tick, clients=[client])
            if start.number in self.leaks.rounds:
                _save(self.folder, start.number, client, "all", one.client.result())
            sums.merge(one)
        return sums


def trained(scale: Scale, task: str, kind: str, seed: int, store: Store) -> tuple[Run, Path]:
    """The training of a kind, done unless it is there, and the folder of its kept models."""
    settings = settings_of(scale, task, kind, seed)
    folder = store.runs / f"tracing {task} {kind} seed {seed}"
    kept = folder / "kept"
    leaks = Leaks(kept, LEAKS.at(scale)[task])
    run = train(
        settings,
        folder,
        key=store.new_key(settings),
        data_dir=store.data_dir,
        wait=True,
        client_observers=[leaks],
        trainer=lambda training: LeakingTrainer(training, kept, leaks, kind),
    )
    save_global(kept, settings.federation.rounds, run.halves()[0].state_dict())
    return run, kept


def save_global(folder: Path, round_number: int, state: State) -> None:
    """Keep a global client half, that of round 0 too."""
    _write(folder / f"global-{round_number}.safetensors", state)


def _save(folder: Path, round_number: int, client: int, moment: str, state: State) -> None:
    _write(folder / f"local-{round_number}-{client}-{moment}.safetensors", state)


def _write(path: Path, state: State) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with files.draft(path, replace=True) as place:
        save_file({name: value.detach().cpu().contiguous().clone() for name, value in state.items()}, place)


def global_states(folder: Path) -> dict[int, State]:
    """The global client halves by round."""
    found = {int(path.stem.split("-")[1]): path for path in folder.glob("global-*.safetensors")}
    return {number: load_file(path) for number, path in sorted(found.items())}


def local_states(folder: Path) -> Iterator[tuple[int, int, str, State]]:
    """Round, client, moment and weights of every local model."""
    for path in sorted(folder.glob("local-*.safetensors")):
        found = re.fullmatch(r"local-(\d+)-(\d+)-(\w+)", path.stem)
        if found is not None:
            yield int(found[1]), int(found[2]), found[3], load_file(path)


def mixed(states: Sequence[tuple[float, State]]) -> State:
    """A weighted mean of states."""
    first = states[0][1]
    return {
        name: sum(weight * state[name].double() for weight, state in states).to(value.dtype)  # type: ignore[union-attr]
        for name, value in first.items()
    }


def disturbed(state: State, size: float, generator: torch.Generator) -> State:
    """Weights with normal noise of ``size`` times each tensor's own root mean square."""
    return {
        name: value + size * value.square().mean().sqrt() * torch.randn(value.shape, generator=generator)
        if value.is_floating_point() and value.ndim > 1
        else value
        for name, value in state.items()
    }


def opened(half: nn.Module, state: State) -> nn.Module:
    """A copy of a half with these weights."""
    model = copy.deepcopy(half)
    model.load_state_dict(state)
    return model
