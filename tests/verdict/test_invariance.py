"""What changes no answer of a model does not change the verdict: disguises, alone and composed."""

from __future__ import annotations

from contextlib import closing
from functools import cache
from pathlib import Path

import onnx
import pytest
import torch

from harness.disguises import DISGUISES, REWRITES, Case, exported, marked, pictures, reordered, scaled
from sigil import models, verify
from sigil.models import Model
from sigil.suspect import open_suspect
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


@pytest.mark.parametrize("name", models.names())
def test_all_disguises_at_once_leave_the_verdict(name: str) -> None:
    """The smallest margin was that of DenseNet: log10 p -10.4 for the mark, and proof begins at -7.1."""
    known, random = case(name), torch.Generator().manual_seed(4)
    copied = known.whole
    for disguise in ("reordered", "scaled", "turned", "silenced", "overflowing"):
        copied = DISGUISES[disguise](known, copied, random)
    found = verdict(copied, known)
    assert verdict(known.whole, known).owned
    assert found.owned
    assert found.aligned
    assert origin(found) < -300


@pytest.mark.parametrize(
    ("name", "rewrites"),
    [
        *(("resnet18", (rewrite,)) for rewrite in REWRITES),
        ("vgg11", ("padded", "rectified", "computed")),
        ("mobilenetv2", ("halved", "transposed")),
        ("densenet121", ("idle", "halved")),
    ],
)
def test_a_graph_written_otherwise_has_the_verdict_of_the_plain_copy(
    name: str, rewrites: tuple[str, ...], tmp_path: Path
) -> None:
    """log10 p of the origin was -1015.7 for ResNet-18 however it was written, and -166 for MobileNetV2."""
    known, random = case(name), torch.Generator().manual_seed(3)
    half = models.split(scaled(known, reordered(known, known.whole, random), random), known.cut)[0].eval()
    path = tmp_path / "copy.onnx"
    graph = exported(half, path)
    for rewrite in rewrites:
        graph = REWRITES[rewrite](graph)
    onnx.save(graph, str(path))
    images = pictures(4, seed=9)
    with closing(open_suspect(path, key=known.key, at=graph.graph.output[0].name)) as suspect:
        with torch.no_grad():
            torch.testing.assert_close(suspect(images), half(images), rtol=1e-3, atol=1e-3)
        report = verify(suspect, known.key, known.inputs, inputs_from="judge", register=1)
    assert report.owned
    assert report.descends
    assert origin(report) < -100
