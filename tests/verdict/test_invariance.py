"""What changes no answer of a model does not change the verdict: disguises, alone and composed."""

from __future__ import annotations

import copy
import itertools
from collections.abc import Callable
from contextlib import closing
from functools import cache
from pathlib import Path
from typing import Any

import onnx
import pytest
import torch
from onnxruntime.quantization import (
    CalibrationDataReader,
    QuantFormat,
    QuantType,
    quantize_dynamic,
    quantize_static,
)
from torch import Tensor, nn

from harness.disguises import (
    DISGUISES,
    INPUT,
    REWRITES,
    WRAPPED,
    Case,
    exported,
    marked,
    pictures,
    push,
    reordered,
    scaled,
    unaliased,
)
from harness.held_out import FILES, GRAPHS, SECOND_GRAPHS
from harness.layouts import LAYOUTS, taking_channels_last
from harness.luck import Margin
from sigil import models, verify
from sigil.alignment import layers_of
from sigil.alignment.correlations import turned
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


@cache
def of_the_plain_copy(name: str = "resnet18") -> Report:
    return verdict(case(name).whole, case(name))


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
    plain, found = of_the_plain_copy(), verdict(copied, known)
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
    assert of_the_plain_copy(name).owned
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
        # Without the weights of convolutions in the file it was NOT PROVEN, or DESCENDS at most.
        *(("resnet18", (rewrite, "computed")) for rewrite in ("mixed", "enlarged")),
        # The mark was lost where one rectifier is two, and two thirds of the origin's exponent where each
        # block has an order of its own.
        *(("resnet18", (rewrite, "computed")) for rewrite in ("parted", "rerouted")),
        # NOT PROVEN: impulses were shown to filters where the input is nothing.
        ("resnet18", ("gated",)),
        # NOT PROVEN: a bound of 256 filters was reached, and nothing was said of it.
        ("densenet121", ("idle", "parted")),
        ("mobilenetv2", ("mixed", "transposed")),
        # NOT PROVEN: only kernels of convolutions that are nodes of the graph itself were looked at.
        *(("resnet18", (rewrite,)) for rewrite in WRAPPED),
        ("mobilenetv2", ("optimised",)),
    ],
)
def test_a_graph_written_otherwise_has_the_verdict_of_the_plain_copy(
    name: str, rewrites: tuple[str, ...], tmp_path: Path
) -> None:
    """log10 p of the origin was -1015.7 for ResNet-18 however it was written, and -166 for MobileNetV2."""
    report = rewritten(name, rewrites, tmp_path)
    assert report.owned
    assert report.descends
    assert origin(report) < -100


def rewritten(name: str, rewrites: tuple[str, ...], folder: Path) -> Report:
    """The verdict on a reordered and rescaled copy, written as a graph in these ways."""
    known, random = case(name), torch.Generator().manual_seed(3)
    half = models.split(scaled(known, reordered(known, known.whole, random), random), known.cut)[0].eval()
    path = folder / "copy.onnx"
    graph = exported(half, path)
    for rewrite in rewrites:
        graph = (REWRITES | WRAPPED)[rewrite](graph)
    onnx.save(graph, str(path))
    images = pictures(4, seed=9)
    with closing(open_suspect(path, key=known.key, at=graph.graph.output[0].name)) as suspect:
        with torch.no_grad():
            torch.testing.assert_close(suspect(images), half(images), rtol=1e-3, atol=1e-3)
        return verify(suspect, known.key, known.inputs, inputs_from="judge", register=1)


class Calibration(CalibrationDataReader):  # type: ignore[misc]
    """Pictures that onnxruntime takes the ranges of activations from."""

    def __init__(self, name: str) -> None:
        self.batches = iter([{name: batch.numpy()} for batch in pictures(64, seed=7).split(2)])

    def get_next(self) -> dict[str, Any] | None:
        return next(self.batches, None)


