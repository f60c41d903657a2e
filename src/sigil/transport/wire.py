"""The wire format: a fixed header, checked in full before the first byte of a tensor is accepted.

A stream is a sequence of gRPC messages. Each is a header of 48 bytes (a HELLO carries its ticket behind it),
or, after the header of a tensor, the next piece of that tensor: exactly 1 MiB, the last one the rest.

======  ========  ====================================================================================
offset  type      field
======  ========  ====================================================================================
0       4 bytes   magic, ``SIGL``
4       uint16    version of the protocol, 1
6       uint8     kind (:class:`Kind`)
7       uint8     number format: 0 none, 1 float32, 2 bfloat16, 3 eight bits
8       uint32    round, from 1
12      uint32    client, from 0
16      uint32    step, from 1; in HELLO and WELCOME the number of answers received or given so far
20      uint8     memory order: 0 as the shape says, 1 channels last
21      uint8     number of axes, 0 to 4
22      uint16    zero
24      4×uint32  shape, unused axes zero
40      uint64    bytes of the tensor that follow
======  ========  ====================================================================================

All numbers are little-endian. Every field has one correct value or a short list of them at any moment, so
the receiver knows the size of what may follow before it comes, and a hostile header costs it 48 bytes.

The tensor travels as its raw numbers. A safetensors file would put the same bytes behind a JSON header of
up to 100 MB, which must be parsed first and could name several tensors, other shapes and gaps: all of them
things that would then have to be refused. Nothing is ever unpickled. The memory order travels along because
convolutions round differently in different orders, and a remote training must equal a local one bit for bit.

In eight bits, the tensor is one float32 per sample, its scale, and then one signed byte per number: a number
is its byte times the scale of its sample. Logits and their gradients never travel that way: they are small,
and the server judges a logit gradient by digits that eight bits lack (:mod:`sigil.logit_gradients`).
"""

from __future__ import annotations

import math
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from enum import IntEnum
from typing import Final, Literal

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from sigil.transport.limits import Reason, Rejection

MAGIC: Final = b"SIGL"
VERSION: Final = 1
CHUNK_BYTES: Final = 1 << 20
TICKET_BYTES: Final = 32
MAX_AXES: Final = 4

_HEADER: Final = struct.Struct("<4sHBBIIIBBH4IQ")
HEADER_BYTES: Final = _HEADER.size
# gRPC itself refuses longer messages before Sigil sees them.
MAX_MESSAGE_BYTES: Final = CHUNK_BYTES + 4096
GRPC_OPTIONS: Final = (
    ("grpc.max_receive_message_length", MAX_MESSAGE_BYTES),
    ("grpc.max_send_message_length", MAX_MESSAGE_BYTES),
    # A chunk in one frame of HTTP/2, not in 64: a tenth of a step's processor time.
    ("grpc.http2.max_frame_size", CHUNK_BYTES),
)
"""Options of gRPC that both ends set alike."""

Wire = Literal["float32", "bfloat16", "int8"]
"""How activations and cut gradients travel: as they were computed, or in half or a quarter of the bytes."""

METHOD: Final = "/sigil.Split/Train"
REASON_KEY: Final = "sigil-reason"
"""Name of the trailing metadata that says why a stream was refused."""


class Kind(IntEnum):
    """What a frame is; the four tensors are the four messages of :mod:`sigil.federation.messages`."""

    HELLO = 1
    WELCOME = 2
    ACTIVATION = 3
    LOGITS = 4
    LOGIT_GRADIENT = 5
    CUT_GRADIENT = 6
    FINISH = 7
    FINISHED = 8


_DTYPES: Final = {1: torch.float32, 2: torch.bfloat16, 3: torch.int8}
_CODES: Final = {dtype: code for code, dtype in _DTYPES.items()}
_TENSORS: Final = (Kind.ACTIVATION, Kind.LOGITS, Kind.LOGIT_GRADIENT, Kind.CUT_GRADIENT)
_AT_CUT: Final = (Kind.ACTIVATION, Kind.CUT_GRADIENT)
_NARROW: Final[dict[Wire, torch.dtype]] = {"bfloat16": torch.bfloat16, "int8": torch.int8}
_SCALE_BYTES: Final = 4
# Up to this size, torch works on the thread that asks; waking others for each chunk costs more than it saves.
_BLOCK: Final = 32_768


def agreed_formats(wire: Wire) -> tuple[torch.dtype, ...]:
    """The number formats in which activations may come; float32 means: as they were computed."""
    return (_NARROW[wire],) if wire in _NARROW else (torch.float32, torch.bfloat16)


