"""Which layers share the channels at a cut: what must change together when those channels are reordered.

A *stream* is a set of channels that several layers write to, read from, or pass on one by one. In a residual
network all blocks of a stage add to the same channels, so they share one; in DenseNet every layer of a block
reads all channels so far and appends its own.

A stream has *segments*, the stretches between the layers that can take up a scale, numbered along the way
of the data. A cut lies in one of them. Scaling the channels there multiplies what is written into that
segment and divides what is read out of it; reordering touches the whole stream. :func:`streams` lists, for
each of the four architectures, every stream and the cuts on it; :func:`disguise` carries an order and a
scale through one of them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn

from sigil.models import Model
from sigil.models.densenet121 import BLOCKS
from sigil.models.mobilenetv2 import GROUPS
from sigil.models.spec import check_cut

# A stretch inside a layer's own branch, where no cut can be.
HIDDEN = -1


@dataclass(frozen=True)
class Touch:
    """One layer on a stream, and the stream's channels [start, stop) that it touches (None: to the end).

    ``write``: its outputs are channels of the segment ``after``; ``read``: its inputs are those of the
    segment ``before``; ``norm`` and ``depthwise``: it takes each channel from ``before`` to ``after``.
    """

    layer: str
    role: Literal["write", "read", "norm", "depthwise"]
    before: int = HIDDEN
    after: int = HIDDEN
    start: int = 0
    stop: int | None = None


@dataclass(frozen=True)
class Place:
    """Where a cut is: on which segment, and how many of the stream's slices have been written by then."""

    segment: int
    slices: int = 1


@dataclass(frozen=True)
class Stream:
    """Channels that belong together: the layers on them and the cuts that show them.

    ``slices`` are the sizes of the runs of channels within which any order is possible: one run, but for
    DenseNet, where a channel must stay among those that the same layer writes, because the layers before it
    cannot read it. A ``bounded`` stream has passed ReLU6, whose upper bound moves with no scale: its channels
    can be reordered but not scaled.
    """

    slices: tuple[int, ...]
    touches: tuple[Touch, ...]
    cuts: dict[str, Place]
    bounded: bool = False


def streams(model: Model) -> list[Stream]:
    """All streams of a whole model that have a cut on them; every cut point is on exactly one."""
    return _DESCRIPTIONS[model.spec.name](model)


def stream_at(model: Model, cut: str) -> Stream:
    """The stream that the activation at ``cut`` is on."""
    check_cut(model.spec.name, cut)
    return next(stream for stream in streams(model) if cut in stream.cuts)


@torch.no_grad()
def disguise(model: Model, stream: Stream, cut: str, *, order: Tensor, scale: Tensor) -> None:
    """Reorder and scale the channels at a cut, in place, so that the outputs of the model stay the same.

    Afterwards channel c of the activation at the cut is ``scale[c]`` times what channel ``order[c]`` was.
    ``order`` (C,) is a permutation of the stream's channels that keeps to its slices, ``scale`` (C,) positive
    float64. Outputs stay the same in evaluation mode.
    """
    segment = stream.cuts[cut].segment
    for touch in stream.touches:
        chosen = slice(touch.start, touch.stop)
        index, factor = order[chosen] - touch.start, scale[chosen]
        one = torch.ones_like(factor)
        written = factor if touch.after == segment else one
        read = factor if touch.before == segment else one
        layer = model.get_submodule(touch.layer)
        match touch.role:
            case "write":
                _replace(layer, index, written)
            case "depthwise":
                _replace(layer, index, written / read)
            case "read":
                assert isinstance(layer.weight, Tensor)
                _rewrite(layer.weight, layer.weight[:, index], 1 / read, axis=1)
            case "norm":
                _renormalise(layer, index, read, written)


def _replace(layer: nn.Module, index: Tensor, factor: Tensor) -> None:
    """Outputs reordered and scaled: W[index] · factor, and the same for biases."""
    for value in (layer.weight, layer.bias):
        if isinstance(value, Tensor):
            _rewrite(value, value[index], factor)


def _renormalise(norm: nn.Module, index: Tensor, read: Tensor, written: Tensor) -> None:
    """A batch norm whose inputs were scaled by ``read`` and whose outputs shall be scaled by ``written``.

    γ (x − μ)/√(σ² + ε): with x, μ and σ all times s the ε is in the way, so γ also takes
    √(s²σ² + ε) / (s √(σ² + ε)), which is 1 but for ε.
    """
    assert isinstance(norm, nn.BatchNorm2d)
    mean, variance = norm.running_mean, norm.running_var
    assert mean is not None
    assert variance is not None
    old = variance[index].double()
    correction = (read.square() * old + norm.eps).sqrt() / (read * (old + norm.eps).sqrt())
    _rewrite(norm.weight, norm.weight[index], written * correction)
    _rewrite(norm.bias, norm.bias[index], written)
    _rewrite(mean, mean[index], read)
    _rewrite(variance, variance[index], read.square())


def _rewrite(target: Tensor, values: Tensor, factor: Tensor, *, axis: int = 0) -> None:
    """target = values · factor along an axis, computed in float64."""
    shape = [1] * values.ndim
    shape[axis] = -1
    target.copy_(values.double() * factor.view(shape))


def _write(layer: str, norm: str | None = None, *, start: int = 0, stop: int | None = None) -> list[Touch]:
    """A convolution that writes into segment 0, by itself or through its batch norm."""
    if norm is None:
        return [Touch(layer, "write", after=0, start=start, stop=stop)]
    return [
        Touch(layer, "write", start=start, stop=stop),
        Touch(norm, "norm", after=0, start=start, stop=stop),
    ]


def _read(*layers: str) -> list[Touch]:
    """Layers that read all channels of segment 0."""
    return [Touch(layer, "read", before=0) for layer in layers]


