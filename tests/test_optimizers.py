"""The optimizers: PyTorch's to the bit, without what PyTorch imports for its compiler."""

from __future__ import annotations

import subprocess
import sys

import pytest
import torch
from torch import nn

from sigil import optimizers

KINDS = {
    "sgd": (optimizers.SGD, torch.optim.SGD, {"momentum": 0.9, "weight_decay": 5e-4}),
    "fused sgd": (optimizers.SGD, torch.optim.SGD, {"momentum": 0.9, "weight_decay": 5e-4, "fused": True}),
    "adam": (optimizers.Adam, torch.optim.Adam, {"weight_decay": 5e-4, "amsgrad": True}),
    "fused adam": (optimizers.Adam, torch.optim.Adam, {"fused": True}),
}


@pytest.mark.parametrize("kind", list(KINDS))
def test_they_train_as_pytorchs_to_the_bit(kind: str) -> None:
    """Also from a state that was kept in between, and without recording their own steps for gradients."""
    ours, theirs, arguments = KINDS[kind]
    found = []
    for make in (ours, theirs):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3))
        inputs = torch.randn(5, 16, 4)
        optimizer = make(model.parameters(), lr=0.05, **arguments)
        for number, batch in enumerate(inputs):
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(batch), torch.arange(16) % 3).backward()
            optimizer.step()
            if number == 2:
                kept = optimizer.state_dict()
                optimizer = make(model.parameters(), lr=0.01, **arguments)
                optimizer.load_state_dict(kept)
                assert optimizer.param_groups[0]["lr"] == 0.05
        assert all(value.is_leaf and value.requires_grad for value in model.parameters())
        found.append([value.detach().clone() for value in model.parameters()])
    assert all(map(torch.equal, *found))


def test_hooks_are_called_and_gradients_forgotten() -> None:
    model = nn.Linear(2, 2)
    optimizer = optimizers.SGD(model.parameters(), lr=0.1)
    heard: list[str] = []
    optimizer.register_step_post_hook(lambda *arguments: heard.append("step"))
    model(torch.ones(1, 2)).sum().backward()
    optimizer.step()
    assert heard == ["step"]
    optimizer.zero_grad()
    assert model.weight.grad is None


def test_the_compiler_is_not_loaded() -> None:
    program = (
        "import sys, torch; from sigil.optimizers import Adam, SGD\n"
        "for make in (SGD, Adam):\n"
        "    model = torch.nn.Linear(2, 2); optimizer = make(model.parameters(), lr=0.1)\n"
        "    optimizer.zero_grad(); model(torch.ones(1, 2)).sum().backward(); optimizer.step()\n"
        "    optimizer.load_state_dict(optimizer.state_dict())\n"
        "assert 'torch._dynamo' not in sys.modules\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True)
