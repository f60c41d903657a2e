"""DenseNet-121 for 64×64 images (paper, appendix A, table 4); the growth is half the width."""

from __future__ import annotations

from collections import OrderedDict

import torch
from torch import Tensor, nn

from sigil.models.resnet18 import BatchNormReLU
from sigil.models.topology import IMAGE, LOGITS, Link, Topology

STANDARD_WIDTH = 64
DEFAULT_CUT = "trans3"
BLOCKS = (6, 12, 24, 16)
BOTTLENECK = 4


class DenseLayer(nn.Module):
    """Append ``growth`` channels to the input: (N, inputs, H, W) -> (N, inputs + growth, H, W)."""

    def __init__(self, inputs: int, growth: int) -> None:
        super().__init__()
        self.norm1 = BatchNormReLU(inputs)
        self.conv1 = nn.Conv2d(inputs, BOTTLENECK * growth, 1, bias=False)
        self.norm2 = BatchNormReLU(BOTTLENECK * growth)
        self.conv2 = nn.Conv2d(BOTTLENECK * growth, growth, 3, padding=1, bias=False)

    def forward(self, input: Tensor) -> Tensor:
        new = self.conv2(self.norm2(self.conv1(self.norm1(input))))
        return torch.cat((input, new), dim=1)


def _transition(inputs: int, outputs: int) -> nn.Sequential:
    return nn.Sequential(
        OrderedDict[str, nn.Module](
            norm=BatchNormReLU(inputs),
            conv=nn.Conv2d(inputs, outputs, 1, bias=False),
            # Rounding up changes nothing for the table's sizes and keeps small maps from vanishing.
            pool=nn.AvgPool2d(2, ceil_mode=True),
        )
    )


def rows(width: int, channels: int, classes: int) -> dict[str, nn.Module]:
    """The rows of the table in order, for images with ``channels`` planes."""
    growth = max(1, width // 2)
    table: dict[str, nn.Module] = {
        "conv_initial": nn.Sequential(
            OrderedDict[str, nn.Module](
                conv=nn.Conv2d(channels, width, 7, stride=2, padding=3, bias=False),
                norm=BatchNormReLU(width),
            )
        ),
        "pool0": nn.MaxPool2d(3, stride=2, padding=1),
    }
    size = width
    for number, layers in enumerate(BLOCKS, start=1):
        table[f"block{number}"] = nn.Sequential(
            *(DenseLayer(size + index * growth, growth) for index in range(layers))
        )
        size += layers * growth
        if number < len(BLOCKS):
            table[f"trans{number}"] = _transition(size, size // 2)
            size //= 2
    table["norm_final"] = BatchNormReLU(size)
    table["avgpool"] = nn.AdaptiveAvgPool2d(1)
    table["flatten"] = nn.Flatten()
    table["fc"] = nn.Linear(size, classes)
    return table


def topology(width: int) -> Topology:
    """Each layer reads all spaces of its block so far, through a norm, and appends a linear one."""
    links = [Link("conv_initial.conv", (IMAGE,), "conv_initial", after="conv_initial.norm")]
    spaces: tuple[str, ...] = ("conv_initial",)
    cuts = dict.fromkeys(("conv_initial", "pool0"), spaces)
    for number, layers in enumerate(BLOCKS, start=1):
        for index in range(layers):
            layer = f"block{number}.{index}"
            inside = f"{layer} inside"
            links.append(
                Link(f"{layer}.conv1", spaces, inside, before=f"{layer}.norm1", after=f"{layer}.norm2")
            )
            links.append(Link(f"{layer}.conv2", (inside,), layer))
            spaces = (*spaces, layer)
        cuts[f"block{number}"] = spaces
        if number < len(BLOCKS):
            row = f"trans{number}"
            links.append(Link(f"{row}.conv", spaces, row, before=f"{row}.norm"))
            spaces = (row,)
            cuts[row] = spaces
    links.append(Link("fc", spaces, LOGITS, before="norm_final"))
    cuts |= dict.fromkeys(("norm_final", "avgpool", "flatten"), spaces)
    linear = frozenset(link.writes for link in links if link.after is None)
    return Topology(tuple(links), cuts, linear - {LOGITS})
