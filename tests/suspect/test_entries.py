"""Models in any place of a file: found by names and shapes, told apart, counted, none left out in silence."""

from __future__ import annotations

import json
import math
import re
import struct
import zipfile
from collections import Counter, OrderedDict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save, save_file
from torch import Tensor, nn

from sigil import models
from sigil.errors import SuspectError
from sigil.keys.key import Key
from sigil.suspect import Suspect, entries, open_suspect, pickled
from sigil.verdict.verification import verify

INPUT = (3, 16, 16)
ACTIVATION = (8, 4, 4)
State = dict[str, Tensor]


@pytest.fixture
def stolen(half: models.Model) -> State:
    return {name: tensor.clone() for name, tensor in half.state_dict().items()}


@pytest.fixture(scope="module")
def stranger() -> State:
    return dict(models.split(models.build("vgg11", width=4, seed=9), "pool2")[0].state_dict())


def saved(content: object, path: Path, **options: Any) -> Path:
    torch.save(content, path, **options)
    return path


def found(suspect: Suspect, half: models.Model, images: Tensor) -> list[str]:
    """The entries that are the stolen model."""
    with torch.no_grad():
        expected = half(images)
        return [each.entry for each in suspect.each() if torch.equal(each(images), expected)]


def prefixed(state: State, prefix: str) -> State:
    return {f"{prefix}{name}": tensor for name, tensor in state.items()}


def nested(state: State) -> dict[str, Any]:
    """Names with dots as dicts in dicts."""
    tree: dict[str, Any] = {}
    for name, tensor in state.items():
        *path, last = name.split(".")
        place = tree
        for part in path:
            place = place.setdefault(part, {})
        place[last] = tensor
    return tree


def wrapped_inside(state: State, wrapper: str) -> State:
    return {name.replace(".", f".{wrapper}.", 1): tensor for name, tensor in state.items()}


def deep(state: State, depth: int) -> dict[str, Any]:
    content: dict[str, Any] = dict(state)
    for _ in range(depth):
        content = {"a": content}
    return content


def front(state: State) -> State:
    return {name: tensor for name, tensor in state.items() if name.startswith("stage1")}


def back(state: State) -> State:
    return {name: tensor for name, tensor in state.items() if not name.startswith("stage1")}


def negated(state: State) -> State:
    """PyTorch keeps a sign of its own for a tensor, and the file holds the opposite numbers."""
    return {
        name: torch._neg_view(-tensor) if tensor.is_floating_point() else tensor
        for name, tensor in state.items()
    }


def with_attribute(state: State) -> State:
    for tensor in state.values():
        tensor.note = "mine"  # type: ignore[attr-defined]
    return state


def hiding(state: State, hidden: State) -> OrderedDict[str, Tensor]:
    content = OrderedDict(state)
    content.hidden = hidden  # type: ignore[attr-defined]
    return content


def as_parameters(state: State) -> State:
    parameters = {name: nn.Parameter(tensor, requires_grad=False) for name, tensor in state.items()}
    return with_attribute(parameters)  # type: ignore[arg-type]


def in_one_storage(state: State) -> State:
    """All tensors as parts of one long one."""
    counters = {name: tensor for name, tensor in state.items() if not tensor.is_floating_point()}
    floats = {name: tensor for name, tensor in state.items() if name not in counters}
    numbers = torch.cat([tensor.reshape(-1) for tensor in floats.values()])
    parts = numbers.split([tensor.numel() for tensor in floats.values()])
    return {
        **{name: part.view(floats[name].shape) for name, part in zip(floats, parts, strict=True)},
        **counters,
    }


