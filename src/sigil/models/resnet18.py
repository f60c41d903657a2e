"""ResNet-18 with the stem for small images (paper, appendix A, table 1): 3×3, no pooling."""

from __future__ import annotations

from collections import OrderedDict

from torch import Tensor, nn
from torch.nn import functional as F

from sigil.models.topology import IMAGE, LOGITS, Link, Topology

STANDARD_WIDTH = 64
DEFAULT_CUT = "layer3"


class BatchNormReLU(nn.BatchNorm2d):
    """Batch normalisation and ReLU as one module: max(0, γ (x − μ)/√(σ² + ε) + β), for (N, C, H, W).

    Being a batch norm itself, its state-dict keys are those of a plain one: ``bn1.weight``, not
    ``bn1.0.weight``.
    """

    def forward(self, input: Tensor) -> Tensor:
        # In place is safe: the backward pass of batch norm needs its input, not its output.
        return F.relu(super().forward(input), inplace=True)


class BasicBlock(nn.Module):
    """Two 3×3 convolutions beside a shortcut.

    (N, inputs, H, W) -> (N, outputs, ⌈H/stride⌉, ⌈W/stride⌉)
    """

    def __init__(self, inputs: int, outputs: int, *, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride=stride, padding=1, bias=False)
        self.bn1 = BatchNormReLU(outputs)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(outputs)
        self.downsample = nn.Identity() if stride == 1 else _shortcut(inputs, outputs, stride)

    def forward(self, input: Tensor) -> Tensor:
        output: Tensor = self.bn2(self.conv2(self.bn1(self.conv1(input))))
        output += self.downsample(input)
        return F.relu(output, inplace=True)


def _shortcut(inputs: int, outputs: int, stride: int) -> nn.Sequential:
    """A 1×1 convolution with ``stride`` and batch norm, with the well-known keys ``0`` and ``1``.

    The pixels that the stride keeps are picked first and convolved with stride 1. That is the same
    function, but the weight gradient of a strided 1×1 convolution of few channels in channels-last
    layout writes outside its memory on x86 CPUs (github.com/uxlfoundation/oneDNN/issues/6035).
    """
    layers: OrderedDict[str, nn.Module] = OrderedDict()
    layers["subsample"] = nn.AvgPool2d(1, stride=stride)
    layers["0"] = nn.Conv2d(inputs, outputs, 1, bias=False)
    layers["1"] = nn.BatchNorm2d(outputs)
    return nn.Sequential(layers)


def _layer(inputs: int, outputs: int, *, stride: int) -> nn.Sequential:
    return nn.Sequential(BasicBlock(inputs, outputs, stride=stride), BasicBlock(outputs, outputs, stride=1))


def rows(width: int, channels: int, classes: int) -> dict[str, nn.Module]:
    """The rows of the table in order, for images with ``channels`` planes."""
    return {
        "conv1": nn.Conv2d(channels, width, 3, padding=1, bias=False),
        "bn1": BatchNormReLU(width),
        "maxpool": nn.Identity(),
        "layer1": _layer(width, width, stride=1),
        "layer2": _layer(width, 2 * width, stride=2),
        "layer3": _layer(2 * width, 4 * width, stride=2),
        "layer4": _layer(4 * width, 8 * width, stride=2),
        "avgpool": nn.AdaptiveAvgPool2d(1),
        "flatten": nn.Flatten(),
        "fc": nn.Linear(8 * width, classes),
    }


def topology(width: int) -> Topology:
    """The stem and layer1 share one space, then one per stage; each block has one inside."""
    links, space = [Link("conv1", (IMAGE,), "layer1", after="bn1")], "layer1"
    for stage in ("layer1", "layer2", "layer3", "layer4"):
        for block in (f"{stage}.0", f"{stage}.1"):
            links.append(Link(f"{block}.conv1", (space,), block, after=f"{block}.bn1"))
            links.append(Link(f"{block}.conv2", (block,), stage, after=f"{block}.bn2"))
            if space != stage:
                shortcut = f"{block}.downsample"
                links.append(Link(f"{shortcut}.0", (space,), stage, after=f"{shortcut}.1"))
            space = stage
    links.append(Link("fc", (space,), LOGITS))
    cuts: dict[str, tuple[str, ...]] = dict.fromkeys(("conv1", "bn1", "maxpool"), ("layer1",))
    cuts |= {stage: (stage,) for stage in ("layer1", "layer2", "layer3", "layer4")}
    cuts |= dict.fromkeys(("avgpool", "flatten"), ("layer4",))
    return Topology(tuple(links), cuts)
