"""Copies whose layers nobody names: renamed, reordered, split, with idle channels, as graphs of ONNX."""

from __future__ import annotations

import copy
from contextlib import closing
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from harness.luck import Margin
from sigil import attacks, models, verify
from sigil.alignment.initial_weights import Search, filters_in, topology_of
from sigil.alignment.unknown_layers import search_unknown
from sigil.errors import ShapeError
from sigil.keys.key import Key
from sigil.models import Model
from sigil.models.spec import channel_topology
from sigil.models.topology import IMAGE
from sigil.probing import filters_of
from sigil.suspect import open_suspect
from sigil.verdict.descent import origin_of, start_of

INPUT = (3, 32, 32)
CUTS = {"resnet18": "layer3", "vgg11": "stage3", "mobilenetv2": "group3", "densenet121": "block1"}


def key_of(seed: int, name: str = "resnet18", **options: object) -> Key:
    whole = models.build(name, classes=10, width=8, input_size=INPUT[1:], seed=0)
    shape = models.activation_shape(models.split(whole, CUTS[name])[0], INPUT)
    stated: dict[str, object] = {"model": name, "width": 8, "cut": CUTS[name], "input_shape": INPUT}
    return Key.generate("ACME", shape=shape, bits=16, seed=bytes([seed]) * 32, **(stated | options))  # type: ignore[arg-type]


@torch.no_grad()
def descendant(key: Key, name: str = "resnet18") -> Model:
    """A whole model that began with the key's weights, each of which moved by as much as it was.

    MobileNetV2's by half as much: with so few numbers in a filter most are not recognised behind more.
    """
    whole = models.build(name, classes=10, width=8, input_size=INPUT[1:], seed=1)
    key.initialise(whole)
    generator, moved = torch.Generator().manual_seed(3), 0.5 if name == "mobilenetv2" else 1.0
    for parameter in whole.parameters():
        if parameter.ndim >= 2:
            parameter += moved * parameter.std() * torch.randn(parameter.shape, generator=generator)
    return whole.eval()


class Renamed(nn.Module):
    """The rows of a client half under other names: of Sigil's models nothing is left but the layers."""

    def __init__(self, half: Model) -> None:
        super().__init__()
        self.parts = nn.ModuleList(half.children())

    def forward(self, images: Tensor) -> Tensor:
        for part in self.parts:
            images = part(images)
        return images


@torch.no_grad()
def widened(
    half: Model,
    *,
    extra: float = 0.25,
    shares: tuple[float, float] = (0.5, 0.5),
    idle: bool = False,
    noise: float = 0.0,
) -> Model:
    """The same function with more channels: some split, `shares` of what they give, or idle ones added.

    With `noise` every weight moves by that much, so that no two filters are the same.
    """
    half, random = copy.deepcopy(half), torch.Generator().manual_seed(4)
    assert half.spec.cut is not None
    rows = {name for name, _ in half.named_children()}
    topology = channel_topology(half.spec).client_half(half.spec.cut, rows)
    sizes = {link.writes: len(layer(half, link.layer)) for link in topology.links} | {IMAGE: INPUT[0]}
    sources, factors = {IMAGE: torch.arange(INPUT[0])}, {IMAGE: torch.ones(INPUT[0])}
    for space, size in sizes.items():
        if space != IMAGE:
            copies = torch.randperm(size, generator=random)[: int(size * extra)]
            factor = torch.ones(size + len(copies))
            if idle:
                factor[size:] = 0
            else:
                factor[copies], factor[size:] = shares
            order = torch.randperm(len(factor), generator=random)
            sources[space], factors[space] = torch.cat([torch.arange(size), copies])[order], factor[order]
    for link in topology.links:
        weight = layer(half, link.layer)
        pieces = weight.split([sizes[name] for name in link.reads], 1) if link.reads else ()
        read = [
            piece[:, sources[name]] * factors[name].view(1, -1, 1, 1)
            for piece, name in zip(pieces, link.reads, strict=True)
        ]
        weight = (torch.cat(read, 1) if read else weight)[sources[link.writes]]
        if idle:
            new = factors[link.writes] == 0
            weight[new] = torch.randn(weight[new].shape, generator=random) * weight.std()
        weight = weight + noise * weight.std() * torch.randn(weight.shape, generator=random)
        half.get_submodule(link.layer).weight = nn.Parameter(weight)
        if link.after is not None:
            norm = half.get_submodule(link.after)
            for name, values in (*norm.named_parameters(), *norm.named_buffers()):
                if values.ndim:
                    changed = values[sources[link.writes]].clone()
                    setattr(norm, name, nn.Parameter(changed) if name in ("weight", "bias") else changed)
    return half


