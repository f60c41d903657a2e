"""ONNX graphs: the part up to one tensor, run by onnxruntime on the CPU.

A graph is data, but what it may refer to is not harmless: files beside it (external data, which can
point anywhere on the disk), operators of loadable libraries, loops without end. Only the nodes that
the wanted tensor depends on are taken, and each must be a plain operator of the ONNX standard that
computes numbers from numbers. They go into a new model, so that nothing else of the file reaches
onnxruntime. Weights may lie in files of the same folder: the graph names them, and who opened it brings them.
"""

from __future__ import annotations

import difflib
import functools
import hashlib
import itertools
import math
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
import onnx.inliner
import onnxruntime
from onnx import AttributeProto, ModelProto, NodeProto, SparseTensorProto, TensorProto, ValueInfoProto

from sigil.errors import SuspectError, reason, shown
from sigil.suspect.graph_filters import convolution_filters, graphs_in, read_by, responses

MAX_NODES = 100_000
MAX_BESIDE = 128
"""Files with weights beside a graph."""
MAX_INPUT_ELEMENTS = 1 << 24
"""Numbers of one input that a graph may ask for: five images of 1024 by 1024 pixels in colour."""
MAX_BATCH_ELEMENTS = 1 << 26
"""Numbers of one batch, if the graph was exported for batches of a fixed size."""

# Impulses that are shown at once where the graph does not say how many inputs it takes: hardly a number of
# channels, so that it shows where a tensor has its batch.
_IMPULSES = 17

Numbers = npt.NDArray[np.floating[Any]]

_MAX_DENSE = 1 << 28
_MAX_DEPTH = 100

# Kinds of operators whose number tells how far into a network a tensor is, by what layers are called here.
_NORMALISATION = "BatchNormalization"
_ALIKE = {
    **{"MaxPool": "Pool", "AveragePool": "Pool", "GlobalAveragePool": "Pool"},
    **{"Clip": "Relu", "FusedConv": "Conv"},
}

_STANDARD = ("", "ai.onnx", "ai.onnx.ml")
# Operators of onnxruntime's own that it puts in the place of standard ones when it saves what it optimised.
_OPTIMISED = {
    *("FusedConv", "FusedMatMul", "FusedGemm", "Gelu", "FastGelu", "QuickGelu", "BiasGelu"),
    *("SkipLayerNormalization", "QLinearAdd", "QLinearMul", "QLinearConcat", "QLinearLeakyRelu"),
    *("QLinearAveragePool", "QLinearGlobalAveragePool", "QLinearSigmoid", "QLinearSoftmax", "QGemm"),
    *("MatMulIntegerToFloat", "DynamicQuantizeMatMul"),
}
_OPTIMISER = "com.microsoft"
_RANDOM = {
    *("Bernoulli", "Multinomial"),
    *("RandomNormal", "RandomNormalLike", "RandomUniform", "RandomUniformLike"),
}
_OUT_OF_MEMORY = (
    "bad_alloc",
    "bad allocation",
    "allocate memory",
    "available memory of",
    "smaller than requested",
)
_FLOATS: dict[int, type[np.floating[Any]]] = {
    TensorProto.FLOAT: np.float32,
    TensorProto.FLOAT16: np.float16,
    TensorProto.DOUBLE: np.float64,
}


@dataclass(frozen=True)
class Graph:
    """A checked graph that can be run: ``run`` maps (n, *input_shape) to activations.

    ``filters`` finds its filters, in the order of computing, in about the given number of seconds, and says
    how many tensors were not looked at.
    """

    run: Callable[[Numbers], npt.NDArray[np.float32]]
    input_shape: tuple[int, ...] | None
    tensor: str
    filters: Callable[[float], tuple[list[npt.NDArray[np.float32]], int]]


class NeedsFiles(Exception):
    """The weights of a graph lie in the files ``names`` of its folder, which were not given."""

    def __init__(self, names: list[str]) -> None:
        super().__init__(names)
        self.names = names


