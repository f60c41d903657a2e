"""Three lines that are right the first time: paths for keys and models, and sentences for what is wrong."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

import sigil
from sigil import models
from sigil.errors import ConfigError, KeyFileError, ShapeError, SuspectError


@pytest.fixture
def key() -> sigil.Key:
    return sigil.Key.generate(owner="ACME", shape=(16, 2, 2), bits=16, seed=bytes(32))


def test_a_key_takes_its_shape_from_a_batch_of_activations() -> None:
    activation = torch.rand(7, 64, 3, 2)
    key = sigil.Key.for_activation(activation, owner="ACME", bits=40, model="resnet18")
    assert (key.owner, key.shape, key.bits, key.fields.model) == ("ACME", (64, 3, 2), 40, "resnet18")


@pytest.mark.parametrize("wrong", [torch.rand(4), torch.rand(0, 4)])
def test_a_shape_is_only_taken_from_a_batch(wrong: torch.Tensor) -> None:
    with pytest.raises(ShapeError, match="batch of activations"):
        sigil.Key.for_activation(wrong, owner="ACME")


def test_an_injector_takes_the_path_of_a_key(key: sigil.Key, tmp_path: Path) -> None:
    key.save(tmp_path / "owner.key")
    activation, gradient = torch.rand(4, 16, 2, 2), torch.randn(4, 16, 2, 2)
    expected = sigil.Injector(key)(activation, gradient)
    for path in (tmp_path / "owner.key", str(tmp_path / "owner.key")):
        assert torch.equal(sigil.Injector(path)(activation, gradient), expected)
    with pytest.raises(KeyFileError, match=r"nowhere\.key"):
        sigil.Injector(tmp_path / "nowhere.key")


@pytest.mark.parametrize("wrong", [-1, float("inf"), float("nan")])
def test_an_injector_refuses_what_is_no_strength(key: sigil.Key, wrong: object) -> None:
    with pytest.raises(sigil.SigilError, match="finite number"):
        sigil.Injector(key, wrong)  # type: ignore[arg-type]


@pytest.mark.parametrize("leaf", [True, False])
def test_attaching_twice_to_one_tensor_is_an_error(key: sigil.Key, leaf: bool) -> None:
    activation = torch.rand(4, 16, 2, 2, requires_grad=True)
    activation = activation if leaf else activation * 2
    first = sigil.Injector(key)
    handle = first.attach(activation)
    for second in (first, sigil.Injector(key, 1.0)):
        with pytest.raises(ConfigError, match="attached to this activation already"):
            second.attach(activation)
    handle.remove()
    activation.register_hook(lambda gradient: gradient)  # somebody else's hook is nobody's business
    first.attach(activation)


def test_attach_takes_tensors_only(key: sigil.Key) -> None:
    with pytest.raises(ConfigError, match="of type ndarray"):
        sigil.Injector(key).attach(np.zeros((4, 16, 2, 2)))  # type: ignore[arg-type]


def test_verify_takes_paths(key: sigil.Key, tmp_path: Path) -> None:
    half, _ = models.split(models.build("resnet18", width=4, input_size=8, seed=1), "layer3")
    models.save(tmp_path / "half.safetensors", half)
    key.save(tmp_path / "owner.key")
    expected = sigil.verify(half, key)
    assert sigil.verify(tmp_path / "half.safetensors", str(tmp_path / "owner.key")).wsr == expected.wsr
    assert sigil.verify(half, tmp_path / "owner.key").wsr == expected.wsr
    assert sigil.check(half, tmp_path / "owner.key").readings[0].wsr == expected.wsr


def test_verify_says_what_it_takes(key: sigil.Key) -> None:
    half = nn.Sequential(nn.Conv2d(3, 16, 3, padding=1, stride=4))
    with pytest.raises(ConfigError, match=r"of type int, but a sigil\.Key"):
        sigil.verify(half, 5)  # type: ignore[arg-type]
    with pytest.raises(SuspectError, match="load it into its module"):
        sigil.verify(half.state_dict(), key)  # type: ignore[arg-type]
    with pytest.raises(SuspectError, match="of type int, which cannot be run"):
        sigil.verify(5, key)  # type: ignore[arg-type]


def test_a_model_whose_memory_was_laid_out_in_inference_mode_is_read() -> None:
    """Its parameters still ask for gradients, which some functions of PyTorch then refuse to do without."""
    half = models.split(models.build("resnet18", width=4, channels=1, input_size=(8, 8), seed=0), "layer2")[0]
    stated = sigil.Key.generate(
        owner="ACME", shape=(8, 4, 4), bits=16, seed=bytes(32), model="resnet18", width=4, cut="layer2"
    )
    with torch.inference_mode():
        half = half.to(memory_format=torch.channels_last)
    report = sigil.verify(half, stated, input_shape=(1, 8, 8), probes=64)
    assert not report.owned
