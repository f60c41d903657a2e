"""The wire format: whatever goes out comes back in, bit for bit, and nothing else comes in."""

from __future__ import annotations

import pickle
import struct

import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st

from sigil.transport import wire
from sigil.transport.limits import Reason, Rejection
from sigil.transport.wire import CHUNK_BYTES, Assembly, Header, Kind, check_finite, unpack

GOOD = Header(Kind.ACTIVATION, 1, 2, 3, torch.float32, False, (4, 5, 6, 7))


def field(offset: int, layout: str, value: int) -> bytes:
    """The good header with one field overwritten."""
    message = bytearray(GOOD.pack())
    struct.pack_into("<" + layout, message, offset, value)
    return bytes(message)


def through(values: torch.Tensor, *, widen: bool = False, form: wire.Wire = "float32") -> torch.Tensor:
    header, *chunks = wire.frame(Kind.ACTIVATION, values, round_number=1, client=0, step=1, wire=form)
    assembly = Assembly(unpack(header), widen=widen, finite=True)
    for chunk in chunks:
        assembly.add(chunk)
    assert assembly.complete
    return assembly.tensor()


@given(
    shape=st.lists(st.integers(1, 5), min_size=1, max_size=4),
    dtype=st.sampled_from([torch.float32, torch.bfloat16]),
    channels_last=st.booleans(),
    seed=st.integers(0, 1000),
)
def test_a_tensor_arrives_with_its_bits_and_its_memory_order(
    shape: list[int], dtype: torch.dtype, channels_last: bool, seed: int
) -> None:
    values = torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(dtype)
    if channels_last and len(shape) == 4:
        values = values.contiguous(memory_format=torch.channels_last)
    arrived = through(values)
    assert arrived.dtype is dtype
    assert torch.equal(arrived, values)
    assert arrived.is_contiguous() == values.is_contiguous()
    assert arrived.is_contiguous(memory_format=torch.contiguous_format) or arrived.stride() == values.stride()


@pytest.mark.parametrize("order", [torch.contiguous_format, torch.channels_last])
def test_narrow_numbers_are_widened_on_arrival(order: torch.memory_format) -> None:
    values = torch.randn(40, 40, 20, 20, generator=torch.Generator().manual_seed(0)).to(memory_format=order)
    arrived = through(values.bfloat16(), widen=True)  # more than one chunk
    assert arrived.dtype is torch.float32
    assert arrived.stride() == values.stride()
    assert torch.equal(arrived, values.bfloat16().float())
    assert torch.equal(through(values, widen=True), values)


@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
def test_numbers_narrowed_on_the_way_are_those_narrowed_before(layout: torch.memory_format) -> None:
    values = torch.randn(3, 64, 64, 64).to(memory_format=layout)  # more than one chunk
    place = {"round_number": 1, "client": 0, "step": 1}
    narrowed = list(wire.frame(Kind.ACTIVATION, values, wire="bfloat16", **place))
    assert narrowed == list(wire.frame(Kind.ACTIVATION, values.bfloat16(), **place))
    logits = torch.randn(3, 10)
    assert list(wire.frame(Kind.LOGITS, logits, wire="bfloat16", **place)) == list(
        wire.frame(Kind.LOGITS, logits, **place)
    )


def test_a_tensor_in_no_usual_order_arrives_in_the_order_of_its_shape() -> None:
    values = torch.arange(24.0).view(2, 3, 4).transpose(1, 2)
    assert torch.equal(through(values), values)


