"""Orthogonalising: what each way leaves of the initial weights, and what a wrong initial model is told."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from harness.luck import Margin
from sigil import attacks, models
from sigil.data import Dataset
from sigil.errors import AttackError
from sigil.origin import Origin, compare


@pytest.fixture(scope="module")
def initial() -> models.Model:
    """The model from which the marked one of conftest.py was trained."""
    return models.build("vgg11", classes=10, width=8, channels=1, input_size=8, seed=0)


def filters(model: models.Model) -> dict[str, Tensor]:
    """The convolutions up to the cut."""
    return {name: value for name, value in model.state_dict().items() if name in DRAWN}


DRAWN = ("stage1.0.weight", "stage2.0.weight")


def cosines(model: models.Model, initial: models.Model) -> Tensor:
    return torch.cat(
        [
            torch.nn.functional.cosine_similarity(value.flatten(1), initial.state_dict()[name].flatten(1))
            for name, value in filters(model).items()
        ]
    )


def origin(model: models.Model, initial: models.Model) -> Origin:
    known = initial.state_dict()
    return compare(
        model.state_dict(),
        {name: tuple(known[name].shape) for name in DRAWN},
        lambda name, shape: known[name],
    )


def attacked(marked: Any, digits: Dataset, initial: models.Model, **options: Any) -> models.Model:
    tuning = attacks.Tuning(lr=3e-3, epochs=options.pop("epochs", 10), batch_size=48)
    made: models.Model = attacks.orthogonalise(
        marked.whole, digits, initial, cut="pool2", tuning=tuning, **options
    )
    return made


def test_the_marked_model_descends_from_its_initial_weights(
    marked: Any, initial: models.Model, margin: Margin
) -> None:
    assert set(DRAWN) <= set(initial.state_dict())
    margin("cosine", float(cosines(marked.whole, initial).mean()), above=0.4)
    margin("log10 p", origin(marked.whole, initial).log10_p, below=-20)


def test_projected_and_kept_there_nothing_is_left_along_the_initial_weights(
    marked: Any, digits: Dataset, initial: models.Model, margin: Margin
) -> None:
    kept = attacked(marked, digits, initial, keep=True)
    assert float(cosines(kept, initial).abs().max()) < 1e-3
    half = attacked(marked, digits, initial, strength=0.5, keep=True)
    margin("cosine left by half", float(cosines(half, initial).mean()), above=0.05)
    assert float(cosines(half, initial).mean()) < float(cosines(marked.whole, initial).mean())
    once = attacked(marked, digits, initial)
    assert float(cosines(once, initial).abs().max()) > 1e-3
    for name, model in (("kept", kept), ("once", once)):
        left = origin(model, initial).log10_p / origin(marked.whole, initial).log10_p
        margin(f"evidence left, {name}", left, below=0.5)


def test_rotation_ends_where_projection_does(marked: Any, digits: Dataset, initial: models.Model) -> None:
    rotated = attacked(marked, digits, initial, way="rotate")
    assert float(cosines(rotated, initial).abs().max()) < 1e-3
    assert not torch.equal(filters(rotated)[DRAWN[0]], filters(marked.whole)[DRAWN[0]])


def test_a_penalty_pulls_towards_right_angles(
    marked: Any, digits: Dataset, initial: models.Model, margin: Margin
) -> None:
    none, some = (
        float(
            cosines(attacked(marked, digits, initial, way="penalty", strength=weight, epochs=30), initial)
            .square()
            .mean()
        )
        for weight in (0.0, 10.0)
    )
    margin("left", some / none, below=0.7)


def plain_share(found: Origin) -> float:
    """The share of all signs that agree, large or small."""
    return sum(found.agreeing) / found.count


def test_flips_leave_half_of_the_signs(
    marked: Any, digits: Dataset, initial: models.Model, margin: Margin
) -> None:
    flipped = origin(attacked(marked, digits, initial, way="flip", epochs=2), initial)
    margin("off one half", abs(plain_share(flipped) - 0.5), below=0.005)
    kept = origin(attacked(marked, digits, initial, way="flip", keep=True, epochs=2), initial)
    margin("off one half, kept", abs(plain_share(kept) - 0.5), below=0.005)
    part = origin(attacked(marked, digits, initial, way="flip", strength=0.5, epochs=2), initial)
    middle = (0.5 + plain_share(origin(marked.whole, initial))) / 2
    margin("off the middle", abs(plain_share(part) - middle), below=0.03)


def test_flips_of_small_weights_do_not_hide_the_origin(
    marked: Any, digits: Dataset, initial: models.Model, margin: Margin
) -> None:
    flipped = origin(attacked(marked, digits, initial, way="flip", epochs=2), initial)
    margin("log10 p", flipped.log10_p, below=-10)


def test_turning_larger_weights_does(
    marked: Any, digits: Dataset, initial: models.Model, margin: Margin
) -> None:
    turned = attacked(marked, digits, initial, way="turn", epochs=2)
    found = origin(turned, initial)
    margin("off one half", abs(found.share - 0.5), below=0.01)
    margin("log10 p", found.log10_p, above=-2)
    half = origin(attacked(marked, digits, initial, way="turn", strength=0.5, epochs=2), initial)
    margin("share by half", half.share, above=0.52)
    assert half.share < origin(marked.whole, initial).share
    # It takes more than to make half of the signs wrong.
    flipped = attacked(marked, digits, initial, way="flip", epochs=2)
    margin("change, of flips", change(turned, marked.whole) / change(flipped, marked.whole), above=1.5)


def change(model: models.Model, before: models.Model) -> float:
    """How much of the filters' energy is gone, by their distance from before."""
    return sum(
        float((value - filters(before)[name]).square().sum() / filters(before)[name].square().sum())
        for name, value in filters(model).items()
    )


def test_nothing_behind_the_cut_is_projected_and_halves_do(
    marked: Any, digits: Dataset, initial: models.Model
) -> None:
    tuning = attacks.Tuning(lr=1e-12, steps=1, batch_size=48)
    client, server = attacks.orthogonalise(
        marked.halves, digits, models.split(initial, "pool2")[0], tuning=tuning
    )
    assert float(cosines(client, initial).abs().max()) < 1e-3
    for name, value in marked.halves[1].named_parameters():
        torch.testing.assert_close(server.state_dict()[name], value.detach(), msg=name)


@pytest.mark.parametrize(
    ("options", "word"),
    [
        ({"strength": 1.5}, "between 0 and 1"),
        ({"way": "penalty", "strength": -1.0}, "at least 0"),
        ({"way": "bend"}, "bend"),
        ({"initial": models.build("vgg11", classes=10, width=4, channels=1, input_size=8, seed=0)}, "began"),
        ({"initial": models.build("resnet18", classes=10, width=4, channels=1, seed=0)}, "began"),
    ],
)
def test_bad_input(
    marked: Any, digits: Dataset, initial: models.Model, options: dict[str, Any], word: str
) -> None:
    given = {"initial": initial} | options
    with pytest.raises(AttackError, match=word):
        attacks.orthogonalise(marked.whole, digits, cut="pool2", **given)