@dataclass(frozen=True, slots=True)
class Header:
    """One frame's header; `dtype` is None and `shape` empty for frames without a tensor."""

    kind: Kind
    round: int
    client: int
    step: int
    dtype: torch.dtype | None = None
    channels_last: bool = False
    shape: tuple[int, ...] = ()

    @property
    def size(self) -> int:
        """Bytes of the tensor that follows."""
        if self.dtype is None:
            return 0
        scales = _SCALE_BYTES * self.shape[0] if self.dtype is torch.int8 else 0
        return math.prod(self.shape) * self.dtype.itemsize + scales

    def pack(self) -> bytes:
        """The 48 bytes."""
        padding = (0,) * (MAX_AXES - len(self.shape))
        return _HEADER.pack(
            MAGIC,
            VERSION,
            self.kind,
            0 if self.dtype is None else _CODES[self.dtype],
            self.round,
            self.client,
            self.step,
            self.channels_last,
            len(self.shape),
            0,
            *self.shape,
            *padding,
            self.size,
        )


def unpack(message: bytes) -> Header:
    """Read a header; whatever is not exactly one is rejected. The meaning is checked by the caller."""
    if len(message) != HEADER_BYTES:
        raise Rejection(Reason.MALFORMED, f"A header has {HEADER_BYTES} bytes, this one {len(message)}.")
    magic, version, kind, code, number, client, step, order, axes, zero, *rest = _HEADER.unpack(message)
    if magic != MAGIC:
        raise Rejection(Reason.MALFORMED, "This is not a frame of the protocol.")
    if version != VERSION:
        raise Rejection(
            Reason.VERSION, f"The frame has version {version} of the protocol, but this is {VERSION}."
        )
    shape, size = tuple(rest[:MAX_AXES]), rest[MAX_AXES]
    if kind not in Kind.__members__.values() or order > 1 or axes > MAX_AXES or zero or any(shape[axes:]):
        raise Rejection(Reason.MALFORMED, "A field of the header has no meaning.")
    if (kind in _TENSORS) != bool(axes) or (order and axes != MAX_AXES):
        raise Rejection(Reason.MALFORMED, "The header of this kind of frame does not look like that.")
    if code not in (_DTYPES if axes else (0,)):
        raise Rejection(Reason.DTYPE, "There is no such number format.")
    if code == _CODES[torch.int8] and kind not in _AT_CUT:
        raise Rejection(Reason.DTYPE, "Logits and their gradients do not travel in eight bits.")
    header = Header(Kind(kind), number, client, step, _DTYPES.get(code), bool(order), shape[:axes])
    if size != header.size:
        raise Rejection(
            Reason.SIZE, f"The header announces {size} bytes, but its shape and format need {header.size}."
        )
    return header


def hello(ticket: bytes, *, round_number: int, client: int, answers: int) -> bytes:
    """The first message of a stream: who wants to go on where, and the ticket that allows it."""
    return Header(Kind.HELLO, round_number, client, answers).pack() + ticket


def read_hello(message: bytes) -> tuple[Header, bytes]:
    """The header and the ticket of a first message."""
    if len(message) != HEADER_BYTES + TICKET_BYTES:
        raise Rejection(
            Reason.MALFORMED, f"A HELLO has {HEADER_BYTES + TICKET_BYTES} bytes, this message {len(message)}."
        )
    header = unpack(message[:HEADER_BYTES])
    if header.kind is not Kind.HELLO:
        raise Rejection(Reason.ORDER, f"A stream begins with a HELLO, not with {header.kind.name}.")
    return header, message[HEADER_BYTES:]


def frame(
    kind: Kind,
    values: Tensor,
    *,
    round_number: int,
    client: int,
    step: int,
    wire: Wire = "float32",
) -> Iterator[bytes]:
    """The messages of one tensor: its header, then its numbers in chunks.

    What lies at the cut is narrowed to the format of the `wire`: to bfloat16 chunk by chunk, while the ones
    before are already on their way.
    """
    values = values.detach().cpu()
    dtype = _NARROW.get(wire, values.dtype) if kind in _AT_CUT else values.dtype
    yield Header(
        kind, round_number, client, step, dtype, _is_channels_last(values), tuple(values.shape)
    ).pack()
    numbers = _in_memory_order(values)
    if dtype is torch.int8:
        yield from _cut(_quantised(numbers.view(len(values), -1)))
    elif dtype is numbers.dtype:
        yield from _cut(memoryview(numbers.view(torch.uint8).numpy()))  # type: ignore[arg-type]
    else:
        yield from _narrowed(numbers)


def _cut(content: memoryview) -> Iterator[bytes]:
    for start in range(0, len(content), CHUNK_BYTES):
        yield bytes(content[start : start + CHUNK_BYTES])


