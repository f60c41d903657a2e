"""The shape at the cut, from the settings alone."""

from __future__ import annotations

from pathlib import Path

from sigil import data
from sigil.federation.halves import build_halves
from sigil.federation.settings import Settings


def cut_shape(settings: Settings, data_dir: Path | None = None) -> tuple[int, ...]:
    """Shape of one sample's activation at the cut of a training with these settings."""
    dataset = data.load(settings.data.name, data_dir=data_dir, classes=settings.data.classes)
    return build_halves(settings, classes=dataset.classes, input_shape=dataset.shape).shape
