"""Files made to eat memory or time: each is refused with one sentence, within the limits.

``benchmarks/hostile_files.py`` makes them and prints what each one costs.
"""

from __future__ import annotations

import io
import random
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from onnx import helper

import hostile_files
from harness.commands import Command
from harness.damage import mutated
from sigil.cli.main import main
from sigil.errors import SigilError, SuspectError
from sigil.keys.key import Key
from sigil.suspect import entries, exported, open_suspect, pickled, tensors
from sigil.suspect.archive import Archive
from sigil.suspect.graph import open_graph

VGG: dict[str, Any] = {"architecture": "vgg11", "width": 4, "cut": "pool2"}
# The file of 3 GB and the one that fills the memory up to the limit are left to the benchmark.
COSTLY = ("3 GB", "20 million", "90,000", "1.6 GB", "40 times")


def made(what: str, tmp_path: Path) -> tuple[Path, dict[str, Any]]:
    path = tmp_path / ("suspect" + hostile_files.suffix(what))
    return path, hostile_files.HOSTILE[what](path)


@pytest.mark.parametrize(
    "what", [name for name in hostile_files.HOSTILE if not any(sign in name for sign in COSTLY)]
)
def test_a_hostile_file_is_refused_within_its_limits(what: str, tmp_path: Path) -> None:
    path, options = made(what, tmp_path)
    row = hostile_files.measured(path, options, time_limit=5.0)
    assert row["answer"].count("FILE") == 1
    assert "\n" not in row["answer"]
    assert row["examiner MB"] < 1500
    assert row["asking process MB"] < 200


def test_the_command_line_answers_with_one_sentence_and_status_2(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], refused: Command
) -> None:
    key = tmp_path / "owner.key"
    Key.generate("ACME", shape=(3, 4, 4), bits=8).save(key)
    path, _ = made("ONNX: a chain of products of 8000 × 8000 matrices", tmp_path)
    assert main(["verify", str(path), "--key", str(key), "--time-limit", "1"]) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err.count("\n") == 1
    assert "within the time limit of 1 seconds" in printed.err
    assert "must be more than 0" in refused("verify", path, "--key", key, "--time-limit", "0")


# Zip archives that two readers could understand in two ways.


def saved(content: object) -> bytes:
    stream = io.BytesIO()
    torch.save(content, stream)
    return stream.getvalue()


def behind(first: bytes, second: bytes) -> bytes:
    return first + second


def with_comment(first: bytes, second: bytes) -> bytes:
    """The second archive is the comment of the first, whose end says how long the comment is."""
    return first[:-2] + len(second).to_bytes(2, "little") + second


def in_the_padding(first: bytes, second: bytes) -> bytes:
    """The directory of the first archive is behind a gap that holds the second."""
    directory = first.index(b"PK\x01\x02")
    moved = directory + len(second)
    rest = first[directory:].replace(directory.to_bytes(4, "little"), moved.to_bytes(4, "little"))
    return first[:directory] + second + rest


def other_local_name(first: bytes, _: bytes) -> bytes:
    return first.replace(b"archive/data/0", b"archive/data/9", 1)


def other_local_size(first: bytes, _: bytes) -> bytes:
    return first[:18] + (7).to_bytes(4, "little") + first[22:]


def two_ends_that_differ(first: bytes, _: bytes) -> bytes:
    return first[:-12] + (int.from_bytes(first[-12:-10], "little") - 1).to_bytes(2, "little") + first[-10:]


def something_before(first: bytes, _: bytes) -> bytes:
    return b"PK\x03\x04" + bytes(60) + first


@pytest.mark.parametrize(
    "forge",
    [
        behind,
        with_comment,
        in_the_padding,
        other_local_name,
        other_local_size,
        two_ends_that_differ,
        something_before,
    ],
)
def test_one_archive_in_a_file(forge: Callable[[bytes, bytes], bytes], tmp_path: Path) -> None:
    first, second = saved({"weight": torch.zeros(3)}), saved({"weight": torch.ones(3)})
    path = tmp_path / "suspect.pt"
    assert [name for name, _ in pickled.load_state(Archive(memoryview(first), path))] == ["weight"]
    with pytest.raises(SuspectError, match=r"zip archive"):
        pickled.load_state(Archive(memoryview(forge(first, second)), path))