# What a thief can write without any cost, and where it is expected to be found: s are the stolen weights, d
# those of a stranger.
PLACES: dict[str, tuple[Callable[[State, State], object], list[str]]] = {
    "under a key": (lambda s, d: {"net": s}, ["net"]),
    "beside a stranger": (lambda s, d: {"state_dict": d, "model": s}, ["model"]),
    "around a stranger": (lambda s, d: {"state_dict": d, **s}, [""]),
    "two levels": (lambda s, d: {"model": {"weights": s}, "state_dict": d}, ["model.weights"]),
    "in a list": (lambda s, d: [d, {"a": s}], ["1.a"]),
    "in a tuple": (lambda s, d: ({"epoch": 3}, s), ["1"]),
    "under a number": (lambda s, d: {0: s, "state_dict": d}, ["0"]),
    "under a number and its text": (lambda s, d: {"0": d, 0: s}, ["0 (2)"]),
    "under bytes": (lambda s, d: {b"net": s, "net": d}, ["net"]),
    "under a tuple": (lambda s, d: {("a", 1): s}, ["?"]),
    "under a key with dots": (lambda s, d: {"a.b": d, "a": {"b": s}}, ["a.b (2)"]),
    "under a long key": (lambda s, d: {"k" * 3000: s}, ["…"]),
    "under an empty key": (lambda s, d: {"": s}, [""]),
    "200 deep": (lambda s, d: deep(s, 200), [".".join("a" * 200)]),
    "behind a prefix": (lambda s, d: prefixed(s, "backbone."), ["backbone"]),
    "behind two prefixes": (lambda s, d: prefixed(d, "a.") | prefixed(s, "b."), ["b"]),
    "of DataParallel": (lambda s, d: prefixed(s, "module."), ["module"]),
    "of torch.compile within": (lambda s, d: wrapped_inside(s, "_orig_mod"), [""]),
    "of DataParallel within": (lambda s, d: {"net": wrapped_inside(s, "module")}, ["net"]),
    "some wrapped, some not": (lambda s, d: wrapped_inside(front(s), "module") | back(s), [""]),
    "twice by a wrapper": (lambda s, d: d | prefixed(s, "module."), ["module"]),
    "twice by a wrapper within": (lambda s, d: d | wrapped_inside(s, "module"), ["(2)"]),
    "names as dicts": (lambda s, d: nested(s), [""]),
    "names as dicts below": (lambda s, d: {"net": nested(s), "state_dict": d}, ["net"]),
    "one half here, one there": (lambda s, d: {"a": front(s), "b": back(s)}, ["a + b"]),
    "halves of two": (
        lambda s, d: {"a": front(s), "b": front(d), "c": back(d), "d": back(s)},
        ["a + d"],
    ),
    "halves beside a stranger": (
        lambda s, d: {"state_dict": d, "a": front(s), "b": back(s)},
        ["a + b"],
    ),
    "one part to be replaced": (
        lambda s, d: {"model": front(d) | back(s), "patch": front(s)},
        ["model + patch"],
    ),
    "several parts to be replaced": (
        lambda s, d: {
            "model": s | front(d) | {"stage2.0.weight": d["stage2.0.weight"]},
            "patch": front(s),
            "more": {"stage2.0.weight": s["stage2.0.weight"]},
        },
        ["model + patch + more"],
    ),
    "pairs in a list": (lambda s, d: list(s.items()), [""]),
    "pairs in a list beside others": (lambda s, d: {"a": list(d.items()), "b": [*s.items()]}, ["b"]),
    "attributes of a dict": (lambda s, d: hiding(d, s), ["__dict__.hidden"]),
    "Counter and OrderedDict": (lambda s, d: Counter({"a": OrderedDict(s)}), ["a"]),
    "attributes of tensors": (lambda s, d: with_attribute(s), [""]),
    "parameters with attributes": (lambda s, d: as_parameters(s), [""]),
    "opposite signs": (lambda s, d: negated(s), [""]),
    "complex numbers": (
        lambda s, d: {k: t.to(torch.complex64) if t.is_floating_point() else t for k, t in s.items()},
        [""],
    ),
    "double precision": (lambda s, d: {k: t.double() for k, t in s.items()}, [""]),
    "one storage": (lambda s, d: in_one_storage(s), [""]),
    "a stranger in the same storage": (
        lambda s, d: nested(in_one_storage(prefixed(d, "a.") | prefixed(s, "b."))),
        ["b"],
    ),
    "a sparse tensor beside it": (lambda s, d: {**s, "x": torch.eye(3).to_sparse()}, [""]),
    "a quantized tensor beside it": (
        lambda s, d: {**s, "x": torch.quantize_per_tensor(torch.ones(2), 1.0, 0, torch.quint8)},
        [""],
    ),
    "a meta tensor beside it": (lambda s, d: {**s, "x": torch.empty(3, device="meta")}, [""]),
    "bytes, sets and complex numbers beside it": (
        lambda s, d: {**s, "x": b"abc", "y": {1, 2}, "z": 1j, "u": bytearray(b"abc")},
        [""],
    ),
    "a repeated tensor beside it": (lambda s, d: {**s, "x": torch.zeros(1).expand(10**9)}, [""]),
    "other shapes behind the cut": (
        lambda s, d: {**s, "stage3.0.weight": torch.zeros(3), "fc.0.weight": torch.zeros(10**6, 1)},
        [""],
    ),
    "counters of another kind": (
        lambda s, d: {k: t.new_zeros(1).bool() if k.endswith("tracked") else t for k, t in s.items()},
        [""],
    ),
}


