"""What changes no answer of a model does not change the verdict: disguises, alone and composed."""

from __future__ import annotations

from functools import cache

import pytest
import torch

from harness.disguises import DISGUISES, Case, marked, pictures, reordered
from sigil import models, verify
from sigil.models import Model
from sigil.verdict.report import Report


@cache
def case(name: str = "resnet18") -> Case:
    return marked(name)


def verdict(whole: Model, known: Case) -> Report:
    half = models.split(whole, known.cut)[0].eval()
    return verify(half, known.key, known.inputs, inputs_from="judge", register=1)


def origin(report: Report) -> float:
    return next(reading.log10_p_before for reading in report.readings if reading.kind == "origin")


@pytest.mark.parametrize("name", DISGUISES)
def test_a_disguised_copy_has_the_verdict_of_the_plain_one(name: str) -> None:
    """log10 p was -15.1 for the mark, which is all there can be, and -1015.7 for the origin in each."""
    known, random = case(), torch.Generator().manual_seed(3)
    copied = DISGUISES[name](known, reordered(known, known.whole, random), random)
    images = pictures(8, seed=9)
    with torch.no_grad():
        wanted = known.whole(images)
        difference = (copied(images) - wanted).abs().max() / wanted.abs().max()
    assert difference < (0.05 if name == "silenced" else 1e-5)
    plain, found = verdict(known.whole, known), verdict(copied, known)
    assert plain.owned
    assert found.owned
    assert found.aligned
    assert found.wsr > plain.wsr - 0.01
    assert found.best.log10_p_before == pytest.approx(plain.best.log10_p_before, abs=1)
    assert origin(found) < -900
