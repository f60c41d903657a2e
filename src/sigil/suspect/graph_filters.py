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
from collections.abc import Callable, Iterable, Mapping, Sequence
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
MOST_PRODUCTS: Final = 1 << 20
"""Of the numbers that two vectors have: larger ones are maps in one row."""
REACH: Final = 3
"""Positions to either side that a kernel is looked at: 7 by 7."""
LINEAR: Final = 1e-2
"""The share of an answer by which the answer to a sum may differ from the sum of answers."""
ROUNDING: Final = 1e-6
"""The share of an answer to nothing that an answer to an impulse may differ by chance."""
LONGEST_CHAIN: Final = 12
"""Tensors behind a convolution that are looked at for its sign."""
BALANCING: Final = 4
"""How often rows and columns are divided by their largest."""

Floats = npt.NDArray[np.float32]
Session = Any
Open = Callable[[bytes], Session]
"""Makes a graph ready to run; raises SuspectError for one that does not run."""


def convolution_filters(part: ModelProto, open_session: Open) -> list[Floats]:
    """The weights (outputs, inputs, height, width) of the convolutions of a checked graph, as float32.

    Those that depend on the input, or that cannot be computed, are left out. Filters have the sign with which
    what follows them channel by channel, as a batch norm, passes them on.
    """
    nodes = [node for node in part.graph.node if node.op_type == "Conv" and len(node.input) > 1]
    known = {weights.name: weights for weights in part.graph.initializer}
    behind = _Behind(part, open_session)
    values = behind.computed(node.input[1] for node in nodes if node.input[1] not in known)
    found: list[Floats] = []
    numbers = 0
    for node in nodes[:MOST_FILTERS]:
        name = node.input[1]
        weight = onnx.numpy_helper.to_array(known[name]) if name in known else values.get(name)
        if weight is None or weight.ndim != 4 or weight.dtype.kind != "f":
            continue
        numbers += weight.size
        if numbers > MOST_NUMBERS:
            break
        with np.errstate(over="ignore"):
            filters = np.ascontiguousarray(weight, np.float32)
        signs = behind.signs(node.output[0], weight)
        found.append(filters * signs[:, None, None, None].astype(np.float32))
    return found


class _Cutter:
    """Opens parts of a graph as graphs of their own."""

    def __init__(self, part: ModelProto, open_session: Open) -> None:
        self.part, self.open = part, open_session
        self.weights = {weights.name: weights for weights in part.graph.initializer}
        self.producers = {name: node for node in part.graph.node for name in node.output if name}

    def session(
        self, outputs: Sequence[str], inputs: Mapping[str, int], *, most: int | None = None
    ) -> tuple[Session, tuple[str, ...]]:
        """A graph that computes these tensors, and which of the ``inputs`` (names and formats) it takes.

        It may have at most ``most`` nodes.
        """
        nodes: dict[int, NodeProto] = {}
        used: dict[str, None] = {}
        weights: dict[str, TensorProto] = {}
        waiting, visited = list(outputs), set()
        while waiting:
            name = waiting.pop()
            if name in visited:
                continue
            visited.add(name)
            if name in inputs:
                used[name] = None
            elif name in self.weights:
                weights[name] = self.weights[name]
            elif (node := self.producers.get(name)) is not None:
                nodes[id(node)] = node
                if most is not None and len(nodes) > most:
                    raise SuspectError("More is computed than is looked at.")
                waiting += [source for source in node.input if source]
        graph = onnx.helper.make_graph(
            [node for node in self.part.graph.node if id(node) in nodes],
            "part",
            [onnx.helper.make_tensor_value_info(name, inputs[name], None) for name in used],
            [ValueInfoProto(name=name) for name in outputs],
            list(weights.values()),
        )
        model = onnx.helper.make_model(
            graph, opset_imports=self.part.opset_import, ir_version=self.part.ir_version
        )
        return self.open(model.SerializeToString()), tuple(used)


