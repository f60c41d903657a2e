"""What results took and what the rest would take, in core-hours, by the times that the cells state."""

from __future__ import annotations

import json
import statistics
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from sigil.federation.settings import Settings
from sigil_reproduction.runner.store import Cell, Store, computed_on

# The images of an epoch where the settings take all of them.
IMAGES = {"cifar10": 50_000, "tiny-imagenet": 100_000}
# Operations of an image at full width (billions, forward and backward), counted by FlopCounterMode; and the
# GiB that a batch of 256 keeps for the way back.
GFLOP = {"resnet18": 3.33, "vgg11": 0.91, "mobilenetv2": 4.01, "densenet121": 1.37}
LARGEST_BATCH_GIB = 6.1
SUSTAINED_TFLOPS = 10


def spent(store: Store, cells: Iterable[Cell]) -> str:
    """What these cells and their trainings took, and on which machines; nothing without cells."""
    found = {(cell.experiment, cell.file): store.result(cell) for cell in cells if store.has(cell)}
    trainings = {name: seconds for one in found.values() for name, seconds in one.trainings.items()}
    measuring = sum(one.seconds for one in found.values())
    if not trainings:
        return ""
    return (
        f"{_count(len(trainings), 'training')} took {sum(trainings.values()) / 3600:.1f} core-hours, what "
        f"was measured on them {measuring / 3600:.1f} more. {computed_on(found.values())}"
    )


def unmeasured(store: Store, cells: Sequence[Cell], what: str, seeds: Sequence[int] = (0,)) -> str:
    """What is missing of these cells as one line, with the command and its cost; nothing if nothing is.

    `what` is the name of their experiment, or "all", and `seeds` are those asked for. Trainings count unless
    their models lie beside the results, whatever else this machine has.
    """
    store = Store(store.scale, results=store.results.parent, runs=store.results / "no runs")
    missing = {(cell.experiment, cell.file): cell for cell in cells if not store.has(cell)}
    if not missing:
        return ""
    asked = [one for one in _trainings(missing.values()) if one[1] or not store.trained(one[0])]
    rates, seconds = _rates(store), 0.0
    for settings, _ in asked:
        seconds += rates.get(settings.model.name, 0.0) * _images(settings.model_dump())
    known = defaultdict(list)
    for cell in cells:
        if store.has(cell):
            known[cell.experiment].append(store.result(cell).seconds)
    for cell in missing.values():
        seconds += statistics.median(known[cell.experiment]) if known[cell.experiment] else 0.0
    made = f"{_count(len(asked), 'training')}, " if asked else ""
    cost = f" ({made}about {max(seconds / 3600, 0.1):.1f} core-hours)" if seconds else ""
    option = f" --seeds {max(seeds) + 1}" if max(seeds) else ""
    command = f"sigil reproduce {what} --scale {store.scale}{option}"
    return f"Not measured: {_count(len(missing), 'cell')}{cost}: `{command}`."


def on_a_gpu(cells: Iterable[Cell]) -> str:
    """One command for the paper's own scale, and what it is expected to take: counted, never measured."""
    trainings = _trainings(cells)
    work = sum(GFLOP[settings.model.name] * _images(settings.model_dump()) for settings, _ in trainings)
    one = GFLOP["resnet18"] * 80 * 2 * IMAGES["cifar10"]
    hours = {what: billions / SUSTAINED_TFLOPS / 3.6e6 for what, billions in (("all", work), ("one", one))}
    return (
        "With a GPU, the paper's own scale: `sigil reproduce all --scale paper --data-dir ~/data`. By the "
        f"arithmetic, which was counted and not timed, {len(trainings)} trainings take about "
        f"{hours['all']:.0f} hours at {SUSTAINED_TFLOPS} sustained TFLOP/s ({60 * hours['one']:.0f} minutes "
        f"for a ResNet-18) and a batch at most {LARGEST_BATCH_GIB} GiB: 12 GB of memory will do. "
        "Interrupted, the same command goes on."
    )


def _count(number: int, what: str) -> str:
    return f"{number} {what}{'' if number == 1 else 's'}"


def _trainings(cells: Iterable[Cell]) -> list[tuple[Settings, bool]]:
    """The different trainings of cells, and whether it is made while one is measured.

    Recording changes nothing, and cells of an experiment that watch a training live share it.
    """
    found: dict[tuple[str, str], tuple[Settings, bool]] = {}
    for cell in cells:
        for settings in cell.trainings:
            found["", settings.model_dump_json(exclude={"record"})] = settings, False
        if cell.live is not None:
            found[cell.experiment, cell.live.model_dump_json(exclude={"record"})] = cell.live, True
    return list(found.values())


def _rates(store: Store) -> dict[str, float]:
    """Seconds that an image took in the trainings of each architecture, here or at the scale `cpu`."""
    found: defaultdict[str, list[float]] = defaultdict(list)
    for folder in (store.results.parent / "cpu", store.results):
        here: defaultdict[str, list[float]] = defaultdict(list)
        for path in sorted((folder / "fidelity").glob("*.json")):
            content = json.loads(path.read_text("utf-8"))
            for settings, seconds in zip(
                content.get("settings", ()), content.get("training_seconds", ()), strict=False
            ):
                here[settings["model"]["name"]].append(seconds / _images(settings))
        found |= here
    return {model: statistics.median(times) for model, times in found.items()}


def _images(settings: Mapping[str, Any]) -> int:
    """How many images a training takes in all."""
    data, federation = settings["data"], settings["federation"]
    images = data["train_limit"] or IMAGES.get(data["name"], 1_500)
    return int(images * federation["rounds"] * federation["local_epochs"])
