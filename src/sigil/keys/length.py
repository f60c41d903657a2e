"""How long a key is: what its cut holds, and what the price of a proof demands (:mod:`sigil.rules`).

Length pays for everything that p is multiplied by: every bit that a model answers rightly halves p.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Sequence
from typing import Final

from sigil.keys.statement import KeyFields, SealKind, check_shape
from sigil.rules import MOST_CUTS, PLAIN_ALLOWANCE_LOG2, STAMPED_ALLOWANCE_LOG2, Price

# What an attack leaves of a mark proves the more, the longer the key is. The paper finds 500 bits no burden
# for 16,384 dimensions.
LONGEST_DEFAULT_BITS: Final = 512
SHORTEST_DEFAULT_BITS: Final = 32
LEAST_PLAIN_BITS: Final = 128
LEAST_STAMPED_BITS: Final = 64
# With fewer dimensions per bit the mark pulled whole activations towards zero and training with them.
DIMENSIONS_PER_BIT: Final = 16
# What a cut holds at all. Digits, ResNet-18 of width 8 cut at 128 dimensions, four rounds: 64 bits were read
# back at 99 %, 128 bits at 75 %.
LEAST_DIMENSIONS_PER_BIT: Final = 2


def default_bits(shape: Sequence[int], seal: SealKind = "none") -> int:
    """How long a key is if nobody says: one bit for every 16 dimensions of the activation, 512 at most.

    It has at least 128 bits, or 64 if it will be stamped, where the cut has two dimensions for each of
    them: shorter keys of either kind prove little or nothing once p is multiplied by the allowance. Which
    length is proof after which attack, ``reproduction/results/cpu/proof`` shows. No key is shorter than 32
    bits.
    """
    dimension = math.prod(check_shape(shape))
    least = LEAST_PLAIN_BITS if seal == "none" else LEAST_STAMPED_BITS
    held = min(least, dimension // LEAST_DIMENSIONS_PER_BIT)
    return max(SHORTEST_DEFAULT_BITS, held, min(LONGEST_DEFAULT_BITS, dimension // DIMENSIONS_PER_BIT))


def most_bits(shape: Sequence[int]) -> int:
    """How many bits activations of this shape hold."""
    return math.prod(shape) // LEAST_DIMENSIONS_PER_BIT


def warn_if_too_short(stated: KeyFields) -> None:
    """Warn the caller's caller that a key of this length proves nothing, however well a model answers.

    Or that an activation has no room for it: then no model will answer well.
    """
    stamped = stated.seal != "none"
    price = Price(
        STAMPED_ALLOWANCE_LOG2 if stamped else PLAIN_ALLOWANCE_LOG2,
        cuts=MOST_CUTS if stated.input_shape is None else 1,
    )
    if stated.bits >= (least := price.shortest_bits(float(stated.alpha))):
        if stated.bits > (held := most_bits(stated.shape)):
            warnings.warn(
                f"This key has {stated.bits} bits, but activations of shape {stated.shape} hold {held}: "
                "give fewer bits, or cut where activations have more numbers (sigil.inspect).",
                stacklevel=3,
            )
        return
    open_shape = " that does not state the shape of its inputs" if stated.input_shape is None else ""
    warnings.warn(
        f"This key has {stated.bits} bits for activations of shape {stated.shape}, and a "
        f"{'stamped' if stamped else 'plain'} key{open_shape} proves nothing with fewer than {least}: give "
        "more bits, or cut where activations have more numbers (sigil.inspect).",
        stacklevel=3,
    )
