"""The recipes of a thief who erases: those of the search, and ideas to undercut them (see `frontier`).

The first are set by hand, the others drawn at random. The ideas came from somebody who had seen the best of
them, and may do what no recipe of the search does: learn from mixed images, begin with layers that were drawn
anew, or take the mean of several thieves' models.
"""

from __future__ import annotations

import math
import random
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import torch

from sigil import attacks, models
from sigil.attacks.halves import Halves, OpenedAtCut, open_at_cut, same_kind
from sigil.attacks.read import find_in_mean
from sigil.attacks.training import Effect, Tuning, finetune_at_cut
from sigil.data import Dataset, Split
from sigil.models import Model
from sigil_reproduction.beyond.thief import Attacker
from sigil_reproduction.runner.scales import PerScale

# Which proofs must be gone.
GOALS = {
    "mark": ("mark",),
    "origin": ("origin",),
    "both": ("mark", "origin"),
    "everything": ("mark", "origin", "imprint"),
}
# The first recipes, set by hand: one for each goal, then what is taken away stays away, or goes slowly.
KEPT = {"orthogonalise": 1.0, "keep": True}
TURNED = {"orthogonalise": 1.0, "way": "rotate"}
FIRST: tuple[dict[str, Any], ...] = (
    {"flatten": 10.0, "tuning": {}},
    {"orthogonalise": 1.0, "tuning": {"lr": 1e-3, "epochs": 12}},
    {"flatten": 3.0, "orthogonalise": 1.0, "tuning": {"lr": 1e-3, "epochs": 12}},
    {
        **{"flatten": 3.0, "orthogonalise": 1.0, "noise": 0.9, "shape": 0.7},
        "tuning": {"lr": 1e-3, "epochs": 12},
    },
    {"flatten": 3.0, **KEPT, "tuning": {"lr": 1e-3, "epochs": 9, "batch_size": 64}},
    {**KEPT, "tuning": {"lr": 1e-3, "epochs": 9, "batch_size": 64}},
    {
        **{"flatten": 3.0, **KEPT, "noise": 1.5, "shape": 0.7},
        "tuning": {"lr": 2e-3, "epochs": 9, "batch_size": 64},
    },
    {"flatten": 1.0, **TURNED, "tuning": {"lr": 1e-3, "epochs": 12}},
    {**TURNED, "tuning": {"lr": 1e-3, "epochs": 12}},
    {"flatten": 1.0, **KEPT, "orthogonalise": 0.98, "tuning": {"lr": 1e-3, "epochs": 12}},
    {"flatten": 3.0, "tuning": {"lr": 1e-3, "epochs": 12}},
)
# As the best recipe of the search learns.
TAUGHT = {"lr": 1e-3, "epochs": 9, "labels": 1.0, "logits": 1.0, "features": 1.0, "temperature": 4.0}
LONG = {**TAUGHT, "lr": 3e-3, "epochs": 24, "batch_size": 64, "labels": 0.3}
ATTEMPTS: PerScale[tuple[dict[str, Any], ...]] = PerScale(
    (),
    desk=(
        # Everything: a client half that was drawn anew in front of the stolen server half.
        {"anew": "", "flatten": 1.0, "tuning": LONG},
        # Both, by mixed images: three times as many of them for a little less long.
        {"flatten": 2.2, "orthogonalise": 0.99, "keep": True, "mixed": 2, "tuning": {**TAUGHT, "epochs": 4}},
        # Both, but no further than needed: less is taken away, more slowly.
        {"flatten": 1.0, "orthogonalise": 0.97, "keep": True, "tuning": {**TAUGHT, "lr": 7e-4, "epochs": 6}},
        # Both, by the mean of more steps.
        {"flatten": 2.2, "orthogonalise": 0.98, "keep": True, "tuning": {**TAUGHT, "averaged": 0.5}},
        # The mark alone, and the origin alone, no further than needed.
        {"flatten": 0.5, "tuning": {**TAUGHT, "lr": 3e-4, "epochs": 4}},
        {"orthogonalise": 0.97, "keep": True, "tuning": {**TAUGHT, "lr": 5e-4, "epochs": 6}},
        # Everything: more noise than any recipe of the search, for longer.
        {
            **{"flatten": 1.0, "orthogonalise": 0.97, "keep": True, "noise": 2.0, "shape": 0.0},
            "tuning": {**LONG, "lr": 2e-3},
        },
        # Everything: the mean of two models with noise of their own.
        {"flatten": 2.2, "orthogonalise": 0.97, "keep": True, "noise": 1.6, "models": 2, "tuning": TAUGHT},
    ),
)
# Between the seeds of models of which the mean is taken.
APART = 100


