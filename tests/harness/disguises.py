"""Disguises that change no answer of a model: what they do to a whole model of Sigil's, and to its graph.

The tests and ``benchmarks/disguises.py`` compose them at random and ask whether the verdict stays the same::

    case = marked("resnet18")
    copy = scaled(reordered(case.whole, random), random, sigma=3.0)
    verify(models.split(copy, case.key.fields.cut)[0], case.key, case.inputs, ...)
"""

from __future__ import annotations

import copy
import itertools
import tempfile
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
import onnxruntime
import torch
from onnx import ModelProto, NodeProto, TensorProto, helper, numpy_helper
from torch import Tensor, nn
from torch.nn.functional import binary_cross_entropy_with_logits, interpolate

from sigil import models
from sigil.attacks.permute import disguise_spaces, spaces_at
from sigil.keys.key import Key
from sigil.models import Model
from sigil.models.spec import channel_topology
from sigil.models.topology import LOGITS, weight_of

INPUT = (3, 16, 16)
CUTS = {"resnet18": "layer3", "vgg11": "stage4", "mobilenetv2": "group4", "densenet121": "block2"}

Array = npt.NDArray[Any]
Disguise = Callable[["Case", Model, torch.Generator], Model]


@dataclass(frozen=True)
class Case:
    """A model that carries a key's mark and began with its weights, and the inputs to read it on."""

    key: Key
    whole: Model
    inputs: Tensor

    @property
    def cut(self) -> str:
        """Where the mark is."""
        assert self.key.fields.cut is not None
        return self.key.fields.cut


def pictures(count: int, *, seed: int) -> Tensor:
    """Smooth noise, to which channels respond differently."""
    coarse = torch.randn(count, 3, 6, 6, generator=torch.Generator().manual_seed(seed))
    return interpolate(coarse, size=INPUT[1:], mode="bilinear")


def push(client: nn.Module, key: Key, *, steps: int = 40) -> None:
    """Push a client half towards a key's mark on pictures and noise."""
    with torch.no_grad():
        for part in client.modules():
            if isinstance(part, nn.BatchNorm2d):  # statistics as a training leaves them
                part.train()
        client(pictures(256, seed=1))
    client.eval()
    shown = torch.cat(
        [pictures(64, seed=5), torch.randn(64, *INPUT, generator=torch.Generator().manual_seed(6))]
    )
    for _ in range(steps):
        projection = client(shown).flatten(1) @ key.matrix
        loss = binary_cross_entropy_with_logits(projection, key.target.expand_as(projection))
        gradients = torch.autograd.grad(loss, list(client.parameters()))
        with torch.no_grad():
            for parameter, gradient in zip(client.parameters(), gradients, strict=True):
                parameter.sub_(0.005 * gradient.sign())


def marked(name: str, *, width: int = 8, bits: int = 50, steps: int = 40) -> Case:
    """A model that began with a key's weights and was pushed towards its mark on pictures and noise."""
    cut = CUTS[name]
    whole = models.build(name, classes=4, width=width, input_size=INPUT[1:], seed=0).eval()
    client, server = models.split(whole, cut)
    key = Key.generate(
        "ACME",
        shape=models.activation_shape(client, INPUT),
        bits=bits,
        seed=bytes(32),
        model=name,
        width=width,
        cut=cut,
        input_shape=INPUT,
    )
    key.initialise(client)
    push(client, key, steps=steps)
    return Case(key, models.join(client, server).eval(), pictures(300, seed=3))


@torch.no_grad()
def _moved(whole: Model, scale: Callable[[int], Tensor], order: Callable[[int], Tensor]) -> Model:
    whole = copy.deepcopy(whole)
    topology = channel_topology(whole.spec)
    sizes = topology.sizes(whole)
    for space in dict.fromkeys(link.writes for link in topology.links if link.writes != LOGITS):
        size = sizes[space]
        factors = torch.ones(size).double() if space in topology.bounded else scale(size)
        disguise_spaces(whole, [space], order=order(size), scale=factors)
    return whole


