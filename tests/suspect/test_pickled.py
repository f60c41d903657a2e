"""State dicts of torch.save: exploits do not run, honest files open, sizes are bounded."""

from __future__ import annotations

import io
import pickle
import re
import time
import zipfile
from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.storage import TypedStorage

from sigil import models
from sigil.errors import SuspectError
from sigil.suspect import open_suspect, pickled
from sigil.suspect.archive import Archive
from sigil.suspect.pickled import examine
from sigil.suspect.tensors import StoredTensor

VGG = {"architecture": "vgg11", "width": 4, "cut": "pool2"}
Exploit = tuple[Any, Path]


def load_state(path: Path) -> dict[str, StoredTensor]:
    return dict(pickled.load_state(Archive(memoryview(path.read_bytes()), path)))


def load_legacy_state(path: Path) -> dict[str, StoredTensor]:
    return dict(pickled.load_legacy_state(memoryview(path.read_bytes()), path))


def test_the_exploit_is_a_real_one(exploit: Exploit) -> None:
    payload, marker = exploit
    pickle.loads(pickle.dumps(payload))
    assert marker.exists()


def saved(content: object, path: Path, how: str) -> Path:
    if how == "zip":
        torch.save(content, path)
    elif how == "legacy":
        torch.save(content, path, _use_new_zipfile_serialization=False)
    else:
        path.write_bytes(pickle.dumps(content, protocol=int(how)))
    return path


@pytest.mark.parametrize("how", ["zip", "legacy", "2", "4", "5"])
@pytest.mark.parametrize("hidden", [False, True])
def test_a_pickle_that_runs_code_is_refused_and_does_not_run(
    exploit: Exploit, half: models.Model, tmp_path: Path, how: str, hidden: bool
) -> None:
    payload, marker = exploit
    content = {**half.state_dict(), "stage9.weight": payload} if hidden else payload
    path = saved(content, tmp_path / "suspect.pt", how)
    with pytest.raises(SuspectError, match=r"asks Python to import .*nothing of it was loaded"):
        open_suspect(path, **VGG)
    assert not marker.exists()


@pytest.mark.parametrize("how", ["0", "1"])
def test_ancient_pickles_are_no_known_format(exploit: Exploit, tmp_path: Path, how: str) -> None:
    payload, marker = exploit
    with pytest.raises(SuspectError, match="no format"):
        open_suspect(saved(payload, tmp_path / "suspect.pt", how), **VGG)
    assert not marker.exists()


@pytest.mark.parametrize("name", ["suspect.safetensors", "suspect.onnx", "suspect.pt2", "suspect"])
def test_an_exploit_under_another_name_does_not_run(exploit: Exploit, tmp_path: Path, name: str) -> None:
    payload, marker = exploit
    for how in ("zip", "4"):
        with pytest.raises(SuspectError):
            open_suspect(saved(payload, tmp_path / name, how), architecture="vgg11")
    assert not marker.exists()


def test_globals_that_somebody_allowed_for_torch_are_not_allowed_here(tmp_path: Path) -> None:
    path = tmp_path / "suspect.pt"
    torch.save({"weight": torch.zeros(2), "when": time.struct_time(range(9))}, path)
    with (
        torch.serialization.safe_globals([time.struct_time]),
        pytest.raises(SuspectError, match=r"time\.struct_time"),
    ):
        load_state(path)


def test_a_whole_pickled_module_is_refused_by_name(tmp_path: Path) -> None:
    path = tmp_path / "module.pt"
    torch.save(nn.Sequential(nn.ReLU()), path)
    with pytest.raises(SuspectError, match=r"torch\.nn\.modules\.container\.Sequential"):
        load_state(path)


def test_honest_state_dicts_open_in_every_wrapping(
    half: models.Model, model: models.Model, images: torch.Tensor, tmp_path: Path
) -> None:
    with torch.no_grad():
        expected = half(images)
    state, whole = half.state_dict(), model.state_dict()
    prefixed = {f"module.{name}": tensor for name, tensor in whole.items()}
    compiled = {f"_orig_mod.{name}": tensor for name, tensor in state.items()}
    training = torch.optim.SGD(half.parameters(), lr=0.1, momentum=0.9).state_dict()
    checkpoint = {"state_dict": state, "optimizer": training, "epoch": 3, "shape": torch.Size([2])}
    for index, content in enumerate([state, whole, prefixed, compiled, checkpoint]):
        for how in ("zip", "legacy"):
            path = saved(content, tmp_path / f"{index}.{how}.pth", how)
            suspect = open_suspect(path, **VGG)
            assert suspect.kind == "state dict"
            assert torch.equal(suspect(images), expected)
            path.unlink()  # nothing of the suspect still lives in the file
            assert torch.equal(suspect(images), expected)


def test_other_wrappers_and_parameters_open(half: models.Model, tmp_path: Path) -> None:
    parameters = OrderedDict(
        (name, nn.Parameter(tensor, requires_grad=False)) for name, tensor in half.state_dict().items()
    )
    path = saved({"model": parameters}, tmp_path / "a.ckpt", "zip")
    assert open_suspect(path, **VGG).module is not None


