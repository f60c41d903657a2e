"""A run: a training with a directory that holds all of its results and survives any interruption.

======================  =============================================================================
file                    content
======================  =============================================================================
run.json                settings, versions, processor, number format, seed, the key's public commitment,
                        whether the key or the seed drew the initial weights
metrics.jsonl           one line per round
agreement.json          for every bit and round, how well the global model agrees (scheme shares only)
client.safetensors      the global client half at the end
server.safetensors      the global server half at the end
reference.safetensors   the server's sums for alignment
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
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from sigil import extras, files, models
from sigil.errors import TrainingError
from sigil.federation import checkpoint as checkpoints
from sigil.federation.agreement import AgreementRecorder
from sigil.federation.federation import Federation
from sigil.federation.from_settings import Training, load_data
from sigil.federation.lock import locked
from sigil.federation.measuring import measure
from sigil.federation.observers import ClientObserver, MetricsObserver, ServerObserver
from sigil.federation.precision import Precision
from sigil.federation.progress import Silent
from sigil.federation.recording import GradientRecorder
from sigil.federation.reference import ReferenceRecorder
from sigil.federation.scheme import resolve
from sigil.federation.settings import Settings, make
from sigil.federation.trainer import RoundTrainer
from sigil.keys.key import Key
from sigil.version import __version__

if TYPE_CHECKING:
    from torch.utils.tensorboard import SummaryWriter

STATEMENT = "statement"
"""Under this name the owner's public statement is in the metadata of a trained client half."""

NAMES = (
    "metrics.jsonl",
    "agreement.json",
    "client.safetensors",
    "server.safetensors",
    "reference.safetensors",
    "recording",
    "checkpoint",
)
"""What is in a run's directory beside ``run.json``, which makes it one."""


@dataclass(frozen=True)
class Run:
    """A finished run: where it is and what it came to."""

    folder: Path
    settings: Settings
    metrics: list[dict[str, Any]]
    # Processor, device, number format and threads; older runs have less of it.
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
    progress: Silent | None = None,
    client_observers: Sequence[ClientObserver] = (),
    server_observers: Sequence[ServerObserver] = (),
    metrics_observers: Sequence[MetricsObserver] = (),
    name: str | None = None,
    wait: bool = False,
    trainer: Callable[[Training], RoundTrainer] | None = None,
    begin: Callable[[], None] | None = None,
    roster: Mapping[int, str] | None = None,
) -> Run:
    """Train a run in `folder`, or go on with the one that is there; finished work is never redone.

    If another process is at it, `wait` waits for that one's result instead of raising an error.
    `trainer` makes what trains the clients of a round where that is not this machine. `begin` is called
    once everything was checked, before the first file is written. `roster` maps clients to the fingerprints
    of their certificates, where they are authenticated; it stays the same for the whole run.
    """
    check_folder(folder)
    files.make_folder(folder, raises=TrainingError)
    with locked(folder, wait=wait), _threads(settings.run.threads):
        if _finished(folder, settings, key):
            return open_run(folder)
        return _train(
            settings,
            folder,
            key=key,
            data_dir=data_dir,
            progress=progress or Silent(),
            client_observers=client_observers,
            server_observers=server_observers,
            metrics_observers=metrics_observers,
            name=name or folder.name,
            trainer=trainer,
            begin=begin,
            roster=roster,
        )


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
    return Run(
        folder,
        _settings(description),
        [json.loads(line) for line in lines],
        description.get("machine", {}),
    )


def is_finished(folder: Path) -> bool:
    """Whether there is a finished run in `folder`."""
    description = _read_description(folder)
    return description is not None and bool(description["finished"])


