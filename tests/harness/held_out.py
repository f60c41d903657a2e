"""A family of disguises that the reader was never tried on: run once, when that was frozen.

Graphs of ONNX that compute the same with other operators, and files of PyTorch that hold the same weights in
another form. ``benchmarks/disguises.py --held-out`` runs them. The author of the first part had read an
earlier reader; the second was written by somebody who had read none, from the lists of what exists.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import torch
from onnx import ModelProto, NodeProto, TensorProto, helper
from safetensors.torch import save_file
from torch import Tensor, nn

from harness.disguises import (
    Array,
    Rewrite,
    _around_rectifiers,
    _attributes,
    _Graph,
    _rectifier,
    _rewritten,
)
from sigil.models import Model


def _convolution(node: NodeProto, weight: Array) -> tuple[int, list[int], list[int]]:
    """Groups, strides and paddings."""
    attributes = _attributes(node)
    return (
        int(attributes.get("group", 1)),
        list(attributes.get("strides", [1, 1])),
        list(attributes.get("pads", [0, 0, 0, 0])),
    )


class _Taps:
    """The pieces of an image that each tap of a kernel reads."""

    def __init__(self, node: NodeProto, weight: Array, graph: _Graph) -> None:
        self.name, self.graph = node.output[0], graph
        _, self.strides, pads = _convolution(node, weight)
        amounts = graph.add(np.array([0, 0, *pads[:2], 0, 0, *pads[2:]], np.int64), f"{self.name} amounts")
        self.nodes = [helper.make_node("Pad", [node.input[0], amounts], [f"{self.name} framed"])]
        self.axes = graph.add(np.array([2, 3], np.int64), f"{self.name} axes")
        self.steps = graph.add(np.array(self.strides, np.int64), f"{self.name} steps")
        self.kernel = weight.shape[2:]

    def piece(self, y: int, x: int) -> str:
        """What the tap reads at each position: from here on, by strides, as far as the kernel leaves."""
        edges = []
        far = 1 << 30
        for word, values in (
            ("from", [y, x]),
            ("to", [y - self.kernel[0] + 1 or far, x - self.kernel[1] + 1 or far]),
        ):
            edges.append(self.graph.add(np.array(values, np.int64), f"{self.name} {y} {x} {word}"))
        made = f"{self.name} {y} {x}"
        self.nodes.append(
            helper.make_node("Slice", [f"{self.name} framed", *edges, self.axes, self.steps], [made])
        )
        return made


def _biased(node: NodeProto, read: str, graph: _Graph) -> NodeProto:
    """The bias of a convolution added by itself."""
    name = node.output[0]
    if len(node.input) < 3:
        return helper.make_node("Identity", [read], [name])
    bias = graph.add(graph.weights[node.input[2]].reshape(1, -1, 1, 1), f"{name} bias apart")
    return helper.make_node("Add", [read, bias], [name])


def multiplied(model: ModelProto) -> ModelProto:
    """Convolutions as one matrix product over the pieces of the image, channels last."""

    def change(node: NodeProto, weight: Array, graph: _Graph) -> list[NodeProto] | None:
        if _convolution(node, weight)[0] != 1:
            return None
        name, taps = node.output[0], _Taps(node, weight, graph)
        pieces = [taps.piece(y, x) for y in range(weight.shape[2]) for x in range(weight.shape[3])]
        matrix = np.ascontiguousarray(weight.transpose(2, 3, 1, 0).reshape(-1, len(weight)))
        product = graph.add(matrix, f"{name} matrix")
        return [
            *taps.nodes,
            helper.make_node("Concat", pieces, [f"{name} all"], axis=1),
            helper.make_node("Transpose", [f"{name} all"], [f"{name} last"], perm=[0, 2, 3, 1]),
            helper.make_node("MatMul", [f"{name} last", product], [f"{name} product"]),
            helper.make_node("Transpose", [f"{name} product"], [f"{name} first"], perm=[0, 3, 1, 2]),
            _biased(node, f"{name} first", graph),
        ]

    return _rewritten(model, change)


def tapped(model: ModelProto) -> ModelProto:
    """Convolutions as sums of convolutions without a kernel over shifted images."""

    def change(node: NodeProto, weight: Array, graph: _Graph) -> list[NodeProto] | None:
        if _convolution(node, weight)[0] != 1:
            return None
        name, taps, made = node.output[0], _Taps(node, weight, graph), []
        nodes = []
        for y in range(weight.shape[2]):
            for x in range(weight.shape[3]):
                piece = taps.piece(y, x)
                values = graph.add(
                    np.ascontiguousarray(weight[:, :, y : y + 1, x : x + 1]), f"{piece} weight"
                )
                nodes.append(helper.make_node("Conv", [piece, values], [f"{piece} made"]))
                made.append(f"{piece} made")
        summed = helper.make_node("Sum", made, [f"{name} sum"])
        return [*taps.nodes, *nodes, summed, _biased(node, f"{name} sum", graph)]

    return _rewritten(model, change)


def shuffled(model: ModelProto) -> ModelProto:
    """The filters of a convolution dealt out to three convolutions, joined, and put back by a Gather."""

    def change(node: NodeProto, weight: Array, graph: _Graph) -> list[NodeProto] | None:
        if _convolution(node, weight)[0] != 1 or len(weight) < 3:
            return None
        name, nodes, parts = node.output[0], [], []
        dealt = [np.arange(start, len(weight), 3) for start in range(3)]
        for number, rows in enumerate(dealt):
            inputs = [node.input[0], graph.add(np.ascontiguousarray(weight[rows]), f"{name} {number} dealt")]
            if len(node.input) > 2:
                inputs.append(graph.add(graph.weights[node.input[2]][rows], f"{name} {number} bias"))
            nodes.append(helper.make_node("Conv", inputs, [f"{name} {number} part"], **_attributes(node)))
            parts.append(f"{name} {number} part")
        back = graph.add(np.argsort(np.concatenate(dealt)).astype(np.int64), f"{name} back")
        return [
            *nodes,
            helper.make_node("Concat", parts, [f"{name} joined"], axis=1),
            helper.make_node("Gather", [f"{name} joined", back], [name], axis=1),
        ]

    return _rewritten(model, change)


def added(model: ModelProto) -> ModelProto:
    """Each weight as the sum of a random one and the rest, in two convolutions."""
    chance = np.random.default_rng(1)

    def change(node: NodeProto, weight: Array, graph: _Graph) -> list[NodeProto]:
        name = node.output[0]
        sizes = np.abs(weight).max((1, 2, 3), keepdims=True)
        noise = (chance.standard_normal(weight.shape) * sizes).astype(np.float32)
        one, other = graph.add(noise, f"{name} noise"), graph.add(weight - noise, f"{name} rest")
        return [
            helper.make_node("Conv", [node.input[0], one], [f"{name} one"], **_attributes(node)),
            helper.make_node(
                "Conv", [node.input[0], other, *node.input[2:]], [f"{name} other"], **_attributes(node)
            ),
            helper.make_node("Add", [f"{name} one", f"{name} other"], [name]),
        ]

    return _rewritten(model, change)


def factored(model: ModelProto) -> ModelProto:
    """Weights as products of two initializers."""
    chance = np.random.default_rng(2)

    def change(node: NodeProto, weight: Array, graph: _Graph) -> list[NodeProto]:
        name = node.output[0]
        factor = np.exp(chance.standard_normal(weight.shape)).astype(np.float32)
        one, other = graph.add(factor, f"{name} factor"), graph.add(weight / factor, f"{name} quotient")
        return [
            helper.make_node("Mul", [one, other], [f"{name} product"]),
            helper.make_node(
                "Conv", [node.input[0], f"{name} product", *node.input[2:]], [name], **_attributes(node)
            ),
        ]

    return _rewritten(model, change)


def tiled(model: ModelProto) -> ModelProto:
    """Convolutions without a stride computed for the upper and the lower half of the image by themselves."""

    def change(node: NodeProto, weight: Array, graph: _Graph) -> list[NodeProto] | None:
        _, strides, pads = _convolution(node, weight)
        if set(strides) != {1} or weight.shape[2] != 3 or pads != [1, 1, 1, 1]:
            return None
        name, attributes = node.output[0], _attributes(node) | {"pads": [0, 1, 0, 1]}
        amounts = graph.add(np.array([0, 0, 1, 0, 0, 0, 1, 0], np.int64), f"{name} amounts")
        axis = graph.add(np.array([2], np.int64), f"{name} axis")
        nodes = [helper.make_node("Pad", [node.input[0], amounts], [f"{name} framed"])]
        for number, (start, stop) in enumerate(((0, 3), (1, 1 << 30))):
            edges = [
                graph.add(np.array([edge], np.int64), f"{name} {number} {word}")
                for edge, word in ((start, "from"), (stop, "to"))
            ]
            read = f"{name} {number} strip"
            nodes += [
                helper.make_node("Slice", [f"{name} framed", *edges, axis], [read]),
                helper.make_node("Conv", [read, *node.input[1:]], [f"{name} {number} tile"], **attributes),
            ]
        tiles = [f"{name} 0 tile", f"{name} 1 tile"]
        return [*nodes, helper.make_node("Concat", tiles, [name], axis=2)]

    return _rewritten(model, change)


def last(model: ModelProto) -> ModelProto:
    """Between convolutions everything channels last, as frameworks do that keep pixels together."""

    def change(node: NodeProto, weight: Array, graph: _Graph) -> list[NodeProto]:
        name = node.output[0]
        kernel = graph.add(np.ascontiguousarray(weight.transpose(2, 3, 1, 0)), f"{name} kernel last")
        return [
            helper.make_node("Transpose", [node.input[0]], [f"{name} moved"], perm=[0, 2, 3, 1]),
            helper.make_node("Transpose", [f"{name} moved"], [f"{name} back"], perm=[0, 3, 1, 2]),
            helper.make_node("Transpose", [kernel], [f"{name} kernel"], perm=[3, 2, 0, 1]),
            helper.make_node(
                "Conv", [f"{name} back", f"{name} kernel", *node.input[2:]], [name], **_attributes(node)
            ),
        ]

    return _rewritten(model, change)


def normalised(model: ModelProto) -> ModelProto:
    """Behind each convolution a normalisation in single steps: less a mean, by a root, times and plus."""
    chance = np.random.default_rng(3)

    def change(node: NodeProto, weight: Array, graph: _Graph) -> list[NodeProto]:
        name, size = node.output[0], len(weight)
        bias = graph.weights[node.input[2]] if len(node.input) > 2 else np.zeros(size, np.float32)
        scale = np.exp(chance.standard_normal(size)).astype(np.float32)
        signs = chance.choice([-1.0, 1.0], size).astype(np.float32)
        mean = (chance.standard_normal(size) * np.abs(weight).max((1, 2, 3)) * scale).astype(np.float32)
        factor = (scale * signs).reshape(-1, 1, 1, 1)
        known = {
            "kernel": weight * factor,
            "mean": mean.reshape(1, -1, 1, 1),
            "variance": (scale**2).reshape(1, -1, 1, 1),
            "half": np.array(0.5, np.float32),
            "gamma": signs.reshape(1, -1, 1, 1),
            "beta": (bias + mean / scale * signs).reshape(1, -1, 1, 1),
        }
        names = {
            word: graph.add(values.astype(np.float32), f"{name} {word}") for word, values in known.items()
        }
        return [
            helper.make_node("Conv", [node.input[0], names["kernel"]], [f"{name} raw"], **_attributes(node)),
            helper.make_node("Sub", [f"{name} raw", names["mean"]], [f"{name} centred"]),
            helper.make_node("Pow", [names["variance"], names["half"]], [f"{name} root"]),
            helper.make_node("Div", [f"{name} centred", f"{name} root"], [f"{name} divided"]),
            helper.make_node("Mul", [f"{name} divided", names["gamma"]], [f"{name} scaled"]),
            helper.make_node("Add", [f"{name} scaled", names["beta"]], [name]),
        ]

    return _rewritten(model, change)


def mirrored(model: ModelProto) -> ModelProto:
    """Rectifiers as (x + |x|) / 2."""
    model = copy.deepcopy(model)
    half = _Graph(model).add(np.array(0.5, np.float32), "one half")
    nodes: list[NodeProto] = []
    for node in model.graph.node:
        if node.op_type != "Relu":
            nodes.append(node)
            continue
        read, made = node.input[0], node.output[0]
        nodes += [
            helper.make_node("Abs", [read], [f"{made} size"]),
            helper.make_node("Add", [read, f"{made} size"], [f"{made} twice"]),
            helper.make_node("Mul", [f"{made} twice", half], [made]),
        ]
    del model.graph.node[:]
    model.graph.node.extend(nodes)
    return model


def ladders(model: ModelProto) -> ModelProto:
    """Behind every node tensors that are renamed, flattened and put back in shape."""
    model = copy.deepcopy(model)
    nodes: list[NodeProto] = []
    for node in model.graph.node:
        nodes.append(node)
        if node.op_type not in ("Conv", "Relu", "Add", "Clip"):
            continue
        made = node.output[0]
        node.output[0] = f"{made} rung"
        nodes += [
            helper.make_node("Identity", [f"{made} rung"], [f"{made} same"]),
            helper.make_node("Shape", [f"{made} same"], [f"{made} shape"]),
            helper.make_node("Flatten", [f"{made} same"], [f"{made} flat"], axis=1),
            helper.make_node("Reshape", [f"{made} flat", f"{made} shape"], [made]),
        ]
    del model.graph.node[:]
    model.graph.node.extend(nodes)
    return model


def halves(model: ModelProto) -> ModelProto:
    """Weights stored in half precision."""

    def change(node: NodeProto, weight: Array, graph: _Graph) -> list[NodeProto]:
        name = node.output[0]
        scale = np.abs(weight).max((1, 2, 3), keepdims=True)
        scale[scale == 0] = 1.0
        stored = graph.add((weight / scale).astype(np.float16), f"{name} half")
        sizes = graph.add(scale.astype(np.float32), f"{name} size")
        return [
            helper.make_node("Cast", [stored], [f"{name} cast"], to=TensorProto.FLOAT),
            helper.make_node("Mul", [f"{name} cast", sizes], [f"{name} weight"]),
            helper.make_node(
                "Conv", [node.input[0], f"{name} weight", *node.input[2:]], [name], **_attributes(node)
            ),
        ]

    return _rewritten(model, change)


def integers(model: ModelProto) -> ModelProto:
    """Weights stored as 8-bit integers with a scale per filter."""

    def change(node: NodeProto, weight: Array, graph: _Graph) -> list[NodeProto]:
        name = node.output[0]
        scale = np.abs(weight).max((1, 2, 3)) / 127
        scale[scale == 0] = 1.0
        stored = graph.add(np.rint(weight / scale.reshape(-1, 1, 1, 1)).astype(np.int8), f"{name} bytes")
        sizes = graph.add(scale.astype(np.float32), f"{name} size")
        zero = graph.add(np.zeros(len(weight), np.int8), f"{name} zero point")
        return [
            helper.make_node("DequantizeLinear", [stored, sizes, zero], [f"{name} weight"], axis=0),
            helper.make_node(
                "Conv", [node.input[0], f"{name} weight", *node.input[2:]], [name], **_attributes(node)
            ),
        ]

    return _rewritten(model, change)


def nested(model: ModelProto) -> ModelProto:
    """Each convolution with its bias in a function that the file defines."""
    model = copy.deepcopy(model)
    weights = {one.name: one for one in model.graph.initializer}
    nodes: list[NodeProto] = []
    for number, node in enumerate(list(model.graph.node)):
        if node.op_type != "Conv":
            nodes.append(node)
            continue
        inner = helper.make_node("Conv", ["x", *(f"w{place}" for place in range(len(node.input) - 1))], ["y"])
        inner.attribute.extend(node.attribute)
        constants = []
        for place, name in enumerate(node.input[1:]):
            constants.append(helper.make_node("Constant", [], [f"w{place}"], value=weights[name]))
        model.functions.append(
            helper.make_function(
                "thief", f"Layer{number}", ["x"], ["y"], [*constants, inner], list(model.opset_import)
            )
        )
        nodes.append(helper.make_node(f"Layer{number}", [node.input[0]], list(node.output), domain="thief"))
    del model.graph.node[:]
    model.graph.node.extend(nodes)
    model.opset_import.append(helper.make_opsetid("thief", 1))
    return model


GRAPHS: dict[str, Rewrite] = {
    "matrix products over pieces": multiplied,
    "sums over taps": tapped,
    "filters dealt out and shuffled": shuffled,
    "random plus the rest": added,
    "products of two initializers": factored,
    "two tiles": tiled,
    "channels last": last,
    "normalised in single steps": normalised,
    "rectifiers as (x + |x|) / 2": mirrored,
    "ladders of reshapes": ladders,
    "half precision": halves,
    "8-bit integers": integers,
    "functions": nested,
}
ROUNDED = ("half precision", "8-bit integers")
"""Those that change answers a little."""


# The same weights in another file.

Store = Callable[[Model, Path], None]


def _convolutions(half: Model) -> list[str]:
    return [name for name, layer in half.named_modules() if isinstance(layer, nn.Conv2d)]


def weight_norm(half: Model, path: Path) -> None:
    """Length and direction of each filter, as `weight_norm` stores them."""
    state = dict(half.state_dict())
    for name in _convolutions(half):
        weight = state.pop(f"{name}.weight")
        state[f"{name}.weight_g"] = weight.double().flatten(1).norm(dim=1).view(-1, 1, 1, 1).float()
        state[f"{name}.weight_v"] = weight
    torch.save(state, path)


def parametrised(half: Model, path: Path) -> None:
    """The same as `torch.nn.utils.parametrizations` stores it."""
    state = dict(half.state_dict())
    for name in _convolutions(half):
        weight = state.pop(f"{name}.weight")
        length = weight.double().flatten(1).norm(dim=1).view(-1, 1, 1, 1).float()
        state[f"{name}.parametrizations.weight.original0"] = length
        state[f"{name}.parametrizations.weight.original1"] = weight
    torch.save(state, path)


def prefixed(half: Model, path: Path) -> None:
    """Behind prefixes of several wrappers, in a checkpoint with an optimizer."""
    state = {f"module._orig_mod.net.0.{name}": value for name, value in half.state_dict().items()}
    torch.save(
        {"epoch": 3, "optimizer": {"state": {0: {"step": torch.ones(1)}}}, "agent": {"sd": state}}, path
    )


def tied(half: Model, path: Path) -> None:
    """Every tensor under two names, which share their storage."""
    state = dict(half.state_dict())
    torch.save(state | {f"shadow.{name}": value for name, value in state.items()}, path)


def fused(half: Model, path: Path) -> None:
    """Batch norms folded into the convolutions in front of them, which get a bias."""
    state = dict(half.state_dict())
    known = dict(half.named_modules())
    for name, following in zip(known, list(known)[1:], strict=False):
        layer, norm = known[name], known[following]
        if not (isinstance(layer, nn.Conv2d) and isinstance(norm, nn.BatchNorm2d)):
            continue
        assert norm.running_var is not None
        assert norm.running_mean is not None
        factor = norm.weight.double() / (norm.running_var.double() + norm.eps).sqrt()
        bias = torch.zeros(len(factor)) if layer.bias is None else layer.bias
        state[f"{name}.weight"] = (layer.weight.double() * factor.view(-1, 1, 1, 1)).float()
        state[f"{name}.bias"] = (
            (bias.double() - norm.running_mean.double()) * factor + norm.bias.double()
        ).float()
        for word in ("weight", "bias", "running_mean", "running_var", "num_batches_tracked"):
            state.pop(f"{following}.{word}", None)
    torch.save({name: value.detach() for name, value in state.items()}, path)


def renamed(half: Model, path: Path) -> None:
    """Names of nobody's: p000, p001, …, in the order of the model."""
    state = half.state_dict()
    torch.save({f"p{number:03}": value for number, value in enumerate(state.values())}, path)


