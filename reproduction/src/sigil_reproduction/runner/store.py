"""What has been computed: trainings by their full configuration, and cells of tables as small files.

A training is done once, whichever tables need it, in a folder named by the hash of its settings; it resumes
by itself. At scales that keep models, a finished one that is not large is copied to
``results/<scale>/models/``, where attacks find it without the training.

A cell is one JSON file under ``results/<scale>/<experiment>/``, with everything needed to judge it:
configuration, seed, versions, processor, number format, time and numbers. A cell that exists is never
computed again; one that does not is missing, and says so.
"""

from __future__ import annotations

import hashlib
import json
import os
import platform
import re
import shutil
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

from sigil import files
from sigil.data import Dataset
from sigil.errors import ExperimentError
from sigil.federation.from_settings import load_data
from sigil.federation.precision import Precision, choose
from sigil.federation.run import Run, is_finished, open_run, train
from sigil.federation.settings import RecordSettings, RunSettings, Settings
from sigil.hardware import NOT_RECORDED, in_words
from sigil.keys.key import Key
from sigil.version import __version__
from sigil_reproduction.runner import keys, scales

# Raised whenever the default of a setting changes.
DEFAULTS = 2
# What a training had before there was a setting for it, where that is not the setting's default: these values
# are left out of its name in the default's place.
BEFORE = {("watermark", "scheme"): "paper", ("watermark", "strength"): 0.1}
# What a recording keeps beside its share says nothing about the training.
UNNAMED = (("record", "whole_rounds"), ("record", "limit_mb"))
# The files of a run that are its model; run.json comes last, because it says that the run is finished.
MODEL = ("client.safetensors", "server.safetensors", "reference.safetensors", "metrics.jsonl", "run.json")
KEY = "owner.key"
# A model of the paper's full width (45 MB) is not put into the repository: it stays with its run.
LARGEST_KEPT = 8 * 2**20


@dataclass(frozen=True)
class Cell:
    """One cell of a table or figure: a name, a seed, and the trainings that it is measured on.

    `live` is a training that its own measurement makes, because it is watched or served in another way.
    """

    experiment: str
    name: str
    seed: int
    trainings: tuple[Settings, ...]
    options: dict[str, Any] = field(default_factory=dict)
    live: Settings | None = None

    @property
    def all_trainings(self) -> tuple[Settings, ...]:
        """Those that are made before, and the one that is made while it is measured."""
        return self.trainings if self.live is None else (*self.trainings, self.live)

    @property
    def file(self) -> str:
        """File name of the cell."""
        return f"{self.name.replace(' ', '_').replace('/', '-')}.seed{self.seed}.json"


@dataclass(frozen=True)
class Result:
    """A cell that has been measured."""

    cell: str
    seed: int
    options: dict[str, Any]
    numbers: dict[str, Any]
    # Where it was trained and measured, in words; cells from before this was recorded say so.
    machines: frozenset[str] = frozenset({NOT_RECORDED})
    # What measuring it took, and each of its trainings, by their settings.
    seconds: float = 0.0
    trainings: Mapping[str, float] = field(default_factory=dict)
    # The day on which it was measured, as 2026-11-18.
    day: str = ""


