"""Model files come back as they were, and hostile ones are refused in one sentence."""

from __future__ import annotations

import contextlib
import json
import os
import struct
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from torch import nn

from sigil import models
from sigil.errors import ModelError, SuspectError
from sigil.models import storage

SPEC = {"name": "resnet18", "classes": 3, "width": 2, "channels": 1, "part": "client", "cut": "layer1"}


@pytest.fixture
def client() -> models.Model:
    """A small client half with batch-norm statistics of its own."""
    model = models.build("resnet18", classes=3, width=2, channels=1, input_size=8, seed=0)
    model(torch.randn(4, 1, 8, 8, generator=torch.Generator().manual_seed(0)))
    return models.split(model, "layer1")[0]


def write(path: Path, module: nn.Module, sigil: object) -> Path:
    """A file with any metadata: text as it is, anything else as JSON."""
    text = sigil if isinstance(sigil, str) else json.dumps(sigil)
    save_file(module.state_dict(), path, metadata={"sigil": text})
    return path


def content(**changes: Any) -> dict[str, Any]:
    return {"format": 1, "spec": SPEC, "input_shape": [1, 8, 8], "extra": {}} | changes


def assert_same(first: nn.Module, second: nn.Module) -> None:
    states = first.state_dict(), second.state_dict()
    assert list(states[0]) == list(states[1])
    for name, tensor in states[0].items():
        assert tensor.dtype == states[1][name].dtype
        assert torch.equal(tensor, states[1][name]), name


@pytest.mark.parametrize("name", models.names())
def test_round_trip_of_wholes_and_halves(name: str, tmp_path: Path) -> None:
    model = models.build(name, classes=3, width=3, input_size=16, seed=0)
    model(torch.randn(2, 3, 16, 16))
    for module in (model, *models.split(model, models.default_cut(name))):
        path = tmp_path / f"{module.spec.part}.safetensors"
        models.save(path, module, extra={"round": "3"})
        again = models.load(path)
        assert_same(again, module)
        assert again.spec == module.spec == models.read_spec(path)
        assert again.input_shape == module.input_shape
        assert models.read_description(path).extra == {"round": "3"}
        assert all(parameter.requires_grad for parameter in again.parameters())


def test_a_loaded_model_does_not_live_in_the_file(client: models.Model, tmp_path: Path) -> None:
    path = tmp_path / "client.safetensors"
    models.save(path, client)
    again = models.load(path)
    with path.open("r+b") as file:
        file.seek(-256, os.SEEK_END)
        file.write(bytes(256))
    assert_same(again, client)
    with torch.no_grad():
        again.get_submodule("conv1").weight.add_(1)


def test_channels_last_and_half_precision_are_saved(client: models.Model, tmp_path: Path) -> None:
    path = tmp_path / "client.safetensors"
    expected = {name: tensor.clone() for name, tensor in client.state_dict().items()}
    models.save(path, client.to(memory_format=torch.channels_last).to(torch.bfloat16))
    assert load_file(path)["conv1.weight"].dtype == torch.bfloat16
    for name, tensor in models.load(path).state_dict().items():
        assert tensor.dtype == expected[name].dtype
        torch.testing.assert_close(tensor, expected[name], rtol=0.01, atol=0.01)


def test_the_same_model_gives_the_same_bytes(client: models.Model, tmp_path: Path) -> None:
    paths = [tmp_path / "a.safetensors", tmp_path / "b.safetensors"]
    for path in paths:
        models.save(path, client, extra={"b": "2", "a": "1"})
    assert paths[0].read_bytes() == paths[1].read_bytes()


def test_the_file_is_plain_safetensors(client: models.Model, tmp_path: Path) -> None:
    path = tmp_path / "client.safetensors"
    models.save(path, client)
    assert load_file(path).keys() == client.state_dict().keys()
    with safe_open(path, framework="pt") as file:
        assert json.loads(file.metadata()["sigil"]) == content()


