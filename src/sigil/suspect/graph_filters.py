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

import math
import time
from collections import ChainMap
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import onnx
from onnx import GraphProto, ModelProto, NodeProto, TensorProto, ValueInfoProto

from sigil.errors import SuspectError

KERNELS: Final = {"Conv": (1,), "FusedConv": (1,), "ConvInteger": (1, 3), "QLinearConv": (3, 5, 4)}
"""Where convolutions have their kernels; for integers, where is what stands for zero, and the size of one."""
MOST_FILTERS: Final = 1024
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
ALONE: Final = 1e-4
"""The share of the largest input of an output below which it has no other."""
LONGEST_CHAIN: Final = 12
"""Tensors behind a convolution that are looked at for its sign."""
SAMPLE: Final = 64
"""Numbers of a tensor that are looked for among those of its bases before all are."""
DIGIT: Final = 8
"""Bits of the digits in which numbers of places are shown to a graph."""
BALANCING: Final = 4
"""How often rows and columns are divided by their largest."""

Floats = npt.NDArray[np.float32]
Session = Any
Places = npt.NDArray[np.int64]
Point = dict[str, npt.NDArray[np.float64]]
"""What bases are."""
Open = Callable[[bytes], Session]
"""Makes a graph ready to run; raises SuspectError for one that does not run."""


def graphs_in(node: NodeProto) -> list[GraphProto]:
    """The branches of a node, or the body of its loop."""
    return [
        graph
        for attribute in node.attribute
        for graph in (*([attribute.g] if attribute.HasField("g") else ()), *attribute.graphs)
    ]


def read_by(node: NodeProto) -> list[str]:
    """The tensors that a node reads, with those that its branches or its loop take from around them."""
    found = dict.fromkeys(name for name in node.input if name)
    for graph in graphs_in(node):
        inside = {one.name for one in (*graph.input, *graph.initializer)}
        inside |= {one.values.name for one in graph.sparse_initializer}
        inside |= {name for inner in graph.node for name in inner.output}
        read = (name for inner in graph.node for name in read_by(inner))
        found |= dict.fromkeys(
            name for name in (*read, *(one.name for one in graph.output)) if name not in inside
        )
    return list(found)


def convolution_filters(part: ModelProto, open_session: Open) -> tuple[list[Floats], int]:
    """The weights (outputs, inputs, height, width) of the convolutions of a checked graph, as float32.

    Those that depend on the input, or that cannot be computed, are left out. Filters have the sign with which
    what follows them channel by channel, as a batch norm, passes them on. With them comes the number of
    convolutions that there was no room for.
    """
    nodes = list(_convolutions(part.graph, ChainMap()))
    behind = _Behind(part, open_session)
    values = behind.computed(
        node.input[place]
        for node, known in nodes
        for place in KERNELS[node.op_type]
        if place < len(node.input) and node.input[place] not in known
    )
    found: list[Floats] = []
    numbers = 0
    for number, (node, known) in enumerate(nodes):
        weight = _kernel(node, known, values)
        if weight is None:
            continue
        numbers += weight.size
        if numbers > MOST_NUMBERS or len(found) == MOST_FILTERS:
            return found, len(nodes) - number
        with np.errstate(over="ignore"):
            filters = np.ascontiguousarray(weight, np.float32)
        signs = behind.signs(node.output[0], weight)
        found.append(filters * signs[:, None, None, None].astype(np.float32))
    return found, 0


def _convolutions(
    graph: GraphProto, known: ChainMap[str, TensorProto]
) -> Iterable[tuple[NodeProto, ChainMap[str, TensorProto]]]:
    """The convolutions of a graph, its branches and loops, each with the tensors that are written there."""
    known = known.new_child({weights.name: weights for weights in graph.initializer})
    for node in graph.node:
        if node.op_type == "Constant":
            known.update((node.output[0], one.t) for one in node.attribute if one.HasField("t"))
        if node.op_type in KERNELS:
            yield node, known
        for inner in graphs_in(node):
            yield from _convolutions(inner, known)