# What older files hold otherwise: where the numbers of tensors are.
OTHERWISE = (
    *("beside a stranger", "in a list", "names as dicts", "one half here, one there"),
    *("attributes of tensors", "opposite signs", "complex numbers", "one storage"),
    *("a sparse tensor beside it", "a quantized tensor beside it", "a repeated tensor beside it"),
)


@pytest.mark.parametrize(
    ("place", "how"), [*((place, "zip") for place in PLACES), *((place, "legacy") for place in OTHERWISE)]
)
def test_stolen_weights_are_found_wherever_they_are(
    place: str, how: str, stolen: State, stranger: State, half: models.Model, images: Tensor, tmp_path: Path
) -> None:
    make, expected = PLACES[place]
    path = tmp_path / "suspect.pt"
    torch.save(make(stolen, stranger), path, _use_new_zipfile_serialization=how == "zip")
    torch.load(path, weights_only=True)  # or else the thief's customers could not use it
    suspect = open_suspect(path)
    names = found(suspect, half, images)
    assert [name if len(name) < 1000 else "…" for name in names] == expected
    assert set(names) <= set(suspect.entries)
    assert suspect.unread == 0
    assert found(open_suspect(path, entry=names[0]), half, images) == names


def test_negative_variances_that_change_nothing_do_not_keep_a_model_closed(
    stolen: State, half: models.Model, images: Tensor, tmp_path: Path
) -> None:
    stolen["stage1.1.running_var"][0] = -1e-9
    with torch.no_grad():
        expected = models.from_state(half.spec, half.state_dict()).eval()
        expected.load_state_dict(stolen)
        assert torch.equal(open_suspect(saved(stolen, tmp_path / "a.pt"))(images), expected(images))


def test_constants_that_are_stored_once_are_read(
    stolen: State, half: models.Model, images: Tensor, tmp_path: Path
) -> None:
    stolen["stage1.1.weight"] = torch.full((1,), 0.5).expand(4)
    changed = models.from_state(half.spec, stolen).eval()
    with torch.no_grad():
        assert torch.equal(open_suspect(saved(stolen, tmp_path / "a.pt"))(images), changed(images))


# Zip archives that PyTorch reads though torch.save did not write them so.


def rezipped(source: Path, target: Path, change: Callable[[str, bytes], bytes], method: int) -> None:
    with zipfile.ZipFile(source) as old, zipfile.ZipFile(target, "w", method) as new:
        for name in old.namelist():
            new.writestr(name, change(name, old.read(name)))
        new.writestr(f"{old.namelist()[0].partition('/')[0]}/code/note.txt", b"nothing")


