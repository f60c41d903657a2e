"""The client half as it was at the start of a training, from the settings of its run."""

from __future__ import annotations

from pathlib import Path

from sigil import models
from sigil.errors import TrainingError
from sigil.federation.halves import build_halves
from sigil.federation.run import open_run


def initial_half(folder: Path) -> models.Model:
    """The client half with which the finished run in `folder` began: its weights follow from the seed."""
    run = open_run(folder)
    described = models.read_description(folder / "client.safetensors")
    if described.input_shape is None:
        raise TrainingError(f"The client half in {folder} does not say what images it takes.")
    halves = build_halves(run.settings, classes=described.spec.classes, input_shape=described.input_shape)
    assert isinstance(halves.client, models.Model)
    return halves.client