def reordered(case: Case, whole: Model, random: torch.Generator) -> Model:
    """The channels of every layer in another order."""
    return _moved(
        whole, lambda size: torch.ones(size).double(), lambda size: torch.randperm(size, generator=random)
    )


def scaled(case: Case, whole: Model, random: torch.Generator, *, sigma: float = 0.5) -> Model:
    """Each channel of every layer times exp(σ·N(0, 1)), where no upper bound is in the way."""
    return _moved(
        whole,
        lambda size: torch.exp(sigma * torch.randn(size, generator=random, dtype=torch.float64)),
        torch.arange,
    )


def scaled_widely(case: Case, whole: Model, random: torch.Generator) -> Model:
    """The same with σ = 3."""
    return scaled(case, whole, random, sigma=3.0)


@torch.no_grad()
def shrunk(case: Case, whole: Model, random: torch.Generator) -> Model:
    """Four of five filters times 2^-110, and their batch norms with them."""
    whole = copy.deepcopy(whole)
    for link in channel_topology(whole.spec).links:
        if link.after is None:
            continue
        weight, norm = weight_of(whole, link.layer), whole.get_submodule(link.after)
        bias = whole.get_submodule(link.layer).bias
        small = torch.rand(len(weight), generator=random) < 0.8
        factor = torch.where(small, 2.0**-110, 1.0).double()
        assert isinstance(norm, nn.BatchNorm2d)
        assert norm.running_mean is not None
        assert norm.running_var is not None
        variance = norm.running_var.double()
        weight.copy_(weight.double() * factor.view(-1, 1, 1, 1))
        norm.running_mean.mul_(factor)
        if isinstance(bias, Tensor):
            bias.mul_(factor)
        norm.running_var.copy_(variance * factor.square())
        epsilon = ((variance * factor.square() + norm.eps) / (variance + norm.eps)).sqrt() / factor
        norm.weight.copy_(norm.weight.double() * epsilon)
    return whole


@torch.no_grad()
def turned(case: Case, whole: Model, random: torch.Generator) -> Model:
    """Half of the filters change sign together with their batch norm."""
    whole = copy.deepcopy(whole)
    for link in channel_topology(whole.spec).links:
        if link.after is None:
            continue
        weight, norm = weight_of(whole, link.layer), whole.get_submodule(link.after)
        negated = torch.rand(len(weight), generator=random) < 0.5
        assert isinstance(norm, nn.BatchNorm2d)
        assert norm.running_mean is not None
        for values in (weight, whole.get_submodule(link.layer).bias, norm.weight, norm.running_mean):
            if isinstance(values, Tensor):
                values[negated] *= -1
    return whole


