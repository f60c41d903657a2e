"""One suspect's file in a process of its own, with limits on its memory and time.

The process (:mod:`sigil.suspect.examiner`) is given the file and the inputs; it answers with tensors
as raw bytes of a length that was agreed to beforehand. It knows nothing of a key: activations come
back, and what the key makes of them is computed here. However it ends, by itself, by a limit, by an
error or an interrupt on this side, nothing of it remains.
"""

from __future__ import annotations

import json
import math
import os
import select
import signal
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from sigil.errors import ConfigError, SuspectError, shown
from sigil.suspect import examiner, frames
from sigil.suspect.entries import Listed
from sigil.suspect.file import SuspectFile

TIME_LIMIT = 120.0
"""Seconds that the examination of one suspect may take in all, unless told otherwise."""
MEMORY_BYTES = 2 * 1024**3
"""Memory that the examination may take beyond the model's own size."""
MAX_ANSWER_BYTES = 1 << 30

# The runtime of ONNX holds the weights as they came, as its own and as laid out for its kernels.
_COPIES = {"onnx": 4}
_START_SECONDS = 120.0
# What the process holds before it sees the file, 160 MB, and more where libraries are larger.
_START_BYTES = 512 * 1024**2
_TICK_SECONDS = 0.1
_FOREVER = 1e8

_DTYPES = {
    **{"float64": torch.float64, "float32": torch.float32, "float16": torch.float16},
    **{"bfloat16": torch.bfloat16, "int64": torch.int64, "int32": torch.int32, "int16": torch.int16},
    **{"int8": torch.int8, "uint8": torch.uint8, "bool": torch.bool},
    **{"complex64": torch.complex64, "complex128": torch.complex128},
    **{"float8_e4m3fn": torch.float8_e4m3fn, "float8_e4m3fnuz": torch.float8_e4m3fnuz},
    **{"float8_e5m2": torch.float8_e5m2, "float8_e5m2fnuz": torch.float8_e5m2fnuz},
}


def check_time_limit(seconds: float) -> None:
    """Raise unless this is a time that something can take."""
    if not seconds > 0:
        raise ConfigError(f"The time limit is {seconds:g} seconds, but it must be more than 0.")


