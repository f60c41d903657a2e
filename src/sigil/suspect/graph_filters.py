"""The filters of an ONNX graph: the weights of its convolutions, in the order of computing.

They tell where a model comes from (:mod:`sigil.origin`) although the graph has no names of layers. A weight
that the graph computes from constants, by scaling, reshaping or dequantising it, is computed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import onnx
from onnx import ModelProto, NodeProto, ValueInfoProto

from sigil.errors import SuspectError

MOST_FILTERS: Final = 1_024
MOST_NUMBERS: Final = 1 << 26
"""Of all filters together; what comes after is left out."""

Evaluate = Callable[[bytes], Sequence[Any]]
"""Runs a graph without inputs and returns its outputs."""


def convolution_filters(part: ModelProto, evaluate: Evaluate) -> list[npt.NDArray[np.float32]]:
    """The weights (outputs, inputs, height, width) of the convolutions of a checked graph, as float32.

    Those that depend on the input, or that cannot be computed, are left out.
    """
    names = [node.input[1] for node in part.graph.node if node.op_type == "Conv" and len(node.input) > 1]
    known = {weights.name: weights for weights in part.graph.initializer}
    values = _computed(part, [name for name in dict.fromkeys(names) if name not in known], evaluate)
    found: list[npt.NDArray[np.float32]] = []
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


def _computed(part: ModelProto, names: Sequence[str], evaluate: Evaluate) -> dict[str, Any]:
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
        return dict(zip(wanted, evaluate(model.SerializeToString()), strict=True))
    except SuspectError:
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