def test_names_that_differ_by_case_only_are_refused(tmp_path: Path) -> None:
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w") as archive:
        archive.writestr("a/data.pkl", b"1")
        archive.writestr("a/DATA.PKL", b"2")
    with pytest.raises(SuspectError, match="two entries"):
        pickled.load_state(Archive(memoryview(stream.getvalue()), tmp_path))


def test_what_torch_saves_is_read_as_torch_loads_it(tmp_path: Path) -> None:
    base = torch.arange(24.0).reshape(2, 3, 4)
    state = {
        "plain": base,
        "last": torch.randn(2, 3, 4, 5).to(memory_format=torch.channels_last),
        "view": base[1:, :, ::2],
        "turned": base.transpose(0, 2),
        "scalar": torch.tensor(7),
        "empty": torch.zeros(0, 3),
        "bfloat16": base.bfloat16(),
        "half": base.half(),
        "double": base.double(),
        "flags": base > 3,
        "bytes": base.to(torch.uint8),
    }
    for number, options in enumerate(({}, {"pickle_protocol": 4}, {"_use_new_zipfile_serialization": False})):
        path = tmp_path / f"modèle{number}.pt"
        torch.save(state, path, **options)
        content = memoryview(path.read_bytes())
        legacy = number == 2
        found = dict(
            pickled.load_legacy_state(content, path) if legacy else pickled.load_state(Archive(content, path))
        )
        assert found.keys() == state.keys()
        for name, expected in state.items():
            stored = found[name]
            assert (stored.dtype, stored.shape) == (str(expected.dtype)[6:], tuple(expected.shape))
            raw = bytes(stored.read())
            assert raw == expected.contiguous().view(-1).view(torch.uint8).numpy().tobytes() if raw else True


# Random damage.


@pytest.mark.parametrize("kind", ["safetensors", "state dict", "legacy", "exported", "onnx"])
def test_readers_of_damaged_files_raise_errors_of_ours_only(kind: str, stored: Callable[[str], Path]) -> None:
    source = stored(kind)
    whole = source.read_bytes()
    # Most of a file is weights, in which damage means little: the parts that describe them come twice.
    spots = {"safetensors": slice(0, 3000), "legacy": slice(0, 6000), "onnx": slice(0, 4000)}
    chance = random.Random(f"readers {kind}")
    refused: list[str] = []
    for number in range(60 if kind == "onnx" else 400):
        spot = spots.get(kind, slice(-3000, None)) if number % 2 else slice(0, None)
        start, stop, _ = spot.indices(len(whole))
        content = whole[:start] + mutated(whole[start:stop], chance) + whole[stop:]
        try:
            read(kind, memoryview(content), source)
        except SigilError as error:
            refused.append(str(error))
        except MemoryError:  # which the process that does this answers with a sentence
            refused.append("memory")
    assert len(refused) > 10
    assert not any("\n" in sentence for sentence in refused)


def read(kind: str, content: memoryview, source: Path) -> None:
    if kind == "onnx":
        open_graph(content, source=source, at="/pool2/MaxPool")
        return
    if kind == "safetensors":
        state, _ = tensors.read_safetensors(content, source)
    elif kind == "exported":
        state = exported.load_exported_state(Archive(content, source))
    elif kind == "legacy":
        state = pickled.load_legacy_state(content, source)
    else:
        state = pickled.load_state(Archive(content, source))
    entries.listing(state, [name for name, _ in state], None)
    for _, tensor in state:
        assert len(tensor.read()) <= max(len(content), 4 * tensors.MAX_REPEATED)


def test_a_graph_that_a_damaged_name_lookup_would_hold_up_ends_too(tmp_path: Path) -> None:
    path = tmp_path / "names.onnx"
    nodes = [helper.make_node("Relu", ["x"], [f"{'a' * 190}{index}"]) for index in range(3000)]
    path.write_bytes(hostile_files.graph(nodes).SerializeToString())
    with pytest.raises(SuspectError, match=r"time limit|nearest names"):
        open_suspect(path, at="a" * 200, time_limit=2)