class Examination:
    """The process that takes one file apart; ``opened`` is what it says of the file.

    ``task`` holds what its format needs to be told; files ``beside`` it hold some of its numbers. Once
    a limit was passed, or the process has ended for another reason, every question gets the same answer.
    """

    def __init__(
        self,
        file: SuspectFile,
        *,
        time_limit: float = TIME_LIMIT,
        beside: Sequence[SuspectFile] = (),
        **task: Any,
    ) -> None:
        check_time_limit(time_limit)
        self.source, self.sha256 = file.path, file.sha256
        self._time_limit, self._left = time_limit, min(time_limit, _FOREVER)
        size = file.size + sum(one.size for one in beside)
        self._memory = MEMORY_BYTES + _COPIES.get(file.format, 1) * size
        self._lock = threading.Lock()
        self._failure: str | None = None
        self._filters: tuple[Tensor, ...] | None = None
        self.unread = 0
        descriptors: list[int] = []
        try:
            descriptors += [one.descriptor() for one in (file, *beside)]
            self._process = _start(descriptors, file.path)
        finally:
            for descriptor in descriptors:
                os.close(descriptor)
        self._finalizer = weakref.finalize(self, _end, self._process, os.getpid())
        self._allowed = self._memory + _START_BYTES
        told = {
            "path": _import_path(),
            "file": descriptors[0],
            "beside": {
                one.path.name: [descriptor, one.size]
                for one, descriptor in zip(beside, descriptors[1:], strict=True)
            },
            "size": file.size,
            "source": str(file.path),
            "format": file.format,
            "memory": self._memory,
        }
        try:
            # Until it is ready it has not touched the file, and a busy machine may be slow to start it.
            self._exchange(task | told, seconds=_START_SECONDS)
            self.opened, _ = self._ask({"do": "open"})
            if not (_is_graph if file.format == "onnx" else _is_index)(self.opened):
                raise self._broken()
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """End the process; no question can be asked any more."""
        self._failure = self._failure or f"The examination of {self.source} is over."
        self._finalizer()

    @property
    def left(self) -> float:
        """What is left of the time limit, in seconds."""
        return self._left

    def listed(self) -> list[Listed]:
        """The tensors of the file that may be a model's."""
        return [
            Listed(name, dtype, tuple(shape), *rest) for name, dtype, shape, *rest in self.opened["listed"]
        ]

    def tensor(self, listed: Listed) -> Tensor:
        """One tensor of the file."""
        if listed.dtype not in _DTYPES and listed.sound:
            raise SuspectError(
                f"{self.source} holds {shown(listed.name)} as {shown(listed.dtype)}: convert the model to "
                "floating point."
            )
        dtype = _DTYPES.get(listed.dtype, torch.uint8)
        size = math.prod(listed.shape) * dtype.itemsize
        # Of one that is not sound, only the reason is awaited.
        _, data = self._ask({"do": "read", "number": listed.number}, most=size if listed.sound else 0)
        if len(data) != size:
            raise self._broken()
        return _tensor(data, dtype, list(listed.shape))

    def run(self, batch: Tensor) -> Tensor:
        """The activations of a batch."""
        images = batch.detach().to("cpu", torch.float32).contiguous()
        payload = images.numpy().data.cast("B") if images.numel() else memoryview(b"")
        header, data = self._ask(
            {"do": "run", "shape": list(images.shape)}, payload=payload, most=MAX_ANSWER_BYTES
        )
        shape: Any = header.get("shape")
        if not _is_shape(shape) or math.prod(shape) * 4 != len(data):
            raise self._broken()
        return _tensor(data, torch.float32, shape)

    def filters(self) -> tuple[Tensor, ...]:
        """The filters of a graph, in the order of computing: found once, when they are first asked for."""
        if self._filters is None:
            self._filters = self._found_filters()
        return self._filters

    def _found_filters(self) -> tuple[Tensor, ...]:
        header, _ = self._ask({"do": "filters"})
        shapes: Any = header.get("filters")
        self.unread = header.get("left", -1)
        if (
            type(self.unread) is not int
            or self.unread < 0
            or not isinstance(shapes, list)
            or not all(_is_shape(one) and len(one) == 4 for one in shapes)
            or 4 * sum(map(math.prod, shapes)) > MAX_ANSWER_BYTES
        ):
            raise self._broken()
        found = []
        for place, shape in enumerate(shapes):
            size = 4 * math.prod(shape)
            _, data = self._ask({"do": "filter", "place": place}, most=size)
            if len(data) != size:
                raise self._broken()
            found.append(_tensor(data, torch.float32, shape))
        return tuple(found)

    def _ask(
        self, request: dict[str, Any], *, payload: memoryview | None = None, most: int = 0
    ) -> tuple[dict[str, Any], bytearray]:
        """Ask and wait within what is left of the time; raise what the answer says was wrong."""
        began = time.monotonic()
        try:
            header, data = self._exchange(
                request | {"seconds": self._left}, payload=payload, most=most, seconds=self._left
            )
        finally:
            self._left = max(0.0, self._left - (time.monotonic() - began))
        if "refused" in header:
            raise SuspectError(_one_line(header["refused"]))
        if "memory" in header:
            raise self._over_memory()
        return header, data

    def _exchange(
        self,
        header: dict[str, Any],
        *,
        payload: memoryview | None = None,
        most: int = 0,
        seconds: float,
    ) -> tuple[dict[str, Any], bytearray]:
        with self._lock:
            if self._failure is not None:
                raise SuspectError(self._failure)
            watch = _Watch(self, seconds)
            try:
                self._send(frames.packed(header, 0 if payload is None else payload.nbytes), watch)
                if payload is not None:
                    self._send(payload, watch)
                lengths = frames.PREFIX.unpack(self._receive(frames.PREFIX.size, watch))
                if lengths[0] > frames.MAX_HEADER_BYTES:
                    raise self._broken()
                answer = json.loads(self._receive(lengths[0], watch))
                if not isinstance(answer, dict):
                    raise self._broken()
                if lengths[1] > most:
                    raise SuspectError(
                        f"{self.source} answers with {lengths[1]:,} bytes, more than the limit of {most:,}."
                    )
                return answer, self._receive(lengths[1], watch)
            except (ValueError, RecursionError) as error:
                raise self._failed(self._broken()) from error
            except SuspectError as error:
                raise self._failed(error) from error.__cause__
            except BaseException:
                # An interrupt in the middle of a frame: what comes next could not be understood.
                self.close()
                raise

    def _failed(self, error: SuspectError) -> SuspectError:
        self._failure = str(error)
        self._finalizer()
        return error

    def _send(self, data: bytes | memoryview, watch: _Watch) -> None:
        pipe, left = self._process.stdin, memoryview(data)
        assert pipe is not None
        while left:
            watch.wait(pipe.fileno(), select.POLLOUT)
            try:
                left = left[os.write(pipe.fileno(), left[: 1 << 20]) :]
            except BlockingIOError:
                continue
            except BrokenPipeError:
                raise self._died() from None

    def _receive(self, length: int, watch: _Watch) -> bytearray:
        pipe, data, got = self._process.stdout, bytearray(length), 0
        assert pipe is not None
        view = memoryview(data)
        while got < length:
            watch.wait(pipe.fileno(), select.POLLIN)
            try:
                count = os.readv(pipe.fileno(), [view[got:]])
            except BlockingIOError:
                continue
            if not count:
                raise self._died()
            got += count
        return data

    def _died(self) -> SuspectError:
        try:
            status = self._process.wait(timeout=10)
        except subprocess.TimeoutExpired:
            return self._broken()
        ended = (getattr(signal, name, None) for name in ("SIGALRM", "SIGXCPU"))
        if status in [-number for number in ended if number is not None]:
            return self._over_time()
        how = f"signal {-status}" if status < 0 else f"status {status}"
        return SuspectError(
            f"{self.source} made the process that examined it end with {how}: it is damaged or hostile, or "
            f"takes more than the {_gigabytes(self._memory)} of memory that it may."
        )

    def _broken(self) -> SuspectError:
        return SuspectError(f"{self.source} made the process that examined it give an answer that is none.")

    def _over_time(self) -> SuspectError:
        return SuspectError(
            f"{self.source} was not examined within the time limit of {self._time_limit:g} seconds: it is "
            "hostile, or so large that it needs more (--time-limit, time_limit)."
        )

    def _over_memory(self) -> SuspectError:
        return SuspectError(
            f"{self.source} takes more than the {_gigabytes(self._memory)} of memory that a model of its "
            "size may, and was not examined: it is damaged or hostile, or its inputs are too large."
        )