def flattened(half: Model, path: Path) -> None:
    """Kernels as matrices."""
    torch.save({name: value.flatten(1) if value.ndim == 4 else value for name, value in _items(half)}, path)


def moved(half: Model, path: Path) -> None:
    """Kernels with their channels last in memory, half of the tensors as views into one storage."""
    state = {
        name: value.to(memory_format=torch.channels_last) if value.ndim == 4 else value
        for name, value in _items(half)
    }
    vectors = [name for name, value in state.items() if value.ndim == 1]
    whole = torch.cat([state[name] for name in vectors])
    for name, part in zip(vectors, whole.split([len(state[name]) for name in vectors]), strict=True):
        state[name] = part
    torch.save(state, path)


def bfloats(half: Model, path: Path) -> None:
    """In bfloat16, as safetensors; biases in double precision."""
    save_file(
        {name: value.bfloat16() if value.ndim > 1 else value.double() for name, value in _items(half)}, path
    )


def _items(half: Model) -> list[tuple[str, Tensor]]:
    return [(name, value.contiguous()) for name, value in half.state_dict().items()]


FILES: dict[str, Store] = {
    "weight_g and weight_v": weight_norm,
    "parametrizations": parametrised,
    "prefixes of wrappers": prefixed,
    "tied names": tied,
    "batch norms folded in": fused,
    "renamed tensors": renamed,
    "kernels as matrices": flattened,
    "channels last in memory": moved,
    "bfloat16": bfloats,
}


