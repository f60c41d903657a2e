"""Copies for the clients of a training: in every round each gets its own, so that one that leaks names it.

The global client half R of a round reaches client k as R + ε s n_k, and what comes back is averaged without
the pattern (:class:`sigil.imprint.Patterns`), so that R itself carries none. Patterns are held over a *block*
of rounds, until R has moved by :data:`MOVED` standard deviations of its filters since the block began: fresh
patterns over an R that stands still would be averaged away by a single client. Each block has a register of
its own, with the R that it began with and one entry per client; a suspect is compared with each of them.

All of it follows from the key, R and the block, so that a training that goes on after an interruption, in
several processes or across machines, is the same bit for bit.
"""

from __future__ import annotations

import copy
import math
from pathlib import Path
from typing import Final

import numpy as np

from sigil.errors import ConfigError
from sigil.federation.averaging import State
from sigil.imprint import Imprint, Patterns, recipient
from sigil.imprint_reading import filters_of_weight, spreads
from sigil.keys.key import Key
from sigil.models import Model

MOVED: Final = 0.15
"""Root mean square of R's change, in standard deviations of each filter, that begins a new block."""


class Imprinting:
    """Gives the clients of a training their patterns, block after block, and keeps the registers in `folder`.

    `half` is the client half, whose weights do not matter. Without a folder nothing is kept.
    """

    def __init__(self, key: Key | None, half: Model, *, clients: int, folder: Path | None) -> None:
        if key is None:
            raise ConfigError(
                "federation.imprint gives each client a copy that the key draws, but there is no key; give "
                "one or set federation.imprint to false."
            )
        self._key, self._half, self._folder = key, copy.deepcopy(half), folder
        self._names = [recipient(client) for client in range(clients)]
        self.block = ""
        self._owner: Imprint | None = None
        self._patterns: Patterns | None = None

    def begin(self, number: int, state: State) -> Patterns:
        """The patterns of a round, given its number and the global client half that it begins with."""
        if self._owner is None or self._patterns is None or _moved(self._owner, state) > MOVED:
            self._half.load_state_dict(state)
            copies = Imprint(self._key, self._half)
            self.block = f"round-{number:05d}-{copies.digest[:12]}"
            self._keep(copies)
            for name in self._names:
                copies.record(name)
            if self._folder is not None:
                copies.save(self._folder / self.block)
        assert self._patterns is not None
        return self._patterns

    def resume(self, block: str) -> None:
        """Go on in a block that is there."""
        if self._folder is not None:
            self.block = block
            self._keep(Imprint.load(self._folder / block, self._key))

    def _keep(self, copies: Imprint) -> None:
        self._owner, self._patterns = copies, copies.patterns(self._names)


def _moved(copies: Imprint, state: State) -> float:
    """How far R is from where the block began, in standard deviations of its filters."""
    total = 0.0
    for name in copies.carriers:
        rows = filters_of_weight(copies.state[name])
        spread = spreads(rows)
        change = (filters_of_weight(state[name]) - rows) / np.where(spread > 0, spread, 1.0)
        total += float(np.sum(change**2))
    return math.sqrt(total / copies.weights)