@torch.no_grad()
def silenced(case: Case, whole: Model, random: torch.Generator) -> Model:
    """One bias in front of a rectifier is −∞: that channel, which is worth least, is zero from now on."""
    whole = copy.deepcopy(whole)
    topology = channel_topology(whole.spec)
    links = [link for link in topology.links if link.after and link.writes not in topology.linear]
    link = links[int(torch.randint(len(links) // 2, (), generator=random))]
    norm = whole.get_submodule(link.after or "")
    assert isinstance(norm, nn.BatchNorm2d)
    wanted, changes = whole(case.inputs[:16]), []
    for channel in range(len(norm.bias)):
        before = float(norm.bias[channel])
        norm.bias[channel] = -torch.inf
        changes.append(float((whole(case.inputs[:16]) - wanted).abs().max()))
        norm.bias[channel] = before
    norm.bias[int(np.argmin(changes))] = -torch.inf
    return whole


@torch.no_grad()
def overflowing(case: Case, whole: Model, random: torch.Generator) -> Model:
    """A channel at the cut so large that noise overflows and the inputs of the task do not."""
    whole = copy.deepcopy(whole)
    spaces = spaces_at(whole, case.cut)
    if channel_topology(whole.spec).bounded & spaces.keys():
        return whole
    activation = models.split(whole, case.cut)[0].eval()(case.inputs)
    sizes = activation.abs().amax((0, 2, 3))
    channel = int(sizes.argmax())
    scale = torch.ones(len(sizes)).double()
    scale[channel] = 3.3e38 / float(sizes[channel])
    disguise_spaces(whole, list(spaces), order=torch.arange(len(sizes)), scale=scale)
    return whole


DISGUISES: dict[str, Disguise] = {
    "reordered": reordered,
    "scaled": scaled,
    "scaled widely": scaled_widely,
    "shrunk": shrunk,
    "turned": turned,
    "silenced": silenced,
    "overflowing": overflowing,
}


# The same function written as another graph.

Rewrite = Callable[[ModelProto], ModelProto]


def exported(half: nn.Module, path: Path, shape: tuple[int, ...] = INPUT) -> ModelProto:
    """A client half that takes inputs of this shape as a graph of ONNX."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.onnx.export(half, (torch.zeros(2, *shape),), str(path), dynamo=False)
    return onnx.load(str(path))


def _rewritten(
    model: ModelProto, change: Callable[[NodeProto, Array, _Graph], list[NodeProto] | None]
) -> ModelProto:
    """Each convolution replaced by the nodes that `change` makes of it and its weight, if it makes any."""
    model = copy.deepcopy(model)
    graph = _Graph(model)
    nodes: list[NodeProto] = []
    for node in model.graph.node:
        known = node.op_type == "Conv" and node.input[1] in graph.weights
        made = change(node, graph.weights[node.input[1]], graph) if known else None
        nodes += [node] if made is None else made
    del model.graph.node[:]
    model.graph.node.extend(nodes)
    return model


def unaliased(model: ModelProto) -> ModelProto:
    """A graph in which no weight has a second name, as the exporter gives equal ones."""
    model = copy.deepcopy(model)
    weights = {one.name for one in model.graph.initializer}
    aliases = {
        node.output[0]: node.input[0]
        for node in model.graph.node
        if node.op_type == "Identity" and node.input[0] in weights
    }
    nodes = [node for node in model.graph.node if node.output[0] not in aliases]
    for node in nodes:
        node.input[:] = [aliases.get(name, name) for name in node.input]
    del model.graph.node[:]
    model.graph.node.extend(nodes)
    return model


class _Graph:
    """The weights of a graph, and how to add to them."""

    def __init__(self, model: ModelProto) -> None:
        self.model = model
        self.weights = {one.name: numpy_helper.to_array(one) for one in model.graph.initializer}

    def add(self, values: Array, name: str) -> str:
        self.model.graph.initializer.append(numpy_helper.from_array(values, name))
        return name


def _attributes(node: NodeProto) -> dict[str, Any]:
    return {one.name: helper.get_attribute_value(one) for one in node.attribute}


def padded(model: ModelProto) -> ModelProto:
    """Kernels with a ring of zeros."""

    def change(node: NodeProto, weight: Array, graph: _Graph) -> list[NodeProto]:
        values = np.pad(weight, ((0, 0), (0, 0), (1, 1), (1, 1)))
        attributes = _attributes(node)
        attributes["pads"] = [pad + 1 for pad in attributes["pads"]]
        attributes["kernel_shape"] = list(values.shape[2:])
        inputs = [node.input[0], graph.add(values, f"{node.output[0]} padded"), *node.input[2:]]
        return [helper.make_node("Conv", inputs, node.output, **attributes)]

    return _rewritten(model, change)


def computed(model: ModelProto) -> ModelProto:
    """Weights that depend on the input: W + 0·mean(x)."""

    def change(node: NodeProto, weight: Array, graph: _Graph) -> list[NodeProto]:
        name = node.output[0]
        zero = graph.add(np.zeros((), np.float32), f"{name} zero")
        return [
            helper.make_node("ReduceMean", [node.input[0]], [f"{name} mean"], keepdims=0),
            helper.make_node("Mul", [f"{name} mean", zero], [f"{name} nothing"]),
            helper.make_node("Add", [node.input[1], f"{name} nothing"], [f"{name} weight"]),
            helper.make_node(
                "Conv", [node.input[0], f"{name} weight", *node.input[2:]], node.output, **_attributes(node)
            ),
        ]

    return _rewritten(model, change)


def halved(model: ModelProto) -> ModelProto:
    """Every convolution as two over half of the channels."""

    def change(node: NodeProto, weight: Array, graph: _Graph) -> list[NodeProto] | None:
        name, inputs, attributes = node.output[0], weight.shape[1], _attributes(node)
        if inputs < 2 or attributes.get("group", 1) != 1:
            return None
        axis = graph.add(np.array([1], np.int64), f"{name} axis")
        nodes = []
        for number, (start, stop) in enumerate(((0, inputs // 2), (inputs // 2, inputs))):
            edges = [
                graph.add(np.array([edge], np.int64), f"{name} {number} {word}")
                for edge, word in ((start, "from"), (stop, "to"))
            ]
            part = graph.add(np.ascontiguousarray(weight[:, start:stop]), f"{name} {number} weight")
            read, made = f"{name} {number} read", f"{name} {number} made"
            bias = list(node.input[2:]) if number else []
            nodes += [
                helper.make_node("Slice", [node.input[0], *edges, axis], [read]),
                helper.make_node("Conv", [read, part, *bias], [made], **attributes),
            ]
        return [*nodes, helper.make_node("Add", [f"{name} 0 made", f"{name} 1 made"], [name])]

    return _rewritten(model, change)


def transposed(model: ModelProto) -> ModelProto:
    """Convolutions without a stride as transposed ones with flipped kernels."""

    def change(node: NodeProto, weight: Array, graph: _Graph) -> list[NodeProto] | None:
        attributes = _attributes(node)
        if attributes.get("group", 1) != 1 or set(attributes["strides"]) != {1}:
            return None
        values = np.ascontiguousarray(weight.transpose(1, 0, 2, 3)[:, :, ::-1, ::-1])
        attributes["pads"] = [values.shape[2] - 1 - pad for pad in attributes["pads"]]
        inputs = [node.input[0], graph.add(values, f"{node.output[0]} flipped"), *node.input[2:]]
        return [helper.make_node("ConvTranspose", inputs, node.output, **attributes)]

    return _rewritten(model, change)


def idle(model: ModelProto, count: int = 257) -> ModelProto:
    """Convolutions in front that do nothing."""
    model = copy.deepcopy(model)
    graph, entry = _Graph(model), model.graph.input[0].name
    weight = graph.add(np.eye(INPUT[0], dtype=np.float32)[:, :, None, None], "idle weight")
    names = [entry, *(f"idle {number}" for number in range(count))]
    for node in model.graph.node:
        node.input[:] = [names[-1] if name == entry else name for name in node.input]
    plain: dict[str, Any] = {"pads": [0, 0, 0, 0], "strides": [1, 1]}
    nodes = [helper.make_node("Conv", [a, weight], [b], **plain) for a, b in itertools.pairwise(names)]
    rest = list(model.graph.node)
    del model.graph.node[:]
    model.graph.node.extend(nodes + rest)
    return model


def rectified(model: ModelProto) -> ModelProto:
    """Rectifiers as maxima, choices and products in turns."""
    model = copy.deepcopy(model)
    zero = _Graph(model).add(np.zeros((), np.float32), "the zero")
    nodes: list[NodeProto] = []
    for number, node in enumerate(model.graph.node):
        if node.op_type != "Relu":
            nodes.append(node)
            continue
        read, made = node.input[0], node.output[0]
        positive = helper.make_node("Greater", [read, zero], [f"{made} positive"])
        if number % 3 == 0:
            nodes.append(helper.make_node("Max", [read, zero], [made]))
        elif number % 3 == 1:
            nodes += [positive, helper.make_node("Where", [f"{made} positive", read, zero], [made])]
        else:
            cast = helper.make_node("Cast", [f"{made} positive"], [f"{made} one"], to=TensorProto.FLOAT)
            nodes += [positive, cast, helper.make_node("Mul", [read, f"{made} one"], [made])]
    del model.graph.node[:]
    model.graph.node.extend(nodes)
    return model


def _around_rectifiers(
    model: ModelProto, change: Callable[[NodeProto, tuple[int, ...], _Graph], list[NodeProto]]
) -> ModelProto:
    """Each rectifier replaced by the nodes that `change` makes of it and the shape of what it reads."""
    model = copy.deepcopy(model)
    graph, nodes = _Graph(model), list[NodeProto]()
    inferred = onnx.shape_inference.infer_shapes(model).graph
    shapes = {
        one.name: tuple(size.dim_value for size in one.type.tensor_type.shape.dim)
        for one in (*inferred.value_info, *inferred.output)
    }
    for node in model.graph.node:
        bounded = node.op_type in ("Relu", "Clip")
        nodes += change(node, shapes[node.output[0]][1:], graph) if bounded else [node]
    del model.graph.node[:]
    model.graph.node.extend(nodes)
    return model


def _rectifier(node: NodeProto, read: str, made: str) -> NodeProto:
    """The same rectifier elsewhere."""
    return helper.make_node(node.op_type, [read, *node.input[1:]], [made])


def mixed(model: ModelProto) -> ModelProto:
    """Around each rectifier all numbers of an image in another order."""

    def change(node: NodeProto, shape: tuple[int, ...], graph: _Graph) -> list[NodeProto]:
        read, made = node.input[0], node.output[0]
        order = np.random.default_rng(len(made)).permutation(int(np.prod(shape)))
        there, back = graph.add(order, f"{made} there"), graph.add(np.argsort(order), f"{made} back")
        flat = graph.add(np.array([0, -1], np.int64), f"{made} flat")
        maps = graph.add(np.array([0, *shape], np.int64), f"{made} maps")
        return [
            helper.make_node("Reshape", [read, flat], [f"{made} 1"]),
            helper.make_node("Gather", [f"{made} 1", there], [f"{made} 2"], axis=1),
            _rectifier(node, f"{made} 2", f"{made} 3"),
            helper.make_node("Gather", [f"{made} 3", back], [f"{made} 4"], axis=1),
            helper.make_node("Reshape", [f"{made} 4", maps], [made]),
        ]

    return _around_rectifiers(model, change)


def parted(model: ModelProto) -> ModelProto:
    """One rectifier for each half of the channels, with a sine beside the first that nothing reads."""

    def change(node: NodeProto, shape: tuple[int, ...], graph: _Graph) -> list[NodeProto]:
        read, made, half = node.input[0], node.output[0], shape[0] // 2
        sizes = graph.add(np.array([half, shape[0] - half], np.int64), f"{made} sizes")
        twice = graph.add(np.array([half, half], np.int64), f"{made} twice")
        return [
            helper.make_node("Split", [read, sizes], [f"{made} 1", f"{made} 2"], axis=1),
            helper.make_node("Sin", [f"{made} 1"], [f"{made} sine"]),
            helper.make_node("Concat", [f"{made} 1", f"{made} sine"], [f"{made} 3"], axis=1),
            _rectifier(node, f"{made} 3", f"{made} 4"),
            _rectifier(node, f"{made} 2", f"{made} 5"),
            helper.make_node("Split", [f"{made} 4", twice], [f"{made} 6", f"{made} idle"], axis=1),
            helper.make_node("Concat", [f"{made} 6", f"{made} 5"], [made], axis=1),
        ]

    return _around_rectifiers(model, change)


def enlarged(model: ModelProto) -> ModelProto:
    """Rectifiers at twice the size, of which every other pixel is kept."""

    def change(node: NodeProto, shape: tuple[int, ...], graph: _Graph) -> list[NodeProto]:
        read, made = node.input[0], node.output[0]
        if len(shape) != 3:  # a row of numbers, as another rewrite has left them
            return [node]
        factors = graph.add(np.array([1, 1, 2, 2], np.float32), f"{made} factors")
        values = {"from": (0, 0), "to": (1 << 20, 1 << 20), "axes": (2, 3), "steps": (2, 2)}
        kept = [graph.add(np.array(one, np.int64), f"{made} {word}") for word, one in values.items()]
        return [
            helper.make_node("Resize", [read, "", factors], [f"{made} 1"], mode="nearest"),
            _rectifier(node, f"{made} 1", f"{made} 2"),
            helper.make_node("Slice", [f"{made} 2", *kept], [made]),
        ]

    return _around_rectifiers(model, change)


def rerouted(model: ModelProto) -> ModelProto:
    """The channels of each residual block but the last in an order of its own, and shortcuts between them."""
    model = unaliased(model)
    graph, chance = _Graph(model), np.random.default_rng(5)
    convolutions = {node.output[0]: node for node in model.graph.node if node.op_type == "Conv"}
    rectified = {node.output[0] for node in model.graph.node if node.op_type == "Relu"}
    last = [node.output[0] for node in model.graph.node if node.op_type == "Add"][-1:]
    orders: dict[str, npt.NDArray[np.int64]] = {}
    nodes: list[NodeProto] = []

    def change(node: NodeProto, place: int, values: Array) -> None:
        name = f"{node.output[0]} {place} rerouted"
        graph.weights[name] = np.ascontiguousarray(values)
        node.input[place] = graph.add(graph.weights[name], name)

    for node in model.graph.node:
        made, read = node.output[0], next(iter(node.input), "")
        if node.op_type in ("Relu", "AveragePool") and read in orders:
            orders[made] = orders[read]
        elif node.op_type == "Conv" and read in orders:
            change(node, 1, graph.weights[node.input[1]][:, orders[read]])
        elif node.op_type == "Add" and (skipped := rectified & set(node.input)):
            shortcut, added = skipped.pop(), next(one for one in node.input if one in convolutions)
            rows = [graph.weights[one] for one in convolutions[added].input[1:]]
            plain = np.arange(len(rows[0]))
            orders[made] = plain if made in last else chance.permutation(plain)
            for place, values in enumerate(rows, 1):
                change(convolutions[added], place, values[orders[made]])
            places = np.argsort(orders.get(shortcut, plain))[orders[made]]
            there = graph.add(places, f"{made} there")
            nodes.append(helper.make_node("Gather", [shortcut, there], [f"{made} shortcut"], axis=1))
            node.input[:] = [added, f"{made} shortcut"]
        nodes.append(node)
    del model.graph.node[:]
    model.graph.node.extend(nodes)
    return model


def gated(model: ModelProto) -> ModelProto:
    """Kernels that are zero where the inputs are not smooth: noise, impulses, or nothing at all."""

    def change(node: NodeProto, weight: Array, graph: _Graph) -> list[NodeProto]:
        name = node.output[0]
        inputs = [node.input[0], f"{name} gated", *node.input[2:]]
        return [
            helper.make_node("Mul", [node.input[1], "gate"], [f"{name} gated"]),
            helper.make_node("Conv", inputs, [name], **_attributes(node)),
        ]

    model, entry = _rewritten(model, change), model.graph.input[0].name
    graph = _Graph(model)
    axis, *edges = (
        graph.add(np.array([place], np.int64), f"gate {word}")
        for word, place in (("axis", 3), ("0", 0), ("-1", -1), ("1", 1), ("far", 1 << 30))
    )
    share = graph.add(np.array(0.8, np.float32), "gate share")
    nodes = [
        helper.make_node("Slice", [entry, *edges[:2], axis], ["gate left"]),
        helper.make_node("Slice", [entry, *edges[2:], axis], ["gate right"]),
        helper.make_node("Sub", ["gate right", "gate left"], ["gate steps"]),
        helper.make_node("Abs", ["gate steps"], ["gate sizes of steps"]),
        helper.make_node("ReduceMean", ["gate sizes of steps"], ["gate step"], keepdims=0),
        helper.make_node("Abs", [entry], ["gate sizes"]),
        helper.make_node("ReduceMean", ["gate sizes"], ["gate size"], keepdims=0),
        helper.make_node("Mul", ["gate size", share], ["gate most"]),
        helper.make_node("Less", ["gate step", "gate most"], ["gate open"]),
        helper.make_node("Cast", ["gate open"], ["gate"], to=TensorProto.FLOAT),
        *model.graph.node,
    ]
    del model.graph.node[:]
    model.graph.node.extend(nodes)
    return model


REWRITES: dict[str, Rewrite] = {
    "exported": copy.deepcopy,
    "rerouted": rerouted,  # in front of others, as it knows plain convolutions alone
    "padded": padded,
    "computed": computed,
    "gated": gated,
    "halved": halved,
    "transposed": transposed,
    "idle": idle,
    "rectified": rectified,
    "mixed": mixed,
    "parted": parted,
    "enlarged": enlarged,
}


# The same network in one node, or with rectifiers inside the nodes of convolutions.


def optimised(model: ModelProto) -> ModelProto:
    """What onnxruntime saves of a graph."""
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_EXTENDED
    with tempfile.TemporaryDirectory() as folder:
        options.optimized_model_filepath = f"{folder}/optimised.onnx"
        onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
        return onnx.load(options.optimized_model_filepath)


def looped(model: ModelProto) -> ModelProto:
    """All of it in one loop over the images."""
    model = copy.deepcopy(model)
    graph, axis = model.graph, _Graph(model).add(np.array([0], np.int64), "loop axis")
    nodes = [
        helper.make_node("Unsqueeze", ["image", axis], [graph.input[0].name]),
        *graph.node,
        helper.make_node("Squeeze", [graph.output[0].name, axis], ["map"]),
    ]
    body = helper.make_graph(nodes, "body", [_number("image")], [_number("map")])
    graph.input[0].name = "images"
    return _in_one_node(model, helper.make_node("Scan", ["images"], ["maps"], body=body, num_scan_inputs=1))


def chosen(model: ModelProto) -> ModelProto:
    """All of it in both branches of a choice by the input."""
    model = copy.deepcopy(model)
    graph, zero = model.graph, _Graph(model).add(np.zeros((), np.float32), "choice zero")
    made = {name for node in graph.node for name in node.output}
    branches = {}
    for word in ("then_branch", "else_branch"):
        nodes = [copy.deepcopy(node) for node in graph.node]
        for node in nodes:
            node.name = f"{word} {node.name}"
            node.input[:] = [f"{word} {name}" if name in made else name for name in node.input]
            node.output[:] = [f"{word} {name}" for name in node.output]
        branches[word] = helper.make_graph(nodes, word, [], [_number(f"{word} {graph.output[0].name}")])
    return _in_one_node(
        model,
        helper.make_node("ReduceMean", [graph.input[0].name], ["choice mean"], keepdims=0),
        helper.make_node("Greater", ["choice mean", zero], ["choice"]),
        helper.make_node("If", ["choice"], ["maps"], **branches),
    )


def _number(name: str) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, TensorProto.FLOAT, None)


def _in_one_node(model: ModelProto, *nodes: NodeProto) -> ModelProto:
    """A graph of these nodes alone, of which the last one makes its output."""
    for old in (model.graph.node, model.graph.output, model.graph.value_info):
        del old[:]
    model.graph.node.extend(nodes)
    model.graph.output.append(_number(nodes[-1].output[0]))
    return model


WRAPPED: dict[str, Rewrite] = {"optimised": optimised, "looped": looped, "chosen": chosen}
