"""The four networks row by row against the tables in appendix A of the paper."""

from __future__ import annotations

import math

import pytest
import torch

from sigil import models

# Row, shape of the output, dimension.
TABLES: dict[str, list[tuple[str, tuple[int, ...], int]]] = {
    "resnet18": [
        ("conv1", (64, 32, 32), 65_536),
        ("bn1", (64, 32, 32), 65_536),
        ("maxpool", (64, 32, 32), 65_536),
        ("layer1", (64, 32, 32), 65_536),
        ("layer2", (128, 16, 16), 32_768),
        ("layer3", (256, 8, 8), 16_384),
        ("layer4", (512, 4, 4), 8_192),
        ("avgpool", (512, 1, 1), 512),
        ("flatten", (512,), 512),
        ("fc", (10,), 10),
    ],
    "vgg11": [
        ("stage1", (64, 32, 32), 65_536),
        ("pool1", (64, 16, 16), 16_384),
        ("stage2", (128, 16, 16), 32_768),
        ("pool2", (128, 8, 8), 8_192),
        ("stage3", (256, 8, 8), 16_384),
        ("pool3", (256, 4, 4), 4_096),
        ("stage4", (512, 4, 4), 8_192),
        ("pool4", (512, 2, 2), 2_048),
        ("stage5", (512, 2, 2), 2_048),
        ("pool5", (512, 1, 1), 512),
        ("avgpool", (512, 1, 1), 512),
        ("flatten", (512,), 512),
        ("fc", (10,), 10),
    ],
    "mobilenetv2": [
        ("conv1", (32, 64, 64), 131_072),
        ("group1", (16, 64, 64), 65_536),
        ("group2", (24, 32, 32), 24_576),
        ("group3", (32, 16, 16), 8_192),
        ("group4", (64, 8, 8), 4_096),
        ("group5", (96, 8, 8), 6_144),
        ("group6", (160, 4, 4), 2_560),
        ("group7", (320, 4, 4), 5_120),
        ("conv2", (1280, 4, 4), 20_480),
        ("avgpool", (1280, 1, 1), 1_280),
        ("flatten", (1280,), 1_280),
        ("fc", (200,), 200),
    ],
    "densenet121": [
        ("conv_initial", (64, 32, 32), 65_536),
        ("pool0", (64, 16, 16), 16_384),
        ("block1", (256, 16, 16), 65_536),
        ("trans1", (128, 8, 8), 8_192),
        ("block2", (512, 8, 8), 32_768),
        ("trans2", (256, 4, 4), 4_096),
        ("block3", (1024, 4, 4), 16_384),
        ("trans3", (512, 2, 2), 2_048),
        ("block4", (1024, 2, 2), 4_096),
        ("norm_final", (1024, 2, 2), 4_096),
        ("avgpool", (1024, 1, 1), 1_024),
        ("flatten", (1024,), 1_024),
        ("fc", (200,), 200),
    ],
}
# Classes, size of the images, where the paper cuts.
TASKS = {
    "resnet18": (10, 32, "layer3"),
    "vgg11": (10, 32, "pool4"),
    "mobilenetv2": (200, 64, "group6"),
    "densenet121": (200, 64, "trans3"),
}


@pytest.mark.parametrize("name", TABLES)
def test_the_rows_are_those_of_the_table(name: str) -> None:
    classes, size, _ = TASKS[name]
    model = models.build(name, classes=classes, seed=0).eval()
    activation = torch.zeros(2, 3, size, size)
    found = []
    with torch.no_grad():
        for row, module in model.named_children():
            activation = module(activation)
            assert len(activation) == 2
            found.append((row, tuple(activation.shape[1:]), math.prod(activation.shape[1:])))
    assert found == TABLES[name]


@pytest.mark.parametrize("name", TABLES)
def test_every_row_but_the_last_is_a_cut_point(name: str) -> None:
    assert models.cut_points(name) == [row for row, _, _ in TABLES[name]][:-1]


@pytest.mark.parametrize("name", TABLES)
def test_the_default_cut_is_that_of_the_paper(name: str) -> None:
    assert models.default_cut(name) == TASKS[name][2]