def test_a_failed_save_leaves_the_old_file_and_no_other(
    client: models.Model, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "client.safetensors"
    models.save(path, client)
    before = path.read_bytes()

    def full(tensors: object, draft: Path, metadata: object) -> None:
        draft.write_bytes(b"half")
        raise OSError("No space left on device")

    monkeypatch.setattr(storage, "save_file", full)
    with pytest.raises(ModelError, match=r"cannot write the model file .*No space left"):
        models.save(path, client)
    assert path.read_bytes() == before
    assert list(tmp_path.iterdir()) == [path]


def test_what_cannot_be_saved(client: models.Model, tmp_path: Path) -> None:
    path = tmp_path / "x.safetensors"
    with pytest.raises(ModelError, match="not a Linear"):
        models.save(path, nn.Linear(2, 2))
    with pytest.raises(ModelError, match="map strings to strings"):
        models.save(path, client, extra={"round": 3})
    with pytest.raises(ModelError, match="store long notes beside"):
        models.save(path, client, extra={"note": "x" * 65536})
    with pytest.raises(ModelError, match="cannot write the model file"):
        models.save(tmp_path / "missing" / "x.safetensors", client)
    assert not list(tmp_path.iterdir())


def test_files_that_are_no_model(client: models.Model, tmp_path: Path) -> None:
    path = tmp_path / "x.safetensors"
    with pytest.raises(SuspectError, match="is not a file"):
        models.load(path)
    with pytest.raises(SuspectError, match="is not a file"):
        models.load(tmp_path)
    for text in (b"", b"\x00", b"hello world", bytes(64), b"\x80\x02}q\x00."):
        path.write_bytes(text)
        with pytest.raises(SuspectError, match="safetensors"):
            models.load(path)
    save_file(client.state_dict(), path)
    with pytest.raises(SuspectError, match="does not say which model it holds"):
        models.load(path)


def test_lengths_are_limited(client: models.Model, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "x.safetensors"
    path.write_bytes(struct.pack("<Q", 2**40) + b"{}")
    with pytest.raises(SuspectError, match="announces a header of 1,099,511,627,776 bytes"):
        models.load(path)
    write(path, client, content(extra={"note": "x" * 65536}))
    with pytest.raises(SuspectError, match="more than 65,536"):
        models.load(path)
    with path.open("wb") as file:
        file.truncate(storage.MAX_FILE_BYTES + 1)
    with pytest.raises(SuspectError, match="more than the limit"):
        models.load(path)


@pytest.mark.parametrize(
    "sigil",
    [
        "",
        "no json",
        "[" * 50_000,
        "9" * 10_000,
        "null",
        "[]",
        {},
        content(format=2),
        content(spec=None),
        content(spec=[]),
        content(spec={}),
        content(spec=SPEC | {"layers": 3}),
        content(spec=SPEC | {"name": "alexnet"}),
        content(spec=SPEC | {"name": ["resnet18"]}),
        content(spec=SPEC | {"width": 10**9}),
        content(spec=SPEC | {"width": 0}),
        content(spec=SPEC | {"width": 2.0}),
        content(spec=SPEC | {"width": float("nan")}),
        content(spec=SPEC | {"width": True}),
        content(spec=SPEC | {"classes": 10**6}),
        content(spec=SPEC | {"channels": 10**6}),
        content(spec=SPEC | {"part": "both"}),
        content(spec=SPEC | {"cut": "fc"}),
        content(spec=SPEC | {"cut": None}),
        content(spec=SPEC | {"cut": {}}),
        content(spec=SPEC | {"part": "whole"}),
        content(input_shape="1x8x8"),
        content(input_shape=[8, 8]),
        content(input_shape=[1, 8, 10**9]),
        content(input_shape=[1, 8, -8]),
        content(input_shape=[3, 8, 8]),
        content(extra=[]),
        content(extra={"round": 3}),
        content(extra={"nested": {"a": "b"}}),
    ],
    ids=lambda sigil: repr(sigil)[:60],
)
def test_hostile_metadata_is_refused_in_one_sentence(
    client: models.Model, tmp_path: Path, sigil: object
) -> None:
    path = write(tmp_path / "x.safetensors", client, sigil)
    for read in (models.load, models.read_spec):
        with pytest.raises(SuspectError, match="is not that of a Sigil model") as caught:
            read(path)
        assert len(str(caught.value)) < 600
        assert "\n" not in str(caught.value)


def test_the_metadata_of_these_tests_is_otherwise_right(client: models.Model, tmp_path: Path) -> None:
    assert_same(models.load(write(tmp_path / "x.safetensors", client, content())), client)


def test_a_file_that_does_not_hold_what_it_says(client: models.Model, tmp_path: Path) -> None:
    path = tmp_path / "x.safetensors"
    for change, message in (
        ({"width": 1024}, "has other shapes than the client half"),
        ({"name": "vgg11", "cut": "pool1"}, "lacks"),
        ({"cut": "layer2"}, r"lacks 25 tensors \('layer2.0.conv1.weight', .*, \.\.\.\) of"),
    ):
        write(path, client, content(spec=SPEC | change, input_shape=None))
        with pytest.raises(SuspectError, match=message):
            models.load(path)


def test_missing_extra_and_misshapen_tensors_are_named(client: models.Model) -> None:
    spec, state = client.spec, client.state_dict()
    with pytest.raises(SuspectError, match=r"lacks the tensor 'conv1.weight' of the client half"):
        models.from_state(spec, {k: v for k, v in state.items() if k != "conv1.weight"})
    with pytest.raises(SuspectError, match=r"has the tensor 'conv9.weight', which no"):
        models.from_state(spec, state | {"conv9.weight": torch.zeros(1)})
    with pytest.raises(SuspectError, match=r"'bn1.bias': the first is \(3,\) and should be \(2,\)"):
        models.from_state(spec, state | {"bn1.bias": torch.zeros(3)})
    with pytest.raises(SuspectError, match=r"5 tensors \('a', 'b', 'c', \.\.\.\)"):
        models.from_state(spec, state | {name: torch.zeros(1) for name in "abcde"})
    with pytest.raises(SuspectError) as caught:
        models.from_state(spec, state | {"x\n\x1b[31m" + "y" * 10_000: torch.zeros(1)})
    assert str(caught.value).isprintable()
    assert len(str(caught.value)) < 300


def test_shapes_are_compared_before_any_tensor_is_read(client: models.Model) -> None:
    class Watched(dict[str, torch.Tensor]):
        reads = 0

        def __getitem__(self, name: str) -> torch.Tensor:
            self.reads += 1
            return super().__getitem__(name)

    state = Watched(client.state_dict())
    models.from_state(client.spec, state)
    assert state.reads == len(state)
    state.reads = 0
    last = list(state)[-2]
    state[last] = torch.zeros(7)
    with pytest.raises(SuspectError, match="other shapes"):
        models.from_state(client.spec, state)
    assert state.reads == 0


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
@pytest.mark.parametrize("tensor", ["layer1.0.conv1.weight", "bn1.running_mean"])
def test_values_that_are_not_finite_are_refused(
    client: models.Model, tmp_path: Path, tensor: str, value: float
) -> None:
    client.state_dict()[tensor].view(-1)[1] = value
    with pytest.raises(SuspectError, match=f"'{tensor}' that are not finite"):
        models.from_state(client.spec, client.state_dict())
    with pytest.raises(SuspectError, match=f"'{tensor}' that are not finite"):
        models.load(write(tmp_path / "x.safetensors", client, content()))


def test_values_that_overflow_float32_or_make_it_nan_are_refused(client: models.Model) -> None:
    state = client.state_dict()
    with pytest.raises(SuspectError, match="not finite"):
        models.from_state(client.spec, state | {"bn1.bias": torch.tensor([1e300, 0.0]).double() * 1e200})
    with pytest.raises(SuspectError, match=r"negative variances in 'bn1.running_var'"):
        models.from_state(client.spec, state | {"bn1.running_var": torch.tensor([1.0, -1.0])})


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_floating_dtypes_become_float32(client: models.Model, dtype: torch.dtype) -> None:
    model = models.from_state(client.spec, client.to(dtype).state_dict())
    for name, tensor in model.state_dict().items():
        expected = torch.int64 if name.endswith("num_batches_tracked") else torch.float32
        assert tensor.dtype == expected
        torch.testing.assert_close(tensor, client.state_dict()[name].to(expected))


@pytest.mark.parametrize(
    "tensor",
    [
        torch.zeros(2, dtype=torch.int8),
        torch.zeros(2, dtype=torch.complex64),
        torch.zeros(2, dtype=torch.bool),
        torch.zeros(2).to(torch.float8_e4m3fn),
        torch.zeros(2).to_sparse(),
        torch.zeros(2, device="meta"),
        [0.0, 0.0],
        None,
    ],
    ids=["int8", "complex", "bool", "float8", "sparse", "meta", "list", "none"],
)
def test_other_kinds_of_tensors_are_refused(client: models.Model, tensor: Any) -> None:
    with pytest.raises(SuspectError, match=r"'bn1\.bias'"):
        models.from_state(client.spec, client.state_dict() | {"bn1.bias": tensor})


def test_names_that_are_no_text_are_refused(client: models.Model) -> None:
    with pytest.raises(SuspectError, match="maps names to tensors"):
        models.from_state(client.spec, client.state_dict() | {3: torch.zeros(2)})


def test_a_half_is_taken_out_of_the_state_of_the_whole() -> None:
    model = models.build("vgg11", width=2, seed=0)
    for half in models.split(model, "pool3"):
        assert_same(models.from_state(half.spec, model.state_dict()), half)
    with pytest.raises(SuspectError, match=r"'stage6\.0\.weight', which no client half"):
        models.from_state(
            models.split(model, "pool3")[0].spec, model.state_dict() | {"stage6.0.weight": torch.zeros(1)}
        )
    with pytest.raises(SuspectError, match="lacks"):
        models.from_state(model.spec, models.split(model, "pool3")[0].state_dict())


def test_counters_of_batch_norms_may_be_missing_or_floating(client: models.Model) -> None:
    state = client.state_dict()
    counters = [name for name in state if name.endswith("num_batches_tracked")]
    assert state[counters[0]] == 1
    without = models.from_state(client.spec, {k: v for k, v in state.items() if k not in counters})
    assert all(without.state_dict()[name] == 0 for name in counters)
    averaged = models.from_state(client.spec, state | {counters[0]: torch.tensor(4.0)})
    assert averaged.state_dict()[counters[0]].dtype == torch.int64
    assert averaged.state_dict()[counters[0]] == 4
    images = torch.randn(2, 1, 8, 8)
    assert torch.equal(without.eval()(images), client.eval()(images))


def test_from_state_copies(client: models.Model) -> None:
    model = models.from_state(client.spec, client.state_dict())
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    for tensor in client.state_dict().values():
        tensor.zero_()
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())


@pytest.fixture(scope="module")
def scratch(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, bytes]:
    path = tmp_path_factory.mktemp("fuzz") / "x.safetensors"
    model = models.build("resnet18", width=1, channels=1, input_size=8, seed=0)
    models.save(path, models.split(model, "bn1")[0])
    return path, path.read_bytes()


@settings(max_examples=3 * settings.default.max_examples // 2)
@given(data=st.data())
def test_damaged_files_load_or_are_refused(scratch: tuple[Path, bytes], data: st.DataObject) -> None:
    """Whatever happens to the bytes, the outcome is a model or a SuspectError."""
    path, original = scratch
    damaged = bytearray(original)
    for position in data.draw(st.lists(st.integers(0, len(original) - 1), min_size=1, max_size=4)):
        damaged[position] = data.draw(st.integers(0, 255))
    path.write_bytes(bytes(damaged[: data.draw(st.integers(len(original) // 2, len(original)))]))
    with contextlib.suppress(SuspectError):
        model = models.load(path)
        assert all(bool(tensor.isfinite().all()) for tensor in model.state_dict().values())
