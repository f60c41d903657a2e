"""VGG11 for small images (paper, appendix A, table 2), with batch normalisation.

The paper does not say whether it normalises; it is the usual choice for a learning rate of 0.1. The
last row of its table reads "Linear(512, 512) ...": here two linear layers with a ReLU between them,
and no dropout, so that training needs no random numbers of its own.
"""

from __future__ import annotations

from torch import nn

STANDARD_WIDTH = 64
DEFAULT_CUT = "pool4"


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


def _pool() -> nn.MaxPool2d:
    # Rounding up changes nothing for the table's sizes and keeps small maps from vanishing.
    return nn.MaxPool2d(2, ceil_mode=True)


def rows(width: int, channels: int, classes: int) -> dict[str, nn.Module]:
    """The rows of the table in order, for images with ``channels`` planes."""
    return {
        "stage1": _stage(channels, width, convolutions=1),
        "pool1": _pool(),
        "stage2": _stage(width, 2 * width, convolutions=1),
        "pool2": _pool(),
        "stage3": _stage(2 * width, 4 * width, convolutions=2),
        "pool3": _pool(),
        "stage4": _stage(4 * width, 8 * width, convolutions=2),
        "pool4": _pool(),
        "stage5": _stage(8 * width, 8 * width, convolutions=2),
        "pool5": _pool(),
        # The identity on the table's 1×1 maps; larger images are averaged down to that.
        "avgpool": nn.AdaptiveAvgPool2d(1),
        "flatten": nn.Flatten(),
        "fc": nn.Sequential(
            nn.Linear(8 * width, 8 * width),
            nn.ReLU(inplace=True),
            nn.Linear(8 * width, classes),
        ),
    }
