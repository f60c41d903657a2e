"""A run: a training with a directory that holds all of its results and survives any interruption.

======================  =============================================================================
file                    content
======================  =============================================================================
run.json                settings, versions, processor, number format, seed, the key's public commitment,
                        whether the key or the seed drew the initial weights
metrics.jsonl           one line per round
client.safetensors      the global client half at the end
server.safetensors      the global server half at the end
reference.safetensors   the server's sums for alignment
imprints/               what names clients by their copies, one register per block of rounds, if asked for
recording/              recorded gradients, if asked for
checkpoint/             the newest two rounds
events.out.tfevents.…   the same metrics for TensorBoard
======================  =============================================================================

No pickle, and no secret: the key is never in it.
"""

from __future__ import annotations

import json
import os
import platform
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch

from sigil import extras, files, models
from sigil.errors import TrainingError
from sigil.federation import checkpoint as checkpoints
from sigil.federation.federation import Federation
from sigil.federation.from_settings import Training, load_data, resolve
from sigil.federation.observers import ClientObserver, ServerObserver
from sigil.federation.progress import MetricsObserver, Progress, TensorBoard, Together
from sigil.federation.recording import GradientRecorder, ReferenceRecorder
from sigil.federation.settings import Settings, make
from sigil.federation.trainer import RoundTrainer
from sigil.files import locked
from sigil.keys.key import Key
from sigil.tracing import IMPRINTS
from sigil.version import __version__

STATEMENT = "statement"
"""Under this name the owner's public statement is in the metadata of a trained client half."""

NAMES = (
    "metrics.jsonl",
    "client.safetensors",
    "server.safetensors",
    "reference.safetensors",
    "recording",
    IMPRINTS,
    "checkpoint",
)
"""What is in a run's directory beside ``run.json``, which makes it one."""


@dataclass(frozen=True)
class Run:
    """A finished run: where it is and what it came to."""

    folder: Path
    settings: Settings
    metrics: list[dict[str, Any]]
    # Processor, device, number format and threads.
    machine: dict[str, Any] = field(default_factory=dict)

    @property
    def final(self) -> dict[str, Any]:
        """The metrics of the last round that could be evaluated; without one, of the last."""
        return next((row for row in reversed(self.metrics) if "accuracy" in row), self.metrics[-1])

    def halves(self) -> tuple[models.Model, models.Model]:
        """The trained client half and server half."""
        return models.load(self.folder / "client.safetensors"), models.load(
            self.folder / "server.safetensors"
        )


def train(
    settings: Settings,
    folder: Path,
    *,
    key: Key | None = None,
    data_dir: Path | None = None,
    progress: Progress | None = None,
    client_observers: Sequence[ClientObserver] = (),
    server_observers: Sequence[ServerObserver] = (),
    metrics_observers: Sequence[MetricsObserver] = (),
    name: str | None = None,
    wait: bool = False,
    trainer: Callable[[Training], RoundTrainer] | None = None,
    begin: Callable[[], None] | None = None,
) -> Run:
    """Train a run in `folder`, or go on with the one that is there; finished work is never redone.

    If another process is at it, `wait` waits for that one's result instead of raising an error.
    `trainer` makes what trains the clients of a round where that is not this machine. `begin` is called
    once everything was checked, before the first file is written.
    """
    check_folder(folder)
    files.make_folder(folder, raises=TrainingError)
    with locked(folder, wait=wait), _threads(settings.run.threads):
        if _finished(folder, settings, key):
            return open_run(folder)
        extras.need("train", "tensorboard")
        federation = Federation(
            settings,
            load_data(settings, data_dir),
            key=key,
            client_observers=client_observers,
            server_observers=server_observers,
            trainer=trainer,
            registers=folder / IMPRINTS,
        )
        told = Together(TensorBoard(folder), *metrics_observers, progress or Progress())
        try:
            return _rounds(federation, folder, name or folder.name, told, begin)
        finally:
            told.on_end()
            federation.close()


def check_folder(folder: Path) -> None:
    """Raise unless a run can be made in `folder` or gone on with there, without harm to other files."""
    files.check_folder(folder, raises=TrainingError)
    if _read_description(folder) is None:
        for name in NAMES:
            if os.path.lexists(folder / name):
                raise TrainingError(
                    f"{folder / name} is there, but {folder} is not a run of Sigil's, and only a run is "
                    "written over; choose another --out."
                )


def open_run(folder: Path) -> Run:
    """Open a finished run for reading."""
    description = _read_description(folder)
    if description is None:
        raise TrainingError(f"There is no run in {folder}; `sigil train --out {folder}` makes one.")
    if not description["finished"]:
        raise TrainingError(
            f"The run in {folder} is not finished; give the same `sigil train` command again to go on."
        )
    lines = (folder / "metrics.jsonl").read_text().splitlines()
    metrics = [json.loads(line) for line in lines]
    return Run(folder, make(description["settings"]), metrics, description["machine"])


def is_finished(folder: Path) -> bool:
    """Whether there is a finished run in `folder`."""
    description = _read_description(folder)
    return description is not None and bool(description["finished"])


