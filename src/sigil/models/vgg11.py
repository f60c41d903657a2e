"""VGG11 for small images (paper, appendix A, table 2), with batch normalisation.

The paper does not say whether it normalises; it is the usual choice for a learning rate of 0.1. The
last row of its table reads "Linear(512, 512) ...": here two linear layers with a ReLU between them,
and no dropout, so that training needs no random numbers of its own.
"""

from __future__ import annotations

from torch import nn

from sigil.models.topology import IMAGE, LOGITS, Link, Topology

STANDARD_WIDTH = 64
DEFAULT_CUT = "pool4"

# Channels as a multiple of the width, and convolutions, of each stage.
STAGES = ((1, 1), (2, 1), (4, 2), (8, 2), (8, 2))


def _stage(inputs: int, outputs: int, *, convolutions: int) -> nn.Sequential:
    layers: list[nn.Module] = []
    for _ in range(convolutions):
        layers += [
            nn.Conv2d(inputs, outputs, 3, padding=1),
            nn.BatchNorm2d(outputs),
            nn.ReLU(inplace=True),
        ]
        inputs = outputs
    return nn.Sequential(*layers)


def rows(width: int, channels: int, classes: int) -> dict[str, nn.Module]:
    """The rows of the table in order, for images with ``channels`` planes."""
    table: dict[str, nn.Module] = {}
    inputs = channels
    for number, (factor, convolutions) in enumerate(STAGES, start=1):
        table[f"stage{number}"] = _stage(inputs, factor * width, convolutions=convolutions)
        # Rounding up changes nothing for the table's sizes and keeps small maps from vanishing.
        table[f"pool{number}"] = nn.MaxPool2d(2, ceil_mode=True)
        inputs = factor * width
    # The identity on the table's 1×1 maps; larger images are averaged down to that.
    table["avgpool"] = nn.AdaptiveAvgPool2d(1)
    table["flatten"] = nn.Flatten()
    table["fc"] = nn.Sequential(
        nn.Linear(inputs, inputs),
        nn.ReLU(inplace=True),
        nn.Linear(inputs, classes),
    )
    return table


def topology(width: int) -> Topology:
    """Every convolution reads what the one before it wrote, through batch norm and rectifier."""
    links: list[Link] = []
    cuts: dict[str, tuple[str, ...]] = {}
    space = IMAGE
    for number, (_, convolutions) in enumerate(STAGES, start=1):
        for index in range(0, 3 * convolutions, 3):
            layer = f"stage{number}.{index}"
            links.append(Link(layer, (space,), layer, after=f"stage{number}.{index + 1}"))
            space = layer
        cuts |= dict.fromkeys((f"stage{number}", f"pool{number}"), (space,))
    links += [Link("fc.0", (space,), "fc"), Link("fc.2", ("fc",), LOGITS)]
    cuts |= dict.fromkeys(("avgpool", "flatten"), (space,))
    return Topology(tuple(links), cuts)