def test_half_precision_weights_are_read_as_float32(half: models.Model, tmp_path: Path) -> None:
    state = {name: tensor.half() for name, tensor in half.state_dict().items()}
    suspect = open_suspect(saved(state, tmp_path / "a.pt", "zip"), **VGG)
    assert suspect.module is not None
    assert {p.dtype for p in suspect.module.parameters()} == {torch.float32}


KERNELS: dict[str, Callable[[Tensor], Tensor]] = {
    "coordinates": lambda kernels: kernels.to_sparse(),
    "coordinates of kernels": lambda kernels: kernels.half().to_sparse(2),
    "coordinates said twice": lambda kernels: kernels.bfloat16().to_sparse() + kernels.bfloat16().to_sparse(),
    "rows": lambda kernels: kernels.to_sparse_csr(),
    "columns": lambda kernels: kernels.flatten(1).to_sparse_csc(),
    "blocks in rows": lambda kernels: kernels.flatten(1).to_sparse_bsr((2, 4)),
    "blocks in columns": lambda kernels: kernels.flatten(1).to_sparse_bsc((2, 4)),
    "parameters": lambda kernels: nn.Parameter(kernels.to_sparse()),
    "quanta": lambda kernels: torch.quantize_per_tensor(kernels, 0.01, 3, torch.quint8),
    "quanta by channel": lambda kernels: torch.quantize_per_channel(
        kernels, torch.arange(1, 7) / 100, torch.arange(6), 0, torch.qint8
    ),
}


@pytest.mark.filterwarnings("ignore:Sparse:UserWarning", "ignore:torch.quantize:UserWarning")
@pytest.mark.parametrize("how", ["zip", "legacy"])
@pytest.mark.parametrize("way", KERNELS)
def test_sparse_and_quantized_tensors_are_what_they_stand_for(way: str, how: str, tmp_path: Path) -> None:
    kernels = torch.randn(6, 4, 4, 4, generator=torch.Generator().manual_seed(0))
    special = KERNELS[way](kernels)
    wanted = special.dequantize() if special.is_quantized else special.to_dense()
    file = saved({"weight": special}, tmp_path / "a.pt", how)
    stored = (load_state if how == "zip" else load_legacy_state)(file)["weight"]
    found = np.frombuffer(stored.read(), np.float32).reshape(stored.shape)
    np.testing.assert_allclose(found, wanted.detach().float().numpy(), atol=1e-6)


def special(function: str, *arguments: Any) -> Any:
    """What is pickled as a call of this function."""

    class Special:
        def __reduce__(self) -> Any:
            return getattr(torch._utils, function), arguments

    return Special()


def coordinates(places: Any, values: Any, size: tuple[int, ...]) -> Any:
    return special("_rebuild_sparse_tensor", torch.sparse_coo, (places, values, size, True))


def lines(starts: list[int], places: list[int], values: Any, size: tuple[int, ...]) -> Any:
    stored = (torch.tensor(starts), torch.tensor(places), values, torch.Size(size))
    return special("_rebuild_sparse_tensor", torch.sparse_csr, stored)


@pytest.mark.parametrize(
    "tensor",
    [
        coordinates(torch.tensor([[0]]), torch.ones(1), (1 << 40,)),
        coordinates(torch.tensor([[-1]]), torch.ones(1), (4,)),
        coordinates(torch.tensor([[4]]), torch.ones(1), (4,)),
        coordinates(torch.tensor([[0, 1]]), torch.ones(1), (4,)),
        coordinates(torch.tensor([[0.5]]), torch.ones(1), (4,)),
        coordinates(torch.tensor([[0]]), torch.ones(1), (-4,)),
        coordinates(torch.tensor([[0]]), coordinates(torch.tensor([[0]]), torch.ones(1), (1,)), (4,)),
        coordinates(3, 4, (4,)),
        lines([0, 1 << 60], [0], torch.ones(1), (1, 4)),
        lines([0, -1, 1], [0], torch.ones(1), (2, 4)),
        lines([0, 1], [4], torch.ones(1), (1, 4)),
        lines([0, 1], [0], torch.ones(1, 0, 0), (1, 4)),
        special(
            "_rebuild_qtensor",
            TypedStorage(wrap_storage=torch.ones(2).untyped_storage(), dtype=torch.float32, _internal=True),
            *(0, (2,), (1,), (torch.per_channel_affine, torch.ones(3), torch.ones(3), 0), False, {}),
        ),
    ],
)
def test_sparse_and_quantized_tensors_that_do_not_fit_are_refused(tensor: Any, tmp_path: Path) -> None:
    torch.save({"weight": tensor}, tmp_path / "a.pt")
    with pytest.raises(SuspectError, match=r"odd tensor|not stored|cannot be followed"):
        load_state(tmp_path / "a.pt")["weight"].read()


@pytest.mark.parametrize("content", [[1, 2], {"a": 1}, {"state_dict": {}}, torch.zeros(3)])
def test_what_is_no_state_dict_is_said_to_be_none(content: object, tmp_path: Path) -> None:
    path = saved(content, tmp_path / "a.pt", "zip")
    with pytest.raises(SuspectError, match=r"save model\.state_dict\(\)"):
        load_state(path)