def layer(half: Model, name: str) -> Tensor:
    weight = half.get_submodule(name).weight
    assert isinstance(weight, Tensor)
    return weight.detach()


def half_of(whole: Model) -> Model:
    return models.split(whole, CUTS[whole.spec.name])[0].eval()


def images() -> Tensor:
    return torch.randn(2, *INPUT, generator=torch.Generator().manual_seed(5))


@pytest.mark.parametrize("name", models.names())
def test_layers_need_no_names(name: str, margin: Margin) -> None:
    key = key_of(1, name)
    found = origin_of(Renamed(half_of(descendant(key, name))), key, INPUT)
    assert found is not None
    assert found.restored
    margin("log10 p", found.log10_p, below=-20)


@pytest.mark.parametrize("name", models.names())
def test_layers_may_be_renamed_and_reordered(name: str, margin: Margin) -> None:
    key = key_of(1, name)
    copied = attacks.permute(descendant(key, name), cut=CUTS[name], seed=3)
    found = origin_of(Renamed(half_of(copied)), key, INPUT)
    assert found is not None
    margin("log10 p", found.log10_p, below=-20)


@pytest.mark.parametrize(
    "how",
    [
        {},
        {"shares": (5.0, -4.0)},
        {"shares": (0.99, 0.01)},
        {"idle": True},
        {"extra": 1.0, "shares": (5.0, -4.0)},
    ],
    ids=str,
)
def test_channels_may_be_split_and_idle_ones_added(how: dict[str, object], margin: Margin) -> None:
    key = key_of(1)
    original = half_of(descendant(key))
    copied = widened(original, **how)  # type: ignore[arg-type]
    found = origin_of(Renamed(copied), key, INPUT)
    assert found is not None
    margin("log10 p", found.log10_p, below=-100)
    # All of the original's channels are among the copy's, the right ones in their places.
    start = start_of(key)
    assert start is not None
    order = torch.tensor(search_unknown(filters_of(Renamed(copied), INPUT), start).result().order)
    mine, theirs = (half(images()).transpose(0, 1).flatten(1) for half in (original, copied))
    known = (order >= 0) & (mine.norm(dim=1) > 0)  # a channel that is zero for these images has no direction
    cosines = nn.functional.cosine_similarity(mine[known], theirs[order[known]], dim=1)
    margin("channels in place", float((cosines > 0.99).double().mean()), above=0.9)


def test_which_part_of_a_channel_is_taken_makes_no_difference(margin: Margin) -> None:
    """With this key too many were taken that are read with the other sign: nothing was recognised."""
    key = key_of(2)
    copied = widened(half_of(descendant(key)), extra=1.0, shares=(5.0, -4.0))
    found = origin_of(Renamed(copied), key, INPUT)
    assert found is not None
    margin("log10 p", found.log10_p, below=-100)


def test_the_parts_of_a_channel_need_not_be_quite_the_same(margin: Margin) -> None:
    key = key_of(1)
    copied = widened(half_of(descendant(key)), extra=1.0, shares=(5.0, -4.0), noise=0.03)
    found = origin_of(Renamed(copied), key, INPUT)
    assert found is not None
    margin("log10 p", found.log10_p, below=-100)