def recipe(trial: int) -> dict[str, Any]:
    """The options of a trial: those of erasing, and what is changed of the thief's best recipe."""
    if trial < len(FIRST):
        return FIRST[trial]
    draw = random.Random(f"trial {trial}")

    def between(least: float, most: float) -> float:
        """Evenly in the logarithm."""
        return float(f"{math.exp(draw.uniform(math.log(least), math.log(most))):.2g}")

    # What costs most, both proofs and the origin alone, is tried most.
    (goal,) = draw.choices(list(GOALS), weights=(1, 3, 4, 2))
    options: dict[str, Any] = {}
    if "mark" in GOALS[goal]:
        options["flatten"] = between(0.5, 20.0)
    if "origin" in GOALS[goal]:
        options["way"] = draw.choice(("project", "project", "rotate"))
        options |= {"orthogonalise": draw.choice((0.97, 0.99, 1.0)), "keep": draw.random() < 0.75}
    if goal == "everything" or draw.random() < 0.2:
        options["noise"] = between(0.3, 2.0)
        options["shape"] = draw.choice((0.5, 0.7, 1.0))
    options["tuning"] = {
        "lr": between(4e-4, 3e-3),
        "epochs": draw.choice((6, 9, 12)),
        "batch_size": draw.choice((32, 64)),
        "labels": draw.choice((0.1, 0.3, 1.0)),
        "logits": draw.choice((1.0, 3.0)),
        "features": draw.choice((0.0, 0.3, 1.0)),
        "temperature": draw.choice((2.0, 4.0)),
        "averaged": draw.choice((0.0, 0.1, 0.3)),
        "norms": draw.choice(("trained", "trained", "re-estimated")),
    }
    return options


def aim(options: Mapping[str, Any]) -> str:
    """The last of the goals that a recipe works towards: those whose proofs it all attacks."""
    moved = ("noise", "anew")
    attacked = {"mark": ("flatten",), "origin": ("orthogonalise", *moved), "imprint": moved}
    met = {proof for proof, ways in attacked.items() if any(way in options for way in ways)}
    return [goal for goal, proofs in GOALS.items() if met.issuperset(proofs)][-1]


def follow(options: Mapping[str, Any], thief: Attacker, initial: Model | None, tuning: Tuning) -> Halves:
    """Erase by a recipe.

    Beside the options of :func:`sigil.attacks.erase`: ``mixed``, how many mixed images each own one becomes;
    ``anew``, how the names of the layers begin that are drawn anew (with ``flatten`` alone); ``models``, the
    number of models of which the mean is taken.
    """
    rest = {name: value for name, value in options.items() if name not in ("tuning", "thief")}
    count, times, anew = rest.pop("models", 1), rest.pop("mixed", 0), rest.pop("anew", None)
    own = mixed(thief.own, times, tuning.seed) if times else thief.own
    if anew is not None:
        return begin_anew(thief, own, anew, tuning=tuning, **rest)
    seeds = [tuning.seed + number * APART for number in range(count)]
    made = [attacks.erase(thief.halves, own, initial, tuning=tuning, seed=seed, **rest) for seed in seeds]
    return made[0] if count == 1 else mean(made)


def mixed(own: Dataset, times: int, seed: int) -> Dataset:
    """The images and, this number of times, each mixed with another; labelled as the larger part."""
    images, labels = own.train.images, own.train.labels
    draws = np.random.default_rng(seed)
    parts = [(images, labels)]
    for _ in range(times):
        share = draws.uniform(0.5, 1.0, (len(images), *[1] * (images.ndim - 1)))
        other = images[draws.permutation(len(images))]
        parts.append(((share * images + (1 - share) * other).round().astype(images.dtype), labels))
    train = Split(*(np.concatenate(each) for each in zip(*parts, strict=True)))
    return replace(own, train=train)


def begin_anew(thief: Attacker, own: Dataset, names: str, *, tuning: Tuning, flatten: float = 0.0) -> Halves:
    """Draw the layers of the client half whose names begin so anew; the model as it was teaches the rest."""
    attacked = open_at_cut(thief.halves, own)
    effects = [drawn_anew(attacked, names, tuning)]
    if flatten:
        effects.append(find_in_mean(attacked, own, tuning, way="flatten", gamma=flatten)[0])
    finetune_at_cut(attacked, own, tuning, *effects)
    return same_kind(attacked.whole, thief.halves)


def drawn_anew(attacked: OpenedAtCut, names: str, tuning: Tuning) -> Effect:
    """What replaces them before the first step."""
    spec = attacked.whole.spec
    fresh = models.build(
        spec.name, classes=spec.classes, width=spec.width, channels=spec.channels, seed=tuning.seed + 1
    ).state_dict()
    inside = {id(value) for value in attacked.front.parameters()}

    @torch.no_grad()
    def before_step(done: int, total: int) -> None:
        if done == 0:
            for name, value in attacked.whole.named_parameters():
                if id(value) in inside and name.startswith(names):
                    value.copy_(fresh[name])

    return Effect(f"anew {names}", before_step=before_step)


def mean(made: list[Halves]) -> Halves:
    """The mean of the weights of several models."""
    first = made[0]
    for half, *others in zip(*made, strict=True):
        state = half.state_dict()
        for other in others:
            for name, value in other.state_dict().items():
                if value.is_floating_point():
                    state[name] += value
        half.load_state_dict(
            {name: value / len(made) if value.is_floating_point() else value for name, value in state.items()}
        )
    return first
