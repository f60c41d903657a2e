"""The tail of fair coin flips, as a logarithm that never underflows.

``P(Bin(n, 1/2) >= count)`` for millions of coins and for probabilities far below the smallest float.

>>> round(10 ** log10_tail(8, 10), 6)  # (45 + 10 + 1) / 1024
0.054688
"""

from __future__ import annotations

import math
from typing import Final

import numpy as np
from scipy.special import betainc, gammaln

from sigil.errors import SigilError

# Above this the incomplete beta function is exact to about 1e-13; below, terms are added as logarithms.
_SMALLEST_PLAIN: Final = 1e-200
# Terms that are added: so far from the middle they fall fast enough for the rest not to count.
_TERMS: Final = 1 << 16


def log10_tail(count: int, coins: int) -> float:
    """The decimal logarithm of P(at least `count` of `coins` fair coins show heads); at most 0."""
    if not 0 <= count <= coins:
        raise SigilError(f"{count} of {coins} coins cannot show heads; count between 0 and {coins}.")
    if count == 0:
        return 0.0
    plain = float(betainc(count, coins - count + 1, 0.5))
    if plain > _SMALLEST_PLAIN:
        return min(0.0, math.log10(plain))
    return _log_sum(count, coins)


def _log_sum(count: int, coins: int) -> float:
    """Add the terms from `count` upwards; far from the middle they fall at least geometrically."""
    heads = np.arange(count, min(coins, count + _TERMS) + 1, dtype=np.float64)
    logs = gammaln(coins + 1.0) - gammaln(heads + 1.0) - gammaln(coins - heads + 1.0)
    largest = float(logs[0])
    total = largest + math.log(float(np.exp(logs - largest).sum()))
    return (total - coins * math.log(2.0)) / math.log(10.0)