def test_a_bare_pickle_without_imports_is_refused_too(tmp_path: Path) -> None:
    path = saved({"weight": [1.0]}, tmp_path / "a.pt", "4")
    with pytest.raises(SuspectError, match="bare Python pickle"):
        open_suspect(path, **VGG)


def test_a_zip_archive_of_something_else_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.pt"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("word/document.xml", b"<xml/>")
    with pytest.raises(SuspectError, match=r"neither torch\.save nor"):
        load_state(path)


# Pickles that no pickler writes, from instructions.


def index_of(path: Path) -> bytes:
    with zipfile.ZipFile(path) as archive:
        return archive.read(f"{path.stem}/data.pkl")


def four_bytes(number: int) -> bytes:
    return b"J" + number.to_bytes(4, "little")


def test_storages_and_sizes_beyond_the_file_are_refused(tmp_path: Path, rewrite: Callable[..., None]) -> None:
    path, forged = tmp_path / "a.pt", tmp_path / "forged.pt"
    torch.save({"weight": torch.zeros(77)}, path)
    index = index_of(path)
    storage, size = (match.start() for match in re.finditer(rb"K\x4d", index))
    forgeries = [([size], 78), ([size], 2**31 - 1), ([storage, size], 10**4)]
    for positions, number in [*forgeries, ([storage, size], 2**31 - 1)]:
        content = index
        for position in reversed(positions):
            content = content[:position] + four_bytes(number) + content[position + 2 :]
        rewrite(path, forged, {"data.pkl": content})
        with pytest.raises(SuspectError):
            load_state(forged)


def test_a_tensor_that_repeats_its_few_values_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.pt"
    torch.save({"weight": torch.zeros(1).expand(10**9)}, path)
    with pytest.raises(SuspectError, match="less of the tensor"):
        load_state(path)


def test_a_legacy_storage_beyond_the_file_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.pt"
    torch.save({"weight": torch.zeros(77)}, path, _use_new_zipfile_serialization=False)
    content = path.read_bytes()
    assert content.count(b"K\x4d") == 2
    path.write_bytes(content.replace(b"K\x4d", four_bytes(10**8)))
    with pytest.raises(SuspectError):
        load_legacy_state(path)


def test_writing_into_a_tensor_is_refused(tmp_path: Path, rewrite: Callable[..., None]) -> None:
    path, forged = tmp_path / "a.pt", tmp_path / "forged.pt"
    torch.save({"weight": torch.zeros(77)}, path)
    index = index_of(path)
    tensors = re.findall(rb"Rq(.)", index, flags=re.DOTALL)
    # tensor[0] = 1, after the state dict is complete
    forgery = index[:-1] + b"h" + tensors[-1] + b"K\x00K\x01s."
    rewrite(path, forged, {"data.pkl": forgery})
    with pytest.raises(SuspectError, match="writes into a value"):
        load_state(forged)


def test_tuples_that_take_forever_to_hash_are_refused_at_once() -> None:
    doubling = b"h\x00h\x00\x86q\x00"  # t = (t, t)
    for times in (24, 80):  # a second of hashing if none were refused, and longer than there will be a sun
        bomb = io.BytesIO(b"\x80\x02K\x01q\x00" + doubling * times + b"}h\x00Ns.")
        with pytest.raises(SuspectError, match="tuples"):
            examine(bomb, source=Path("a.pt"))
        assert bomb.tell() < 16 * len(doubling), "refused where it grows, not where it is hashed"


@pytest.mark.parametrize(
    ("instructions", "why"),
    [
        (b"cbuiltins\nbytearray\nJ\xff\xff\xff\x7f\x85R.", "bytearray"),
        (b"ctorch._utils\n_rebuild_qtensor\n.", "_rebuild_qtensor"),
        (b"(iposix\nsystem\n.", "posix.system"),
        (b"\x82\x01.", "EXT1"),
        (b"ctorch\ndevice\n)\x81.", "NEWOBJ"),
        (b"}N)R.", "calls what is no function"),
        (b"ctorch\ndevice\n}b.", "sets the attributes of a name"),
        (b"]K\x01K\x01s.", "writes into a list"),
        (b"}K\x01a.", "writes into a dict"),
        (b"R.", "cannot be followed"),
        (b"h\x05.", "cannot be followed"),
        (b"}", "cannot be followed"),
        (b"X\xff\xff\xff\x7fabc.", "cannot be followed"),
    ],
)
def test_instructions_that_no_state_dict_needs_are_refused(instructions: bytes, why: str) -> None:
    with pytest.raises(SuspectError, match=why):
        examine(b"\x80\x02" + instructions, source=Path("a.pt"))


def test_the_walk_reads_one_pickle_of_a_stream() -> None:
    stream = io.BytesIO(b"\x80\x02}.\x80\x02K\x05.rest")
    examine(stream, source=Path("a.pt"))
    examine(stream, source=Path("a.pt"))
    assert stream.read() == b"rest"