@pytest.mark.parametrize(("name", "way"), [("resnet18", "static"), ("mobilenetv2", "dynamic")])
def test_a_graph_that_onnxruntime_quantized_has_the_verdict_of_the_plain_copy(
    name: str, way: str, tmp_path: Path, margin: Margin
) -> None:
    """NOT PROVEN, as kernels of integers were not looked at; log10 p of the mark was -15.1 since."""
    known, random = case(name), torch.Generator().manual_seed(1)
    half = models.split(scaled(known, reordered(known, known.whole, random), random), known.cut)[0].eval()
    plain, path = tmp_path / "plain.onnx", tmp_path / "copy.onnx"
    graph = exported(half, plain)
    if way == "static":
        calibration = Calibration(graph.graph.input[0].name)
        quantize_static(
            plain,
            path,
            calibration,
            quant_format=QuantFormat.QOperator,
            per_channel=True,
            weight_type=QuantType.QInt8,
        )
    else:
        quantize_dynamic(plain, path, op_types_to_quantize=["Conv"], weight_type=QuantType.QUInt8)
    at = onnx.load(path).graph.output[0].name
    with closing(open_suspect(path, key=known.key, at=at)) as suspect:
        report = verify(suspect, known.key, known.inputs, inputs_from="judge", register=1)
    assert report.owned
    margin("log10 p of the mark", report.best.log10_p_before, below=-12)
    margin("log10 p of the origin", origin(report), below=-300)


class Turned(nn.Module):
    """A network that looks at turned images, with all kernels turned: so are its activations."""

    def __init__(self, network: nn.Module, turn: int) -> None:
        super().__init__()
        self.network, self.turn = copy.deepcopy(network), turn
        for layer in self.network.modules():
            if isinstance(layer, nn.Conv2d):
                layer.weight = nn.Parameter(turned(layer.weight, turn).contiguous())

    def forward(self, images: Tensor) -> Tensor:
        images = images.flip(2, 3) if self.turn % 4 == 2 else images  # the exporter knows no rotation
        answer: Tensor = self.network(images.transpose(2, 3) if self.turn >= 4 else images)
        return answer


@pytest.mark.parametrize(
    ("name", "turn", "way"),
    [("resnet18", 4, "graph"), ("vgg11", 2, "graph"), ("vgg11", 6, "graph"), ("resnet18", 4, "module")],
)
def test_turned_maps_and_kernels_leave_the_verdict(name: str, turn: int, way: str, tmp_path: Path) -> None:
    """A graph was NOT PROVEN, with log10 p = 0.0 of the origin; a module descended."""
    known, random = case(name), torch.Generator().manual_seed(3)
    half = models.split(scaled(known, reordered(known, known.whole, random), random), known.cut)[0].eval()
    copied = Turned(half, turn).eval()
    images = pictures(4, seed=9)
    with torch.no_grad():
        torch.testing.assert_close(copied(images), turned(half(images), turn), rtol=1e-3, atol=1e-3)
    suspect: Any = copied
    if way == "graph":
        onnx.save(exported(copied, tmp_path / "copy.onnx"), str(tmp_path / "copy.onnx"))
        suspect = open_suspect(tmp_path / "copy.onnx", key=known.key)
    report = verify(suspect, known.key, known.inputs, input_shape=INPUT, inputs_from="judge", register=1)
    assert report.owned
    assert report.descends
    assert origin(report) < -50


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
        # NOT PROVEN when they were first tried: a loop needs to know the dimensions of what it reads, and
        # what is put in another shape only has no filters of its own.
        ("vgg11", "a loop over the images"),
        ("resnet18", "blocks of pixels as channels"),
        ("resnet18", "branches chosen by the input"),
    ],
)
def test_a_graph_of_other_operators_has_the_verdict_of_the_plain_copy(
    name: str, rewrite: str, tmp_path: Path
) -> None:
    """In MobileNetV2 signs count: log10 p of the mark was -2.5, of the origin -41, where they were lost."""
    known, random = case(name), torch.Generator().manual_seed(1)
    half = models.split(scaled(known, reordered(known, known.whole, random), random), known.cut)[0].eval()
    path = tmp_path / "copy.onnx"
    graph = (GRAPHS | SECOND_GRAPHS)[rewrite](unaliased(exported(half, path)))
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


