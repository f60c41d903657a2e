"""Specs are valid or do not exist; wrong names bring the nearest right one."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import pytest

from sigil import models
from sigil.errors import ModelError
from sigil.models import ModelSpec


def spec(**changes: Any) -> ModelSpec:
    values = {"name": "resnet18", "classes": 10, "width": 8, "channels": 3} | changes
    return ModelSpec(**values)


def test_the_four_architectures() -> None:
    assert models.names() == ["resnet18", "vgg11", "mobilenetv2", "densenet121"]


@pytest.mark.parametrize("name", models.names())
def test_the_last_row_and_the_input_are_no_cut_points(name: str) -> None:
    points = models.cut_points(name)
    assert points[-1] == "flatten"
    assert "fc" not in points
    assert "input" not in points
    assert models.default_cut(name) in points
    points.clear()
    assert models.cut_points(name)  # the caller got a list of his own


@pytest.mark.parametrize(
    ("given", "nearest"), [("resnet81", "resnet18"), ("VGG-11", "vgg11"), ("mobilenet", "mobilenetv2")]
)
def test_unknown_architecture_names_the_nearest_and_all(given: str, nearest: str) -> None:
    for call in (models.cut_points, models.default_cut, models.build):
        with pytest.raises(ModelError, match=f"nearest is '{nearest}'") as caught:
            call(given)
        assert "densenet121" in str(caught.value)
        assert "\n" not in str(caught.value)


@pytest.mark.parametrize("given", ["layer5", "Layer3", "fc", "input", ""])
def test_unknown_cut_names_the_list(given: str) -> None:
    with pytest.raises(ModelError, match=r"cut point of resnet18 .*conv1, bn1, maxpool, layer1"):
        spec(part="client", cut=given)


def test_unknown_cut_names_the_nearest() -> None:
    with pytest.raises(ModelError, match="nearest is 'layer3'"):
        spec(part="server", cut="layer_3")


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("width", 0),
        ("width", -1),
        ("width", 1025),
        pytest.param("width", 10**5000, id="width-huge"),
        ("width", 1.5),
        ("width", "64"),
        ("width", True),
        ("width", None),
        ("classes", 0),
        ("classes", 100_001),
        ("channels", 0),
        ("channels", 65),
    ],
)
def test_values_out_of_range_are_refused_by_name(field: str, value: object) -> None:
    with pytest.raises(ModelError, match=f"^{field} must be a whole number from 1 to") as caught:
        spec(**{field: value})
    assert len(str(caught.value)) < 200


@pytest.mark.parametrize("name", [["resnet18"], {"a": 1}, None, 3, "x" * 10_000])
def test_a_name_of_any_type_is_refused_in_one_short_sentence(name: object) -> None:
    with pytest.raises(ModelError, match="there is no architecture") as caught:
        spec(name=name)
    assert len(str(caught.value)) < 250


def test_part_and_cut_must_agree() -> None:
    with pytest.raises(ModelError, match="a whole model has no cut"):
        spec(cut="layer3")
    with pytest.raises(ModelError, match="a client half needs the name of the cut"):
        spec(part="client")
    with pytest.raises(ModelError, match="nearest is 'client'"):
        spec(part="cliemt", cut="layer3")
    with pytest.raises(ModelError, match="there is no part"):
        spec(part=["client"], cut="layer3")
    with pytest.raises(ModelError, match="there is no cut point"):
        spec(part="client", cut=["layer3"])


def test_specs_are_values() -> None:
    half = spec(part="client", cut="layer3")
    assert half == spec(part="client", cut="layer3") != spec(part="server", cut="layer3")
    assert pickle.loads(pickle.dumps(half)) == copy.deepcopy(half) == half
    assert len({half, spec(part="client", cut="layer3")}) == 1
    assert str(half) == "client half at layer3 of resnet18 with width 8 and 10 classes"