# The second part.


def branched(model: ModelProto) -> ModelProto:
    """Each convolution in two branches, between which the input chooses: itself, or less its negative."""

    def change(node: NodeProto, weight: Array, graph: _Graph) -> list[NodeProto]:
        name, negated = node.output[0], []
        for number, read in enumerate(node.input[1:]):
            negated.append(graph.add(-graph.weights[read], f"{name} negative {number}"))
        zero = graph.add(np.zeros((), np.float32), f"{name} threshold")
        ways = {
            "then_branch": [helper.make_node("Conv", node.input, [f"{name} then"], **_attributes(node))],
            "else_branch": [
                helper.make_node("Conv", [node.input[0], *negated], [f"{name} not"], **_attributes(node)),
                helper.make_node("Neg", [f"{name} not"], [f"{name} else"]),
            ],
        }
        branches = {
            word: helper.make_graph(
                nodes,
                f"{name} {word}",
                [],
                [helper.make_tensor_value_info(nodes[-1].output[0], TensorProto.FLOAT, None)],
            )
            for word, nodes in ways.items()
        }
        return [
            helper.make_node("ReduceMean", [node.input[0]], [f"{name} mean"], keepdims=0),
            helper.make_node("Greater", [f"{name} mean", zero], [f"{name} choice"]),
            helper.make_node("If", [f"{name} choice"], [name], **branches),
        ]

    return _rewritten(model, change)