class Store:
    """Trainings under `runs`, cells under `results`."""

    def __init__(self, scale: str, *, results: Path, runs: Path, data_dir: Path | None = None) -> None:
        self.scale = scale
        self.results = results / scale
        self.runs = runs / scale
        self.data_dir = data_dir

    def folder(self, settings: Settings, *, early: bool = False) -> Path:
        """Where the training with these settings is (or will be); `early` with a key that states nothing.

        Settings with their default value are left out, so that a new setting does not orphan what was trained
        before there was one; a change of a default must raise `DEFAULTS`.
        """
        if scales.get(self.scale).keeps_models:
            settings = self._recorded(settings)
        changed = settings.model_dump(mode="json", exclude_defaults=True)
        for (section, name), before in BEFORE.items():
            value = getattr(getattr(settings, section), name)
            group = changed.pop(section, {})
            group.pop(name, None)
            group |= {} if value == before else {name: value}
            changed |= {section: group} if group else {}
        for section, name in UNNAMED:
            changed.get(section, {}).pop(name, None)
        kind = ["stated key"] if settings.marked and not early else []
        text = json.dumps([DEFAULTS, changed, *kind], sort_keys=True)
        return self.runs / hashlib.sha256(text.encode()).hexdigest()[:16]

    def train(self, settings: Settings) -> Run:
        """The training with these settings: opened if it is there, finished or begun if not.

        One that also recorded the first client's gradients, and is otherwise the same, will do: recording
        looks on and changes nothing. So will a model that was kept, where no gradients are asked for.
        """
        finished = self._finished(settings)
        keeps = scales.get(self.scale).keeps_models
        run = (
            open_run(finished)
            if finished is not None
            else train(
                self._recorded(settings) if keeps else settings,
                self.folder(settings),
                key=self.new_key(settings),
                data_dir=self.data_dir,
                wait=True,
            )
        )
        if keeps and run.folder.parent == self.runs:
            self._keep(run, self._kept(run.folder))
        return run

    def trained(self, settings: Settings) -> bool:
        """Whether the training with these settings is finished, with its recording where they ask for one."""
        return self._finished(settings) is not None

    def _finished(self, settings: Settings) -> Path | None:
        """Where a finished training lies that will do for these settings, if there is one."""
        places = []
        for early in (False, True):
            places.append(self.folder(settings, early=early))
            if not settings.record.clients:
                recorded = self.folder(self._recorded(settings), early=early)
                places += [self._kept(places[-1]), recorded, self._kept(recorded)]
        return next((place for place in places if is_finished(place)), None)

    def _recorded(self, settings: Settings) -> Settings:
        """The same training with a recording as the scale makes them, unless it asks for its own."""
        if settings.record.clients:
            return settings
        recording = RecordSettings.model_validate(scales.get(self.scale).recording)
        return settings.model_copy(update={"record": recording})

    def kept(self, settings: Settings) -> Path:
        """Where the model of this training is kept with the results, if it is."""
        return self._kept(self.folder(settings))

    def _kept(self, folder: Path) -> Path:
        return self.results / "models" / folder.name

    def _keep(self, run: Run, folder: Path) -> None:
        if is_finished(folder) or sum((run.folder / name).stat().st_size for name in MODEL) > LARGEST_KEPT:
            return
        folder.mkdir(parents=True, exist_ok=True)
        key = self.key(run)
        if key is not None and not isinstance(key, keys.BareKey) and not (folder / KEY).exists():
            key.save(folder / KEY)  # it protects nothing, and every command can be tried with it
        for name in MODEL:
            with files.draft(folder / name, replace=True) as place:
                shutil.copyfile(run.folder / name, place)

    def dataset(self, settings: Settings) -> Dataset:
        """The data of the training with these settings."""
        return load_data(settings, self.data_dir)

    def key(self, run: Run) -> Key | None:
        """The key that a run was trained with, if it was marked."""
        return keys.of_run(run, self.data_dir)

    def new_key(self, settings: Settings) -> Key | None:
        """The key of a new training, if it marks."""
        return keys.stated(settings, self.data_dir) if settings.marked else None

    def seeds(self, experiment: str) -> set[int]:
        """The seeds of which any cell of this experiment was measured."""
        files = (self.results / experiment).glob("*.json")
        found = (re.search(r"\.seed(\d+)\.json$", path.name) for path in files)
        return {int(match[1]) for match in found if match is not None}

    def has(self, cell: Cell) -> bool:
        """Whether this cell has been measured."""
        return self._path(cell).exists()

    def measure(self, cell: Cell, how: Callable[[Cell, list[Run], Store], dict[str, Any]]) -> None:
        """Measure a cell and write it down, atomically; its trainings are done first if need be."""
        began = _core_seconds()
        runs = [self.train(settings) for settings in cell.trainings]
        numbers = how(cell, runs, self)
        content = {
            "experiment": cell.experiment,
            "cell": cell.name,
            "seed": cell.seed,
            "scale": self.scale,
            "options": cell.options,
            "numbers": numbers,
            "training_seconds": [round(sum(row["seconds"] for row in run.metrics), 1) for run in runs],
            "seconds": round(_core_seconds() - began, 1),
            "settings": [settings.model_dump(mode="json") for settings in cell.all_trainings],
            "command": f"sigil reproduce {cell.experiment} --scale {self.scale}",
            "versions": {name: version(name) for name in ("torch", "numpy")}
            | {"python": platform.python_version(), "sigil": __version__},
            "machine": _precision(cell).describe(),
            "training_machines": [run.machine for run in runs],
            "written": datetime.now(UTC).isoformat(timespec="seconds"),
        }
        path = self._path(cell)
        path.parent.mkdir(parents=True, exist_ok=True)
        files.write(path, json.dumps(content, indent=1) + "\n", replace=True, raises=ExperimentError)

    def results_of(self, cells: Iterable[Cell]) -> dict[tuple[str, int], Result]:
        """The measured ones among these cells, by name and seed."""
        return {(cell.name, cell.seed): self.result(cell) for cell in cells if self.has(cell)}

    def result(self, cell: Cell) -> Result:
        """What was measured of a cell."""
        path = self._path(cell)
        try:
            content = json.loads(path.read_text())
            machines = [content.get("machine"), *content.get("training_machines", ())]
            trained = zip(content.get("settings", ()), content.get("training_seconds", ()), strict=False)
            return Result(
                cell.name,
                cell.seed,
                cell.options,
                content["numbers"],
                frozenset(map(in_words, machines)),
                content.get("seconds", 0.0),
                # Recording looks on: a training is the same with it.
                {json.dumps(settings | {"record": None}): seconds for settings, seconds in trained},
                content.get("written", "")[:10],
            )
        except (ValueError, KeyError):
            raise ExperimentError(f"{path} is not a cell; delete it to measure it again.") from None

    def _path(self, cell: Cell) -> Path:
        return self.results / cell.experiment / cell.file


def computed_on(results: Iterable[Result]) -> str:
    """On which processors these cells were computed, as a sentence; nothing if none of them says so."""
    counts = Counter(" and ".join(sorted(result.machines)) for result in results)
    if set(counts) <= {NOT_RECORDED}:
        return ""
    parts = [f"{words} ({count} cell{'s' if count > 1 else ''})" for words, count in counts.most_common()]
    return f"Computed on: {'; '.join(parts)}."


def _core_seconds() -> float:
    """Processor time of this process and those that it has waited for, whatever else the machine does."""
    return sum(os.times()[:4])


def _precision(cell: Cell) -> Precision:
    """Where and in which number format a cell is measured: as its first training was done."""
    run = cell.all_trainings[0].run if cell.all_trainings else RunSettings()
    return choose(run.device, run.precision)
