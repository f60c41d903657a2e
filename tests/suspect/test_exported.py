"""Exported programs: the weights are read, the program and its pickles never are."""

from __future__ import annotations

import io
import json
import pickle
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from sigil import models
from sigil.errors import SuspectError
from sigil.suspect import open_suspect

VGG = {"architecture": "vgg11", "width": 4, "cut": "pool2"}
INDEX = "data/weights/model_weights_config.json"
Exploit = tuple[Any, Path]


def index_of(path: Path) -> dict[str, Any]:
    with zipfile.ZipFile(path) as archive:
        content: dict[str, Any] = json.loads(archive.read(f"{path.stem}/{INDEX}"))
    return content


def test_the_weights_of_an_exported_program_are_opened(
    exported: Path, half: models.Model, images: torch.Tensor
) -> None:
    suspect = open_suspect(exported, **VGG)
    assert suspect.kind == "exported program"
    with torch.no_grad():
        assert torch.equal(suspect(images), half(images))


def test_the_architecture_is_read_off_the_weights(exported: Path, half: models.Model) -> None:
    assert open_suspect(exported).module.spec == half.spec  # type: ignore[union-attr]


def pickled(payload: object) -> bytes:
    buffer = io.BytesIO()
    torch.save(payload, buffer)
    return buffer.getvalue()


@pytest.fixture
def poisoned(exported: Path, exploit: Exploit, tmp_path: Path, rewrite: Callable[..., None]) -> Path:
    """An archive that says of one weight that it is a pickle."""
    index = index_of(exported)
    entry = next(iter(index["config"].values()))
    entry["use_pickle"] = True
    path = tmp_path / "poisoned.pt2"
    replaced = {
        INDEX: json.dumps(index).encode(),
        f"data/weights/{entry['path_name']}": pickled(exploit[0]),
    }
    rewrite(exported, path, replaced)
    return path


def test_the_loader_of_torch_would_run_the_poison(poisoned: Path, exploit: Exploit) -> None:
    """Why torch.export.load is never called; if this fails, the docs need new words."""
    with pytest.raises(Exception):  # noqa: B017, PT011  whatever becomes of the rest
        torch.export.load(poisoned)
    assert exploit[1].exists()


def test_a_poisoned_weight_is_refused_and_does_not_run(poisoned: Path, exploit: Exploit) -> None:
    with pytest.raises(SuspectError, match="as a pickle, which could run code"):
        open_suspect(poisoned, **VGG)
    assert not exploit[1].exists()


def test_poison_beside_the_weights_is_never_read(
    exported: Path, exploit: Exploit, tmp_path: Path, rewrite: Callable[..., None]
) -> None:
    payload, marker = exploit
    constant = {"path_name": "opaque_obj_0", "is_param": False, "use_pickle": True}
    path = tmp_path / "poisoned.pt2"
    replaced = {
        "data/constants/model_constants_config.json": json.dumps(
            {"config": {"c": {**constant, "tensor_meta": None}}}
        ).encode(),
        "data/constants/opaque_obj_0": pickle.dumps(payload),
        "data/sample_inputs/model.pt": pickled(payload),
        "models/model.json": b"{",
    }
    rewrite(exported, path, replaced)
    assert open_suspect(path, **VGG).kind == "exported program"
    assert not marker.exists()


def older_layout(path: Path, weights: bytes) -> Path:
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("serialized_exported_program.json", b"{}")
        archive.writestr("serialized_state_dict.pt", weights)
        archive.writestr("serialized_constants.pt", b"")
        archive.writestr("version", b"8.2")
    return path


def test_the_older_layout_is_opened(half: models.Model, images: torch.Tensor, tmp_path: Path) -> None:
    path = older_layout(tmp_path / "old.pt2", pickled(dict(half.state_dict())))
    with torch.no_grad():
        assert torch.equal(open_suspect(path, **VGG)(images), half(images))


def test_poison_in_the_older_layout_does_not_run(exploit: Exploit, tmp_path: Path) -> None:
    payload, marker = exploit
    path = older_layout(tmp_path / "old.pt2", pickled({"weight": payload}))
    with pytest.raises(SuspectError, match=r"The weights in .*old\.pt2 asks Python to import"):
        open_suspect(path, **VGG)
    assert not marker.exists()


def change_size(meta: dict[str, Any]) -> None:
    meta["sizes"][0]["as_int"] += 1


def change_offset(meta: dict[str, Any]) -> None:
    meta["storage_offset"]["as_int"] = 1


def change_stride(meta: dict[str, Any]) -> None:
    meta["strides"][0]["as_int"] = 10**12


def negative_stride(meta: dict[str, Any]) -> None:
    meta["strides"][0]["as_int"] = -1


def symbolic_size(meta: dict[str, Any]) -> None:
    meta["sizes"][0] = {"as_expr": {"expr_str": "__import__('os').abort()"}}


def unknown_dtype(meta: dict[str, Any]) -> None:
    meta["dtype"] = 99


def sparse(meta: dict[str, Any]) -> None:
    meta["layout"] = 1


@pytest.mark.parametrize(
    "change",
    [
        change_size,
        change_offset,
        change_stride,
        negative_stride,
        symbolic_size,
        unknown_dtype,
        sparse,
    ],
)
def test_an_index_that_reaches_beyond_its_records_is_refused(
    exported: Path, tmp_path: Path, rewrite: Callable[..., None], change: Callable[..., None]
) -> None:
    index = index_of(exported)
    change(next(iter(index["config"].values()))["tensor_meta"])
    path = tmp_path / "forged.pt2"
    rewrite(exported, path, {INDEX: json.dumps(index).encode()})
    with pytest.raises(SuspectError, match="damaged exported program"):
        open_suspect(path, **VGG)


@pytest.mark.parametrize("record", ["../constants/weight_0", "weight_0/../weight_1", 7])
def test_a_record_must_be_one_of_the_weights(
    exported: Path, tmp_path: Path, rewrite: Callable[..., None], record: object
) -> None:
    index = index_of(exported)
    next(iter(index["config"].values()))["path_name"] = record
    path = tmp_path / "forged.pt2"
    rewrite(exported, path, {INDEX: json.dumps(index).encode()})
    with pytest.raises(SuspectError, match="damaged exported program"):
        open_suspect(path, **VGG)


@pytest.mark.parametrize("content", [b"", b"[]", b'{"config": 3}', b"[" * 10**5, b"\xff"])
def test_an_index_that_is_no_index_is_refused(
    exported: Path, tmp_path: Path, rewrite: Callable[..., None], content: bytes
) -> None:
    path = tmp_path / "forged.pt2"
    rewrite(exported, path, {INDEX: content})
    with pytest.raises(SuspectError, match="damaged exported program"):
        open_suspect(path, **VGG)


def test_a_program_without_weights_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "compiled.pt2"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("compiled/archive_format", b"pt2")
        archive.writestr("compiled/data/aotinductor/model/code.so", b"\x7fELF")
    with pytest.raises(SuspectError, match="never loaded"):
        open_suspect(path, **VGG)