def turned(name: str, content: bytes) -> bytes:
    if name.endswith("byteorder"):
        return b"big"
    if "/data/" not in name:
        return content
    size = 8 if len(content) == 8 else 4
    return np.frombuffer(content, f"<u{size}").byteswap().tobytes()


@pytest.mark.parametrize("how", ["compressed", "checksum", "comment", "behind", "big-endian"])
def test_an_archive_that_pytorch_reads_is_read(
    how: str, stolen: State, half: models.Model, images: Tensor, tmp_path: Path
) -> None:
    source, path = saved(stolen, tmp_path / "plain.pt"), tmp_path / "suspect.pt"
    content = source.read_bytes()
    if how == "compressed":
        rezipped(source, path, lambda name, content: content, zipfile.ZIP_DEFLATED)
    elif how == "big-endian":
        rezipped(source, path, turned, zipfile.ZIP_STORED)
    elif how == "checksum":
        with zipfile.ZipFile(source) as archive:
            sums = [struct.pack("<I", archive.getinfo(name).CRC) for name in archive.namelist()[:3]]
        for checksum in sums:
            content = content.replace(checksum, b"\1\2\3\4")
        path.write_bytes(content)
    elif how == "comment":
        path.write_bytes(content[:-2] + b"\x03\x00abc")
    else:
        path.write_bytes(content + b"abc")
    loaded = torch.load(path, weights_only=True)
    assert torch.equal(loaded["stage1.0.weight"], stolen["stage1.0.weight"])
    suspect = open_suspect(path)
    assert found(suspect, half, images) == [""]
    assert suspect.kind == ("state dict with wrong checksums" if how == "checksum" else "state dict")


def test_of_one_storage_pytorch_believes_what_is_said_first(
    stolen: State, half: models.Model, images: Tensor, tmp_path: Path, rewrite: Callable[..., None]
) -> None:
    source, path = saved(in_one_storage(stolen), tmp_path / "plain.pt"), tmp_path / "suspect.pt"
    with zipfile.ZipFile(source) as archive:
        index = archive.read("plain/data.pkl")
    first = re.search(rb"ctorch\nFloatStorage\nq(.)", index, flags=re.DOTALL)
    assert first is not None
    again = b"h" + first[1] + b"X\x01\x00\x00\x000"
    other = again.replace(b"h" + first[1], b"ctorch\nIntStorage\n")
    if again not in index:  # the number of the record has a place in the memo, too
        again = re.findall(b"h" + re.escape(first[1]) + b"h.", index, flags=re.DOTALL)[0]
        other = b"ctorch\nIntStorage\n" + again[2:]
    assert index.count(again) > 3
    rewrite(source, path, {"data.pkl": index.replace(again, other)})
    assert torch.equal(torch.load(path)["stage2.0.weight"], stolen["stage2.0.weight"])
    assert found(open_suspect(path), half, images) == [""]


def test_parts_of_a_storage_in_files_from_before_zip_archives_are_read(tmp_path: Path) -> None:
    """As PyTorch 0.3 wrote them: a storage of its own that is a part of another."""
    path = tmp_path / "a.pt"
    torch.save({"w": torch.arange(6.0)[:2]}, path, _use_new_zipfile_serialization=False)
    content = path.read_bytes()
    # What comes last of a storage: its length, then the part that it is, of which there is none.
    whole = b"K\x06Nt"
    assert content.count(whole) == 1
    content = content.replace(whole, b"K\x06X\x01\x00\x00\x00vK\x03K\x02\x87t")
    path.write_bytes(content)
    assert torch.load(path, weights_only=True)["w"].tolist() == [3.0, 4.0]
    [(_, tensor)] = pickled.load_legacy_state(memoryview(content), path)
    assert np.frombuffer(tensor.read(), np.float32).tolist() == [3.0, 4.0]


