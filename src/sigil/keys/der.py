"""ASN.1 in its distinguished encoding (DER), read strictly and written: what time stamps are made of.

Every value has exactly one encoding. Bytes that spell a value in another way, or that are followed by
others, are refused, so that nobody can change a time stamp's bytes and leave its meaning alone.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import Final

BOOLEAN: Final = 0x01
INTEGER: Final = 0x02
OCTETS: Final = 0x04
NULL: Final = 0x05
OID: Final = 0x06
TIME: Final = 0x18
SEQUENCE: Final = 0x30
SET: Final = 0x31

_CONSTRUCTED: Final = 0x20
_DEEPEST: Final = 24


class DerError(ValueError):
    """Bytes that are not one value in its distinguished encoding; the text says why."""


@dataclass(frozen=True)
class Value:
    """One value: its tag, what it holds, and all of its bytes."""

    tag: int
    content: bytes
    encoding: bytes

    def parts(self) -> list[Value]:
        """The values inside a constructed one."""
        values = []
        rest = self.content
        while rest:
            value, rest = _first(rest)
            values.append(value)
        return values

    def inside(self, tag: int) -> list[Value]:
        """The values inside, if the tag is this one."""
        if self.tag != tag:
            raise DerError(f"tag {self.tag:#04x} stands where {tag:#04x} is expected")
        return self.parts()

    def octets(self, tag: int = OCTETS) -> bytes:
        """What a primitive value holds, if the tag is this one."""
        if self.tag != tag:
            raise DerError(f"tag {self.tag:#04x} stands where {tag:#04x} is expected")
        return self.content

    def number(self) -> int:
        """The value of an INTEGER."""
        return int.from_bytes(self.octets(INTEGER), "big", signed=True)

    def oid(self) -> str:
        """The value of an OBJECT IDENTIFIER, with dots."""
        numbers = []
        number = 0
        for octet in self.octets(OID):
            number = number << 7 | octet & 0x7F
            if not octet & 0x80:
                numbers.append(number)
                number = 0
        first = min(2, numbers[0] // 40)
        return ".".join(map(str, (first, numbers[0] - 40 * first, *numbers[1:])))


def read(data: bytes) -> Value:
    """The one value that `data` is, checked to the bottom."""
    value, rest = _first(data)
    if rest:
        raise DerError("there are bytes after its end")
    _check(value, 0)
    return value


def is_sorted(values: list[Value]) -> bool:
    """Whether the members of a SET OF stand in their one order, and none stands twice."""
    encodings = [value.encoding for value in values]
    return all(a < b for a, b in itertools.pairwise(encodings))


def write(tag: int, *parts: bytes) -> bytes:
    """The encoding of a value from the encodings (or the bytes) of what it holds."""
    content = b"".join(parts)
    size = len(content)
    if size < 0x80:
        return bytes((tag, size)) + content
    length = size.to_bytes((size.bit_length() + 7) // 8, "big")
    return bytes((tag, 0x80 | len(length))) + length + content


def write_set(*parts: bytes, tag: int = SET) -> bytes:
    """The encoding of a SET OF: its members in their one order."""
    return write(tag, *sorted(parts))


def write_integer(number: int) -> bytes:
    """The encoding of a whole number."""
    size = (number + (number < 0)).bit_length() // 8 + 1
    return write(INTEGER, number.to_bytes(size, "big", signed=True))


def write_oid(dotted: str) -> bytes:
    """The encoding of an object identifier."""
    first, second, *rest = (int(part) for part in dotted.split("."))
    content = b""
    for number in (40 * first + second, *rest):
        octets = [number & 0x7F]
        while number := number >> 7:
            octets.append(number & 0x7F | 0x80)
        content += bytes(reversed(octets))
    return write(OID, content)


def _first(data: bytes) -> tuple[Value, bytes]:
    """The value that `data` begins with, and the bytes after it."""
    if len(data) < 2:
        raise DerError("it ends too early")
    tag, size, begin = data[0], data[1], 2
    if tag & 0x1F == 0x1F:
        raise DerError("a tag has more than one byte")
    if size >= 0x80:
        count = size & 0x7F
        begin += count
        size = int.from_bytes(data[2:begin], "big")
        if not 1 <= count <= 4 or size < 0x80 or size.bit_length() <= 8 * (count - 1):
            raise DerError("a length is not written in its shortest form")
    if len(data) < begin + size:
        raise DerError("it ends too early")
    end = begin + size
    return Value(tag, data[begin:end], data[:end]), data[end:]


def _check(value: Value, depth: int) -> None:
    """Every value inside must be in its one form as well."""
    if depth > _DEEPEST:
        raise DerError("it is nested too deeply")
    content = value.content
    if value.tag & _CONSTRUCTED:
        for part in value.parts():
            _check(part, depth + 1)
    elif value.tag == INTEGER:
        if not content or (len(content) > 1 and content[0] == (0xFF if content[1] & 0x80 else 0)):
            raise DerError("a whole number is not written in its shortest form")
    elif value.tag == BOOLEAN:
        if content not in (b"\x00", b"\xff"):
            raise DerError("a truth value is neither 0 nor 255")
    elif value.tag == NULL:
        if content:
            raise DerError("a null holds bytes")
    elif value.tag == OID:
        starts = [0, *(i + 1 for i, octet in enumerate(content[:-1]) if not octet & 0x80)]
        if not content or content[-1] & 0x80 or any(content[i] == 0x80 for i in starts):
            raise DerError("an object identifier is not written in its shortest form")
    elif value.tag in (SEQUENCE & ~_CONSTRUCTED, SET & ~_CONSTRUCTED):
        raise DerError("a sequence or set is not marked as holding others")
