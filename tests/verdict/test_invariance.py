"""What changes no answer of a model does not change the verdict: disguises, alone and composed."""

from __future__ import annotations

import copy
from contextlib import closing
from functools import cache
from pathlib import Path

import onnx
import pytest
import torch
from torch import Tensor, nn

from harness.disguises import (
    DISGUISES,
    INPUT,
    REWRITES,
    Case,
    exported,
    marked,
    pictures,
    push,
    reordered,
    scaled,
)
from harness.held_out import FILES, GRAPHS, unaliased
from harness.layouts import LAYOUTS
from sigil import models, verify
from sigil.keys.key import Key
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


@pytest.mark.parametrize(
    ("name", "disguises", "rewrites"),
    [
        ("resnet18", ("scaled widely", "turned"), ("idle", "transposed")),
        ("vgg11", ("silenced", "scaled", "turned"), ("idle",)),
    ],
)
def test_neither_wide_scales_nor_silent_channels_hide_the_filters_of_a_graph(
    name: str, disguises: tuple[str, ...], rewrites: tuple[str, ...], tmp_path: Path
) -> None:
    """log10 p of the mark was -14.4 at most, that of the origin -1015; proof begins at -7.1."""
    known, random = case(name), torch.Generator().manual_seed(7)
    whole = reordered(known, known.whole, random)
    for disguise in disguises:
        whole = DISGUISES[disguise](known, whole, random)
    path = tmp_path / "copy.onnx"
    graph = exported(models.split(whole, known.cut)[0].eval(), path)
    for rewrite in rewrites:
        graph = REWRITES[rewrite](graph)
    onnx.save(graph, str(path))
    with closing(open_suspect(path, key=known.key, at=graph.graph.output[0].name)) as suspect:
        report = verify(suspect, known.key, known.inputs, inputs_from="judge", register=1)
    assert report.owned
    assert report.aligned
    assert origin(report) < -900


def test_the_sign_of_a_batch_norm_counts_where_no_layer_has_its_name() -> None:
    """Half of the filters and their batch norms change sign: MobileNetV2 has channels without a rectifier."""
    known, random = case("mobilenetv2"), torch.Generator().manual_seed(6)
    whole = DISGUISES["turned"](known, reordered(known, known.whole, random), random)
    half = models.split(whole, known.cut)[0]
    unnamed = nn.Sequential(*half.children()).eval()
    report = verify(unnamed, known.key, known.inputs, input_shape=INPUT, inputs_from="judge", register=1)
    assert report.owned
    assert report.best.log10_p_before == pytest.approx(-15.1, abs=0.1)
    assert origin(report) < -300


@pytest.mark.parametrize(
    ("name", "rewrite"),
    [
        ("resnet18", "matrix products over pieces"),
        ("vgg11", "filters dealt out and shuffled"),
        ("mobilenetv2", "normalised in single steps"),
    ],
)
def test_a_graph_of_other_operators_has_the_verdict_of_the_plain_copy(
    name: str, rewrite: str, tmp_path: Path
) -> None:
    """In MobileNetV2 signs count: log10 p of the mark was -2.5, of the origin -41, where they were lost."""
    known, random = case(name), torch.Generator().manual_seed(1)
    half = models.split(scaled(known, reordered(known, known.whole, random), random), known.cut)[0].eval()
    path = tmp_path / "copy.onnx"
    graph = GRAPHS[rewrite](unaliased(exported(half, path)))
    onnx.save(graph, str(path))
    with closing(open_suspect(path, key=known.key, at=graph.graph.output[0].name)) as suspect:
        report = verify(suspect, known.key, known.inputs, inputs_from="judge", register=1)
    assert report.owned
    assert report.best.log10_p_before < -14
    assert origin(report) < -400


@pytest.mark.parametrize("layout", LAYOUTS)
def test_the_layout_of_tensors_hides_no_filters(layout: str, tmp_path: Path) -> None:
    """log10 p of the origin was -1015.7 in each."""
    known, random = case(), torch.Generator().manual_seed(1)
    half = models.split(scaled(known, reordered(known, known.whole, random), random), known.cut)[0].eval()
    path, images = tmp_path / "copy.onnx", pictures(4, seed=9)
    graph = LAYOUTS[layout](unaliased(exported(half, path)))
    onnx.save(graph, str(path))
    with closing(open_suspect(path, key=known.key, at=graph.graph.output[0].name)) as suspect:
        with torch.no_grad():
            torch.testing.assert_close(suspect(images), half(images), rtol=1e-3, atol=1e-3)
        report = verify(suspect, known.key, known.inputs, inputs_from="judge", register=1)
    assert report.owned
    assert report.best.log10_p_before < -14
    assert origin(report) < -900
    assert report.suspect.unread == 0