class _Behind(_Cutter):
    """What is computed from constants, and what is done to channels before anything reads them together."""

    def __init__(self, part: ModelProto, open_session: Open) -> None:
        super().__init__(part, open_session)
        self.readers: dict[str, list[NodeProto]] = {}
        self.fixed = set(self.weights)
        for node in part.graph.node:  # in the order of computing
            for name in node.input:
                self.readers.setdefault(name, []).append(node)
            if all(not name or name in self.fixed for name in node.input):
                self.fixed.update(node.output)

    def computed(self, names: Iterable[str]) -> dict[str, Any]:
        """The values of these tensors, as far as they are computed from constants alone."""
        wanted = [name for name in dict.fromkeys(names) if name in self.fixed]
        if not wanted:
            return {}
        try:
            return dict(zip(wanted, self.session(wanted, {})[0].run(None, {}), strict=True))
        except MemoryError:
            raise
        except Exception:  # a weight that cannot be computed is none
            return {}

    def signs(self, name: str, weight: Floats) -> npt.NDArray[Any]:
        """The signs by which the outputs of a convolution are multiplied."""
        found = np.ones(len(weight))
        chain: list[str] = []
        last = name
        while len(chain) < LONGEST_CHAIN and len(self.readers.get(last, ())) == 1:
            node = self.readers[last][0]
            others = (other for other in node.input if other and other != last)
            if (
                len(node.output) != 1
                or node.op_type == "Conv"
                or not all(one in self.fixed for one in others)
            ):
                break
            last = node.output[0]
            chain.append(last)
        change = np.random.default_rng(0).standard_normal((1, len(weight), 4, 4)).astype(weight.dtype)
        while chain:
            try:
                dtype = onnx.helper.np_dtype_to_tensor_dtype(weight.dtype)
                session, _ = self.session(chain, {name: dtype}, most=LONGEST_CHAIN**2)
                rest, answers = session.run(None, {name: 0 * change}), session.run(None, {name: change})
            except MemoryError:
                raise
            except Exception:  # what does not run for maps of this size is left out
                chain.pop()
                continue
            for answer, nothing in zip(answers, rest, strict=True):
                factors = _factors(change, answer, nothing)
                if factors is None:
                    break
                found = np.where(factors < 0, -1.0, 1.0)
            break
        return found


def _factors(change: Any, answer: Any, rest: Any) -> npt.NDArray[Any] | None:
    """By how much each channel was multiplied; None if that is not all that was done."""
    if answer.shape != change.shape or change.ndim != 4 or answer.dtype.kind != "f":
        return None
    with np.errstate(all="ignore"):
        quotients = (answer.astype(np.float64) - rest) / change
        factors = np.median(quotients, axis=(0, 2, 3))
        off = np.abs(answer - rest - factors[:, None, None] * change).max((0, 2, 3))
        allowed = LINEAR * np.abs(factors) + ROUNDING * np.abs(rest).max((0, 2, 3))
    known = np.isfinite(factors) & np.isfinite(off)
    return np.where(known, factors, 1.0) if (off <= allowed)[known].all() and known.any() else None


def responses(
    part: ModelProto, open_session: Open, shape: Sequence[int], deadline: float
) -> tuple[list[Floats], int]:
    """What each linear part of a checked graph does to impulses, as filters, in the order of computing.

    ``shape`` is that of a batch of inputs, ``deadline`` a time of ``time.monotonic``. With them comes the
    number of tensors that were not looked at.
    """
    found: list[Floats] = []
    numbers = 0
    parts = _Parts(part, open_session, shape, deadline)
    try:
        for filters in parts.filters():
            numbers += filters.size
            if len(found) == MOST_FILTERS or numbers > MOST_NUMBERS:
                break
            found.append(filters)
    except MemoryError:
        raise
    except Exception:
        pass  # a graph may be odd in any way, or time is over: what was found until then counts
    return found, len(parts.waiting)


