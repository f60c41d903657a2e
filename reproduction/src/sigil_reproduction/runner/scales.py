"""How large an experiment is run: `paper` exactly as published, `desk` in hours on two cores, `cpu` in
minutes, `smoke` in seconds.

A scale turns what an experiment varies (architecture, strength, clients, …) into the full settings of a
training. What only one experiment chooses for each scale is a :class:`PerScale` beside that experiment.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

from sigil.errors import ExperimentError
from sigil.federation.settings import Settings, make

T = TypeVar("T")
Sections = Mapping[str, Mapping[str, Any]]

NOT_JUDGED = "This scale shows that everything runs: its numbers say nothing about the paper's claims."
TASKS = {
    "resnet18": "cifar10",
    "vgg11": "cifar10",
    "mobilenetv2": "tiny-imagenet",
    "densenet121": "tiny-imagenet",
}
STRENGTHS = (0.01, 0.1, 1.0)
PAPER_BITS = 50


@dataclass(frozen=True)
class Scale:
    """One scale: settings for all trainings, and for each architecture on top of them."""

    name: str
    note: str
    base: Sections
    models: Mapping[str, Sections] = field(default_factory=dict)
    variations: Sections = field(default_factory=dict)  # on top, where many trainings are needed
    wide: Sections = field(default_factory=dict)  # on top, where at least 128 channels are wanted
    # Federation, where a client must take as many steps as the paper's; empty where it does anyway.
    paper_steps: Mapping[str, Any] = field(default_factory=dict)
    # What is kept of the gradients of client 0, where they are looked at afterwards.
    recording: Mapping[str, Any] = field(default_factory=lambda: {"clients": [0]})
    # Trainings take hours: each is recorded whether asked or not and its model is kept beside the results, so
    # that detectors and attacks that come later need no other.
    keeps_models: bool = False
    keys_per_model: int = 100  # random keys that are tried on a model
    judged: bool = True  # whether its numbers say anything about the paper's claims

    def settings(
        self, model: str = "resnet18", /, *, seed: int, variation: bool = False, **sections: Mapping[str, Any]
    ) -> Settings:
        """Full settings of a training of this architecture, with what the experiment changes on top."""
        merged: dict[str, dict[str, Any]] = {}
        layers: list[Sections] = [
            {
                "model": {"name": model},
                "data": {"name": TASKS[model]},
                # Experiments measure the paper's mark, whatever a new training would take.
                "watermark": {"scheme": "paper", "strength": 0.1},
            },
            self.base,
            self.models.get(model, {}),
            self.variations if variation else {},
            # One thread: trainings run side by side, one per core, and the bits do not depend on how many
            # cores there are. They do depend on the kind of processor, which each cell names.
            {"run": {"threads": 1, "workers": 1}},
            sections,
            {"run": {"seed": seed}},
        ]
        for layer in layers:
            for name, values in layer.items():
                merged.setdefault(name, {}).update(values)
        return make(merged)


class PerScale(Generic[T]):
    """What one experiment chooses for each scale: the paper's, except at the scales that are named.

    >>> PerScale(80, smoke=2).at("cpu"), PerScale(80, smoke=2).at("smoke")
    (80, 2)
    """

    def __init__(self, paper: T, **others: T) -> None:
        self._paper, self._others = paper, others

    def at(self, scale: Scale | str) -> T:
        """What is chosen at this scale."""
        return self._others.get(scale if isinstance(scale, str) else scale.name, self._paper)


PAPER = Scale(
    name="paper",
    note="The paper's setting: full width, all images, 80 rounds of 2 local epochs, batch 256.",
    base={"watermark": {"bits": PAPER_BITS}},
    # Two steps of 256 gradients a round and the adaptive attack's ten rounds whole: 9 GB at layer3, 38 GB at
    # layer1.
    recording={"clients": [0], "share": 0.05, "whole_rounds": 10, "limit_mb": 40_960},
)

CPU = Scale(
    name="cpu",
    note=(
        "ResNet-18 and VGG11 at width 8 (standard 64) on 10,000 of the 50,000 CIFAR-10 training images; "
        "MobileNetV2 at width 8 (standard 32) and DenseNet-121 at width 16 (standard 64) on the first 10 "
        "classes of Tiny-ImageNet, 150 images each; 10 rounds of 1 local epoch (Tiny-ImageNet: 2) instead of "
        "80 of 2; batch 16 instead of 256, learning rate 0.05 instead of 0.1, 1 round of warm-up instead of "
        "5. All test images of the classes used. The noise figure and the tables on clients, non-IID and "
        "unbalanced data use 4,000 training images. Alignment uses ResNet-18 at width 16 cut at layer4, "
        "which has 128 channels there. The adaptive attack fine-tunes for 10 epochs at 1e-3 instead of 100 "
        "at 1e-4; extraction takes 10 epochs. A training that is called longer gives the same images to 2 "
        "clients instead of 10, so that each takes 3,130 steps, as many as the paper's."
    ),
    base={
        "federation": {"rounds": 10, "local_epochs": 1, "batch_size": 16},
        "optimizer": {"lr": 0.05, "warmup_rounds": 1},
        "watermark": {"bits": PAPER_BITS},
        "run": {"precision": "float32", "evaluate_every": 2},
    },
    variations={"data": {"train_limit": 4_000}, "run": {"evaluate_every": 5}},
    wide={"model": {"width": 16, "cut": "layer4"}},
    paper_steps={"clients": 2},
    keys_per_model=1_000,
    models={
        "resnet18": {"model": {"width": 8}, "data": {"train_limit": 10_000}},
        "vgg11": {"model": {"width": 8}, "data": {"train_limit": 10_000}},
        "mobilenetv2": {
            "model": {"width": 8},
            "data": {"classes": 10, "train_limit": 1_500},
            "federation": {"local_epochs": 2},
        },
        "densenet121": {
            "model": {"width": 16},
            "data": {"classes": 10, "train_limit": 1_500},
            "federation": {"local_epochs": 2},
        },
    },
)

_TINY: Sections = {
    "model": {"width": 16},
    "data": {"classes": 20, "train_limit": 3_000},
    "federation": {"rounds": 80},
}

DESK = Scale(
    name="desk",
    note=(
        "ResNet-18 and VGG11 at width 16 (standard 64) on all 50,000 CIFAR-10 training images; MobileNetV2 "
        "at width 16 (standard 32) and DenseNet-121 at width 16 (standard 64) on the first 20 classes of "
        "Tiny-ImageNet, 150 images each; 20 rounds (Tiny-ImageNet: 80, as in the paper) of 2 local epochs; "
        "batch 64 instead of 256, 2 rounds of warm-up instead of 5. All test images of the classes used. "
        "The number format is the processor's fastest. Alignment cuts ResNet-18 at layer4, which has 128 "
        "channels there."
    ),
    base={
        "federation": {"clients": 10, "rounds": 20, "local_epochs": 2, "batch_size": 64},
        "optimizer": {"lr": 0.1, "warmup_rounds": 2},
        "watermark": {"bits": PAPER_BITS},
        # A training takes half the time on a processor with bfloat16 instructions; cells name their format.
        "run": {"precision": "auto", "evaluate_every": 2},
    },
    wide={"model": {"cut": "layer4"}},
    recording={"clients": [0], "share": 0.05, "whole_rounds": 3, "limit_mb": 4_096},
    keeps_models=True,
    keys_per_model=1_000,
    models={
        "resnet18": {"model": {"width": 16}},
        "vgg11": {"model": {"width": 16}},
        "mobilenetv2": _TINY,
        "densenet121": _TINY,
    },
)

SMOKE = Scale(
    name="smoke",
    note="Seconds on the embedded digits: shows that everything runs, and says nothing about the paper.",
    base={
        "data": {"name": "digits32", "train_limit": 80, "test_limit": 40},
        "federation": {"clients": 4, "rounds": 2, "local_epochs": 1, "batch_size": 16},
        "optimizer": {"lr": 0.05, "warmup_rounds": 0},
        "watermark": {"bits": PAPER_BITS, "probes": 16, "statistics_every": 1},
        "run": {"precision": "float32"},
    },
    models={
        "resnet18": {"model": {"width": 8}, "data": {"name": "digits"}},
        "vgg11": {"model": {"width": 8}},
        "mobilenetv2": {"model": {"width": 8}},
        "densenet121": {"model": {"width": 8}},
    },
    keys_per_model=20,
    judged=False,
)

SCALES = {scale.name: scale for scale in (SMOKE, CPU, DESK, PAPER)}


def get(name: str) -> Scale:
    """The scale with this name."""
    if name not in SCALES:
        raise ExperimentError(f"There is no scale {name!r}; choose one of {', '.join(SCALES)}.")
    return SCALES[name]


# Numbers of bits that several experiments try: those of the paper's table, and those that may be proof.
LENGTHS = PerScale((50, 500, 1_000, 2_000, 3_000), cpu=(50, 500, 1_000, 2_000), smoke=(50, 100))
PROOF = PerScale((50, 128, 160, 256), smoke=(50, 100))
# A bit for every 16 dimensions of the cut, as a new key has, so that a plain key could be proof at all.
NEW_KEY = PerScale(512, desk=256, cpu=128, smoke=32)


def shares(scale: Scale) -> dict[str, Any]:
    """Watermark settings of the scheme that a new training takes, with as many bits as a new key has."""
    return {"scheme": "shares", "strength": 0.3, "bits": NEW_KEY.at(scale)}
