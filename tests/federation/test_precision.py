from __future__ import annotations

import pytest
import torch

from sigil.errors import ConfigError
from sigil.federation.precision import choose


def test_auto_takes_a_device_that_is_there() -> None:
    place = choose("auto").device
    assert place.type in ("cpu", "cuda", "mps")
    assert torch.ones(1, device=place).item() == 1


def test_autocast_is_bfloat16_and_only_inside() -> None:
    layer = torch.nn.Linear(2, 2)
    with choose("cpu", "bfloat16").autocast():
        assert layer(torch.ones(1, 2)).dtype is torch.bfloat16
    with choose("cpu", "float32").autocast():
        assert layer(torch.ones(1, 2)).dtype is torch.float32


@pytest.mark.parametrize("device", ["nowhere", "cuda:999"])
def test_a_device_that_is_not_there_is_one_sentence(device: str) -> None:
    with pytest.raises(ConfigError, match="cannot be used here"):
        choose(device)