class _Parts(_Cutter):
    """The tensors of a graph: which are bases, which belong to linear parts, and what they depend on."""

    def __init__(self, part: ModelProto, open_session: Open, shape: Sequence[int], deadline: float) -> None:
        super().__init__(part, open_session)
        self.deadline = deadline
        entry = part.graph.input[0]
        self.dtypes = {entry.name: entry.type.tensor_type.elem_type}
        self.random = np.random.default_rng(0)
        # What each base is at some input, and which bases each tensor of a linear part depends on.
        self.values = {entry.name: self.random.standard_normal(shape)}
        self.batch, _, *self.image = (*shape, 1, 1)[:4]
        self.bases: dict[str, tuple[str, ...]] = {entry.name: (entry.name,)}
        self.seen: set[tuple[str, str]] = set()
        self.moved_back: set[str] = set()
        variable = self._variable()
        names = [name for node in part.graph.node for name in node.output if name]
        self.waiting = [name for name in names if name in variable]
        self.bases |= {name: () for name in names if name not in variable}

    def filters(self) -> Iterable[Floats]:
        """Go through the graph and yield the filters of each part that ends."""
        last = self.part.graph.output[0].name
        moved: list[tuple[str, str, list[str]]] = []
        while self.waiting and time.monotonic() < self.deadline:
            left = []
            for name, ends in self._sweep(self.waiting[:WINDOW]):
                if ends is None:
                    left.append(name)
                    continue
                for end in dict.fromkeys(ends):
                    origins = self._moved(end)
                    if origins == [end]:
                        yield from self._responses(end)
                    else:
                        moved.append((name, end, origins))
                if name == last and not ends:
                    yield from self._responses(name)
            if len(left) == len(self.waiting[:WINDOW]):
                break
            self.waiting = left + self.waiting[WINDOW:]
        # What was moved is shown as it was before, if it was moved back behind the rectifier.
        shown = [origins if base in self.moved_back else [end] for base, end, origins in moved]
        for end in [*(one[0] for one in shown), *(part for one in shown for part in one[1:])]:
            yield from self._responses(end)

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
        session, bases = self.session(names, self.dtypes)
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
            # What is no floating-point number, as the condition of a choice or a list, is never a base.
            floats = isinstance(four[0], np.ndarray) and four[0].dtype.kind == "f"
            linear = not floats or _is_linear(*four)
            if not floats and all(np.array_equal(four[0], one) for one in four):
                depends = ()  # as the shape of a tensor
            sorted_now.append((name, () if linear else tuple(sources)))
            if linear and not (floats and self._is_rearranged(four[0], depends)):
                self.bases[name] = depends
                continue
            if linear:
                self.moved_back.update(depends)
            self.values[name] = np.asarray(four[0], np.float64)
            self.bases[name] = (name,)
            self.dtypes[name] = onnx.helper.np_dtype_to_tensor_dtype(four[0].dtype)
        return sorted_now

    def _is_rearranged(self, answer: Any, depends: Sequence[str]) -> bool:
        """Whether this has the numbers of its bases in other places, or in a shape that has maps."""
        if not depends or self._maps(answer) is None:
            return False
        bases = np.concatenate([self.values[base].ravel() for base in depends])
        return answer.size <= bases.size and np.array_equal(
            np.unique(bases), np.unique(answer.astype(np.float64))
        )

    def _maps(self, values: Any) -> Any:
        """A tensor as (n, channels, height, width), wherever its channels are; None if it has no maps.

        Its maps have the proportions of the images, or are such maps in one row.
        """
        height, width = self.image
        if values.ndim < 3 or len(values) != self.batch:
            return None
        if values.ndim == 3:
            parts = [2**step for step in range(6) if height % 2**step == width % 2**step == 0]
            sizes = {height * width // part**2: (height // part, width // part) for part in parts}
            for axis in (2, 1):
                if values.shape[axis] in sizes:
                    ends = sizes[values.shape[axis]]
                    shape = (*values.shape[:axis], *ends, *values.shape[axis + 1 :])
                    return self._maps(values.reshape(shape))
        if values.ndim != 4:
            return None
        rows, columns, others = values.shape[1:]
        last = rows * width == columns * height and columns * width != others * height
        return np.moveaxis(values, 3, 1) if last else values

    def _change(self, values: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
        """A random change of a base, as large as its channels vary, positive if the base is."""
        change = self.random.standard_normal(values.shape) * _along_channels(_sizes(values), values.ndim)
        return np.abs(change) if np.min(values, where=np.isfinite(values), initial=0.0) >= 0 else change

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

    def _moved(self, end: str, chain: int = 0) -> list[str]:
        """Where the numbers of a tensor were computed, if it only puts them in other places; else itself.

        First the whole and then the tensor, if it has only some of them.
        """
        node = None if end in self.values or chain > LONGEST_CHAIN else self.producers.get(end)
        read = [name for name in node.input if self.bases.get(name)] if node is not None else []
        sources = [name for name in read if name not in self.values]
        if not sources:
            return [end]
        session, bases = self.session([end, *sources], self.dtypes)
        here, *before = self._run(session, {base: self.values[base] for base in bases})
        all_of = [bool(np.isin(values, here).all()) for values in before]
        if not all(
            whole or np.isin(here, values).all() for whole, values in zip(all_of, before, strict=True)
        ):
            return [end]
        # What is put together from several is one tensor only if they were parts of it before.
        origins = {self._moved(source, chain + 1)[0] for source in sources}
        return [*origins, *([] if all(all_of) else [end])] if len(origins) == 1 else [end]

    def _responses(self, end: str, chain: int = 0) -> Iterable[Floats]:
        """The filters by which a tensor depends on each of its bases; or if it has no maps, what it reads."""
        bases = self.bases.get(end, ())
        if end in self.values or not bases or chain > LONGEST_CHAIN:
            return
        session, bases = self.session([end], self.dtypes)
        zeros = {base: np.zeros_like(self.values[base]) for base in bases}
        answer = self._run(session, zeros)[0]
        rest = self._maps(answer) if isinstance(answer, np.ndarray) and answer.dtype.kind == "f" else None
        if rest is None:
            read = next(source for source in self.producers[end].input if self.bases.get(source))
            found = list(self._responses(read, chain + 1))
            yield from found or self._products(end, session, zeros, answer)
            return
        kernels = {}
        for base in bases:
            if self._maps(self.values[base]) is not None and (end, base) not in self.seen:
                self.seen.add((end, base))
                kernels[base] = self._kernels(session, zeros, base, rest)
        depending = {base: np.abs(one).max((1, 2, 3)) > 0 for base, one in kernels.items()}
        for base, one in kernels.items():
            # An output that depends on another base alone is that of a layer beside this one.
            others = [rows for other, rows in depending.items() if other != base]
            beside = np.any(others, axis=0) & ~depending[base] if others else np.zeros(len(one), bool)
            kept = [~beside, depending[base]] if beside.any() else [~beside]
            for rows in kept[: 1 if np.array_equal(kept[0], kept[-1]) else 2]:
                read = np.abs(one[rows]).max((0, 2, 3), initial=0.0) > 0
                for columns in (slice(None), read)[: 1 if read.all() else 2]:
                    if (filters := _tidied(one[rows][:, columns])) is not None:
                        yield filters

    def _products(
        self, end: str, session: Session, zeros: dict[str, npt.NDArray[np.float64]], rest: Any
    ) -> Iterable[Floats]:
        """What a vector depends on each number of its bases by, (outputs, inputs, 1, 1), if these are few."""
        for base in zeros:
            inputs = zeros[base][0].size
            vectors = isinstance(rest, np.ndarray) and rest.ndim == 2 and len(rest) == self.batch
            if not vectors or inputs * rest.shape[1] > MOST_PRODUCTS or (end, base) in self.seen:
                continue
            self.seen.add((end, base))
            found = np.zeros((inputs, rest.shape[1]))
            size = float(np.median(_sizes(self.values[base])))
            for start in range(0, inputs, self.batch):
                point = dict(zeros)
                point[base] = np.zeros(zeros[base].shape)
                now = min(self.batch, inputs - start)
                point[base].reshape(self.batch, -1)[np.arange(now), start + np.arange(now)] = size
                found[start : start + now] = (self._run(session, point)[0] - rest)[:now] / size
            found = np.where(
                np.isfinite(found) & (np.abs(found) > ROUNDING * np.abs(found).max()), found, 0.0
            )
            if ((found != 0).sum(0) > 1).any():  # or else numbers are only passed on
                yield np.ascontiguousarray(found.T[:, :, None, None], np.float32)

    def _kernels(
        self, session: Session, zeros: dict[str, npt.NDArray[np.float64]], base: str, rest: Any
    ) -> npt.NDArray[np.float64]:
        """The response of a tensor to one impulse per channel of a base, (outputs, inputs, 7, 7)."""
        values = self._maps(self.values[base])
        batch, channels, *lengths = values.shape
        outputs, ends = rest.shape[1], rest.shape[2:]
        strides = [max(1, round(length / end)) for length, end in zip(lengths, ends, strict=True)]
        middles = [
            min(stride * (end // 2), length - stride)
            for length, end, stride in zip(lengths, ends, strides, strict=True)
        ]
        # A map that is hardly larger than a kernel shows different taps at different places.
        places = [
            range(length) if length <= 2 * REACH else range(middle, middle + stride)
            for length, middle, stride in zip(lengths, middles, strides, strict=True)
        ]
        shown = [(channel, y, x) for channel in range(channels) for y in places[0] for x in places[1]]
        sizes = _sizes(values)
        found = np.zeros((outputs, channels, 2 * REACH + 1, 2 * REACH + 1))
        for start in range(0, len(shown), batch):
            now = shown[start : start + batch]
            point = dict(zeros)
            point[base] = np.zeros(zeros[base].shape)
            maps = self._maps(point[base])  # a view
            for place, (channel, y, x) in enumerate(now):
                maps[place, channel, y, x] = sizes[channel]
            answer = self._maps(self._run(session, point)[0]).astype(np.float64) - rest
            for place, (channel, y, x) in enumerate(now):
                for row in _reached(y, strides[0], ends[0]):
                    for column in _reached(x, strides[1], ends[1]):
                        dy, dx = y - row * strides[0] + REACH, x - column * strides[1] + REACH
                        found[:, channel, dy, dx] = answer[place, :, row, column]
        rounding = ROUNDING * np.abs(np.where(np.isfinite(rest), rest, 0.0)).max((0, 2, 3))
        known = np.isfinite(found) & (np.abs(found) > rounding[:, None, None, None])
        return np.where(known, found, 0.0) / sizes[:, None, None]


def _reached(place: int, stride: int, end: int) -> range:
    """The outputs whose kernels reach a place of the input, at most REACH to either side."""
    return range(max(0, -((REACH - place) // stride)), min(end, (place + REACH) // stride + 1))


def _sizes(values: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """How large the channels of a base are; one where they are nothing, or not finite."""
    finite = np.where(np.isfinite(values), values, 0.0)
    axes = tuple(axis for axis in range(values.ndim) if axis != 1)
    sizes = np.sqrt((finite**2).mean(axes))
    return np.where(sizes > 0, sizes, 1.0)


def _along_channels(numbers: npt.NDArray[Any], dimensions: int) -> npt.NDArray[Any]:
    """One number per channel, to be used with a tensor of this number of dimensions."""
    return numbers.reshape(-1, *[1] * (dimensions - 2)) if dimensions > 1 else numbers


def _is_linear(*answers: Any) -> bool:
    """Whether f(x + a + b) - f(x + a) - f(x + b) + f(x) is nothing beside the changes, channel by channel.

    Where an answer is not finite nothing can be said; it must be finite somewhere.
    """
    first, one, other, both = (np.asarray(answer, np.float64) for answer in answers)
    with np.errstate(all="ignore"):
        rest = np.abs(both - one - other + first)
        change = np.maximum(np.abs(one - first), np.abs(other - first))
    known = np.isfinite(rest) & np.isfinite(change)
    if not known.any():
        return False
    axes = tuple(axis for axis in range(rest.ndim) if axis != 1) if rest.ndim > 1 else None

    def largest(values: npt.NDArray[np.float64]) -> Any:
        return np.max(values, axes, where=known, initial=0.0)

    # Rounding is relative to the values, of which the changes may be a small part.
    return bool((largest(rest) <= LINEAR * largest(change) + 1e-5 * largest(np.abs(first))).all())


def _tidied(kernels: npt.NDArray[np.float64]) -> Floats | None:
    """Filters as a convolution would hold them; None if they only pass channels on."""
    sizes = _balanced(np.abs(kernels).max((2, 3)))
    if not sizes.any():
        return None
    with np.errstate(all="ignore"):
        shares = sizes / np.abs(kernels).max((2, 3))
    shares = np.where(np.isfinite(shares), shares, 0.0)
    largest = (np.abs(kernels) * shares[:, :, None, None]).max((0, 1))
    known = np.argwhere(largest > 1e-5 * largest.max())
    reach = int(np.abs(known - REACH).max())
    kernels = kernels[:, :, REACH - reach : REACH + reach + 1, REACH - reach : REACH + reach + 1]
    single = (sizes > 1e-4 * sizes.max(1, keepdims=True)).sum(1) <= 1
    if single.all() and sizes.shape[1] > 1:
        if reach == 0:
            return None
        # Each channel by itself, as a depthwise convolution has it.
        kernels = kernels[np.arange(len(kernels)), sizes.argmax(1)][:, None]
    return np.ascontiguousarray(kernels, np.float32)


def _balanced(sizes: npt.NDArray[Any]) -> npt.NDArray[np.float64]:
    """Rows and columns divided in turns by their largest, so that no scale of a channel decides."""
    found = sizes.astype(np.float64)
    for turn in range(2 * BALANCING):
        largest = found.max(turn % 2, keepdims=True, initial=0.0)
        found = np.divide(found, largest, out=np.zeros_like(found), where=largest > 0)
    return found
