"""Graphs of ONNX in which rectifiers work on tensors of another layout, and no convolution is called one."""

from __future__ import annotations

import copy
from collections.abc import Callable

import numpy as np
from onnx import ModelProto, NodeProto, TensorProto, helper, numpy_helper

from harness.disguises import Rewrite
from harness.held_out import multiplied

# From the name of a tensor to nodes that lay it out otherwise, and from the name of the outcome back.
Layout = Callable[[str, str], tuple[list[NodeProto], list[NodeProto]]]


def _turned(there: list[int], back: list[int]) -> Layout:
    def layout(read: str, made: str) -> tuple[list[NodeProto], list[NodeProto]]:
        return (
            [helper.make_node("Transpose", [read], [f"{made} laid"], perm=there)],
            [helper.make_node("Transpose", [f"{made} done"], [made], perm=back)],
        )

    return layout


def _shaped(shape: list[int]) -> Layout:
    def layout(read: str, made: str) -> tuple[list[NodeProto], list[NodeProto]]:
        wanted = numpy_helper.from_array(np.array(shape, np.int64), f"{made} shape")
        return (
            [
                helper.make_node("Shape", [read], [f"{made} before"]),
                helper.make_node("Constant", [], [f"{made} wanted"], value=wanted),
                helper.make_node("Reshape", [read, f"{made} wanted"], [f"{made} laid"]),
            ],
            [helper.make_node("Reshape", [f"{made} done", f"{made} before"], [made])],
        )

    return layout


def _listed(read: str, made: str) -> tuple[list[NodeProto], list[NodeProto]]:
    first = helper.make_tensor(f"{made} zero", TensorProto.INT64, [], [0])
    return (
        [helper.make_node("Identity", [read], [f"{made} laid"])],
        [
            helper.make_node("SequenceConstruct", [f"{made} done"], [f"{made} list"]),
            helper.make_node("Constant", [], [f"{made} first"], value=first),
            helper.make_node("SequenceAt", [f"{made} list", f"{made} first"], [made]),
        ],
    )


def _laid_out(layout: Layout) -> Rewrite:
    def rewrite(model: ModelProto) -> ModelProto:
        model = copy.deepcopy(model)
        nodes: list[NodeProto] = []
        for node in model.graph.node:
            if node.op_type != "Relu":
                nodes.append(node)
                continue
            made = node.output[0]
            there, back = layout(node.input[0], made)
            nodes += [*there, helper.make_node("Relu", [f"{made} laid"], [f"{made} done"]), *back]
        del model.graph.node[:]
        model.graph.node.extend(nodes)
        return multiplied(model)

    return rewrite


LAYOUTS: dict[str, Rewrite] = {
    "vectors": _laid_out(_shaped([0, -1])),
    "maps in one row": _laid_out(_shaped([0, 0, -1])),
    "channels last": _laid_out(_turned([0, 2, 3, 1], [0, 3, 1, 2])),
    "batch last": _laid_out(_turned([1, 2, 3, 0], [3, 0, 1, 2])),
    "lists": _laid_out(_listed),
}
