"""What clients do beside training, as the settings ask for it: add noise, or embed a baseline mark.

The observers that do it are attacks and baselines, and those packages are built on this one. So each of them
registers here which setting it carries out, and a training whose settings ask for something that nothing has
registered is refused.
"""

from __future__ import annotations

from collections.abc import Callable

from sigil.errors import ConfigError
from sigil.federation.observers import ClientObserver
from sigil.federation.settings import Settings

Maker = Callable[[Settings], ClientObserver]

_MAKERS: dict[str, Maker] = {}


def register(setting: str, make: Maker) -> None:
    """Let `make` carry out a setting of the section behaviour, by name ("noise_snr") or value ("mark=…")."""
    _MAKERS[setting] = make


def observers(settings: Settings) -> list[ClientObserver]:
    """The client observers that `settings.behaviour` asks for."""
    behaviour = settings.behaviour
    asked = [] if behaviour.mark == "none" else [f"mark={behaviour.mark}"]
    asked += [] if behaviour.noise_snr is None else ["noise_snr"]
    for setting in asked:
        if setting not in _MAKERS:
            raise ConfigError(
                f"The settings ask for behaviour.{setting}, which nothing that was imported carries out; "
                "import sigil.attacks and sigil.baselines first."
            )
    return [_MAKERS[setting](settings) for setting in asked]