def test_a_state_dict_that_is_called_an_exported_program_is_read_as_both(
    stolen: State, half: models.Model, images: Tensor, exported: Path, tmp_path: Path
) -> None:
    """An archive can hold both: PyTorch loads it as what it is asked to load it as."""
    other = {name: tensor + 1 for name, tensor in stolen.items()}
    path = tmp_path / "both.pt2"
    content = {}
    for source in (exported, saved(other, tmp_path / "other.pt")):
        with zipfile.ZipFile(source) as archive:
            content |= {name.partition("/")[2]: archive.read(name) for name in archive.namelist()}
    with zipfile.ZipFile(path, "w") as archive:
        for name, data in content.items():
            archive.writestr(f"both/{name}", data)
    suspect = open_suspect(path)
    assert suspect.entries == ("", "data.pkl")
    assert found(suspect, half, images) == [""]


# Safetensors that their library reads.


def header_of(state: State) -> tuple[dict[str, Any], bytes]:
    content = save(state)
    length = int.from_bytes(content[:8], "little")
    return json.loads(content[8 : 8 + length]), content[8 + length :]


@pytest.mark.parametrize("how", ["twice", "space", "lists", "more", "format", "large", "metadata"])
def test_safetensors_that_their_library_reads_are_read(
    how: str, stolen: State, half: models.Model, images: Tensor, tmp_path: Path
) -> None:
    header, data = header_of(stolen)
    text = json.dumps(header)
    if how == "twice":
        empty = '"stage1.0.weight": {"dtype": "F32", "shape": [0], "data_offsets": [0, 0]}, '
        text = "{" + empty + text[1:]
    elif how == "space":
        text = " " * 700 + text
    elif how == "lists":
        text = json.dumps({name: list(entry.values()) for name, entry in header.items()})
    elif how == "more":
        text = json.dumps({name: entry | {"note": [{}]} for name, entry in header.items()})
    elif how == "format":
        text = json.dumps({name: entry | {"dtype": {entry["dtype"]: None}} for name, entry in header.items()})
    elif how == "large":
        text += " " * 2_000_000
    else:
        text = json.dumps(header | {"__metadata__": {"dtype": "a", "shape": "b", "data_offsets": "c"}})
    path = tmp_path / "suspect.safetensors"
    path.write_bytes(struct.pack("<Q", len(text)) + text.encode() + data)
    from safetensors.torch import load_file

    assert torch.equal(load_file(path)["stage1.0.weight"], stolen["stage1.0.weight"])
    assert found(open_suspect(path), half, images)[0] in ("", "(2)")


def test_two_models_behind_two_prefixes_of_safetensors_are_told_apart(
    stolen: State, stranger: State, half: models.Model, images: Tensor, tmp_path: Path
) -> None:
    path = tmp_path / "suspect.safetensors"
    save_file(prefixed(stranger, "a.") | prefixed(stolen, "b."), path)
    suspect = open_suspect(path)
    assert suspect.entries == ("a", "b")
    assert found(suspect, half, images) == ["b"]


# Several, too many, and one of them.


def test_the_same_numbers_under_several_names_are_one_model(stolen: State, tmp_path: Path) -> None:
    content = {"a": stolen, "b": stolen, "c": dict(stolen), "d": {"e": [stolen]}, **stolen}
    assert open_suspect(saved(content, tmp_path / "a.pt")).entries == ("",)
    heads = {f"{classes}": {**stolen, "fc.2.weight": torch.zeros(classes, 3)} for classes in range(1, 9)}
    assert len(open_suspect(saved(heads, tmp_path / "heads.pt")).entries) == 1
    copies = {"a": stolen, "b": {name: tensor.clone() for name, tensor in stolen.items()}}
    assert open_suspect(saved(copies, tmp_path / "b.pt")).entries == ("a", "b")


