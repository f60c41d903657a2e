"""How the mark is spread over the clients: the whole of it in every gradient, or a share of it in each.

Under the scheme "paper" every client's gradient carries all bits, capped as the paper has it. Under "shares"
a client's gradient carries only the bits that the key deals out to it, without the cap, and only the average
carries all of them: what one client learns of the mark from its gradients is its own share.
"""

from __future__ import annotations

import logging
from typing import Final, Literal

from sigil.errors import ConfigError
from sigil.federation.settings import Settings
from sigil.keys.key import Key

log = logging.getLogger("sigil.federation")

# From this many clients on, a share is small enough to protect the rest.
ENOUGH_CLIENTS: Final = 4
STRENGTHS: Final = {"paper": 0.1, "shares": 0.3}


def resolve(settings: Settings, key: Key | None) -> Settings:
    """The settings with the scheme and the strength that "auto" and "none" stand for.

    What the key states decides; settings that say otherwise are refused.
    """
    mark = settings.watermark
    scheme = mark.scheme
    if scheme == "auto":
        # A key of the first version states nothing; trainings with it had the paper's scheme.
        scheme = automatic(settings) if key is None else key.fields.scheme
    elif _stated(key) not in (None, scheme):
        raise ConfigError(
            f"watermark.scheme is {scheme!r}, but the key states {_stated(key)!r}; leave the setting out or "
            "give a key that states the same."
        )
    if scheme == "shares" and settings.federation.mode == "sl":
        raise ConfigError(
            "Under the scheme shares only the average of the clients carries the whole mark, but "
            'federation.mode "sl" averages none; give a key of the scheme paper, or another mode.'
        )
    if scheme == "paper" and mark.carriers_per_bit is not None:
        raise ConfigError(
            "watermark.carriers_per_bit belongs to the scheme shares, but here every client carries all bits."
        )
    if scheme == "paper" and mark.scheme == "auto" and automatic(settings) == "shares":
        log.info(
            "the key states the scheme paper, so every client's gradients carry the whole mark; a key of "
            "the scheme shares would keep most of it from each"
        )
    strength = STRENGTHS[scheme] if mark.strength is None else mark.strength
    return settings.model_copy(
        update={"watermark": mark.model_copy(update={"scheme": scheme, "strength": strength})}
    )


def automatic(settings: Settings) -> Literal["paper", "shares"]:
    """The scheme of a training whose key and settings state none."""
    federation = settings.federation
    averaged = federation.mode != "sl" and federation.clients >= ENOUGH_CLIENTS
    return "shares" if averaged and settings.marked else "paper"


def _stated(key: Key | None) -> Literal["paper", "shares"] | None:
    """What the key's statement says; keys of the first version say nothing."""
    return None if key is None or key.version == 1 else key.fields.scheme
