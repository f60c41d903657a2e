"""The two halves of a training and its injector, from the settings and the shape of the data alone."""

from __future__ import annotations

from dataclasses import dataclass

from torch import nn

from sigil import models
from sigil.errors import ConfigError
from sigil.federation.seeds import derive
from sigil.federation.settings import Settings
from sigil.injector import Injector
from sigil.key import Key


@dataclass(frozen=True)
class Halves:
    """A network at the start of its training, cut in two; `shape` is that of one sample at the cut."""

    client: nn.Module
    server: nn.Module
    cut: str
    shape: tuple[int, ...]


def build_halves(settings: Settings, *, classes: int, input_shape: tuple[int, int, int]) -> Halves:
    """Build the network of the settings for images (C, H, W) = `input_shape` and cut it.

    The weights follow from the seed, so that everybody who builds it begins alike.
    """
    cut = settings.model.cut or models.default_cut(settings.model.name)
    whole = models.build(
        settings.model.name,
        classes=classes,
        width=settings.model.width,
        channels=input_shape[0],
        input_size=input_shape[1:],
        seed=derive(settings.run.seed, "weights"),
    )
    client_half, server_half = models.split(whole, cut)
    return Halves(client_half, server_half, cut, models.activation_shape(client_half, input_shape))


def make_injector(settings: Settings, key: Key | None, *, halves: Halves) -> Injector | None:
    """The injector of a training with this key, or none if it embeds no mark."""
    mark = settings.watermark
    if not settings.marked:
        return None
    if key is None:
        raise ConfigError(
            "watermark.strength is above 0, but there is no key to embed; give a key or set it to 0."
        )
    if key.shape != halves.shape:
        raise ConfigError(
            f"The key is for activations of {key.shape}, but {settings.model.name} cut at "
            f"{halves.cut!r} gives {halves.shape}; make a key with that shape."
        )
    return Injector(key, mark.strength, clip=mark.clip, per_sample=mark.per_sample)