def scanned(model: ModelProto) -> ModelProto:
    """Each convolution in a loop over the images."""

    def change(node: NodeProto, weight: Array, graph: _Graph) -> list[NodeProto]:
        name = node.output[0]
        axis = graph.add(np.array([0], np.int64), f"{name} axis")
        body = helper.make_graph(
            [
                helper.make_node("Unsqueeze", [f"{name} image", axis], [f"{name} batch"]),
                helper.make_node(
                    "Conv", [f"{name} batch", *node.input[1:]], [f"{name} made"], **_attributes(node)
                ),
                helper.make_node("Squeeze", [f"{name} made", axis], [f"{name} map"]),
            ],
            f"{name} body",
            [helper.make_tensor_value_info(f"{name} image", TensorProto.FLOAT, None)],
            [helper.make_tensor_value_info(f"{name} map", TensorProto.FLOAT, None)],
        )
        return [helper.make_node("Scan", [node.input[0]], [name], body=body, num_scan_inputs=1)]

    return _rewritten(model, change)


def sorted_out(model: ModelProto) -> ModelProto:
    """Rectifiers as the first of two numbers in order: of each and its bound."""

    def change(node: NodeProto, shape: tuple[int, ...], graph: _Graph) -> list[NodeProto]:
        read, made, nodes = node.input[0], node.output[0], []
        axis = graph.add(np.array([-1], np.int64), f"{made} axis")
        count = graph.add(np.array([1], np.int64), f"{made} count")
        zero = graph.add(np.zeros((), np.float32), f"{made} zero")
        bounds = [(word, name) for word, name in zip(("low", "high"), node.input[1:], strict=False) if name]
        for word, bound in bounds or [("low", zero)]:
            here = f"{made} {word}"
            nodes += [
                helper.make_node("Mul", [read, zero], [f"{here} nothing"]),
                helper.make_node("Add", [f"{here} nothing", bound], [f"{here} bound"]),
                helper.make_node("Unsqueeze", [read, axis], [f"{here} 1"]),
                helper.make_node("Unsqueeze", [f"{here} bound", axis], [f"{here} 2"]),
                helper.make_node("Concat", [f"{here} 1", f"{here} 2"], [f"{here} pair"], axis=-1),
                helper.make_node(
                    "TopK",
                    [f"{here} pair", count],
                    [f"{here} first", f"{here} place"],
                    largest=int(word == "low"),
                ),
                helper.make_node("Squeeze", [f"{here} first", axis], [f"{here} made"]),
            ]
            read = f"{here} made"
        return [*nodes, helper.make_node("Identity", [read], [made])]

    return _around_rectifiers(model, change)


