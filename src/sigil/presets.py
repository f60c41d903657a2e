"""Settings under a name: what `sigil train --preset NAME` begins with."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from sigil.errors import ConfigError

PRESETS: Final[dict[str, tuple[str, Mapping[str, Mapping[str, Any]]]]] = {
    "digits": (
        "a small ResNet-18 on the embedded digits, two clients: a minute on a laptop",
        {
            "model": {"name": "resnet18", "width": 16, "cut": "layer3"},
            "data": {"name": "digits"},
            "federation": {"clients": 2, "rounds": 8, "batch_size": 32},
            "optimizer": {"warmup_rounds": 2},
            "watermark": {"strength": 0.3},
        },
    ),
    "paper": ("the published setting, 80 rounds at full width with ten clients: hours on a GPU", {}),
}
"""What each preset is for, and where it differs from the defaults, which are the paper's (appendix B)."""


def get(name: str) -> Mapping[str, Mapping[str, Any]]:
    """The settings of a preset, by section."""
    if name not in PRESETS:
        raise ConfigError(f"There is no preset {name!r}; choose {describe()}.")
    return PRESETS[name][1]


def describe() -> str:
    """All presets in one line."""
    return "; ".join(f"{name} ({purpose})" for name, (purpose, _) in PRESETS.items())