def test_a_block_with_layers_of_the_same_names_is_no_model_of_its_own(tmp_path: Path) -> None:
    """ResNet's blocks have a conv1 and a bn1, as the whole network has."""
    model = models.build("resnet18", width=4, seed=0)
    path = saved(model.state_dict(), tmp_path / "a.pt")
    for cut in ("conv1", "bn1", "layer1", None):
        assert open_suspect(path, cut=cut).entries == ("",)
    key = Key.generate("ACME", shape=(4, 16, 16), bits=8, seed=bytes(32))
    assert open_suspect(path, key=key, cut="bn1", input_shape=INPUT).entries == ("",)


def test_a_name_in_twenty_places_is_twenty_models(stolen: State, stranger: State, tmp_path: Path) -> None:
    """All of them are called a.b.c.d by their keys, in as many ways as dots can be put."""
    keys = [["a", "b", "c", "d"], ["a.b", "c", "d"], ["a", "b.c", "d"], ["a", "b", "c.d"], ["a.b.c", "d"]]
    keys += [["a", "b.c.d"], ["a.b", "c.d"], ["a.b.c.d"]]
    content: dict[str, Any] = {}
    for number, path in enumerate(keys):
        for turn in range(3):
            place = content
            for key in path[:-1]:
                place = place.setdefault(key, {})
            # A list, its number as a key, and its text: three more names that are spelt alike.
            state = {name: tensor + 3 * number + turn for name, tensor in stranger.items()}
            place.setdefault(path[-1], {})[{0: 0, 1: "0", 2: b"0"}[turn]] = state
    content["a.b.c"]["d"][0] = stolen
    suspect = open_suspect(saved(content, tmp_path / "a.pt"))
    assert len(suspect.entries) == entries.MAX_ENTRIES
    assert len(suspect.entries) + suspect.unread == 24


def test_an_entry_that_is_not_there_is_answered_with_what_is(stolen: State, tmp_path: Path) -> None:
    path = saved({"net": stolen, "epoch": 3}, tmp_path / "a.pt")
    with pytest.raises(SuspectError, match=r"14 tensors \('net\.stage1\.0\.weight', .*no model under 'nt'"):
        open_suspect(path, entry="nt")
    assert open_suspect(path, entry="net").entry == "net"


def test_what_holds_no_model_says_what_it_holds(tmp_path: Path) -> None:
    path = saved({"net": {"linear": torch.zeros(3, 3)}, "epoch": 3}, tmp_path / "a.pt")
    with pytest.raises(SuspectError, match=r"holds 1 tensor \('net\.linear'\), which fit none of resnet18"):
        open_suspect(path)
    path = saved({"epoch": 3, "args": {"lr": 0.1}}, tmp_path / "b.pt")
    with pytest.raises(SuspectError, match=r"a dict of 'epoch' \(int\), 'args' \(dict\) and no tensors"):
        open_suspect(path)


def test_decoys_of_other_widths_do_not_take_the_place_of_the_stated_one(
    tmp_path: Path, stolen: State
) -> None:
    """A key that draws initial weights is also compared with wider copies, and those can be any number."""
    content: dict[str, Any] = {}
    for width in range(5, 90):
        shapes = {name: (width, *tensor.shape[1:]) for name, tensor in front(stolen).items()}
        content[f"decoy{width}"] = {name: torch.zeros(shape) for name, shape in shapes.items()}
    path = saved(content | {"model": stolen}, tmp_path / "a.pt")
    key = Key.generate(
        "ACME",
        shape=(4, 16, 16),
        bits=8,
        seed=bytes(32),
        model="vgg11",
        width=4,
        cut="stage1",
        input_shape=INPUT,
    )
    assert key.fields.initialiser is not None
    suspect = open_suspect(path, key=key)
    assert suspect.entry == "model"
    assert len(suspect.entries) + suspect.unread == 86


@pytest.mark.parametrize("content", [{"a": 1}, [{}, []]])
def test_dicts_that_contain_themselves_end(tmp_path: Path, content: Any, stolen: State) -> None:
    (content if isinstance(content, list) else content.setdefault("b", [])).append(content)
    root = {"x": content, "model": stolen, "y": [content, content]}
    suspect = open_suspect(saved(root, tmp_path / "a.pt"))
    assert suspect.entries == ("model",)