def widened(model: ModelProto) -> ModelProto:
    """Around each rectifier every channel twice, in any order, at sizes of its own; then a weighted sum."""
    chance = np.random.default_rng(4)

    def change(node: NodeProto, shape: tuple[int, ...], graph: _Graph) -> list[NodeProto]:
        read, made, size = node.input[0], node.output[0], shape[0]
        origin = chance.permutation(np.repeat(np.arange(size), 2))
        scale = np.exp(chance.standard_normal(2 * size)) if node.op_type == "Relu" else np.ones(2 * size)
        share = np.zeros(2 * size)
        for channel in range(size):
            share[origin == channel] = [0.3, 0.7]
        there, back = np.zeros((2 * size, size)), np.zeros((size, 2 * size))
        there[np.arange(2 * size), origin] = scale
        back[origin, np.arange(2 * size)] = share / scale
        kernels = [
            graph.add(values.astype(np.float32)[:, :, None, None], f"{made} {word}")
            for word, values in (("there", there), ("back", back))
        ]
        return [
            helper.make_node("Conv", [read, kernels[0]], [f"{made} wide"]),
            _rectifier(node, f"{made} wide", f"{made} bounded"),
            helper.make_node("Conv", [f"{made} bounded", kernels[1]], [made]),
        ]

    return _around_rectifiers(model, change)