def _resnet18(model: Model) -> list[Stream]:
    """The stem and layer1 share one stream, then one a stage: both blocks and the shortcut write to it."""
    width = model.spec.width
    stem = [Touch("conv1", "write", after=0), Touch("bn1", "norm", before=0, after=1)]
    for block in ("layer1.0", "layer1.1"):
        stem += [
            Touch(f"{block}.conv1", "read", before=1),
            Touch(f"{block}.conv2", "write"),
            Touch(f"{block}.bn2", "norm", after=1),
        ]
    stem += [Touch(layer, "read", before=1) for layer in ("layer2.0.conv1", "layer2.0.downsample.0")]
    cuts = {"conv1": Place(0), "bn1": Place(1), "maxpool": Place(1), "layer1": Place(1)}
    found = [Stream((width,), tuple(stem), cuts)]
    for number in (2, 3, 4):
        row, following = f"layer{number}", f"layer{number + 1}.0"
        touches = [
            *_write(f"{row}.0.conv2", f"{row}.0.bn2"),
            *_write(f"{row}.0.downsample.0", f"{row}.0.downsample.1"),
            *_read(f"{row}.1.conv1"),
            *_write(f"{row}.1.conv2", f"{row}.1.bn2"),
        ]
        if number < 4:
            touches += _read(f"{following}.conv1", f"{following}.downsample.0")
            cuts = {row: Place(0)}
        else:
            touches += _read("fc")
            cuts = {row: Place(0), "avgpool": Place(0), "flatten": Place(0)}
        found.append(Stream((width * 2 ** (number - 1),), tuple(touches), cuts))
    return found


def _vgg11(model: Model) -> list[Stream]:
    """One stream a stage: its last convolution writes, the first layer of the next stage reads."""
    found = []
    for number, (factor, convolutions) in enumerate(((1, 1), (2, 1), (4, 2), (8, 2), (8, 2)), start=1):
        row, last = f"stage{number}", 3 * (convolutions - 1)
        cuts = [row, f"pool{number}"]
        if number < 5:
            reader = f"stage{number + 1}.0"
        else:
            reader = "fc.0"
            cuts += ["avgpool", "flatten"]
        touches = _write(f"{row}.{last}", f"{row}.{last + 1}") + _read(reader)
        found.append(
            Stream((factor * model.spec.width,), tuple(touches), {cut: Place(0) for cut in cuts}),
        )
    return found


def _mobilenetv2(model: Model) -> list[Stream]:
    """The stem, then one stream a group: each block's linear projection adds to it, each expansion reads it.

    The streams of the groups have no activation function on them, so they scale; those of the stem and
    of ``conv2`` come from ReLU6.
    """
    found: list[Stream] = []
    touches, cuts, bounded = _write("conv1.conv", "conv1.norm"), ["conv1"], True

    def finish() -> None:
        norm = next(touch.layer for touch in touches if touch.role == "norm" and touch.after == 0)
        channels = int(model.get_submodule(norm).num_features)  # type: ignore[arg-type]
        found.append(Stream((channels,), tuple(touches), {cut: Place(0) for cut in cuts}, bounded))

    for number, (expansion, _, repetitions, _) in enumerate(GROUPS, start=1):
        for index in range(repetitions):
            block = f"group{number}.{index}"
            if expansion == 1:
                touches += [
                    Touch(f"{block}.depthwise.conv", "depthwise", before=0),
                    Touch(f"{block}.depthwise.norm", "norm"),
                    Touch(f"{block}.project.conv", "read"),
                ]
            else:
                touches += _read(f"{block}.expand.conv")
            if not model.get_submodule(block).residual:
                finish()
                touches, cuts, bounded = [], [], False
            touches += _write(f"{block}.project.conv", f"{block}.project.norm")
        cuts.append(f"group{number}")
    touches += _read("conv2.conv")
    finish()
    touches = _write("conv2.conv", "conv2.norm") + _read("fc")
    cuts, bounded = ["conv2", "avgpool", "flatten"], True
    finish()
    return found


def _densenet121(model: Model) -> list[Stream]:
    """One stream a block: what enters it, then each layer's own channels; every reader is a batch norm."""
    size, growth = model.spec.width, max(1, model.spec.width // 2)
    writer: tuple[str, ...] = ("conv_initial.conv", "conv_initial.norm")
    entering = ["conv_initial", "pool0"]
    found = []
    for number, layers in enumerate(BLOCKS, start=1):
        touches = _write(*writer, stop=size)
        end = size
        for index in range(layers):
            layer = f"block{number}.{index}"
            touches += [
                Touch(f"{layer}.norm1", "norm", before=0, stop=end),
                Touch(f"{layer}.conv1", "read", stop=end),
                *_write(f"{layer}.conv2", start=end, stop=end + growth),
            ]
            end += growth
        cuts = {cut: Place(0) for cut in entering}
        cuts[f"block{number}"] = Place(0, layers + 1)
        row = f"trans{number}"
        if number < len(BLOCKS):
            touches += [Touch(f"{row}.norm", "norm", before=0), Touch(f"{row}.conv", "read")]
        else:
            touches += [Touch("norm_final", "norm", before=0, after=1), Touch("fc", "read", before=1)]
            cuts |= {cut: Place(1, layers + 1) for cut in ("norm_final", "avgpool", "flatten")}
        found.append(Stream((size, *[growth] * layers), tuple(touches), cuts))
        writer, entering, size = (f"{row}.conv",), [row], end // 2
    return found


_DESCRIPTIONS: dict[str, Callable[[Model], list[Stream]]] = {
    "resnet18": _resnet18,
    "vgg11": _vgg11,
    "mobilenetv2": _mobilenetv2,
    "densenet121": _densenet121,
}