class _Watch:
    """Waits for a pipe, and raises when the time is over or the process has grown too large."""

    def __init__(self, examination: Examination, seconds: float) -> None:
        self._examination = examination
        self._deadline = time.monotonic() + seconds
        self._next_look = 0.0

    def wait(self, descriptor: int, event: int) -> None:
        """Return once the descriptor is ready."""
        poll = select.poll()
        poll.register(descriptor, event)
        while True:
            now = time.monotonic()
            if now >= self._deadline:
                raise self._examination._over_time()
            if now >= self._next_look:
                self._next_look = now + _TICK_SECONDS
                resident = _resident(self._examination._process.pid)
                if resident is not None and resident > self._examination._allowed:
                    raise self._examination._over_memory()
            if poll.poll(1000 * min(_TICK_SECONDS, self._deadline - now)):
                return


def _start(descriptors: Sequence[int], source: Path) -> subprocess.Popen[bytes]:
    """Start the examiner: no shell, no environment, no site configuration, a session of its own."""
    kept = ("LD_LIBRARY_PATH", "DYLD_LIBRARY_PATH")
    environment = {name: os.environ[name] for name in kept if name in os.environ}
    # It computes with the threads that it is told to, and others only cost memory.
    environment |= dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")
    try:
        process = subprocess.Popen(
            [sys.executable, "-I", "-S", str(Path(examiner.__file__).resolve())],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env=environment,
            cwd="/",
            pass_fds=descriptors,
            start_new_session=True,
            bufsize=0,
        )
    except OSError as error:
        raise SuspectError(
            f"{source} is examined in a process of its own, which cannot be started: {error.strerror}."
        ) from error
    for pipe in (process.stdin, process.stdout):
        assert pipe is not None
        os.set_blocking(pipe.fileno(), False)
    return process


