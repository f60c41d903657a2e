"""The thief's recipes: what is drawn, and what the attempts to undercut the search do beside erasing."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from sigil import models
from sigil.attacks.halves import Halves
from sigil.attacks.training import BEST
from sigil.data import load
from sigil_reproduction.beyond import recipes
from sigil_reproduction.beyond.thief import Attacker

TUNING = BEST.changed(epochs=1, seed=3)


def thief() -> Attacker:
    model = models.build("resnet18", width=4, channels=1, seed=0)
    return Attacker(models.split(model, "layer1"), load("digits", train_limit=16), Path(), TUNING)


def followed(options: Mapping[str, Any], seed: int = TUNING.seed) -> Halves:
    return recipes.follow({"flatten": 1.0, **options}, thief(), None, TUNING.changed(seed=seed))


def test_recipes_differ_and_repeat() -> None:
    drawn = [str(recipes.recipe(trial)) for trial in range(40)]
    assert drawn == [str(recipes.recipe(trial)) for trial in range(40)]
    assert len(set(drawn)) == len(drawn)
    # Every goal is aimed at, and what costs most is tried most.
    aims = [recipes.aim(recipes.recipe(trial)) for trial in range(40)]
    assert min(aims.count(goal) for goal in recipes.GOALS) >= 3
    assert aims.count("both") + aims.count("everything") >= 20


@pytest.mark.parametrize(
    ("options", "goal"),
    [
        ({"flatten": 3.0}, "mark"),
        ({"orthogonalise": 1.0}, "origin"),
        ({"noise": 1.0}, "origin"),
        ({"flatten": 3.0, "orthogonalise": 1.0}, "both"),
        ({"flatten": 3.0, "noise": 1.0}, "everything"),
    ],
)
def test_a_recipe_aims_at_the_proofs_that_it_attacks(options: dict[str, float], goal: str) -> None:
    assert recipes.aim(options) == goal


def test_mixed_images_lie_between_two_and_keep_the_label_of_the_nearer() -> None:
    own = thief().own
    mixed = recipes.mixed(own, 2, seed=0).train
    assert len(mixed) == 3 * len(own.train)
    assert (mixed.images[: len(own.train)] == own.train.images).all()
    assert (mixed.labels.reshape(3, -1) == own.train.labels).all()
    for image, first in zip(
        mixed.images[len(own.train) :], np.tile(np.arange(len(own.train)), 2), strict=True
    ):
        away = np.abs(own.train.images.astype(float) - image).sum((1, 2, 3))
        assert away[first] <= np.median(away)


def test_layers_that_are_drawn_anew_have_nothing_of_what_they_were() -> None:
    before = models.join(*thief().halves).state_dict()
    after = models.join(*followed({"anew": "conv1"})).state_dict()

    def cosine(name: str) -> float:
        return float(torch.cosine_similarity(before[name].flatten(), after[name].flatten(), dim=0))

    assert abs(cosine("conv1.weight")) < 0.5
    assert cosine("layer1.0.conv1.weight") > 0.9


def test_the_mean_of_several_models_lies_between_them() -> None:
    one, other = (followed({}, seed=TUNING.seed + number * recipes.APART)[0] for number in range(2))
    mean = followed({"models": 2})[0].state_dict()
    for name, value in one.state_dict().items():
        if value.is_floating_point():
            assert torch.allclose(mean[name], (value + other.state_dict()[name]) / 2, atol=1e-6), name