@pytest.mark.parametrize("stated", [True, False])
def test_a_graph_that_takes_channels_last_has_the_verdict_of_the_plain_copy(
    stated: bool, tmp_path: Path, margin: Margin
) -> None:
    """log10 p of the mark was -15.1, and that of the origin -1015.7, as for other graphs."""
    known, random = case(), torch.Generator().manual_seed(1)
    half = models.split(scaled(known, reordered(known, known.whole, random), random), known.cut)[0].eval()
    path = tmp_path / "copy.onnx"
    graph = taking_channels_last(exported(half, path), stated=stated)
    onnx.save(graph, str(path))
    images = pictures(4, seed=9)
    for key in (known.key, own_key(1, known.key.shape)):
        with closing(open_suspect(path, key=key)) as suspect:
            with torch.no_grad():
                torch.testing.assert_close(suspect(images), half(images), rtol=1e-3, atol=1e-3)
            report = verify(suspect, key, known.inputs, inputs_from="judge", register=1)
        assert report.owned == (key is known.key)
        if report.owned:
            margin("log10 p of the mark", report.best.log10_p_before, below=-12)
            margin("log10 p of the origin", origin(report), below=-900)


@pytest.mark.filterwarnings("ignore:torch.quantize:UserWarning")
@pytest.mark.parametrize("kernels", ["sparse", "quantized"])
def test_sparse_and_quantized_kernels_have_the_verdict_of_the_plain_copy(
    kernels: str, tmp_path: Path, margin: Margin
) -> None:
    """log10 p of the mark was -15.1; such a file was said to lack tensors before."""
    known, random = case(), torch.Generator().manual_seed(1)
    half = models.split(scaled(known, reordered(known, known.whole, random), random), known.cut)[0].eval()

    def stored(tensor: Tensor) -> Tensor:
        if tensor.ndim != 4:
            return tensor
        if kernels == "sparse":
            return tensor.to_sparse()
        steps = tensor.abs().amax((1, 2, 3)).clamp_min(1e-30) / 127
        return torch.quantize_per_channel(tensor, steps, torch.zeros(len(tensor)), 0, torch.qint8)

    path = tmp_path / "copy.pt"
    torch.save({name: stored(tensor) for name, tensor in half.state_dict().items()}, path)
    report = verify(path, known.key, known.inputs, inputs_from="judge", register=1)
    assert report.owned
    margin("log10 p of the mark", report.best.log10_p_before, below=-12)
    margin("log10 p of the origin", origin(report), below=-900)


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


def own_key(seed: int, shape: tuple[int, ...], model: str | None = None) -> Key:
    return Key.generate(
        "ACME", shape=shape, bits=50, seed=bytes([seed] * 32), input_shape=INPUT, model=model, cut="end"
    )


def judged(
    suspect: nn.Module | Callable[[Tensor], Tensor], key: Key, layers: nn.Module | None = None
) -> Report:
    inputs = pictures(300, seed=3)
    return verify(suspect, key, inputs, input_shape=INPUT, inputs_from="judge", register=1, reference=layers)


def train(network: nn.Module, key: Key) -> None:
    """Let a network of one's own begin with the key's weights, and give it its mark."""
    key.initialise(network.eval())
    push(network, key)


@torch.no_grad()
def disguised(network: Own, sigma: float = 0.5) -> Own:
    """Every layer in another order, and the channels at the cut at other scales."""
    copied, random = copy.deepcopy(network), torch.Generator().manual_seed(1)
    inside, outside = (torch.randperm(count, generator=random) for count in (16, 32))
    for norm, order in ((copied.norm, inside), (copied.norm_last, outside)):
        for values in (*norm.parameters(), *norm.buffers()):
            if values.ndim:
                values.copy_(values[order])
    copied.begin.weight.copy_(copied.begin.weight[inside])
    copied.inner.weight.copy_(copied.inner.weight[inside][:, inside])
    copied.alone.weight.copy_(copied.alone.weight[inside])
    for layer in (copied.inner, copied.alone):
        assert layer.bias is not None
        layer.bias.copy_(layer.bias[inside])
    copied.last.weight.copy_(copied.last.weight[outside][:, torch.cat([inside, 16 + inside])])
    wanted = network(pictures(8, seed=9))[:, outside]
    torch.testing.assert_close(copied(pictures(8, seed=9)), wanted, rtol=1e-3, atol=1e-4)
    scales = torch.exp(sigma * torch.randn(32, generator=random))
    for values in (copied.norm_last.weight, copied.norm_last.bias):
        values.mul_(scales)
    return copied


