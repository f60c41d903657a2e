"""Which client carries which bits under the scheme "shares": dealt out by the key, fairly."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from sigil.errors import ConfigError
from sigil.keys.draws import KeyStream

MAX_CLIENTS = 4_096


def check(rule: str | None, carriers_per_bit: int | None, *, client: int, clients: int) -> int:
    """How many clients carry each bit: as the share rule states, or as asked for where it leaves it open."""
    stated = (rule or "").partition("-")[2]
    carriers = carriers_per_bit if carriers_per_bit is not None else int(stated or 1)
    if stated and carriers != int(stated):
        raise ConfigError(f"The key states {stated} carriers per bit, but {carriers} were asked for.")
    if not (1 <= carriers <= clients <= MAX_CLIENTS and 0 <= client < clients):
        raise ConfigError(
            f"Client {client} of {clients} with {carriers} carriers per bit is impossible; give "
            f"0 <= client < clients <= {MAX_CLIENTS} and 1 <= carriers <= clients."
        )
    return carriers


def deal(stream: KeyStream, *, bits: int, clients: int, carriers: int) -> npt.NDArray[np.bool_]:
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
