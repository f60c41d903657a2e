"""The shape at the cut, from the settings alone."""

from __future__ import annotations

from pathlib import Path

from sigil import data, models
from sigil.federation.settings import Settings


def cut_shape(settings: Settings, data_dir: Path | None = None) -> tuple[int, ...]:
    """Shape of one sample's activation at the cut of a training with these settings."""
    dataset = data.load(settings.data.name, data_dir=data_dir, classes=settings.data.classes)
    whole = models.build(
        settings.model.name,
        classes=dataset.classes,
        width=settings.model.width,
        channels=dataset.shape[0],
        seed=0,
    )
    client_half, _ = models.split(whole, settings.model.cut or models.default_cut(settings.model.name))
    return models.activation_shape(client_half, dataset.shape)