def _kernel(
    node: NodeProto, known: Mapping[str, TensorProto], values: Mapping[str, Any]
) -> npt.NDArray[Any] | None:
    """The kernel of a convolution, if it is of integers what these stand for; None if it is not known."""
    names = [node.input[place] for place in KERNELS[node.op_type] if place < len(node.input)]
    kernel, *others = [
        onnx.numpy_helper.to_array(known[name]) if name in known else values.get(name) for name in names
    ] or [None]
    if kernel is None or kernel.ndim != 4 or kernel.dtype.kind not in "fiu":
        return None
    if kernel.dtype.kind == "f":
        return kernel
    zero, scale = (
        np.float32(neutral)
        if other is None or other.size not in (1, len(kernel))
        else other.reshape(-1, 1, 1, 1).astype(np.float32)
        for other, neutral in zip([*others, None, None], (0, 1), strict=False)
    )
    return (kernel - zero) * scale


class _Cutter:
    """Opens parts of a graph as graphs of their own."""

    def __init__(self, part: ModelProto, open_session: Open) -> None:
        self.part, self.open = part, open_session
        self.weights = {weights.name: weights for weights in part.graph.initializer}
        self.producers = {name: node for node in part.graph.node for name in node.output if name}
        self.read: dict[str, list[str]] = {}
        for node in part.graph.node:
            self.read |= dict.fromkeys(filter(None, node.output), read_by(node))

    def session(
        self, outputs: Sequence[str], inputs: Mapping[str, tuple[int, int | None]], *, most: int | None = None
    ) -> tuple[Session, tuple[str, ...]]:
        """A graph that computes these tensors, and which of the ``inputs`` it takes.

        Of these there are names, formats, and numbers of dimensions, without which a loop is not opened. It
        may have at most ``most`` nodes.
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
                waiting += self.read[name]
        graph = onnx.helper.make_graph(
            [node for node in self.part.graph.node if id(node) in nodes],
            "part",
            [_described(name, *inputs[name]) for name in used],
            [ValueInfoProto(name=name) for name in outputs],
            list(weights.values()),
        )
        model = onnx.helper.make_model(
            graph, opset_imports=self.part.opset_import, ir_version=self.part.ir_version
        )
        return self.open(model.SerializeToString()), tuple(used)


def _described(name: str, dtype: int, dimensions: int | None) -> ValueInfoProto:
    """An input of a graph, of any size."""
    shape = None if dimensions is None else [None] * dimensions
    return onnx.helper.make_tensor_value_info(name, dtype, shape)


class _Behind(_Cutter):
    """What is computed from constants, and what is done to channels before anything reads them together."""

    def __init__(self, part: ModelProto, open_session: Open) -> None:
        super().__init__(part, open_session)
        self.readers: dict[str, list[NodeProto]] = {}
        self.fixed = set(self.weights)
        for node in part.graph.node:  # in the order of computing
            read = read_by(node)
            for name in read:
                self.readers.setdefault(name, []).append(node)
            if all(name in self.fixed for name in read):
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
            others = (other for other in read_by(node) if other != last)
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
                session, _ = self.session(chain, {name: (dtype, 4)}, most=LONGEST_CHAIN**2)
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
    part: ModelProto, open_session: Open, inputs: Floats, deadline: float
) -> tuple[list[Floats], int]:
    """What each linear part of a checked graph does to impulses, as filters, in the order of computing.

    ``inputs`` are three batches, best of images: a graph may do something else with noise. ``deadline`` is a
    time of ``time.monotonic``. With filters comes the number of tensors that were not looked at.
    """
    found: list[_Response] = []
    numbers = 0
    parts = _Parts(part, open_session, inputs, deadline)
    try:
        for response in parts.responses():
            numbers += response.filters.size
            if len(found) == MOST_FILTERS or numbers > MOST_NUMBERS:
                break
            found.append(response)
    except MemoryError:
        raise
    except Exception:
        pass  # a graph may be odd in any way, or time is over: what was found until then counts
    ranks = parts.ranks()
    return [response.ordered(ranks) for response in found], len(parts.waiting)


@dataclass(frozen=True)
class _Response:
    """Filters, and which channels of which tensors are their rows and columns, if that is known."""

    filters: Floats
    rows: tuple[str, Places] | None = None
    columns: tuple[str, Places] | None = None

    def ordered(self, ranks: Mapping[str, Places]) -> Floats:
        """The filters with the channels of these tensors in the order of their ranks."""
        filters = self.filters
        if self.rows is not None and self.rows[0] in ranks:
            filters = filters[np.argsort(ranks[self.rows[0]][self.rows[1]])]
        if self.columns is not None and self.columns[0] in ranks:
            filters = filters[:, np.argsort(ranks[self.columns[0]][self.columns[1]])]
        return np.ascontiguousarray(filters)


class _Parts(_Cutter):
    """The tensors of a graph: which are bases, which belong to linear parts, and what they depend on."""

    def __init__(self, part: ModelProto, open_session: Open, inputs: Floats, deadline: float) -> None:
        super().__init__(part, open_session)
        self.deadline = deadline
        entry = part.graph.input[0]
        self.entry = entry.name
        self.dtypes: dict[str, tuple[int, int | None]] = {
            entry.name: (entry.type.tensor_type.elem_type, inputs.ndim - 1)
        }
        self.random = np.random.default_rng(0)
        # What each base is at some input, and which bases each tensor of a linear part depends on.
        self.values = {entry.name: inputs[0].astype(np.float64)}
        self.others = inputs[1:]
        self.batch, _, *self.image = (*inputs[0].shape, 1, 1)[:4]
        self.bases: dict[str, tuple[str, ...]] = {entry.name: (entry.name,)}
        # The shapes of tensors of numbers, and what each number of a base was computed from by itself: those
        # of some tensors in a row, of which it has the places.
        self.shapes: dict[str, tuple[int, ...]] = {}
        self.origins: dict[str, tuple[tuple[str, ...], Places]] = {}
        # Which channel of one tensor each of another one's goes on with, as behind a shortcut.
        self.going_on: list[tuple[str, str, Places]] = []
        self.seen: set[tuple[str, str]] = set()
        variable = self._variable()
        names = [name for node in part.graph.node for name in node.output if name]
        self.waiting = [name for name in names if name in variable]
        self.bases |= {name: () for name in names if name not in variable}

    def responses(self) -> Iterable[_Response]:
        """Go through the graph and yield the filters of each part that ends."""
        last = self.part.graph.output[0].name
        while self.waiting and time.monotonic() < self.deadline:
            left = []
            for name, ends in self._sweep(self.waiting[:WINDOW]):
                if ends is None:
                    left.append(name)
                    continue
                for end in dict.fromkeys(ends):
                    alike = self.shapes.get(end) == self.shapes.get(name)
                    yield from self._responses(end, name if alike else end)
                if name in self.values and not ends:
                    yield from self._moved(name)
                elif name == last and not ends:
                    yield from self._responses(name, name)
            if len(left) == len(self.waiting[:WINDOW]):
                break
            self.waiting = left + self.waiting[WINDOW:]

    def ranks(self) -> dict[str, Places]:
        """One order for channels that go on from tensor to tensor, that of the last.

        A shortcut can have the channels of each block in another order.
        """
        found: dict[str, Places] = {}
        for last in (self.part.graph.output[0].name, *reversed([row for row, _, _ in self.going_on])):
            waiting = [] if last in found else [last]
            for row, _, order in self.going_on:
                if row == last and last not in found:
                    found[last] = np.arange(len(order))
            while waiting:
                name = waiting.pop()
                for row, column, order in self.going_on:
                    if row == name and column not in found:
                        found[column] = np.empty_like(order)
                        found[column][order] = found[name]
                        waiting.append(column)
                    elif column == name and row not in found:
                        found[row] = found[name][order]
                        waiting.append(row)
        return found

    def _variable(self) -> set[str]:
        """The tensors that depend on the input of the graph."""
        found = set(self.values)
        for node in self.part.graph.node:
            if any(source in found for source in read_by(node)):
                found.update(name for name in node.output if name)
        return found

    def _sweep(self, names: Sequence[str]) -> list[tuple[str, tuple[str, ...] | None]]:
        """Sort these tensors, in the order of computing, as far as what they depend on is sorted.

        With each goes None if it must wait, and else the tensors in which it is not linear: none if it
        belongs to a linear part, and if it is a base, what its node reads.
        """
        session, bases = self.session(names, self.dtypes)
        start = {base: self.values[base] for base in bases}
        changes = [{base: self._change(base, turn) for base in bases} for turn in range(2)]
        points = [
            start,
            {base: start[base] + changes[0][base] for base in bases},
            {base: start[base] + changes[1][base] for base in bases},
            {base: start[base] + changes[0][base] + changes[1][base] for base in bases},
        ]
        answers = [self._run(session, point) for point in points]
        sorted_now: list[tuple[str, tuple[str, ...] | None]] = []
        for name, *four in zip(names, *answers, strict=True):
            sources = [source for source in self.read[name] if source not in self.weights]
            depends = tuple(dict.fromkeys(base for source in sources for base in self.bases.get(source, ())))
            # What follows a base that was found just now was not asked with changes of it.
            if not set(depends) <= set(bases) or any(source not in self.bases for source in sources):
                sorted_now.append((name, None))
                continue
            # What is no floating-point number, as the condition of a choice or a list, is never a base.
            floats = isinstance(four[0], np.ndarray) and four[0].dtype.kind == "f"
            linear = not floats or _is_linear(*four)
            if floats:
                self.shapes[name] = four[0].shape
            if not floats and all(np.array_equal(four[0], one) for one in four):
                depends = ()  # as the shape of a tensor
            sorted_now.append((name, () if linear else tuple(sources)))
            if linear:
                self.bases[name] = depends
                if not floats or not self._join(name, four[0], depends):
                    continue
            else:
                self._begin(name, sources)
            self.values[name] = np.asarray(four[0], np.float64)
            self.bases[name] = (name,)
            self.dtypes[name] = onnx.helper.np_dtype_to_tensor_dtype(four[0].dtype), four[0].ndim
        return sorted_now

    def _begin(self, base: str, sources: Sequence[str]) -> None:
        """Note what each number of a new base was computed from, if there is one for each."""
        shape = self.shapes[base]
        alike = [source for source in sources if self.shapes.get(source) == shape]
        for source in sorted(alike, key=self.values.__contains__):
            if source not in self.values:
                self.origins[base] = (source,), np.arange(math.prod(shape[1:])).reshape(shape[1:])
            elif source in self.origins:
                self.origins[base] = self.origins[source]
            if base in self.origins:
                break
        self.going_on += [
            (base, one, np.arange(shape[1])) for one in alike if one in self.values and len(shape) > 1
        ]

    def _join(self, base: str, answer: Any, bases: Sequence[str]) -> bool:
        """The same for one that only has numbers of other bases in other places; False if it is none."""
        if not bases or self.entry in bases or self._maps(answer) is None:
            return False
        if any(len(self.values[other]) != self.batch for other in bases):
            # Which numbers are those of one image is not known.
            known = np.concatenate([self.values[other].ravel() for other in bases])
            return np.array_equal(np.sort(known), np.sort(answer.astype(np.float64), axis=None))
        places = self._places(base, answer, bases)
        if places is None:
            return False
        if self.shapes[base] == self.shapes[bases[0]] and len(bases) == 1:
            channels = places.reshape(len(places), -1) // math.prod(places.shape[1:])
            if (channels == channels[:, :1]).all():
                self.going_on.append((base, bases[0], channels[:, 0]))
        if not all(other in self.origins for other in bases):
            return True
        ends: list[str] = []
        from_ends, start = [], 0
        for other in bases:
            those, there = self.origins[other]
            from_ends.append(there.ravel() + start)
            ends += those
            start += sum(math.prod(self.shapes[end][1:]) for end in those)
        self.origins[base] = tuple(ends), np.concatenate(from_ends)[places]
        return True

    def _places(self, name: str, answer: Any, bases: Sequence[str]) -> Places | None:
        """Where a tensor with maps has the numbers of its bases; None if that is not all that it is.

        Of one base it must have all, or it is a part of it; of several it may leave some out.
        """
        known = [self.values[base][0].ravel() for base in bases]
        everything = np.concatenate(known)
        if answer[0].size > everything.size or not np.isin(answer[0].ravel()[:SAMPLE], everything).all():
            return None
        numbers = np.arange(everything.size)
        session, used = self.session([name], self.dtypes)
        point = {base: self.values[base] for base in used}
        places = np.zeros(answer.shape[1:], np.int64)
        # Numbers are given in digits, which every format can hold, and which no upper bound is in the way of.
        for digit in range(0, int(numbers[-1]).bit_length(), DIGIT):
            digits = ((numbers >> digit) % (1 << DIGIT) + 1) / (1 << DIGIT)
            for base, some in zip(
                bases, np.split(digits, np.cumsum([one.size for one in known[:-1]])), strict=True
            ):
                point[base] = np.broadcast_to(
                    some.reshape(self.values[base].shape[1:]), self.values[base].shape
                )
            found = self._run(session, point)[0].astype(np.float64) * (1 << DIGIT) - 1
            if (found != found[0]).any() or (found != np.rint(found)).any() or found.min() < 0:
                return None
            places += found[0].astype(np.int64) << digit
        if places.max() >= everything.size:
            return None
        if len(bases) > 1:
            return places
        if not np.array_equal(np.unique(everything), np.unique(everything[places])):
            return None
        # A base that has maps is shown impulses there, in whatever shape it goes on.
        maps = self._maps(self.values[bases[0]])
        if maps is None:
            return places
        blocks = maps.size == answer.size and maps.shape[1] < self._maps(answer).shape[1]
        return None if blocks or np.array_equal(places.ravel(), numbers) else places

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

    def _change(self, base: str, turn: int) -> npt.NDArray[np.float64]:
        """A random change of a base, as large as its channels vary, positive if the base is.

        Inputs are changed towards others, so that they are still mixtures of inputs.
        """
        values = self.values[base]
        if base == self.entry:
            towards: npt.NDArray[np.float64] = (self.others[turn] - values) / 3
            return towards
        change = self.random.standard_normal(values.shape) * _along_channels(_sizes(values), values.ndim)
        return np.abs(change) if np.min(values, where=np.isfinite(values), initial=0.0) >= 0 else change

    def _run(self, session: Session, point: Point) -> list[Any]:
        if time.monotonic() > self.deadline:
            raise SuspectError("The time for finding filters is over.")
        fed = {
            base: value.astype(onnx.helper.tensor_dtype_to_np_dtype(self.dtypes[base][0]))
            for base, value in point.items()
        }
        try:
            return list(session.run(None, fed))
        except Exception as error:
            if isinstance(error, MemoryError):
                raise
            raise SuspectError("A part of the graph does not run.") from error

    def _responses(self, end: str, rows: str, chain: int = 0) -> Iterable[_Response]:
        """The filters by which a tensor depends on each of its bases; or if it has no maps, what it reads.

        Their ``rows`` are the channels of this tensor.
        """
        bases = self.bases.get(end, ())
        if end in self.values or not bases or chain > LONGEST_CHAIN:
            return
        session, bases = self.session([end], self.dtypes)
        start = {base: self.values[base] for base in bases}
        answer = self._run(session, start)[0]
        if not isinstance(answer, np.ndarray) or answer.dtype.kind != "f" or self._maps(answer) is None:
            read = next(source for source in self.read[end] if self.bases.get(source))
            found = list(self._responses(read, read, chain + 1))
            yield from found or map(_Response, self._products(end, session, start, answer))
            return
        yield from self._filters(end, rows, lambda point: self._run(session, point)[0], start)

    def _moved(self, base: str) -> Iterable[_Response]:
        """The filters by which the numbers of a base were computed, in the places where it has them."""
        if base not in self.origins:
            return
        ends, places = self.origins[base]
        session, bases = self.session(ends, self.dtypes)

        def answer(point: Point) -> Any:
            found = [one.reshape(len(one), -1) for one in self._run(session, point)]
            return np.concatenate(found, 1)[:, places]

        yield from self._filters(base, base, answer, {other: self.values[other] for other in bases})

    def _filters(
        self, end: str, name: str, answer: Callable[[Point], Any], start: Point
    ) -> Iterable[_Response]:
        """The filters by which a tensor with maps depends on each of its bases."""
        kernels = {}
        for base in start:
            if self._maps(self.values[base]) is not None and (end, base) not in self.seen:
                self.seen.add((end, base))
                kernels[base] = self._kernels(answer, start, base)
                if (order := _passed_on(kernels[base])) is not None:
                    self.going_on.append((name, base, order))
        depending = {base: np.abs(one).max((1, 2, 3)) > 0 for base, one in kernels.items()}
        for base, one in kernels.items():
            # An output that depends on another base alone is that of a layer beside this one.
            others = [rows for other, rows in depending.items() if other != base]
            beside = np.any(others, axis=0) & ~depending[base] if others else np.zeros(len(one), bool)
            kept = [~beside, depending[base]] if beside.any() else [~beside]
            for rows in kept[: 1 if np.array_equal(kept[0], kept[-1]) else 2]:
                read = np.abs(one[rows]).max((0, 2, 3), initial=0.0) > 0
                for columns in (np.ones_like(read), read)[: 1 if read.all() else 2]:
                    if (filters := _tidied(one[rows][:, columns])) is None:
                        continue
                    single = filters.shape[1] != columns.sum()
                    yield _Response(
                        filters,
                        (name, np.flatnonzero(rows)),
                        None if single else (base, np.flatnonzero(columns)),
                    )

    def _products(self, end: str, session: Session, start: Point, rest: Any) -> Iterable[Floats]:
        """What a vector depends on each number of its bases by, (outputs, inputs, 1, 1), if these are few."""
        for base in start:
            inputs = start[base][0].size
            vectors = isinstance(rest, np.ndarray) and rest.ndim == 2 and len(rest) == self.batch
            if not vectors or inputs * rest.shape[1] > MOST_PRODUCTS or (end, base) in self.seen:
                continue
            self.seen.add((end, base))
            found = np.zeros((inputs, rest.shape[1]))
            size = float(np.median(_sizes(self.values[base])))
            for first in range(0, inputs, self.batch):
                point = start | {base: start[base].copy()}
                now = min(self.batch, inputs - first)
                point[base].reshape(self.batch, -1)[np.arange(now), first + np.arange(now)] += size
                found[first : first + now] = (self._run(session, point)[0] - rest)[:now] / size
            found = np.where(
                np.isfinite(found) & (np.abs(found) > ROUNDING * np.abs(found).max()), found, 0.0
            )
            if ((found != 0).sum(0) > 1).any():  # or else numbers are only passed on
                yield np.ascontiguousarray(found.T[:, :, None, None], np.float32)

    def _kernels(self, answer_to: Callable[[Point], Any], start: Point, base: str) -> npt.NDArray[np.float64]:
        """The response of a tensor to one impulse per channel of a base, (outputs, inputs, 7, 7).

        Impulses are added to what the bases are anyway: a graph may do something else where there is nothing.
        """
        rest = self._maps(answer_to(start))
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
        for first in range(0, len(shown), batch):
            now = shown[first : first + batch]
            point = start | {base: start[base].copy()}
            maps = self._maps(point[base])  # a view
            for place, (channel, y, x) in enumerate(now):
                maps[place, channel, y, x] += sizes[channel]
            answer = self._maps(answer_to(point)).astype(np.float64) - rest
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


def _passed_on(kernels: npt.NDArray[np.float64]) -> Places | None:
    """Which input each output has, if each has one of its own; those that have none share what is left."""
    sizes = _balanced(np.abs(kernels).max((2, 3)))
    known: npt.NDArray[np.bool_] = sizes.max(1, initial=0.0) > 0
    order = sizes.argmax(1)
    single = (sizes > ALONE * sizes.max(1, keepdims=True)).sum(1) <= 1
    if sizes.shape[0] != sizes.shape[1] or not single.all() or 2 * known.sum() <= len(known):
        return None
    if len(set(order[known])) < known.sum():
        return None
    order[~known] = np.setdiff1d(np.arange(len(order)), order[known])
    return order


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
    single = (sizes > ALONE * sizes.max(1, keepdims=True)).sum(1) <= 1
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
