"""Which client carries which bits under the scheme "shares": dealt out by the key, fairly."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from sigil.draws import Stream

MAX_CLIENTS = 4_096


def deal(stream: Stream, *, bits: int, clients: int, carriers: int) -> npt.NDArray[np.bool_]:
    """(clients, bits): every bit has exactly `carriers` clients, whose numbers of bits differ by one at most.

    Bit by bit, the clients that carry least take it; the stream decides between those that carry
    equally much, by one 64-bit word per client and bit.
    """
    mask = np.zeros((clients, bits), dtype=np.bool_)
    load = np.zeros(clients, dtype=np.int64)
    for bit in range(bits):
        lots = stream.words(bit * clients, clients)
        chosen = np.lexsort((lots, load))[:carriers]
        mask[chosen, bit] = True
        load[chosen] += 1
    return mask
