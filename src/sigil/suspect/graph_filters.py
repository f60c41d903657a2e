"""The filters of an ONNX graph: what its linear parts do to an impulse, whatever they are written as.

A convolution may come with a kernel that is padded with zeros, as two over half of the channels, transposed,
with weights that are computed from the input, behind layers that do nothing. What it does stays the same. So
the graph is not searched for operators: a tensor belongs to a linear part if it answers to the sum of two
changes with the sum of its answers. Where that ends, behind a rectifier in whatever form, a new part begins
at a *base*. Changes of a base that is never negative are positive, so that rectifiers which do nothing are
no end. Each part is then shown one impulse per channel of its bases.

Layers that follow each other without a rectifier are one part. For these, the weights of convolutions are
taken from the graph as well, as far as they follow from constants.

It is bounded: in the number of filters, of their numbers, and in time. What is beyond is left out.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import onnx
from onnx import ModelProto, NodeProto, TensorProto, ValueInfoProto

from sigil.errors import SuspectError

MOST_FILTERS: Final = 256
"""Of either kind."""
MOST_NUMBERS: Final = 1 << 26
"""Of all filters together; what comes after is left out."""
WINDOW: Final = 64
"""Tensors that are looked at together."""
REACH: Final = 3
"""Positions to either side that a kernel is looked at: 7 by 7."""
LINEAR: Final = 1e-2
"""The share of an answer by which the answer to a sum may differ from the sum of answers."""
IMPULSES: Final = 1 << 22
"""Numbers of the impulses that are shown at once."""

Floats = npt.NDArray[np.float32]
Session = Any
Open = Callable[[bytes], Session]
"""Makes a graph ready to run; raises SuspectError for one that does not run."""


def convolution_filters(part: ModelProto, open_session: Open) -> list[Floats]:
    """The weights (outputs, inputs, height, width) of the convolutions of a checked graph, as float32.

    Those that depend on the input, or that cannot be computed, are left out.
    """
    names = [node.input[1] for node in part.graph.node if node.op_type == "Conv" and len(node.input) > 1]
    known = {weights.name: weights for weights in part.graph.initializer}
    values = _computed(part, [name for name in dict.fromkeys(names) if name not in known], open_session)
    found: list[Floats] = []
    numbers = 0
    for name in names[:MOST_FILTERS]:
        weight = onnx.numpy_helper.to_array(known[name]) if name in known else values.get(name)
        if weight is None or weight.ndim != 4 or weight.dtype.kind != "f":
            continue
        numbers += weight.size
        if numbers > MOST_NUMBERS:
            break
        with np.errstate(over="ignore"):
            found.append(np.ascontiguousarray(weight, np.float32))
    return found


def responses(part: ModelProto, open_session: Open, shape: Sequence[int], deadline: float) -> list[Floats]:
    """What each linear part of a checked graph does to impulses, as filters, in the order of computing.

    ``shape`` is that of a batch of inputs, ``deadline`` a time of ``time.monotonic``.
    """
    found: list[Floats] = []
    numbers = 0
    try:
        for filters in _Parts(part, open_session, shape, deadline).filters():
            numbers += filters.size
            if len(found) == MOST_FILTERS or numbers > MOST_NUMBERS:
                break
            found.append(filters)
    except SuspectError:
        pass  # what was found until then counts
    return found


class _Parts:
    """The tensors of a graph: which are bases, which belong to linear parts, and what they depend on."""

    def __init__(self, part: ModelProto, open_session: Open, shape: Sequence[int], deadline: float) -> None:
        self.part, self.open, self.deadline = part, open_session, deadline
        entry = part.graph.input[0]
        self.dtypes = {entry.name: entry.type.tensor_type.elem_type}
        self.producers = {name: node for node in part.graph.node for name in node.output if name}
        self.weights = {weights.name: weights for weights in part.graph.initializer}
        self.random = np.random.default_rng(0)
        # What each base is at some input, and which bases each tensor of a linear part depends on.
        self.values = {entry.name: self.random.standard_normal(shape)}
        self.bases: dict[str, tuple[str, ...]] = {entry.name: (entry.name,)}
        self.seen: set[tuple[str, str]] = set()

    def filters(self) -> Iterable[Floats]:
        """Go through the graph and yield the filters of each part that ends."""
        names = [name for node in self.part.graph.node for name in node.output if name]
        variable = self._variable()
        waiting = [name for name in names if name in variable]
        self.bases |= {name: () for name in names if name not in variable}
        last = self.part.graph.output[0].name
        while waiting and time.monotonic() < self.deadline:
            left = []
            for name, ends in self._sweep(waiting[:WINDOW]):
                if ends is None:
                    left.append(name)
                    continue
                for end in dict.fromkeys(ends):
                    yield from self._responses(end)
                if name == last and not ends:
                    yield from self._responses(name)
            if len(left) == len(waiting[:WINDOW]):
                return
            waiting = left + waiting[WINDOW:]

    def _variable(self) -> set[str]:
        """The tensors that depend on the input of the graph."""
        found = set(self.values)
        for node in self.part.graph.node:
            if any(source in found for source in node.input):
                found.update(name for name in node.output if name)
        return found

    def _sweep(self, names: Sequence[str]) -> list[tuple[str, tuple[str, ...] | None]]:
        """Sort these tensors, in the order of computing, as far as what they depend on is sorted.

        With each goes None if it must wait, and else the tensors in which it is not linear: none if it
        belongs to a linear part, and if it is a base, what its node reads.
        """
        session, bases = self._session(names)
        start = {base: self.values[base] for base in bases}
        changes = [{base: self._change(start[base]) for base in bases} for _ in range(2)]
        points = [
            start,
            {base: start[base] + changes[0][base] for base in bases},
            {base: start[base] + changes[1][base] for base in bases},
            {base: start[base] + changes[0][base] + changes[1][base] for base in bases},
        ]
        answers = [self._run(session, point) for point in points]
        sorted_now: list[tuple[str, tuple[str, ...] | None]] = []
        for name, *four in zip(names, *answers, strict=True):
            sources = [
                source for source in self.producers[name].input if source and source not in self.weights
            ]
            depends = tuple(dict.fromkeys(base for source in sources for base in self.bases.get(source, ())))
            # What follows a base that was found just now was not asked with changes of it.
            if not set(depends) <= set(bases) or any(source not in self.bases for source in sources):
                sorted_now.append((name, None))
                continue
            if four[0].dtype.kind != "f" or _is_linear(*four):
                # What is no floating-point number, as the condition of a choice, is never a base.
                self.bases[name] = depends
                sorted_now.append((name, ()))
                continue
            self.values[name] = np.asarray(four[0], np.float64)
            self.bases[name] = (name,)
            self.dtypes[name] = onnx.helper.np_dtype_to_tensor_dtype(four[0].dtype)
            sorted_now.append((name, tuple(sources)))
        return sorted_now

    def _change(self, values: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
        """A random change of a base, as large as its channels vary, positive if the base is."""
        finite = np.where(np.isfinite(values), values, 0.0)
        axes = tuple(axis for axis in range(values.ndim) if axis != 1)
        size = np.sqrt((finite**2).mean(axes, keepdims=True))
        change = self.random.standard_normal(values.shape) * np.where(size > 0, size, 1.0)
        return np.abs(change) if finite.min(initial=0.0) >= 0 else change

    def _session(self, names: Sequence[str]) -> tuple[Session, tuple[str, ...]]:
        """A graph that computes these tensors from the bases that they need, and which these are."""
        nodes: dict[int, NodeProto] = {}
        bases: dict[str, None] = {}
        weights: dict[str, TensorProto] = {}
        stack, visited = list(names), set()
        first = set(names) - self.values.keys()
        while stack:
            name = stack.pop()
            if name in visited:
                continue
            visited.add(name)
            if name in self.values and name not in first:
                bases[name] = None
            elif name in self.weights:
                weights[name] = self.weights[name]
            elif (node := self.producers.get(name)) is not None:
                nodes[id(node)] = node
                stack += [source for source in node.input if source]
        graph = onnx.helper.make_graph(
            [node for node in self.part.graph.node if id(node) in nodes],
            "part",
            [onnx.helper.make_tensor_value_info(base, self.dtypes[base], None) for base in bases],
            [ValueInfoProto(name=name) for name in names],
            list(weights.values()),
        )
        model = onnx.helper.make_model(
            graph, opset_imports=self.part.opset_import, ir_version=self.part.ir_version
        )
        return self.open(model.SerializeToString()), tuple(bases)

    def _run(self, session: Session, point: dict[str, npt.NDArray[np.float64]]) -> list[Any]:
        if time.monotonic() > self.deadline:
            raise SuspectError("The time for finding filters is over.")
        fed = {
            base: value.astype(onnx.helper.tensor_dtype_to_np_dtype(self.dtypes[base]))
            for base, value in point.items()
        }
        try:
            return list(session.run(None, fed))
        except Exception as error:
            if isinstance(error, MemoryError):
                raise
            raise SuspectError("A part of the graph does not run.") from error

    def _responses(self, end: str) -> Iterable[Floats]:
        """The filters by which a tensor depends on each of its bases."""
        bases = self.bases.get(end, ())
        if end in self.values or not bases:
            return
        session, bases = self._session([end])
        zeros = {base: np.zeros_like(self.values[base]) for base in bases}
        rest = self._run(session, zeros)[0]
        if rest.ndim != 4 or rest.dtype.kind != "f":
            return
        for base in bases:
            if self.values[base].ndim != 4 or (end, base) in self.seen:
                continue
            self.seen.add((end, base))
            filters = _tidied(self._kernels(session, zeros, base, rest))
            if filters is not None:
                yield filters

    def _kernels(
        self, session: Session, zeros: dict[str, npt.NDArray[np.float64]], base: str, rest: Any
    ) -> Floats:
        """The response of a tensor to one impulse per channel of a base, (outputs, inputs, 7, 7)."""
        batch, channels, *sizes = zeros[base].shape
        outputs, ends = rest.shape[1], rest.shape[2:]
        strides = [max(1, round(size / end)) for size, end in zip(sizes, ends, strict=True)]
        # A map that is hardly larger than a kernel shows different taps at different places.
        places = [
            range(size) if size <= 2 * REACH else range(stride * (end // 2), stride * (end // 2) + stride)
            for size, end, stride in zip(sizes, ends, strides, strict=True)
        ]
        shown = [(channel, y, x) for channel in range(channels) for y in places[0] for x in places[1]]
        size = np.abs(self.values[base]).max()
        size = float(size) if np.isfinite(size) and size > 0 else 1.0
        found = np.zeros((outputs, channels, 2 * REACH + 1, 2 * REACH + 1), np.float32)
        for start in range(0, len(shown), batch):
            now = shown[start : start + batch]
            point = dict(zeros)
            point[base] = np.zeros_like(zeros[base])
            for place, (channel, y, x) in enumerate(now):
                point[base][place, channel, y, x] = size
            answer = (self._run(session, point)[0].astype(np.float64) - rest) / size
            for place, (channel, y, x) in enumerate(now):
                for row in _reached(y, strides[0], ends[0]):
                    for column in _reached(x, strides[1], ends[1]):
                        dy, dx = y - row * strides[0] + REACH, x - column * strides[1] + REACH
                        found[:, channel, dy, dx] = answer[place, :, row, column]
        return found


def _reached(place: int, stride: int, end: int) -> range:
    """The outputs whose kernels reach a place of the input, at most REACH to either side."""
    return range(max(0, -((REACH - place) // stride)), min(end, (place + REACH) // stride + 1))


def _is_linear(*answers: Any) -> bool:
    """Whether f(x + a + b) - f(x + a) - f(x + b) + f(x) is nothing beside the changes, channel by channel."""
    first, one, other, both = (np.asarray(answer, np.float64) for answer in answers)
    with np.errstate(all="ignore"):
        rest = np.abs(both - one - other + first)
        change = np.maximum(np.abs(one - first), np.abs(other - first))
    if not (np.isfinite(rest).all() and np.isfinite(change).all()):
        return False
    axes = tuple(axis for axis in range(rest.ndim) if axis != 1) if rest.ndim > 1 else None
    # Rounding is relative to the values, of which the changes may be a small part.
    noise = 1e-5 * np.abs(first).max(axes)
    return bool((rest.max(axes) <= LINEAR * change.max(axes) + noise).all())


def _tidied(kernels: Floats) -> Floats | None:
    """Filters as a convolution would hold them; None if they only pass channels on."""
    kernels = np.where(np.isfinite(kernels), kernels, np.float32(0.0))
    sizes = np.abs(kernels).max((2, 3))
    kernels = kernels[sizes.max(1) > 1e-6 * sizes.max(initial=0.0)]
    if not kernels.size:
        return None
    sizes = np.abs(kernels).max((2, 3))
    largest = np.abs(kernels).max((0, 1))
    known = np.argwhere(largest > 1e-5 * largest.max())
    reach = int(np.abs(known - REACH).max())
    kernels = kernels[:, :, REACH - reach : REACH + reach + 1, REACH - reach : REACH + reach + 1]
    single = (sizes > 1e-4 * sizes.max(1, keepdims=True)).sum(1) == 1
    if single.all() and sizes.shape[1] > 1:
        if reach == 0:
            return None
        # Each channel by itself, as a depthwise convolution has it.
        kernels = kernels[np.arange(len(kernels)), sizes.argmax(1)][:, None]
    return np.ascontiguousarray(kernels, np.float32)


def _computed(part: ModelProto, names: Sequence[str], open_session: Open) -> dict[str, Any]:
    """The values of these tensors, as far as they are computed from constants alone."""
    producers = {name: node for node in part.graph.node for name in node.output}
    constants = {weights.name for weights in part.graph.initializer}
    needed: dict[int, NodeProto] = {}
    wanted = []
    for name in names:
        nodes = _ancestors(name, producers, constants)
        if nodes is not None:
            needed |= nodes
            wanted.append(name)
    if not wanted:
        return {}
    order = [node for node in part.graph.node if id(node) in needed]
    outputs = [ValueInfoProto(name=name) for name in wanted]
    graph = onnx.helper.make_graph(order, "weights", [], outputs, list(part.graph.initializer))
    model = onnx.helper.make_model(graph, opset_imports=part.opset_import, ir_version=part.ir_version)
    try:
        return dict(zip(wanted, open_session(model.SerializeToString()).run(None, {}), strict=True))
    except MemoryError:
        raise
    except Exception:  # a weight that cannot be computed is none
        return {}


def _ancestors(
    name: str, producers: dict[str, NodeProto], constants: set[str]
) -> dict[int, NodeProto] | None:
    """The nodes that a tensor is computed by; None if it depends on the input of the graph."""
    found: dict[int, NodeProto] = {}
    waiting = [name]
    while waiting:
        one = waiting.pop()
        if one in constants or not one:
            continue
        node = producers.get(one)
        if node is None:
            return None
        if id(node) not in found:
            found[id(node)] = node
            waiting += node.input
    return found
