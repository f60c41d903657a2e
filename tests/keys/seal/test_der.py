"""DER: what is written is read back, and no value has a second spelling."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sigil.keys import der


@given(st.integers(-(2**200), 2**200))
def test_whole_numbers(number: int) -> None:
    assert der.read(der.write_integer(number)).number() == number


@given(st.lists(st.integers(0, 2**70), max_size=8), st.integers(0, 2), st.integers(0, 39))
def test_object_identifiers(rest: list[int], first: int, second: int) -> None:
    dotted = ".".join(map(str, (first, second, *rest)))
    assert der.read(der.write_oid(dotted)).oid() == dotted


@given(st.integers(0, 70_000))
def test_lengths(size: int) -> None:
    assert der.read(der.write(der.OCTETS, bytes(size))).octets() == bytes(size)


@given(st.binary(max_size=40))
def test_what_is_read_is_what_would_be_written(data: bytes) -> None:
    try:
        value = der.read(data)
    except der.DerError:
        return
    assert der.write(value.tag, value.content) == data


@pytest.mark.parametrize(
    "spelling",
    [
        *(
            "",
            "30",
            "3080 0000",
            "30 8100",
            "30 81 01 00",
            "30 820001 00",
            "0200",
            "02 02 0001",
            "02 02 ffff",
        ),
        *(
            "01 01 01",
            "05 01 00",
            "06 00",
            "06 01 80",
            "06 02 80 01",
            "06 03 2a 80 01",
            "1f 81 01 00",
            "10 00",
        ),
        *("11 00", "30 03 02 02 01", "02 01 01 00", "30 85 0000000001 00"),
    ],
)
def test_other_spellings_are_refused(spelling: str) -> None:
    with pytest.raises(der.DerError):
        der.read(bytes.fromhex(spelling.replace(" ", "")))


def test_nesting_is_bounded() -> None:
    deep = b""
    for _ in range(100):
        deep = der.write(der.SEQUENCE, deep)
    with pytest.raises(der.DerError, match="too deeply"):
        der.read(deep)


def test_members_of_a_set_are_sorted() -> None:
    low, high = der.write_integer(1), der.write_integer(2)
    assert der.write_set(high, low) == der.write(der.SET, low, high)
    assert der.is_sorted(der.read(der.write(der.SET, low, high)).parts())
    assert not der.is_sorted(der.read(der.write(der.SET, high, low)).parts())
    assert not der.is_sorted(der.read(der.write(der.SET, low, low)).parts())