def open_graph(
    data: bytes | memoryview,
    *,
    source: Path,
    at: str | None = None,
    activation_shape: Sequence[int] | None = None,
    operators: Mapping[str, int] | None = None,
    threads: int = 1,
    memory: int = 1 << 31,
    beside: Mapping[str, memoryview] | None = None,
) -> Graph:
    """Cut the ONNX model in ``data`` at the tensor or node ``at`` and make it ready to run.

    Without ``at`` the graph must have one output, whose shape, if both are known, is
    ``activation_shape``; the names of those that have it are listed otherwise, first the one that comes after
    as many ``operators`` of each kind as given. ``memory`` bounds what onnxruntime may take in bytes. Weights
    may lie in files ``beside`` the graph, by their names; :class:`NeedsFiles` says which are missing.
    """
    try:
        model = ModelProto.FromString(data)
    except MemoryError:
        raise
    except Exception as error:
        raise SuspectError(f"{source} is damaged or is no ONNX model.") from error
    if (size := _size(model.graph.node)) > MAX_NODES:
        raise SuspectError(f"{source} has {size:,} nodes, more than the limit of {MAX_NODES:,}.")
    if model.functions:
        model = _inlined(model, source)
    tensor = _wanted_tensor(model, at, activation_shape, operators or {}, source)
    part = _extract(model, tensor, source, beside or {})
    del model  # or two copies of all weights wait for the third
    entry = part.graph.input[0]
    kind = entry.type.tensor_type
    if kind.elem_type not in _FLOATS:
        raise SuspectError(
            f"{source} takes inputs that are no floating-point numbers: give a model that takes "
            "images as floats."
        )
    sizes = [size.dim_value if size.HasField("dim_value") else None for size in kind.shape.dim]
    rest = [size for size in sizes[1:] if size is not None and size > 0]
    _check_input(sizes[:1], rest, source)
    dtype = _FLOATS[kind.elem_type]

    def opened(content: bytes, *, optimised: bool = False) -> Any:
        return _session(content, source, threads=threads, memory=memory, optimised=optimised)

    session, settled = opened(part.SerializeToString(), optimised=True), False
    shapes: list[tuple[int, ...]] = [tuple(rest)] if len(rest) == len(sizes) - 1 and rest else []
    asked: list[Numbers] = []  # the first inputs: real ones are, before noise

    def run(batch: Numbers) -> npt.NDArray[np.float32]:
        nonlocal part, session, settled
        try:
            found = _run(session, batch, dtype, sizes, source)
        except SuspectError as error:
            # The first inputs that a graph answers show where it takes channels; it is never asked again.
            if batch.ndim != 4 or settled:
                raise
            turned = _taking_channels_first(part)
            with_channels_last = opened(turned.SerializeToString(), optimised=True)
            try:
                found = _run(with_channels_last, batch, dtype, sizes, source)
            except SuspectError:
                raise error from None
            part, session = turned, with_channels_last
        settled = True
        shapes[1:] = [batch.shape[1:]]
        wanted = 3 * at_once(batch.shape[1:]) - sum(map(len, asked))
        if wanted > 0 and all(one.shape[1:] == batch.shape[1:] for one in asked):
            asked.append(batch[:wanted].astype(np.float32))
        return found

    def at_once(shape: Sequence[int]) -> int:
        return sizes[0] or max(1, min(_IMPULSES, MAX_INPUT_ELEMENTS // (64 * math.prod(shape))))

    def filters(seconds: float) -> tuple[list[npt.NDArray[np.float32]], int]:
        until = time.monotonic() + seconds
        found, cut_off = convolution_filters(part, opened)
        if not shapes:  # an input's shape is in the graph or was given with one
            return found, len(part.graph.node)
        count = at_once(shapes[-1])
        if len({one.tobytes() for batch in asked for one in batch}) == 3 * count:
            inputs = np.concatenate(asked)
        else:
            inputs = np.random.default_rng(0).standard_normal((3 * count, *shapes[-1]), np.float32)
        answers, left = responses(part, opened, inputs.reshape(3, count, *inputs.shape[1:]), until)
        # A layer that does nothing is often there several times, and each is compared with each of ours.
        different = {(one.shape, hashlib.sha256(one.data).digest()): one for one in found + answers}
        return list(different.values()), cut_off + left

    known = len(rest) == len(sizes) - 1 and bool(rest)
    return Graph(run, tuple(rest) if known else None, tensor, filters)


def _size(nodes: Iterable[NodeProto]) -> int:
    """How many nodes there are, with those of branches and loops."""
    return sum(1 + sum(_size(graph.node) for graph in graphs_in(node)) for node in nodes)


def _taking_channels_first(part: ModelProto) -> ModelProto:
    """A graph of images whose channels come last, as one that takes them first."""
    turned = ModelProto()
    turned.CopyFrom(part)
    entry = turned.graph.input[0]
    name, entry.name = entry.name, "images, channels first"
    while any(entry.name in (*node.input, *node.output) for node in part.graph.node):
        entry.name += "."
    entry.type.tensor_type.ClearField("shape")
    turned.graph.node.insert(0, onnx.helper.make_node("Transpose", [entry.name], [name], perm=[0, 2, 3, 1]))
    return turned


def _check_input(batch: Sequence[int | None], sizes: Sequence[int], source: Path) -> None:
    """Raise if one input, or one batch of them, is larger than any honest one."""
    elements = math.prod(sizes)
    if elements > MAX_INPUT_ELEMENTS or elements * (batch[0] or 1 if batch else 1) > MAX_BATCH_ELEMENTS:
        raise SuspectError(
            f"{source} asks for inputs of shape {shown((*batch, *sizes))}, more than the limit of "
            f"{MAX_INPUT_ELEMENTS:,} numbers for one and {MAX_BATCH_ELEMENTS:,} for a batch."
        )


def _inlined(model: ModelProto, source: Path) -> ModelProto:
    """The model with what its own functions stand for in their place; functions can call each other."""
    functions = {(function.domain, function.name): function for function in model.functions}
    sizes: dict[tuple[str, str], int] = {}

    def size_of(nodes: Iterable[NodeProto], depth: int) -> int:
        # Functions can call each other twice and so on: whatever follows them would not end.
        size = 0
        for node in nodes:
            size += 1 + sum(size_of(graph.node, depth + 1) for graph in graphs_in(node))
            called = (node.domain, node.op_type)
            if called not in functions:
                continue
            if node.domain in _STANDARD:
                raise SuspectError(
                    f"{source} uses the operator {shown(node.op_type)}, which the file defines itself though "
                    "it is one of the ONNX standard: it can mean two things."
                )
            if depth > _MAX_DEPTH:
                raise RecursionError
            if called not in sizes:
                sizes[called] = size_of(functions[called].node, depth + 1)
            size += sizes[called]
        return size

    try:
        size = size_of(model.graph.node, 0)
    except RecursionError as error:
        raise SuspectError(
            f"{source} defines functions that call each other more than {_MAX_DEPTH} deep."
        ) from error
    if size > MAX_NODES:
        raise SuspectError(
            f"{source} has {size:,} nodes with those of the functions that it defines itself, more than the "
            f"limit of {MAX_NODES:,}."
        )
    if not sizes:
        del model.functions[:]
        return model
    try:
        return onnx.inliner.inline_local_functions(model)
    except MemoryError:
        raise
    except Exception as error:
        raise SuspectError(
            f"{source} defines functions that cannot be put in their place: {reason(error)}."
        ) from error


def _wanted_tensor(
    model: ModelProto,
    at: str | None,
    activation_shape: Sequence[int] | None,
    operators: Mapping[str, int],
    source: Path,
) -> str:
    """The name of the tensor that is the activation."""
    made = [name for node in model.graph.node for name in node.output if name]
    if at is None:
        outputs = [output.name for output in model.graph.output]
        wanted = None if activation_shape is None else tuple(activation_shape)
        if len(outputs) == 1 and wanted is None:
            return outputs[0]
        shapes = _shapes(model)
        if len(outputs) == 1 and shapes.get(outputs[0], wanted) == wanted:
            return outputs[0]
        likely = made[::-1] if not operators else _by_position(model, operators)
        fitting = [name for name in likely if wanted is not None and shapes.get(name) == wanted]
        if fitting:
            order = "the likeliest first, " if operators else "the last first, "
            choice = f"of the key's shape {wanted} are, {order}{_listed(fitting)}"
        elif operators and any(name not in shapes for name in made):
            unknown = [name for name in likely if name not in shapes]
            choice = f"by its place in the network it may be {_listed(unknown)}"
        else:
            choice = f"the last are {_listed(made[::-1])}"
        raise SuspectError(
            f"{source} does not end at the activation: say with at=NAME (--at NAME) which tensor "
            f"it is; {choice}; each that you read counts as a try (--tries)."
        )
    if at in made:
        return at
    for node in model.graph.node:
        if node.name == at and node.output and node.output[0]:
            return node.output[0]
    candidates = [*made, *(node.name for node in model.graph.node if node.name)]
    nearest = difflib.get_close_matches(at[:200], _short(candidates), n=5, cutoff=0.3)
    raise SuspectError(
        f"{source} has no node or computed tensor {shown(at)}; the nearest names are "
        f"{_listed(nearest or made[::-1])}."
    )


def _by_position(model: ModelProto, operators: Mapping[str, int]) -> list[str]:
    """All tensors that nodes make, first those that come after as many operators of each kind as given.

    Where that leaves a choice, one is likelier that is made by the kind of operator that was given last.
    """
    counted = dict.fromkeys(operators, 0)
    last = list(operators)[-1]
    ranked: list[tuple[int, bool, int, str]] = []
    for place, node in enumerate(model.graph.node):
        kind = _ALIKE.get(node.op_type, node.op_type)
        kinds = [kind, "Relu"] if node.op_type == "FusedConv" else [kind]
        for each in kinds:
            if each in counted:
                counted[each] += 1
        # Normalisations are often made part of convolutions, and so their number says nothing.
        apart = sum(abs(counted[each] - operators[each]) for each in counted if each != _NORMALISATION)
        ranked += [(apart, kind != last, -place, name) for name in node.output if name]
    return [name for *_, name in sorted(ranked)]


def _shapes(model: ModelProto) -> dict[str, tuple[int, ...]]:
    """The shapes, without the batch, of all tensors of which ONNX can tell."""
    try:
        graph = onnx.shape_inference.infer_shapes(model).graph
    except Exception:
        # Only a help to find the right name: a graph that cannot be inferred may still run.
        graph = model.graph
    shapes = {}
    for info in (*graph.value_info, *graph.output):
        sizes = [size.dim_value for size in info.type.tensor_type.shape.dim]
        if len(sizes) > 1 and min(sizes[1:]) > 0:
            shapes[info.name] = tuple(sizes[1:])
    return shapes


def _extract(model: ModelProto, tensor: str, source: Path, beside: Mapping[str, memoryview]) -> ModelProto:
    """A new model with one input, the nodes that ``tensor`` depends on, and that one output."""
    producers: dict[str, int] = {}
    for index, node in enumerate(model.graph.node):
        for name in filter(None, node.output):
            # Of several constants of one name, onnxruntime takes the last.
            twice = [model.graph.node[each].op_type for each in (producers.get(name, index), index)]
            if name in producers and twice != ["Constant", "Constant"]:
                raise SuspectError(f"{source} computes the tensor {shown(name)} twice.")
            producers[name] = index
    # Of several of one name, onnxruntime takes the last; those that are sparse come after the others.
    initializers: dict[str, TensorProto | SparseTensorProto] = {
        weights.name: weights for weights in model.graph.initializer
    }
    initializers |= {sparse.values.name: sparse for sparse in model.graph.sparse_initializer}
    inputs = {info.name: info for info in model.graph.input}
    needed: set[int] = set()
    weights: dict[str, TensorProto] = {}
    entries: dict[str, ValueInfoProto] = {}
    waiting, seen = [tensor], {tensor}
    missing: dict[str, None] = {}
    while waiting:
        name = waiting.pop()
        if name in producers:
            if producers[name] in needed:
                continue
            needed.add(producers[name])
            node = model.graph.node[producers[name]]
            _check_node(node, source)
            waiting += [wanted for wanted in read_by(node) if wanted not in seen]
            seen.update(read_by(node))
        elif name in initializers:
            stored = initializers[name]
            if isinstance(stored, TensorProto) and (file := _file_of(stored)):
                if file not in beside:
                    missing[file] = None
                    continue
                stored = _brought(stored, beside[file], source)
            dense = _dense(stored, source) if isinstance(stored, SparseTensorProto) else stored
            weights[name] = _checked_weights(dense, source)
        elif name in inputs:
            entries[name] = inputs[name]
        else:
            raise SuspectError(f"{source} lacks the tensor {shown(name)}, which its nodes need.")
    if len(missing) > MAX_BESIDE:
        raise SuspectError(
            f"{source} keeps its weights in {len(missing):,} other files, more than the limit of "
            f"{MAX_BESIDE}: save the model as one file (external_data=False)."
        )
    if missing:
        raise NeedsFiles(sorted(missing))
    if len(entries) != 1 or not needed:
        raise SuspectError(
            f"{source} needs {len(entries)} inputs to compute {shown(tensor)}, but a model up to "
            "the cut takes images and nothing else."
        )
    graph = onnx.helper.make_graph(
        [node for index in sorted(needed) for node in _apart(model.graph.node[index])],
        "suspect",
        list(entries.values()),
        [ValueInfoProto(name=tensor)],
        list(weights.values()),
    )
    opsets = [opset for opset in model.opset_import if opset.domain in (*_STANDARD, _OPTIMISER)]
    return onnx.helper.make_model(graph, opset_imports=opsets, ir_version=model.ir_version)


def _apart(node: NodeProto) -> list[NodeProto]:
    """A convolution and the rectifier that onnxruntime has put into it, so that filters end in between."""
    said = {one.name: one for one in node.attribute}
    if (node.domain, node.op_type) != (_OPTIMISER, "FusedConv") or "activation" not in said:
        return [node]
    kind = said.pop("activation").s.decode(errors="replace")
    numbers = said.pop("activation_params").floats if "activation_params" in said else []
    if numbers and kind != "Clip":
        return [node]
    made = node.output[0]
    steps = [onnx.helper.make_node("Conv", node.input[:3], [f"{made}, convolved"])]
    steps[0].attribute.extend(said.values())
    if len(node.input) > 3:
        steps.append(onnx.helper.make_node("Add", [*steps[0].output, node.input[3]], [f"{made}, added"]))
    bounds = [f"{made}, bound {place}" for place in range(len(numbers))]
    rectifier = onnx.helper.make_node(kind, [*steps[-1].output, *bounds], node.output[:1])
    constants = [
        onnx.helper.make_node("Constant", [], [bound], value_float=number)
        for bound, number in zip(bounds, numbers, strict=True)
    ]
    return [*constants, *steps, rectifier]


def _check_node(node: NodeProto, source: Path) -> None:
    """Raise unless ``node`` is a standard operator that only computes."""
    what = f"{source} uses the operator {shown(node.op_type)}"
    if node.domain not in _STANDARD and not (node.domain == _OPTIMISER and node.op_type in _OPTIMISED):
        raise SuspectError(
            f"{what} of the domain {shown(node.domain)}, which is not of the ONNX standard: export "
            "the model with standard operators only."
        )
    if node.op_type in _RANDOM:
        raise SuspectError(f"{what}, which draws random numbers: export the model for inference.")
    for attribute in node.attribute:
        for tensor in _tensors_of(attribute):
            _check_internal(tensor, source)
    for graph in graphs_in(node):  # a loop without end ends with the time that an examination may take
        for inner in graph.node:
            _check_node(inner, source)
        for weights in graph.initializer:
            _checked_weights(weights, source)
        for sparse in graph.sparse_initializer:
            _dense(sparse, source)


def _tensors_of(attribute: AttributeProto) -> Iterable[TensorProto]:
    yield attribute.t
    yield from attribute.tensors
    for sparse in (attribute.sparse_tensor, *attribute.sparse_tensors):
        yield from (sparse.values, sparse.indices)


def _file_of(tensor: TensorProto) -> str | None:
    """The file in the graph's own folder that holds a tensor's values; None if it names none, or another."""
    said = {entry.key: entry.value for entry in tensor.external_data}
    name = said.get("location", "") if tensor.data_location == TensorProto.EXTERNAL else ""
    plain = name not in (".", "..") and len(name) <= 255 and not any(sign in name for sign in "/\\\0")
    return name if name and plain else None


def _brought(tensor: TensorProto, content: memoryview, source: Path) -> TensorProto:
    """A tensor with the values that lie in another file."""
    said = {entry.key: entry.value for entry in tensor.external_data}
    try:
        size = math.prod(tensor.dims) * onnx.helper.tensor_dtype_to_np_dtype(tensor.data_type).itemsize
        start = int(said.get("offset") or 0)
        if min(size, start, *tensor.dims, 0) < 0 or int(said.get("length") or size) != size:
            raise ValueError("sizes that contradict each other")
        if start + size > len(content):
            raise ValueError("beyond the file")
    except (ValueError, KeyError, TypeError) as error:
        raise SuspectError(
            f"{source} is damaged: the values of {shown(tensor.name)} do not lie in the file that it names."
        ) from error
    return TensorProto(
        name=tensor.name,
        dims=tensor.dims,
        data_type=tensor.data_type,
        raw_data=bytes(content[start : start + size]),
    )


def _check_internal(tensor: TensorProto, source: Path) -> None:
    if tensor.data_location == TensorProto.EXTERNAL or tensor.external_data:
        raise SuspectError(
            f"{source} keeps {shown(tensor.name)} in another file, which is not opened unless it holds "
            "weights in the same folder, as its name could point anywhere: save the model as one file "
            "(external_data=False)."
        )


def _dense(sparse: SparseTensorProto, source: Path) -> TensorProto:
    """The weights that onnxruntime makes of sparse ones: zeros but for some values."""
    _check_internal(sparse.values, source)
    _check_internal(sparse.indices, source)
    shape = tuple(sparse.dims)
    if any(size < 0 for size in shape) or math.prod(shape) > _MAX_DENSE:
        raise SuspectError(f"{source} has sparse weights of shape {shown(shape)}, more than there can be.")
    try:
        values = onnx.numpy_helper.to_array(sparse.values).reshape(-1)
        places = onnx.numpy_helper.to_array(sparse.indices)
        if places.ndim == 2:
            places = np.ravel_multi_index(tuple(places.T), shape)
        dense = np.zeros(math.prod(shape), values.dtype)
        if places.size and places.min() < 0:
            raise IndexError("a place before the first")
        dense[places] = values
    except MemoryError:
        raise
    except Exception as error:
        raise SuspectError(
            f"{source} is damaged: the sparse values of {shown(sparse.values.name)} do not fit its shape."
        ) from error
    return onnx.numpy_helper.from_array(dense.reshape(shape), sparse.values.name)


def _checked_weights(tensor: TensorProto, source: Path) -> TensorProto:
    _check_internal(tensor, source)
    try:
        onnx.numpy_helper.to_array(tensor)
    except MemoryError:
        raise
    except Exception as error:
        raise SuspectError(
            f"{source} is damaged: the values of {shown(tensor.name)} do not have its shape."
        ) from error
    # Infinity is a fair constant, of a mask for one; what counts is whether activations are finite.
    return tensor


@functools.cache
def _limit_memory(limit: int) -> None:
    """Register the allocator of the process, so that a graph that asks for too much fails with an error."""
    memory = onnxruntime.OrtMemoryInfo(
        "Cpu", onnxruntime.OrtAllocatorType.ORT_ARENA_ALLOCATOR, 0, onnxruntime.OrtMemType.DEFAULT
    )
    arena = {"max_mem": limit, "arena_extend_strategy": 1}
    onnxruntime.create_and_register_allocator(memory, onnxruntime.OrtArenaCfg(arena))


def _session(content: bytes, source: Path, *, threads: int, memory: int, optimised: bool) -> Any:
    options = onnxruntime.SessionOptions()
    if not optimised:  # parts that are asked a few times: it would take longer than what it saves
        options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.intra_op_num_threads = threads
    options.inter_op_num_threads = 1
    options.use_deterministic_compute = True
    options.log_severity_level = 4
    options.add_session_config_entry("session.use_env_allocators", "1")
    _limit_memory(memory)
    try:
        return onnxruntime.InferenceSession(
            content,
            options,
            providers=["CPUExecutionProvider"],
            enable_fallback=0,  # or else it prints to the standard output and tries again
        )
    except Exception as error:
        _check_memory(error)
        raise SuspectError(f"{source} cannot be run by onnxruntime: {reason(error)}.") from error


def _run(
    session: Any,
    batch: Numbers,
    dtype: type[np.floating[Any]],
    sizes: Sequence[int | None],
    source: Path,
) -> npt.NDArray[np.float32]:
    """Run a batch, in pieces of the size that the graph was exported for if it has a fixed one."""
    images = batch.astype(dtype, copy=False)
    step = sizes[0] if sizes and sizes[0] else len(images)
    _check_input([step], images.shape[1:], source)
    outputs = []
    try:
        for start in range(0, len(images), step):
            piece = images[start : start + step]
            padding = np.zeros((step - len(piece), *piece.shape[1:]), dtype)
            output = session.run(None, {session.get_inputs()[0].name: np.concatenate([piece, padding])})[0]
            outputs.append(np.asarray(output, np.float32)[: len(piece)])
        return np.concatenate(outputs)
    except Exception as error:
        _check_memory(error)
        raise SuspectError(
            f"{source} does not run on inputs of shape {tuple(images.shape[1:])}: {reason(error)}."
        ) from error


def _check_memory(error: Exception) -> None:
    """Raise MemoryError if that is what an error of onnxruntime means: it has no kind of its own for it."""
    text = str(error).lower()
    if isinstance(error, MemoryError) or any(sign in text for sign in _OUT_OF_MEMORY):
        raise MemoryError from error


def _short(names: Iterable[str]) -> list[str]:
    """The names to look through: an adversary's may be long, many, or bytes that are no text."""
    kept = (name for name in names if isinstance(name, str) and len(name) <= 200)
    return list(dict.fromkeys(itertools.islice(kept, 10_000)))


def _listed(names: Sequence[str]) -> str:
    return ", ".join(shown(name) for name in names[:5]) or "none"