def _import_path() -> list[str]:
    """Where modules are found, without the current directory, which may be the adversary's."""
    package = str(Path(examiner.__file__).resolve().parents[2])
    return [package, *(entry for entry in sys.path if os.path.isabs(entry) and entry != package)]


def _end(process: subprocess.Popen[bytes], owner: int) -> None:
    """End the process for good; a fork of this one leaves it alone."""
    if os.getpid() != owner:
        return
    process.kill()
    for pipe in (process.stdin, process.stdout):
        if pipe is not None:
            pipe.close()
    process.wait()


def _resident(pid: int) -> int | None:
    """Bytes of memory that a process holds, None if it cannot be told."""
    try:
        pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
        return pages * os.sysconf("SC_PAGE_SIZE")
    except (OSError, IndexError, ValueError):
        pass
    try:
        told = subprocess.run(
            ["ps", "-o", "rss=", "-p", str(pid)], capture_output=True, timeout=5, check=True
        )
        return int(told.stdout) * 1024
    except (OSError, ValueError, subprocess.SubprocessError):
        return None


def _tensor(data: bytearray, dtype: torch.dtype, shape: list[int]) -> Tensor:
    if not data:
        return torch.empty(tuple(shape), dtype=dtype)
    return torch.frombuffer(data, dtype=dtype).reshape(tuple(shape))


def _is_shape(value: object) -> bool:
    return isinstance(value, list) and len(value) <= 64 and all(type(n) is int and n >= 0 for n in value)


def _is_graph(value: dict[str, Any]) -> bool:
    """Whether this is what the process may say of a graph."""
    shape = value.get("input_shape")
    needs = value.get("needs", [])
    return (
        isinstance(value.get("tensor"), str)
        and (shape is None or (_is_shape(shape) and 0 not in shape))
        and isinstance(needs, list)
        and all(isinstance(name, str) for name in needs)
    )


def _is_index(value: dict[str, Any]) -> bool:
    """Whether this is what the process may say of a file of weights."""
    listed, few = value.get("listed"), value.get("few")
    return (
        isinstance(value.get("kind"), str)
        and isinstance(value.get("description"), str | None)
        and all(type(value.get(name)) is int for name in ("left", "count"))
        and isinstance(few, list)
        and all(isinstance(name, str) for name in few)
        and isinstance(listed, list)
        and all(_is_listed(each) for each in listed)
    )


def _is_listed(value: object) -> bool:
    if not isinstance(value, list) or len(value) != 6:
        return False
    name, dtype, shape, number, *flags = value
    plain = isinstance(name, str) and isinstance(dtype, str) and type(number) is int
    return plain and all(type(flag) is bool for flag in flags) and _is_shape(shape)


def _one_line(text: object) -> str:
    return "".join(sign if sign.isprintable() else "?" for sign in str(text)[:2000])


def _gigabytes(size: int) -> str:
    return f"{size / 1024**3:.1f} GB"
