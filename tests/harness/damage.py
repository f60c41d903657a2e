"""Damage to files at random."""

from __future__ import annotations

import random


def mutated(content: bytes, chance: random.Random) -> bytes:
    """Bytes with one change, or eight: cut off, left out, put in, copied, turned or overwritten."""
    data = bytearray(content)
    for _ in range(chance.choice((1, 1, 1, 8))):
        at, length = chance.randrange(len(data)), chance.randrange(1, 64)
        match chance.randrange(6):
            case 0:
                del data[max(1, at) :]
            case 1:
                del data[max(1, at) : at + length]
            case 2:
                data[at:at] = chance.randbytes(length)
            case 3:
                other = chance.randrange(len(data))
                data[at : at + length] = data[other : other + length]
            case 4:
                data[at] ^= 1 << chance.randrange(8)
            case _:
                data[at] = chance.choice((0, 1, 127, 128, 255))
    return bytes(data)