def test_a_layer_too_many_is_left_aside(margin: Margin) -> None:
    key = key_of(1)
    renamed = Renamed(half_of(descendant(key)))
    delta = nn.Conv2d(8, 8, 3, padding=1, bias=False)
    nn.init.dirac_(delta.weight)
    renamed.parts.insert(3, delta)
    found = origin_of(renamed, key, INPUT)
    assert found is not None
    margin("log10 p", found.log10_p, below=-100)


@pytest.mark.parametrize("split", [False, True], ids=["as it is", "split channels"])
def test_strangers_do_not_descend(split: bool, margin: Margin) -> None:
    """Neither one by one, where a proof begins at -6.5, nor, which fails sooner, all together.

    By the null, twice the p of a key is at most 10^-6 in one of 2 million draws, and the product of ten such
    numbers, of which those above 1 count as 1, at most 10^-12 in another.
    """
    half = half_of(descendant(key_of(1)))
    suspect = Renamed(widened(half) if split else half)
    found = [origin_of(suspect, key_of(seed), INPUT) for seed in range(2, 12)]
    exponents = [one.log10_p for one in found if one is not None]
    assert len(exponents) == 10
    margin("log10 p", min(exponents), above=-6)
    margin("log10 p of all", sum(exponents), above=-12)


def test_nothing_is_said_without_a_stated_model() -> None:
    key = Key.generate("ACME", shape=(32, 8, 8), bits=16, seed=bytes(32), input_shape=INPUT)
    named = origin_of(Renamed(half_of(descendant(key))), key, INPUT)
    assert start_of(key) is None
    assert named is None or named.log10_p > -4


@pytest.mark.slow
@pytest.mark.parametrize("wider", [False, True])
def test_a_graph_descends_too(tmp_path: Path, wider: bool) -> None:
    key = key_of(1)
    half = half_of(attacks.permute(descendant(key), cut="layer3", seed=3))
    path = tmp_path / "copy.onnx"
    torch.onnx.export(widened(half) if wider else half, (torch.zeros(2, *INPUT),), str(path), dynamo=False)
    import onnx  # not above: every worker that collects the tests would wait for it

    at = onnx.load(str(path)).graph.output[0].name
    with closing(open_suspect(path, key=key, at=at)) as suspect:
        assert len(suspect.filters()) >= len(filters_of(half, INPUT))
        report = verify(suspect, key)
        assert report.descends
        assert not report.owned  # nothing was ever marked
        if wider:
            with pytest.raises(ShapeError):
                verify(suspect, key_of(2))
        else:
            assert not verify(suspect, key_of(2)).descends


def test_a_wider_file_is_opened_and_compared(tmp_path: Path) -> None:
    """A model of twice the width: refused before, since the key's mark cannot be read in it as it is."""
    key = key_of(1)
    wide = models.build("resnet18", classes=10, width=16, input_size=INPUT[1:], seed=1)
    half = models.split(wide, "layer3")[0]
    twice = widened(half_of(descendant(key)), extra=1.0)
    half.load_state_dict(twice.state_dict())
    path = tmp_path / "wide.safetensors"
    models.save(path, half)
    report = verify(path, key, input_shape=INPUT)
    assert report.descends
    with pytest.raises(ShapeError, match="the key was made for"):
        verify(path, key_of(2), input_shape=INPUT)


def test_layers_that_read_what_no_known_layer_writes_take_no_part() -> None:
    """It was a KeyError, which ended the examination."""
    half = half_of(descendant(key_of(1, "mobilenetv2"), "mobilenetv2"))
    topology = topology_of(half)
    ours = filters_in(half, topology, half.spec.channels, signed=False)
    known = {link.layer: ours[link.layer] for link in topology.links if link.writes != "group3.0"}
    found = Search(topology, ours, known, channels=half.spec.channels, lean=True).run()
    assert len(known) < len(ours)
    assert "group3.0" not in found.widths