def _train(
    settings: Settings,
    folder: Path,
    *,
    key: Key | None,
    data_dir: Path | None,
    progress: Silent,
    client_observers: Sequence[ClientObserver],
    server_observers: Sequence[ServerObserver],
    metrics_observers: Sequence[MetricsObserver],
    name: str,
    trainer: Callable[[Training], RoundTrainer] | None,
    begin: Callable[[], None] | None,
    roster: Mapping[int, str] | None,
) -> Run:
    extras.need("train", "tensorboard")

    dataset = load_data(settings, data_dir)
    federation = Federation(
        settings,
        dataset,
        key=key,
        client_observers=client_observers,
        server_observers=server_observers,
        trainer=trainer,
    )
    if settings.record.clients:
        federation.client_observers.append(_recorder(settings, folder, federation.shape))
    reference = ReferenceRecorder(federation.shape)
    federation.server_observers.append(reference)
    observers = [*federation.client_observers, *federation.server_observers]
    writer: SummaryWriter | None = None
    try:
        metrics = _resume(folder, federation, reference)
        agreement = AgreementRecorder(folder, federation, key, roster)
        initial = _initial_weights(folder, federation)
        if begin is not None:
            begin()
        _describe(folder, settings, key, federation.precision, initial=initial, finished=False)
        _write_metrics(folder, metrics)
        agreement.write()
        # Here, so that processes that only compute for a training do not wait for it.
        from torch.utils.tensorboard import SummaryWriter

        writer = SummaryWriter(str(folder), purge_step=federation.round + 1)
        rounds = settings.federation.rounds
        progress.start(
            name,
            first_round=federation.round,
            rounds=rounds,
            images_per_round=federation.images_per_round,
            rows=metrics,
        )
        while federation.round < rounds:
            before = (federation.client_state, federation.server_state)
            result = federation.run_round(progress.tick)
            row = measure(federation, result, key)
            if row.get("discarded"):
                federation.load(result.round, *before)
            metrics.append(row)
            agreement.write()
            checkpoints.write(
                folder / "checkpoint",
                checkpoints.Checkpoint(
                    round=federation.round,
                    client=federation.client_state,
                    server=federation.server_state,
                    metrics=metrics,
                    observers=[observer.state_dict() for observer in observers],
                    reference=reference.sums,
                ),
            )
            _write_metrics(folder, metrics)
            _log(writer, row)
            for logger in metrics_observers:
                logger.on_metrics(federation.round, row)
            progress.round_end(row)
        _save_halves(folder, federation, reference, key)
        _describe(folder, settings, key, federation.precision, initial=initial, finished=True)
        return Run(folder, settings, metrics, federation.precision.describe())
    finally:
        progress.close()
        federation.close()
        if writer is not None:
            writer.close()


def _resume(folder: Path, federation: Federation, reference: ReferenceRecorder) -> list[dict[str, Any]]:
    found = checkpoints.read_latest(folder / "checkpoint")
    if found is None:
        return []
    federation.load(found.round, found.client, found.server)
    reference.sums = found.reference
    observers = [*federation.client_observers, *federation.server_observers]
    for observer, state in zip(observers, found.observers, strict=True):
        observer.load_state_dict(state)
    return found.metrics


def _save_halves(folder: Path, federation: Federation, reference: ReferenceRecorder, key: Key | None) -> None:
    client_half, server_half = federation.halves()
    # The statement is public: who finds the file can read whose it is said to be.
    notes = None if key is None else {STATEMENT: key.statement()}
    models.save(folder / "client.safetensors", client_half, extra=notes)
    models.save(folder / "server.safetensors", server_half)
    reference.save(folder / "reference.safetensors")


def _recorder(settings: Settings, folder: Path, shape: tuple[int, ...]) -> GradientRecorder:
    record = settings.record
    return GradientRecorder(
        folder / "recording",
        shape,
        clients=record.clients,
        rounds=record.rounds,
        share=record.share,
        whole_rounds=record.whole_rounds,
        limit_mb=record.limit_mb,
    )


def _finished(folder: Path, settings: Settings, key: Key | None) -> bool:
    description = _read_description(folder)
    if description is None:
        return False
    commitment = None if key is None else key.commitment
    if description["commitment"] != commitment:
        raise TrainingError(
            f"The run in {folder} was begun with another key; give the same --key, or another --out."
        )
    both = (_settings(description), settings)
    was, now = (resolve(some, key).model_dump(mode="json") for some in both)
    for section, values in now.items():
        for name, value in values.items():
            if was[section][name] != value:
                raise TrainingError(
                    f"The run in {folder} has {section}.{name} = {was[section][name]!r}, not "
                    f"{value!r}; give the same settings to go on, or another --out."
                )
    return bool(description["finished"])


def _settings(description: dict[str, Any]) -> Settings:
    """The settings of a run, checked anew, so that one from before a setting existed has its default.

    A run from before there were schemes has the paper's.
    """
    values = dict(description["settings"])
    values["watermark"] = {"scheme": "paper", **values.get("watermark", {})}
    return make(values)


def _initial_weights(folder: Path, federation: Federation) -> str:
    """What drew the weights that the run began with; one from before keys did so goes on with the seed's."""
    if federation.round == 0:
        return federation.training.initial_weights
    return str((_read_description(folder) or {}).get("initial_weights", "seed"))


def _describe(
    folder: Path, settings: Settings, key: Key | None, precision: Precision, *, initial: str, finished: bool
) -> None:
    packages = ("torch", "numpy", "safetensors")
    description = {
        "settings": settings.model_dump(mode="json"),
        "seed": settings.run.seed,
        "commitment": None if key is None else key.commitment,
        "owner": None if key is None else key.owner,
        "initial_weights": initial,
        "versions": {"python": platform.python_version(), "sigil": __version__}
        | {name: version(name) for name in packages},
        "machine": precision.describe(),
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


def _log(writer: SummaryWriter, row: dict[str, Any]) -> None:
    for name, value in row.items():
        if name != "round" and isinstance(value, int | float) and np.isfinite(value):
            writer.add_scalar(name, value, row["round"])


@contextmanager
def _threads(count: int) -> Iterator[None]:
    before = torch.get_num_threads()
    if count:
        torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)