@pytest.mark.parametrize(
    ("name", "form"),
    [
        ("resnet18", "weight_g and weight_v"),
        ("vgg11", "batch norms folded in"),
        ("mobilenetv2", "renamed tensors"),
    ],
)
def test_a_file_in_another_form_has_the_verdict_of_the_plain_copy(
    name: str, form: str, tmp_path: Path
) -> None:
    """log10 p of the mark was -10.7 for VGG-11, as by its own names; proof begins at -7.1."""
    known, random = case(name), torch.Generator().manual_seed(1)
    half = models.split(scaled(known, reordered(known, known.whole, random), random), known.cut)[0].eval()
    FILES[form](half, tmp_path / "copy")
    plain = verify(half, known.key, known.inputs, inputs_from="judge", register=1)
    report = verify(tmp_path / "copy", known.key, known.inputs, inputs_from="judge", register=1)
    assert report.owned
    assert report.tries == 1
    assert report.best.log10_p_before == pytest.approx(plain.best.log10_p_before, abs=1)
    assert origin(report) == pytest.approx(origin(plain), rel=0.02)


class Own(nn.Module):
    """A network of one's own: a sum, a concatenation, a convolution per channel."""

    def __init__(self) -> None:
        super().__init__()
        self.begin = nn.Conv2d(3, 16, 3, padding=1, bias=False)
        self.norm = nn.BatchNorm2d(16)
        self.inner = nn.Conv2d(16, 16, 3, padding=1)
        self.alone = nn.Conv2d(16, 16, 3, padding=1, groups=16)
        self.last = nn.Conv2d(32, 32, 3, stride=2, padding=1, bias=False)
        self.norm_last = nn.BatchNorm2d(32)

    def forward(self, images: Tensor) -> Tensor:
        first = torch.relu(self.norm(self.begin(images)))
        summed = torch.relu(first + self.inner(first))
        return torch.relu(self.norm_last(self.last(torch.cat([summed, self.alone(summed)], 1))))


@torch.no_grad()
def test_a_reordered_copy_of_a_network_of_ones_own_is_owned() -> None:
    """log10 p of the mark was -13.6; proof begins at -7.1."""
    key = Key.generate("ACME", shape=(32, 8, 8), bits=50, seed=bytes(32), input_shape=INPUT)
    network, inputs = Own().eval(), pictures(300, seed=3)
    key.initialise(network)
    with torch.enable_grad():
        push(network, key)
    copied, random = copy.deepcopy(network), torch.Generator().manual_seed(1)
    inside, outside = (torch.randperm(count, generator=random) for count in (16, 32))
    for layer, order in ((copied.norm, inside), (copied.norm_last, outside)):
        for values in (*layer.parameters(), *layer.buffers()):
            if values.ndim:
                values.copy_(values[order])
    copied.begin.weight.copy_(copied.begin.weight[inside])
    copied.inner.weight.copy_(copied.inner.weight[inside][:, inside])
    copied.alone.weight.copy_(copied.alone.weight[inside])
    for layer in (copied.inner, copied.alone):
        assert layer.bias is not None
        layer.bias.copy_(layer.bias[inside])
    copied.last.weight.copy_(copied.last.weight[outside][:, torch.cat([inside, 16 + inside])])
    torch.testing.assert_close(copied(inputs), network(inputs)[:, outside], rtol=1e-3, atol=1e-4)
    plain, found = (
        verify(one, key, inputs, input_shape=INPUT, inputs_from="judge", register=1)
        for one in (network, copied)
    )
    assert plain.owned
    assert found.owned
    assert found.aligned
    assert found.descends
    assert found.best.log10_p_before < -10
    assert origin(found) < -150
    Key.generate("Other", shape=(32, 8, 8), bits=50, seed=bytes([1] * 32)).initialise(network)
    stranger = verify(network, key, inputs, input_shape=INPUT, inputs_from="judge", register=1)
    assert not stranger.owned
    assert not stranger.descends