def _rounds(
    federation: Federation, folder: Path, name: str, progress: Progress, begin: Callable[[], None] | None
) -> Run:
    """Train from where the run stands to its last round."""
    settings, shape = federation.settings, federation.training.halves.shape
    if settings.record.clients:
        recorder = GradientRecorder(folder / "recording", shape, **settings.record.model_dump())
        federation.client_observers.append(recorder)
    reference = ReferenceRecorder(shape)
    federation.server_observers.append(reference)
    metrics = _resume(folder, federation, reference)
    if begin is not None:
        begin()
    _describe(folder, federation, finished=False)
    _write_metrics(folder, metrics)
    progress.on_start(
        name,
        first_round=federation.round,
        rounds=settings.federation.rounds,
        images_per_round=federation.training.images_per_round,
        rows=metrics,
    )
    while federation.round < settings.federation.rounds:
        before = (federation.client_state, federation.server_state)
        result = federation.run_round(progress.on_step)
        row = federation.measure(result)
        if row.get("discarded"):
            federation.load(result.round, *before)
        metrics.append(row)
        checkpoints.write(
            folder / "checkpoint",
            checkpoints.Checkpoint(
                round=federation.round,
                client=federation.client_state,
                server=federation.server_state,
                metrics=metrics,
                observers=[observer.state_dict() for observer in federation.observers],
                reference=reference.sums,
            ),
        )
        _write_metrics(folder, metrics)
        progress.on_round(row)
    _save_halves(folder, federation, reference)
    _describe(folder, federation, finished=True)
    return Run(folder, settings, metrics, federation.precision.describe())


def _resume(folder: Path, federation: Federation, reference: ReferenceRecorder) -> list[dict[str, Any]]:
    last = checkpoints.read_latest(folder / "checkpoint")
    if last is None:
        return []
    federation.load(last.round, last.client, last.server)
    if federation.imprinting is not None:
        federation.imprinting.resume(last.metrics[-1]["imprint"])
    reference.sums = last.reference
    for observer, state in zip(federation.observers, last.observers, strict=True):
        observer.load_state_dict(state)
    return last.metrics


def _save_halves(folder: Path, federation: Federation, reference: ReferenceRecorder) -> None:
    client_half, server_half = federation.halves()
    key = federation.training.key
    # The statement is public: who finds the file can read whose it is said to be.
    notes = None if key is None else {STATEMENT: key.statement()}
    models.save(folder / "client.safetensors", client_half, extra=notes)
    models.save(folder / "server.safetensors", server_half)
    reference.save(folder / "reference.safetensors")


def _finished(folder: Path, settings: Settings, key: Key | None) -> bool:
    description = _read_description(folder)
    if description is None:
        return False
    commitment = None if key is None else key.commitment
    if description["commitment"] != commitment:
        raise TrainingError(
            f"The run in {folder} was begun with another key; give the same --key, or another --out."
        )
    both = (make(description["settings"]), settings)
    was, now = (resolve(some, key).model_dump(mode="json") for some in both)
    for section, values in now.items():
        for name, value in values.items():
            if was[section][name] != value:
                raise TrainingError(
                    f"The run in {folder} has {section}.{name} = {was[section][name]!r}, not "
                    f"{value!r}; give the same settings to go on, or another --out."
                )
    return bool(description["finished"])


def _describe(folder: Path, federation: Federation, *, finished: bool) -> None:
    settings, key = federation.settings, federation.training.key
    packages = ("torch", "numpy", "safetensors")
    description = {
        "settings": settings.model_dump(mode="json"),
        "seed": settings.run.seed,
        "commitment": None if key is None else key.commitment,
        "owner": None if key is None else key.owner,
        "initial_weights": federation.training.initial_weights,
        "versions": {"python": platform.python_version(), "sigil": __version__}
        | {name: version(name) for name in packages},
        "machine": federation.precision.describe(),
        "updated": datetime.now(UTC).isoformat(timespec="seconds"),
        "finished": finished,
    }
    text = json.dumps(description, indent=1) + "\n"
    files.write(folder / "run.json", text, replace=True, raises=TrainingError)


def _read_description(folder: Path) -> dict[str, Any] | None:
    try:
        description: dict[str, Any] = json.loads((folder / "run.json").read_text())
        if not {"settings", "commitment", "finished"} <= description.keys():
            raise ValueError("the description of something else")
    except FileNotFoundError:
        return None
    except (OSError, ValueError, AttributeError):
        raise TrainingError(
            f"{folder / 'run.json'} cannot be read as a run of Sigil's; choose another --out."
        ) from None
    return description


def _write_metrics(folder: Path, metrics: list[dict[str, Any]]) -> None:
    text = "".join(json.dumps(row) + "\n" for row in metrics)
    files.write(folder / "metrics.jsonl", text, replace=True, raises=TrainingError)


@contextmanager
def _threads(count: int) -> Iterator[None]:
    before = torch.get_num_threads()
    if count:
        torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)