@pytest.mark.parametrize("way", ["module", "graph", "other names"])
def test_a_reordered_copy_of_a_network_of_ones_own_is_owned(way: str, tmp_path: Path, margin: Margin) -> None:
    """log10 p of the mark was -14.6; proof begins at -8.9 for a graph, and 0.0 for the origin before."""
    key = own_key(0, (32, 8, 8), layers_of(Own(), INPUT))

    def examined(network: Own) -> Report:
        if way == "module":
            return judged(network, key)
        if way == "other names":
            return judged(nn.Sequential(network), key, Own())
        onnx.save(exported(network, tmp_path / "copy.onnx"), str(tmp_path / "copy.onnx"))
        with closing(open_suspect(tmp_path / "copy.onnx", key=key)) as suspect:
            return judged(suspect, key, Own())

    network, innocent = Own(), Own()
    train(network, key)
    train(innocent, own_key(1, (32, 8, 8)))
    plain, found = examined(network), examined(disguised(network))
    assert plain.owned
    assert found.owned
    assert found.aligned
    assert found.descends
    margin("log10 p of the mark", found.best.log10_p_before, below=-9)
    margin("log10 p of the origin", origin(found), below=-100)
    stranger = examined(disguised(innocent))
    assert not stranger.owned
    assert not stranger.descends
    margin("log10 p of a stranger's origin", origin(stranger), above=-6)


def test_layers_that_the_key_does_not_state_prove_nothing(tmp_path: Path) -> None:
    """Names can be chosen one by one, so that each layer suits a little."""
    key = own_key(0, (32, 8, 8))
    network = Own()
    train(network, key)
    onnx.save(exported(disguised(network), tmp_path / "copy.onnx"), str(tmp_path / "copy.onnx"))
    with closing(open_suspect(tmp_path / "copy.onnx", key=key)) as suspect:
        found = judged(suspect, key, Own())
    assert found.best.aligned
    assert origin(found) < -100
    assert not found.owned
    assert not found.descends
    assert "does not state the layers" in found.reasons[0]


def linear_layers() -> nn.Sequential:
    layers = [nn.Linear(768, 48), nn.ReLU(), nn.Linear(48, 48), nn.ReLU(), nn.Linear(48, 256), nn.ReLU()]
    return nn.Sequential(nn.Flatten(), *layers)


@torch.no_grad()
def shuffled(network: nn.Sequential, first: int) -> nn.Sequential:
    """The units of each layer from the ``first`` on in another order and at other scales."""
    copied, random = copy.deepcopy(network), torch.Generator().manual_seed(1)
    layers = [layer for layer in copied if isinstance(layer, nn.Linear)]
    for layer, reader in itertools.zip_longest(layers[first:], layers[first + 1 :]):
        order = torch.randperm(len(layer.weight), generator=random)
        scales = torch.exp(0.5 * torch.randn(len(order), generator=random))
        layer.weight.copy_((layer.weight * scales[:, None])[order])
        layer.bias.copy_((layer.bias * scales)[order])
        if reader is not None:
            reader.weight.copy_((reader.weight / scales)[:, order])
    return copied


@pytest.mark.parametrize(
    ("first", "way"), [(2, "module"), (0, "module"), (0, "other names"), (2, "graph"), (0, "graph")]
)
def test_reordered_linear_layers_are_put_back(first: int, way: str, tmp_path: Path, margin: Margin) -> None:
    """Before, the mark was not read, and the origin had log10 p = 0.0 where all layers were reordered."""
    key = own_key(0, (256,), layers_of(linear_layers(), INPUT))

    def examined(network: nn.Module) -> Report:
        if way == "module":
            return judged(network, key)
        if way == "other names":
            return judged(nn.Sequential(network), key, linear_layers())
        onnx.save(exported(network, tmp_path / "copy.onnx"), str(tmp_path / "copy.onnx"))
        with closing(open_suspect(tmp_path / "copy.onnx", key=key)) as suspect:
            return judged(suspect, key, linear_layers())

    network, innocent = linear_layers(), linear_layers()
    train(network, key)
    train(innocent, own_key(1, (256,)))
    found = examined(shuffled(network, first))
    assert found.owned
    assert found.aligned
    margin("log10 p of the mark", found.best.log10_p_before, below=-9)
    margin("log10 p of the origin", origin(found), below=-100)
    stranger = examined(shuffled(innocent, first))
    assert not stranger.owned
    assert not stranger.descends
    margin("log10 p of a stranger's origin", origin(stranger), above=-6)