def blocked(model: ModelProto) -> ModelProto:
    """Convolutions of 3 × 3 over blocks of 2 × 2 pixels, which are channels there and pixels again after."""
    inferred = onnx.shape_inference.infer_shapes(model).graph
    shapes = {
        one.name: [size.dim_value for size in one.type.tensor_type.shape.dim]
        for one in (*inferred.value_info, *inferred.input, *inferred.output)
    }

    def change(node: NodeProto, weight: Array, graph: _Graph) -> list[NodeProto] | None:
        groups, strides, pads = _convolution(node, weight)
        even = all(size and size % 2 == 0 for size in shapes[node.input[0]][2:])
        if groups != 1 or strides != [1, 1] or pads != [1, 1, 1, 1] or not even:
            return None
        name, (outputs, inputs) = node.output[0], weight.shape[:2]
        kernel = np.zeros((2, 2, outputs, 2, 2, inputs, 3, 3), np.float32)
        for i, j, y, x in np.ndindex(2, 2, 3, 3):
            (down, row), (right, column) = divmod(i + y - 1, 2), divmod(j + x - 1, 2)
            kernel[i, j, :, row, column, :, down + 1, right + 1] = weight[:, :, y, x]
        made = [graph.add(kernel.reshape(4 * outputs, 4 * inputs, 3, 3), f"{name} blocks")]
        if len(node.input) > 2:
            made.append(graph.add(np.tile(graph.weights[node.input[2]], 4), f"{name} biases"))
        return [
            helper.make_node("SpaceToDepth", [node.input[0]], [f"{name} deep"], blocksize=2),
            helper.make_node("Conv", [f"{name} deep", *made], [f"{name} made"], pads=[1, 1, 1, 1]),
            helper.make_node("DepthToSpace", [f"{name} made"], [name], blocksize=2),
        ]

    return _rewritten(model, change)


def adapted(half: Model, path: Path) -> None:
    """Each kernel as another one and an adapter of rank four, as large as itself, under the names of PEFT."""
    random = torch.Generator().manual_seed(5)
    state = dict(half.state_dict())
    for name, layer in half.named_modules():
        if not isinstance(layer, nn.Conv2d) or layer.groups > 1:
            continue
        weight = state.pop(f"{name}.weight")
        down = torch.randn(4, *weight.shape[1:], generator=random)
        up = torch.randn(len(weight), 4, 1, 1, generator=random)
        up *= weight.norm() / (up.flatten(1) @ down.flatten(1)).norm()
        adapter = (up.flatten(1) @ down.flatten(1)).view_as(weight)
        state[f"{name}.base_layer.weight"] = weight - adapter
        state[f"{name}.lora_A.default.weight"] = down
        state[f"{name}.lora_B.default.weight"] = up
    torch.save(state, path)


SECOND_GRAPHS: dict[str, Rewrite] = {
    "branches chosen by the input": branched,
    "a loop over the images": scanned,
    "rectifiers by sorting": sorted_out,
    "every channel twice": widened,
    "blocks of pixels as channels": blocked,
}
SECOND_FILES: dict[str, Store] = {"adapters of rank four": adapted}