def _narrowed(numbers: Tensor) -> Iterator[bytes]:
    """As bfloat16, through one buffer."""
    buffer = torch.empty(CHUNK_BYTES // torch.bfloat16.itemsize, dtype=torch.bfloat16)
    blocks = buffer.split(_BLOCK)
    for part in numbers.split(len(buffer)):
        for block, source in zip(blocks, part.split(_BLOCK), strict=False):
            block[: len(source)].copy_(source)
        yield buffer[: len(part)].view(torch.uint8).numpy().tobytes()


def _quantised(samples: Tensor) -> memoryview:
    """Scales, then bytes: the largest number of each row of (N, D) becomes 127 or -127.

    A sample that holds NaN or infinity gets such a scale, which the other end refuses.
    """
    samples = samples.float()
    scales = samples.abs().amax(1, keepdim=True) / 127
    steps = torch.where(scales > 0, samples / scales, 0.0).round_().clamp_(-127, 127)
    packed = torch.cat((scales.view(torch.uint8).flatten(), steps.to(torch.int8).view(torch.uint8).flatten()))
    return memoryview(packed.numpy())  # type: ignore[arg-type]


class Assembly:
    """A tensor on its way in: takes chunks of the right length until it is whole.

    With `widen`, narrow formats become float32, bfloat16 chunk by chunk, while the next ones are still on
    their way; without, eight bits become bfloat16. With `finite`, NaN and infinity are refused as they come.
    """

    def __init__(self, header: Header, *, widen: bool = False, finite: bool = False) -> None:
        assert header.dtype is not None
        self._header = header
        self._widens = widen and header.dtype is torch.bfloat16
        self._target = torch.float32 if widen else torch.bfloat16
        self._finite = finite
        eight = header.dtype is torch.int8
        self._numbers = torch.empty(
            header.size if eight else math.prod(header.shape),
            dtype=torch.uint8 if eight else torch.float32 if self._widens else header.dtype,
        )
        self._bytes: npt.NDArray[np.uint8] = self._numbers.view(torch.uint8).numpy()
        self._filled = 0

    @property
    def complete(self) -> bool:
        """Whether nothing is missing."""
        return self._filled == self._header.size

    def add(self, chunk: bytes) -> None:
        """Take the next chunk."""
        wanted = min(CHUNK_BYTES, self._header.size - self._filled)
        if len(chunk) != wanted:
            raise Rejection(Reason.SIZE, f"The next chunk must have {wanted} bytes, but it has {len(chunk)}.")
        end = self._filled + wanted
        # In numpy, because torch would wake its threads for each chunk.
        came = np.frombuffer(chunk, np.uint8)
        if self._finite and self._header.dtype is not torch.int8:
            _check_bits(came, self._header.dtype)
        if self._widens:
            # A bfloat16 is the upper half of a float32. Two operations, because a shift that widens as well
            # goes through a small buffer and takes twice as long.
            words = self._bytes[2 * self._filled : 2 * end].view(np.uint32)
            words[:] = came.view("<u2")
            words <<= 16
        else:
            self._bytes[self._filled : end] = came
        self._filled = end

    def tensor(self) -> Tensor:
        """The whole tensor, in the memory order of the sender."""
        assert self.complete
        numbers = self._dequantised() if self._header.dtype is torch.int8 else self._numbers
        if self._header.channels_last:
            n, c, h, w = self._header.shape
            return numbers.view(n, h, w, c).permute(0, 3, 1, 2)
        return numbers.view(self._header.shape)

    def _dequantised(self) -> Tensor:
        count = self._header.shape[0]
        scales, steps = self._numbers.split([_SCALE_BYTES * count, math.prod(self._header.shape)])
        # A copy, as the bytes of the numbers need not begin where a float may.
        factors = scales.clone().view(torch.float32)[:, None]
        # No matter who sends them: with such a scale nothing can be computed. NaN is in no interval.
        largest = torch.finfo(self._target).max
        if not bool(((factors >= 0) & (factors <= largest / 127)).all()):
            raise Rejection(Reason.VALUES, "The scale of a sample is negative, too large or no number.")
        numbers = steps.view(torch.int8).view(count, -1) * factors
        if bool((factors > largest / 129).any()):
            # A step of -128, which no honest sender takes, or a last digit would go beyond that.
            numbers.clamp_(-largest, largest)
        return numbers.to(self._target).flatten()


def _check_bits(came: npt.NDArray[np.uint8], dtype: torch.dtype | None) -> None:
    """Refuse NaN and infinity: the exponents of all ones are the largest numbers of either sign, as bits."""
    if dtype is torch.bfloat16:
        positive, negative, bits = 0x7F80, 0xFF80, "2"
    else:
        positive, negative, bits = 0x7F800000, 0xFF800000, "4"
    # Two maxima, because a mask would make two more arrays of this size.
    if came.view("<i" + bits).max(initial=0) >= positive or came.view("<u" + bits).max(initial=0) >= negative:
        raise Rejection(Reason.VALUES, "The tensor holds NaN or infinity.")


def check_finite(values: Tensor) -> None:
    """Reject a tensor that holds NaN or infinity; one pass, nothing of its size is made."""
    low, high = torch.aminmax(_in_memory_order(values))
    if not (math.isfinite(float(low)) and math.isfinite(float(high))):
        raise Rejection(Reason.VALUES, "The tensor holds NaN or infinity.")


def _is_channels_last(values: Tensor) -> bool:
    return (
        values.ndim == MAX_AXES
        and not values.is_contiguous()
        and values.is_contiguous(memory_format=torch.channels_last)
    )


def _in_memory_order(values: Tensor) -> Tensor:
    """All numbers in one row, without a copy if the tensor lies in one of the two usual orders."""
    return (values.permute(0, 2, 3, 1) if _is_channels_last(values) else values.contiguous()).flatten()