@pytest.fixture(scope="module")
def flooded(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, State]:
    """10,000 decoys in front of a model: parts of one long tensor, at a cost of a few bytes each."""
    half = models.split(models.build("vgg11", width=4, seed=5), "pool1")[0]
    state = {name: tensor for name, tensor in half.state_dict().items() if not name.endswith("tracked")}
    numbers = torch.zeros(20_000)
    content: dict[str, Any] = {}
    for decoy in range(10_000):
        content[f"decoy{decoy}"] = {
            name: numbers[decoy : decoy + tensor.numel()].view(tensor.shape) for name, tensor in state.items()
        }
    content["model"] = state
    return saved(content, tmp_path_factory.mktemp("flood") / "flood.pt"), state


def test_ten_thousand_decoys_are_counted_and_one_of_them_can_be_chosen(
    flooded: tuple[Path, State], images: Tensor
) -> None:
    path, state = flooded
    suspect = open_suspect(path, architecture="vgg11", cut="pool1", time_limit=300)
    assert len(suspect.entries) == entries.MAX_ENTRIES
    assert len(suspect.entries) + suspect.unread == 10_001
    chosen = open_suspect(path, architecture="vgg11", cut="pool1", entry="model", time_limit=300)
    assert (chosen.entries, chosen.unread) == (("model",), 0)
    assert chosen.module is not None
    assert torch.equal(chosen.module.state_dict()["stage1.0.weight"], state["stage1.0.weight"])


def test_ten_thousand_decoys_keep_their_time_limit(flooded: tuple[Path, State]) -> None:
    with pytest.raises(SuspectError, match=r"time limit of 0\.1 seconds"):
        open_suspect(flooded[0], architecture="vgg11", cut="pool1", time_limit=0.1)


def test_more_tensors_than_can_be_listed_are_counted(stolen: State, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(entries, "MAX_LISTED", 100)
    names = list(stolen)
    held = [(f"{number}.{name}", _stored()) for number in range(20) for name in names]
    listed = entries.listing(held, names, None)
    assert len(listed["listed"]) == 100
    assert len(listed["listed"]) + listed["left"] == listed["count"] == 20 * len(names)
    below = entries.listing(held, names, "19")
    assert [name for name, *_ in below["listed"]] == [f"19.{name}" for name in names]
    assert below["left"] == 0


def _stored() -> Any:
    from sigil.suspect.tensors import StoredTensor

    return StoredTensor("float32", (1,), lambda: memoryview(b"1234"), object())


# What it costs.


def test_each_model_in_a_file_counts_as_a_try(
    stolen: State, stranger: State, half: models.Model, tmp_path: Path
) -> None:
    key = Key.generate("ACME", shape=ACTIVATION, bits=64, seed=bytes(32), input_shape=INPUT, cut="pool2")
    alone = verify(half, key, register=1)
    path = saved({"a": stranger, "b": stolen, "c": front(stolen)}, tmp_path / "a.pt")
    reports = [verify(each, key, register=1) for each in (half, path, open_suspect(path, key=key))]
    assert reports[1].to_dict() == reports[2].to_dict()
    assert reports[1].tries == 3, "two models, and one with the first part of the other"
    assert reports[1].suspect.entries == ("a", "b", "a + c")
    singles = [verify(open_suspect(path, key=key, entry=name), key, register=1) for name in ("a", "b")]
    assert [report.tries for report in singles] == [1, 1]
    best = min(report.best.log10_p_before for report in singles)
    assert reports[1].best.log10_p_before <= best
    assert reports[1].log10_p == pytest.approx(
        min(0.0, reports[1].best.log10_p_before + math.log10(4 * 3)), abs=1e-12
    )
    assert alone.to_dict() == singles[1].to_dict()