def test_a_large_tensor_travels_in_chunks_of_one_mebibyte() -> None:
    values = torch.rand(CHUNK_BYTES // 2 + 3)
    header, *chunks = wire.frame(Kind.ACTIVATION, values, round_number=1, client=0, step=1)
    assert [len(chunk) for chunk in chunks] == [CHUNK_BYTES, CHUNK_BYTES, 12]
    assert all(len(message) <= wire.MAX_MESSAGE_BYTES for message in (header, *chunks))
    assert torch.equal(through(values), values)


@given(
    kind=st.sampled_from([Kind.HELLO, Kind.WELCOME, Kind.FINISH, Kind.FINISHED]),
    numbers=st.tuples(*[st.integers(0, 2**32 - 1)] * 3),
)
def test_a_control_frame_comes_back(kind: Kind, numbers: tuple[int, int, int]) -> None:
    header = Header(kind, *numbers)
    assert len(header.pack()) == wire.HEADER_BYTES == 48
    assert unpack(header.pack()) == header


def test_a_tensor_header_comes_back() -> None:
    assert unpack(GOOD.pack()) == GOOD
    assert GOOD.size == 4 * 5 * 6 * 7 * 4


@pytest.mark.parametrize(
    ("message", "reason"),
    [
        (b"", Reason.MALFORMED),
        (GOOD.pack()[:-1], Reason.MALFORMED),
        (GOOD.pack() + b"\0", Reason.MALFORMED),
        (b"HTTP" + GOOD.pack()[4:], Reason.MALFORMED),
        (pickle.dumps({"a": [1.0] * 20}), Reason.MALFORMED),
        (field(4, "H", 0), Reason.VERSION),
        (field(4, "H", 2), Reason.VERSION),
        (field(6, "B", 0), Reason.MALFORMED),
        (field(6, "B", 9), Reason.MALFORMED),
        (field(6, "B", Kind.FINISH), Reason.MALFORMED),  # a control frame with a tensor
        (field(7, "B", 0), Reason.DTYPE),
        (field(7, "B", 3), Reason.SIZE),  # eight bits, announced with the size of float32
        (field(7, "B", 4), Reason.DTYPE),
        (field(7, "B", 2), Reason.SIZE),  # bfloat16, announced with the size of float32
        (field(20, "B", 2), Reason.MALFORMED),
        (field(21, "B", 0), Reason.MALFORMED),  # a tensor without axes
        (field(21, "B", 3), Reason.MALFORMED),  # an axis more than it says
        (field(21, "B", 5), Reason.MALFORMED),
        (field(22, "H", 1), Reason.MALFORMED),
        (field(24, "I", 5), Reason.SIZE),
        (field(24, "I", 2**32 - 1), Reason.SIZE),
        (field(40, "Q", GOOD.size + 1), Reason.SIZE),
        (field(40, "Q", 2**64 - 1), Reason.SIZE),
        (field(40, "Q", 0), Reason.SIZE),
    ],
)
def test_what_is_no_header_is_rejected_with_the_reason(message: bytes, reason: Reason) -> None:
    with pytest.raises(Rejection) as rejection:
        unpack(message)
    assert rejection.value.reason is reason


def test_channels_last_needs_four_axes() -> None:
    flat = bytearray(Header(Kind.ACTIVATION, 1, 0, 1, torch.float32, False, (4, 8)).pack())
    flat[20] = 1
    with pytest.raises(Rejection):
        unpack(bytes(flat))


@given(st.binary(min_size=40, max_size=90))
def test_random_bytes_are_rejected(message: bytes) -> None:
    with pytest.raises(Rejection):
        unpack(message)
    with pytest.raises(Rejection):
        wire.read_hello(message)


def test_a_hello_carries_its_ticket_and_nothing_else_is_one() -> None:
    ticket = bytes(range(32))
    message = wire.hello(ticket, round_number=7, client=3, answers=5)
    assert wire.read_hello(message) == (Header(Kind.HELLO, 7, 3, 5), ticket)
    with pytest.raises(Rejection) as short:
        wire.read_hello(message[:-1])
    assert short.value.reason is Reason.MALFORMED
    with pytest.raises(Rejection) as other:
        wire.read_hello(Header(Kind.FINISH, 7, 3, 5).pack() + ticket)
    assert other.value.reason is Reason.ORDER


@pytest.mark.parametrize("size", [0, 1, 1000, CHUNK_BYTES - 1, CHUNK_BYTES + 1])
def test_a_chunk_has_the_one_right_length(size: int) -> None:
    assembly = Assembly(Header(Kind.ACTIVATION, 1, 0, 1, torch.float32, False, (CHUNK_BYTES,)))
    with pytest.raises(Rejection) as rejection:
        assembly.add(bytes(size))
    assert rejection.value.reason is Reason.SIZE
    assert not assembly.complete


@pytest.mark.parametrize("order", [torch.contiguous_format, torch.channels_last])
@pytest.mark.parametrize("widen", [True, False])
def test_eight_bits_are_right_to_half_a_step_of_each_sample(order: torch.memory_format, widen: bool) -> None:
    values = torch.randn(30, 64, 32, 32, generator=torch.Generator().manual_seed(0)).to(memory_format=order)
    values *= 10.0 ** torch.arange(-15, 15).view(-1, 1, 1, 1)  # more than one chunk, and every size of sample
    arrived = through(values, form="int8", widen=widen)
    assert arrived.dtype is (torch.float32 if widen else torch.bfloat16)
    assert arrived.stride() == values.stride()
    largest = values.abs().amax((1, 2, 3), keepdim=True)
    allowed = largest / 254 * 1.001 if widen else largest / 254 + largest / 256
    assert bool(((arrived.float() - values).abs() <= allowed).all())
    sizes = [sum(map(len, wire.frame(Kind.ACTIVATION, values, round_number=1, client=0, step=1, wire=form)))
             for form in ("int8", "float32")]  # fmt: skip
    assert sizes[0] / sizes[1] < 0.2502


@given(st.lists(st.floats(width=32, allow_nan=False, allow_infinity=False), min_size=1, max_size=20))
@example([torch.finfo(torch.float32).max])
@example([-3.3762391e38, 1.0])
def test_eight_bits_take_every_finite_number(numbers: list[float]) -> None:
    values = torch.tensor([numbers, [0.0] * len(numbers)])
    arrived = through(values, form="int8", widen=True)
    assert bool(arrived.isfinite().all())
    assert not arrived[1].any()
    # Where the step itself is hardly a number, no more can be asked than the size.
    allowed = max(values.abs().max().item() / 254 * 1.001, 2.0**-142)
    assert (arrived - values).abs().max().item() <= allowed


def test_logits_and_their_gradients_do_not_travel_in_eight_bits() -> None:
    place = {"round_number": 1, "client": 0, "step": 1}
    for kind in (Kind.LOGITS, Kind.LOGIT_GRADIENT):
        logits = torch.randn(3, 10)
        assert list(wire.frame(kind, logits, wire="int8", **place)) == list(wire.frame(kind, logits, **place))
        with pytest.raises(Rejection) as rejection:
            unpack(Header(kind, 1, 0, 1, torch.int8, False, (3, 10)).pack())
        assert rejection.value.reason is Reason.DTYPE


@pytest.mark.parametrize("bits", [0x7FC00000, 0x7F800000, 0xFF800000, 0x80000001, 0xBF800000, 0x7C010205])
@pytest.mark.parametrize("sample", [0, 2])
def test_a_scale_that_is_no_size_is_refused(bits: int, sample: int) -> None:
    """NaN, both infinities, negative ones small and large, and one beyond which a byte could overflow."""
    header = Header(Kind.ACTIVATION, 1, 0, 1, torch.int8, False, (3, 5))
    scales = [0x3F800000] * 3
    scales[sample] = bits
    assembly = Assembly(header, widen=True, finite=True)
    assembly.add(struct.pack("<3I", *scales) + bytes(15))
    with pytest.raises(Rejection) as rejection:
        assembly.tensor()
    assert rejection.value.reason is Reason.VALUES


def test_the_largest_scale_makes_no_infinity() -> None:
    assembly = Assembly(Header(Kind.ACTIVATION, 1, 0, 1, torch.int8, False, (1, 2)), widen=True)
    assembly.add(struct.pack("<I2b", 0x7C000000 - 1, -128, 127))
    assert bool(assembly.tensor().isfinite().all())


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
def test_a_sample_that_is_not_finite_is_refused_in_eight_bits_too(value: float) -> None:
    values = torch.ones(3, 4)
    values[1, 2] = value
    with pytest.raises(Rejection) as rejection:
        through(values, form="int8")
    assert rejection.value.reason is Reason.VALUES


@pytest.mark.parametrize("widen", [True, False])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
@pytest.mark.parametrize("place", [0, 77, 99])
def test_one_bad_number_is_found(dtype: torch.dtype, value: float, place: int, widen: bool) -> None:
    values = torch.randn(5, 2, 2, 5, generator=torch.Generator().manual_seed(0)).to(dtype)
    values = values.to(memory_format=torch.channels_last)
    check_finite(values)
    through(values, widen=widen)
    values[place // 20, place // 10 % 2, place // 5 % 2, place % 5] = value
    with pytest.raises(Rejection) as rejection:
        check_finite(values)
    assert rejection.value.reason is Reason.VALUES
    with pytest.raises(Rejection) as rejection:
        through(values, widen=widen)
    assert rejection.value.reason is Reason.VALUES


def test_the_largest_numbers_are_still_numbers() -> None:
    for dtype in (torch.float32, torch.bfloat16):
        values = torch.full((4, 4), torch.finfo(dtype).max, dtype=dtype)
        check_finite(values)
        assert torch.equal(through(values), values)
