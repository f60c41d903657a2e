"""MobileNetV2 for 64×64 images (paper, appendix A, table 3): the stem has stride 1."""

from __future__ import annotations

from collections import OrderedDict

from torch import Tensor, nn

from sigil.models.topology import IMAGE, LOGITS, Link, Topology

STANDARD_WIDTH = 32
DEFAULT_CUT = "group6"

# Expansion t, channels c at the standard width, repetitions n, stride s: the rows of the table.
GROUPS = (
    (1, 16, 1, 1),
    (6, 24, 2, 2),
    (6, 32, 3, 2),
    (6, 64, 4, 2),
    (6, 96, 3, 1),
    (6, 160, 3, 2),
    (6, 320, 1, 1),
)
LAST_CHANNELS = 1280


class InvertedResidual(nn.Module):
    """Widen, filter each channel, narrow, and add the input where shapes allow.

    (N, inputs, H, W) -> (N, outputs, ⌈H/stride⌉, ⌈W/stride⌉)
    """

    def __init__(self, inputs: int, outputs: int, *, expansion: int, stride: int) -> None:
        super().__init__()
        hidden = expansion * inputs
        self.expand: nn.Module = nn.Identity() if expansion == 1 else _convolution(inputs, hidden, kernel=1)
        self.depthwise = _convolution(hidden, hidden, kernel=3, stride=stride, groups=hidden)
        self.project = _convolution(hidden, outputs, kernel=1, relu=False)
        self.residual = _residual(inputs, outputs, stride)

    def forward(self, input: Tensor) -> Tensor:
        output: Tensor = self.project(self.depthwise(self.expand(input)))
        if self.residual:
            output += input
        return output


def _residual(inputs: int, outputs: int, stride: int) -> bool:
    """Whether a block can add its input to its output."""
    return stride == 1 and inputs == outputs


def _convolution(
    inputs: int, outputs: int, *, kernel: int, stride: int = 1, groups: int = 1, relu: bool = True
) -> nn.Sequential:
    layers: OrderedDict[str, nn.Module] = OrderedDict()
    layers["conv"] = nn.Conv2d(
        inputs, outputs, kernel, stride=stride, padding=kernel // 2, groups=groups, bias=False
    )
    layers["norm"] = nn.BatchNorm2d(outputs)
    if relu:
        layers["relu"] = nn.ReLU6(inplace=True)
    return nn.Sequential(layers)


def scaled(channels: int, width: int) -> int:
    """Channels of the table at another width: channels · width / 32, rounded, at least 1."""
    return max(1, (2 * channels * width + STANDARD_WIDTH) // (2 * STANDARD_WIDTH))


def rows(width: int, channels: int, classes: int) -> dict[str, nn.Module]:
    """The rows of the table in order, for images with ``channels`` planes."""
    table: dict[str, nn.Module] = {"conv1": _convolution(channels, width, kernel=3)}
    inputs = width
    for number, (expansion, standard, repetitions, stride) in enumerate(GROUPS, start=1):
        outputs = scaled(standard, width)
        blocks = [InvertedResidual(inputs, outputs, expansion=expansion, stride=stride)]
        for _ in range(repetitions - 1):
            blocks.append(InvertedResidual(outputs, outputs, expansion=expansion, stride=1))
        table[f"group{number}"] = nn.Sequential(*blocks)
        inputs = outputs
    last = scaled(LAST_CHANNELS, width)
    table["conv2"] = _convolution(inputs, last, kernel=1)
    table["avgpool"] = nn.AdaptiveAvgPool2d(1)
    table["flatten"] = nn.Flatten()
    table["fc"] = nn.Linear(last, classes)
    return table


def topology(width: int) -> Topology:
    """Blocks add to one linear space as long as shapes allow; the widened channels inside are another.

    Spaces that pass ReLU6, those of the stem, of ``conv2`` and inside blocks, are bounded.
    """

    def link(name: str, reads: tuple[str, ...], writes: str) -> Link:
        return Link(f"{name}.conv", reads, writes, after=f"{name}.norm")

    links, space = [link("conv1", (IMAGE,), "conv1")], "conv1"
    linear, bounded = set(), {"conv1", "conv2"}
    cuts: dict[str, tuple[str, ...]] = {"conv1": ("conv1",)}
    inputs = width
    for number, (expansion, standard, repetitions, stride) in enumerate(GROUPS, start=1):
        outputs = scaled(standard, width)
        for index in range(repetitions):
            block = f"group{number}.{index}"
            inside = space
            if expansion > 1:
                inside = f"{block} inside"
                bounded.add(inside)
                links.append(link(f"{block}.expand", (space,), inside))
            links.append(link(f"{block}.depthwise", (), inside))
            if not _residual(inputs, outputs, stride if index == 0 else 1):
                space = block
                linear.add(space)
            links.append(link(f"{block}.project", (inside,), space))
            inputs = outputs
        cuts[f"group{number}"] = (space,)
    links += [link("conv2", (space,), "conv2"), Link("fc", ("conv2",), LOGITS)]
    cuts |= dict.fromkeys(("conv2", "avgpool", "flatten"), ("conv2",))
    return Topology(tuple(links), cuts, frozenset(linear), frozenset(bounded))
